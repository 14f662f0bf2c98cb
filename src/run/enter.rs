//! Into the namespaces in which the view stands over the workspace: new ones, or those of a run of
//! the same transaction that is still there.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::mount::MountPropagationFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{ThreadNameSpaceType, UnshareFlags, move_into_thread_name_spaces};

use super::{internal, unavailable};
use crate::daemon::client::{self, Target};
use crate::daemon::place;
use crate::daemon::wire::Wire;
use crate::fuse::mount;
use crate::proto::{Code, Failure, MountHow, MountReply, PathBytes, Reply, Verb};

/// How often a view that is just ending is asked for again.
const TRIES: u32 = 400;
/// The time between.
const PAUSE: Duration = Duration::from_millis(5);

/// What came of one attempt.
pub(super) enum Attempt {
    /// We are in; the connection is the lease on the view.
    In(Wire),
    /// The run that was to be joined is gone: its view is about to end.
    Later(io::Error),
}

/// A mount namespace of our own, that still gets what the system mounts later.
pub(super) fn own_mounts(flags: UnshareFlags) -> io::Result<()> {
    crate::sys::unshare(flags)?;
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    Ok(rustix::mount::mount_change("/", slave)?)
}

/// Asks the daemon for the mount; the connection is the lease on it.
pub(super) fn request(
    wire: &mut Wire,
    txn: &str,
    how: MountHow,
    fd: Option<&OwnedFd>,
) -> Result<(MountReply, Option<OwnedFd>), Failure> {
    let verb = Verb::Mount { how, at: PathBytes::default() };
    let answer = client::ask(wire, txn, verb, fd, |_| Ok(()))?;
    let Reply::Mount(reply) = answer.reply else { return Err(internal()) };
    Ok((reply, answer.fd))
}

/// Whether what stands at a path is the view of this transaction.
pub(super) fn shows(at: &Path, target: &Target, txn: &str) -> bool {
    let is = |what: &str, value: &[u8]| {
        let mut buf = vec![0u8; value.len() + 1];
        rustix::fs::getxattr(at, what, &mut buf).is_ok_and(|len| buf[..len] == *value)
    };
    is("user.txfs.txn", txn.as_bytes())
        && is("user.txfs.workspace", target.workspace.as_os_str().as_bytes())
}

/// Enters the namespaces in which the view is over the workspace, by whichever way `attempt` finds.
/// Nothing is run unless the view really stands there.
///
/// # Errors
/// Those of the attempts, and [`Code::Unavailable`] if the view never came to stand there.
pub(super) fn enter(
    target: &Target,
    txn: &str,
    mut attempt: impl FnMut() -> Result<Attempt, Failure>,
) -> Result<Wire, Failure> {
    let _one_at_a_time = lock(target)?;
    if shows(&target.workspace, target, txn) {
        // A run inside a run.
        let mut wire = client::connect(target)?;
        request(&mut wire, txn, MountHow::Ask, None)?;
        return Ok(wire);
    }
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for _ in 0..TRIES {
        match attempt()? {
            Attempt::In(wire) if shows(&target.workspace, target, txn) => return Ok(wire),
            Attempt::In(_) => {}
            Attempt::Later(e) => last = e,
        }
        std::thread::sleep(PAUSE);
    }
    Err(unavailable("cannot place the view over the workspace", &last, &target.workspace))
}

/// Runs enter one after the other, so that the second finds the first one's view in its place.
fn lock(target: &Target) -> Result<OwnedFd, Failure> {
    let path = place::own_socket(&target.workspace)?.with_extension("lock");
    let opened = rustix::fs::open(
        &path,
        OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::RUSR | Mode::WUSR,
    );
    // The umask of whoever makes it must not keep the next one out.
    let open_to_us = |fd: &OwnedFd| rustix::fs::fchmod(fd, Mode::RUSR | Mode::WUSR);
    let locked = opened.and_then(|fd| {
        open_to_us(&fd)?;
        flock(&fd, FlockOperation::LockExclusive)?;
        Ok(fd)
    });
    locked.map_err(|e| {
        let e = io::Error::from(e);
        Failure::new(Code::Io, format!("cannot lock {}: {e}", super::name(&path)))
            .hint("check that the disk of the runtime directory is not full")
    })
}

