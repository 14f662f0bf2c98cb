//! The one way in which a generation comes to be: seal, apply, record, publish.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, Weak};

use txfs_journal::{Fingerprint, Generation, GenerationRecord, Plan, Sealed, Step};

use super::apply::{self, Halt, Stopped};
use super::failpoint::failpoint;
use super::workspace::{Workspace, io_failed, journal_failed};
use super::{prints, rollback};
use crate::proto::{Code, Conflict, Failure};
use crate::view::{Layer, View};

/// The setting that holds what was restamped.
const RESTAMPED: &str = "restamped";

impl Workspace {
    /// Makes the next generation of a plan. The caller holds the gate and has validated.
    pub(super) fn publish(
        &self,
        plan: Plan,
        entries: u64,
        point: &str,
    ) -> Result<GenerationRecord, Failure> {
        self.store.sync().map_err(|e| io_failed("make the staged content durable", &e))?;
        failpoint("commit.synced");
        let sealed = self.journal.seal(plan).map_err(|e| journal_failed(&e))?;
        failpoint(point);
        self.carry_out(sealed, entries, true)
    }

    /// Carries out what was decided. `fresh` says that nobody can have begun it before.
    pub(super) fn carry_out(
        &self,
        sealed: Sealed,
        entries: u64,
        fresh: bool,
    ) -> Result<GenerationRecord, Failure> {
        let hide = || {
            let layer = Arc::new(Layer::pending(sealed.plan(), &self.base));
            for view in self.views() {
                view.push_layer(Arc::clone(&layer));
            }
        };
        let applied = apply::apply(&self.base, &self.store, &self.journal, &sealed, fresh, hide);
        let weights = match applied {
            Ok(weights) => weights,
            Err(halt) => return Err(self.stopped(sealed, &halt, fresh)),
        };
        let after = prints::fingerprints(&self.base, &sealed)
            .map_err(|e| self.fenced(io_failed("read what was committed", &e)))?;
        failpoint("apply.recorded");
        let plan = sealed.plan().clone();
        let entries = if entries == 0 { count_entries(&plan.steps) } else { entries };
        let mut record = GenerationRecord { plan, after, history_bytes: 0, entries, pruned: false };
        record.history_bytes = self.store.slot_bytes(&record.plan, &weights);
        self.journal.publish(sealed, &record).map_err(|e| self.fenced(journal_failed(&e)))?;
        failpoint("commit.published");
        let mut fetched_from: Vec<Generation> = Vec::new();
        for step in &record.plan.steps {
            if let Step::Fetch { from, .. } = step
                && !fetched_from.contains(from)
            {
                fetched_from.push(*from);
            }
        }
        for generation in fetched_from {
            self.refresh_history_bytes(generation);
        }
        Ok(record)
    }

    /// All views that exist.
    pub(super) fn views(&self) -> Vec<Arc<View>> {
        let mut views: Vec<_> = self.lock().values().filter_map(|txn| txn.view.clone()).collect();
        let snapshots = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        views.extend(snapshots.iter().filter_map(Weak::upgrade));
        views
    }

    fn refresh_history_bytes(&self, generation: Generation) {
        let bytes = self.store.bytes_of_files(&format!("history/{generation}"));
        if let Err(e) = self.journal.set_history_bytes(generation, bytes) {
            log::warn!("generation {generation}: {e}");
        }
    }

    /// A commit is decided and cannot be ended here: nothing more is done in this process, and the next opening
    /// goes on from the seal.
    pub(super) fn fenced(&self, why: Failure) -> Failure {
        let failure = Failure::new(
            why.code,
            format!(
                "{}; the commit is decided and is finished when the workspace is opened again",
                why.message
            ),
        )
        .hint("txfs __stop --force, then txfs history");
        log::error!("{failure}");
        for txn in self.lock().values() {
            if let Some(view) = &txn.view {
                view.poison();
            }
        }
        self.fence.get_or_init(|| failure).clone()
    }

