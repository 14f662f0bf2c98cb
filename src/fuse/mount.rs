//! Making, passing and ending mounts.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
    open_tree, unmount,
};

use crate::sys;

/// A FUSE connection before INIT, and its mount, attached nowhere.
pub struct Detached {
    /// The connection.
    pub device: OwnedFd,
    /// The mount.
    pub mount: OwnedFd,
}

/// Opens `/dev/fuse`.
///
/// # Errors
/// Those of open(2).
pub fn open_device() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Checks that a descriptor is a FUSE connection on which the kernel has something to say, as it has
/// from the moment of the mount: the handshake that follows would wait for it for ever.
///
/// # Errors
/// `EINVAL` for anything but `/dev/fuse`; `TimedOut` if nothing has been mounted with it.
pub fn expect_init(device: &OwnedFd) -> io::Result<()> {
    /// `FUSE_MINOR` of the misc devices, major 10, in Linux's devices.txt.
    const FUSE: (u32, u32) = (10, 229);
    const LIMIT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
    let stat = rustix::fs::fstat(device)?;
    let number = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    if !FileType::from_raw_mode(stat.st_mode).is_char_device() || number != FUSE {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut fds = [PollFd::new(device, PollFlags::IN)];
    match poll(&mut fds, Some(&LIMIT))? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}

/// What the mounts of a transaction have as their source in mountinfo: a run finds its
/// transaction's view by it.
#[must_use]
pub fn source(txn: &str) -> String {
    format!("txfs:{txn}")
}

/// Makes a mount of a transaction's view with fsopen(2) and fsmount(2). Needs CAP_SYS_ADMIN in the user namespace that
/// owns the mount namespace.
///
/// # Errors
/// Those of the calls.
pub fn detached(allow_other: bool, txn: &str) -> io::Result<Detached> {
    let device = open_device()?;
    let fs = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    sys::fsconfig_set_fd(fs.as_fd(), c"fd", device.as_fd()).or_else(|_| -> io::Result<()> {
        use std::os::fd::AsRawFd;
        Ok(fsconfig_set_string(&fs, "fd", device.as_raw_fd().to_string())?)
    })?;
    fsconfig_set_string(&fs, "source", source(txn))?;
    fsconfig_set_string(&fs, "subtype", "txfs")?;
    fsconfig_set_string(&fs, "rootmode", "40000")?;
    fsconfig_set_string(&fs, "user_id", rustix::process::getuid().as_raw().to_string())?;
    fsconfig_set_string(&fs, "group_id", rustix::process::getgid().as_raw().to_string())?;
    fsconfig_set_flag(&fs, "default_permissions")?;
    if allow_other {
        fsconfig_set_flag(&fs, "allow_other")?;
    }
    fsconfig_create(&fs)?;
    let attrs = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOATIME;
    let mount = fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attrs)?;
    Ok(Detached { device, mount })
}

/// Attaches a detached mount.
///
/// # Errors
/// Those of move_mount(2).
pub fn attach(mount: BorrowedFd<'_>, at: &Path) -> io::Result<()> {
    Ok(move_mount(mount, "", rustix::fs::CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// A further mount of what is mounted at a path, attached nowhere.
///
/// # Errors
/// Those of open_tree(2).
pub fn clone_of(at: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    Ok(open_tree(rustix::fs::CWD, at, flags)?)
}

/// Detaches what is mounted at a path; those who use it go on.
///
/// # Errors
/// Those of umount2(2).
pub fn detach(at: &Path) -> io::Result<()> {
    Ok(unmount(at, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?)
}

/// Whether a path is a mount point whose server is dead.
#[must_use]
pub fn is_dead(at: &Path) -> bool {
    // Not stat(2): the kernel may answer that from what it remembers.
    let dead = [Some(libc::ENOTCONN), Some(libc::ECONNABORTED)];
    std::fs::symlink_metadata(at).is_err_and(|e| dead.contains(&e.raw_os_error()))
}
