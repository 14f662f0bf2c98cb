//! Durability: the one place that calls fsync, and the thread that does it for all who wait.
//!
//! It has a thread of its own so that records go on being handed to the kernel, 100 ms after they
//! were appended at the latest, however long the disk takes: a file system under load can hold an
//! fsync for seconds, and a SIGKILL then must not cost more than those 100 ms.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use crate::error::JournalError;

/// Whom to tell how it went.
pub(crate) type Done = Sender<Result<(), JournalError>>;

/// The first failure, after which nothing is acknowledged any more: after a failed write or fsync nobody
/// knows what is on the disk, and a second fsync that succeeds proves nothing (fsync(2)).
pub(crate) type Failure = Arc<OnceLock<String>>;

/// Fails once anything has failed.
pub(crate) fn check(failure: &Failure) -> Result<(), JournalError> {
    match failure.get() {
        Some(why) => Err(JournalError::Failed(why.clone())),
        None => Ok(()),
    }
}

/// Remembers the first failure.
pub(crate) fn remember(failure: &Failure, error: &JournalError) {
    let mut first = false;
    failure.get_or_init(|| {
        first = true;
        error.to_string()
    });
    if first {
        log::error!("{error}");
    }
}

/// Answers all who wait. One who does not wait any more has ended, and needs no answer.
pub(crate) fn answer(waiters: Vec<Done>, result: &Result<(), JournalError>) {
    for waiter in waiters {
        if waiter.send(result.clone()).is_err() {
            log::debug!("nobody waits for this pass any more");
        }
    }
}

/// Puts what the kernel has onto the disk.
pub(crate) trait Durable: Send {
    /// Returns when everything written before the call survives a power cut.
    fn sync(&mut self) -> io::Result<()>;
}

/// sled's files. Its own flush ends in sync_file_range(2), which makes neither the file's size nor
/// the disk's cache durable, so durability is fsync here and nowhere else.
pub(crate) struct Disk {
    dir: PathBuf,
    /// The log, held open: the one file that changes after it was made.
    log: Option<File>,
    /// What was there at the last sync. A new file or directory is synced whole, and its directory.
    seen: BTreeSet<PathBuf>,
}

impl Disk {
    pub(crate) fn new(dir: &Path) -> Disk {
        Disk { dir: dir.to_owned(), log: None, seen: BTreeSet::new() }
    }
}

impl Durable for Disk {
    fn sync(&mut self) -> io::Result<()> {
        let mut found = BTreeSet::new();
        list(&self.dir, &mut found)?;
        if found != self.seen {
            for path in &found {
                match File::open(path) {
                    Ok(file) => file.sync_all()?,
                    // sled replaces its snapshots while it runs.
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    Err(e) => return Err(e),
                }
            }
            File::open(&self.dir)?.sync_all()?;
            if self.seen.is_empty()
                && let Some(parent) = self.dir.parent()
            {
                // The database's own name may be new.
                let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
                File::open(parent)?.sync_all()?;
            }
            self.seen = found;
        }
        let log = match &self.log {
            Some(log) => log,
            None => self.log.insert(File::open(self.dir.join("db"))?),
        };
        log.sync_data()
    }
}

fn list(dir: &Path, found: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            list(&entry.path(), found)?;
        }
        found.insert(entry.path());
    }
    Ok(())
}

/// The thread that syncs. Requests that come while it is at work share the next sync.
#[derive(Debug)]
pub(crate) struct Syncer {
    waiting: Arc<Mutex<Vec<Done>>>,
    /// Room for one: a wake that is pending stands for all requests made until it is taken.
    wake: Sender<()>,
    thread: JoinHandle<()>,
}

impl Syncer {
    pub(crate) fn start(mut durable: Box<dyn Durable>, failure: Failure) -> io::Result<Syncer> {
        let waiting = Arc::<Mutex<Vec<Done>>>::default();
        let (wake, woken): (_, Receiver<()>) = bounded(1);
        let requests = Arc::clone(&waiting);
        let thread = std::thread::Builder::new().name("journal-sync".into()).spawn(move || {
            while woken.recv().is_ok() {
                let waiters =
                    std::mem::take(&mut *requests.lock().unwrap_or_else(PoisonError::into_inner));
                let result = check(&failure).and_then(|()| {
                    durable.sync().map_err(|e| JournalError::io("made durable", &e))
                });
                if let Err(e) = &result {
                    remember(&failure, e);
                }
                answer(waiters, &result);
            }
        })?;
        Ok(Syncer { waiting, wake, thread })
    }

    /// Answers `waiters` when everything that is in the kernel now is on the disk. Does not wait.
    pub(crate) fn request(&self, waiters: Vec<Done>) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).extend(waiters);
        match self.wake.try_send(()) {
            Ok(()) | Err(TrySendError::Full(())) => {}
            Err(TrySendError::Disconnected(())) => {
                let waiters = std::mem::take(
                    &mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner),
                );
                answer(waiters, &Err(JournalError::Failed("its sync thread has ended".into())));
            }
        }
    }

    /// Ends the thread after the last request.
    pub(crate) fn finish(self) {
        drop(self.wake);
        if self.thread.join().is_err() {
            log::error!("the journal's sync thread panicked");
        }
    }
}
