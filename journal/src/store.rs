//! The sled store. `FORMAT.md` has the keys, the order of writes and the crash table.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::codec::{DecodeError, Reader, Wire, decode, encode};
use crate::disk::{Disk, Durable};
use crate::error::JournalError;
use crate::frame::{
    HEAD, PLAN, RECORDS, STEPS, chunk_number, corrupt, frame, key, meta_key, number, unframe,
};
use crate::id::{Generation, TxnId};
use crate::list::TxnWriter;
use crate::object::Timestamp;
use crate::order::Order;
use crate::record::{Record, TxnHead, TxnState};
use crate::writer::{self, Queue};

/// What sled may keep in memory.
const CACHE_BYTES: u64 = 32 << 20;
/// The setting that holds the newest generation.
pub(crate) const LIVE: &str = "live";
/// The setting that holds the next transaction's id.
const NEXT_TXN: &str = "next-txn";

/// The journal of one workspace.
///
/// After any failure to write it takes nothing more: what changes or promises something answers
/// [`JournalError::Failed`], and what reads answers only what was acknowledged.
#[derive(Debug)]
pub struct Journal {
    pub(crate) db: sled::Db,
    queue: Option<Queue>,
    thread: Option<std::thread::JoinHandle<()>>,
    writers: Mutex<HashMap<TxnId, TxnWriter>>,
    /// Held over each change of a transaction's state.
    states: Mutex<()>,
    /// The newest generation that was acknowledged.
    live: AtomicU64,
}

impl Journal {
    /// Opens or makes the journal in `dir`, which only one process may have open.
    ///
    /// # Errors
    /// [`JournalError::Store`] (also if another process has it open), [`JournalError::Corrupt`], [`JournalError::NewerFormat`].
    pub fn open(dir: &Path) -> Result<Journal, JournalError> {
        Journal::open_with(dir, Box::new(Disk::new(dir)))
    }

    /// As [`Journal::open`], with another way to the disk.
    pub(crate) fn open_with(
        dir: &Path,
        durable: Box<dyn Durable>,
    ) -> Result<Journal, JournalError> {
        let db = sled::Config::new()
            .path(dir)
            .cache_capacity(CACHE_BYTES)
            .flush_every_ms(None)
            .open()
            .map_err(|e| JournalError::sled("opened", &e))?;
        let (queue, thread) = writer::start(db.clone(), durable)?;
        let journal = Journal {
            db,
            queue: Some(queue),
            thread: Some(thread),
            writers: Mutex::default(),
            states: Mutex::new(()),
            live: AtomicU64::new(0),
        };
        if journal.db.is_empty() {
            journal.write(&[
                (meta_key(LIVE), encode(&Generation(0))),
                (meta_key(NEXT_TXN), encode(&1u64)),
            ])?;
        }
        let live: Generation = journal.setting(LIVE)?;
        journal.next_txn()?;
        journal.live.store(live.0, Ordering::Release);
        Ok(journal)
    }

    pub(crate) fn queue(&self) -> Result<&Queue, JournalError> {
        self.queue.as_ref().ok_or_else(|| JournalError::Failed("it is closed".into()))
    }

