//! The plan that takes generations back.
//!
//! Of one generation it is the list of its inverses; of several, those lists one after the other,
//! newest first, with a barrier between.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use txfs_journal::{
    Fingerprint, Generation, GenerationHead, GenerationRecord, Holds, Ident, Kind, Meta, Name,
    Place, RelPath, Seen, SlotId, Step, Timestamp,
};

use super::planner::order;
use super::store::Store;
use super::validate::drifted;
use crate::base::mutate::spot;
use crate::base::{self, Base};
use crate::proto::{Code, Conflict, Failure};
use crate::view::Staging;
use crate::view::staging::copy_content;

/// The inverse steps of one generation, in the order of their phases.
///
/// # Errors
/// If the copy that a rewrite needs cannot be made.
pub fn inverse(
    base: &Base,
    store: &Store,
    staging: &Staging,
    record: &GenerationRecord,
    held: &mut Held,
    known: &HashMap<u64, Fingerprint>,
    time: Timestamp,
) -> Result<Vec<Step>, Failure> {
    let steps = &record.plan.steps;
    // What a barrier separates is taken back separately, last first.
    let mut out = Vec::new();
    // What the last of them left is on record; between them nobody looked.
    let after =
        record.after.iter().map(|(_, p)| (p.ident.ino, Seen { size: p.size, mtime: p.mtime }));
    let mut after: HashMap<u64, Seen> = after.collect();
    let mut end = steps.len();
    for segment in steps.split(|s| matches!(s, Step::Barrier)).rev() {
        if !out.is_empty() {
            out.push(Step::Barrier);
        }
        let mut inverter = Inverter::new(base, store, staging, record.plan.generation, segment);
        end -= segment.len();
        inverter.fetched.extend(left_by(&steps[..end]));
        end = end.saturating_sub(1);
        inverter.after = std::mem::take(&mut after);
        inverter.time = time;
        out.extend(inverter.run(held, known)?);
    }
    Ok(out)
}

/// Slots that steps fill with what was in the base.
fn left_by(steps: &[Step]) -> impl Iterator<Item = SlotId> {
    steps.iter().filter_map(|step| match step {
        Step::Evacuate { slot, .. } | Step::Exchange { slot, .. } => Some(*slot),
        Step::Fetch { .. }
        | Step::Place { .. }
        | Step::Link { .. }
        | Step::Unlink { .. }
        | Step::Rewrite { .. }
        | Step::SetMeta { .. }
        | Step::Barrier => None,
    })
}

/// What a restored directory must hold can be told of the first segment only: those before it in time change
/// what is in it.
pub fn expect_less(inverse: &mut [Step], is_first: bool) {
    let mut may_tell = is_first;
    for step in inverse {
        match step {
            Step::Barrier => may_tell = false,
            Step::Evacuate { holds, .. } if *holds == Holds::Same && !may_tell => {
                *holds = Holds::Anything;
            }
            Step::Evacuate { .. }
            | Step::Fetch { .. }
            | Step::Place { .. }
            | Step::Exchange { .. }
            | Step::Link { .. }
            | Step::Unlink { .. }
            | Step::Rewrite { .. }
            | Step::SetMeta { .. } => {}
        }
    }
}

/// Which slots hold an inode, one for each name that it had: those of older generations, and those
/// of the new one once earlier segments of the same undo have run.
#[derive(Debug, Default)]
pub struct Held {
    older: HashMap<u64, Vec<(Generation, SlotId)>>,
    new: HashMap<u64, Vec<SlotId>>,
    /// Mode, owner and time that earlier segments of the same undo set.
    metas: HashMap<u64, Meta>,
}

