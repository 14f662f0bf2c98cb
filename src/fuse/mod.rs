//! The adapter to fuser: decodes requests, calls the view, replies. It holds no rules of a file
//! system; those are the view's.

mod convert;
pub mod mount;
mod notify;

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    BackingId, BsdFileFlags, Config, Errno, FileHandle, FopenFlags, Generation, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, Session, SessionACL, TimeOrNow, WriteFlags,
};
use txfs_journal::{Name, ObjId};

use crate::view::View;
use crate::view::api::{
    DataPath, Entry, Fh, Forget, NodeSpec, OpResult, Opened, RenameMode, SetAttr, Trust,
};
use convert::{ack, caller, error, file_attr, kind_of_mode, name, set_time};
use notify::Notifier;

/// How long the kernel may keep what only this view can change.
const OWN: Duration = Duration::from_secs(24 * 60 * 60);
/// How long it may keep what people who edit the base can change too.
const SHARED: Duration = Duration::from_secs(1);
/// Node ids are never used twice in a mount, so one generation does.
const GENERATION: Generation = Generation(0);
/// Extended attributes of the root by which a program in a view learns where it is. They are
/// answered and not listed, so that no copy takes them along.
const ABOUT: &str = "user.txfs.";

/// What a program in a view may ask about it.
#[derive(Clone, Debug)]
pub struct About {
    /// The workspace's path.
    pub workspace: Vec<u8>,
    /// The transaction's name.
    pub txn: String,
    /// The control socket's path.
    pub socket: Vec<u8>,
}

/// A view being served.
pub struct Served {
    /// Ends when the mount is gone.
    pub thread: std::thread::JoinHandle<()>,
    /// File data bypasses the daemon.
    pub passthrough: bool,
}

/// Serves a view on a FUSE connection before its INIT. Returns once the kernel has said INIT;
/// `ended` is called when the mount is gone.
///
/// # Errors
/// If the handshake fails or a thread cannot be started.
pub fn serve(
    view: &Arc<View>,
    device: OwnedFd,
    about: About,
    allow_passthrough: bool,
    ended: impl FnOnce() + Send + 'static,
) -> io::Result<Served> {
    let notifications = device.try_clone()?;
    let negotiated = Arc::new(Mutex::new(false));
    let adapter = Adapter {
        view: Arc::clone(view),
        about,
        allow_passthrough,
        negotiated: Arc::clone(&negotiated),
        backings: Mutex::default(),
    };
    let mut config = Config::default();
    config.acl = SessionACL::All;
    config.n_threads =
        Some(std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8)));
    config.clone_fd = true;
    let session = Session::from_fd(adapter, device, SessionACL::All, config)?;
    let passthrough = *negotiated.lock().unwrap_or_else(PoisonError::into_inner);
    let notifier = Notifier::start(session.notifier(), notifications)?;
    view.attach(Arc::new(notifier), passthrough);
    let of = Arc::clone(view);
    let thread = std::thread::Builder::new().name("fuse".into()).spawn(move || {
        if let Err(e) = session.run() {
            log::warn!("the FUSE session ended: {e}");
        }
        of.detach();
        ended();
    })?;
    Ok(Served { thread, passthrough })
}

struct Backing {
    id: Arc<BackingId>,
    handles: u32,
}

struct Adapter {
    view: Arc<View>,
    about: About,
    allow_passthrough: bool,
    negotiated: Arc<Mutex<bool>>,
    /// The kernel takes one backing a node at a time, so all handles of a node share it.
    backings: Mutex<HashMap<INodeNo, Backing>>,
}

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn attr_ttl(trust: Trust) -> Duration {
    match trust {
        Trust::Own => OWN,
        Trust::Base => SHARED,
        Trust::Writer => Duration::ZERO,
    }
}

fn obj(ino: INodeNo) -> ObjId {
    ObjId(ino.0)
}

fn fh(handle: FileHandle) -> Fh {
    Fh(handle.0)
}

impl Adapter {
    fn reply_entry(&self, result: OpResult<Entry>, reply: ReplyEntry) {
        match result {
            Ok(entry) => reply.entry_with_ttls(
                &attr_ttl(entry.attr_trust),
                &attr_ttl(entry.name_trust),
                &file_attr(&entry.attr),
                GENERATION,
            ),
            Err(e) => reply.error(error(e)),
        }
    }

