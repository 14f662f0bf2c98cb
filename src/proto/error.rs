//! Failures as data: what failed, on which path, why, the next step. One table of exit codes.

use serde::{Deserialize, Serialize};

use super::PathBytes;

/// What kind of failure; stable words for scripts, each with one exit code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// Anything that has no word of its own.
    Failed,
    /// The command line is wrong.
    Usage,
    /// A policy, or a safety rule such as "not `/` without --force", says no.
    Refused,
    /// The choice must be made by the caller (`--keep` or `--no-undo`).
    NeedsAcknowledgement,
    /// The live generation is no longer the base of the transaction.
    Stale,
    /// The base was edited where the transaction touched it.
    Drift,
    /// A later generation touched the same entry.
    Conflict,
    /// Open writers, another daemon, a mount in use.
    Busy,
    /// No FUSE, no user namespaces.
    Unavailable,
    /// No such workspace, transaction, generation.
    NotFound,
    /// The history of the generation was collected.
    Pruned,
    /// The workspace is poisoned: somebody has to decide.
    Blocked,
    /// A stated limit is reached.
    Limit,
    /// The disk, the file system.
    Io,
    /// The journal or a record in it does not decode.
    Corrupt,
    /// The store was written by a newer txfs.
    NewerFormat,
    /// The caller's uid may not.
    NotPermitted,
    /// A bug.
    Internal,
}

impl Code {
    /// The exit code of the command.
    #[must_use]
    pub fn exit(self) -> u8 {
        match self {
            Code::Failed => 1,
            Code::Usage => 2,
            Code::Refused | Code::NotPermitted => 3,
            Code::NeedsAcknowledgement => 4,
            Code::Stale => 5,
            Code::Drift | Code::Conflict => 6,
            Code::Busy => 7,
            Code::Unavailable => 8,
            Code::NotFound | Code::Pruned => 9,
            Code::Blocked => 10,
            Code::Limit => 11,
            Code::Io | Code::Corrupt | Code::NewerFormat => 12,
            Code::Internal => 70,
        }
    }
}

/// One path that stands in the way, and why.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Conflict {
    /// Where.
    pub path: PathBytes,
    /// Why, a sentence without a period.
    pub reason: String,
    /// The generation that did it, if one did.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub generation: Option<u64>,
}

/// A failed verb.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The kind.
    pub code: Code,
    /// What failed, on which path, and the cause; a sentence without a period.
    pub message: String,
    /// The command to run next.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hint: Option<String>,
    /// All paths in the way; never cut.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub conflicts: Vec<Conflict>,
}

impl Failure {
    /// A failure without hint and conflicts.
    pub fn new(code: Code, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into(), hint: None, conflicts: Vec::new() }
    }

    /// Adds the next step.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the paths in the way.
    #[must_use]
    pub fn conflicts(mut self, conflicts: Vec<Conflict>) -> Failure {
        self.conflicts = conflicts;
        self
    }
}