impl Held {
    /// Learns what a generation left where; to be told in their order.
    pub fn remember(&mut self, generation: Generation, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Fetch { from, from_slot, slot, ident } => {
                    self.take_older(ident, (*from, *from_slot));
                    self.older.entry(ident.ino).or_default().push((generation, *slot));
                }
                Step::Evacuate { slot, ident, .. } => {
                    self.older.entry(ident.ino).or_default().push((generation, *slot));
                }
                Step::Place { slot, ident, .. } => self.take_older(ident, (generation, *slot)),
                Step::Exchange { slot, new, old, .. } => {
                    self.take_older(new, (generation, *slot));
                    self.older.entry(old.ino).or_default().push((generation, *slot));
                }
                Step::Link { .. }
                | Step::Unlink { .. }
                | Step::Rewrite { .. }
                | Step::SetMeta { .. }
                | Step::Barrier => {}
            }
        }
    }

    fn take_older(&mut self, ident: &Ident, slot: (Generation, SlotId)) {
        if let Some(slots) = self.older.get_mut(&ident.ino) {
            slots.retain(|s| *s != slot);
        }
    }

    /// The slot of an older generation that has a name of an inode: that of its own generation if it is
    /// still there.
    fn older_slot(&mut self, ident: &Ident, own: (Generation, SlotId)) -> (Generation, SlotId) {
        let slots = self.older.entry(ident.ino).or_default();
        match slots.iter().position(|s| *s == own) {
            Some(n) => slots.remove(n),
            None => slots.pop().unwrap_or(own),
        }
    }

    /// Mode and owner of an inode once the segments so far have run.
    fn owner_of(
        &self,
        store: &Store,
        ident: &Ident,
        known: &HashMap<u64, Fingerprint>,
    ) -> Option<(u32, u32, u32)> {
        if let Some(meta) = self.metas.get(&ident.ino) {
            return Some((meta.mode, meta.uid, meta.gid));
        }
        let in_slot = |(generation, slot): &(Generation, SlotId)| {
            let dir = store.history_of(*generation).ok()?;
            let stat = base::stat_at(dir.as_fd(), slot.to_string().as_bytes()).ok()?;
            (stat.ident == *ident).then_some((stat.mode, stat.uid, stat.gid))
        };
        let slots = self.older.get(&ident.ino).into_iter().flatten();
        slots.rev().find_map(in_slot).or_else(|| {
            let print = known.get(&ident.ino).filter(|p| p.ident == *ident)?;
            Some((print.mode, print.uid, print.gid))
        })
    }

    fn new_slot(&mut self, ident: &Ident) -> Option<SlotId> {
        self.new.get_mut(&ident.ino)?.pop()
    }

    /// Learns what a segment leaves in the new generation's slots.
    fn learn(&mut self, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Evacuate { slot, ident, .. } => {
                    self.new.entry(ident.ino).or_default().push(*slot);
                }
                Step::Exchange { slot, old, .. } => {
                    self.new.entry(old.ino).or_default().push(*slot)
                }
                Step::Place { slot, ident, .. } => {
                    if let Some(slots) = self.new.get_mut(&ident.ino) {
                        slots.retain(|s| s != slot);
                    }
                }
                Step::SetMeta { ident, after, .. } => {
                    self.metas.insert(ident.ino, after.clone());
                }
                Step::Fetch { .. }
                | Step::Link { .. }
                | Step::Unlink { .. }
                | Step::Rewrite { .. }
                | Step::Barrier => {}
            }
        }
    }
}

/// The chosen generations, newest first, without pairs of one and its undo, which together change
/// nothing, if nothing is left between the two.
///
/// # Errors
/// Those of `head`.
pub fn without_pairs<E>(
    chosen: &[Generation],
    head: impl Fn(Generation) -> Result<GenerationHead, E>,
) -> Result<Vec<Generation>, E> {
    let mut left: Vec<Generation> = Vec::new();
    for generation in chosen.iter().rev() {
        let mut undone = head(*generation)?.plan.undo_of;
        undone.sort_unstable();
        if !undone.is_empty() && left.ends_with(&undone) {
            left.truncate(left.len() - undone.len());
        } else {
            left.push(*generation);
        }
    }
    left.reverse();
    Ok(left)
}

struct Inverter<'a> {
    base: &'a Base,
    store: &'a Store,
    staging: &'a Staging,
    generation: Generation,
    segment: &'a [Step],
    /// Old path by new path of everything that moved, for paths below.
    moved: BTreeMap<RelPath, RelPath>,
    /// By slot: who was evacuated there and placed again.
    returned: HashMap<SlotId, Place>,
    /// Inodes that the generation made.
    made: HashSet<u64>,
    /// Slots that came from older generations, or were filled by earlier segments.
    fetched: HashSet<SlotId>,
    /// What the generation left, by inode.
    after: HashMap<u64, Seen>,
    /// When the undo began.
    time: Timestamp,
}

