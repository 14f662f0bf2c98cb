//! The words of the command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::classify;
use crate::proto::DiffForm;

/// Runs programs on a private view of a directory; commits what they did, all or nothing, or drops it.
///
/// Exit codes: 0 ok, 1 failed, 2 usage, 3 refused, 4 needs a choice, 5 stale, 6 conflict or drift, 7 busy,
/// 8 unavailable, 9 not found or pruned, 10 blocked, 11 limit, 12 I/O, 70 internal. `run` and `sh` return the command's own
/// code, 128+N for signal N, 125 for its own failure, 126 and 127 as env(1).
#[derive(Debug, Parser)]
#[command(name = "txfs", version, max_term_width = 100)]
pub(super) struct Cli {
    #[command(flatten)]
    pub(super) global: Global,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Clone, Debug, Args)]
pub(super) struct Global {
    /// Work as if started in DIR
    #[arg(short = 'C', value_name = "DIR", global = true)]
    pub(super) directory: Option<PathBuf>,
    /// Keep the store in DIR, which a rename must reach from the workspace [default: WORKSPACE/.txfs]
    #[arg(long, value_name = "DIR", global = true)]
    pub(super) store: Option<PathBuf>,
    /// The transaction [default: $TXFS_TXN, else main]
    #[arg(long, value_name = "NAME", global = true)]
    pub(super) txn: Option<String>,
    /// Print one JSON object
    #[arg(long, global = true)]
    pub(super) json: bool,
    /// Answer yes to questions, which are asked on a terminal only
    #[arg(short, long, global = true)]
    pub(super) yes: bool,
    /// Do it though it looks unwise (`/` or a home directory as workspace; stop with views mounted)
    #[arg(long, global = true)]
    pub(super) force: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run a command on the view, at the workspace's own path
    Run(Run),
    /// Perform a shell text that is provably a plain file operation; ask before running another
    Sh(super::sh::Args),
    /// Answer the hooks by which agents' hosts ask about shell commands
    #[command(subcommand)]
    Hook(super::hook::Hook),
    /// Mount the view at a directory
    #[command(allow_missing_positional = true)]
    Mount {
        /// A directory in the workspace [default: the current one]
        #[arg(conflicts_with = "directory")]
        workspace: Option<PathBuf>,
        /// An empty directory outside the workspace
        #[arg(value_name = "MNT")]
        at: PathBuf,
    },
    /// Unmount the view; the transaction stays open
    Umount {
        /// Where it is mounted [default: where the transaction is]
        at: Option<PathBuf>,
    },
    /// Begin a transaction
    Begin {
        /// Its name [default: that of --txn]
        #[arg(conflicts_with = "txn")]
        name: Option<String>,
    },
    /// List the open transactions
    List,
    /// Show what the transaction changed, deletions first, and what comes next
    Status {
        /// Only changes at or below these
        paths: Vec<PathBuf>,
    },
    /// Show the changes as a patch for `git apply`
    Diff(Diff),
    /// List the effects in order, each with its inverse
    Log {
        /// Name the processes
        #[arg(long)]
        processes: bool,
    },
    /// Show what happened to a path in the transaction, in which step, and by which process
    Trace {
        /// A path in the workspace
        path: PathBuf,
    },
    /// Show a generation
    Show {
        /// Its number
        generation: u64,
        /// Its changes as a patch
        #[arg(long, short)]
        patch: bool,
        #[command(flatten)]
        form: Form,
    },
    /// Make the transaction the next generation of the workspace, all or nothing
    Commit(Commit),
    /// Drop the transaction
    Abort,
    /// Mark the state of the transaction, to go back to it with rollback
    Savepoint {
        /// Its name [default: one that is free]
        name: Option<String>,
        /// Mark files that are being written as they are: not a point in time
        #[arg(long)]
        allow_open_writers: bool,
    },
    /// List the savepoints and steps that the transaction can go back to
    Savepoints,
    /// Take back what was done since a savepoint, or a step and all after it; views stay in use
    Rollback {
        /// The savepoint [default: the newest]
        #[arg(conflicts_with_all = ["step", "last"])]
        name: Option<String>,
        /// To before step N, with all steps after it
        #[arg(long, value_name = "N", conflicts_with = "last")]
        step: Option<u32>,
        /// To before the last step
        #[arg(long)]
        last: bool,
    },
    /// Move the transaction onto the live generation, or say what contradicts it
    Rebase {
        /// Only say whether it would go
        #[arg(long)]
        dry_run: bool,
    },
    /// Take generations back, with a new generation
    Undo {
        /// Which [default: the newest that is not taken back]
        generation: Option<u64>,
        /// Everything after generation N
        #[arg(long, value_name = "N", conflicts_with = "generation")]
        to: Option<u64>,
        /// Take later generations that touched the same entries along
        #[arg(long)]
        with_dependents: bool,
        /// Only say what would happen
        #[arg(long)]
        dry_run: bool,
    },
    /// List the generations
    History,
    /// Apply the limits on history (64 generations, 1 GiB) now
    Gc {
        /// Keep at most N generations
        #[arg(long, value_name = "N")]
        keep: Option<u64>,
    },
    /// Check the store, the journal, the transactions
    Doctor {
        /// Lift a block after the base was put right
        #[arg(long)]
        fix: bool,
    },
    /// Say whether a shell text is provably a plain file operation (exit 0) or not (10)
    Classify(classify::cli::Args),
    /// Print completions for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Print a manual page
    Man {
        /// Of a verb [default: of txfs]
        verb: Option<String>,
    },
    #[command(name = "__daemon", hide = true)]
    Daemon(Daemon),
    #[command(name = "__stop", hide = true)]
    Stop,
    #[command(name = "__failpoints", hide = true)]
    Failpoints,
}

