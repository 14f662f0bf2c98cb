//! The sled store. `FORMAT.md` has the keys, the order of writes and the crash table.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::codec::{DecodeError, Reader, Wire, decode, encode};
use crate::error::JournalError;
use crate::id::{Generation, Seq, TxnId};
use crate::object::{Fingerprint, Place, Timestamp};
use crate::order::Order;
use crate::plan::{GenerationHead, GenerationRecord, Plan, PlanHead, Step};
use crate::record::{Record, TxnHead, TxnState};
use crate::seal::Sealed;
use crate::writer::{self, Queue, TxnWriter};

/// The version in every stored value.
pub const FORMAT: u8 = 1;
/// What sled may keep in memory.
const CACHE_BYTES: u64 = 32 << 20;
/// Steps or fingerprints in one value.
const LIST_CHUNK: usize = 512;

const META: u8 = b'm';
const HEAD: u8 = b't';
const RECORDS: u8 = b'r';
const PLAN: u8 = b'p';
const STEPS: u8 = b's';
const GENERATION: u8 = b'g';
const AFTER: u8 = b'a';

/// The journal of one workspace.
#[derive(Debug)]
pub struct Journal {
    db: sled::Db,
    queue: Option<Queue>,
    thread: Option<std::thread::JoinHandle<()>>,
    writers: Mutex<HashMap<TxnId, TxnWriter>>,
    /// Held over each change of a transaction's state.
    states: Mutex<()>,
}

/// A stored value: version, CRC-32 of key and payload, payload.
pub(crate) fn frame(key: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(5 + payload.len());
    out.push(FORMAT);
    out.extend_from_slice(&crc(key, payload).to_le_bytes());
    out.extend_from_slice(payload);
    out
}

fn crc(key: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key);
    hasher.update(payload);
    hasher.finalize()
}

fn unframe<'a>(key: &[u8], value: &'a [u8]) -> Result<&'a [u8], JournalError> {
    let corrupt = |what: &str| JournalError::Corrupt { place: place(key), what: what.into() };
    let (&version, rest) = value.split_first().ok_or_else(|| corrupt("empty value"))?;
    if version > FORMAT {
        return Err(JournalError::NewerFormat { found: version.into(), known: FORMAT.into() });
    }
    if version == 0 || rest.len() < 4 {
        return Err(corrupt("no frame"));
    }
    let (sum, payload) = rest.split_at(4);
    if sum != crc(key, payload).to_le_bytes() {
        return Err(corrupt("the checksum differs"));
    }
    Ok(payload)
}

/// A key as a person may read it.
fn place(key: &[u8]) -> String {
    let number = |at: usize| {
        key.get(at..at + 8)
            .and_then(|b| b.try_into().ok())
            .map_or_else(|| "?".to_owned(), |b| u64::from_be_bytes(b).to_string())
    };
    match key.first() {
        Some(&META) => format!("setting {}", key[1..].escape_ascii()),
        Some(&HEAD) => format!("transaction {}", number(1)),
        Some(&RECORDS) => format!("transaction {}, records from {}", number(1), number(9)),
        Some(&PLAN) => format!("the plan of transaction {}", number(1)),
        Some(&STEPS) => format!("the steps of transaction {}", number(1)),
        Some(&GENERATION) => format!("generation {}", number(1)),
        Some(&AFTER) => format!("the fingerprints of generation {}", number(1)),
        _ => format!("key {}", key.escape_ascii()),
    }
}

fn key(kind: u8, number: u64) -> Vec<u8> {
    let mut key = vec![kind];
    key.extend_from_slice(&number.to_be_bytes());
    key
}

fn chunk_key(kind: u8, number: u64, chunk: u64) -> Vec<u8> {
    let mut key = key(kind, number);
    key.extend_from_slice(&chunk.to_be_bytes());
    key
}

pub(crate) fn record_key(txn: TxnId, first: Seq) -> Vec<u8> {
    chunk_key(RECORDS, txn.0, first.0)
}

fn number(key: &[u8]) -> u64 {
    key.get(1..9).and_then(|b| b.try_into().ok()).map_or(0, u64::from_be_bytes)
}

