//! What the operations have in common: how long the kernel may keep an answer, how an open is
//! answered, what a view says about itself.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use fuser::{
    BackingId, Errno, FileHandle, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyCreate,
    ReplyEntry, ReplyOpen, ReplyXattr, Request,
};
use txfs_journal::ObjId;

use super::About;
use super::backing::{Backings, is_final};
use super::convert::{failed, file_attr};
use super::parked::Parked;
use crate::view::View;
use crate::view::api::{Attr, DataPath, Entry, Fh, Forget, OpResult, Opened, Trust};

/// How long the kernel may keep what only this view can change.
const OWN: Duration = Duration::from_secs(24 * 60 * 60);
/// How long it may keep what people who edit the base can change too.
const SHARED: Duration = Duration::from_secs(1);
/// Node ids are never used twice in a mount, so one generation does.
pub(super) const GENERATION: Generation = Generation(0);
/// Extended attributes of the root by which a program in a view learns where it is. They are
/// answered and not listed, so that no copy takes them along.
const ABOUT: &str = "user.txfs.";

/// A view as a file system of fuser's. Clones are the same one.
#[derive(Clone)]
pub(super) struct Adapter {
    pub(super) view: Arc<View>,
    about: About,
    pub(super) allow_passthrough: bool,
    pub(super) negotiated: Arc<AtomicBool>,
    pub(super) backings: Arc<Backings>,
    parked: Parked,
}

/// For how long the kernel may keep what has this trust.
pub(super) fn ttl(trust: Trust) -> Duration {
    match trust {
        Trust::Own => OWN,
        Trust::Base => SHARED,
        Trust::Writer => Duration::ZERO,
    }
}

/// The object of a node.
pub(super) fn obj(ino: INodeNo) -> ObjId {
    ObjId(ino.0)
}

/// The view's handle.
pub(super) fn fh(handle: FileHandle) -> Fh {
    Fh(handle.0)
}

impl Adapter {
    pub(super) fn new(
        view: Arc<View>,
        about: About,
        allow_passthrough: bool,
        negotiated: Arc<AtomicBool>,
        parked: Parked,
    ) -> Adapter {
        let backings = Arc::default();
        Adapter { view, about, allow_passthrough, negotiated, backings, parked }
    }

    /// Carries out a change for whoever asks for it: now, or once the view no longer stands still.
    pub(super) fn change(&self, req: &Request, act: impl FnOnce(&Adapter) + Send + 'static) {
        let thread = req.pid();
        if let Some(_turn) = self.view.turn() {
            self.view.act_for(thread);
            act(self);
        } else {
            self.park(move |this| {
                let _turn = this.view.wait_for_turn();
                this.view.act_for(thread);
                act(this);
            });
        }
    }

    /// Leaves a request to the thread that may wait.
    pub(super) fn park(&self, act: impl FnOnce(&Adapter) + Send + 'static) {
        let this = self.clone();
        self.parked.push(move || act(&this));
    }

    /// Answers with an entry.
    pub(super) fn reply_entry(
        &self,
        op: &str,
        ino: INodeNo,
        result: OpResult<Entry>,
        reply: ReplyEntry,
    ) {
        match result {
            Ok(entry) => reply.entry_with_ttls(
                &ttl(entry.attr_trust),
                &ttl(entry.name_trust),
                &file_attr(&entry.attr),
                GENERATION,
            ),
            Err(e) => reply.error(failed(op, ino, e)),
        }
    }

    /// Answers with attributes.
    pub(super) fn reply_attr(
        &self,
        op: &str,
        ino: INodeNo,
        result: OpResult<(Attr, Trust)>,
        reply: ReplyAttr,
    ) {
        match result {
            Ok((attr, trust)) => reply.attr(&ttl(trust), &file_attr(&attr)),
            Err(e) => reply.error(failed(op, ino, e)),
        }
    }

    /// The way of the data of an open that is being answered: the backing to reply with, or `None`
    /// for a cached one. A file that cannot be registered is served cached; where none ever can, no
    /// further one is tried.
    fn backing(
        &self,
        ino: INodeNo,
        opened: &Opened,
        register: impl FnOnce(std::os::fd::BorrowedFd<'_>) -> io::Result<BackingId>,
    ) -> OpResult<Option<Arc<BackingId>>> {
        let DataPath::Passthrough(fd) = &opened.data else { return Ok(None) };
        let e = match self.backings.hold(ino, || register(fd.as_fd())) {
            Ok(id) => return Ok(Some(id)),
            Err(e) => e,
        };
        if is_final(&e) {
            log::info!("file data goes through the daemon: the kernel takes no file over ({e})");
            self.view.no_passthrough();
        } else {
            log::warn!("node {ino}: the kernel does not take its file over: {e}");
        }
        self.view.serve_cached(opened.fh).inspect_err(|_| self.view.release(opened.fh))?;
        Ok(None)
    }

    /// Answers an open.
    pub(super) fn reply_open(&self, ino: INodeNo, flags: i32, opened: &Opened, reply: ReplyOpen) {
        let handle = FileHandle(opened.fh.0);
        let reads = flags & libc::O_ACCMODE == libc::O_RDONLY;
        let mut how = if reads { FopenFlags::FOPEN_NOFLUSH } else { FopenFlags::empty() };
        match self.backing(ino, opened, |fd| reply.open_backing(fd)) {
            Ok(Some(id)) => {
                reply.opened_passthrough(handle, how, &id);
                // What the kernel keeps of the attributes was given before there was a writer
                // whom nobody sees.
                if !reads && let Some(kernel) = self.view.kernel() {
                    kernel.forget(vec![Forget::Attr(obj(ino))]);
                }
            }
            Ok(None) => {
                if matches!(opened.data, DataPath::Cached { keep: true }) {
                    how |= FopenFlags::FOPEN_KEEP_CACHE;
                }
                reply.opened(handle, how);
            }
            Err(e) => reply.error(failed("open", ino, e)),
        }
    }

    /// Answers a create.
    pub(super) fn reply_created(&self, entry: &Entry, opened: &Opened, reply: ReplyCreate) {
        let (attr, handle) = (file_attr(&entry.attr), FileHandle(opened.fh.0));
        // fuser has one timeout for both here; the shorter one is right for both.
        let ttl = ttl(entry.attr_trust).min(ttl(entry.name_trust));
        let how = FopenFlags::empty();
        match self.backing(attr.ino, opened, |fd| reply.open_backing(fd)) {
            Ok(Some(id)) => {
                reply.created_passthrough(&ttl, &attr, GENERATION, handle, how, &id);
            }
            Ok(None) => reply.created(&ttl, &attr, GENERATION, handle, how),
            Err(e) => reply.error(failed("create", attr.ino, e)),
        }
    }

    /// What a program asks about the view it is in.
    pub(super) fn about(&self, ino: INodeNo, name: &OsStr) -> Option<Vec<u8>> {
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

/// Answers with a value, or its length if that is asked for.
pub(super) fn reply_sized(value: &[u8], size: u32, reply: ReplyXattr) {
    match u32::try_from(value.len()) {
        Ok(len) if size == 0 => reply.size(len),
        Ok(len) if len <= size => reply.data(value),
        Ok(_) => reply.error(Errno::ERANGE),
        Err(_) => reply.error(Errno::E2BIG),
    }
}
