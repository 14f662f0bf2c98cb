//! `txfs run`: a command on the view, at the workspace's own path, in namespaces of its own.
//!
//! The process that runs this stays single-threaded: namespaces can be changed by nothing else. It
//! holds a connection to the daemon for as long as the command runs, and the view for as long as it
//! lives, since it is in the namespace where the view stands.

mod child;
pub mod user;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::mount::MountPropagationFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{ThreadNameSpaceType, UnshareFlags, move_into_thread_name_spaces};

pub use crate::cli::{OnFailure, OnSuccess};
use crate::daemon::client::{self, Target};
use crate::daemon::wire::Wire;
use crate::fuse::mount;
use crate::proto::{Code, Failure, HistoryChoice, MountHow, MountReply, PathBytes, Reply, Verb};

/// The exit code for txfs's own failure, as env(1) and its like have it.
pub const FAILED: u8 = 125;

/// What to run and what to do afterwards.
#[derive(Debug)]
pub struct Run {
    /// The workspace.
    pub target: Target,
    /// The transaction.
    pub txn: String,
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// After success.
    pub on_success: OnSuccess,
    /// After failure.
    pub on_failure: OnFailure,
    /// The message of the commit.
    pub message: String,
}

/// What came of it.
#[derive(Debug)]
pub struct Done {
    /// The exit code.
    pub exit: u8,
    /// `kept`, `committed`, `aborted`, or the failure of that as a word.
    pub then: String,
}

fn unavailable(what: &str, e: &io::Error, at: &Path) -> Failure {
    Failure::new(Code::Unavailable, format!("{what}: {e}")).hint(format!(
        "mount the view instead: mkdir /tmp/view; txfs -C {} mount /tmp/view; cd /tmp/view and run the command there",
        at.display()
    ))
}

fn internal() -> Failure {
    Failure::new(Code::Internal, "the daemon answered something else")
        .hint("txfs __stop, then run the command again")
}

impl Run {
    /// Runs the command and does what was asked for afterwards.
    ///
    /// # Errors
    /// txfs's own; the command was not run then, or its end could not be waited for.
    pub fn execute(&self) -> Result<Done, Failure> {
        let cwd = std::env::current_dir().map_err(|e| {
            Failure::new(Code::Io, format!("cannot find the current directory: {e}"))
                .hint("cd, then run again")
        })?;
        let mut wire = client::connect(&self.target)?;
        let what = PathBytes(quoted(&self.command));
        client::ask(&mut wire, &self.txn, Verb::Step { what }, None, |_| Ok(()))?;
        let mut target = self.target.clone();
        target.socket = client::socket(&self.target);
        warn_of_base_files(&target.workspace);
        let _lease = if rustix::process::geteuid().is_root() {
            enter_as_root(&target, &self.txn)?
        } else {
            user::enter_as_user(&target, &self.txn)?
        };
        // The old working directory is still the base's.
        std::env::set_current_dir(&cwd).map_err(|e| {
            Failure::new(Code::NotFound, format!("{} is not there in the view: {e}", cwd.display()))
                .hint("cd elsewhere, or look with: txfs status")
        })?;
        let env = [
            ("TXFS", OsString::from("1")),
            ("TXFS_TXN", OsString::from(&self.txn)),
            ("TXFS_WORKSPACE", target.workspace.clone().into_os_string()),
            ("TXFS_SOCKET", target.socket.clone().unwrap_or_default().into_os_string()),
        ];
        let exit = child::run(&self.command, &env)?;
        Ok(self.afterwards(&target, exit))
    }

    fn ask(&self, target: &Target, verb: Verb) -> Result<Reply, Failure> {
        let mut wire = client::connect(target)?;
        client::ask(&mut wire, &self.txn, verb, None, |_| Ok(())).map(|a| a.reply)
    }

    /// Summary, then commit or abort if asked for.
    fn afterwards(&self, target: &Target, exit: u8) -> Done {
        let verb = match (exit, self.on_success, self.on_failure) {
            (0, OnSuccess::Commit, _) => Verb::Commit {
                message: PathBytes(self.message.clone().into_bytes()),
                dry_run: false,
                wait: 0,
                allow_open_writers: false,
                history: HistoryChoice::Ask,
            },
            (1.., _, OnFailure::Abort) => Verb::Abort,
            _ => {
                self.summary(target);
                return Done { exit, then: "kept".into() };
            }
        };
        match self.ask(target, verb) {
            Ok(Reply::Commit(reply)) => {
                let undo =
                    reply.undo.map_or_else(String::new, |u| format!("; to take it back: {u}"));
                let what = if reply.changed { "committed as" } else { "nothing to commit;" };
                eprintln!("txfs: {what} generation {}{undo}", reply.generation);
                Done { exit, then: "committed".into() }
            }
            Ok(_) => {
                eprintln!("txfs: aborted");
                Done { exit, then: "aborted".into() }
            }
            Err(failure) => {
                crate::cli::print_failure(&failure);
                let word = serde_json::to_value(failure.code)
                    .ok()
                    .and_then(|v| v.as_str().map(str::to_owned));
                // The command's own failure wins.
                Done { exit: if exit == 0 { FAILED } else { exit }, then: word.unwrap_or_default() }
            }
        }
    }

