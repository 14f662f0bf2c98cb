//! The writing end of a transaction's list.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use crate::codec::{EFFECT_TAG, Wire};
use crate::error::JournalError;
use crate::id::{Seq, StepId, TxnId};
use crate::object::Timestamp;
use crate::order::Order;
use crate::record::{EffectEntry, Entry, TxnState};
use crate::writer::{Chunk, Message, Queue};

/// Records in one chunk.
pub(crate) const CHUNK_RECORDS: usize = 512;
/// Bytes after which a chunk is full; sled stores larger values in files of their own.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;
/// Bytes of one encoded record: xattrs (64 KiB each, xattr(7)) and command lines (2 MiB, execve(2)) fit.
pub(crate) const RECORD_BYTES: usize = 16 << 20;

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
    /// Only an open transaction takes records.
    state: TxnState,
}

impl TxnWriter {
    pub(crate) fn new(txn: TxnId, state: TxnState, order: Order, queue: Queue) -> TxnWriter {
        let list = List { order, open: None, state };
        TxnWriter { txn, list: Arc::new(Mutex::new(list)), queue }
    }

    /// Whose list this is.
    #[must_use]
    pub fn txn(&self) -> TxnId {
        self.txn
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From here on appends are taken or refused as `state` says.
    pub(crate) fn set_state(&self, state: TxnState) {
        self.lock().state = state;
    }

    /// Takes the open chunk; `None` if somebody is appending right now.
    pub(crate) fn try_take_open(&self) -> Option<Option<Chunk>> {
        match self.list.try_lock() {
            Ok(mut list) => Some(list.open.take()),
            Err(TryLockError::Poisoned(list)) => Some(list.into_inner().open.take()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Appends a record and returns its number once it is in the open chunk; waits only if the queue is full.
    ///
    /// # Errors
    /// [`JournalError::Order`] if it may not stand here, [`JournalError::WrongState`] if the transaction is not
    /// open any more; nothing was appended then. [`JournalError::Failed`] after any failure of the store.
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
        if list.state != TxnState::Open {
            return Err(JournalError::WrongState { txn: self.txn, state: list.state.to_string() });
        }
        let seq = list.order.next_seq();
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
        let len = chunk.bytes.len() - at - size_of::<u32>();
        let fits = match u32::try_from(len) {
            Ok(stored) if len <= RECORD_BYTES => {
                chunk.bytes[at..at + size_of::<u32>()].copy_from_slice(&stored.to_le_bytes());
                Ok(())
            }
            Ok(_) | Err(_) => Err(format!("{len} bytes are more than {RECORD_BYTES}")),
        };
        if let Err(what) = fits.and_then(|()| check(&mut list.order, seq)) {
            chunk.bytes.truncate(at);
            if opened {
                list.open = None;
            }
            return Err(JournalError::Order { txn: self.txn, seq, what });
        }
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
