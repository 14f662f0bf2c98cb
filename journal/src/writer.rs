//! The one thread that hands records to sled, and the handles that feed it.
//!
//! A record is acknowledged when it is in its transaction's open chunk. A chunk goes to the thread when
//! it is full, or [`MAX_DELAY`] after its first record, which is when a record is safe from a SIGKILL;
//! [`TxnWriter::make_durable`] waits for the disk. The thread is woken once a chunk, not once a
//! record: on the path of every request that is most of the journal's cost.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::codec::{EFFECT_TAG, Wire};
use crate::error::JournalError;
use crate::id::{Seq, StepId, TxnId};
use crate::object::Timestamp;
use crate::order::Order;
use crate::record::{EffectEntry, Entry};
use crate::store::{frame, record_key};

/// Chunks that may wait in the queue before an append has to wait.
pub(crate) const QUEUE: usize = 64;
/// Records in one chunk.
pub(crate) const CHUNK_RECORDS: usize = 512;
/// Bytes after which a chunk is full; sled stores larger values in files of their own.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;
/// How long a queued record may wait for the kernel.
pub(crate) const MAX_DELAY: Duration = Duration::from_millis(100);

pub(crate) enum Message {
    /// A full chunk.
    Chunk { txn: TxnId, chunk: Chunk },
    /// A transaction has an open chunk from now on.
    Open(TxnWriter),
    /// Hand over everything queued; with `durable` also to the disk.
    Pass { durable: bool, done: Sender<Result<(), JournalError>> },
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
        open: HashMap::new(),
        waiters: Vec::new(),
        durable: false,
        failed: Arc::clone(&queue_failed),
    };
    let handle = std::thread::Builder::new()
        .name("journal".into())
        .spawn(move || thread.run(&receiver))
        .map_err(|e| JournalError::io("opened", &e))?;
    Ok((Queue { sender, failed: queue_failed }, handle))
}

/// Records on their way, encoded.
#[derive(Debug)]
pub(crate) struct Chunk {
    first: Seq,
    records: usize,
    bytes: Vec<u8>,
}

struct WriterThread {
    db: sled::Db,
    disk: Disk,
    /// Transactions with an open chunk.
    open: HashMap<TxnId, TxnWriter>,
    /// Those who wait for a pass, and whether one of them waits for the disk.
    waiters: Vec<Sender<Result<(), JournalError>>>,
    durable: bool,
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
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Timeout) => {
                    self.pass(receiver);
                    deadline = None;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.durable = true;
                    self.pass(receiver);
                    return;
                }
            }
            while !self.waiters.is_empty() {
                self.pass(receiver);
                deadline = None;
            }
            if !self.open.is_empty() {
                deadline.get_or_insert_with(|| Instant::now() + MAX_DELAY);
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Chunk { txn, chunk } => self.add(txn, &chunk),
            Message::Open(writer) => {
                self.open.insert(writer.txn, writer);
            }
            Message::Pass { durable, done } => {
                self.durable |= durable;
                self.waiters.push(done);
            }
        }
    }

    fn take_all(&mut self, receiver: &Receiver<Message>) {
        while let Ok(message) = receiver.try_recv() {
            self.take(message);
        }
    }

    /// Hands over all open chunks, for all who wait by now.
    fn pass(&mut self, receiver: &Receiver<Message>) {
        self.take_all(receiver);
        // Who comes from here on waits for the next pass.
        let (durable, waiters) =
            (std::mem::take(&mut self.durable), std::mem::take(&mut self.waiters));
        let mut result = Ok(());
        let mut open: Vec<_> = std::mem::take(&mut self.open).into_values().collect();
        while let Some(writer) = open.pop() {
            let taken = writer.try_take_open();
            // A full chunk that was sent before the open one was taken goes before it.
            self.take_all(receiver);
            match taken {
                Some(Some(chunk)) => result = result.and_then(|()| self.insert(writer.txn, &chunk)),
                Some(None) => {}
                None => {
                    // Whoever appends may have been waiting for room in the queue.
                    std::thread::yield_now();
                    open.push(writer);
                }
            }
        }
        let result = result.and_then(|()| self.flush(durable));
        self.remember(&result);
        for waiter in waiters {
            if waiter.send(result.clone()).is_err() {
                log::debug!("nobody waits for this pass any more");
            }
        }
    }

    fn flush(&mut self, durable: bool) -> Result<(), JournalError> {
        if let Some(why) = &*self.failed.lock().unwrap_or_else(PoisonError::into_inner) {
            return Err(JournalError::Failed(why.clone()));
        }
        self.db.flush().map_err(|e| JournalError::sled("written", &e))?;
        if durable { self.disk.sync() } else { Ok(()) }
    }

    fn add(&mut self, txn: TxnId, chunk: &Chunk) {
        let result = self.insert(txn, chunk);
        self.remember(&result);
    }

    fn insert(&mut self, txn: TxnId, chunk: &Chunk) -> Result<(), JournalError> {
        let key = record_key(txn, chunk.first);
        let value = frame(&key, &chunk.bytes);
        self.db.insert(key, value).map_err(|e| JournalError::sled("written", &e))?;
        Ok(())
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
    txn: TxnId,
    list: Arc<Mutex<List>>,
    queue: Queue,
}