impl<'a> Inverter<'a> {
    fn new(
        base: &'a Base,
        store: &'a Store,
        staging: &'a Staging,
        generation: Generation,
        segment: &'a [Step],
    ) -> Self {
        let mut evacuated = HashMap::new();
        let mut moved = BTreeMap::new();
        let mut returned = HashMap::new();
        let mut made = HashSet::new();
        let mut fetched = HashSet::new();
        for step in segment {
            match step {
                Step::Evacuate { from, slot, .. } => {
                    evacuated.insert(*slot, from.clone());
                }
                Step::Place { slot, to, ident } => match evacuated.get(slot) {
                    Some(from) => {
                        moved.insert(to.path.clone(), from.path.clone());
                        returned.insert(*slot, from.clone());
                    }
                    None => {
                        made.insert(ident.ino);
                    }
                },
                Step::Exchange { new, .. } => {
                    made.insert(new.ino);
                }
                Step::Fetch { slot, .. } => {
                    fetched.insert(*slot);
                }
                Step::Link { .. }
                | Step::Unlink { .. }
                | Step::Rewrite { .. }
                | Step::SetMeta { .. }
                | Step::Barrier => {}
            }
        }
        let after = HashMap::new();
        Inverter {
            base,
            store,
            staging,
            generation,
            segment,
            moved,
            returned,
            made,
            fetched,
            after,
            time: Timestamp::default(),
        }
    }

    /// Where a path of the generation's tree was in the tree before.
    fn before(&self, place: &Place) -> Place {
        let path = relocated(&place.path, |at| self.moved.get(at));
        Place { path, parent_ino: place.parent_ino }
    }

    fn run(
        &self,
        held: &mut Held,
        known: &HashMap<u64, Fingerprint>,
    ) -> Result<Vec<Step>, Failure> {
        let (mut fetch, mut evacuate, mut place) = (Vec::new(), Vec::new(), Vec::new());
        let (mut link, mut meta) = (Vec::new(), BTreeMap::new());
        let mut slot_of: HashMap<SlotId, SlotId> = HashMap::new();
        for step in self.segment {
            match step {
                Step::Fetch { .. } | Step::Barrier => {}
                Step::Place { slot, to, ident } => {
                    let new = self.staging.next_slot();
                    slot_of.insert(*slot, new);
                    let holds = if self.returned.contains_key(slot) {
                        Holds::Anything
                    } else if self.fetched.contains(slot) {
                        Holds::Same
                    } else {
                        Holds::Nothing
                    };
                    evacuate.push(self.leave((to, new, ident, holds), held, known));
                }
                Step::Link { existing, to, ident } => {
                    let existing = self.before(existing);
                    evacuate.push(Step::Unlink { from: to.clone(), existing, ident: *ident });
                }
                // What goes may be a directory, whose time has to be kept: an evacuation does that.
                Step::Exchange { at, new, .. } if new.kind == Kind::Dir => {
                    let slot = self.staging.next_slot();
                    evacuate.push(self.leave((at, slot, new, Holds::Nothing), held, known));
                }
                Step::Evacuate { .. }
                | Step::Unlink { .. }
                | Step::Exchange { .. }
                | Step::Rewrite { .. }
                | Step::SetMeta { .. } => {}
            }
        }
        for step in self.segment {
            match step {
                Step::Evacuate { from, slot, ident, mtime, .. } => {
                    if let Some(step) = self.time_back((from, ident, *slot, *mtime), held, known) {
                        meta.insert(from.path.clone(), step);
                    }
                    let source =
                        match slot_of.get(slot).filter(|_| self.returned.contains_key(slot)) {
                            Some(evacuated) => *evacuated,
                            None => self.fetch(&mut fetch, held, *slot, ident),
                        };
                    place.push(Step::Place { slot: source, to: from.clone(), ident: *ident });
                }
                Step::Exchange { slot, at, new, old, .. } => {
                    let was = self.after.get(&new.ino).copied();
                    let (slot, at) = (self.fetch(&mut fetch, held, *slot, old), self.before(at));
                    place.push(if new.kind == Kind::Dir {
                        Step::Place { slot, to: at, ident: *old }
                    } else {
                        Step::Exchange { slot, at, new: *old, old: *new, was }
                    });
                }
                Step::Rewrite { at, ident, preimage, .. } => {
                    let content = self.staging.next_slot();
                    let source = self.slot_ident(*preimage)?;
                    fetch.push(Step::Fetch {
                        from: self.generation,
                        from_slot: *preimage,
                        slot: content,
                        ident: source,
                    });
                    let preimage = self.copy_now(at, ident)?;
                    place.push(Step::Rewrite {
                        at: self.before(at),
                        ident: *ident,
                        content,
                        preimage,
                        was: self.after.get(&ident.ino).copied(),
                    });
                }
                Step::SetMeta { at, ident, before, after } => {
                    // What the generation made goes as it is.
                    if !self.made.contains(&ident.ino) {
                        let (mut before, mut after) = (after.clone(), before.clone());
                        if ident.kind == Kind::Dir {
                            self.time_of_dir(at, ident, &mut before, &mut after, held);
                        }
                        let at = self.before(at);
                        meta.insert(
                            at.path.clone(),
                            Step::SetMeta { at, ident: *ident, before, after },
                        );
                    }
                }
                Step::Unlink { from, existing, ident } => {
                    let existing = self.before(existing);
                    link.push(Step::Link { existing, to: from.clone(), ident: *ident });
                }
                Step::Fetch { .. } | Step::Place { .. } | Step::Link { .. } | Step::Barrier => {}
            }
        }
        link_to_what_is_placed(&place, &mut link);
        order(&mut evacuate, &mut place, &mut link);
        let mut out = fetch;
        out.append(&mut evacuate);
        out.append(&mut place);
        out.append(&mut link);
        out.extend(meta.into_values().rev());
        held.learn(&out);
        Ok(out)
    }

