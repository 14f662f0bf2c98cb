//! The command itself: as if it had been started directly.
//!
//! It stays in our process group, so that the terminal's keys reach both: we leave those to it, pass
//! on what was sent to us alone, stop when it has stopped, and have it go on when we go on.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command};

use libc::{
    SIGALRM, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGSTOP, SIGTERM, SIGTSTP, SIGUSR1,
    SIGUSR2, SIGWINCH,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process, waitid};

use super::user;
use crate::proto::{Code, Failure};
use crate::report::quote;
use crate::sys::{self, signals};

/// Signals that are taken: passed on, or left to the command if the terminal has sent them to both.
const TAKEN: [i32; 10] =
    [SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH, SIGALRM];

/// Signals that a terminal sends to a whole process group.
const KEYS: [i32; 4] = [SIGINT, SIGQUIT, SIGTSTP, SIGWINCH];

/// Runs a command to its end and returns its exit code: 128+N for signal N, 126 if it cannot be
/// executed, 127 if it is not found.
///
/// # Errors
/// If it could not be locked into the view, and so was not run, or could not be waited for.
pub(super) fn run(command: &[OsString], env: &[(&str, OsString)]) -> Result<u8, Failure> {
    let Some((program, args)) = command.split_first() else {
        return Err(Failure::new(Code::Usage, "there is no command").hint("txfs run -- COMMAND"));
    };
    let cannot = |e: io::Error| {
        Failure::new(Code::Internal, format!("cannot stand by the command: {e}"))
            .hint("run it again")
    };
    let ignores_children = signals::mind_children();
    let signals = signals::Signals::take(&TAKEN).map_err(cannot)?;
    let mask = signals.before();
    let mut command = Command::new(program);
    command.args(args).envs(env.iter().cloned());
    let locked = !rustix::process::geteuid().is_root();
    let maps = user::maps();
    let (told, tell) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| cannot(e.into()))?;
    sys::before_exec(&mut command, move || {
        if ignores_children {
            sys::ignore_signal(SIGCHLD, true);
        }
        signals::restore_mask(&mask)?;
        let set_up = sys::close_on_exec_above_2()
            .and_then(|()| if locked { user::lock_mounts(&maps) } else { Ok(()) });
        // What fails here is our failure; what fails after is the command's own.
        set_up.or_else(|e| rustix::io::write(&tell, b"!").map(drop).map_err(Into::into).and(Err(e)))
    });
    let spawned = command.spawn();
    // With it goes our end of the pipe that the closure holds.
    drop(command);
    let status = match spawned {
        Ok(child) => wait_for(&child, &signals),
        Err(e) => {
            signals::restore_mask(&mask).map_err(cannot)?;
            return not_started(program, &e, told.into());
        }
    };
    signals::restore_mask(&mask).map_err(cannot)?;
    Ok(exit_code(&status.map_err(cannot)?))
}

/// The exit code of a command that was not executed, if that is its own fault.
fn not_started(program: &OsString, e: &io::Error, mut told: std::fs::File) -> Result<u8, Failure> {
    let mut ours = Vec::new();
    if told.read_to_end(&mut ours).is_ok_and(|n| n > 0) {
        let what = format!("cannot lock the command into the view: {e}");
        return Err(Failure::new(Code::Unavailable, what)
            .hint("mount the view instead, and run the command there: txfs mount DIR"));
    }
    let found = e.kind() != io::ErrorKind::NotFound;
    super::say(&format!("{}: {e}", quote::shown(program.as_bytes())));
    Ok(if found { 126 } else { 127 })
}

fn exit_code(status: &WaitIdStatus) -> u8 {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(super::FAILED),
        (None, Some(signal)) => 128u8.saturating_add(u8::try_from(signal).unwrap_or(127)),
        (None, None) => super::FAILED,
    }
}

fn wait_for(child: &Child, signals: &signals::Signals) -> io::Result<WaitIdStatus> {
    let pid =
        i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
    let has_terminal = signals::has_terminal();
    loop {
        while let Some(status) = look_at(pid)? {
            let Some(signal) = status.stopping_signal() else { return Ok(status) };
            // Without a shell to have us go on, we would stay stopped when the command does not.
            if has_terminal || signal != SIGSTOP {
                signals::stop_with(signal)?;
                send(pid, SIGCONT);
            }
        }
        match poll(&mut [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)], None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        while let Some(arrived) = signals.next()? {
            let has_it = arrived.from_kernel && KEYS.contains(&arrived.signal);
            if arrived.signal != SIGCHLD && !has_it {
                send(pid, arrived.signal);
            }
        }
    }
}

/// Whether the command has ended or stopped since it was looked at last.
fn look_at(pid: Pid) -> io::Result<Option<WaitIdStatus>> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
    loop {
        match waitid(WaitId::Pid(pid), options) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// Sends a signal to the command; it may just have ended.
fn send(pid: Pid, signal: i32) {
    let Some(signal) = Signal::from_named_raw(signal) else { return };
    if let Err(e) = kill_process(pid, signal) {
        log::debug!("{e}");
    }
}