/// A transaction's list as its writers see it.
#[derive(Debug)]
struct List {
    order: Order,
    open: Option<Chunk>,
}

impl TxnWriter {
    pub(crate) fn new(txn: TxnId, order: Order, queue: Queue) -> TxnWriter {
        TxnWriter { txn, list: Arc::new(Mutex::new(List { order, open: None })), queue }
    }

    /// Whose list this is.
    #[must_use]
    pub fn txn(&self) -> TxnId {
        self.txn
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the open chunk; `None` if somebody is appending right now.
    fn try_take_open(&self) -> Option<Option<Chunk>> {
        match self.list.try_lock() {
            Ok(mut list) => Some(list.open.take()),
            Err(TryLockError::Poisoned(list)) => Some(list.into_inner().open.take()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Appends a record and returns its number once it is in the open chunk; waits only if the queue is full.
    ///
    /// # Errors
    /// [`JournalError::Order`] if it may not stand here, [`JournalError::Failed`] after any failure of the store.
    pub fn append(&self, time: Timestamp, entry: &Entry) -> Result<Seq, JournalError> {
        let mut list = self.lock();
        self.put(&mut list, time, |order, seq| order.take(seq, entry), |out| entry.put(out))
    }

    /// Appends an effect; the same as [`TxnWriter::append`] of it as an entry.
    ///
    /// # Errors
    /// As [`TxnWriter::append`].
    pub fn append_effect(&self, time: Timestamp, entry: &EffectEntry) -> Result<Seq, JournalError> {
        let encode = |out: &mut Vec<u8>| {
            out.push(EFFECT_TAG);
            entry.put(out);
        };
        self.put(&mut self.lock(), time, |order, seq| order.take_effect(seq, entry), encode)
    }

    /// Begins the next step.
    ///
    /// # Errors
    /// As [`TxnWriter::append`].
    pub fn step(&self, time: Timestamp, what: Vec<u8>) -> Result<StepId, JournalError> {
        let mut list = self.lock();
        let step = StepId(list.order.next_step());
        let entry = Entry::Step { step, what };
        self.put(&mut list, time, |order, seq| order.take(seq, &entry), |out| entry.put(out))?;
        Ok(step)
    }

    /// Under the list's lock, so that the queue has the chunks in order.
    fn put(
        &self,
        list: &mut List,
        time: Timestamp,
        check: impl FnOnce(&mut Order, Seq) -> Result<(), String>,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Seq, JournalError> {
        self.queue.check()?;
        let seq = list.order.next_seq();
        check(&mut list.order, seq).map_err(|what| JournalError::Order {
            txn: self.txn,
            seq,
            what,
        })?;
        let opened = list.open.is_none();
        let chunk = list.open.get_or_insert_with(|| Chunk {
            first: seq,
            records: 0,
            bytes: Vec::with_capacity(CHUNK_BYTES / 4),
        });
        // The body's length comes before it and is known after it.
        let at = chunk.bytes.len();
        0u32.put(&mut chunk.bytes);
        seq.put(&mut chunk.bytes);
        time.put(&mut chunk.bytes);
        encode(&mut chunk.bytes);
        let len = (chunk.bytes.len() - at - 4) as u32;
        chunk.bytes[at..at + 4].copy_from_slice(&len.to_le_bytes());
        chunk.records += 1;
        if chunk.records >= CHUNK_RECORDS || chunk.bytes.len() >= CHUNK_BYTES {
            if let Some(chunk) = list.open.take() {
                self.queue.send(Message::Chunk { txn: self.txn, chunk })?;
            }
        } else if opened {
            self.queue.send(Message::Open(self.clone()))?;
        }
        Ok(seq)
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
        Seq(self.lock().order.next_seq().0 - 1)
    }
}
