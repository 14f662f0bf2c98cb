//! The one thread that hands records to sled, and the handles that feed it.
//!
//! A record is acknowledged when it is queued. The thread packs what is queued into chunks and
//! hands them to the kernel at most [`MAX_DELAY`] after the first of them was queued, which is
//! what a record survives a SIGKILL by; [`TxnWriter::make_durable`] waits for the disk.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::codec::{Wire, encode};
use crate::error::JournalError;
use crate::id::{Seq, StepId, TxnId};
use crate::object::Timestamp;
use crate::order::Order;
use crate::record::{Entry, Record};
use crate::store::{frame, record_key};

/// Records that may wait in the queue before an append has to wait.
pub(crate) const QUEUE: usize = 8192;
/// Records in one chunk.
pub(crate) const CHUNK_RECORDS: usize = 512;
/// Bytes after which a chunk is full; sled stores larger values in files of their own.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;
/// How long a queued record may wait for the kernel.
pub(crate) const MAX_DELAY: Duration = Duration::from_millis(100);

pub(crate) enum Message {
    Record {
        txn: TxnId,
        seq: Seq,
        bytes: Vec<u8>,
    },
    /// Hand over everything queued; with `durable` also to the disk.
    Pass {
        durable: bool,
        done: Sender<Result<(), JournalError>>,
    },
}

/// The queue's sending side, and the first failure, after which nothing is acknowledged.
#[derive(Debug, Clone)]
pub(crate) struct Queue {
    sender: Sender<Message>,
    failed: Arc<Mutex<Option<String>>>,
}

impl Queue {
    /// Fails once anything has failed.
    pub(crate) fn check(&self) -> Result<(), JournalError> {
        match &*self.failed.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(why) => Err(JournalError::Failed(why.clone())),
            None => Ok(()),
        }
    }

    /// Remembers the first failure.
    pub(crate) fn fail(&self, error: JournalError) -> JournalError {
        self.failed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert_with(|| error.to_string());
        error
    }

    /// Whether only this one and the thread are left.
    pub(crate) fn is_last(&self) -> bool {
        Arc::strong_count(&self.failed) == 2
    }

    fn send(&self, message: Message) -> Result<(), JournalError> {
        self.check()?;
        self.sender
            .send(message)
            .map_err(|_| JournalError::Failed("its writer thread has ended".into()))
    }

    /// Waits until everything queued before is in the kernel, or on the disk.
    pub(crate) fn pass(&self, durable: bool) -> Result<(), JournalError> {
        let (done, wait) = bounded(1);
        self.send(Message::Pass { durable, done })?;
        wait.recv().map_err(|_| JournalError::Failed("its writer thread has ended".into()))?
    }
}

/// Starts the thread. It ends when the last [`Queue`] is gone, after a last pass.
pub(crate) fn start(
    db: sled::Db,
    dir: PathBuf,
) -> Result<(Queue, std::thread::JoinHandle<()>), JournalError> {
    let (sender, receiver) = bounded(QUEUE);
    let queue_failed = Arc::new(Mutex::new(None));
    let mut thread = WriterThread {
        disk: Disk { file: None, seen: BTreeSet::new(), dir },
        db,
        chunks: HashMap::new(),
        failed: Arc::clone(&queue_failed),
    };
    let handle = std::thread::Builder::new()
        .name("journal".into())
        .spawn(move || thread.run(&receiver))
        .map_err(|e| JournalError::io("opened", &e))?;
    Ok((Queue { sender, failed: queue_failed }, handle))
}

struct Chunk {
    first: Seq,
    records: usize,
    bytes: Vec<u8>,
}

struct WriterThread {
    db: sled::Db,
    disk: Disk,
    chunks: HashMap<TxnId, Chunk>,
    failed: Arc<Mutex<Option<String>>>,
}

impl WriterThread {
    fn run(&mut self, receiver: &Receiver<Message>) {
        let mut deadline = None;
        loop {
            let message = match deadline {
                None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => receiver.recv_deadline(at),
            };
            match message {
                Ok(Message::Record { txn, seq, bytes }) => {
                    deadline.get_or_insert_with(|| Instant::now() + MAX_DELAY);
                    self.add(txn, seq, &bytes);
                }
                Ok(Message::Pass { durable, done }) => {
                    self.serve(receiver, durable, done);
                    deadline = None;
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.pass_alone(false);
                    deadline = None;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.pass_alone(true);
                    return;
                }
            }
        }
    }

    /// One pass for all who wait by now.
    fn serve(
        &mut self,
        receiver: &Receiver<Message>,
        durable: bool,
        done: Sender<Result<(), JournalError>>,
    ) {
        let (mut durable, mut waiters) = (durable, vec![done]);
        while let Ok(message) = receiver.try_recv() {
            match message {
                Message::Record { txn, seq, bytes } => self.add(txn, seq, &bytes),
                Message::Pass { durable: more, done } => {
                    durable |= more;
                    waiters.push(done);
                }
            }
        }
        let result = self.pass(durable);
        for waiter in waiters {
            // Somebody who gave up waiting needs no answer.
            if waiter.send(result.clone()).is_err() {
                log::debug!("nobody waits for this pass any more");
            }
        }
    }

