//! The plan of a commit or an undo: what apply does to the base, and what takes it back.
//!
//! A plan is a list of steps between places of the base and slots of `history/<generation>/`.
//! The staging directory of the transaction becomes `history/<generation>/` by one rename, so a
//! staged file is a slot from then on, and every displaced entry of the base goes into another
//! slot: a preimage costs a rename, never a copy.
//!
//! Steps stand in the order of their phases:
//!
//! 0. [`Step::Fetch`] (undo only): what an older generation displaced comes over from its slot.
//! 1. [`Step::Evacuate`] and [`Step::Unlink`], deepest old path first: every entry that leaves its place goes to a slot.
//! 2. [`Step::Place`], [`Step::Exchange`], [`Step::Link`], [`Step::Rewrite`], shallowest new path first.
//! 3. [`Step::SetMeta`], deepest new path first.
//!
//! A step is done iff its destination holds the planned identity and its source does not, so a
//! list can be applied again from its start any number of times.

use crate::id::{Generation, SlotId, TxnId};
use crate::object::{Fingerprint, Ident, Kind, Meta, Place, Timestamp};

/// A file as it was when the plan was made. Apply compares before and after it displaces or writes over
/// it, however long after the seal: who wrote it in between is not overwritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// Bytes.
    pub size: u64,
    /// Last modification.
    pub mtime: Timestamp,
}

/// What a directory that leaves its place must hold. Entries that somebody makes in it after the plan are
/// not carried off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holds {
    /// It moves: what is in it moves along.
    Anything,
    /// It is removed with all it held: nothing in it changed since the plan was made.
    Same,
    /// It is removed after all it held.
    Nothing,
}

/// One step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Renames what a slot of an older generation holds to a slot of this one. Taken back by
    /// renaming it to where it was.
    Fetch {
        /// The older generation.
        from: Generation,
        /// Its slot.
        from_slot: SlotId,
        /// The slot here.
        slot: SlotId,
        /// What.
        ident: Ident,
    },
    /// Everything before is on the disk, and recovery begins after it: an undo of several
    /// generations is their inverses one after the other, and a place may occur in several.
    Barrier,
    /// Renames an entry of the base to a slot. Taken back by placing it again.
    Evacuate {
        /// From where, an old path.
        from: Place,
        /// To where.
        slot: SlotId,
        /// What.
        ident: Ident,
        /// Its modification time before its own entries left it, which a directory gets back when it
        /// comes back.
        mtime: Timestamp,
        /// Its size, with `mtime` what a file must still have, where it can be told in advance.
        size: Option<u64>,
        /// What a directory must hold when it has left; `Anything` for all else.
        holds: Holds,
    },
    /// Renames what a slot holds into a free place, `RENAME_NOREPLACE`. Taken back by evacuating it.
    Place {
        /// From where.
        slot: SlotId,
        /// To where, a new path.
        to: Place,
        /// What.
        ident: Ident,
    },
    /// Swaps what a slot holds with what is at a place, `RENAME_EXCHANGE`. It is its own inverse.
    Exchange {
        /// The slot: holds `new` before and `old` after.
        slot: SlotId,
        /// The place: holds `old` before and `new` after.
        at: Place,
        /// What comes.
        new: Ident,
        /// What goes.
        old: Ident,
        /// What it must still be, where it can be told in advance: not where an earlier segment of
        /// the plan brings it.
        was: Option<Seen>,
    },
    /// Gives an object that is at `existing` a further name. Taken back by removing that name.
    Link {
        /// A name it has by then, a new path.
        existing: Place,
        /// The further name, a new path.
        to: Place,
        /// What.
        ident: Ident,
    },
    /// Takes one of several names from an inode that keeps another: unlink(2), since a name kept in a slot
    /// would count as a hard link. Taken back by linking it again. It runs among the evacuations.
    Unlink {
        /// The name, an old path.
        from: Place,
        /// A name that it has in the end, a new path.
        existing: Place,
        /// What.
        ident: Ident,
    },
    /// Writes the content of a slot into the inode at a place, because names outside the base
    /// share that inode. Taken back by writing `preimage` the same way.
    Rewrite {
        /// The place, a new path.
        at: Place,
        /// The inode that stays.
        ident: Ident,
        /// Holds the new content.
        content: SlotId,
        /// Holds a complete copy of the old content.
        preimage: SlotId,
        /// What the inode must still be before its first byte is written, as in [`Step::Exchange`].
        was: Option<Seen>,
    },
    /// Sets mode, owner, times and extended attributes.
    SetMeta {
        /// The place, a new path.
        at: Place,
        /// Which inode.
        ident: Ident,
        /// As it was.
        before: Meta,
        /// As it shall be.
        after: Meta,
    },
}

