//! The answers of the verbs. Each is printed by `--json` as it stands, with `schema_version`,
//! `kind` and `ok` beside its fields.

use serde::{Deserialize, Serialize};

use super::{Conflict, Failure, PathBytes};

/// The last frame of an answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The verb failed; nothing happened unless the failure says so.
    Failed(Failure),
    /// `ping`, `stop`
    Daemon(DaemonReply),
    /// `begin`, `umount`
    Txn(TxnInfo),
    /// `list`
    List(ListReply),
    /// `status`
    Status(Box<StatusReply>),
    /// `diff`
    Changes(ChangesReply),
    /// `log`, `trace`
    Log(LogReply),
    /// `show`
    Show(ShowReply),
    /// `commit`
    Commit(CommitReply),
    /// `rebase`
    Rebase(RebaseReply),
    /// `abort`
    Abort(AbortReply),
    /// `undo`
    Undo(UndoReply),
    /// `history`
    History(HistoryReply),
    /// `gc`
    Gc(GcReply),
    /// `doctor`
    Doctor(DoctorReply),
    /// `mount`
    Mount(MountReply),
    /// `step`
    Step(StepReply),
    /// `savepoint`
    Savepoint(MarkInfo),
    /// `savepoints`
    Savepoints(SavepointsReply),
    /// `rollback`
    Rollback(RollbackReply),
}

/// The daemon about itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DaemonReply {
    /// Its process id.
    pub daemon_pid: u32,
    /// Its version.
    pub version: String,
    /// The workspace.
    pub workspace: PathBytes,
    /// Views that are mounted.
    pub mounts: u32,
}

/// One transaction.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TxnInfo {
    /// Name.
    pub txn: String,
    /// Id in the journal.
    pub id: u64,
    /// The uid that owns it.
    pub owner: u32,
    /// `open`, `sealed`, `aborting`.
    pub state: String,
    /// The generation its view shows beneath its effects.
    pub base_generation: u64,
    /// The newest generation.
    pub generation: u64,
    /// The two differ.
    pub stale: bool,
    /// Seconds since the epoch.
    pub began: i64,
    /// Effects recorded.
    pub effects: u64,
    /// Bytes of staged content, holes not counted.
    pub staged_bytes: u64,
    /// Where its view is mounted.
    pub mount: Option<PathBytes>,
}

/// `list`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListReply {
    /// By name.
    pub txns: Vec<TxnInfo>,
}

/// What happened to an entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It is gone. First in every listing.
    Deleted,
    /// It has another path, and perhaps other content.
    Renamed,
    /// Another kind of entry stands at the path.
    TypeChanged,
    /// Other content.
    Modified,
    /// Same content, other mode, owner, times or extended attributes.
    Metadata,
    /// It is new.
    Added,
}

/// One changed entry.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChangeLine {
    /// What happened.
    pub change: ChangeKind,
    /// Where it is in the view; where it was, if deleted.
    pub path: PathBytes,
    /// Where it was, if renamed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub from: Option<PathBytes>,
    /// `file`, `dir`, `symlink`, `fifo`, `socket`, `char`, `block`.
    pub kind: String,
    /// `st_mode & 0o7777` before, if it was there.
    pub old_mode: Option<u32>,
    /// `st_mode & 0o7777` after, if it is there.
    pub new_mode: Option<u32>,
    /// Bytes before.
    pub old_size: Option<u64>,
    /// Bytes after.
    pub new_size: Option<u64>,
    /// What of the metadata changed: `mode`, `owner`, `mtime`, `xattrs`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub meta: Vec<String>,
}

/// Changes by kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Deleted entries.
    pub deleted: u64,
    /// Renamed entries; a renamed directory counts once.
    pub renamed: u64,
    /// Entries of another kind.
    pub type_changed: u64,
    /// Entries with other content.
    pub modified: u64,
    /// Entries with other metadata only.
    pub metadata: u64,
    /// New entries.
    pub added: u64,
}

/// A file that is open for writing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Writer {
    /// Where in the view.
    pub path: PathBytes,
    /// Processes that hold it, where known.
    pub pids: Vec<u32>,
}

/// `status`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StatusReply {
    /// The transaction.
    #[serde(flatten)]
    pub txn: TxnInfo,
    /// Changes by kind.
    pub counts: Counts,
    /// Every change, deletions first.
    pub changes: Vec<ChangeLine>,
    /// Edits behind txfs's back where the transaction touched.
    pub drift: Vec<Conflict>,
    /// Files open for writing in the view.
    pub open_writers: Vec<Writer>,
    /// The command that comes next.
    pub next_step: String,
    /// The daemon.
    pub daemon_pid: u32,
    /// Bytes on disk of the whole store.
    pub store_bytes: u64,
    /// Of these, preimages.
    pub history_bytes: u64,
    /// Why the workspace is poisoned, if it is.
    pub poisoned: Option<String>,
}

/// `diff`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChangesReply {
    /// The transaction's name.
    pub txn: String,
    /// Every change, deletions first.
    pub changes: Vec<ChangeLine>,
}

/// One line of `log`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LogLine {
    /// Its place.
    pub seq: u64,
    /// Seconds since the epoch.
    pub time: i64,
    /// The step it belongs to.
    pub step: u32,
    /// `move`, `rm`, `mkdir`, `write`, `step`, `savepoint`, `rolled_back`.
    pub effect: String,
    /// What of a write: `create`, `link`, `content`, `attrs`, `xattr`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub detail: Option<String>,
    /// The path at that moment.
    pub path: PathBytes,
    /// The second path of a move.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub to: Option<PathBytes>,
    /// `unmove`, `unrm`, `rmdir_if_empty`, `restore`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub inverse: Option<String>,
    /// A later rollback took it back.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub taken_back: bool,
    /// The process: its pid, executable and arguments, if asked for and known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub process: Option<ProcessInfo>,
}

