//! Savepoints and steps: marks in the list of effects, and going back to one.
//!
//! A mark freezes the staged files that exist: whoever writes to one afterwards gets a fresh one first. Slots
//! are numbered upwards, so that one number, the fence, says which are frozen, and a mark costs one record.
//! Only files that the kernel may be writing past us at the mark cannot wait for that: the mark gets a copy of
//! them, and the file in use goes on under a new number.

use std::collections::HashSet;
use std::sync::Arc;

use rustix::io::Errno;
use txfs_journal::{
    Change, Effect, Entry, Inverse, JournalError, Kind, Name, NewNode, ObjId, Over, Preimage,
    Record, RelPath, Seq, Slot, SlotId, StepId, Timestamp,
};

use super::api::{Forget, OpResult};
use super::cut::Cut;
use super::delta::{Delta, Misfit, live_before};
use super::nodes::errno;
use super::state::{State, View, now};
use crate::base;
use crate::sys;

/// A mark that holds: a place to which the transaction can go back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mark {
    /// Its record.
    pub seq: Seq,
    /// When it was made.
    pub time: Timestamp,
    /// Which.
    pub kind: MarkKind,
}

/// The kinds of marks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MarkKind {
    /// A step began, with its words.
    Step(StepId, Vec<u8>),
    /// A savepoint, by its name.
    Savepoint(Vec<u8>),
}

impl Mark {
    /// The last record that holds after going back: a savepoint stays, a step goes.
    #[must_use]
    pub fn target(&self) -> Seq {
        match self.kind {
            MarkKind::Step(..) => Seq(self.seq.0 - 1),
            MarkKind::Savepoint(_) => self.seq,
        }
    }
}

/// The marks of a list that no later rollback took back, oldest first.
#[must_use]
pub fn live_marks(records: &[Record]) -> Vec<Mark> {
    let mut marks: Vec<Mark> = Vec::new();
    for record in records {
        let kind = match &record.entry {
            Entry::Step { step, what } => MarkKind::Step(*step, what.clone()),
            Entry::Savepoint { name } => MarkKind::Savepoint(name.clone()),
            Entry::RolledBack { to } => {
                marks.retain(|m| m.seq <= *to);
                continue;
            }
            Entry::Effect(_) | Entry::Process { .. } => continue,
        };
        marks.push(Mark { seq: record.seq, time: record.time, kind });
    }
    marks
}

/// The first slot that is not frozen, by the records of a transaction.
#[must_use]
pub fn fence_of(records: &[Record]) -> SlotId {
    let (mut next, mut fence) = (SlotId(0), SlotId(0));
    for record in records {
        match &record.entry {
            Entry::Effect(entry) => {
                for slot in slots(&entry.effect, &entry.inverse) {
                    next.0 = next.0.max(slot.0 + 1);
                }
            }
            Entry::Step { .. } | Entry::Savepoint { .. } | Entry::RolledBack { .. } => fence = next,
            Entry::Process { .. } => {}
        }
    }
    fence
}

/// The staged files that an effect and its inverse name.
fn slots(effect: &Effect, inverse: &Inverse) -> impl Iterator<Item = SlotId> {
    let new = match effect {
        Effect::Write { change: Change::Content { slot }, .. }
        | Effect::Write { change: Change::Create { node: NewNode::File { slot }, .. }, .. } => {
            Some(*slot)
        }
        Effect::Write { .. } | Effect::Move { .. } | Effect::Rm { .. } | Effect::Mkdir { .. } => {
            None
        }
    };
    let old = match inverse {
        Inverse::Restore { to: Preimage::Content { slot }, .. } => *slot,
        Inverse::Restore { .. }
        | Inverse::Unmove { .. }
        | Inverse::Unrm { .. }
        | Inverse::RmdirIfEmpty { .. } => None,
    };
    new.into_iter().chain(old)
}

/// Why a mark could not be set; nothing has changed.
#[derive(Debug)]
pub enum MarkFailed {
    /// A file was written while it was copied.
    Busy(Option<RelPath>),
    /// A file could not be copied, or an effect not be recorded.
    Op(Errno),
    /// The record could not be appended.
    Journal(JournalError),
}

impl From<Errno> for MarkFailed {
    fn from(e: Errno) -> MarkFailed {
        MarkFailed::Op(e)
    }
}

/// Why the view could not go back; nothing has changed.
#[derive(Debug)]
pub enum BackFailed {
    /// The records do not fit each other.
    Misfit(Misfit),
    /// A file could not be opened.
    Op(Errno),
    /// The record could not be appended or made durable.
    Journal(JournalError),
}