    fn leave(
        &self,
        (from, slot, ident, holds): (&Place, SlotId, &Ident, Holds),
        held: &Held,
        known: &HashMap<u64, Fingerprint>,
    ) -> Step {
        let now =
            || spot(self.base, &from.path).and_then(|s| base::stat_at(s.dir.as_fd(), &s.name));
        let (from, ident) = (from.clone(), *ident);
        if ident.kind != Kind::Dir {
            let was = self.after.get(&ident.ino);
            let (mtime, size) =
                was.map_or((Timestamp::default(), None), |w| (w.mtime, Some(w.size)));
            return Step::Evacuate { from, slot, ident, mtime, size, holds: Holds::Anything };
        }
        let set = held.metas.get(&ident.ino).map(|m| m.mtime);
        let mtime = match set.or_else(|| known.get(&ident.ino).map(|print| print.mtime)) {
            Some(mtime) => mtime,
            None => now().map(|s| s.mtime).unwrap_or_default(),
        };
        Step::Evacuate { from, slot, ident, mtime, size: None, holds }
    }

    /// A directory gets the time back that it had, if nobody has changed its entries since the generation.
    /// Otherwise it holds neither what it held before nor what it held then, and its time is that of
    /// this undo: whoever goes by it looks again.
    fn time_of_dir(
        &self,
        at: &Place,
        ident: &Ident,
        before: &mut Meta,
        after: &mut Meta,
        held: &Held,
    ) {
        let now = || {
            let stat = if at.path.depth() == 0 {
                base::stat_fd(self.base.root())
            } else {
                spot(self.base, &at.path).and_then(|s| base::stat_at(s.dir.as_fd(), &s.name))
            };
            stat.ok().filter(|s| s.ident == *ident).map(|s| s.mtime)
        };
        let Some(mtime) = held.metas.get(&ident.ino).map(|m| m.mtime).or_else(now) else { return };
        if mtime != before.mtime {
            before.mtime = mtime;
            after.mtime = self.time;
        }
    }

    /// The time that a directory gets back once its entries are back too.
    fn time_back(
        &self,
        (at, ident, slot, mtime): (&Place, &Ident, SlotId, Timestamp),
        held: &Held,
        known: &HashMap<u64, Fingerprint>,
    ) -> Option<Step> {
        if ident.kind != Kind::Dir || self.returned.contains_key(&slot) {
            return None;
        }
        let (mode, uid, gid) = held.owner_of(self.store, ident, known)?;
        let meta = Meta { mode, uid, gid, atime: None, mtime, xattrs: None };
        Some(Step::SetMeta { at: at.clone(), ident: *ident, before: meta.clone(), after: meta })
    }

    /// The slot of the new generation from which an inode comes back: where an earlier segment leaves
    /// it, else fetched from wherever generations left it.
    fn fetch(
        &self,
        fetch: &mut Vec<Step>,
        held: &mut Held,
        from_slot: SlotId,
        ident: &Ident,
    ) -> SlotId {
        if let Some(slot) = held.new_slot(ident) {
            return slot;
        }
        let slot = self.staging.next_slot();
        let (from, from_slot) = held.older_slot(ident, (self.generation, from_slot));
        fetch.push(Step::Fetch { from, from_slot, slot, ident: *ident });
        slot
    }