    pub(crate) fn states(&self) -> MutexGuard<'_, ()> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writers(&self) -> MutexGuard<'_, HashMap<TxnId, TxnWriter>> {
        self.writers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, JournalError> {
        match self.db.get(key).map_err(|e| JournalError::sled("read", &e))? {
            Some(value) => unframe(key, &value).map(|payload| Some(payload.to_vec())),
            None => Ok(None),
        }
    }

    pub(crate) fn read<T: Wire>(&self, key: &[u8]) -> Result<Option<T>, JournalError> {
        match self.get(key)? {
            Some(payload) => decode(&payload).map(Some).map_err(|e| JournalError::decode(key, &e)),
            None => Ok(None),
        }
    }

    /// A setting that every store has.
    fn setting<T: Wire>(&self, name: &str) -> Result<T, JournalError> {
        let key = meta_key(name);
        self.read(&key)?.ok_or_else(|| corrupt(&key, "it is missing"))
    }

    /// All values whose keys begin with `prefix`, in the order of their keys: key and payload.
    pub(crate) fn scan(
        &self,
        prefix: &[u8],
    ) -> impl Iterator<Item = Result<(sled::IVec, Vec<u8>), JournalError>> + use<> {
        self.db.scan_prefix(prefix).map(|item| {
            let (key, value) = item.map_err(|e| JournalError::sled("read", &e))?;
            let payload = unframe(&key, &value)?.to_vec();
            Ok((key, payload))
        })
    }

    /// Writes several values at once, all or nothing, and waits for the disk.
    pub(crate) fn write(&self, values: &[(Vec<u8>, Vec<u8>)]) -> Result<(), JournalError> {
        self.insert(values)?;
        self.queue()?.pass(true)
    }

    /// Writes several values at once, all or nothing; they reach the kernel with the next pass.
    pub(crate) fn insert(&self, values: &[(Vec<u8>, Vec<u8>)]) -> Result<(), JournalError> {
        let mut batch = sled::Batch::default();
        for (key, payload) in values {
            batch.insert(key.as_slice(), frame(key, payload));
        }
        self.apply(batch)
    }

    /// Removes all values whose keys begin with one of `prefixes`, all or nothing; with the next pass.
    pub(crate) fn remove(&self, prefixes: &[Vec<u8>]) -> Result<(), JournalError> {
        let mut batch = sled::Batch::default();
        for prefix in prefixes {
            for key in self.db.scan_prefix(prefix).keys() {
                batch.remove(key.map_err(|e| JournalError::sled("read", &e))?);
            }
        }
        self.apply(batch)
    }

    fn apply(&self, batch: sled::Batch) -> Result<(), JournalError> {
        let queue = self.queue()?;
        queue.check()?;
        self.db.apply_batch(batch).map_err(|e| queue.fail(JournalError::sled("written", &e)))
    }

    /// A setting; its meaning is the caller's.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn meta(&self, name: &str) -> Result<Option<Vec<u8>>, JournalError> {
        self.get(&meta_key(name))
    }