    /// The backing of a node, registered at its first open.
    fn backing(
        &self,
        ino: INodeNo,
        register: impl FnOnce() -> io::Result<BackingId>,
    ) -> io::Result<Arc<BackingId>> {
        let mut backings = self.backings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(backing) = backings.get_mut(&ino) {
            backing.handles += 1;
            return Ok(Arc::clone(&backing.id));
        }
        let id = Arc::new(register()?);
        backings.insert(ino, Backing { id: Arc::clone(&id), handles: 1 });
        Ok(id)
    }

    /// One handle less. Before the view forgets the handle: an open that comes in between finds
    /// the view still in passthrough and registers the same file anew.
    fn release_backing(&self, ino: INodeNo) {
        let mut backings = self.backings.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(backing) = backings.get_mut(&ino) else { return };
        backing.handles -= 1;
        if backing.handles == 0 {
            backings.remove(&ino);
        }
    }

    fn reply_open(&self, ino: INodeNo, flags: i32, opened: &Opened, reply: ReplyOpen) {
        let handle = FileHandle(opened.fh.0);
        let reads = flags & libc::O_ACCMODE == libc::O_RDONLY;
        let no_flush = if reads { FopenFlags::FOPEN_NOFLUSH } else { FopenFlags::empty() };
        match &opened.data {
            DataPath::Cached { keep } => {
                let keep = if *keep { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() };
                reply.opened(handle, keep | no_flush);
            }
            DataPath::Passthrough(fd) => match self.backing(ino, || reply.open_backing(fd.as_fd()))
            {
                Ok(id) => {
                    reply.opened_passthrough(handle, no_flush, &id);
                    if !reads && let Some(kernel) = self.view.kernel() {
                        kernel.forget(vec![Forget::Attr(obj(ino))]);
                    }
                }
                Err(e) => {
                    log::warn!("node {ino}: no passthrough: {e}");
                    match self.view.serve_cached(opened.fh) {
                        Ok(()) => reply.opened(handle, no_flush),
                        Err(e) => reply.error(error(e)),
                    }
                }
            },
        }
    }

    fn reply_created(&self, entry: &Entry, opened: &Opened, reply: ReplyCreate) {
        let (attr, handle) = (file_attr(&entry.attr), FileHandle(opened.fh.0));
        // fuser has one timeout for both here; the shorter one is right for both.
        let ttl = attr_ttl(entry.attr_trust).min(attr_ttl(entry.name_trust));
        match &opened.data {
            DataPath::Cached { .. } => {
                reply.created(&ttl, &attr, GENERATION, handle, FopenFlags::empty());
            }
            DataPath::Passthrough(fd) => {
                match self.backing(attr.ino, || reply.open_backing(fd.as_fd())) {
                    Ok(id) => {
                        reply.created_passthrough(
                            &ttl,
                            &attr,
                            GENERATION,
                            handle,
                            FopenFlags::empty(),
                            &id,
                        );
                    }
                    Err(e) => {
                        log::warn!("node {}: no passthrough: {e}", attr.ino);
                        match self.view.serve_cached(opened.fh) {
                            Ok(()) => {
                                reply.created(&ttl, &attr, GENERATION, handle, FopenFlags::empty())
                            }
                            Err(e) => reply.error(error(e)),
                        }
                    }
                }
            }
        }
    }

    fn about(&self, ino: INodeNo, name: &OsStr) -> Option<Vec<u8>> {
        if ino != INodeNo(ObjId::ROOT.0) {
            return None;
        }
        match name.to_str()?.strip_prefix(ABOUT)? {
            "workspace" => Some(self.about.workspace.clone()),
            "txn" => Some(self.about.txn.clone().into_bytes()),
            "socket" => Some(self.about.socket.clone()),
            _ => None,
        }
    }
}

fn reply_sized(value: &[u8], size: u32, reply: ReplyXattr) {
    match u32::try_from(value.len()) {
        Ok(len) if size == 0 => reply.size(len),
        Ok(len) if len <= size => reply.data(value),
        Ok(_) => reply.error(Errno::ERANGE),
        Err(_) => reply.error(Errno::E2BIG),
    }
}

/// The checked name, or the error sent.
macro_rules! name_or_reply {
    ($name:expr, $reply:expr) => {
        match name($name) {
            Ok(name) => name,
            Err(e) => return $reply.error(error(e)),
        }
    };
}