impl Command {
    /// The verb, for JSON.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Command::Run(_) => "run",
            Command::Sh(_) => "sh",
            Command::Hook(_) => "hook",
            Command::Mount { .. } => "mount",
            Command::Umount { .. } => "umount",
            Command::Begin { .. } => "begin",
            Command::List => "list",
            Command::Status { .. } => "status",
            Command::Diff(_) => "diff",
            Command::Log { .. } => "log",
            Command::Trace { .. } => "trace",
            Command::Show { .. } => "show",
            Command::Commit(_) => "commit",
            Command::Abort => "abort",
            Command::Savepoint { .. } => "savepoint",
            Command::Savepoints => "savepoints",
            Command::Rollback { .. } => "rollback",
            Command::Rebase { .. } => "rebase",
            Command::Undo { .. } => "undo",
            Command::History => "history",
            Command::Gc { .. } => "gc",
            Command::Doctor { .. } => "doctor",
            Command::Classify(_) => "classify",
            Command::Completions { .. } => "completions",
            Command::Man { .. } => "man",
            Command::Daemon(_) => "daemon",
            Command::Stop => "stop",
            Command::Failpoints => "failpoints",
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct Run {
    /// What to do if the command succeeds
    #[arg(long, value_enum, default_value_t = OnSuccess::Keep)]
    pub(super) on_success: OnSuccess,
    /// What to do if it fails
    #[arg(long, value_enum, default_value_t = OnFailure::Keep)]
    pub(super) on_failure: OnFailure,
    /// The message of the commit
    #[arg(short, long)]
    pub(super) message: Option<OsString>,
    /// With --on-success commit: move the transaction onto the live generation first
    #[arg(long)]
    pub(super) rebase: bool,
    /// Set SHELL and BASH to a shell that is `txfs sh`
    #[arg(long)]
    pub(super) lower_shell: bool,
    /// The command and its arguments
    #[arg(required = true, last = true)]
    pub(super) command: Vec<OsString>,
}

/// After a command that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnSuccess {
    /// Commit the transaction.
    Commit,
    /// Leave it open.
    Keep,
}

/// After a command that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnFailure {
    /// Abort the transaction.
    Abort,
    /// Leave it open.
    Keep,
}

#[derive(Debug, Args)]
pub(super) struct Diff {
    #[command(flatten)]
    pub(super) form: Form,
    /// Only changes at or below these
    pub(super) paths: Vec<PathBuf>,
}

/// The forms besides the patch.
#[derive(Debug, Args)]
pub(super) struct Form {
    /// Lines added and removed by file
    #[arg(long, conflicts_with_all = ["name_status", "z"])]
    pub(super) stat: bool,
    /// A letter and the path
    #[arg(long)]
    pub(super) name_status: bool,
    /// The same, NUL-terminated and unquoted
    #[arg(short)]
    pub(super) z: bool,
}

impl Form {
    /// The form that was asked for, if one was.
    pub(super) fn given(&self) -> Option<DiffForm> {
        match (self.stat, self.name_status, self.z) {
            (true, ..) => Some(DiffForm::Stat),
            (false, _, true) => Some(DiffForm::NameStatusZ),
            (false, true, false) => Some(DiffForm::NameStatus),
            (false, false, false) => None,
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct Commit {
    /// A message for the history
    #[arg(short, long)]
    pub(super) message: Option<OsString>,
    /// Only validate
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Move it onto the live generation first, if nothing contradicts
    #[arg(long)]
    pub(super) rebase: bool,
    /// Wait up to S seconds for files that are open for writing
    #[arg(long, value_name = "S")]
    pub(super) wait: Option<u64>,
    /// Take files that are being written as they are: not a point in time
    #[arg(long)]
    pub(super) allow_open_writers: bool,
    /// Keep what is replaced though it is beyond the limit on history
    #[arg(long, conflicts_with = "no_undo")]
    pub(super) keep: bool,
    /// Do not keep what is replaced: the commit cannot be undone
    #[arg(long)]
    pub(super) no_undo: bool,
}

#[derive(Debug, Args)]
pub(super) struct Daemon {
    #[arg(long)]
    pub(super) ready_fd: i32,
    #[arg(long)]
    pub(super) workspace: PathBuf,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        super::Cli::command().debug_assert();
    }

    /// Help is made of documentation; what only rustdoc can follow has no place in it.
    #[test]
    fn no_help_has_links_into_the_code() {
        let mut program = super::Cli::command();
        program.build();
        for verb in program.get_subcommands() {
            let help = verb.clone().render_long_help().to_string();
            assert!(!help.contains("[`"), "{}: {help}", verb.get_name());
        }
    }
}
