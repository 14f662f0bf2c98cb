//! Carrying out a sealed plan.
//!
//! Steps run in order, each judged by what its slot and its place hold, so that a plan can be applied
//! again from its start (or its last barrier) after any crash. What leaves the base is compared with
//! what the plan saw, before it leaves and after: however much time lies between the seal and a step,
//! nothing that somebody else wrote is carried off unseen. `rollback.rs` takes steps back.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use txfs_journal::{
    Generation, Holds, Ident, Journal, Kind, Place, RelPath, Sealed, Seen, SlotId, Step,
};

use super::failpoint::failpoint;
use super::marks::{Mark, Marks};
use super::store::Store;
use crate::base::mutate::{self, Spot};
use crate::base::{self, Base, Stat, Whereabouts};

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

/// How far apply came.
#[derive(Debug)]
pub struct Halt {
    /// Why it went no further.
    pub why: Stopped,
    /// Steps from here on were never begun, for certain. 0 if this run did not come as far as the first.
    pub reached: usize,
}

/// What changes by the plan itself: directories that gain or lose names, and inodes.
struct Own {
    dirs: HashSet<RelPath>,
    inodes: HashSet<u64>,
    /// What comes to which path.
    placed: HashSet<(RelPath, u64)>,
}

impl Own {
    fn puts(&self, path: &RelPath, ident: &Ident) -> bool {
        self.placed.contains(&(path.clone(), ident.ino))
    }

    fn of(steps: &[Step]) -> Own {
        let mut own = Own { dirs: HashSet::new(), inodes: HashSet::new(), placed: HashSet::new() };
        for step in steps {
            own.dirs.extend(step_path(step).split().map(|(parent, _)| parent));
            if let Step::Place { to: at, ident, .. }
            | Step::Link { to: at, ident, .. }
            | Step::Exchange { at, new: ident, .. } = step
            {
                own.placed.insert((at.path.clone(), ident.ino));
            }
            match step {
                Step::Evacuate { ident, .. }
                | Step::Place { ident, .. }
                | Step::Link { ident, .. }
                | Step::Unlink { ident, .. }
                | Step::Rewrite { ident, .. }
                | Step::SetMeta { ident, .. }
                | Step::Fetch { ident, .. } => {
                    own.inodes.insert(ident.ino);
                }
                Step::Exchange { new, old, .. } => own.inodes.extend([new.ino, old.ino]),
                Step::Barrier => {}
            }
        }
        own
    }
}

/// One run over a plan.
pub(super) struct Apply<'a> {
    pub(super) base: &'a Base,
    pub(super) store: &'a Store,
    pub(super) seal: &'a Sealed,
    pub(super) slots: Arc<OwnedFd>,
    pub(super) generation: Generation,
    pub(super) marks: Marks,
    own: OnceCell<Own>,
    /// The last parent used: neighbouring steps mostly share it.
    parent: Option<(RelPath, Arc<OwnedFd>)>,
    last_read: Option<(Generation, Arc<OwnedFd>)>,
    /// Where a slot's content goes in the end, for steps that an earlier run did.
    landing: HashMap<SlotId, (&'a Place, Ident)>,
    /// Bytes on disk of files that this run displaced.
    weights: HashMap<SlotId, u64>,
}

/// The end of the segment that a step is in: its barrier, or the end of the plan.
pub(super) fn segment_end(steps: &[Step], from: usize) -> usize {
    let rest = steps.get(from..).unwrap_or_default();
    rest.iter().position(|s| matches!(s, Step::Barrier)).map_or(steps.len(), |n| from + n)
}

