//! The records of a transaction and its life.

use std::fmt;

use crate::effect::{Effect, Inverse, TimesBefore};
use crate::id::{Generation, ProcId, Seq, StepId, TxnId};
use crate::object::{Bind, Timestamp};

/// One record in a transaction's list. The list of a transaction, replayed from 1, rebuilds its view.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Its place, from 1 without gaps.
    pub seq: Seq,
    /// When, by the real-time clock. An effect gives this time to what it touches.
    pub time: Timestamp,
    /// What.
    pub entry: Entry,
}

/// What a record says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// One effect with its inverse.
    Effect(Box<EffectEntry>),
    /// A new step begins: effects that follow belong to it.
    Step {
        /// From 1, rising.
        step: StepId,
        /// The words of it: a command line, shell-quoted, or "mount".
        what: Vec<u8>,
    },
    /// A mark to which the transaction can be rolled back.
    Savepoint {
        /// Its name, unique among the live ones.
        name: Vec<u8>,
    },
    /// All effects after `to` were taken back by their inverses, newest first.
    RolledBack {
        /// The last record that still holds.
        to: Seq,
    },
    /// A process that caused effects, before the first effect that names it.
    Process {
        /// The number by which effects name it, from 1.
        proc: ProcId,
        /// Its process id.
        pid: u32,
        /// The parent, where known.
        parent: Option<ProcId>,
        /// `/proc/PID/exe`; empty is unknown.
        exe: Vec<u8>,
        /// `/proc/PID/cmdline`, NUL-separated, cut at 4 KiB; empty is unknown.
        argv: Vec<u8>,
    },
}

/// One effect, its inverse, and what both need.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EffectEntry {
    /// The effect.
    pub effect: Effect,
    /// What takes it back.
    pub inverse: Inverse,
    /// Times of directories and objects that the effect changed besides its subject's own.
    pub times: Vec<TimesBefore>,
    /// Base objects that no earlier record had named, parents before children.
    pub binds: Vec<Bind>,
    /// Who did it.
    pub proc: ProcId,
}

/// The state of a transaction: `Open` to `Sealed` to `Committed`, or `Open` to `Aborting` to
/// `Aborted`; `Sealed` to `Open` only when apply was wholly rolled back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TxnState {
    /// It takes effects.
    Open,
    /// Its plan is durable; apply goes on until it is done or rolled back.
    Sealed,
    /// It became this generation.
    Committed(Generation),
    /// Its staged content is being removed.
    Aborting,
    /// Nothing of it is left but this.
    Aborted,
}

impl fmt::Display for TxnState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TxnState::Open => f.write_str("open"),
            TxnState::Sealed => f.write_str("sealed"),
            TxnState::Committed(generation) => write!(f, "committed as generation {generation}"),
            TxnState::Aborting => f.write_str("being aborted"),
            TxnState::Aborted => f.write_str("aborted"),
        }
    }
}

/// The head of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TxnHead {
    /// Its id.
    pub id: TxnId,
    /// Its name, unique among the open ones. Users' names are 1 to 64 bytes of `[A-Za-z0-9._-]` and do not
    /// begin with `.` or `-`.
    pub name: String,
    /// The uid that owns it.
    pub owner: u32,
    /// The generation its view shows beneath its effects.
    pub base: Generation,
    /// When it began.
    pub began: Timestamp,
    /// Where it stands.
    pub state: TxnState,
}