    fn slot_ident(&self, slot: SlotId) -> Result<Ident, Failure> {
        let found = self
            .store
            .history_of(self.generation)
            .and_then(|dir| base::stat_at(dir.as_fd(), slot.to_string().as_bytes()));
        found.map(|s| s.ident).map_err(|e| {
            let what =
                format!("the history of generation {} has lost slot {slot}: {e}", self.generation);
            Failure::new(Code::Io, what).hint("txfs doctor")
        })
    }

    fn copy_now(&self, at: &Place, ident: &Ident) -> Result<SlotId, Failure> {
        let copy = || -> io::Result<SlotId> {
            let fd = spot(self.base, &at.path)?.open(ident)?;
            let from = base::reopen(fd.as_fd(), rustix::fs::OFlags::RDONLY)?;
            let (slot, to) = self.staging.create()?;
            copy_content(&from.into(), &to)?;
            Ok(slot)
        };
        copy().map_err(|e| {
            Failure::new(
                Code::Io,
                format!("cannot copy \"{}\": {e}", at.path.as_bytes().escape_ascii()),
            )
            .hint("free some space, then run the command again: nothing has happened")
        })
    }
}

/// An inode that comes back by a step of its own is linked from there: its path inside what the
/// generation made says nothing about the tree before.
fn link_to_what_is_placed(place: &[Step], link: &mut [Step]) {
    let mut placed: HashMap<u64, &Place> = HashMap::new();
    for step in place {
        match step {
            Step::Place { to: at, ident, .. } | Step::Exchange { at, new: ident, .. } => {
                placed.insert(ident.ino, at);
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
    for step in link {
        if let Step::Link { existing, ident, .. } = step
            && let Some(at) = placed.get(&ident.ino)
        {
            *existing = (*at).clone();
        }
    }
}

/// Every name and inode that a generation touched.
#[must_use]
pub fn touched(record: &GenerationRecord) -> (BTreeSet<RelPath>, HashSet<u64>) {
    let (mut paths, mut inodes) = (BTreeSet::new(), HashSet::new());
    for step in &record.plan.steps {
        match step {
            Step::Evacuate { from: at, ident, .. }
            | Step::Place { to: at, ident, .. }
            | Step::Rewrite { at, ident, .. } => {
                paths.insert(at.path.clone());
                inodes.insert(ident.ino);
            }
            // The other name must be where it was, too.
            Step::Link { to: at, existing, ident } | Step::Unlink { from: at, existing, ident } => {
                paths.extend([at.path.clone(), existing.path.clone()]);
                inodes.insert(ident.ino);
            }
            Step::Exchange { at, new, old, .. } => {
                paths.insert(at.path.clone());
                inodes.insert(new.ino);
                inodes.insert(old.ino);
            }
            Step::SetMeta { at, ident, .. } => {
                if !step.is_time_of_dir() {
                    paths.insert(at.path.clone());
                    inodes.insert(ident.ino);
                }
            }
            Step::Fetch { .. } | Step::Barrier => {}
        }
    }
    (paths, inodes)
}

/// The generations after `record` that touched what it touched, newest first, other than those that
/// `taken` names. Pairs of a generation and its undo touch nothing on balance and do not count.
#[must_use]
pub fn blockers(
    record: &GenerationRecord,
    later: &[GenerationRecord],
    taken: &[Generation],
) -> Vec<(Generation, RelPath)> {
    let (paths, inodes) = touched(record);
    let mut undone: HashSet<Generation> = taken.iter().copied().collect();
    for other in later.iter().rev() {
        if undone.contains(&other.plan.generation) {
            continue;
        }
        if !other.plan.undo_of.is_empty()
            && other.plan.undo_of.iter().all(|g| *g > record.plan.generation)
        {
            undone.insert(other.plan.generation);
            undone.extend(other.plan.undo_of.iter().copied());
        }
    }
    let mut found = Vec::new();
    for other in later.iter().rev() {
        if undone.contains(&other.plan.generation) {
            continue;
        }
        let (theirs, nodes) = touched(other);
        let common = theirs
            .iter()
            .find(|p| {
                paths.contains(p)
                    || paths.iter().any(|q| q.is_within(p) && moves(other, p))
                    || paths.iter().any(|q| p.is_within(q) && moves(record, q))
            })
            .cloned()
            .or_else(|| {
                nodes
                    .iter()
                    .any(|i| inodes.contains(i))
                    .then(|| theirs.iter().next().cloned())
                    .flatten()
            });
        if let Some(path) = common {
            found.push((other.plan.generation, path));
        }
    }
    found
}

/// Whether a generation made, moved or removed what is or was at a path, and with it what is below.
fn moves(record: &GenerationRecord, path: &RelPath) -> bool {
    record.plan.steps.iter().any(|step| match step {
        Step::Evacuate { from: at, .. }
        | Step::Place { to: at, .. }
        | Step::Exchange { at, .. } => at.path == *path,
        Step::Fetch { .. }
        | Step::Link { .. }
        | Step::Unlink { .. }
        | Step::Rewrite { .. }
        | Step::SetMeta { .. }
        | Step::Barrier => false,
    })
}

/// Compares the base with what the generations left, where an undo is going to act.
///
/// # Errors
/// If the base cannot be read.
pub fn drift(
    base: &Base,
    steps: &[Step],
    known: &HashMap<u64, Fingerprint>,
) -> Result<Vec<Conflict>, Failure> {
    let mut check =
        Check { base, found: Vec::new(), leaving: HashSet::new(), returning: HashSet::new() };
    let mut placed_dirs: HashSet<RelPath> = HashSet::new();
    let mut left: HashMap<SlotId, &RelPath> = HashMap::new();
    // Where what moves is as yet, by where it is going to be.
    let mut comes_from: HashMap<&RelPath, &RelPath> = HashMap::new();
    for step in steps {
        match step {
            Step::Evacuate { from, slot, .. } => {
                check.leaving.insert(from.path.clone());
                left.insert(*slot, &from.path);
            }
            Step::Place { slot, to, ident } => {
                if let Some(from) = left.get(slot) {
                    comes_from.insert(&to.path, from);
                }
                check.returning.insert(*slot);
                if ident.kind == Kind::Dir {
                    placed_dirs.insert(to.path.clone());
                }
            }
            Step::Exchange { at, new, .. } if new.kind == Kind::Dir => {
                placed_dirs.insert(at.path.clone());
            }
            Step::Fetch { .. }
            | Step::Exchange { .. }
            | Step::Link { .. }
            | Step::Unlink { .. }
            | Step::Rewrite { .. }
            | Step::SetMeta { .. }
            | Step::Barrier => {}
        }
    }
    // Each place is looked at once, by the first step that names it: what an earlier step puts there or
    // takes away cannot be seen yet.
    let mut seen: HashSet<RelPath> = HashSet::new();
    for step in steps {
        let path = super::apply::step_path(step);
        let below_placed = {
            let mut up = path.split();
            let mut below = false;
            while let Some((parent, _)) = up {
                below |= placed_dirs.contains(&parent);
                up = parent.split();
            }
            below
        };
        match step {
            Step::Evacuate { from, slot, ident, .. } => {
                if !below_placed && seen.insert(path) {
                    let dir = ident.kind == Kind::Dir && !check.returning.contains(slot);
                    check.occupied(from, ident, known, dir)?;
                }
            }
            Step::Exchange { at, old: ident, .. } | Step::Rewrite { at, ident, .. } => {
                if !below_placed && seen.insert(path) {
                    check.occupied(at, ident, known, false)?;
                }
            }
            Step::Place { to, .. } | Step::Link { to, .. } => {
                // No step before this one took it away from there.
                if !below_placed && seen.insert(path) {
                    check.free(&to.path);
                }
            }
            Step::Unlink { from, ident, .. } => {
                if !below_placed && seen.insert(path) {
                    check.occupied(from, ident, known, false)?;
                }
            }
            // What this undo brings back itself has nothing to compare.
            Step::SetMeta { at, ident, .. } if at.path.depth() > 0 => {
                // As long as nothing has moved.
                let path = relocated(&at.path, |at| comes_from.get(at).copied());
                if !below_placed && known.contains_key(&ident.ino) && seen.insert(path.clone()) {
                    check.same_if_there(&path, ident, known)?;
                }
            }
            Step::SetMeta { .. } | Step::Fetch { .. } | Step::Barrier => {}
        }
    }
    Ok(check.found)
}

/// A path after moves: what is at it, or the nearest directory above it that moved, is where `to` says.
pub(super) fn relocated<'a>(
    path: &RelPath,
    to: impl Fn(&RelPath) -> Option<&'a RelPath>,
) -> RelPath {
    let mut at = Some(path.clone());
    while let Some(prefix) = at {
        if let Some(new) = to(&prefix) {
            let rest = &path.as_bytes()[prefix.as_bytes().len()..];
            let joined = [new.as_bytes(), rest].concat();
            return RelPath::new(joined).unwrap_or_else(|_| path.clone());
        }
        at = prefix.split().map(|(parent, _)| parent);
    }
    path.clone()
}

struct Check<'a> {
    base: &'a Base,
    found: Vec<Conflict>,
    leaving: HashSet<RelPath>,
    returning: HashSet<SlotId>,
}

impl Check<'_> {
    fn conflict(&mut self, path: &RelPath, reason: String) {
        self.found.push(Conflict { path: path.into(), reason, generation: None });
    }

    /// A place must hold what a generation left there.
    fn occupied(
        &mut self,
        at: &Place,
        ident: &Ident,
        known: &HashMap<u64, Fingerprint>,
        removed_dir: bool,
    ) -> Result<(), Failure> {
        let fail = |what: &str, e: io::Error| {
            let path = at.path.as_bytes().escape_ascii();
            Failure::new(Code::Io, format!("cannot {what} \"{path}\": {e}")).hint("txfs doctor")
        };
        let reason =
            match spot(self.base, &at.path).and_then(|s| base::stat_at(s.dir.as_fd(), &s.name)) {
                Ok(now) if now.ident != *ident => Some("another entry stands there".to_owned()),
                Ok(now) => known.get(&ident.ino).and_then(|then| drifted(then, &now)),
                Err(e) if base::is_absent(&e) => Some("it is gone".to_owned()),
                Err(e) => return Err(fail("look at", e)),
            };
        if let Some(reason) = reason {
            self.conflict(&at.path, reason);
        } else if removed_dir {
            let fd = self.base.open_path(&at.path).map_err(|e| fail("open", e))?;
            self.nothing_new(fd.as_fd(), &at.path, known).map_err(|e| fail("list", e))?;
        }
        Ok(())
    }

    /// What is in a directory that is going to be removed leaves by a step of its own, or is as a
    /// generation left it.
    fn nothing_new(
        &mut self,
        dir: BorrowedFd<'_>,
        path: &RelPath,
        known: &HashMap<u64, Fingerprint>,
    ) -> io::Result<()> {
        for (name, _, kind) in base::list(dir)? {
            let child = path.join(&Name::new(&name).map_err(io::Error::other)?);
            if self.leaving.contains(&child) {
                continue;
            }
            let now = base::stat_at(dir, &name)?;
            match known.get(&now.ident.ino).filter(|then| then.ident == now.ident) {
                None => {
                    let reason = "it was created in a directory that the undo removes";
                    self.conflict(&child, reason.to_owned());
                }
                Some(then) => {
                    if let Some(reason) = drifted(then, &now) {
                        self.conflict(&child, reason);
                    }
                    if kind == Kind::Dir {
                        let fd = base::open_child(dir, &name)?;
                        self.nothing_new(fd.as_fd(), &child, known)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// An object whose metadata is set must be as a generation left it. If it is not there, the step that
    /// brings it has been looked at.
    fn same_if_there(
        &mut self,
        path: &RelPath,
        ident: &Ident,
        known: &HashMap<u64, Fingerprint>,
    ) -> Result<(), Failure> {
        match spot(self.base, path).and_then(|s| base::stat_at(s.dir.as_fd(), &s.name)) {
            Ok(now) if now.ident == *ident => {
                if let Some(reason) = known.get(&ident.ino).and_then(|then| drifted(then, &now)) {
                    self.conflict(path, reason);
                }
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(e) if base::is_absent(&e) => Ok(()),
            Err(e) => {
                let what = format!("cannot look at \"{}\": {e}", path.as_bytes().escape_ascii());
                Err(Failure::new(Code::Io, what).hint("txfs doctor"))
            }
        }
    }

    /// A place must hold nothing.
    fn free(&mut self, path: &RelPath) {
        match spot(self.base, path).and_then(|s| s.ident()) {
            Ok(None) => {}
            Ok(Some(_)) => self.conflict(path, "something else stands there now".to_owned()),
            Err(e) => self.conflict(path, format!("its directory is not there: {e}")),
        }
    }
}