impl fuser::Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let want = [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_DONT_MASK,
            InitFlags::FUSE_POSIX_ACL,
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ];
        for flag in want {
            if config.add_capabilities(flag).is_err() {
                log::debug!("the kernel has no {flag:?}");
            }
        }
        if self.allow_passthrough
            && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(1).is_ok()
        {
            *self.negotiated.lock().unwrap_or_else(PoisonError::into_inner) = true;
        }
        for (what, result) in [
            ("max_write", config.set_max_write(1 << 20).map(drop).map_err(drop)),
            ("max_background", config.set_max_background(64).map(drop).map_err(drop)),
        ] {
            if result.is_err() {
                log::debug!("the kernel has its own limit on {what}");
            }
        }
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, what: &OsStr, reply: ReplyEntry) {
        let name = name_or_reply!(what, reply);
        match self.view.lookup(obj(parent), &name) {
            Err(rustix::io::Errno::NOENT) if self.view.absence_is_ours(obj(parent), &name) => {
                // Node 0 is an entry that says "absent", for as long as it is valid.
                reply.entry_with_ttls(&OWN, &OWN, &convert::absent(), GENERATION);
            }
            result => self.reply_entry(result, reply),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.view.forget(obj(ino), nlookup);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.view.getattr(obj(ino), handle.map(fh)) {
            Ok((attr, trust)) => reply.attr(&attr_ttl(trust), &file_attr(&attr)),
            Err(e) => reply.error(error(e)),
        }
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = SetAttr {
            mode: mode.map(|m| m & 0o7777),
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
        };
        // With HANDLE_KILLPRIV_V2 the kernel asks to drop privileges by a flag that fuser does not
        // show; nothing else arrives with nothing set.
        let result = if set == SetAttr::default() {
            self.view.kill_suid(obj(ino))
        } else {
            self.view.setattr(&caller(req), obj(ino), handle.map(fh), &set)
        };
        match result {
            Ok((attr, trust)) => reply.attr(&attr_ttl(trust), &file_attr(&attr)),
            Err(e) => reply.error(error(e)),
        }
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        match self.view.readlink(obj(ino)) {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(error(e)),
        }
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        what: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let name = name_or_reply!(what, reply);
        let Some(kind) = kind_of_mode(mode) else { return reply.error(Errno::EINVAL) };
        let spec = NodeSpec { kind, mode: mode & 0o7777, umask, rdev: rdev.into() };
        self.reply_entry(self.view.mknod(&caller(req), obj(parent), &name, &spec), reply);
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        what: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let name = name_or_reply!(what, reply);
        self.reply_entry(self.view.mkdir(&caller(req), obj(parent), &name, mode, umask), reply);
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, what: &OsStr, reply: ReplyEmpty) {
        let name = name_or_reply!(what, reply);
        ack(self.view.unlink(obj(parent), &name), reply);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, what: &OsStr, reply: ReplyEmpty) {
        let name = name_or_reply!(what, reply);
        ack(self.view.rmdir(obj(parent), &name), reply);
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        what: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let name = name_or_reply!(what, reply);
        let target = target.as_os_str().as_bytes();
        self.reply_entry(self.view.symlink(&caller(req), obj(parent), &name, target), reply);
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        what: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let from = name_or_reply!(what, reply);
        let to = name_or_reply!(newname, reply);
        let mode = if flags.is_empty() {
            RenameMode::Replace
        } else if flags == RenameFlags::RENAME_NOREPLACE {
            RenameMode::NoReplace
        } else if flags == RenameFlags::RENAME_EXCHANGE {
            RenameMode::Exchange
        } else {
            return reply.error(Errno::EINVAL);
        };
        ack(self.view.rename((obj(parent), &from), (obj(newparent), &to), mode), reply);
    }

    fn link(
        &self,
        _req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        let name = name_or_reply!(newname, reply);
        self.reply_entry(self.view.link(obj(ino), obj(newparent), &name), reply);
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.view.open_file_handle(&caller(req), obj(ino), flags.0) {
            Ok(opened) => self.reply_open(ino, flags.0, &opened, reply),
            Err(e) => reply.error(error(e)),
        }
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        BUFFER.with_borrow_mut(|buffer| {
            let size = size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            match self.view.read(fh(handle), offset, &mut buffer[..size]) {
                Ok(got) => reply.data(&buffer[..got]),
                Err(e) => reply.error(error(e)),
            }
        });
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let kill = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        match self.view.write(fh(handle), offset, data, kill) {
            Ok(n) => reply.written(n as u32),
            Err(e) => reply.error(error(e)),
        }
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // Every write has been carried out by the time it was answered.
        reply.ok();
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.release_backing(ino);
        self.view.release(fh(handle));
        reply.ok();
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        ack(self.view.fsync(fh(handle), datasync), reply);
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.view.opendir(obj(ino)) {
            // The kernel keeps the listing until the directory's time moves or we say so.
            Ok(handle) => reply.opened(
                FileHandle(handle.0),
                FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE,
            ),
            Err(e) => reply.error(error(e)),
        }
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        for (at, what, name) in [(0, ino, "."), (1, INodeNo(self.view.parent(obj(ino)).0), "..")] {
            if offset <= at && reply.add(what, at + 1, fuser::FileType::Directory, name) {
                return reply.ok();
            }
        }
        let result = self.view.readdir(fh(handle), offset.saturating_sub(2), &mut |next, entry| {
            reply.add(
                INodeNo(entry.obj.0),
                next + 2,
                convert::file_type(entry.kind),
                entry.name.as_os_str(),
            )
        });
        match result {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(error(e)),
        }
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        for (at, what, name) in [(0, ino, "."), (1, INodeNo(self.view.parent(obj(ino)).0), "..")] {
            // These take no lookup and their attributes are not used.
            let attr = convert::nothing(what);
            if offset <= at && reply.add(what, at + 1, name, &Duration::ZERO, &attr, GENERATION) {
                return reply.ok();
            }
        }
        let result =
            self.view.readdir(fh(handle), offset.saturating_sub(2), &mut |next, listed| {
                let entry = match self.view.lookup_listed(fh(handle), listed) {
                    Ok(entry) => entry,
                    // It went away since the listing was taken.
                    Err(_) => return false,
                };
                let ttl = attr_ttl(entry.attr_trust).min(attr_ttl(entry.name_trust));
                let attr = file_attr(&entry.attr);
                let full =
                    reply.add(attr.ino, next + 2, listed.name.as_os_str(), &ttl, &attr, GENERATION);
                if full {
                    self.view.forget(entry.attr.obj, 1);
                }
                full
            });
        match result {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(error(e)),
        }
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.view.releasedir(fh(handle));
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        ack(self.view.fsyncdir(fh(handle)), reply);
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        match self.view.statfs() {
            Ok(s) => reply.statfs(
                s.f_blocks,
                s.f_bfree,
                s.f_bavail,
                s.f_files,
                s.f_ffree,
                s.f_bsize as u32,
                s.f_namemax as u32,
                s.f_frsize as u32,
            ),
            Err(e) => reply.error(error(e)),
        }
    }

    fn setxattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        what: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        ack(self.view.setxattr(obj(ino), what.as_bytes(), value, flags), reply);
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, what: &OsStr, size: u32, reply: ReplyXattr) {
        if let Some(value) = self.about(ino, what) {
            return reply_sized(&value, size, reply);
        }
        match self.view.getxattr(obj(ino), what.as_bytes()) {
            Ok(value) => reply_sized(&value, size, reply),
            Err(e) => reply.error(error(e)),
        }
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        match self.view.listxattr(obj(ino)) {
            Ok(names) => {
                let mut all = Vec::new();
                for name in names {
                    all.extend_from_slice(&name);
                    all.push(0);
                }
                reply_sized(&all, size, reply);
            }
            Err(e) => reply.error(error(e)),
        }
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, what: &OsStr, reply: ReplyEmpty) {
        ack(self.view.removexattr(obj(ino), what.as_bytes()), reply);
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        what: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let name: Name = name_or_reply!(what, reply);
        let spec = NodeSpec { kind: txfs_journal::Kind::File, mode: mode & 0o7777, umask, rdev: 0 };
        match self.view.create(&caller(req), obj(parent), &name, &spec, flags) {
            Ok((entry, opened)) => self.reply_created(&entry, &opened, reply),
            Err(e) => reply.error(error(e)),
        }
    }

    fn ioctl(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        ack(self.view.fallocate(fh(handle), offset, length, mode), reply);
    }

    fn lseek(
        &self,
        _req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        match self.view.lseek(fh(handle), offset, whence) {
            Ok(at) => reply.offset(at as i64),
            Err(e) => reply.error(error(e)),
        }
    }

    fn copy_file_range(
        &self,
        _req: &Request,
        _ino_in: INodeNo,
        handle_in: FileHandle,
        offset_in: u64,
        _ino_out: INodeNo,
        handle_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: fuser::CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        match self.view.copy_file_range(
            (fh(handle_in), offset_in),
            (fh(handle_out), offset_out),
            len,
        ) {
            Ok(n) => reply.written(n as u32),
            Err(e) => reply.error(error(e)),
        }
    }
}
