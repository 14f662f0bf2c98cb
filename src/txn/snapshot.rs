//! A generation as it was, or is: a view without a transaction, which only shows.

use std::sync::{Arc, PoisonError};

use txfs_journal::Generation;

use super::workspace::{Workspace, io_failed, journal_failed};
use crate::proto::{Code, Failure};
use crate::view::state::Parts;
use crate::view::{Layer, Staging, View};

impl Workspace {
    /// A view of a generation. It goes on showing that one whatever comes after, for as long as it is held; every
    /// change in it is refused.
    ///
    /// # Errors
    /// [`Code::Pruned`] if what it held, or what a later one displaced, was collected.
    pub(super) fn snapshot(&self, generation: Generation) -> Result<Arc<View>, Failure> {
        // What is being applied is a layer only for views that are known before.
        let _gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let live = self.live()?;
        let mut layers = Vec::new();
        let mut at = generation;
        while at < live {
            at = at.next();
            let record = self.journal.generation(at).map_err(|e| journal_failed(&e))?;
            if record.pruned {
                return Err(Failure::new(
                    Code::Pruned,
                    format!("generation {generation} cannot be shown: what generation {at} displaced was collected"),
                )
                .hint("txfs history shows what is left"));
            }
            self.remember_moves(&record.plan);
            layers.push(Arc::new(Layer::new(&record.plan)));
        }
        let staging = self.store.no_staging().and_then(Staging::open);
        let parts = Parts {
            base: Arc::clone(&self.base),
            history: Arc::clone(self.store.history()),
            staging: Arc::new(staging.map_err(|e| io_failed("open the store", &e))?),
            writer: self.journal.closed_writer().map_err(|e| journal_failed(&e))?,
            records: Vec::new(),
            generation,
            layers,
        };
        let view = View::open(parts).map_err(|e| io_failed("open the base", &e))?;
        let view = Arc::new(view);
        let mut snapshots = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        snapshots.retain(|held| held.strong_count() > 0);
        snapshots.push(Arc::downgrade(&view));
        Ok(view)
    }
}