    /// Sets a setting, durably.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn set_meta(&self, name: &str, value: &[u8]) -> Result<(), JournalError> {
        self.write(&[(meta_key(name), value.to_vec())])
    }

    /// Removes a setting; it may be there again after a power cut.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn remove_meta(&self, name: &str) -> Result<(), JournalError> {
        let mut batch = sled::Batch::default();
        batch.remove(meta_key(name));
        self.apply(batch)?;
        self.queue()?.pass(false)
    }

    /// The newest generation that was acknowledged.
    ///
    /// # Errors
    /// None; a journal that can be opened has read it.
    pub fn live(&self) -> Result<Generation, JournalError> {
        Ok(Generation(self.live.load(Ordering::Acquire)))
    }

    pub(crate) fn set_live(&self, generation: Generation) {
        self.live.store(generation.0, Ordering::Release);
    }

    /// Begins a transaction, durably.
    ///
    /// # Errors
    /// [`JournalError::NameTaken`] if an unfinished one has this name.
    pub fn begin(&self, name: &str, owner: u32, now: Timestamp) -> Result<TxnHead, JournalError> {
        let _states = self.states();
        let unfinished = |s: TxnState| match s {
            TxnState::Open | TxnState::Sealed => true,
            TxnState::Aborting | TxnState::Committed(_) | TxnState::Aborted => false,
        };
        if self.heads()?.iter().any(|h| h.name == name && unfinished(h.state)) {
            return Err(JournalError::NameTaken(name.to_owned()));
        }
        self.begin_named(name, owner, now)
    }

    /// The next transaction's id, which none has had.
    pub(crate) fn next_txn(&self) -> Result<u64, JournalError> {
        let next: u64 = self.setting(NEXT_TXN)?;
        match self.db.scan_prefix([HEAD]).keys().next_back() {
            Some(last) => {
                let last = last.map_err(|e| JournalError::sled("read", &e))?;
                if number(&last)? < next {
                    Ok(next)
                } else {
                    Err(corrupt(&meta_key(NEXT_TXN), "a transaction has this number already"))
                }
            }
            None => Ok(next),
        }
    }

    fn begin_named(&self, name: &str, owner: u32, now: Timestamp) -> Result<TxnHead, JournalError> {
        let next = self.next_txn()?;
        let head = TxnHead {
            id: TxnId(next),
            name: name.to_owned(),
            owner,
            base: self.live()?,
            began: now,
            state: TxnState::Open,
        };
        self.write(&[(key(HEAD, next), encode(&head)), (meta_key(NEXT_TXN), encode(&(next + 1)))])?;
        Ok(head)
    }

    /// Begins the transaction that follows another of the same name on the live generation, durably.
    ///
    /// # Errors
    /// [`JournalError::WrongState`] if the one before is open or sealed.
    pub fn succeed(&self, before: &TxnHead, now: Timestamp) -> Result<TxnHead, JournalError> {
        let _states = self.states();
        let head = self.head(before.id)?;
        match head.state {
            TxnState::Committed(_) | TxnState::Aborting | TxnState::Aborted => {}
            TxnState::Open | TxnState::Sealed => return Err(wrong_state(&head)),
        }
        self.begin_named(&before.name, before.owner, now)
    }

    /// All transactions that were not forgotten, by id.
    ///
    /// # Errors
    /// If one cannot be read; [`JournalError::Failed`], since a state that was written last may not be on the disk.
    pub fn heads(&self) -> Result<Vec<TxnHead>, JournalError> {
        self.queue()?.check()?;
        self.scan(&[HEAD])
            .map(|item| {
                let (key, payload) = item?;
                decode(&payload).map_err(|e| JournalError::decode(&key, &e))
            })
            .collect()
    }

    /// One transaction.
    ///
    /// # Errors
    /// [`JournalError::NoTxn`], and as [`Journal::heads`].
    pub fn head(&self, txn: TxnId) -> Result<TxnHead, JournalError> {
        self.queue()?.check()?;
        self.read(&key(HEAD, txn.0))?.ok_or(JournalError::NoTxn(txn))
    }

    pub(crate) fn expect(&self, txn: TxnId, state: TxnState) -> Result<TxnHead, JournalError> {
        let head = self.head(txn)?;
        if head.state == state { Ok(head) } else { Err(wrong_state(&head)) }
    }

    pub(crate) fn put_head(&self, mut head: TxnHead, state: TxnState) -> Result<(), JournalError> {
        head.state = state;
        self.write(&[(key(HEAD, head.id.0), encode(&head))])
    }

    /// Tells the writers of a transaction, if there are any, what they may do from here on.
    pub(crate) fn tell_writers(&self, txn: TxnId, state: TxnState) {
        if let Some(writer) = self.writers().get(&txn) {
            writer.set_state(state);
        }
    }

    /// Lets go of the writers of a transaction that ended.
    pub(crate) fn drop_writers(&self, txn: TxnId, state: TxnState) {
        if let Some(writer) = self.writers().remove(&txn) {
            writer.set_state(state);
        }
    }

    /// The end of a list that is nobody's and takes no record: for views that only show.
    ///
    /// # Errors
    /// If the journal is closed.
    pub fn closed_writer(&self) -> Result<TxnWriter, JournalError> {
        let queue = self.queue()?.clone();
        Ok(TxnWriter::new(TxnId(0), TxnState::Aborted, Order::default(), queue))
    }

    /// The writing end of an unfinished transaction's list; of a sealed one it refuses every append.
    ///
    /// # Errors
    /// If its records cannot be read; [`JournalError::WrongState`] if it is committed or aborted.
    pub fn writer(&self, txn: TxnId) -> Result<TxnWriter, JournalError> {
        let _states = self.states();
        if let Some(writer) = self.writers().get(&txn) {
            return Ok(writer.clone());
        }
        let head = self.head(txn)?;
        match head.state {
            TxnState::Open | TxnState::Sealed => {}
            TxnState::Committed(_) | TxnState::Aborting | TxnState::Aborted => {
                return Err(wrong_state(&head));
            }
        }
        let (_, order) = self.read_records(txn)?;
        let writer = TxnWriter::new(txn, head.state, order, self.queue()?.clone());
        self.writers().insert(txn, writer.clone());
        Ok(writer)
    }

    /// All records of a transaction, those still queued included.
    ///
    /// # Errors
    /// [`JournalError::Corrupt`] with the place.
    pub fn records(&self, txn: TxnId) -> Result<Vec<Record>, JournalError> {
        self.read_records(txn).map(|(records, _)| records)
    }

    fn read_records(&self, txn: TxnId) -> Result<(Vec<Record>, Order), JournalError> {
        self.queue()?.pass(false)?;
        let (mut records, mut order) = (Vec::new(), Order::default());
        for item in self.scan(&key(RECORDS, txn.0)) {
            let (key, payload) = item?;
            read_chunk(&key, &payload, &mut order, &mut records)?;
        }
        Ok((records, order))
    }

    /// Whether the journal still takes anything.
    ///
    /// # Errors
    /// [`JournalError::Failed`] once a write has failed.
    pub fn check_alive(&self) -> Result<(), JournalError> {
        self.queue()?.check()
    }

    /// Moves an open transaction onto the live generation, durably.
    ///
    /// # Errors
    /// [`JournalError::WrongState`] unless it is open.
    pub fn rebase(&self, txn: TxnId) -> Result<TxnHead, JournalError> {
        let _states = self.states();
        let mut head = self.expect(txn, TxnState::Open)?;
        head.base = self.live()?;
        self.put_head(head.clone(), TxnState::Open)?;
        Ok(head)
    }

    /// Decides that an open transaction is dropped, durably.
    ///
    /// # Errors
    /// [`JournalError::WrongState`] unless it is open.
    pub fn begin_abort(&self, txn: TxnId) -> Result<(), JournalError> {
        let _states = self.states();
        let head = self.expect(txn, TxnState::Open)?;
        self.tell_writers(txn, TxnState::Aborting);
        self.put_head(head, TxnState::Aborting)
    }

    /// Records that nothing of an aborting transaction is left. A power cut may take this back: what removed
    /// the transaction's content is then done again.
    ///
    /// # Errors
    /// [`JournalError::WrongState`] unless it is aborting.
    pub fn finish_abort(&self, txn: TxnId) -> Result<(), JournalError> {
        let _states = self.states();
        let mut head = self.expect(txn, TxnState::Aborting)?;
        head.state = TxnState::Aborted;
        self.insert(&[(key(HEAD, txn.0), encode(&head))])?;
        self.drop_writers(txn, TxnState::Aborted);
        self.queue()?.pass(false)
    }

    /// Removes a finished transaction, all or nothing: its head, its records, its plan. The steps of a
    /// committed one stay with its generation. It may be back after a power cut.
    ///
    /// # Errors
    /// [`JournalError::WrongState`] if it is not finished.
    pub fn forget(&self, txn: TxnId) -> Result<(), JournalError> {
        let _states = self.states();
        let head = self.head(txn)?;
        let mut gone = vec![key(HEAD, txn.0), key(RECORDS, txn.0), key(PLAN, txn.0)];
        match head.state {
            TxnState::Committed(_) => {}
            TxnState::Aborted => gone.push(key(STEPS, txn.0)),
            TxnState::Open | TxnState::Sealed | TxnState::Aborting => {
                return Err(wrong_state(&head));
            }
        }
        self.remove(&gone)?;
        self.queue()?.pass(false)
    }

    /// Records why the workspace must not be changed until somebody has decided; `None` lifts it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn set_poison(&self, why: Option<&str>) -> Result<(), JournalError> {
        self.set_meta("poison", why.unwrap_or_default().as_bytes())
    }

    /// Why the workspace is poisoned, if it is.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn poison(&self) -> Result<Option<String>, JournalError> {
        match self.meta("poison")? {
            Some(payload) if !payload.is_empty() => String::from_utf8(payload)
                .map(Some)
                .map_err(|_| corrupt(&meta_key("poison"), "UTF-8 expected")),
            Some(_) | None => Ok(None),
        }
    }

    /// Hands everything queued to the kernel: it survives the end of this process.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn hand_over(&self) -> Result<(), JournalError> {
        self.queue()?.pass(false)
    }

    /// Makes everything queued durable.
    ///
    /// # Errors
    /// If it cannot be.
    pub fn make_durable(&self) -> Result<(), JournalError> {
        self.queue()?.pass(true)
    }
}