    fn summary(&self, target: &Target) {
        match self.ask(target, Verb::Status { paths: Vec::new() }) {
            Ok(Reply::Status(status)) if status.changes.is_empty() => {
                eprintln!("txfs: nothing changed")
            }
            Ok(Reply::Status(status)) => {
                eprintln!(
                    "txfs: {} changes, none of them in the workspace yet:",
                    status.changes.len()
                );
                if let Err(e) = crate::cli::print_changes(&status.changes) {
                    log::debug!("{e}");
                }
                eprintln!("txfs: next: txfs diff; {}", status.next_step);
            }
            Ok(_) => {}
            Err(failure) => crate::cli::print_failure(&failure),
        }
    }
}

/// The command line, quoted for a shell.
fn quoted(command: &[OsString]) -> Vec<u8> {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"_-./=:,+@%".contains(b);
    let mut out = Vec::new();
    for word in command {
        if !out.is_empty() {
            out.push(b' ');
        }
        let bytes = word.as_bytes();
        if !bytes.is_empty() && bytes.iter().all(plain) {
            out.extend_from_slice(bytes);
        } else {
            out.push(b'\'');
            for &b in bytes {
                match b {
                    b'\'' => out.extend_from_slice(b"'\\''"),
                    b => out.push(b),
                }
            }
            out.push(b'\'');
        }
    }
    out
}

/// Inherited descriptors reach the base past the view; nobody can take them away from the command.
fn warn_of_base_files(workspace: &Path) {
    for n in 0..3 {
        let Ok(path) = std::fs::read_link(format!("/proc/self/fd/{n}")) else { continue };
        if !path.starts_with(workspace) {
            continue;
        }
        let flags = match n {
            0 => rustix::fs::fcntl_getfl(rustix::stdio::stdin()),
            1 => rustix::fs::fcntl_getfl(rustix::stdio::stdout()),
            _ => rustix::fs::fcntl_getfl(rustix::stdio::stderr()),
        };
        let writes = flags
            .is_ok_and(|f| f.intersects(rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::RDWR));
        if writes || path.is_dir() {
            eprintln!(
                "txfs: warning: descriptor {n} is {} in the workspace itself: what goes through it is in no transaction",
                path.display()
            );
        }
    }
}

/// A mount namespace of our own, that still gets what the system mounts later.
pub(crate) fn own_mounts(flags: UnshareFlags) -> io::Result<()> {
    crate::sys::unshare(flags)?;
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    Ok(rustix::mount::mount_change("/", slave)?)
}

/// Asks the daemon for the mount; the connection is the lease on it.
pub(crate) fn request(
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

/// How often the state of other runs is asked for again, 5 ms apart.
const TRIES: u32 = 400;

/// Whether the view of this transaction is what stands at the workspace's path.
fn stands(target: &Target, txn: &str) -> bool {
    let mut buf = [0u8; 256];
    let name = rustix::fs::getxattr(&target.workspace, "user.txfs.txn", &mut buf);
    name.is_ok_and(|len| buf[..len] == *txn.as_bytes())
}

/// Enters the namespaces in which the view is over the workspace, by whichever way `attempt` finds.
/// Nothing is run unless the view really stands there: the run that is to be joined may be on its way
/// in, or ending.
pub(crate) fn enter(
    target: &Target,
    txn: &str,
    mut attempt: impl FnMut() -> Result<io::Result<Wire>, Failure>,
) -> Result<Wire, Failure> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for _ in 0..TRIES {
        match attempt()? {
            Ok(wire) if stands(target, txn) => return Ok(wire),
            Ok(_) => {}
            Err(e) => last = e,
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    Err(unavailable("cannot place the view over the workspace", &last, &target.workspace))
}

fn enter_as_root(target: &Target, txn: &str) -> Result<Wire, Failure> {
    let at = &target.workspace;
    enter(target, txn, || {
        let mut wire = client::connect(target)?;
        let (reply, fd) = request(&mut wire, txn, MountHow::Detached, None)?;
        let entered = match (fd, reply.holder, reply.txn.mount) {
            (Some(fd), ..) => {
                own_mounts(UnshareFlags::NEWNS).and_then(|()| mount::attach(fd.as_fd(), at))
            }
            (None, _, Some(plain)) => {
                let plain = PathBuf::from(std::ffi::OsStr::from_bytes(&plain.0));
                own_mounts(UnshareFlags::NEWNS)
                    .and_then(|()| Ok(rustix::mount::mount_bind(&plain, at)?))
            }
            (None, Some(pid), None) => join(pid, ThreadNameSpaceType::MOUNT),
            (None, None, None) => Err(io::ErrorKind::NotFound.into()),
        };
        Ok(entered.map(|()| wire))
    })
}

/// Joins the namespaces of a process.
pub(crate) fn join(pid: u32, kinds: ThreadNameSpaceType) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
    let fd = pidfd_open(pid, PidfdFlags::empty())?;
    Ok(move_into_thread_name_spaces(fd.as_fd(), kinds)?)
}
