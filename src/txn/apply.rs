//! Carrying out a sealed plan, and taking it back.
//!
//! Steps run in order, each judged by what its slot and its place hold, so that a plan can be applied
//! again from its start (or its last barrier) after any crash.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use txfs_journal::{
    Fingerprint, Generation, Ident, Journal, Kind, Place, RelPath, Sealed, SlotId, Step,
};

use super::failpoint::failpoint;
use super::store::Store;
use crate::base::mutate::{self, Spot};
use crate::base::{self, Base, Stat, Whereabouts};
use crate::sys;

/// Why apply stopped.
#[derive(Debug)]
pub enum Stopped {
    /// Somebody outside changed the base where the plan acts.
    Outside {
        /// Where.
        path: RelPath,
        /// What was found.
        what: String,
    },
    /// The system refused.
    Io {
        /// Where.
        path: RelPath,
        /// Why.
        cause: io::Error,
    },
    /// The journal refused.
    Journal(txfs_journal::JournalError),
}

/// One run over a plan.
pub struct Apply<'a> {
    base: &'a Base,
    store: &'a Store,
    seal: &'a Sealed,
    slots: Arc<OwnedFd>,
    generation: Generation,
    /// The last parent used: neighbouring steps mostly share it.
    parent: Option<(RelPath, Arc<OwnedFd>)>,
    last_read: Option<(Generation, Arc<OwnedFd>)>,
    /// Where a slot's content goes in the end, for steps that an earlier run did.
    landing: HashMap<SlotId, &'a Place>,
}

const PROGRESS: &str = "apply-progress";

/// Applies a plan, from after its last barrier passed.
///
/// # Errors
/// At the first step that cannot be done; what was done before stays done.
pub fn apply(base: &Base, store: &Store, journal: &Journal, seal: &Sealed) -> Result<(), Stopped> {
    failpoint("apply.begin");
    let plan = seal.plan();
    let root = RelPath::root();
    let slots = store
        .make_history(plan.txn, plan.generation)
        .map_err(|cause| Stopped::Io { path: root.clone(), cause })?;
    failpoint("apply.history");
    let mut run = Apply {
        base,
        store,
        seal,
        slots: Arc::new(slots),
        generation: plan.generation,
        parent: None,
        last_read: None,
        landing: landings(&plan.steps),
    };
    let key = format!("{PROGRESS}-{}", plan.txn);
    let passed = match journal.meta(&key).map_err(Stopped::Journal)? {
        Some(bytes) => txfs_journal::codec::decode::<u64>(&bytes)
            .map_err(|e| Stopped::Io { path: root.clone(), cause: io::Error::other(e) })?,
        None => 0,
    };
    for (n, step) in plan.steps.iter().enumerate() {
        if (n as u64) < passed {
            continue;
        }
        if matches!(step, Step::Barrier) {
            store.sync().map_err(|cause| Stopped::Io { path: root.clone(), cause })?;
            let at = txfs_journal::codec::encode(&(n as u64 + 1));
            journal.set_meta(&key, &at).map_err(Stopped::Journal)?;
            failpoint("apply.barrier");
            continue;
        }
        failpoint("apply.step.before");
        run.step(step).map_err(|e| e.at(step))?;
        failpoint("apply.step.after");
    }
    store.sync().map_err(|cause| Stopped::Io { path: root, cause })?;
    failpoint("apply.synced");
    Ok(())
}

/// A step's failure before it is known where.
enum StepError {
    Io(io::Error),
    Outside(String),
}

impl From<io::Error> for StepError {
    fn from(e: io::Error) -> StepError {
        StepError::Io(e)
    }
}

impl StepError {
    fn at(self, step: &Step) -> Stopped {
        let path = step_path(step);
        match self {
            StepError::Io(cause) => Stopped::Io { path, cause },
            StepError::Outside(what) => Stopped::Outside { path, what },
        }
    }
}

/// The path at which a step acts.
#[must_use]
pub fn step_path(step: &Step) -> RelPath {
    match step {
        Step::Evacuate { from, .. } | Step::Unlink { from, .. } => from.path.clone(),
        Step::Place { to, .. } | Step::Link { to, .. } => to.path.clone(),
        Step::Exchange { at, .. } | Step::Rewrite { at, .. } | Step::SetMeta { at, .. } => {
            at.path.clone()
        }
        Step::Fetch { .. } | Step::Barrier => RelPath::root(),
    }
}

