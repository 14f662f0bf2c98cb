//! What a view takes and returns. The FUSE adapter translates between these and the kernel.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use txfs_journal::{Kind, Name, ObjId, Timestamp};

/// The result of one operation. An errno is what the program sees; whatever a person needs to know
/// besides has been logged where the error arose.
pub type OpResult<T> = Result<T, Errno>;

/// Who asks, from the request.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// File-system uid.
    pub uid: u32,
    /// File-system gid.
    pub gid: u32,
    /// Thread id of the caller; 0 where the kernel does not say (release, page-cache writes).
    pub pid: u32,
}

/// The attributes of an object as the view shows them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    /// `st_ino` and FUSE node id.
    pub obj: ObjId,
    /// `S_IFMT`
    pub kind: Kind,
    /// `& 0o7777`
    pub mode: u32,
    /// Hard links in the view; directories as the base counts them.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// `makedev(3)`
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// 512-byte blocks in use.
    pub blocks: u64,
    /// Preferred I/O size.
    pub blksize: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last modification.
    pub mtime: Timestamp,
    /// Last status change.
    pub ctime: Timestamp,
}

/// Who besides this view can change something: decides how long the kernel may cache it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trust {
    /// Only this view: cache for long.
    Own,
    /// Also processes that edit the base: cache for the bounded time.
    Base,
    /// A mapped or passthrough writer can change times and size unseen: do not cache attributes.
    Writer,
}

/// A found or made entry. It counts as one lookup, to be given back by `forget`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its attributes.
    pub attr: Attr,
    /// Who can change the attributes.
    pub attr_trust: Trust,
    /// Who can change what the name means.
    pub name_trust: Trust,
}

/// An open file or directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Fh(pub u64);

/// How the data of an open file travels.
#[derive(Clone, Debug)]
pub enum DataPath {
    /// Through `read` and `write`, cached write-through.
    Cached {
        /// The kernel's pages of earlier opens are still right.
        keep: bool,
    },
    /// The kernel reads and writes this file itself. All handles of one object that are open at
    /// one time have the same file.
    Passthrough(Arc<OwnedFd>),
}

/// An opened file.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The handle.
    pub fh: Fh,
    /// The way of its data.
    pub data: DataPath,
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// `UTIME_NOW`
    Now,
    /// This.
    At(Timestamp),
}

/// What `setattr` shall change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    /// chmod, `& 0o7777`.
    pub mode: Option<u32>,
    /// chown.
    pub uid: Option<u32>,
    /// chown.
    pub gid: Option<u32>,
    /// truncate.
    pub size: Option<u64>,
    /// utimensat.
    pub atime: Option<SetTime>,
    /// utimensat.
    pub mtime: Option<SetTime>,
}

/// What `mknod` and `create` make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeSpec {
    /// Not `Dir`, not `Symlink`.
    pub kind: Kind,
    /// `& 0o7777`, before the umask.
    pub mode: u32,
    /// The caller's umask; ignored where the directory has a default ACL.
    pub umask: u32,
    /// For device nodes.
    pub rdev: u64,
}

/// renameat2(2)'s flags that a view knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RenameMode {
    /// Replace what is there.
    Replace,
    /// `RENAME_NOREPLACE`
    NoReplace,
    /// `RENAME_EXCHANGE`
    Exchange,
}

/// One entry of a listing. `.` and `..` are not listed here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// `st_ino`
    pub obj: ObjId,
    /// `S_IFMT`
    pub kind: Kind,
    /// Its name.
    pub name: Name,
}

/// What the kernel must forget after a change that did not come through it. Performed by the
/// notifier thread, never inside a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Forget {
    /// Attributes of an object.
    Attr(ObjId),
    /// Attributes and pages of an object.
    Data(ObjId),
    /// What these names mean, or that they mean nothing. Directories in use stay in use.
    Names(Vec<(ObjId, Name)>),
    /// What all names mean. Mounts below directories of the view may be lost by it.
    AllNames,
}

/// The kernel's side of a view, where it is mounted.
pub trait Kernel: Send + Sync {
    /// Queues what shall be forgotten and returns.
    fn forget(&self, what: Vec<Forget>);
    /// Pulls in the dirty pages of mapped files: returns when the kernel's writes have been
    /// served or `timeout` is over, and everything queued before has been forgotten. Must be called without any lock of the view.
    fn drain(&self, objs: &[ObjId], timeout: std::time::Duration) -> std::io::Result<()>;
}
