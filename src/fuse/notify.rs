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
        std::thread::Builder::new().name("notify".into()).spawn(move || {
            run(&to, &queue);
            drop(device);
        })?;
        Ok(Notifier { tasks })
    }
}

fn run(to: &fuser::Notifier, queue: &Receiver<Task>) {
    for task in queue {
        match task {
            Task::Forget(what) => what.iter().for_each(|f| forget(to, f)),
            Task::Drain(objs, done) => {
                for obj in objs {
                    check(to.inval_inode(INodeNo(obj.0), 0, 0));
                }
                // Whoever gave up waiting needs no answer.
                drop(done.send(()));
            }
        }
    }
}

fn forget(to: &fuser::Notifier, what: &Forget) {
    check(match what {
        Forget::Attr(obj) => to.inval_inode(INodeNo(obj.0), -1, 0),
        Forget::Data(obj) => to.inval_inode(INodeNo(obj.0), 0, 0),
        Forget::Entry(parent, name) => to.inval_entry(INodeNo(parent.0), name.as_os_str()),
    });
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