/// What going back did.
#[derive(Debug)]
pub struct WentBack {
    /// Effects taken back.
    pub effects: u64,
    /// Open files whose handles lead nowhere any more, as far as they have a name.
    pub stale: Vec<RelPath>,
    /// What the kernel must forget.
    pub forget: Vec<Forget>,
    /// Staged files that nothing refers to any more.
    pub unused: Vec<SlotId>,
}

impl State {
    /// The number by which the kernel knows an object.
    pub(super) fn kernel_id(&self, obj: ObjId) -> ObjId {
        self.fresh.get(&obj).copied().unwrap_or(obj)
    }

    /// The object that the kernel means by a number; `ESTALE` if it means one that was open when it was
    /// taken back.
    pub(super) fn meant(&self, id: ObjId) -> OpResult<ObjId> {
        match self.stands.get(&id) {
            None => Ok(id),
            Some(Some(obj)) => Ok(*obj),
            Some(None) => Err(Errno::STALE),
        }
    }

    /// The same things to forget, by the kernel's numbers. Directories keep theirs.
    pub(super) fn as_kernel_knows(&self, forget: Vec<Forget>) -> Vec<Forget> {
        let translated = forget.into_iter().map(|f| match f {
            Forget::Attr(obj) => Forget::Attr(self.kernel_id(obj)),
            Forget::Data(obj) => Forget::Data(self.kernel_id(obj)),
            Forget::Names(names) => Forget::Names(names),
            Forget::AllNames => Forget::AllNames,
        });
        translated.collect()
    }
}

impl View {
    /// The staged file of an object, if a mark needs it as it is.
    pub(super) fn frozen(&self, st: &State, obj: ObjId) -> Option<SlotId> {
        let slot = st.delta.objects.get(&obj)?.content?;
        (slot.0 < st.fence.0 && !st.orphans.contains(&obj)).then_some(slot)
    }

    /// Gives an object whose staged file is frozen another one that may be written.
    pub(super) fn thaw(&self, st: &mut State, obj: ObjId) -> OpResult<()> {
        let Some(slot) = self.frozen(st, obj) else { return Ok(()) };
        let staging = Arc::clone(&st.staging);
        let from = staging.file(slot, false).map_err(|e| errno(&e))?;
        let (copy, file) = staging.duplicate(&from).map_err(|e| errno(&e))?;
        if !self.handles.is_passthrough(obj) {
            return self.record_content(st, obj, copy, file);
        }
        // The kernel has the file open by itself and takes no other one until it is closed: that one goes on,
        // and the mark gets the copy.
        let kept = staging.link(slot).map_err(|e| errno(&e))?;
        self.content_is(st, obj, kept, Some(copy))
    }

    /// Records that the content of an object is in a staged file, and was in another.
    fn content_is(
        &self,
        st: &mut State,
        obj: ObjId,
        slot: SlotId,
        before: Option<SlotId>,
    ) -> OpResult<()> {
        let inverse = Inverse::Restore { obj, to: Preimage::Content { slot: before } };
        let effect = Effect::Write { obj, change: Change::Content { slot } };
        self.record(st, effect, inverse, &[obj], &[])
    }

    /// Staged files that the kernel may be writing by itself, with their objects.
    fn written_past_us(&self, st: &State) -> OpResult<Vec<(ObjId, SlotId)>> {
        let mut found = Vec::new();
        let content = |obj: ObjId| match st.delta.objects.get(&obj) {
            Some(object) if !st.orphans.contains(&obj) => object.content,
            Some(_) | None => None,
        };
        for (obj, file) in self.handles.open_files() {
            if file.is_passthrough()
                && file.has_writer()
                && let Some(slot) = content(obj)
            {
                found.push((obj, slot));
            }
        }
        // A mapping outlives its handle.
        for obj in self.handles.take_written_past() {
            let Some(slot) = content(obj) else { continue };
            if found.iter().any(|(other, _)| *other == obj) {
                continue;
            }
            let file = st.staging.file(slot, false).map_err(|e| errno(&e))?;
            if sys::may_have_writer(std::os::fd::AsFd::as_fd(&file)).map_err(|e| errno(&e))? {
                self.handles.add_written_past(obj);
                found.push((obj, slot));
            }
        }
        found.sort_unstable_by_key(|(obj, _)| obj.0);
        Ok(found)
    }