/// A process that caused an effect.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// Its id.
    pub pid: u32,
    /// Its executable.
    pub exe: PathBytes,
    /// Its arguments.
    pub argv: Vec<PathBytes>,
    /// Its parent and its parent's parents, up to the run.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub parents: Vec<ProcessInfo>,
}

/// `log`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LogReply {
    /// The transaction's name.
    pub txn: String,
    /// In order.
    pub records: Vec<LogLine>,
}

/// One generation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GenerationInfo {
    /// Its number.
    pub generation: u64,
    /// The transaction it was.
    pub txn: u64,
    /// Who.
    pub uid: u32,
    /// Seconds since the epoch.
    pub time: i64,
    /// `-m`
    pub message: PathBytes,
    /// The generations it took back.
    pub undo_of: Vec<u64>,
    /// Entries it changed.
    pub entries: u64,
    /// Bytes of its preimages.
    pub history_bytes: u64,
    /// Whether its preimages were collected.
    pub pruned: bool,
    /// The command that takes it back, or null.
    pub undo: Option<String>,
}

/// `history`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HistoryReply {
    /// The newest generation.
    pub generation: u64,
    /// Newest first.
    pub generations: Vec<GenerationInfo>,
}

/// `show`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShowReply {
    /// The generation.
    #[serde(flatten)]
    pub info: GenerationInfo,
    /// Its changes, deletions first.
    pub changes: Vec<ChangeLine>,
}

/// `commit`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CommitReply {
    /// The transaction's name.
    pub txn: String,
    /// The new generation; the live one if nothing changed or for a dry run.
    pub generation: u64,
    /// Nothing was done.
    pub dry_run: bool,
    /// Whether there was anything to commit.
    pub changed: bool,
    /// Changes by kind.
    pub counts: Counts,
    /// The command that takes it back, or null.
    pub undo: Option<String>,
    /// Why it is null.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// Files that landed as a copy because they are open for writing.
    pub copied_open: Vec<PathBytes>,
}

/// `rebase`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RebaseReply {
    /// The transaction's name.
    pub txn: String,
    /// The generation it was on.
    pub from: u64,
    /// The live generation, on which it is now.
    pub generation: u64,
    /// Entries it changes.
    pub entries: u64,
    /// Nothing was done.
    pub dry_run: bool,
}

/// `abort`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AbortReply {
    /// The transaction's name.
    pub txn: String,
    /// Effects taken back.
    pub effects: u64,
    /// Always null: an abort is final.
    pub undo: Option<String>,
    /// Why it is null.
    pub reason: String,
}

/// `undo`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UndoReply {
    /// The new generation.
    pub generation: u64,
    /// What it took back, newest first.
    pub undone: Vec<u64>,
    /// Nothing was done.
    pub dry_run: bool,
    /// Entries it changed.
    pub entries: u64,
    /// The command that takes it back (a redo).
    pub undo: Option<String>,
}

/// `gc`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GcReply {
    /// Generations whose preimages were dropped.
    pub pruned: Vec<u64>,
    /// Bytes freed.
    pub freed_bytes: u64,
    /// Bytes of preimages left.
    pub history_bytes: u64,
    /// Generations that would go but are needed, and by which transaction.
    pub pinned: Vec<String>,
}

/// One thing that `doctor` found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// `ok`, `warning`, `error`.
    pub level: String,
    /// What was checked and what was seen.
    pub what: String,
    /// Where.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub path: Option<PathBytes>,
    /// The command or the step that mends it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub remedy: Option<String>,
}

/// `doctor`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DoctorReply {
    /// No finding is an error.
    pub healthy: bool,
    /// Everything that was checked.
    pub findings: Vec<Finding>,
}

/// `mount`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MountReply {
    /// The transaction.
    #[serde(flatten)]
    pub txn: TxnInfo,
    /// The view was being served already.
    pub existing: bool,
    /// A process in whose namespaces the view stands over the workspace, if it was being served to one.
    pub holder: Option<u32>,
    /// Whether file data bypasses the daemon.
    pub passthrough: bool,
    /// The daemon.
    pub daemon_pid: u32,
}

/// `step`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StepReply {
    /// The number of the step.
    pub step: u32,
}

/// A place to which a transaction can go back.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MarkInfo {
    /// `savepoint` or `step`.
    pub mark: String,
    /// A savepoint's name, a step's command line.
    pub name: PathBytes,
    /// The number of the step; of a savepoint, that of the step it was set in.
    pub step: u32,
    /// Its place in the log.
    pub seq: u64,
    /// Seconds since the epoch.
    pub time: i64,
    /// Effects after it.
    pub effects_since: u64,
    /// The command that goes back to it.
    pub rollback: String,
}

/// `savepoints`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavepointsReply {
    /// The transaction's name.
    pub txn: String,
    /// Oldest first.
    pub marks: Vec<MarkInfo>,
}

/// `rollback`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RollbackReply {
    /// The transaction's name.
    pub txn: String,
    /// Where it went back to.
    pub to: MarkInfo,
    /// Effects taken back.
    pub effects: u64,
    /// Files that were open and whose handles lead nowhere any more.
    pub stale: Vec<PathBytes>,
    /// Always null.
    pub undo: Option<String>,
    /// Why it is null.
    pub reason: String,
}
