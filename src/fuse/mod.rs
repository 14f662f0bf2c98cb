//! The adapter to fuser: decodes requests, calls the view, replies. It holds no rules of a file
//! system; those are the view's.

mod adapter;
mod backing;
mod convert;
pub mod mount;
mod notify;
mod parked;

mod ops;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fuser::{Config, Session, SessionACL};

use crate::view::View;
use adapter::Adapter;
use notify::Notifier;
use parked::Parked;

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
    mount::expect_init(&device)?;
    let notifications = device.try_clone()?;
    let negotiated = Arc::new(AtomicBool::new(false));
    let parked = Parked::start()?;
    let adapter =
        Adapter::new(Arc::clone(view), about, allow_passthrough, Arc::clone(&negotiated), parked);
    let mut config = Config::default();
    config.acl = SessionACL::All;
    config.n_threads =
        Some(std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8)));
    config.clone_fd = true;
    let session = Session::from_fd(adapter, device, SessionACL::All, config)?;
    let passthrough = negotiated.load(Ordering::Relaxed);
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