/// Applies a plan, from after its last barrier passed. `fresh` says that no run before this one can
/// have begun it. `hide` is called once before the first step, when everything is in its slot. Answers the bytes on
/// disk of files that this run displaced, by slot.
///
/// # Errors
/// At the first step that cannot be done; what was done before stays done.
pub fn apply(
    base: &Base,
    store: &Store,
    journal: &Journal,
    seal: &Sealed,
    fresh: bool,
    hide: impl FnOnce(),
) -> Result<HashMap<SlotId, u64>, Halt> {
    failpoint("apply.begin");
    let steps = &seal.plan().steps;
    let passed = progress(journal, seal).map_err(|why| Halt { why, reached: 0 })?;
    // A run before may have come as far as the end of its segment.
    let reached = |n: usize| if fresh { n + 1 } else { segment_end(steps, n.max(passed)) };
    let mut run =
        Apply::new(base, store, seal).map_err(|e| Halt { why: io_at_root(e), reached: 0 })?;
    failpoint("apply.history");
    hide();
    for (n, step) in steps.iter().enumerate().skip(passed) {
        let halt = |why| Halt { why, reached: reached(n) };
        if matches!(step, Step::Barrier) {
            store.sync().map_err(|e| halt(io_at_root(e)))?;
            set_progress(journal, seal, n + 1).map_err(halt)?;
            failpoint("apply.barrier");
            continue;
        }
        failpoint("apply.step.before");
        run.step(step).map_err(|e| halt(e.at(step)))?;
        failpoint("apply.step.after");
    }
    store.sync().map_err(|e| Halt { why: io_at_root(e), reached: steps.len() })?;
    failpoint("apply.synced");
    Ok(run.weights)
}

pub(super) fn io_at_root(cause: io::Error) -> Stopped {
    Stopped::Io { path: RelPath::root(), cause }
}

fn progress_key(seal: &Sealed) -> String {
    format!("apply-progress-{}", seal.plan().txn)
}

/// How many steps are behind a barrier.
pub(super) fn progress(journal: &Journal, seal: &Sealed) -> Result<usize, Stopped> {
    match journal.meta(&progress_key(seal)).map_err(Stopped::Journal)? {
        Some(bytes) => {
            let passed = txfs_journal::codec::decode::<u64>(&bytes)
                .map_err(|e| io_at_root(io::Error::other(e)))?;
            usize::try_from(passed).map_err(|e| io_at_root(io::Error::other(e)))
        }
        None => Ok(0),
    }
}

/// Sets it, durably.
pub(super) fn set_progress(journal: &Journal, seal: &Sealed, passed: usize) -> Result<(), Stopped> {
    let bytes = txfs_journal::codec::encode(&(passed as u64));
    journal.set_meta(&progress_key(seal), &bytes).map_err(Stopped::Journal)
}

/// A step's failure before it is known where.
pub(super) enum StepError {
    Io(io::Error),
    Outside(String),
    /// The same at a place below the step's.
    Below(RelPath, String),
}

impl From<io::Error> for StepError {
    fn from(e: io::Error) -> StepError {
        StepError::Io(e)
    }
}

impl StepError {
    pub(super) fn at(self, step: &Step) -> Stopped {
        let path = step_path(step);
        match self {
            StepError::Io(cause) => Stopped::Io { path, cause },
            StepError::Outside(what) => Stopped::Outside { path, what },
            StepError::Below(path, what) => Stopped::Outside { path, what },
        }
    }
}

pub(super) fn outside<T>(what: impl Into<String>) -> Result<T, StepError> {
    Err(StepError::Outside(what.into()))
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

/// Where what slots hold goes in the end, and which inodes those are.
pub(super) fn landings(steps: &[Step]) -> HashMap<SlotId, (&Place, Ident)> {
    let landing = |step| match step {
        &Step::Place { slot, ref to, ident } => Some((slot, (to, ident))),
        &Step::Exchange { slot, ref at, new, .. } => Some((slot, (at, new))),
        Step::Fetch { .. }
        | Step::Evacuate { .. }
        | Step::Link { .. }
        | Step::Unlink { .. }
        | Step::Rewrite { .. }
        | Step::SetMeta { .. }
        | Step::Barrier => None,
    };
    steps.iter().filter_map(landing).collect()
}

/// Something that leaves its place for a slot.
pub(super) struct Leaving<'a> {
    pub(super) from: &'a Place,
    pub(super) slot: SlotId,
    pub(super) ident: &'a Ident,
    /// What a file must still be; `None` when what the plan itself placed is taken back.
    pub(super) was: Option<Seen>,
    pub(super) holds: Holds,
}

