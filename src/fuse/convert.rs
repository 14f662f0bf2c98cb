//! Between fuser's types and the view's.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType, INodeNo, ReplyEmpty, Request, TimeOrNow};
use txfs_journal::{BadName, Kind, Name, Timestamp};

use crate::view::api::{Attr, Caller, OpResult, SetTime};

/// The kernel's form of an errno.
pub(super) fn error(e: rustix::io::Errno) -> Errno {
    Errno::from_i32(e.raw_os_error())
}

/// The kernel's form of an error that an operation on a node ended with. What no program provokes
/// by asking for something impossible leaves a line in the log.
pub(super) fn failed(op: &str, ino: INodeNo, e: rustix::io::Errno) -> Errno {
    use rustix::io::Errno as E;
    if [E::IO, E::NOMEM, E::MFILE, E::NFILE, E::BADF, E::NOTCONN].contains(&e) {
        log::warn!("{op} on node {ino}: {e}");
    } else if e == E::STALE {
        log::debug!("{op} on node {ino}: {e}");
    }
    error(e)
}

/// An empty answer.
pub(super) fn ack(op: &str, ino: INodeNo, result: OpResult<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(failed(op, ino, e)),
    }
}

/// A checked name.
pub(super) fn name(name: &OsStr) -> OpResult<Name> {
    Name::new(name.as_bytes()).map_err(|e| match e {
        BadName::TooLong => rustix::io::Errno::NAMETOOLONG,
        BadName::Empty => rustix::io::Errno::NOENT,
        BadName::Dots | BadName::Slash | BadName::Nul => rustix::io::Errno::INVAL,
    })
}

/// Who asks.
pub(super) fn caller(req: &Request) -> Caller {
    let own = own_ids();
    // What an ordinary user's daemon is to make can only be his: root in his view is he.
    let (uid, gid) = match own {
        (0, _) => (req.uid(), req.gid()),
        (uid, gid) if uid != req.uid() => (uid, gid),
        (uid, _) => (uid, req.gid()),
    };
    Caller { uid, gid, pid: req.pid() }
}

/// User and group of this process, which stay.
fn own_ids() -> (u32, u32) {
    static OWN: std::sync::OnceLock<(u32, u32)> = std::sync::OnceLock::new();
    *OWN.get_or_init(|| (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()))
}

/// Whether this process could give an inode to that user and group, which commit will have to.
pub(super) fn may_give_to(uid: Option<u32>, gid: Option<u32>) -> bool {
    let (own, own_gid) = own_ids();
    let is_ours = |gid| {
        let groups = rustix::process::getgroups().unwrap_or_default();
        gid == own_gid || groups.iter().any(|g| g.as_raw() == gid)
    };
    own == 0 || (uid.is_none_or(|uid| uid == own) && gid.is_none_or(is_ours))
}

/// A kind as fuser says it.
pub(super) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Dir => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::Char => FileType::CharDevice,
        Kind::Block => FileType::BlockDevice,
    }
}

/// The kind that mknod(2) asks for; no type bits mean a regular file.
pub(super) fn kind_of_mode(mode: u32) -> Option<Kind> {
    match mode & libc::S_IFMT {
        0 | libc::S_IFREG => Some(Kind::File),
        libc::S_IFIFO => Some(Kind::Fifo),
        libc::S_IFSOCK => Some(Kind::Socket),
        libc::S_IFCHR => Some(Kind::Char),
        libc::S_IFBLK => Some(Kind::Block),
        _ => None,
    }
}

/// A time as fuser says it; one that [`SystemTime`] cannot hold becomes the epoch.
fn system_time(t: Timestamp) -> SystemTime {
    let whole = Duration::from_secs(t.secs.unsigned_abs());
    let base =
        if t.secs >= 0 { UNIX_EPOCH.checked_add(whole) } else { UNIX_EPOCH.checked_sub(whole) };
    base.and_then(|b| b.checked_add(Duration::from_nanos(t.nanos.into()))).unwrap_or(UNIX_EPOCH)
}

/// A time as the kernel sent it. fuser 0.18.0 subtracts the nanoseconds of times before 1970
/// where it should add them; taking both parts apart again gives what was sent.
fn timestamp(t: SystemTime) -> Timestamp {
    match t.duration_since(UNIX_EPOCH) {
        Ok(d) => Timestamp {
            secs: i64::try_from(d.as_secs()).unwrap_or(i64::MAX),
            nanos: d.subsec_nanos(),
        },
        Err(before) => {
            let d = before.duration();
            let secs = i64::try_from(d.as_secs()).map_or(i64::MIN, |s| -s);
            Timestamp { secs, nanos: d.subsec_nanos() }
        }
    }
}

/// A time to set.
pub(super) fn set_time(t: TimeOrNow) -> SetTime {
    match t {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(t) => SetTime::At(timestamp(t)),
    }
}

/// Attributes as fuser says them.
pub(super) fn file_attr(a: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(a.obj.0),
        size: a.size,
        blocks: a.blocks,
        atime: system_time(a.atime),
        mtime: system_time(a.mtime),
        ctime: system_time(a.ctime),
        crtime: UNIX_EPOCH,
        kind: file_type(a.kind),
        perm: a.mode as u16,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: kernel_rdev(a.rdev),
        blksize: a.blksize,
        flags: 0,
    }
}

/// The 32-bit form of a device number that FUSE has (new_encode_dev in linux/kdev_t.h).
fn kernel_rdev(rdev: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// Attributes that nobody looks at.
pub(super) fn nothing(ino: INodeNo) -> FileAttr {
    FileAttr {
        ino,
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::Directory,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// Node 0: an entry that is not there.
pub(super) fn absent() -> FileAttr {
    nothing(INodeNo(0))
}