/// As root: a mount made by the daemon, put over the workspace in a mount namespace of our own.
pub(super) fn enter_as_root(target: &Target, txn: &str) -> Result<Wire, Failure> {
    let at = &target.workspace;
    let cannot = |e: io::Error| unavailable("cannot place the view over the workspace", &e, at);
    enter(target, txn, || {
        let mut wire = client::connect(target)?;
        let (reply, fd) = match request(&mut wire, txn, MountHow::Detached, None) {
            // An ordinary user's daemon, which may not mount: we may.
            Err(failure) if failure.code == Code::Unavailable => {
                let made = mount::detached(true, txn)
                    .map_err(|e| unavailable("cannot make a FUSE mount", &e, at))?;
                wire = client::connect(target)?;
                let (reply, _) = request(&mut wire, txn, MountHow::FuseFd, Some(&made.device))?;
                let fd = (!reply.existing).then_some(made.mount);
                (reply, fd)
            }
            other => other?,
        };
        let Some(fd) = fd else {
            return follow(target, txn, &reply, ThreadNameSpaceType::MOUNT, || {
                own_mounts(UnshareFlags::NEWNS)
            })
            .map(|e| e.map_or(Attempt::In(wire), Attempt::Later));
        };
        own_mounts(UnshareFlags::NEWNS)
            .and_then(|()| mount::attach(fd.as_fd(), at))
            .map_err(cannot)?;
        Ok(Attempt::In(wire))
    })
}

/// To a view that is being served: bound from its plain mount, or where a process has it. Answers why
/// there is neither at the moment, or `None` when we are there.
pub(super) fn follow(
    target: &Target,
    txn: &str,
    reply: &MountReply,
    kinds: ThreadNameSpaceType,
    own: impl FnOnce() -> io::Result<()>,
) -> Result<Option<io::Error>, Failure> {
    let at = &target.workspace;
    if let Some(plain) = &reply.txn.mount {
        let plain = PathBuf::from(std::ffi::OsStr::from_bytes(&plain.0));
        if shows(&plain, target, txn) {
            own()
                .and_then(|()| Ok(rustix::mount::mount_bind(&plain, at)?))
                .map_err(|e| unavailable("cannot place the view over the workspace", &e, at))?;
            return Ok(None);
        }
    }
    // The run that began it may be over, and what it left in the background still be there.
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for pid in reply.holder.into_iter().chain(processes()) {
        if !has_view(pid, at, txn) {
            continue;
        }
        match join(pid, kinds) {
            Ok(()) => return Ok(None),
            Err(e) => last = e,
        }
    }
    Ok(Some(last))
}

/// One process of each mount namespace that we may look at, but ours.
fn processes() -> impl Iterator<Item = u32> {
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let mut seen: HashSet<PathBuf> = namespace("self").into_iter().collect();
    let listing = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    listing.filter_map(move |entry| {
        let name = entry.file_name();
        let pid: u32 = name.to_str()?.parse().ok()?;
        seen.insert(namespace(name.to_str()?)?).then_some(pid)
    })
}

/// Whether the topmost mount that a process has at a path is a view of this transaction.
fn has_view(pid: u32, at: &Path, txn: &str) -> bool {
    let Ok(mounts) = std::fs::read(format!("/proc/{pid}/mountinfo")) else { return false };
    let lines: Vec<_> = mounts.split(|&b| b == b'\n').collect();
    let top = lines.iter().rev().find_map(|line| Mounted::parse(line).filter(|m| m.is_at(at)));
    top.is_some_and(|m| m.kind == b"fuse.txfs" && m.source == mount::source(txn).as_bytes())
}

/// What we want of a line of mountinfo, proc_pid_mountinfo(5).
struct Mounted<'a> {
    at: &'a [u8],
    kind: &'a [u8],
    source: &'a [u8],
}

impl Mounted<'_> {
    fn parse(line: &[u8]) -> Option<Mounted<'_>> {
        let mut fields = line.split(|&b| b == b' ');
        let at = fields.nth(4)?;
        let mut after = fields.skip_while(|f| *f != b"-").skip(1);
        Some(Mounted { at, kind: after.next()?, source: after.next()? })
    }

    fn is_at(&self, path: &Path) -> bool {
        unescaped(self.at) == path.as_os_str().as_bytes()
    }
}

/// Blanks and the like are a backslash and three octal digits there.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    loop {
        match rest {
            [] => return out,
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..] => {
                out.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
                rest = tail;
            }
            [first, tail @ ..] => {
                out.push(*first);
                rest = tail;
            }
        }
    }
}

/// Joins the namespaces of a process.
pub(super) fn join(pid: u32, kinds: ThreadNameSpaceType) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
    let fd = pidfd_open(pid, PidfdFlags::empty())?;
    Ok(move_into_thread_name_spaces(fd.as_fd(), kinds)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo() {
        let line = br"36 35 98:0 /mnt1 /ws\040a#\134b rw,noatime master:1 - fuse.txfs txfs:main rw,errors=continue";
        let m = Mounted::parse(line).unwrap();
        assert_eq!((m.kind, m.source), (&b"fuse.txfs"[..], &b"txfs:main"[..]));
        assert!(m.is_at(Path::new("/ws a#\\b")));
        assert!(!m.is_at(Path::new("/ws a#\\")));
        assert!(Mounted::parse(b"").is_none());
    }
}