impl Journal {
    /// Opens or makes the journal in `dir`, which only one process may have open.
    ///
    /// # Errors
    /// [`JournalError::Store`] (also if another process has it open), [`JournalError::Corrupt`], [`JournalError::NewerFormat`].
    pub fn open(dir: &Path) -> Result<Journal, JournalError> {
        let db = sled::Config::new()
            .path(dir)
            .cache_capacity(CACHE_BYTES)
            .flush_every_ms(None)
            .open()
            .map_err(|e| JournalError::sled("opened", &e))?;
        let (queue, thread) = writer::start(db.clone(), dir.to_owned())?;
        let journal = Journal {
            db,
            queue: Some(queue),
            thread: Some(thread),
            writers: Mutex::default(),
            states: Mutex::new(()),
        };
        if journal.live()? == Generation(0) && journal.meta("live")?.is_none() {
            journal.set_meta("live", &encode(&Generation(0)))?;
        }
        Ok(journal)
    }

    fn queue(&self) -> Result<&Queue, JournalError> {
        self.queue.as_ref().ok_or_else(|| JournalError::Failed("it is closed".into()))
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, JournalError> {
        match self.db.get(key).map_err(|e| JournalError::sled("read", &e))? {
            Some(value) => unframe(key, &value).map(|payload| Some(payload.to_vec())),
            None => Ok(None),
        }
    }

    fn read<T: Wire>(&self, key: &[u8]) -> Result<Option<T>, JournalError> {
        match self.get(key)? {
            Some(payload) => {
                decode(&payload).map(Some).map_err(|e| JournalError::decode(place(key), &e))
            }
            None => Ok(None),
        }
    }

    /// Writes several values at once, all or nothing, and waits for the disk.
    fn write(&self, values: &[(Vec<u8>, Vec<u8>)]) -> Result<(), JournalError> {
        let queue = self.queue()?;
        queue.check()?;
        let mut batch = sled::Batch::default();
        for (key, payload) in values {
            batch.insert(key.as_slice(), frame(key, payload));
        }
        self.db.apply_batch(batch).map_err(|e| queue.fail(JournalError::sled("written", &e)))?;
        queue.pass(true)
    }

    fn remove_prefix(&self, prefix: &[u8]) -> Result<(), JournalError> {
        let queue = self.queue()?;
        let mut batch = sled::Batch::default();
        for item in self.db.scan_prefix(prefix) {
            let (key, _) = item.map_err(|e| JournalError::sled("read", &e))?;
            batch.remove(key);
        }
        self.db.apply_batch(batch).map_err(|e| queue.fail(JournalError::sled("written", &e)))
    }

    /// A setting; its meaning is the caller's.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn meta(&self, name: &str) -> Result<Option<Vec<u8>>, JournalError> {
        let mut key = vec![META];
        key.extend_from_slice(name.as_bytes());
        self.get(&key)
    }