fn landings(steps: &[Step]) -> HashMap<SlotId, &Place> {
    let mut landing = HashMap::new();
    for step in steps {
        match step {
            Step::Place { slot, to, .. } | Step::Exchange { slot, at: to, .. } => {
                landing.insert(*slot, to);
            }
            Step::Fetch { .. }
            | Step::Evacuate { .. }
            | Step::Link { .. }
            | Step::Unlink { .. }
            | Step::Rewrite { .. }
            | Step::SetMeta { .. }
            | Step::Barrier => {}
        }
    }
    landing
}

impl Apply<'_> {
    /// Whether an earlier run brought what belongs into a slot to its place already.
    fn has_landed(&mut self, slot: SlotId, ident: &Ident) -> io::Result<bool> {
        let Some(place) = self.landing.get(&slot) else { return Ok(false) };
        let path = place.path.clone();
        match self.spot(&path) {
            Ok(spot) => spot.holds(ident),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn slot(&self, slot: SlotId) -> Spot {
        Spot { dir: Arc::clone(&self.slots), name: slot.to_string().into_bytes() }
    }

    fn spot(&mut self, path: &RelPath) -> io::Result<Spot> {
        let (parent, name) =
            path.split().ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        let dir = match &self.parent {
            Some((at, dir)) if *at == parent => Arc::clone(dir),
            _ => {
                let flags = OFlags::PATH | OFlags::DIRECTORY;
                let dir = Arc::new(base::open_beneath(self.base.root(), &parent, flags)?);
                self.parent = Some((parent, Arc::clone(&dir)));
                dir
            }
        };
        Ok(Spot { dir, name: name.as_bytes().to_vec() })
    }

    fn moved(&mut self, kind: Kind) {
        if kind == Kind::Dir {
            self.parent = None;
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), StepError> {
        match step {
            Step::Fetch { from, from_slot, slot, ident } => {
                self.fetch(*from, *from_slot, *slot, ident)
            }
            Step::Evacuate { from, slot, ident, .. } => self.evacuate(from, *slot, ident),
            Step::Place { slot, to, ident } => self.place(*slot, to, ident),
            Step::Exchange { slot, at, new, old } => self.exchange(*slot, at, new, old),
            Step::Link { existing, to, ident } => self.link(existing, to, ident),
            Step::Unlink { from, existing, ident } => self.unlink(from, existing, ident),
            Step::Rewrite { at, ident, content, .. } => self.rewrite(at, ident, *content),
            Step::SetMeta { at, ident, after, .. } => self.set_meta(at, ident, after),
            Step::Barrier => Ok(()),
        }
    }

    fn fetch(
        &mut self,
        from: Generation,
        from_slot: SlotId,
        slot: SlotId,
        ident: &Ident,
    ) -> Result<(), StepError> {
        let to = self.slot(slot);
        let dir = match &self.last_read {
            Some((g, dir)) if *g == from => Arc::clone(dir),
            _ => {
                let dir = Arc::new(self.store.history_of(from)?);
                self.last_read = Some((from, Arc::clone(&dir)));
                dir
            }
        };
        let source = Spot { dir, name: from_slot.to_string().into_bytes() };
        if source.holds(ident)? {
            self.base.moves(ident.ino, Whereabouts::Slot(self.generation, slot));
            return Ok(mutate::rename(self.seal, &source, &to, ident.kind)?);
        }
        self.is_done(slot, ident, "the history has lost what was there before")
    }

    /// A step that finds nothing to do was done by an earlier run, or somebody was in between.
    fn is_done(&mut self, slot: SlotId, ident: &Ident, otherwise: &str) -> Result<(), StepError> {
        if self.slot(slot).holds(ident)? || self.has_landed(slot, ident)? {
            return Ok(());
        }
        Err(StepError::Outside(otherwise.to_owned()))
    }

    fn evacuate(&mut self, from: &Place, slot: SlotId, ident: &Ident) -> Result<(), StepError> {
        let source = match self.spot(&from.path) {
            Ok(source) => source,
            // Its directory left after it, in an earlier run.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return self.is_done(slot, ident, "its directory is gone");
            }
            Err(e) => return Err(e.into()),
        };
        let before = match base::stat_at(source.dir.as_fd(), &source.name) {
            Ok(stat) if stat.ident == *ident => stat,
            Ok(stat) => {
                return self.is_done(
                    slot,
                    ident,
                    &format!("{} stands there", whose(Some(&stat.ident))),
                );
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return self.is_done(slot, ident, "nothing stands there");
            }
            Err(e) => return Err(e.into()),
        };
        let to = self.slot(slot);
        self.base.moves(ident.ino, Whereabouts::Slot(self.generation, slot));
        mutate::rename(self.seal, &source, &to, ident.kind)?;
        self.moved(ident.kind);
        let after = base::stat_at(to.dir.as_fd(), &to.name)?;
        if changed(&before, &after) {
            return Err(StepError::Outside("it changed while it was being moved".into()));
        }
        Ok(())
    }

    fn place(&mut self, slot: SlotId, to: &Place, ident: &Ident) -> Result<(), StepError> {
        let source = self.slot(slot);
        let target = self.spot(&to.path)?;
        if !source.holds(ident)? {
            return match target.ident()? {
                Some(there) if there == *ident => Ok(()),
                there => Err(StepError::Outside(format!(
                    "{} stands where the new entry must be",
                    whose(there.as_ref())
                ))),
            };
        }
        if let Some(there) = target.ident()? {
            return Err(StepError::Outside(format!("{} stands in the way", whose(Some(&there)))));
        }
        self.base.moves(ident.ino, Whereabouts::Base(to.path.clone()));
        mutate::rename(self.seal, &source, &target, ident.kind)?;
        self.moved(ident.kind);
        Ok(())
    }

    fn exchange(
        &mut self,
        slot: SlotId,
        at: &Place,
        new: &Ident,
        old: &Ident,
    ) -> Result<(), StepError> {
        let held = self.slot(slot);
        match held.ident()? {
            Some(there) if there == *old => return Ok(()),
            Some(there) if there == *new => {}
            Some(_) | None => return Err(StepError::Outside("the staged file is gone".into())),
        }
        let place = self.spot(&at.path)?;
        let before = match base::stat_at(place.dir.as_fd(), &place.name) {
            Ok(stat) if stat.ident == *old => stat,
            Ok(stat) => {
                return Err(StepError::Outside(format!(
                    "{} stands there",
                    whose(Some(&stat.ident))
                )));
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(StepError::Outside("nothing stands there".into()));
            }
            Err(e) => return Err(e.into()),
        };
        self.base.moves(old.ino, Whereabouts::Slot(self.generation, slot));
        self.base.moves(new.ino, Whereabouts::Base(at.path.clone()));
        mutate::exchange(self.seal, &held, &place, new.kind)?;
        self.moved(new.kind);
        self.moved(old.kind);
        let after = base::stat_at(held.dir.as_fd(), &held.name)?;
        if changed(&before, &after) {
            mutate::exchange(self.seal, &held, &place, new.kind)?;
            return Err(StepError::Outside("it changed while it was being replaced".into()));
        }
        Ok(())
    }

    fn link(&mut self, existing: &Place, to: &Place, ident: &Ident) -> Result<(), StepError> {
        let existing = self.spot(&existing.path)?;
        let target = self.spot(&to.path)?;
        match target.ident()? {
            Some(there) if there == *ident => Ok(()),
            Some(there) => {
                Err(StepError::Outside(format!("{} stands in the way", whose(Some(&there)))))
            }
            None if !existing.holds(ident)? => {
                Err(StepError::Outside("the file to link is gone".into()))
            }
            None => Ok(mutate::link(self.seal, &existing, &target)?),
        }
    }

    fn unlink(&mut self, from: &Place, existing: &Place, ident: &Ident) -> Result<(), StepError> {
        let spot = match self.spot(&from.path) {
            Ok(spot) => spot,
            // Its directory left after it, in an earlier run.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        match base::stat_at(spot.dir.as_fd(), &spot.name) {
            Ok(stat) if stat.ident == *ident && stat.nlink > 1 => {}
            Ok(stat) if stat.ident == *ident => {
                return Err(StepError::Outside("it has lost its other names".into()));
            }
            Ok(_) => return Err(StepError::Outside("another entry stands there".into())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e.into()),
        }
        self.base.moves(ident.ino, Whereabouts::Base(existing.path.clone()));
        Ok(mutate::unlink(self.seal, &spot)?)
    }

    /// Any name that an inode of the plan has right now.
    fn any_name(&mut self, ident: &Ident) -> io::Result<Option<Spot>> {
        let mut spots = Vec::new();
        for step in &self.seal.plan().steps {
            match step {
                Step::Evacuate { from, slot, ident: i, .. } if i == ident => {
                    spots.push(Ok(self.slot(*slot)));
                    spots.push(Err(from.path.clone()));
                }
                Step::Place { to: at, ident: i, .. }
                | Step::Link { to: at, ident: i, .. }
                | Step::Unlink { existing: at, ident: i, .. }
                | Step::SetMeta { at, ident: i, .. }
                | Step::Rewrite { at, ident: i, .. }
                    if i == ident =>
                {
                    spots.push(Err(at.path.clone()));
                }
                Step::Fetch { .. }
                | Step::Evacuate { .. }
                | Step::Place { .. }
                | Step::Exchange { .. }
                | Step::Link { .. }
                | Step::Unlink { .. }
                | Step::Rewrite { .. }
                | Step::SetMeta { .. }
                | Step::Barrier => {}
            }
        }
        for candidate in spots {
            let spot = match candidate {
                Ok(spot) => spot,
                Err(path) => match self.spot(&path) {
                    Ok(spot) => spot,
                    Err(_) => continue,
                },
            };
            if spot.holds(ident)? {
                return Ok(Some(spot));
            }
        }
        Ok(None)
    }

    fn rewrite(&mut self, at: &Place, ident: &Ident, content: SlotId) -> Result<(), StepError> {
        let spot = self.spot(&at.path)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&*self.slots, content.to_string(), flags, Mode::empty())
            .map_err(io::Error::from)?;
        Ok(mutate::rewrite(self.seal, &spot, ident, &file.into())?)
    }

    fn set_meta(
        &mut self,
        at: &Place,
        ident: &Ident,
        meta: &txfs_journal::Meta,
    ) -> Result<(), StepError> {
        if at.path.depth() == 0 {
            return Ok(mutate::set_root_meta(self.seal, self.base, meta)?);
        }
        let spot = self.spot(&at.path)?;
        match mutate::set_meta(self.seal, &spot, ident, meta) {
            Err(e) if e.raw_os_error() == Some(libc::ESTALE) => {
                Err(StepError::Outside("another entry stands there".into()))
            }
            other => Ok(other?),
        }
    }
}