const WRITTEN: &str = "it was written outside after the commit was planned";

/// Whether a file is not what the plan saw.
fn was_written(was: Option<&Seen>, now: &Stat) -> bool {
    now.ident.kind != Kind::Dir
        && was.is_some_and(|was| (was.size, was.mtime) != (now.size, now.mtime))
}

impl<'a> Apply<'a> {
    /// A run over a sealed plan, whose staging directory becomes the history of its generation.
    pub(super) fn new(base: &'a Base, store: &'a Store, seal: &'a Sealed) -> io::Result<Self> {
        let plan = seal.plan();
        let slots = Arc::new(store.make_history(plan.txn, plan.generation)?);
        Ok(Apply {
            base,
            store,
            seal,
            marks: Marks::new(Arc::clone(&slots)),
            slots,
            generation: plan.generation,
            own: OnceCell::new(),
            parent: None,
            last_read: None,
            landing: landings(&plan.steps),
            weights: HashMap::new(),
        })
    }

    fn own(&self) -> &Own {
        self.own.get_or_init(|| Own::of(&self.seal.plan().steps))
    }

    fn is_there(&mut self, at: &Place, ident: &Ident) -> io::Result<bool> {
        Ok(self.spot_if_there(&at.path)?.map(|s| s.holds(ident)).transpose()?.unwrap_or(false))
    }

    /// Whether an earlier run brought what belongs into a slot to its place already.
    fn has_landed(&mut self, slot: SlotId, ident: &Ident) -> io::Result<bool> {
        let Some((place, _)) = self.landing.get(&slot) else { return Ok(false) };
        let place = (*place).clone();
        self.is_there(&place, ident)
    }

    pub(super) fn slot(&self, slot: SlotId) -> Spot {
        Spot { dir: Arc::clone(&self.slots), name: slot.to_string().into_bytes() }
    }

