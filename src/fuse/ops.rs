//! The operations: decode, call the view, reply.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileHandle, FopenFlags, INodeNo, InitFlags, IoctlFlags, KernelConfig,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use txfs_journal::Name;

use super::adapter::{Adapter, GENERATION, fh, obj, reply_sized, ttl};
use super::convert::{self, ack, caller, failed, file_attr, kind_of_mode, name, set_time};
use crate::view::api::{NodeSpec, RenameMode, SetAttr};

/// What is asked of the kernel, besides passthrough where the daemon may.
///
/// Not asked for, and why: `WRITEBACK_CACHE` (a write would succeed after the daemon is dead),
/// `FLOCK_LOCKS` and `POSIX_LOCKS` (the kernel's own locks do), `EXPORT_SUPPORT`; and what fuser
/// 0.18.0 accepts without serving it: `SETXATTR_EXT` (its loop panics), `HANDLE_KILLPRIV`,
/// `ALLOW_IDMAP`, `SECURITY_CTX`, `CREATE_SUPP_GROUP`, `HAS_RESEND`, `REQUEST_TIMEOUT`,
/// `OVER_IO_URING`, `SUBMOUNTS`, `MAP_ALIGNMENT`, `HAS_INODE_DAX`, `ABORT_ERROR`.
const WANTED: [InitFlags; 10] = [
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_DONT_MASK,
    InitFlags::FUSE_POSIX_ACL,
    InitFlags::FUSE_ATOMIC_O_TRUNC,
    InitFlags::FUSE_AUTO_INVAL_DATA,
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    // The target of a link never changes: another target is another object.
    InitFlags::FUSE_CACHE_SYMLINKS,
];

