//! What the command line and the daemon say to each other, and what `--json` prints.
//!
//! A connection carries one request. Both sides send frames: 4 bytes of little-endian length, one
//! byte of [`FrameKind`], then the bytes. The client sends one `Json` frame with a [`Request`];
//! the daemon answers any number of `Data` frames (diff, export), then one `Json` frame with a
//! [`Reply`]. A file descriptor, where a verb passes one, travels with the `Json` frame as
//! `SCM_RIGHTS`.

pub mod error;
pub mod path;
pub mod reply;

use serde::{Deserialize, Serialize};

pub use error::{Code, Conflict, Failure};
pub use path::PathBytes;
pub use reply::*;

/// The version of everything that is printed as JSON.
pub const SCHEMA_VERSION: u32 = 1;

/// A frame's length limit; a longer one ends the connection.
pub const MAX_FRAME: u32 = 16 << 20;

/// What a frame holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FrameKind {
    /// A [`Request`] or a [`Reply`].
    Json = b'J',
    /// Bytes for standard output.
    Data = b'D',
}

/// One request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// The version of the program that asks; the daemon refuses another one than its own.
    pub version: String,
    /// The transaction by name.
    pub txn: String,
    /// What to do.
    pub verb: Verb,
}

/// The verbs that the daemon performs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "snake_case")]
pub enum Verb {
    /// Answers [`DaemonReply`].
    Ping,
    /// Begins the transaction; refused if it is open.
    Begin,
    /// Every open transaction of the caller (root: of everybody).
    List,
    /// Counts, changes, drift, writers, next step.
    Status {
        /// Only changes at or below these; empty is all.
        paths: Vec<PathBytes>,
    },
    /// A patch, streamed as `Data` frames.
    Diff {
        /// The form.
        form: DiffForm,
        /// Only changes at or below these; empty is all.
        paths: Vec<PathBytes>,
    },
    /// The effects in order.
    Log {
        /// Whether to name the processes.
        processes: bool,
    },
    /// What happened to a path and to what it shows, with the processes. Answers [`LogReply`].
    Trace {
        /// Which.
        path: PathBytes,
    },
    /// One generation, its changes as a patch streamed as `Data` frames.
    Show {
        /// Which.
        generation: u64,
        /// The form.
        form: DiffForm,
    },
    /// Makes the transaction the next generation.
    Commit {
        /// `-m`
        message: PathBytes,
        /// Validate and say what would happen.
        dry_run: bool,
        /// Move it onto the live generation first.
        rebase: bool,
        /// Seconds to wait for open writers.
        wait: u64,
        /// Land files that cannot be copied at a point in time all the same.
        allow_open_writers: bool,
        /// What to do when the preimages exceed the limit on history.
        history: HistoryChoice,
    },
    /// Moves the transaction onto the live generation.
    Rebase {
        /// Only say whether it would go.
        dry_run: bool,
    },
    /// Drops the transaction.
    Abort,
    /// Takes generations back.
    Undo {
        /// Which; `None` is the newest that is not itself undone.
        generation: Option<u64>,
        /// All generations after this one, newest first.
        to: Option<u64>,
        /// Together with the later generations that touched the same entries.
        with_dependents: bool,
        /// Validate and say what would happen.
        dry_run: bool,
    },
    /// The generations kept.
    History,
    /// Applies the limits on history now.
    Gc {
        /// Keep at most this many generations.
        keep: Option<u64>,
    },
    /// Checks everything.
    Doctor {
        /// Do what it would advise.
        fix: bool,
    },
    /// Begins or resumes the transaction and serves its view.
    Mount {
        /// How the mount comes to be.
        how: MountHow,
        /// Where the client will attach it: recorded for `list` and `umount`.
        at: PathBytes,
    },
    /// Says where the view is mounted; the client unmounts it. Answers [`TxnInfo`].
    Umount,
    /// The client has unmounted the view: answers when that is known here.
    Unmounted,
    /// A new step begins: effects that follow belong to it. Answers [`StepReply`].
    Step {
        /// The command line, for the log.
        what: PathBytes,
    },
    /// Marks the state of the transaction. Answers [`MarkInfo`].
    Savepoint {
        /// Its name; `None` is one that is free.
        name: Option<String>,
        /// Mark files that do not hold still as they are.
        allow_open_writers: bool,
    },
    /// The savepoints and steps that the transaction can go back to.
    Savepoints,
    /// Takes back everything after a savepoint, or a step and everything after it.
    Rollback {
        /// Where to.
        to: RollbackTo,
    },
    /// Ends the daemon once it serves nothing; with `force` detaches all mounts first.
    Stop {
        /// Detach mounts.
        force: bool,
    },
}

/// How a view gets its mount. In each case, if it is being served already, nothing is passed and the
/// reply says where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountHow {
    /// The daemon makes it by fsmount(2) and passes a detached mount; needs CAP_SYS_ADMIN there.
    Detached,
    /// The client made it and passes the fd of `/dev/fuse` before INIT, with the request.
    FuseFd,
    /// Only says whether and where it is being served.
    Ask,
}

/// Where a rollback goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RollbackTo {
    /// The newest savepoint.
    Newest,
    /// The savepoint of this name.
    Savepoint(String),
    /// To before this step.
    Step(u32),
    /// To before the last step.
    LastStep,
}

/// The forms of a diff.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiffForm {
    /// A patch that `git apply` takes.
    Patch,
    /// Lines added and removed by file.
    Stat,
    /// A letter and the path.
    NameStatus,
    /// The same, NUL-terminated and unescaped.
    NameStatusZ,
    /// Nothing is streamed; the reply has the changes.
    Changes,
}

/// What to do with preimages beyond the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HistoryChoice {
    /// Refuse with exit code 4.
    #[default]
    Ask,
    /// Keep them.
    Keep,
    /// Drop them: the commit cannot be undone.
    NoUndo,
}