    fn add(&mut self, txn: TxnId, seq: Seq, bytes: &[u8]) {
        let chunk = self.chunks.entry(txn).or_insert_with(|| Chunk {
            first: seq,
            records: 0,
            bytes: Vec::with_capacity(4096),
        });
        chunk.bytes.extend_from_slice(bytes);
        chunk.records += 1;
        if chunk.records >= CHUNK_RECORDS || chunk.bytes.len() >= CHUNK_BYTES {
            let result = self.insert(txn);
            self.remember(&result);
        }
    }

    fn insert(&mut self, txn: TxnId) -> Result<(), JournalError> {
        let Some(chunk) = self.chunks.remove(&txn) else { return Ok(()) };
        let key = record_key(txn, chunk.first);
        let value = frame(&key, &chunk.bytes);
        self.db.insert(key, value).map_err(|e| JournalError::sled("written", &e))?;
        Ok(())
    }

    fn pass(&mut self, durable: bool) -> Result<(), JournalError> {
        let result = self.try_pass(durable);
        self.remember(&result);
        result
    }

    /// A pass that nobody waits for; its failure is remembered and told to the next who asks.
    fn pass_alone(&mut self, durable: bool) {
        let result = self.try_pass(durable);
        self.remember(&result);
    }

    fn try_pass(&mut self, durable: bool) -> Result<(), JournalError> {
        if let Some(why) = &*self.failed.lock().unwrap_or_else(PoisonError::into_inner) {
            return Err(JournalError::Failed(why.clone()));
        }
        for txn in self.chunks.keys().copied().collect::<Vec<_>>() {
            self.insert(txn)?;
        }
        self.db.flush().map_err(|e| JournalError::sled("written", &e))?;
        if durable { self.disk.sync() } else { Ok(()) }
    }

    /// After a failed write or fsync nobody knows what is on the disk: nothing more is acknowledged.
    fn remember(&self, result: &Result<(), JournalError>) {
        if let Err(error) = result {
            log::error!("{error}");
            self.failed
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get_or_insert_with(|| error.to_string());
        }
    }
}

/// sled's files. Its own flush ends in sync_file_range(2), which makes neither the file's size nor
/// the disk's cache durable, so durability is fsync here and nowhere else.
struct Disk {
    dir: PathBuf,
    file: Option<File>,
    seen: BTreeSet<PathBuf>,
}

impl Disk {
    fn sync(&mut self) -> Result<(), JournalError> {
        self.try_sync().map_err(|e| JournalError::io("made durable", &e))
    }

    fn try_sync(&mut self) -> std::io::Result<()> {
        let mut found = BTreeSet::new();
        list(&self.dir, &mut found)?;
        if found != self.seen {
            for path in &found {
                match File::open(path) {
                    Ok(file) => file.sync_all()?,
                    // sled replaces its snapshots while it runs.
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                    Err(e) => return Err(e),
                }
            }
            File::open(&self.dir)?.sync_all()?;
            self.seen = found;
        }
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(File::open(self.dir.join("db"))?),
        };
        file.sync_data()
    }
}

fn list(dir: &std::path::Path, found: &mut BTreeSet<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            list(&entry.path(), found)?;
        }
        found.insert(entry.path());
    }
    Ok(())
}

/// The writing end of one transaction's list. Clones share it.
#[derive(Debug, Clone)]
pub struct TxnWriter {
    pub(crate) txn: TxnId,
    pub(crate) order: Arc<Mutex<Order>>,
    pub(crate) queue: Queue,
}

impl TxnWriter {
    /// Whose list this is.
    #[must_use]
    pub fn txn(&self) -> TxnId {
        self.txn
    }

    /// Appends a record and returns its number once it is queued; waits only if the queue is full.
    ///
    /// # Errors
    /// [`JournalError::Order`] if it may not stand here, [`JournalError::Failed`] after any failure of the store.
    pub fn append(&self, time: Timestamp, entry: Entry) -> Result<Seq, JournalError> {
        self.append_with(time, |_| entry)
    }

    /// Begins the next step.
    ///
    /// # Errors
    /// As [`TxnWriter::append`].
    pub fn step(&self, time: Timestamp, what: Vec<u8>) -> Result<StepId, JournalError> {
        let mut step = StepId(0);
        self.append_with(time, |order| {
            step = StepId(order.next_step());
            Entry::Step { step, what }
        })?;
        Ok(step)
    }

    fn append_with(
        &self,
        time: Timestamp,
        entry: impl FnOnce(&Order) -> Entry,
    ) -> Result<Seq, JournalError> {
        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        self.queue.check()?;
        let record = Record { seq: order.next_seq(), time, entry: entry(&order) };
        order.take(&record).map_err(|what| JournalError::Order {
            txn: self.txn,
            seq: record.seq,
            what,
        })?;
        let mut bytes = Vec::with_capacity(160);
        let body = encode(&record);
        (body.len() as u32).put(&mut bytes);
        bytes.extend_from_slice(&body);
        // Under the lock, so that the queue has them in order.
        self.queue.send(Message::Record { txn: self.txn, seq: record.seq, bytes })?;
        Ok(record.seq)
    }

    /// Returns when everything appended so far survives a power cut.
    ///
    /// # Errors
    /// Any failure of the store; nothing may be acknowledged to anybody then.
    pub fn make_durable(&self) -> Result<(), JournalError> {
        self.queue.pass(true)
    }

    /// The last record's number; 0 if there is none.
    #[must_use]
    pub fn last_seq(&self) -> Seq {
        Seq(self.order.lock().unwrap_or_else(PoisonError::into_inner).next_seq().0 - 1)
    }
}