    pub(super) fn spot(&mut self, path: &RelPath) -> io::Result<Spot> {
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

    /// The spot of a path; `None` if its directory is not there.
    pub(super) fn spot_if_there(&mut self, path: &RelPath) -> io::Result<Option<Spot>> {
        match self.spot(path) {
            Ok(spot) => Ok(Some(spot)),
            Err(e) if base::is_absent(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The directory of an older generation's slots.
    pub(super) fn older(&mut self, generation: Generation) -> io::Result<Arc<OwnedFd>> {
        match &self.last_read {
            Some((g, dir)) if *g == generation => Ok(Arc::clone(dir)),
            _ => {
                let dir = Arc::new(self.store.history_of(generation)?);
                self.last_read = Some((generation, Arc::clone(&dir)));
                Ok(dir)
            }
        }
    }

    fn moved(&mut self, kind: Kind) {
        if kind == Kind::Dir {
            self.parent = None;
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), StepError> {
        let _moving = self.base.moving();
        match step {
            Step::Fetch { from, from_slot, slot, ident } => {
                self.fetch((*from, *from_slot), *slot, ident)
            }
            Step::Evacuate { from, slot, ident, mtime, size, holds } => {
                let was = size.map(|size| Seen { size, mtime: *mtime });
                self.evacuate(&Leaving { from, slot: *slot, ident, was, holds: *holds })
            }
            Step::Place { slot, to, ident } => self.place(*slot, to, ident),
            Step::Exchange { slot, at, new, old, was } => {
                self.exchange(*slot, at, new, old, was.as_ref())
            }
            Step::Link { existing, to, ident } => self.link(existing, to, ident),
            Step::Unlink { from, existing, ident } => self.unlink(from, existing, ident),
            Step::Rewrite { at, ident, content, was, .. } => {
                self.rewrite(at, ident, *content, was.as_ref())
            }
            Step::SetMeta { at, ident, after, .. } => {
                // Somebody may have taken the directory away since.
                if step.is_time_of_dir() && at.path.depth() > 0 && !self.is_there(at, ident)? {
                    return Ok(());
                }
                self.set_meta(at, ident, after)
            }
            Step::Barrier => Ok(()),
        }
    }

    fn fetch(
        &mut self,
        (from, from_slot): (Generation, SlotId),
        slot: SlotId,
        ident: &Ident,
    ) -> Result<(), StepError> {
        let to = self.slot(slot);
        let source = Spot { dir: self.older(from)?, name: from_slot.to_string().into_bytes() };
        if source.holds(ident)? {
            self.base.moves(ident.ino, Whereabouts::Slot(self.generation, slot));
            self.base.fetches((from, from_slot), (self.generation, slot));
            return Ok(mutate::rename(self.seal, &source, &to, ident.kind)?);
        }
        if to.holds(ident)? || self.has_landed(slot, ident)? {
            return Ok(());
        }
        outside("the history has lost what was there before")
    }

    pub(super) fn evacuate(&mut self, leaving: &Leaving<'_>) -> Result<(), StepError> {
        // Its directory may have left after it, in an earlier run.
        let Some(source) = self.spot_if_there(&leaving.from.path)? else {
            return self.has_left(leaving, "its directory is gone");
        };
        match base::stat_at(source.dir.as_fd(), &source.name) {
            Ok(now) if now.ident == *leaving.ident => {
                if was_written(leaving.was.as_ref(), &now) {
                    return outside(WRITTEN);
                }
            }
            Ok(now) => {
                return self
                    .has_left(leaving, &format!("{} stands there", whose(Some(&now.ident))));
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return self.has_left(leaving, "nothing stands there");
            }
            Err(e) => return Err(e.into()),
        }
        let to = self.slot(leaving.slot);
        self.base.moves(leaving.ident.ino, Whereabouts::Slot(self.generation, leaving.slot));
        if leaving.ident.kind == Kind::Dir {
            self.base.dir_leaves(&leaving.from.path, (self.generation, leaving.slot));
        }
        mutate::rename(self.seal, &source, &to, leaving.ident.kind)?;
        self.moved(leaving.ident.kind);
        self.check_left(leaving)
    }

    /// A step that finds nothing to do was done by an earlier run, or somebody was in between.
    fn has_left(&mut self, leaving: &Leaving<'_>, otherwise: &str) -> Result<(), StepError> {
        if self.slot(leaving.slot).holds(leaving.ident)? {
            return self.check_left(leaving);
        }
        if self.has_landed(leaving.slot, leaving.ident)? {
            return Ok(());
        }
        outside(otherwise)
    }

    /// Compares what a slot holds now with what the plan saw: somebody may have written it between the
    /// last look and the rename.
    fn check_left(&mut self, leaving: &Leaving<'_>) -> Result<(), StepError> {
        let held = self.slot(leaving.slot);
        let now = base::stat_at(held.dir.as_fd(), &held.name)?;
        if was_written(leaving.was.as_ref(), &now) {
            return outside(WRITTEN);
        }
        if now.ident.kind != Kind::Dir {
            self.weights.insert(leaving.slot, now.blocks * 512);
            return Ok(());
        }
        match leaving.holds {
            Holds::Anything => Ok(()),
            Holds::Nothing => {
                let fd = held.open(leaving.ident)?;
                match base::list(fd.as_fd())?.first() {
                    None => Ok(()),
                    Some((name, ..)) => Err(below(
                        &leaving.from.path,
                        name,
                        "it was created outside in a directory that is being removed",
                    )),
                }
            }
            Holds::Same => {
                let fd = held.open(leaving.ident)?;
                self.check_same(fd.as_fd(), &leaving.from.path)
            }
        }
    }

    /// Nothing below a directory changed since the plan was made. The time of status change is what
    /// nobody can set, and our own renames move only that of the topmost directory.
    fn check_same(
        &self,
        dir: std::os::fd::BorrowedFd<'_>,
        path: &RelPath,
    ) -> Result<(), StepError> {
        let planned = self.seal.plan().time;
        let own = self.own();
        for (name, _, kind) in base::list(dir)? {
            let now = base::stat_at(dir, &name)?;
            if now.ctime >= planned && !own.inodes.contains(&now.ident.ino) {
                return Err(below(path, &name, WRITTEN));
            }
            if kind == Kind::Dir {
                let child = txfs_journal::Name::new(&name).map_err(io::Error::other)?;
                let fd = base::open_child(dir, &name)?;
                self.check_same(fd.as_fd(), &path.join(&child))?;
            }
        }
        // A name that came or went leaves nothing but the directory's own time.
        let now = base::stat_fd(dir)?;
        if now.mtime >= planned && !own.dirs.contains(path) {
            Err(StepError::Below(path.clone(), WRITTEN.into()))
        } else {
            Ok(())
        }
    }

    pub(super) fn place(
        &mut self,
        slot: SlotId,
        to: &Place,
        ident: &Ident,
    ) -> Result<(), StepError> {
        let source = self.slot(slot);
        let Some(target) = self.spot_if_there(&to.path)? else {
            // The slot is the store's: only this plan's own rename can have emptied it.
            if source.ident()?.is_none() {
                return Ok(());
            }
            return outside("its directory is gone");
        };
        self.base.moves(ident.ino, Whereabouts::Base(to.path.clone()));
        if ident.kind == Kind::Dir {
            self.base.dir_comes((self.generation, slot), &to.path);
        }
        let failed = match mutate::rename(self.seal, &source, &target, ident.kind) {
            Ok(()) => {
                self.moved(ident.kind);
                return Ok(());
            }
            Err(e) => e,
        };
        if source.ident()?.is_none() {
            if !target.holds(ident)? {
                log::warn!("somebody has changed what was placed at \"{:?}\" since", to.path);
            }
            return Ok(());
        }
        match target.ident()? {
            Some(there) => outside(format!("{} stands in the way", whose(Some(&there)))),
            None => Err(failed.into()),
        }
    }

    pub(super) fn exchange(
        &mut self,
        slot: SlotId,
        at: &Place,
        new: &Ident,
        old: &Ident,
        was: Option<&Seen>,
    ) -> Result<(), StepError> {
        let held = self.slot(slot);
        match held.ident()? {
            Some(there) if there == *old => return self.check_displaced(slot, was),
            Some(there) if there == *new => {}
            Some(_) | None => return outside("the staged file is gone"),
        }
        let Some(place) = self.spot_if_there(&at.path)? else {
            return outside("its directory is gone");
        };
        match base::stat_at(place.dir.as_fd(), &place.name) {
            Ok(now) if now.ident == *old => {
                if was_written(was, &now) {
                    return outside(WRITTEN);
                }
            }
            Ok(now) => return outside(format!("{} stands there", whose(Some(&now.ident)))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return outside("nothing stands there");
            }
            Err(e) => return Err(e.into()),
        }
        self.base.moves(old.ino, Whereabouts::Slot(self.generation, slot));
        if old.kind == Kind::Dir {
            self.base.dir_leaves(&at.path, (self.generation, slot));
        }
        self.base.moves(new.ino, Whereabouts::Base(at.path.clone()));
        mutate::exchange(self.seal, &held, &place, new.kind)?;
        self.moved(new.kind);
        self.moved(old.kind);
        let checked = self.check_displaced(slot, was);
        if checked.is_err() {
            mutate::exchange(self.seal, &held, &place, new.kind)?;
        }
        checked
    }

    fn check_displaced(&mut self, slot: SlotId, was: Option<&Seen>) -> Result<(), StepError> {
        let held = self.slot(slot);
        let now = base::stat_at(held.dir.as_fd(), &held.name)?;
        if was_written(was, &now) {
            return outside(WRITTEN);
        }
        self.weights.insert(slot, now.blocks * 512);
        Ok(())
    }

    fn link(&mut self, existing: &Place, to: &Place, ident: &Ident) -> Result<(), StepError> {
        let existing = self.spot(&existing.path)?;
        let target = self.spot(&to.path)?;
        match target.ident()? {
            Some(there) if there == *ident => Ok(()),
            Some(there) => outside(format!("{} stands in the way", whose(Some(&there)))),
            None if !existing.holds(ident)? => outside("the file to link is gone"),
            None => Ok(mutate::link(self.seal, &existing, &target)?),
        }
    }

    fn unlink(&mut self, from: &Place, existing: &Place, ident: &Ident) -> Result<(), StepError> {
        // Its directory may have left after it, in an earlier run.
        let Some(spot) = self.spot_if_there(&from.path)? else { return Ok(()) };
        match base::stat_at(spot.dir.as_fd(), &spot.name) {
            Ok(stat) if stat.ident == *ident && stat.nlink > 1 => {}
            Ok(stat) if stat.ident == *ident => return outside("it has lost its other names"),
            // An earlier run went on to what takes its place.
            Ok(stat) if self.own().puts(&from.path, &stat.ident) => return Ok(()),
            Ok(_) => return outside("another entry stands there"),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e.into()),
        }
        self.base.moves(ident.ino, Whereabouts::Base(existing.path.clone()));
        Ok(mutate::unlink(self.seal, &spot)?)
    }

    fn rewrite(
        &mut self,
        at: &Place,
        ident: &Ident,
        content: SlotId,
        was: Option<&Seen>,
    ) -> Result<(), StepError> {
        match self.marks.get(content)? {
            // Whatever it holds by now, an earlier run has written the plan's content.
            Some(Mark::Done(_)) => return Ok(()),
            Some(Mark::Begun) => {}
            None => {
                let spot = self.spot(&at.path)?;
                let now = base::stat_fd(spot.open(ident).map_err(stale)?.as_fd())?;
                if was_written(was, &now) {
                    return outside(WRITTEN);
                }
                // From here on its bytes are half ours, and only the preimage is whole.
                self.marks.begin(content)?;
            }
        }
        failpoint("apply.rewrite.begun");
        let now = self.write_over(at, ident, content)?;
        failpoint("apply.rewrite.written");
        Ok(self.marks.finish(content, &Seen { size: now.size, mtime: now.mtime })?)
    }

    /// Gives an inode the content of a slot; answers what it is then.
    pub(super) fn write_over(
        &mut self,
        at: &Place,
        ident: &Ident,
        content: SlotId,
    ) -> Result<Stat, StepError> {
        let spot = self.spot(&at.path)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&*self.slots, content.to_string(), flags, Mode::empty())
            .map_err(io::Error::from)?;
        mutate::rewrite(self.seal, &spot, ident, &file.into()).map_err(stale)?;
        Ok(base::stat_at(spot.dir.as_fd(), &spot.name)?)
    }

    pub(super) fn set_meta(
        &mut self,
        at: &Place,
        ident: &Ident,
        meta: &txfs_journal::Meta,
    ) -> Result<(), StepError> {
        if at.path.depth() == 0 {
            return Ok(mutate::set_root_meta(self.seal, self.base, meta)?);
        }
        let spot = self.spot(&at.path)?;
        mutate::set_meta(self.seal, &spot, ident, meta).map_err(stale)
    }
}

/// `ESTALE` is how a spot says that it holds another inode.
fn stale(e: io::Error) -> StepError {
    if e.raw_os_error() == Some(libc::ESTALE) {
        StepError::Outside("another entry stands there".into())
    } else {
        StepError::Io(e)
    }
}

fn below(dir: &RelPath, name: &[u8], what: &str) -> StepError {
    match txfs_journal::Name::new(name) {
        Ok(name) => StepError::Below(dir.join(&name), what.to_owned()),
        Err(e) => StepError::Io(io::Error::other(e)),
    }
}

pub(super) fn whose(ident: Option<&Ident>) -> String {
    match ident {
        Some(i) => format!("another entry (inode {})", i.ino),
        None => "nothing".into(),
    }
}