    /// Sets a setting, durably.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn set_meta(&self, name: &str, value: &[u8]) -> Result<(), JournalError> {
        let mut key = vec![META];
        key.extend_from_slice(name.as_bytes());
        self.write(&[(key, value.to_vec())])
    }

    /// The newest generation.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn live(&self) -> Result<Generation, JournalError> {
        match self.meta("live")? {
            Some(payload) => decode(&payload).map_err(|e| JournalError::decode("setting live", &e)),
            None => Ok(Generation(0)),
        }
    }

    /// Begins a transaction, durably.
    ///
    /// # Errors
    /// [`JournalError::NameTaken`] if an unfinished one has this name.
    pub fn begin(&self, name: &str, owner: u32, now: Timestamp) -> Result<TxnHead, JournalError> {
        let _states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let heads = self.heads()?;
        let unfinished = |s: TxnState| match s {
            TxnState::Open | TxnState::Sealed => true,
            TxnState::Aborting | TxnState::Committed(_) | TxnState::Aborted => false,
        };
        if heads.iter().any(|h| h.name == name && unfinished(h.state)) {
            return Err(JournalError::NameTaken(name.to_owned()));
        }
        self.begin_named(name, owner, now)
    }

    fn begin_named(&self, name: &str, owner: u32, now: Timestamp) -> Result<TxnHead, JournalError> {
        let next = match self.meta("next-txn")? {
            Some(payload) => {
                decode::<u64>(&payload).map_err(|e| JournalError::decode("setting next-txn", &e))?
            }
            None => 1,
        };
        let head = TxnHead {
            id: TxnId(next),
            name: name.to_owned(),
            owner,
            base: self.live()?,
            began: now,
            state: TxnState::Open,
        };
        let mut next_key = vec![META];
        next_key.extend_from_slice(b"next-txn");
        self.write(&[(key(HEAD, next), encode(&head)), (next_key, encode(&(next + 1)))])?;
        Ok(head)
    }

    /// Begins the transaction that follows another of the same name on the live generation, durably.
    ///
    /// # Errors
    /// [`JournalError::WrongState`] if the one before is open or sealed.
    pub fn succeed(&self, before: &TxnHead, now: Timestamp) -> Result<TxnHead, JournalError> {
        let head = self.head(before.id)?;
        match head.state {
            TxnState::Committed(_) | TxnState::Aborting | TxnState::Aborted => {}
            TxnState::Open | TxnState::Sealed => {
                let state = format!("{:?}", head.state).to_lowercase();
                return Err(JournalError::WrongState { txn: head.id, state });
            }
        }
        let _states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        self.begin_named(&before.name, before.owner, now)
    }

    /// All transactions that were not forgotten, by id.
    ///
    /// # Errors
    /// If one cannot be read.
    pub fn heads(&self) -> Result<Vec<TxnHead>, JournalError> {
        self.db
            .scan_prefix([HEAD])
            .map(|item| {
                let (key, value) = item.map_err(|e| JournalError::sled("read", &e))?;
                let payload = unframe(&key, &value)?;
                decode(payload).map_err(|e| JournalError::decode(place(&key), &e))
            })
            .collect()
    }

    /// One transaction.
    ///
    /// # Errors
    /// [`JournalError::NoTxn`].
    pub fn head(&self, txn: TxnId) -> Result<TxnHead, JournalError> {
        self.read(&key(HEAD, txn.0))?.ok_or(JournalError::NoTxn(txn))
    }

    fn expect(&self, txn: TxnId, state: TxnState) -> Result<TxnHead, JournalError> {
        let head = self.head(txn)?;
        if head.state == state {
            Ok(head)
        } else {
            Err(JournalError::WrongState { txn, state: format!("{:?}", head.state).to_lowercase() })
        }
    }

    fn put_head(&self, mut head: TxnHead, state: TxnState) -> Result<(), JournalError> {
        head.state = state;
        self.write(&[(key(HEAD, head.id.0), encode(&head))])
    }

    /// The writing end of an open transaction's list.
    ///
    /// # Errors
    /// If its records cannot be read.
    pub fn writer(&self, txn: TxnId) -> Result<TxnWriter, JournalError> {
        let mut writers = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(writer) = writers.get(&txn) {
            return Ok(writer.clone());
        }
        let (_, order) = self.read_records(txn)?;
        let writer = TxnWriter::new(txn, order, self.queue()?.clone());
        writers.insert(txn, writer.clone());
        Ok(writer)
    }

    /// All records of a transaction, those still queued included.
    ///
    /// # Errors
    /// [`JournalError::Corrupt`] with the place, [`JournalError::Order`].
    pub fn records(&self, txn: TxnId) -> Result<Vec<Record>, JournalError> {
        self.read_records(txn).map(|(records, _)| records)
    }

    fn read_records(&self, txn: TxnId) -> Result<(Vec<Record>, Order), JournalError> {
        self.queue()?.pass(false)?;
        let (mut records, mut order) = (Vec::new(), Order::default());
        for item in self.db.scan_prefix(key(RECORDS, txn.0)) {
            let (key, value) = item.map_err(|e| JournalError::sled("read", &e))?;
            let payload = unframe(&key, &value)?;
            let corrupt = |e: &DecodeError| JournalError::decode(place(&key), e);
            let mut r = Reader::new(payload);
            while !r.is_at_end() {
                let body = Vec::<u8>::get(&mut r).map_err(|e| corrupt(&e))?;
                let record: Record = decode(&body).map_err(|e| corrupt(&e))?;
                order.take(record.seq, &record.entry).map_err(|what| JournalError::Order {
                    txn,
                    seq: record.seq,
                    what,
                })?;
                records.push(record);
            }
        }
        Ok((records, order))
    }

    /// Makes a plan durable and its transaction sealed. From here the commit happens.
    ///
    /// # Errors
    /// [`JournalError::WrongState`] unless the transaction is open.
    pub fn seal(&self, plan: Plan) -> Result<Sealed, JournalError> {
        let _states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let head = self.expect(plan.txn, TxnState::Open)?;
        self.remove_prefix(&key(STEPS, plan.txn.0))?;
        for (n, chunk) in plan.steps.chunks(LIST_CHUNK).enumerate() {
            self.put_list(STEPS, plan.txn.0, n, chunk)?;
        }
        let plan_head = (key(PLAN, plan.txn.0), encode(&plan.head()));
        // The steps must be on the disk before the decision.
        self.write(&[plan_head])?;
        self.put_head(head, TxnState::Sealed)?;
        Ok(Sealed::new(plan))
    }

    fn put_list<T: Wire>(
        &self,
        kind: u8,
        of: u64,
        n: usize,
        chunk: &[T],
    ) -> Result<(), JournalError> {
        let key = chunk_key(kind, of, n as u64);
        let mut payload = Vec::new();
        for item in chunk {
            item.put(&mut payload);
        }
        let queue = self.queue()?;
        queue.check()?;
        self.db
            .insert(&key, frame(&key, &payload))
            .map_err(|e| queue.fail(JournalError::sled("written", &e)))?;
        Ok(())
    }

    fn list<T: Wire>(&self, kind: u8, of: u64, expected: u64) -> Result<Vec<T>, JournalError> {
        let mut out = Vec::new();
        for item in self.db.scan_prefix(key(kind, of)) {
            let (key, value) = item.map_err(|e| JournalError::sled("read", &e))?;
            let mut r = Reader::new(unframe(&key, &value)?);
            while !r.is_at_end() {
                out.push(T::get(&mut r).map_err(|e| JournalError::decode(place(&key), &e))?);
            }
        }
        if out.len() as u64 != expected {
            return Err(JournalError::Corrupt {
                place: place(&key(kind, of)),
                what: format!("{} items where {expected} must be", out.len()),
            });
        }
        Ok(out)
    }

    /// The sealed plan that waits for recovery, if there is one.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn sealed(&self) -> Result<Option<Sealed>, JournalError> {
        let Some(head) = self.heads()?.into_iter().find(|h| h.state == TxnState::Sealed) else {
            return Ok(None);
        };
        self.plan(head.id).map(|plan| Some(Sealed::new(plan)))
    }

    fn plan(&self, txn: TxnId) -> Result<Plan, JournalError> {
        let plan_key = key(PLAN, txn.0);
        let head: PlanHead = self.read(&plan_key)?.ok_or_else(|| JournalError::Corrupt {
            place: place(&plan_key),
            what: "it is missing".into(),
        })?;
        let steps: Vec<Step> = self.list(STEPS, txn.0, head.steps)?;
        Ok(head.with(steps))
    }

    /// Records that a sealed plan was carried out: its generation is live from here, durably.
    ///
    /// # Errors
    /// If it cannot be written; the plan stays sealed then, and recovery carries it out again.
    pub fn publish(
        &self,
        sealed: Sealed,
        record: &GenerationRecord,
    ) -> Result<Generation, JournalError> {
        let _states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = sealed.into_plan();
        let generation = plan.generation;
        let mut head = self.expect(plan.txn, TxnState::Sealed)?;
        self.remove_prefix(&key(AFTER, generation.0))?;
        for (n, chunk) in record.after.chunks(LIST_CHUNK).enumerate() {
            self.put_list::<(Place, Fingerprint)>(AFTER, generation.0, n, chunk)?;
        }
        self.queue()?.pass(true)?;
        head.state = TxnState::Committed(generation);
        let mut live = vec![META];
        live.extend_from_slice(b"live");
        self.write(&[
            (key(GENERATION, generation.0), encode(&record.head())),
            (key(HEAD, plan.txn.0), encode(&head)),
            (live, encode(&generation)),
        ])?;
        self.writers.lock().unwrap_or_else(PoisonError::into_inner).remove(&plan.txn);
        Ok(generation)
    }

    /// Opens a sealed transaction again, after everything that apply had done was taken back.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn unseal(&self, sealed: Sealed) -> Result<(), JournalError> {
        let _states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let head = self.expect(sealed.into_plan().txn, TxnState::Sealed)?;
        self.put_head(head, TxnState::Open)
    }

    /// Decides that an open transaction is dropped, durably.
    ///
    /// # Errors
    /// [`JournalError::WrongState`] unless it is open.
    pub fn begin_abort(&self, txn: TxnId) -> Result<(), JournalError> {
        let _states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let head = self.expect(txn, TxnState::Open)?;
        self.put_head(head, TxnState::Aborting)
    }

    /// Records that nothing of an aborting transaction is left.
    ///
    /// # Errors
    /// [`JournalError::WrongState`] unless it is aborting.
    pub fn finish_abort(&self, txn: TxnId) -> Result<(), JournalError> {
        let _states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let head = self.expect(txn, TxnState::Aborting)?;
        self.put_head(head, TxnState::Aborted)?;
        self.writers.lock().unwrap_or_else(PoisonError::into_inner).remove(&txn);
        Ok(())
    }

    /// Removes the records of a finished transaction; of an aborted one the head too. The plan of a
    /// committed one stays with its generation.
    ///
    /// # Errors
    /// [`JournalError::WrongState`] if it is not finished.
    pub fn forget(&self, txn: TxnId) -> Result<(), JournalError> {
        let head = self.head(txn)?;
        match head.state {
            TxnState::Committed(_) | TxnState::Aborted => {}
            TxnState::Open | TxnState::Sealed | TxnState::Aborting => {
                let state = format!("{:?}", head.state).to_lowercase();
                return Err(JournalError::WrongState { txn, state });
            }
        }
        self.remove_prefix(&key(RECORDS, txn.0))?;
        self.remove_prefix(&key(HEAD, txn.0))?;
        if head.state == TxnState::Aborted {
            self.remove_prefix(&key(PLAN, txn.0))?;
            self.remove_prefix(&key(STEPS, txn.0))?;
        }
        self.queue()?.pass(false)
    }

    /// All generations that were not forgotten, rising.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn generations(&self) -> Result<Vec<Generation>, JournalError> {
        self.db
            .scan_prefix([GENERATION])
            .keys()
            .map(|item| {
                item.map(|k| Generation(number(&k))).map_err(|e| JournalError::sled("read", &e))
            })
            .collect()
    }

    /// A generation without its long lists.
    ///
    /// # Errors
    /// [`JournalError::NoGeneration`].
    pub fn generation_head(&self, generation: Generation) -> Result<GenerationHead, JournalError> {
        self.read(&key(GENERATION, generation.0))?.ok_or(JournalError::NoGeneration(generation))
    }

    /// A whole generation.
    ///
    /// # Errors
    /// [`JournalError::NoGeneration`].
    pub fn generation(&self, generation: Generation) -> Result<GenerationRecord, JournalError> {
        let head = self.generation_head(generation)?;
        let steps = self.list(STEPS, head.plan.txn.0, head.plan.steps)?;
        let after = self.list(AFTER, generation.0, head.after)?;
        Ok(GenerationRecord {
            plan: head.plan.with(steps),
            after,
            history_bytes: head.history_bytes,
            entries: head.entries,
            pruned: head.pruned,
        })
    }

    /// Marks a generation as collected, durably, before its slots are removed.
    ///
    /// # Errors
    /// [`JournalError::NoGeneration`].
    pub fn set_pruned(&self, generation: Generation) -> Result<(), JournalError> {
        let mut head = self.generation_head(generation)?;
        head.pruned = true;
        head.history_bytes = 0;
        self.write(&[(key(GENERATION, generation.0), encode(&head))])
    }

    /// Sets the bytes that a generation's slots hold after some of them went elsewhere.
    ///
    /// # Errors
    /// [`JournalError::NoGeneration`].
    pub fn set_history_bytes(
        &self,
        generation: Generation,
        bytes: u64,
    ) -> Result<(), JournalError> {
        let mut head = self.generation_head(generation)?;
        head.history_bytes = bytes;
        self.write(&[(key(GENERATION, generation.0), encode(&head))])
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
            Some(payload) if !payload.is_empty() => {
                String::from_utf8(payload).map(Some).map_err(|_| JournalError::Corrupt {
                    place: "setting poison".into(),
                    what: "UTF-8 expected".into(),
                })
            }
            Some(_) | None => Ok(None),
        }
    }

    /// Decodes everything; answers what does not decode.
    ///
    /// # Errors
    /// Only if the store cannot be listed.
    pub fn check(&self) -> Result<Vec<JournalError>, JournalError> {
        let mut found = Vec::new();
        for item in self.db.iter() {
            let (key, value) = item.map_err(|e| JournalError::sled("read", &e))?;
            if let Err(e) = unframe(&key, &value) {
                found.push(e);
            }
        }
        for head in self.heads()? {
            if let Err(e) = self.records(head.id) {
                found.push(e);
            }
        }
        for generation in self.generations()? {
            if let Err(e) = self.generation(generation) {
                found.push(e);
            }
        }
        Ok(found)
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

impl Drop for Journal {
    /// Hands over what is queued and waits for it.
    fn drop(&mut self) {
        let Some(queue) = self.queue.take() else { return };
        if let Err(e) = queue.pass(true) {
            log::error!("{e}");
        }
        self.writers.lock().unwrap_or_else(PoisonError::into_inner).clear();
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
