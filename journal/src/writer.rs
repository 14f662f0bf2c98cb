//! The one thread that hands records to sled.
//!
//! A record is acknowledged when it is in its transaction's open chunk. A chunk goes to the thread when
//! it is full, or [`MAX_DELAY`] after its first record, which is when a record is safe from a SIGKILL;
//! [`TxnWriter::make_durable`] waits for the disk. The thread is woken once a chunk, not once a
//! record: on the path of every request that is most of the journal's cost.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::disk::{self, Done, Durable, Failure, Syncer};
use crate::error::JournalError;
use crate::frame::{frame, record_key};
use crate::id::{Seq, TxnId};
use crate::list::TxnWriter;

/// Chunks that may wait in the queue before an append has to wait.
pub(crate) const QUEUE: usize = 64;
/// How long a queued record may wait for the kernel.
pub(crate) const MAX_DELAY: Duration = Duration::from_millis(100);

pub(crate) enum Message {
    /// A full chunk.
    Chunk { txn: TxnId, chunk: Chunk },
    /// A transaction has an open chunk from now on.
    Open(TxnWriter),
    /// Hand over everything queued; with `durable` also to the disk.
    Pass { durable: bool, done: Done },
}

/// The queue's sending side, and the first failure, after which nothing is acknowledged.
#[derive(Debug, Clone)]
pub(crate) struct Queue {
    sender: Sender<Message>,
    failure: Failure,
    /// Counts the queue's holders; the thread has none.
    holders: Arc<()>,
}

impl Queue {
    /// Fails once anything has failed.
    pub(crate) fn check(&self) -> Result<(), JournalError> {
        disk::check(&self.failure)
    }

    /// Remembers the first failure.
    pub(crate) fn fail(&self, error: JournalError) -> JournalError {
        disk::remember(&self.failure, &error);
        error
    }

    /// Whether nobody else can send.
    pub(crate) fn is_last(&self) -> bool {
        Arc::strong_count(&self.holders) == 1
    }

    /// Queues a message; waits if the queue is full.
    pub(crate) fn send(&self, message: Message) -> Result<(), JournalError> {
        self.check()?;
        self.sender.send(message).map_err(|_| ended())
    }

    /// Waits until everything queued before is in the kernel, or on the disk.
    pub(crate) fn pass(&self, durable: bool) -> Result<(), JournalError> {
        let (done, wait) = bounded(1);
        self.send(Message::Pass { durable, done })?;
        wait.recv().map_err(|_| ended())?
    }
}

fn ended() -> JournalError {
    JournalError::Failed("its writer thread has ended".into())
}

/// Starts the thread. It ends when the last [`Queue`] is gone, after a last pass to the disk.
pub(crate) fn start(
    db: sled::Db,
    durable: Box<dyn Durable>,
) -> Result<(Queue, JoinHandle<()>), JournalError> {
    let (sender, receiver) = bounded(QUEUE);
    let failure: Failure = Arc::new(OnceLock::new());
    let failed = |e| JournalError::io("opened", &e);
    let syncer = Syncer::start(durable, Arc::clone(&failure)).map_err(failed)?;
    let thread = WriterThread {
        db,
        syncer,
        open: HashMap::new(),
        kernel: Vec::new(),
        disk: Vec::new(),
        failure: Arc::clone(&failure),
    };
    let handle = std::thread::Builder::new()
        .name("journal".into())
        .spawn(move || thread.run(&receiver))
        .map_err(failed)?;
    Ok((Queue { sender, failure, holders: Arc::new(()) }, handle))
}

/// Records on their way, encoded.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) first: Seq,
    pub(crate) records: usize,
    pub(crate) bytes: Vec<u8>,
}

struct WriterThread {
    db: sled::Db,
    syncer: Syncer,
    /// Transactions with an open chunk.
    open: HashMap<TxnId, TxnWriter>,
    /// Those who wait for a pass to the kernel.
    kernel: Vec<Done>,
    /// Those who wait for a pass to the disk.
    disk: Vec<Done>,
    failure: Failure,
}

impl WriterThread {
    fn run(mut self, receiver: &Receiver<Message>) {
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
                    self.pass(receiver);
                    self.syncer.request(Vec::new());
                    self.syncer.finish();
                    return;
                }
            }
            while !self.kernel.is_empty() || !self.disk.is_empty() {
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
            Message::Chunk { txn, chunk } => self.insert(txn, &chunk),
            Message::Open(writer) => {
                self.open.insert(writer.txn(), writer);
            }
            Message::Pass { durable: false, done } => self.kernel.push(done),
            Message::Pass { durable: true, done } => self.disk.push(done),
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
        let (kernel, disk) = (std::mem::take(&mut self.kernel), std::mem::take(&mut self.disk));
        let mut open: Vec<_> = std::mem::take(&mut self.open).into_values().collect();
        while let Some(writer) = open.pop() {
            let taken = writer.try_take_open();
            // A full chunk that was sent before the open one was taken goes before it.
            self.take_all(receiver);
            match taken {
                Some(Some(chunk)) => self.insert(writer.txn(), &chunk),
                Some(None) => {}
                None => {
                    // Whoever appends may have been waiting for room in the queue, which there is now.
                    std::thread::yield_now();
                    open.push(writer);
                }
            }
        }
        let result = self.flush();
        disk::answer(kernel, &result);
        match result {
            Ok(()) if disk.is_empty() => {}
            Ok(()) => self.syncer.request(disk),
            Err(_) => disk::answer(disk, &result),
        }
    }

    /// sled's flush: everything inserted is in the kernel when it returns.
    fn flush(&mut self) -> Result<(), JournalError> {
        disk::check(&self.failure)?;
        let result = self.db.flush().map_err(|e| JournalError::sled("written", &e));
        if let Err(e) = &result {
            disk::remember(&self.failure, e);
        }
        result.map(|_| ())
    }

    /// Once an insert has failed no later one is made: the list must stay a prefix.
    fn insert(&mut self, txn: TxnId, chunk: &Chunk) {
        if self.failure.get().is_some() {
            return;
        }
        let key = record_key(txn, chunk.first);
        if let Err(e) = self.db.insert(&key, frame(&key, &chunk.bytes)) {
            disk::remember(&self.failure, &JournalError::sled("written", &e));
        }
    }
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