/// Whether somebody wrote a file between two looks.
fn changed(before: &Stat, after: &Stat) -> bool {
    after.ident != before.ident
        || (before.ident.kind != Kind::Dir
            && (after.size, after.mtime) != (before.size, before.mtime))
}

fn whose(ident: Option<&Ident>) -> String {
    match ident {
        Some(i) => format!("another entry (inode {})", i.ino),
        None => "nothing".into(),
    }
}

/// Takes back what was done of a plan, newest step first.
///
/// # Errors
/// At the first step that cannot be taken back.
pub fn roll_back(base: &Base, store: &Store, seal: &Sealed) -> Result<(), Stopped> {
    let plan = seal.plan();
    let slots = store
        .history_of(plan.generation)
        .map_err(|cause| Stopped::Io { path: RelPath::root(), cause })?;
    let mut run = Apply {
        base,
        store,
        seal,
        slots: Arc::new(slots),
        generation: plan.generation,
        parent: None,
        last_read: None,
        landing: landings(&plan.steps),
    };
    for step in plan.steps.iter().rev() {
        run.take_back(step).map_err(|e| e.at(step))?;
    }
    store.sync().map_err(|cause| Stopped::Io { path: RelPath::root(), cause })
}

impl Apply<'_> {
    fn take_back(&mut self, step: &Step) -> Result<(), StepError> {
        match step {
            Step::Barrier => Ok(()),
            Step::Fetch { from, from_slot, slot, ident } => {
                let held = self.slot(*slot);
                if !held.holds(ident)? {
                    return Ok(());
                }
                let dir = Arc::new(self.store.history_of(*from)?);
                let home = Spot { dir, name: from_slot.to_string().into_bytes() };
                self.base.moves(ident.ino, Whereabouts::Slot(*from, *from_slot));
                Ok(mutate::rename(self.seal, &held, &home, ident.kind)?)
            }
            Step::Evacuate { from, slot, ident, .. } => {
                if !self.slot(*slot).holds(ident)? {
                    return Ok(());
                }
                self.place(*slot, from, ident)
            }
            Step::Place { slot, to, ident } => {
                if self.slot(*slot).holds(ident)? {
                    return Ok(());
                }
                self.evacuate(to, *slot, ident)
            }
            Step::Exchange { slot, at, new, old } => {
                if !self.slot(*slot).holds(old)? {
                    return Ok(());
                }
                self.exchange(*slot, at, old, new)
            }
            Step::Unlink { from, ident, .. } => {
                let target = self.spot(&from.path)?;
                if target.holds(ident)? {
                    return Ok(());
                }
                match self.any_name(ident)? {
                    Some(existing) => Ok(mutate::link(self.seal, &existing, &target)?),
                    None => Err(StepError::Outside("the file to link is gone".into())),
                }
            }
            Step::Link { to, ident, existing } => {
                let target = self.spot(&to.path)?;
                if existing.path == to.path || !target.holds(ident)? {
                    return Ok(());
                }
                Ok(mutate::unlink(self.seal, &target)?)
            }
            Step::Rewrite { at, ident, preimage, .. } => self.rewrite(at, ident, *preimage),
            Step::SetMeta { at, ident, before, .. } => match self.set_meta(at, ident, before) {
                // Steps not reached have nothing to take back.
                Err(StepError::Outside(_)) => Ok(()),
                Err(StepError::Io(e)) if e.kind() == io::ErrorKind::NotFound => Ok(()),
                other => other,
            },
        }
    }
}