    /// A copy of a file that somebody may be writing, as it is at one point in time; with `as_it_is`, as
    /// it could be had.
    fn still_copy(&self, st: &State, slot: SlotId, as_it_is: bool) -> OpResult<Option<SlotId>> {
        let file = st.staging.file(slot, false).map_err(|e| errno(&e))?;
        let look = || base::stat_fd(std::os::fd::AsFd::as_fd(&file)).map_err(|e| errno(&e));
        for last in [false, false, true] {
            // Protects the pages of mappings again, so that a write to one moves the time.
            file.sync_all().map_err(|e| errno(&e))?;
            let before = look()?;
            let (copy, _) = st.staging.duplicate(&file).map_err(|e| errno(&e))?;
            let after = look()?;
            let still =
                (before.size, before.mtime, before.ctime) == (after.size, after.mtime, after.ctime);
            if still || (last && as_it_is) {
                return Ok(Some(copy));
            }
            st.staging.remove(copy).map_err(|e| errno(&e))?;
        }
        Ok(None)
    }
}

impl Cut<'_> {
    /// Sets a mark with `append`, which appends its record. With `as_it_is` a file that does not hold still is
    /// taken all the same.
    ///
    /// # Errors
    /// Nothing is marked then.
    pub fn mark<T>(
        &mut self,
        as_it_is: bool,
        append: impl FnOnce(&State) -> Result<T, JournalError>,
    ) -> Result<T, MarkFailed> {
        let view = self.view;
        let st = &mut *self.st;
        let mut copies = Vec::new();
        for (obj, slot) in view.written_past_us(st)? {
            match view.still_copy(st, slot, as_it_is)? {
                Some(copy) => copies.push((obj, slot, copy)),
                None => {
                    for (_, _, copy) in copies {
                        st.staging.remove(copy).map_err(|e| errno(&e))?;
                    }
                    return Err(MarkFailed::Busy(view.view_path(st, obj)));
                }
            }
        }
        let fence = st.staging.next_slot();
        let mut going_on = Vec::new();
        for (obj, slot, copy) in copies {
            let kept = st.staging.link(slot).map_err(|e| errno(&e))?;
            going_on.push((obj, slot, copy, kept));
        }
        for (obj, slot, copy, _) in &going_on {
            view.content_is(st, *obj, *copy, Some(*slot))?;
        }
        let made = append(st).map_err(MarkFailed::Journal)?;
        for (obj, _, copy, kept) in &going_on {
            view.content_is(st, *obj, *kept, Some(*copy))?;
        }
        st.fence = fence;
        Ok(made)
    }

    /// Takes back everything after `to`, newest first. `records` is the whole list. `append` appends
    /// the record and makes it durable.
    ///
    /// # Errors
    /// Nothing has changed then.
    pub fn go_back(
        &mut self,
        records: &[Record],
        to: Seq,
        append: impl FnOnce(&State, &Entry) -> Result<(), JournalError>,
    ) -> Result<WentBack, BackFailed> {
        let taken: Vec<&Record> =
            live_before(records).into_iter().rev().filter(|r| r.seq > to).collect();
        let mut delta = self.st.delta.clone();
        for record in &taken {
            delta.revert(record).map_err(BackFailed::Misfit)?;
        }
        let mut stale = Vec::new();
        let mut forget = self.met_by(&taken);
        let turns = self.turns(&delta).map_err(BackFailed::Op)?;
        for (obj, turn) in &turns {
            let Some(object) = self.st.delta.objects.get(obj) else { continue };
            forget.push(self.names_of(*obj, object));
            if matches!(turn, Turn::Gone | Turn::Anew) {
                stale.extend(self.view.view_path(&self.st, *obj));
            }
        }
        append(&self.st, &Entry::RolledBack { to }).map_err(BackFailed::Journal)?;
        for (obj, turn) in turns {
            self.turn(obj, turn);
        }
        let st = &mut *self.st;
        st.delta = delta;
        st.fence = st.staging.next_slot();
        let effects = taken.len() as u64;
        st.effects = st.effects.saturating_sub(effects);
        let forget = st.as_kernel_knows(forget);
        let unused = unused(&st.delta, records, &taken, to);
        Ok(WentBack { effects, stale, forget, unused })
    }

    /// What becomes of the open files whose content another delta has elsewhere.
    fn turns(&self, then: &Delta) -> OpResult<Vec<(ObjId, Turn)>> {
        let mut turns = Vec::new();
        for (obj, file) in self.view.handles.open_files() {
            let Some(now) = self.st.delta.objects.get(&obj) else { continue };
            let turn = match then.objects.get(&obj) {
                None if now.is_new() => Turn::Gone,
                old => {
                    let content = old.and_then(|o| o.content);
                    if content == now.content {
                        continue;
                    }
                    match content {
                        _ if file.is_passthrough() || file.has_writer() => Turn::Anew,
                        Some(slot) => {
                            let file = self.st.staging.file(slot, true);
                            Turn::Staged(file.map_err(|e| errno(&e))?)
                        }
                        None => Turn::Base(self.view.base_file(&self.st, obj)?),
                    }
                }
            };
            turns.push((obj, turn));
        }
        Ok(turns)
    }

    fn turn(&mut self, obj: ObjId, turn: Turn) {
        let view = self.view;
        let Some(file) = view.handles.open_file(obj) else { return };
        match turn {
            Turn::Staged(content) => file.set_staged(content),
            Turn::Base(content) => file.set_base(content),
            Turn::Gone | Turn::Anew => {
                file.set_gone();
                view.handles.retire(obj);
                let st = &mut *self.st;
                let id = st.kernel_id(obj);
                st.stands.insert(id, None);
                st.fresh.remove(&obj);
                if matches!(turn, Turn::Anew) {
                    // The kernel keeps pages, and its own way to the file, by the number.
                    let fresh = view.nodes.new_id();
                    st.fresh.insert(obj, fresh);
                    st.stands.insert(fresh, Some(obj));
                }
            }
        }
    }

    /// The names and objects that effects touched.
    fn met_by(&self, taken: &[&Record]) -> Vec<Forget> {
        let (mut names, mut objs) = (HashSet::new(), HashSet::new());
        for record in taken {
            let Entry::Effect(entry) = &record.entry else { continue };
            let (subject, at) = subjects(&entry.effect);
            objs.extend(subject);
            objs.extend(entry.times.iter().map(|t| t.obj));
            for slot in at {
                objs.insert(slot.parent);
                names.insert((slot.parent, slot.name.clone()));
            }
        }
        let mut forget: Vec<Forget> = Vec::new();
        let names: Vec<(ObjId, Name)> = names.into_iter().collect();
        if !names.is_empty() {
            forget.push(Forget::Names(names));
        }
        forget.extend(objs.into_iter().map(|obj| match self.view.kind(&self.st, obj) {
            Ok(Kind::File | Kind::Dir) | Err(_) => Forget::Data(obj),
            Ok(Kind::Symlink | Kind::Fifo | Kind::Socket | Kind::Char | Kind::Block) => {
                Forget::Attr(obj)
            }
        }));
        forget
    }
}

