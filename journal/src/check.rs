//! What `doctor` asks: does everything that is stored decode, and does it fit together.

use std::collections::BTreeSet;

use crate::error::JournalError;
use crate::frame::{
    AFTER, GENERATION, HEAD, META, PLAN, RECORDS, STEPS, corrupt, key, number, unframe,
};
use crate::record::TxnState;
use crate::store::Journal;

impl Journal {
    /// Decodes everything; answers what does not decode or does not fit the rest.
    ///
    /// # Errors
    /// Only if the store cannot be listed.
    pub fn check(&self) -> Result<Vec<JournalError>, JournalError> {
        self.queue()?.pass(false)?;
        let mut found = Vec::new();
        self.check_values(&mut found)?;
        match self.heads() {
            Ok(heads) => {
                for head in heads {
                    found.extend(self.records(head.id).err());
                    if head.state == TxnState::Sealed {
                        found.extend(self.plan(head.id).err());
                    }
                }
                found.extend(self.sealed_head().err());
            }
            Err(e) => found.push(e),
        }
        found.extend(self.next_txn().err());
        self.check_generations(&mut found)?;
        let mut said = BTreeSet::new();
        found.retain(|e| said.insert(e.to_string()));
        Ok(found)
    }

    /// Each value by itself, and lists that belong to nobody.
    fn check_values(&self, found: &mut Vec<JournalError>) -> Result<(), JournalError> {
        let (mut txns, mut lists) = (BTreeSet::new(), BTreeSet::new());
        for item in self.db.iter() {
            let (key, value) = item.map_err(|e| JournalError::sled("read", &e))?;
            let framed = unframe(&key, &value).map(|_| ());
            let numbered = match key.first() {
                Some(&META) => Ok(()),
                Some(&HEAD) => number(&key).map(|txn| _ = txns.insert(txn)),
                Some(&RECORDS) => number(&key).map(|txn| _ = lists.insert(txn)),
                Some(&(PLAN | STEPS | GENERATION | AFTER)) => number(&key).map(|_| ()),
                _ => Err(corrupt(&key, "no such kind of value")),
            };
            found.extend(framed.and(numbered).err());
        }
        for txn in lists.difference(&txns) {
            found.push(corrupt(&key(RECORDS, *txn), "no transaction has these records"));
        }
        Ok(())
    }

    /// Generations follow each other up to the live one; the oldest ones may have been forgotten.
    fn check_generations(&self, found: &mut Vec<JournalError>) -> Result<(), JournalError> {
        let generations = self.generations()?;
        for generation in &generations {
            found.extend(self.generation(*generation).err());
        }
        let live = self.live()?;
        if live.0 != 0 && generations.last() != Some(&live) {
            found.push(corrupt(&key(GENERATION, live.0), "the live generation is missing"));
        }
        for pair in generations.windows(2) {
            if let [one, two] = pair
                && *two != one.next()
            {
                found.push(corrupt(&key(GENERATION, one.next().0), "it is missing"));
            }
        }
        Ok(())
    }
}
