//! Requests that have to wait, for a commit mostly. No thread that takes requests from the kernel waits: as
//! many waiting requests as threads would stop the readers, and what a commit asks of the kernel with them.

use std::io;
use std::thread;

use crossbeam_channel::Sender;

type Request = Box<dyn FnOnce() + Send>;

/// A thread that carries out requests one after the other, in the order in which they came.
#[derive(Clone)]
pub(super) struct Parked(Sender<Request>);

impl Parked {
    /// Starts the thread. It ends with the last of these.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(super) fn start() -> io::Result<Parked> {
        // The kernel has a bounded number of requests under way.
        let (sender, requests) = crossbeam_channel::unbounded::<Request>();
        thread::Builder::new()
            .name("parked".into())
            .spawn(move || requests.into_iter().for_each(|request| request()))?;
        Ok(Parked(sender))
    }

    /// Takes over a request, which answers itself.
    pub(super) fn push(&self, request: impl FnOnce() + Send + 'static) {
        if let Err(refused) = self.0.send(Box::new(request)) {
            // The thread is gone; late is better than never.
            (refused.0)();
        }
    }
}
