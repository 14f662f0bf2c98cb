//! Newtypes for every number the journal hands out or stores.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(pub $int);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A transaction, unique in its store for ever.
    TxnId(u64)
}
id! {
    /// The place of a record in its transaction, from 1 without gaps.
    Seq(u64)
}
id! {
    /// A committed state of the base. Generation 0 is the base as txfs first met it.
    Generation(u64)
}
id! {
    /// An object of one transaction's view: its FUSE node id and its `st_ino`.
    ///
    /// An untouched base object proposes its inode number; a number that another object of the
    /// same mount has had is never given out again, so the table in the view decides.
    ObjId(u64)
}
id! {
    /// A flat file in the staging directory of its transaction, and after commit a slot in
    /// `history/<generation>/`: the staging directory becomes the history directory.
    SlotId(u64)
}
id! {
    /// The effects of one command: one `run`, one `sh -c`, one mount session.
    StepId(u32)
}
id! {
    /// The process that caused an effect; 0 is "unknown".
    ProcId(u32)
}

impl ObjId {
    /// The root of every view; FUSE fixes this number.
    pub const ROOT: ObjId = ObjId(1);
    /// The first number for objects that have no base inode number to go by.
    pub const FIRST_NEW: ObjId = ObjId(1 << 62);
}

impl Generation {
    /// The generation that one more commit makes.
    #[must_use]
    pub fn next(self) -> Generation {
        Generation(self.0 + 1)
    }
}