    /// Apply could not go on: takes back what was done, or blocks the workspace.
    fn stopped(&self, sealed: Sealed, halt: &Halt, fresh: bool) -> Failure {
        let (path, reason) = match &halt.why {
            Stopped::Outside { path, what } => (path.clone(), what.clone()),
            Stopped::Io { path, cause } => (path.clone(), cause.to_string()),
            Stopped::Journal(e) => return self.fenced(journal_failed(e)),
        };
        let at = path.as_bytes().escape_ascii().to_string();
        let generation = sealed.plan().generation;
        log::error!("generation {generation} stopped at \"{at}\": {reason}");
        if halt.reached == 0 && !fresh {
            // An earlier run may have done anything, and nothing of it can be looked at now.
            return self
                .fenced(Failure::new(Code::Io, format!("cannot go on at \"{at}\": {reason}")));
        }
        let back = self.take_back(&sealed, halt);
        match back {
            Ok(()) => {
                if let Err(e) = self.journal.unseal(sealed) {
                    return self.fenced(journal_failed(&e));
                }
                let (code, what) = match &halt.why {
                    Stopped::Outside { .. } => (
                        Code::Drift,
                        format!("the base changed at \"{at}\" while it was being committed"),
                    ),
                    Stopped::Io { .. } | Stopped::Journal(_) => {
                        (Code::Io, format!("the commit failed at \"{at}\""))
                    }
                };
                Failure::new(code, format!("{what}: {reason}; everything was taken back"))
                    .hint(what_next(&halt.why))
                    .conflicts(vec![Conflict { path: (&path).into(), reason, generation: None }])
            }
            Err(e) => self.block(generation, &at, &reason, &e),
        }
    }

    /// Takes back what was done, and remembers the times of status that this moved.
    fn take_back(&self, sealed: &Sealed, halt: &Halt) -> Result<(), String> {
        let plan = sealed.plan();
        if halt.reached > 0 {
            rollback::roll_back(&self.base, &self.store, &self.journal, sealed, halt)
                .map_err(|e| in_words(&e))?;
            let mut prints = self.restamped().map_err(|e| e.message)?;
            let new =
                rollback::restamped(&self.base, sealed, halt.reached).map_err(|e| e.to_string())?;
            prints.extend(new.into_iter().map(|p| (p.ident.ino, p)));
            let prints: Vec<Fingerprint> = prints.into_values().collect();
            let bytes = txfs_journal::codec::encode(&prints);
            self.journal.set_meta(RESTAMPED, &bytes).map_err(|e| e.to_string())?;
            failpoint("rollback.restamped");
        }
        for view in self.views() {
            view.drop_layer(plan.generation);
        }
        self.store.unmake_history(plan.txn, plan.generation).map_err(|e| e.to_string())?;
        failpoint("rollback.staged");
        Ok(())
    }

    /// The state of objects whose time of status is our own doing: a commit that was taken back moved
    /// them to and fro. By inode.
    pub(super) fn restamped(&self) -> Result<HashMap<u64, Fingerprint>, Failure> {
        match self.journal.meta(RESTAMPED).map_err(|e| journal_failed(&e))? {
            None => Ok(HashMap::new()),
            Some(bytes) => txfs_journal::codec::decode::<Vec<Fingerprint>>(&bytes)
                .map(|prints| prints.into_iter().map(|p| (p.ident.ino, p)).collect())
                .map_err(|e| {
                    Failure::new(Code::Corrupt, format!("the setting {RESTAMPED}: {e}"))
                        .hint("txfs doctor")
                }),
        }
    }

    fn block(&self, generation: Generation, at: &str, reason: &str, blocked: &str) -> Failure {
        let why = format!(
            "generation {generation} could neither be finished nor taken back at \"{at}\" ({reason}; {blocked}); \
             what was there before is in {}/history/{generation}",
            self.store.path().display()
        );
        if let Err(e) = self.journal.set_poison(Some(&why)) {
            log::error!("{e}");
        }
        for txn in self.lock().values() {
            if let Some(view) = &txn.view {
                view.poison();
            }
        }
        Failure::new(Code::Blocked, why)
            .hint("put the base right at that path, then: txfs doctor --fix")
    }
}

fn what_next(why: &Stopped) -> &'static str {
    match why {
        Stopped::Io { cause, .. } if cause.raw_os_error() == Some(libc::EXDEV) => {
            "an overlay does not move directories of its lower layer: mount it with redirect_dir=on, or keep the workspace on a volume of its own"
        }
        Stopped::Io { .. } | Stopped::Outside { .. } | Stopped::Journal(_) => {
            "txfs status, then txfs commit again"
        }
    }
}

fn in_words(stopped: &Stopped) -> String {
    match stopped {
        Stopped::Outside { path, what } => {
            format!("\"{}\": {what}", path.as_bytes().escape_ascii())
        }
        Stopped::Io { path, cause } => format!("\"{}\": {cause}", path.as_bytes().escape_ascii()),
        Stopped::Journal(e) => e.to_string(),
    }
}

/// Entries that a plan changes, as a person counts them.
fn count_entries(steps: &[Step]) -> u64 {
    let counts = |s: &&Step| match s {
        Step::Evacuate { .. }
        | Step::Place { .. }
        | Step::Exchange { .. }
        | Step::Link { .. }
        | Step::Unlink { .. }
        | Step::Rewrite { .. } => true,
        Step::Fetch { .. } | Step::SetMeta { .. } | Step::Barrier => false,
    };
    steps.iter().filter(counts).count() as u64
}