fn wrong_state(head: &TxnHead) -> JournalError {
    JournalError::WrongState { txn: head.id, state: head.state.to_string() }
}

/// Takes the records of one stored chunk. They must go on where `order` stands.
fn read_chunk(
    key: &[u8],
    payload: &[u8],
    order: &mut Order,
    records: &mut Vec<Record>,
) -> Result<(), JournalError> {
    let bad = |e: &DecodeError| JournalError::decode(key, e);
    let (first, next) = (chunk_number(key)?, order.next_seq());
    if first != next.0 {
        return Err(corrupt(key, format!("the records from {next} to here are missing")));
    }
    let mut r = Reader::new(payload);
    while !r.is_at_end() {
        let body = Vec::<u8>::get(&mut r).map_err(|e| bad(&e))?;
        let record: Record = decode(&body).map_err(|e| bad(&e))?;
        order
            .take(record.seq, &record.entry)
            .map_err(|what| corrupt(key, format!("record {}: {what}", record.seq)))?;
        records.push(record);
    }
    Ok(())
}

impl Drop for Journal {
    /// Hands over what is queued and waits for it.
    fn drop(&mut self) {
        let Some(queue) = self.queue.take() else { return };
        if let Err(e) = queue.pass(true) {
            log::error!("{e}");
        }
        self.writers().clear();
        // Writers that live on keep the thread, which ends with the last of them.
        let alone = queue.is_last();
        drop(queue);
        if let (true, Some(thread)) = (alone, self.thread.take())
            && thread.join().is_err()
        {
            log::error!("the journal's writer thread panicked");
        }
    }
}
