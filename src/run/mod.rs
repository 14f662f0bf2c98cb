//! `txfs run`: a command on the view, at the workspace's own path, in namespaces of its own.
//!
//! The process that runs this stays single-threaded: namespaces can be changed by nothing else. It
//! holds a connection to the daemon for as long as the command runs, and the view for as long as it
//! lives, since it is in the namespace where the view stands.

mod child;
mod enter;
pub mod user;

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

pub use crate::cli::{OnFailure, OnSuccess};
use crate::daemon::client::{self, Target};
use crate::proto::{
    AbortReply, ChangeLine, Code, CommitReply, Counts, Failure, HistoryChoice, PathBytes, Reply,
    Verb,
};
use crate::report::quote;

/// The exit code for txfs's own failure, as env(1) and its like have it.
pub const FAILED: u8 = 125;

/// What to run and what to do afterwards.
#[derive(Debug)]
pub struct Run {
    /// What the command finds in `SHELL` and `BASH`, if not what is there.
    pub wrapper: Option<PathBuf>,
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
    pub message: Vec<u8>,
    /// Before the commit: move the transaction onto the live generation.
    pub rebase: bool,
}

/// What was done with the transaction after the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    /// It was left open.
    Kept,
    /// It is a generation.
    Committed,
    /// It had no changes: there was nothing to commit.
    Unchanged,
    /// It was dropped.
    Aborted,
    /// What was asked for failed; it is open as before.
    Failed,
}

/// What came of it: the fields of `--json`.
#[derive(Debug, Serialize)]
pub struct Done {
    /// The exit code.
    pub exit: u8,
    /// The transaction.
    pub txn: String,
    /// What was done with it.
    pub then: Then,
    /// The changes that it holds, or that were committed, by kind.
    pub counts: Counts,
    /// The changes that it holds, deletions first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<ChangeLine>,
    /// The answer of the commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<CommitReply>,
    /// The answer of the abort.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abort: Option<AbortReply>,
    /// Why what came after the command failed.
    #[serde(skip)]
    pub failure: Option<Failure>,
}

fn unavailable(what: &str, e: &io::Error, at: &Path) -> Failure {
    let at = quoted(&[at.as_os_str().to_owned()]);
    Failure::new(Code::Unavailable, format!("{what}: {e}")).hint(format!(
        "mount the view instead: mkdir /tmp/view; txfs -C {} mount /tmp/view; cd /tmp/view and run the command there",
        quote::terminal(&at)
    ))
}

fn internal() -> Failure {
    Failure::new(Code::Internal, "the daemon answered something else")
        .hint("txfs __stop, then run the command again")
}

/// A path in a message.
fn name(path: &Path) -> String {
    quote::shown(path.as_os_str().as_bytes())
}

/// Says something on standard error. Whoever has closed it wants to hear nothing.
pub(crate) fn say(words: &str) {
    if let Err(e) = writeln!(io::stderr(), "txfs: {words}") {
        log::debug!("{e}");
    }
}

/// Being in the view: for as long as this lives and the process is where it is.
pub(crate) struct Inside {
    /// The workspace, with the daemon's socket.
    pub(crate) target: Target,
    _lease: crate::daemon::wire::Wire,
}

/// Takes the process into namespaces in which the view is over the workspace, in the directory that
/// is at the same path; `what` is a step of the transaction from now on.
pub(crate) fn enter_view(target: &Target, txn: &str, what: Vec<u8>) -> Result<Inside, Failure> {
    let cwd = std::env::current_dir().map_err(|e| {
        Failure::new(Code::Io, format!("cannot find the current directory: {e}"))
            .hint("cd, then run again")
    })?;
    let mut wire = client::connect(target)?;
    let step = Verb::Step { what: PathBytes(what) };
    client::ask(&mut wire, txn, step, None, |_| Ok(()))?;
    let mut found = target.clone();
    found.socket = client::socket(target);
    let target = found;
    warn_of_base_files(&target, txn);
    let lease = if rustix::process::geteuid().is_root() {
        enter::enter_as_root(&target, txn)?
    } else {
        user::enter_as_user(&target, txn)?
    };
    // The old working directory is still the base's.
    std::env::set_current_dir(&cwd).map_err(|e| {
        Failure::new(Code::NotFound, format!("{} is not there in the view: {e}", name(&cwd)))
            .hint("cd elsewhere, or look with: txfs status")
    })?;
    Ok(Inside { target, _lease: lease })
}

/// What a command in the view finds in its environment.
pub(crate) fn environment(target: &Target, txn: &str) -> Vec<(&'static str, OsString)> {
    vec![
        ("TXFS", OsString::from("1")),
        ("TXFS_TXN", OsString::from(txn)),
        ("TXFS_WORKSPACE", target.workspace.clone().into_os_string()),
        ("TXFS_SOCKET", target.socket.clone().unwrap_or_default().into_os_string()),
    ]
}