thread_local! {
    /// What a thread reads into.

    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The checked name, or the error sent.
macro_rules! name_or_reply {
    ($name:expr, $reply:expr) => {
        match name($name) {
            Ok(name) => name,
            Err(e) => return $reply.error(convert::error(e)),
        }
    };
}

impl fuser::Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in WANTED {
            if config.add_capabilities(flag).is_err() {
                log::debug!("the kernel has no {flag:?}");
            }
        }
        if self.allow_passthrough
            && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(1).is_ok()
        {
            self.negotiated.store(true, Ordering::Relaxed);
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
            Err(rustix::io::Errno::NOENT) => {
                // Node 0 is an entry that says "absent", for as long as it is valid.
                let valid = ttl(self.view.absence(obj(parent), &name));
                reply.entry_with_ttls(&valid, &valid, &convert::absent(), GENERATION);
            }
            result => self.reply_entry("lookup", parent, result, reply),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.view.forget(obj(ino), nlookup);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        self.reply_attr("getattr", ino, self.view.getattr(obj(ino), handle.map(fh)), reply);
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
        let caller = caller(req);
        self.change(req, move |this| {
            let result = if !convert::may_give_to(uid, gid) {
                Err(rustix::io::Errno::PERM)
            } else if set == SetAttr::default() {
                this.view.kill_suid(obj(ino))
            } else {
                this.view.setattr(&caller, obj(ino), handle.map(fh), &set)
            };
            this.reply_attr("setattr", ino, result, reply);
        });
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        match self.view.readlink(obj(ino)) {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(failed("readlink", ino, e)),
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
        let caller = caller(req);
        self.change(req, move |this| {
            let result = this.view.mknod(&caller, obj(parent), &name, &spec);
            this.reply_entry("mknod", parent, result, reply);
        });
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
        let (name, caller) = (name_or_reply!(what, reply), caller(req));
        self.change(req, move |this| {
            let result = this.view.mkdir(&caller, obj(parent), &name, mode, umask);
            this.reply_entry("mkdir", parent, result, reply);
        });
    }

    fn unlink(&self, req: &Request, parent: INodeNo, what: &OsStr, reply: ReplyEmpty) {
        let name = name_or_reply!(what, reply);
        self.change(req, move |this| {
            ack("unlink", parent, this.view.unlink(obj(parent), &name), reply);
        });
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, what: &OsStr, reply: ReplyEmpty) {
        let name = name_or_reply!(what, reply);
        self.change(req, move |this| {
            ack("rmdir", parent, this.view.rmdir(obj(parent), &name), reply);
        });
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        what: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (name, caller) = (name_or_reply!(what, reply), caller(req));
        let target = target.as_os_str().as_bytes().to_vec();
        self.change(req, move |this| {
            let result = this.view.symlink(&caller, obj(parent), &name, &target);
            this.reply_entry("symlink", parent, result, reply);
        });
    }

    fn rename(
        &self,
        req: &Request,
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
        self.change(req, move |this| {
            let result = this.view.rename((obj(parent), &from), (obj(newparent), &to), mode);
            ack("rename", parent, result, reply);
        });
    }

    fn link(
        &self,
        req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        let name = name_or_reply!(newname, reply);
        self.change(req, move |this| {
            let result = this.view.link(obj(ino), obj(newparent), &name);
            this.reply_entry("link", ino, result, reply);
        });
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let answer = move |this: &Adapter, result| match result {
            Ok(opened) => this.reply_open(ino, flags.0, &opened, reply),
            Err(e) => reply.error(failed("open", ino, e)),
        };
        if let Some(result) = self.view.open_at_once(obj(ino), flags.0) {
            return answer(self, result);
        }
        let caller = caller(req);
        self.change(req, move |this| {
            answer(this, this.view.open_file_handle(&caller, obj(ino), flags.0));
        });
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
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
                Err(e) => reply.error(failed("read", ino, e)),
            }
        });
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let kill = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let write = move |this: &Adapter, data: &[u8]| match this.view.write(
            fh(handle),
            offset,
            data,
            kill,
        ) {
            Ok(n) => reply.written(n as u32),
            Err(e) => reply.error(failed("write", ino, e)),
        };
        if let Some(_turn) = self.view.turn() {
            self.view.act_for(req.pid());
            write(self, data);
        } else {
            let data = data.to_vec();
            self.change(req, move |this| write(this, &data));
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
        // Every write has been carried out by the time it was answered: the kernel need not ask again.
        reply.error(fuser::Errno::ENOSYS);
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
        self.backings.release(ino);
        self.view.release(fh(handle));
        reply.ok();
    }

    fn fsync(
        &self,
        _req: &Request,
        ino: INodeNo,
        handle: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        ack("fsync", ino, self.view.fsync(fh(handle), datasync), reply);
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.view.opendir(obj(ino)) {
            // The kernel keeps the listing until the directory's time moves or we say so.
            Ok((handle, true)) => reply.opened(
                FileHandle(handle.0),
                FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE,
            ),
            Ok((handle, false)) => reply.opened(FileHandle(handle.0), FopenFlags::empty()),
            Err(e) => reply.error(failed("opendir", ino, e)),
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
            Err(e) => reply.error(failed("readdir", ino, e)),
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
        let (mut first, mut unreadable) = (offset, None);
        let result =
            self.view.readdir(fh(handle), offset.saturating_sub(2), &mut |next, listed| {
                let entry = match self.view.lookup_listed(fh(handle), listed) {
                    Ok(entry) => entry,
                    // It went away since the listing was taken.
                    Err(rustix::io::Errno::NOENT) => return false,
                    // The listing ends before it, so that the next call meets it first and says
                    // so: an entry is never just left out.
                    Err(e) => {
                        unreadable = Some((first, e));
                        return true;
                    }
                };
                first = next + 2;
                let ttl = ttl(entry.attr_trust).min(ttl(entry.name_trust));
                let attr = file_attr(&entry.attr);
                let full =
                    reply.add(attr.ino, next + 2, listed.name.as_os_str(), &ttl, &attr, GENERATION);
                if full {
                    self.view.forget(entry.attr.obj, 1);
                }
                full
            });
        match (result, unreadable) {
            (Ok(()), Some((at, e))) if at == offset && offset >= 2 => {
                reply.error(failed("readdirplus", ino, e));
            }
            (Ok(()), _) => reply.ok(),
            (Err(e), _) => reply.error(failed("readdirplus", ino, e)),
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
        ino: INodeNo,
        handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        ack("fsyncdir", ino, self.view.fsyncdir(fh(handle)), reply);
    }

    fn statfs(&self, _req: &Request, ino: INodeNo, reply: ReplyStatfs) {
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
            Err(e) => reply.error(failed("statfs", ino, e)),
        }
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        what: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let (what, value) = (what.as_bytes().to_vec(), value.to_vec());
        self.change(req, move |this| {
            ack("setxattr", ino, this.view.setxattr(obj(ino), &what, &value, flags), reply);
        });
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, what: &OsStr, size: u32, reply: ReplyXattr) {
        if let Some(value) = self.about(ino, what) {
            return reply_sized(&value, size, reply);
        }
        match self.view.getxattr(obj(ino), what.as_bytes()) {
            Ok(value) => reply_sized(&value, size, reply),
            Err(e) => reply.error(failed("getxattr", ino, e)),
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
            Err(e) => reply.error(failed("listxattr", ino, e)),
        }
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, what: &OsStr, reply: ReplyEmpty) {
        let what = what.as_bytes().to_vec();
        self.change(req, move |this| {
            ack("removexattr", ino, this.view.removexattr(obj(ino), &what), reply);
        });
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
        let caller = caller(req);
        self.change(req, move |this| {
            match this.view.create(&caller, obj(parent), &name, &spec, flags) {
                Ok((entry, opened)) => this.reply_created(&entry, &opened, reply),
                Err(e) => reply.error(failed("create", parent, e)),
            }
        });
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
        req: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.change(req, move |this| {
            ack("fallocate", ino, this.view.fallocate(fh(handle), offset, length, mode), reply);
        });
    }

    fn lseek(
        &self,
        _req: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        match self.view.lseek(fh(handle), offset, whence) {
            Ok(at) => reply.offset(at as i64),
            Err(e) => reply.error(failed("lseek", ino, e)),
        }
    }

    fn copy_file_range(
        &self,
        req: &Request,
        _ino_in: INodeNo,
        handle_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        handle_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: fuser::CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        self.change(req, move |this| {
            let (from, to) = ((fh(handle_in), offset_in), (fh(handle_out), offset_out));
            match this.view.copy_file_range(from, to, len) {
                Ok(n) => reply.written(n as u32),
                Err(e) => reply.error(failed("copy_file_range", ino_out, e)),
            }
        });
    }
}
