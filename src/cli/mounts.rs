//! Plain mounts: `mount`, `umount`, and the end of a daemon.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::args::Global;
use super::place::{Place, absolute, find, name, view_at};
use crate::daemon::client::{self, Target};
use crate::fuse::mount;
use crate::proto::{Code, Failure, MountHow, MountReply, PathBytes, Reply, TxnInfo, Verb};
use crate::run::user;

fn internal() -> Failure {
    Failure::new(Code::Internal, "the daemon answered something else")
        .hint("txfs __stop, then run the command again")
}

/// Checks a mount point, after a dead mount on it was taken away.
fn check(target: &Target, at: &Path) -> Result<PathBuf, Failure> {
    if mount::is_dead(at) {
        detach(at)?;
    }
    let meta = std::fs::symlink_metadata(at).map_err(|e| {
        Failure::new(Code::NotFound, format!("cannot mount at {}: {e}", name(at)))
            .hint(format!("mkdir -p {}", name(at)))
    })?;
    if !meta.is_dir() {
        return Err(Failure::new(Code::Usage, format!("{} is no directory", name(at)))
            .hint("name an empty directory"));
    }
    let at = absolute(at)?;
    if at.starts_with(&target.workspace) {
        return Err(Failure::new(Code::Refused, format!("{} is inside the workspace", name(&at)))
            .hint("name a directory outside, or use txfs run, which needs none"));
    }
    let occupied = std::fs::read_dir(&at).is_ok_and(|mut d| d.next().is_some());
    if occupied || user::is_mount_point(&at) {
        return Err(Failure::new(
            Code::Busy,
            format!("{} is not empty, or mounted already", name(&at)),
        )
        .hint("name an empty directory"));
    }
    Ok(at)
}

fn detach(at: &Path) -> Result<(), Failure> {
    let done = if rustix::process::geteuid().is_root() {
        mount::detach(at)
    } else {
        user::fusermount_unmount(at)
    };
    done.map_err(|e| {
        Failure::new(Code::Busy, format!("cannot unmount {}: {e}", name(at)))
            .hint("fuser -vm shows who uses it")
    })
}

/// Mounts the view of a transaction at a directory.
pub(super) fn mount(target: &Target, txn: &str, at: &Path) -> Result<MountReply, Failure> {
    let at = check(target, at)?;
    let mut wire = client::connect(target)?;
    let point = PathBytes(at.as_os_str().as_bytes().to_vec());
    let busy = |reply: &MountReply| {
        let whom = match (&reply.txn.mount, reply.holder) {
            (Some(at), _) => format!("mounted at {}", crate::report::quote::shown(&at.0)),
            (None, Some(pid)) => format!("in use by the run with process id {pid}"),
            (None, None) => "in use by what an earlier run left in the background".into(),
        };
        Failure::new(Code::Busy, format!("transaction \"{txn}\" is {whom}"))
            .hint("txfs umount, or end that run, or use another transaction: --txn NAME")
    };
    if rustix::process::geteuid().is_root() {
        let answer = client::ask(
            &mut wire,
            txn,
            Verb::Mount { how: MountHow::Detached, at: point },
            None,
            |_| Ok(()),
        )?;
        let Reply::Mount(reply) = answer.reply else { return Err(internal()) };
        let Some(fd) = answer.fd else { return Err(busy(&reply)) };
        mount::attach(std::os::fd::AsFd::as_fd(&fd), &at).map_err(|e| {
            Failure::new(Code::Io, format!("cannot mount at {}: {e}", name(&at)))
                .hint("name an empty directory")
        })?;
        return Ok(reply);
    }
    let answer = client::ask(
        &mut wire,
        txn,
        Verb::Mount { how: MountHow::Ask, at: point.clone() },
        None,
        |_| Ok(()),
    )?;
    let Reply::Mount(reply) = answer.reply else { return Err(internal()) };
    if reply.existing {
        return Err(busy(&reply));
    }
    let device = user::fusermount(&at).map_err(|e| {
        Failure::new(Code::Unavailable, format!("fusermount3 cannot mount at {}: {e}", name(&at)))
            .hint("apt-get install fuse3, and check that /dev/fuse is open to you")
    })?;
    let mut wire = client::connect(target)?;
    let answer = client::ask(
        &mut wire,
        txn,
        Verb::Mount { how: MountHow::FuseFd, at: point },
        Some(&device),
        |_| Ok(()),
    );
    match answer {
        Ok(client::Answer { reply: Reply::Mount(reply), .. }) => Ok(reply),
        Ok(_) => Err(internal()),
        Err(failure) => {
            detach(&at)?;
            Err(failure)
        }
    }
}

