//! Plans, the seal, and the generations that plans become.

use crate::codec::{Reader, Wire, encode};
use crate::error::JournalError;
use crate::frame::{
    AFTER, GENERATION, HEAD, PLAN, STEPS, chunk_key, chunk_number, corrupt, key, meta_key, number,
};
use crate::id::{Generation, TxnId};
use crate::object::{Fingerprint, Place};
use crate::plan::{GenerationHead, GenerationRecord, Plan, PlanHead, Step};
use crate::record::{TxnHead, TxnState};
use crate::seal::Sealed;
use crate::store::{Journal, LIVE};

/// Steps or fingerprints in one value.
const LIST_CHUNK: usize = 512;

impl Journal {
    /// Makes a plan durable and its transaction sealed. From here the commit happens, and the transaction
    /// takes no more records.
    ///
    /// # Errors
    /// [`JournalError::WrongState`] unless the transaction is open, no other is sealed, and the plan makes the
    /// generation after the live one; nothing has changed then.
    pub fn seal(&self, plan: Plan) -> Result<Sealed, JournalError> {
        let _states = self.states();
        let head = self.expect(plan.txn, TxnState::Open)?;
        let refuse = |state| Err(JournalError::WrongState { txn: plan.txn, state });
        let (made, next) = (plan.generation, self.live()?.next());
        if made != next {
            return refuse(format!("planned as generation {made} where {next} is next"));
        }
        if let Some(other) = self.sealed_head()? {
            return refuse(format!("to be sealed while transaction {} is", other.id));
        }
        self.tell_writers(plan.txn, TxnState::Sealed);
        let result = self.write_seal(&plan, head);
        if result.is_err() {
            // A failed journal takes no record, whatever the writers are told.
            self.tell_writers(plan.txn, TxnState::Open);
        }
        result.map(|()| Sealed::new(plan))
    }

    fn write_seal(&self, plan: &Plan, head: TxnHead) -> Result<(), JournalError> {
        self.remove(&[key(STEPS, plan.txn.0)])?;
        self.put_list(STEPS, plan.txn.0, &plan.steps)?;
        // The steps must be on the disk before the decision.
        self.write(&[(key(PLAN, plan.txn.0), encode(&plan.head()))])?;
        self.put_head(head, TxnState::Sealed)
    }

    fn put_list<T: Wire>(&self, kind: u8, of: u64, items: &[T]) -> Result<(), JournalError> {
        for (n, chunk) in items.chunks(LIST_CHUNK).enumerate() {
            let mut payload = Vec::new();
            for item in chunk {
                item.put(&mut payload);
            }
            self.insert(&[(chunk_key(kind, of, n as u64), payload)])?;
        }
        Ok(())
    }

    fn list<T: Wire>(&self, kind: u8, of: u64, expected: u64) -> Result<Vec<T>, JournalError> {
        let mut out = Vec::new();
        let prefix = key(kind, of);
        for (n, item) in self.scan(&prefix).enumerate() {
            let (key, payload) = item?;
            if chunk_number(&key)? != n as u64 {
                return Err(corrupt(&key, format!("chunk {n} is missing")));
            }
            let mut r = Reader::new(&payload);
            while !r.is_at_end() {
                out.push(T::get(&mut r).map_err(|e| JournalError::decode(&key, &e))?);
            }
        }
        if out.len() as u64 != expected {
            let what = format!("{} items where {expected} must be", out.len());
            return Err(corrupt(&prefix, what));
        }
        Ok(out)
    }