/// What becomes of an open file.
enum Turn {
    /// The object is gone.
    Gone,
    /// The handles lead nowhere; who opens the object finds another file.
    Anew,
    /// Its readers go on with this staged file.
    Staged(std::fs::File),
    /// Its readers go on with the base's.
    Base(std::fs::File),
}

/// The objects and names of an effect.
fn subjects(effect: &Effect) -> (Vec<ObjId>, Vec<&Slot>) {
    match effect {
        Effect::Move { obj, from, to, over } => {
            let mut objs = vec![*obj];
            match over {
                Over::Nothing => {}
                Over::Replaced(other) | Over::Exchanged(other) => objs.push(*other),
            }
            (objs, vec![from, to])
        }
        Effect::Rm { obj, at } | Effect::Mkdir { obj, at, .. } => (vec![*obj], vec![at]),
        Effect::Write { obj, change } => match change {
            Change::Create { at, .. } | Change::Link { at } => (vec![*obj], vec![at]),
            Change::Content { .. } | Change::Attrs(_) | Change::Xattr { .. } => {
                (vec![*obj], Vec::new())
            }
        },
    }
}

/// Staged files that only effects taken back name.
fn unused(delta: &Delta, records: &[Record], taken: &[&Record], to: Seq) -> Vec<SlotId> {
    let of = |record: &Record| match &record.entry {
        Entry::Effect(entry) => slots(&entry.effect, &entry.inverse).collect(),
        Entry::Step { .. }
        | Entry::Savepoint { .. }
        | Entry::RolledBack { .. }
        | Entry::Process { .. } => Vec::new(),
    };
    let mut used: HashSet<SlotId> = delta.objects.values().filter_map(|o| o.content).collect();
    used.extend(live_before(records).into_iter().filter(|r| r.seq <= to).flat_map(of));
    let mut unused: Vec<SlotId> = taken.iter().flat_map(|r| of(r)).collect();
    unused.retain(|slot| !used.contains(slot));
    unused.sort_unstable_by_key(|slot| slot.0);
    unused.dedup();
    unused
}

/// Appends a record with the time of now.
///
/// # Errors
/// As [`txfs_journal::TxnWriter::append`].
pub fn append_now(st: &State, entry: &Entry) -> Result<Seq, JournalError> {
    st.writer.append(now(), entry)
}
