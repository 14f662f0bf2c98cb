//! The closed catalog of effects and their inverses.
//!
//! Every change to a view is one of four effects. Each is recorded together with its inverse: the
//! data that takes it back, bound to object identities, host-local and infallible.

use crate::id::{ObjId, SlotId};
use crate::name::Name;
use crate::object::{Overrides, Timestamp, Xattrs};

/// A name in a directory of the view.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Slot {
    /// The directory.
    pub parent: ObjId,
    /// The name in it.
    pub name: Name,
}

/// One reversible change of a view.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// rename(2); its inverse is [`Inverse::Unmove`].
    Move {
        /// What moved.
        obj: ObjId,
        /// From where.
        from: Slot,
        /// To where.
        to: Slot,
        /// What was at `to`.
        over: Over,
    },
    /// unlink(2) and rmdir(2); its inverse is [`Inverse::Unrm`].
    Rm {
        /// What lost a name.
        obj: ObjId,
        /// The name it lost.
        at: Slot,
    },
    /// mkdir(2); its inverse is [`Inverse::RmdirIfEmpty`].
    Mkdir {
        /// The new directory.
        obj: ObjId,
        /// Where.
        at: Slot,
        /// `mode`, `uid` and `gid` are always set.
        attrs: Overrides,
        /// What it inherited (default ACL).
        xattrs: Xattrs,
    },
    /// A new state of one entry; its inverse is [`Inverse::Restore`].
    Write {
        /// Whose state.
        obj: ObjId,
        /// The new state.
        change: Change,
    },
}

/// What a rename found at its destination.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Over {
    /// Nothing.
    Nothing,
    /// An object that lost this name.
    Replaced(ObjId),
    /// An object that went to `from` (`RENAME_EXCHANGE`).
    Exchanged(ObjId),
}

/// The new state that a [`Effect::Write`] gives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// A new entry that is not a directory.
    Create {
        /// Where.
        at: Slot,
        /// What.
        node: NewNode,
        /// `mode`, `uid` and `gid` are always set.
        attrs: Overrides,
        /// What it inherited (access ACL).
        xattrs: Xattrs,
    },
    /// A further name, link(2).
    Link {
        /// The new name.
        at: Slot,
    },
    /// From here on the content is that of a staged file: first write, truncation, or the first
    /// write after a savepoint. Later writes to the same staged file record nothing.
    Content {
        /// The staged file.
        slot: SlotId,
    },
    /// chmod, chown, utimensat: those that are `Some` change.
    Attrs(Overrides),
    /// setxattr, removexattr.
    Xattr {
        /// The full name.
        name: Vec<u8>,
        /// `None` removes it.
        value: Option<Vec<u8>>,
    },
}

/// A new entry that is not a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NewNode {
    /// A regular file, its content in a staged file.
    File {
        /// The staged file.
        slot: SlotId,
    },
    /// A symbolic link.
    Symlink {
        /// Its text.
        target: Vec<u8>,
    },
    /// A FIFO.
    Fifo,
    /// A socket's name.
    Socket,
    /// A character device, inert in a view.
    Char {
        /// `makedev(3)`
        rdev: u64,
    },
    /// A block device, inert in a view.
    Block {
        /// `makedev(3)`
        rdev: u64,
    },
}

/// What takes an effect back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Inverse {
    /// Takes back [`Effect::Move`]: back to `from`, and what was at `to` back there.
    Unmove {
        /// What moved.
        obj: ObjId,
        /// Where it came from.
        from: Slot,
        /// Where it went.
        to: Slot,
        /// What was there.
        over: Over,
    },
    /// Takes back [`Effect::Rm`].
    Unrm {
        /// What lost its name.
        obj: ObjId,
        /// The name.
        at: Slot,
    },
    /// Takes back [`Effect::Mkdir`]; legal only on an empty directory.
    RmdirIfEmpty {
        /// The directory.
        obj: ObjId,
        /// Where it is.
        at: Slot,
    },
    /// Takes back [`Effect::Write`].
    Restore {
        /// Whose state.
        obj: ObjId,
        /// The state before.
        to: Preimage,
    },
}

/// The state before a [`Effect::Write`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Preimage {
    /// The name did not exist (create, link).
    Absent {
        /// The name.
        at: Slot,
    },
    /// The content was elsewhere.
    Content {
        /// `None` is the base's own content.
        slot: Option<SlotId>,
    },
    /// All overrides as they were.
    Attrs(Overrides),
    /// One extended attribute of the delta as it was: `None` is "the delta said nothing",
    /// `Some(None)` is "removed".
    Xattr {
        /// The full name.
        name: Vec<u8>,
        /// The delta's word on it before.
        before: Option<Option<Vec<u8>>>,
    },
}

/// The times an effect changed besides its own subject: those of the directories whose entries
/// changed and the `ctime` of objects that gained or lost a name. Kept so that the inverse is exact.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TimesBefore {
    /// Whose.
    pub obj: ObjId,
    /// The delta's override of `mtime` before the effect.
    pub mtime: Option<Timestamp>,
    /// The delta's override of `ctime` before the effect.
    pub ctime: Option<Timestamp>,
}
