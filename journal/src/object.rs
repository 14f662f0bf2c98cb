//! What is recorded of an object of the base or the view: identity, fingerprint, attributes.

use std::collections::BTreeMap;

use crate::id::ObjId;
use crate::name::{Name, RelPath};

/// Seconds and nanoseconds since the epoch, as `struct timespec` has them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp {
    /// Whole seconds; negative before 1970.
    pub secs: i64,
    /// 0 to 999,999,999, counted forward from `secs` also before 1970.
    pub nanos: u32,
}

/// The kind of a file, `S_IFMT` of `st_mode`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// `S_IFREG`
    File,
    /// `S_IFDIR`
    Dir,
    /// `S_IFLNK`
    Symlink,
    /// `S_IFIFO`
    Fifo,
    /// `S_IFSOCK`
    Socket,
    /// `S_IFCHR`
    Char,
    /// `S_IFBLK`
    Block,
}

/// Which inode of the base's file system an object is.
///
/// The inode number alone is given out again as soon as a file is gone; the birth time tells the
/// two apart. It is `None` where the file system has none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ident {
    /// `stx_ino`
    pub ino: u64,
    /// `stx_btime`
    pub btime: Option<Timestamp>,
    /// An inode never changes its kind.
    pub kind: Kind,
}

/// The state of a base object as it was when the transaction first touched it, or as a commit
/// left it. Compared at commit and undo; a difference is drift.
///
/// `ctime` is compared except inside apply and recovery, where our own renames change it. Of a
/// directory only identity, mode and owner are compared: its times change with every sibling.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fingerprint {
    /// Which inode.
    pub ident: Ident,
    /// `file_handle` of name_to_handle_at(2): 4 bytes of little-endian type, then the bytes;
    /// empty where the file system has none.
    pub handle: Vec<u8>,
    /// Permission bits, `st_mode & 0o7777`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links.
    pub nlink: u32,
    /// Bytes.
    pub size: u64,
    /// Device number of a device node, as `makedev(3)` packs it; 0 otherwise.
    pub rdev: u64,
    /// Last modification.
    pub mtime: Timestamp,
    /// Last status change.
    pub ctime: Timestamp,
}

/// Where a base object of a view was met: a name in a directory of the base.
///
/// A record carries one for each base object that the transaction had not recorded before, the
/// directories on the way to the root included, so that the view can be rebuilt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bind {
    /// The object.
    pub obj: ObjId,
    /// The directory of the base in which it was met (by its place in the base, not in the view).
    pub parent: ObjId,
    /// Its name there.
    pub name: Name,
    /// Its state then.
    pub print: Fingerprint,
}

/// Attributes that a view shows in place of the inode's own. `None` is "as the inode has it".
///
/// A new object has all of `mode`, `uid`, `gid` set. The times of a file with staged content are
/// those of the staged inode unless set here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Overrides {
    /// Permission bits, `& 0o7777`.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last access.
    pub atime: Option<Timestamp>,
    /// Last modification.
    pub mtime: Option<Timestamp>,
    /// Last status change; shown by the view, never applied to the base.
    pub ctime: Option<Timestamp>,
}

/// Extended attributes by full name (`user.x`, `security.capability`, `system.posix_acl_access`).
pub type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// The attributes a commit gives to an object of the base, and those it had.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Meta {
    /// Permission bits, `& 0o7777`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access; `None` leaves it.
    pub atime: Option<Timestamp>,
    /// Last modification.
    pub mtime: Timestamp,
    /// All extended attributes; `None` leaves them.
    pub xattrs: Option<Xattrs>,
}

/// A name in a directory of the base, by path, with the identity of the directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The path below the base's root.
    pub path: RelPath,
    /// The inode of the directory that holds the name. The layers of older views find it by this.
    pub parent_ino: u64,
}