/// The state of everything that a plan placed, wrote or changed, read after apply.
///
/// # Errors
/// If something cannot be read.
pub fn fingerprints(base: &Base, seal: &Sealed) -> io::Result<Vec<(Place, Fingerprint)>> {
    let mut out: Vec<(Place, Fingerprint)> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    let mut last: Option<(RelPath, Arc<OwnedFd>)> = None;
    for step in &seal.plan().steps {
        let (at, ident) = match step {
            Step::Place { to, ident, .. } | Step::Link { to, ident, .. } => (to, ident),
            Step::Exchange { at, new, .. } => (at, new),
            Step::Rewrite { at, ident, .. } | Step::SetMeta { at, ident, .. } => (at, ident),
            Step::Fetch { .. } | Step::Evacuate { .. } | Step::Unlink { .. } | Step::Barrier => {
                continue;
            }
        };
        if !seen.insert(at.path.clone()) {
            continue;
        }
        let (dir, name) = match at.path.split() {
            None => (Arc::new(base.root().try_clone_to_owned()?), Vec::new()),
            Some((parent, name)) => {
                let dir = match &last {
                    Some((path, dir)) if *path == parent => Arc::clone(dir),
                    _ => match base::open_beneath(
                        base.root(),
                        &parent,
                        OFlags::PATH | OFlags::DIRECTORY,
                    ) {
                        Ok(dir) => Arc::clone(&last.insert((parent, Arc::new(dir))).1),
                        // A later segment of an undo moved it on.
                        Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                        Err(e) => return Err(e),
                    },
                };
                (dir, name.as_bytes().to_vec())
            }
        };
        let stat = if name.is_empty() {
            base::stat_fd(dir.as_fd())
        } else {
            base::stat_at(dir.as_fd(), &name)
        };
        match stat {
            Ok(stat) if stat.ident == *ident => {
                let handle = sys::file_handle(dir.as_fd(), &name).unwrap_or_default();
                out.push((at.clone(), stat.fingerprint(handle)));
            }
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(out)
}