/// The place that a mount point says it belongs to; the one around us if it was a dead one, which is
/// detached.
pub(super) fn place_of(global: &Global, at: &Path) -> Result<Place, Failure> {
    if mount::is_dead(at) {
        detach(at)?;
        return find(global, false);
    }
    let Some(view) = view_at(at) else {
        return Err(Failure::new(Code::NotFound, format!("no view is mounted at {}", name(at)))
            .hint("txfs list"));
    };
    let txn = view.txn.clone();
    Ok(view.place(global, txn))
}

/// Unmounts the view of a transaction.
pub(super) fn umount(target: &Target, txn: &str, at: Option<&Path>) -> Result<TxnInfo, Failure> {
    let mut wire = client::connect(target)?;
    let answer = client::ask(&mut wire, txn, Verb::Umount, None, |_| Ok(()))?;
    let Reply::Txn(mut info) = answer.reply else { return Err(internal()) };
    let recorded = info.mount.take().map(|p| PathBuf::from(std::ffi::OsString::from_vec(p.0)));
    match at.map(Path::to_path_buf).or(recorded) {
        Some(at) => {
            if user::is_mount_point(&at) || mount::is_dead(&at) {
                detach(&at)?;
            }
            wait_until_unmounted(target, txn)?;
            Ok(info)
        }
        None => Err(Failure::new(Code::NotFound, format!("transaction \"{txn}\" is not mounted"))
            .hint("txfs list")),
    }
}

/// The kernel tells the daemon of the unmount some time after umount(2) has returned; whoever mounts next
/// must not meet the old view.
fn wait_until_unmounted(target: &Target, txn: &str) -> Result<(), Failure> {
    let Some(mut wire) = client::running(target) else { return Ok(()) };
    match client::ask(&mut wire, txn, Verb::Unmounted, None, |_| Ok(())) {
        Ok(_) => Ok(()),
        Err(failure) if failure.code == Code::NotFound => Ok(()),
        Err(failure) => Err(failure),
    }
}

/// Ends the daemon of a workspace; with `force` its mounts are detached first.
pub(super) fn stop(target: &Target, force: bool) -> Result<(), Failure> {
    let Some(mut wire) = client::running(target) else { return Ok(()) };
    if force {
        let answer = client::ask(&mut wire, "main", Verb::List, None, |_| Ok(()))?;
        let Reply::List(list) = answer.reply else { return Err(internal()) };
        for at in list.txns.iter().filter_map(|t| t.mount.as_ref()) {
            let at = PathBuf::from(std::ffi::OsString::from_vec(at.0.clone()));
            if user::is_mount_point(&at) {
                detach(&at)?;
            }
        }
        match client::running(target) {
            Some(again) => wire = again,
            None => return Ok(()),
        }
    }
    let reply = client::ask(&mut wire, "main", Verb::Stop { force }, None, |_| Ok(()))?.reply;
    let Reply::Daemon(daemon) = reply else { return Err(internal()) };
    wait_for_end(daemon.daemon_pid);
    Ok(())
}

/// Waits for the end of a process that has said it ends.
fn wait_for_end(pid: u32) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    let Ok(fd) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    if let Err(e) = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)) {
        log::debug!("{e}");
    }
}
