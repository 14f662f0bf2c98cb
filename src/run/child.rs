//! The command itself: as if it had been started directly.
//!
//! It stays in our process group, so that the terminal's signals reach both: we ignore the
//! keyboard's, stop and go on with it, and pass on those that were sent to us alone.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};

use super::user;
use crate::proto::{Code, Failure};
use crate::sys;

/// Signals that are passed on.
const PASSED_ON: [(i32, Signal); 5] = [
    (SIGHUP, Signal::HUP),
    (SIGTERM, Signal::TERM),
    (SIGUSR1, Signal::USR1),
    (SIGUSR2, Signal::USR2),
    (SIGWINCH, Signal::WINCH),
];

/// Runs a command to its end and returns its exit code: 128+N for signal N, 126 if it cannot be
/// executed, 127 if it is not found.
pub(super) fn run(command: &[OsString], env: &[(&str, OsString)]) -> Result<u8, Failure> {
    let Some((program, args)) = command.split_first() else {
        return Err(Failure::new(Code::Usage, "there is no command").hint("txfs run -- COMMAND"));
    };
    let wait =
        |e: io::Error| Failure::new(Code::Internal, format!("cannot wait for the command: {e}"));
    let mut pipes = Vec::new();
    for (number, signal) in PASSED_ON {
        let (ours, theirs) = UnixStream::pair().map_err(wait)?;
        ours.set_nonblocking(true).map_err(wait)?;
        signal_hook::low_level::pipe::register(number, theirs).map_err(wait)?;
        pipes.push((ours, signal));
    }
    let mut command = Command::new(program);
    command.args(args).envs(env.iter().cloned());
    let locked = !rustix::process::geteuid().is_root();
    let maps = user::maps();
    sys::before_exec(&mut command, move || {
        sys::ignore_signal(libc::SIGINT, false);
        sys::ignore_signal(libc::SIGQUIT, false);
        sys::ignore_signal(libc::SIGPIPE, false);
        sys::unblock_signals();
        sys::close_on_exec_above_2()?;
        if locked { user::lock_mounts(&maps) } else { Ok(()) }
    });
    let spawned = command.spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(e) => {
            eprintln!("txfs: {}: {e}", program.to_string_lossy());
            return Ok(if e.kind() == io::ErrorKind::NotFound { 127 } else { 126 });
        }
    };
    sys::ignore_signal(libc::SIGINT, true);
    sys::ignore_signal(libc::SIGQUIT, true);
    let status = wait_for(&mut child, &pipes).map_err(wait)?;
    Ok(match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(super::FAILED),
        (None, Some(signal)) => 128u8.saturating_add(u8::try_from(signal).unwrap_or(127)),
        (None, None) => super::FAILED,
    })
}

fn wait_for(
    child: &mut Child,
    pipes: &[(UnixStream, Signal)],
) -> io::Result<std::process::ExitStatus> {
    let pid =
        i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
    let fd = pidfd_open(pid, PidfdFlags::empty())?;
    loop {
        let mut fds = vec![PollFd::new(&fd, PollFlags::IN)];
        fds.extend(
            pipes.iter().map(|(pipe, _)| PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN)),
        );
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let ended = fds[0].revents().contains(PollFlags::IN);
        drop(fds);
        if ended {
            return child.wait();
        }
        for (pipe, signal) in pipes {
            let mut buf = [0u8; 16];
            let mut pipe = pipe;
            if pipe.read(&mut buf).is_ok_and(|n| n > 0)
                && let Err(e) = kill_process(pid, *signal)
            {
                log::debug!("{e}");
            }
        }
    }
}