/// Runs a command to its end in the view that we are in; see [`child::run`].
pub(crate) fn child(command: &[OsString], env: &[(&'static str, OsString)]) -> Result<u8, Failure> {
    child::run(command, env)
}

impl Run {
    /// Runs the command and does what was asked for afterwards.
    ///
    /// # Errors
    /// txfs's own; the command was not run then, or its end could not be waited for.
    pub fn execute(&self) -> Result<Done, Failure> {
        let inside = enter_view(&self.target, &self.txn, quoted(&self.command))?;
        let mut env = environment(&inside.target, &self.txn);
        if let Some(shell) = &self.wrapper {
            env.extend(["SHELL", "BASH"].map(|name| (name, shell.clone().into_os_string())));
        }
        let exit = child::run(&self.command, &env)?;
        Ok(self.afterwards(&inside.target, exit))
    }

    fn ask(&self, target: &Target, verb: Verb) -> Result<Reply, Failure> {
        let mut wire = client::connect(target)?;
        client::ask(&mut wire, &self.txn, verb, None, |_| Ok(())).map(|a| a.reply)
    }

    /// Commit, abort or a summary.
    fn afterwards(&self, target: &Target, exit: u8) -> Done {
        let mut done = Done {
            exit,
            txn: self.txn.clone(),
            then: Then::Kept,
            counts: Counts::default(),
            changes: Vec::new(),
            commit: None,
            abort: None,
            failure: None,
        };
        let result = match (exit, self.on_success, self.on_failure) {
            (0, OnSuccess::Commit, _) => self.commit(target, &mut done),
            (1.., _, OnFailure::Abort) => self.abort(target, &mut done),
            (0, OnSuccess::Keep, _) | (1.., _, OnFailure::Keep) => self.summary(target, &mut done),
        };
        if let Err(failure) = result {
            // The command's own failure wins; and nothing was asked for that a summary would be.
            if done.then == Then::Failed && exit == 0 {
                done.exit = FAILED;
            }
            done.failure = Some(failure);
        }
        done
    }

    fn commit(&self, target: &Target, done: &mut Done) -> Result<(), Failure> {
        done.then = Then::Failed;
        let verb = Verb::Commit {
            message: PathBytes(self.message.clone()),
            dry_run: false,
            rebase: self.rebase,
            wait: 0,
            allow_open_writers: false,
            history: HistoryChoice::Ask,
        };
        let Reply::Commit(reply) = self.ask(target, verb)? else { return Err(internal()) };
        done.counts = reply.counts;
        if reply.changed {
            done.then = Then::Committed;
            let undo = match (&reply.undo, &reply.reason) {
                (Some(call), _) => format!("to take it back: {call}"),
                (None, Some(why)) => format!("it cannot be taken back: {why}"),
                (None, None) => "it cannot be taken back".into(),
            };
            let counts = crate::cli::words(&reply.counts);
            say(&format!("committed as generation {}: {counts}; {undo}", reply.generation));
        } else {
            done.then = Then::Unchanged;
            say(&format!("nothing to commit; generation {} is live", reply.generation));
        }
        done.commit = Some(reply);
        Ok(())
    }

    fn abort(&self, target: &Target, done: &mut Done) -> Result<(), Failure> {
        done.then = Then::Failed;
        let Reply::Abort(reply) = self.ask(target, Verb::Abort)? else { return Err(internal()) };
        done.then = Then::Aborted;
        say(&format!("aborted: {} effects dropped", reply.effects));
        done.abort = Some(reply);
        Ok(())
    }

    fn summary(&self, target: &Target, done: &mut Done) -> Result<(), Failure> {
        let asked = self.ask(target, Verb::Status { paths: Vec::new() })?;
        let Reply::Status(status) = asked else { return Err(internal()) };
        if status.changes.is_empty() {
            say("nothing changed");
            return Ok(());
        }
        let counts = crate::cli::words(&status.counts);
        say(&format!("{counts}; none of it is in the workspace yet:"));
        if let Err(e) = crate::cli::print_changes(&status.changes) {
            log::debug!("{e}");
        }
        let option = crate::cli::txn_option(&self.txn);
        say(&format!("next: txfs diff{option}; {}", status.next_step));
        done.counts = status.counts;
        done.changes = status.changes;
        Ok(())
    }
}

/// The command line, quoted for a shell.
pub(crate) fn quoted(command: &[OsString]) -> Vec<u8> {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"_-./=:,+@%".contains(b);
    let mut out = Vec::new();
    for word in command {
        if !out.is_empty() {
            out.push(b' ');
        }
        let bytes = word.as_bytes();
        // zsh puts a program's path in the place of `=name`.
        if !bytes.is_empty() && bytes[0] != b'=' && bytes.iter().all(plain) {
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
fn warn_of_base_files(target: &Target, txn: &str) {
    if enter::shows(&target.workspace, target, txn) {
        // A run inside a run: they are the view's.
        return;
    }
    for n in 0..3 {
        let Ok(path) = std::fs::read_link(format!("/proc/self/fd/{n}")) else { continue };
        if !path.starts_with(&target.workspace) {
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
            say(&format!(
                "warning: descriptor {n} is {} in the workspace itself: what goes through it is in no transaction",
                name(&path)
            ));
        }
    }
}
