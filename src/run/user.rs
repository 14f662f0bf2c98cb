//! What an ordinary user needs: namespaces of his own, and fusermount3 for plain mounts.

use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::thread::{ThreadNameSpaceType, UnshareFlags};

use super::enter::{Attempt, enter, follow, own_mounts, request};
use super::unavailable;
use crate::base;
use crate::daemon::client::{self, Target};
use crate::daemon::wire::Wire;
use crate::fuse::mount;
use crate::proto::{Failure, MountHow};
use crate::sys;

/// The identity maps of a user namespace: the ids that we have stay what they are.
pub(crate) struct Maps {
    uid: String,
    gid: String,
}

/// Made before namespaces change, when our ids are still those outside.
pub(crate) fn maps() -> Maps {
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    Maps { uid: format!("{uid} {uid} 1"), gid: format!("{gid} {gid} 1") }
}

fn write_maps(maps: &Maps) -> io::Result<()> {
    let write = |path: &str, text: &str| {
        let mut file = std::fs::File::options().write(true).open(path)?;
        file.write_all(text.as_bytes())
    };
    // A user may map groups only after giving up setgroups(2), user_namespaces(7). In a namespace
    // inside one that gave it up, it is given up already.
    match write("/proc/self/setgroups", "deny") {
        Err(e) if e.kind() != io::ErrorKind::PermissionDenied => return Err(e),
        _ => {}
    }
    write("/proc/self/uid_map", &maps.uid)?;
    write("/proc/self/gid_map", &maps.gid)
}

/// Between fork and exec: a further user and mount namespace, in which all mounts are locked. The
/// command can uncover nothing, and has no capability.
pub(crate) fn lock_mounts(maps: &Maps) -> io::Result<()> {
    sys::unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)?;
    write_maps(maps)
}

/// Places the view over the workspace in namespaces of our own.
pub(super) fn enter_as_user(target: &Target, txn: &str) -> Result<Wire, Failure> {
    let both = ThreadNameSpaceType::USER | ThreadNameSpaceType::MOUNT;
    enter(target, txn, || {
        let mut wire = client::connect(target)?;
        let (reply, _) = request(&mut wire, txn, MountHow::Ask, None)?;
        if !reply.existing {
            return begin(target, txn).map(Attempt::In);
        }
        let followed = follow(target, txn, &reply, both, own_namespaces)?;
        Ok(followed.map_or(Attempt::In(wire), Attempt::Later))
    })
}

fn own_namespaces() -> io::Result<()> {
    let maps = maps();
    sys::unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)?;
    write_maps(&maps)?;
    own_mounts(UnshareFlags::empty())
}

fn begin(target: &Target, txn: &str) -> Result<Wire, Failure> {
    let at = &target.workspace;
    // Connected while our ids are those outside and the workspace's path still leads to the base.
    let mut wire = client::connect(target)?;
    own_namespaces().map_err(|e| {
        unavailable("this system does not let you have namespaces of your own", &e, at)
    })?;
    // Opened in here: FUSE takes a device only from the namespace that mounts it.
    let made =
        mount::detached(true, txn).map_err(|e| unavailable("cannot make a FUSE mount", &e, at))?;
    request(&mut wire, txn, MountHow::FuseFd, Some(&made.device))?;
    drop(made.device);
    mount::attach(made.mount.as_fd(), at)
        .map_err(|e| unavailable("cannot place the view over the workspace", &e, at))?;
    Ok(wire)
}

/// Whether something is mounted at a path.
#[must_use]
pub fn is_mount_point(at: &Path) -> bool {
    base::stat_at(rustix::fs::CWD, at.as_os_str().as_bytes()).is_ok_and(|s| s.mount_root)
}

/// Has fusermount3 mount at a directory, and takes the FUSE connection from it.
///
/// # Errors
/// If it is not installed, or refuses; its words have gone to standard error.
pub fn fusermount(at: &Path) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    let number = theirs.as_raw_fd();
    let mut command = Command::new("fusermount3");
    command
        .args(["-o", "rw,nosuid,nodev,noatime,default_permissions,fsname=txfs,subtype=txfs", "--"])
        .arg(at)
        .env("_FUSE_COMMFD", "3")
        .stdin(Stdio::null());
    sys::before_exec(&mut command, move || sys::move_fd(number, 3));
    let mut child = command.spawn()?;
    drop(theirs);
    let received = receive_fd(&ours);
    let status = child.wait()?;
    if !status.success() {
        return Err(io::Error::other(format!("it ended with {status}")));
    }
    received?.ok_or_else(|| io::Error::other("it passed no connection"))
}

fn receive_fd(from: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0u8; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(from, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message {
            return Ok(fds.next());
        }
    }
    Ok(None)
}

/// Has fusermount3 detach what is mounted at a directory.
///
/// # Errors
/// If it is not installed, or refuses.
pub fn fusermount_unmount(at: &Path) -> io::Result<()> {
    let status = Command::new("fusermount3")
        .args(["-u", "-z", "-q", "--"])
        .arg(at)
        .stdin(Stdio::null())
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("fusermount3 ended with {status}")))
    }
}