    /// The sealed plan that waits for recovery, if there is one.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn sealed(&self) -> Result<Option<Sealed>, JournalError> {
        match self.sealed_head()? {
            Some(head) => self.plan(head.id).map(|plan| Some(Sealed::new(plan))),
            None => Ok(None),
        }
    }

    /// There is one at most: a second one means that the journal is damaged, and which of them was applied
    /// cannot be told.
    pub(crate) fn sealed_head(&self) -> Result<Option<TxnHead>, JournalError> {
        let mut sealed = self.heads()?.into_iter().filter(|h| h.state == TxnState::Sealed);
        match (sealed.next(), sealed.next()) {
            (head, None) => Ok(head),
            (_, Some(other)) => Err(corrupt(&key(HEAD, other.id.0), "sealed beside another one")),
        }
    }

    pub(crate) fn plan(&self, txn: TxnId) -> Result<Plan, JournalError> {
        let plan_key = key(PLAN, txn.0);
        let head: PlanHead =
            self.read(&plan_key)?.ok_or_else(|| corrupt(&plan_key, "it is missing"))?;
        let steps: Vec<Step> = self.list(STEPS, txn.0, head.steps)?;
        Ok(head.with(steps))
    }

    /// Records that a sealed plan was carried out: its generation is live from here, durably.
    ///
    /// # Errors
    /// If it cannot be written; the plan stays sealed then, and recovery carries it out again.
    /// [`JournalError::WrongState`] if the record is of another plan.
    pub fn publish(
        &self,
        sealed: Sealed,
        record: &GenerationRecord,
    ) -> Result<Generation, JournalError> {
        let _states = self.states();
        let plan = sealed.into_plan();
        let generation = plan.generation;
        let mut head = self.expect(plan.txn, TxnState::Sealed)?;
        if record.plan != plan || generation != self.live()?.next() {
            let state = "sealed with another plan".to_owned();
            return Err(JournalError::WrongState { txn: plan.txn, state });
        }
        self.remove(&[key(AFTER, generation.0)])?;
        self.put_list::<(Place, Fingerprint)>(AFTER, generation.0, &record.after)?;
        self.queue()?.pass(true)?;
        head.state = TxnState::Committed(generation);
        self.write(&[
            (key(GENERATION, generation.0), encode(&record.head())),
            (key(HEAD, plan.txn.0), encode(&head)),
            (meta_key(LIVE), encode(&generation)),
        ])?;
        self.set_live(generation);
        self.drop_writers(plan.txn, head.state);
        Ok(generation)
    }

    /// Opens a sealed transaction again, after everything that apply had done was taken back.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn unseal(&self, sealed: Sealed) -> Result<(), JournalError> {
        let _states = self.states();
        let txn = sealed.into_plan().txn;
        let head = self.expect(txn, TxnState::Sealed)?;
        self.put_head(head, TxnState::Open)?;
        self.tell_writers(txn, TxnState::Open);
        Ok(())
    }

    /// All generations that were not forgotten, rising.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn generations(&self) -> Result<Vec<Generation>, JournalError> {
        let live = self.live()?;
        let mut found = Vec::new();
        for item in self.db.scan_prefix([GENERATION]).keys() {
            let key = item.map_err(|e| JournalError::sled("read", &e))?;
            let generation = Generation(number(&key)?);
            // One that is not acknowledged may not be on the disk.
            if generation <= live {
                found.push(generation);
            }
        }
        Ok(found)
    }

    /// A generation without its long lists.
    ///
    /// # Errors
    /// [`JournalError::NoGeneration`].
    pub fn generation_head(&self, generation: Generation) -> Result<GenerationHead, JournalError> {
        if generation > self.live()? {
            return Err(JournalError::NoGeneration(generation));
        }
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
        self.change_generation(generation, |head| {
            head.pruned = true;
            head.history_bytes = 0;
        })
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
        self.change_generation(generation, |head| head.history_bytes = bytes)
    }

    fn change_generation(
        &self,
        generation: Generation,
        change: impl FnOnce(&mut GenerationHead),
    ) -> Result<(), JournalError> {
        let _states = self.states();
        let mut head = self.generation_head(generation)?;
        change(&mut head);
        self.write(&[(key(GENERATION, generation.0), encode(&head))])
    }

    /// Removes what is stored of the oldest generation, which must be pruned and older than the live
    /// one, all or nothing. It may be back after a power cut.
    ///
    /// # Errors
    /// [`JournalError::NoGeneration`]; [`JournalError::WrongState`] of the transaction it came from, if it is
    /// not the oldest, is live, or is not pruned.
    pub fn forget_generation(&self, generation: Generation) -> Result<(), JournalError> {
        let _states = self.states();
        let head = self.generation_head(generation)?;
        let oldest = self.generations()?.first() == Some(&generation);
        if !head.pruned || !oldest || generation == self.live()? {
            let state = format!("needed: generation {generation} is still kept");
            return Err(JournalError::WrongState { txn: head.plan.txn, state });
        }
        self.remove(&[
            key(GENERATION, generation.0),
            key(AFTER, generation.0),
            key(STEPS, head.plan.txn.0),
        ])?;
        self.queue()?.pass(false)
    }
}
