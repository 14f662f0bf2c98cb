//! The thread that tells the kernel what to forget.
//!
//! A notification waits for locks that the request being served may hold (a directory's lock during an unlink,
//! say), so none is ever sent from a handler.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use fuser::INodeNo;
use txfs_journal::ObjId;

use crate::view::api::{Forget, Kernel};

enum Task {
    Forget(Vec<Forget>),
    Drain(Vec<ObjId>, Sender<()>),
}

/// The sending end.
pub(super) struct Notifier {
    tasks: Sender<Task>,
}

impl Notifier {
    /// Starts the thread. `device` keeps the connection's notifications writable.
    pub(super) fn start(to: fuser::Notifier, device: OwnedFd) -> io::Result<Notifier> {
        let (tasks, queue) = unbounded();
        std::thread::Builder::new()
            .name("notify".into())
            .spawn(move || run(&to, &device, &queue))?;
        Ok(Notifier { tasks })
    }
}

fn run(to: &fuser::Notifier, device: &OwnedFd, queue: &Receiver<Task>) {
    for task in queue {
        match task {
            Task::Forget(what) => what.iter().for_each(|f| forget(to, device, f)),
            Task::Drain(objs, done) => {
                for obj in objs {
                    check(to.inval_inode(INodeNo(obj.0), 0, 0));
                }
                // Whoever gave up waiting needs no answer.
                if done.send(()).is_err() {
                    log::debug!("nobody waits for the dirty pages any more");
                }
            }
        }
    }
}

fn forget(to: &fuser::Notifier, device: &OwnedFd, what: &Forget) {
    match what {
        Forget::Attr(obj) => check(to.inval_inode(INodeNo(obj.0), -1, 0)),
        Forget::Data(obj) => check(to.inval_inode(INodeNo(obj.0), 0, 0)),
        Forget::Names(names) => {
            for (parent, name) in names {
                check(expire(device, *parent, name.as_bytes()));
            }
        }
        // Kernels before 6.16 have no such message; names of the base are valid for a second there.
        Forget::AllNames => check(raw(device, INC_EPOCH, &[])),
    }
}

/// `FUSE_NOTIFY_INVAL_ENTRY` in linux/fuse.h.
const INVAL_ENTRY: i32 = 3;
/// `FUSE_NOTIFY_INC_EPOCH`
const INC_EPOCH: i32 = 8;
/// `FUSE_EXPIRE_ONLY`
const EXPIRE_ONLY: u32 = 1;

/// Has the kernel look a name up again before it uses it. A plain invalidation, and likewise
/// `FUSE_NOTIFY_INC_EPOCH` for all names at once, would take the directories away from those who
/// are in them, and detach what is mounted below (tried).
fn expire(device: &OwnedFd, parent: ObjId, name: &[u8]) -> io::Result<()> {
    let len = u32::try_from(name.len()).map_err(io::Error::other)?;
    let mut payload = Vec::with_capacity(17 + name.len());
    payload.extend_from_slice(&parent.0.to_ne_bytes());
    payload.extend_from_slice(&len.to_ne_bytes());
    payload.extend_from_slice(&EXPIRE_ONLY.to_ne_bytes());
    payload.extend_from_slice(name);
    payload.push(0);
    raw(device, INVAL_ENTRY, &payload)
}

/// A notification in a form that fuser 0.18 does not have: `fuse_out_header` with `unique` 0 and the
/// code as error, then the payload.
fn raw(device: &OwnedFd, code: i32, payload: &[u8]) -> io::Result<()> {
    let len = u32::try_from(16 + payload.len()).map_err(io::Error::other)?;
    let mut header = [0u8; 16];
    header[..4].copy_from_slice(&len.to_ne_bytes());
    header[4..8].copy_from_slice(&code.to_ne_bytes());
    // One write is one message.
    rustix::io::writev(device, &[io::IoSlice::new(&header), io::IoSlice::new(payload)])?;
    Ok(())
}

fn check(result: io::Result<()>) {
    if let Err(e) = result {
        // The kernel does not know the node, or the mount is gone: there is nothing to forget.
        log::debug!("notification: {e}");
    }
}

impl Kernel for Notifier {
    fn forget(&self, what: Vec<Forget>) {
        if self.tasks.send(Task::Forget(what)).is_err() {
            log::debug!("the notifier has ended");
        }
    }

    fn drain(&self, objs: &[ObjId], timeout: Duration) -> io::Result<()> {
        let (done, wait) = bounded(1);
        let gone = || io::Error::other("the notifier has ended");
        self.tasks.send(Task::Drain(objs.to_vec(), done)).map_err(|_| gone())?;
        wait.recv_timeout(timeout).map_err(|e| match e {
            crossbeam_channel::RecvTimeoutError::Timeout => io::ErrorKind::TimedOut.into(),
            crossbeam_channel::RecvTimeoutError::Disconnected => gone(),
        })
    }
}