impl Step {
    /// Whether the step only sets a directory's modification time, which moves with every entry and
    /// binds nobody.
    #[must_use]
    pub fn is_time_of_dir(&self) -> bool {
        match self {
            Step::SetMeta { ident, before, after, .. } => {
                ident.kind == Kind::Dir
                    && (before.mode, before.uid, before.gid, &before.xattrs)
                        == (after.mode, after.uid, after.gid, &after.xattrs)
            }
            Step::Fetch { .. }
            | Step::Evacuate { .. }
            | Step::Unlink { .. }
            | Step::Place { .. }
            | Step::Exchange { .. }
            | Step::Link { .. }
            | Step::Rewrite { .. }
            | Step::Barrier => false,
        }
    }
}

/// A plan without its steps, which are stored in chunks beside it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlanHead {
    /// Whose.
    pub txn: TxnId,
    /// The generation it makes.
    pub generation: Generation,
    /// The generations it takes back, newest first; empty for a commit.
    pub undo_of: Vec<Generation>,
    /// Who asked for it.
    pub uid: u32,
    /// When.
    pub time: Timestamp,
    /// `-m TEXT`
    pub message: Vec<u8>,
    /// How many steps.
    pub steps: u64,
}

/// A generation without the long lists.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GenerationHead {
    /// Its plan.
    pub plan: PlanHead,
    /// How many fingerprints.
    pub after: u64,
    /// Bytes that its slots hold.
    pub history_bytes: u64,
    /// Entries it changed, as a person counts them.
    pub entries: u64,
    /// Whether its slots were collected.
    pub pruned: bool,
}

impl Plan {
    /// The plan without its steps.
    #[must_use]
    pub fn head(&self) -> PlanHead {
        PlanHead {
            txn: self.txn,
            generation: self.generation,
            undo_of: self.undo_of.clone(),
            uid: self.uid,
            time: self.time,
            message: self.message.clone(),
            steps: self.steps.len() as u64,
        }
    }
}

impl PlanHead {
    /// The plan with its steps.
    #[must_use]
    pub fn with(self, steps: Vec<Step>) -> Plan {
        let PlanHead { txn, generation, undo_of, uid, time, message, steps: _ } = self;
        Plan { txn, generation, undo_of, uid, time, message, steps }
    }
}

impl GenerationRecord {
    /// The record without the long lists.
    #[must_use]
    pub fn head(&self) -> GenerationHead {
        GenerationHead {
            plan: self.plan.head(),
            after: self.after.len() as u64,
            history_bytes: self.history_bytes,
            entries: self.entries,
            pruned: self.pruned,
        }
    }
}

/// A sealed plan. Once it is durable, the commit happens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Whose.
    pub txn: TxnId,
    /// The generation it makes.
    pub generation: Generation,
    /// The generations it takes back, newest first; empty for a commit.
    pub undo_of: Vec<Generation>,
    /// Who asked for it.
    pub uid: u32,
    /// When.
    pub time: Timestamp,
    /// `-m TEXT`
    pub message: Vec<u8>,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

/// A committed generation: its plan, and the base as apply left it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GenerationRecord {
    /// What was applied.
    pub plan: Plan,
    /// The state of every object that apply moved, linked, wrote or changed, read after apply.
    /// Undo and later commits compare with these, since our own renames change `ctime`.
    pub after: Vec<(Place, Fingerprint)>,
    /// Bytes that its slots hold, for the limit on history.
    pub history_bytes: u64,
    /// Entries it changed, as a person counts them.
    pub entries: u64,
    /// Whether its slots were collected; it cannot be undone then.
    pub pruned: bool,
}
