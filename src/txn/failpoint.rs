//! Named points between two writes, at which a test has the process killed.
//!
//! `TXFS_FAILPOINT=NAME[:N]` in the daemon's environment kills it with SIGKILL at the N-th pass of
//! that point (the first, if N is not given). Without the variable a point costs one load.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// All points, in the order in which a run may pass them.
pub const ALL: &[&str] = &[
    "commit.prepare",
    "commit.synced",
    "commit.sealed",
    "apply.begin",
    "apply.history",
    "apply.step.before",
    "apply.step.after",
    "apply.rewrite.begun",
    "apply.rewrite.written",
    "apply.barrier",
    "apply.synced",
    "apply.recorded",
    "rollback.step",
    "rollback.rewritten",
    "rollback.synced",
    "rollback.restamped",
    "rollback.staged",
    "commit.published",
    "commit.cleanup",
    "undo.sealed",
    "rebase.decided",
    "abort.decided",
    "abort.staging",
    "abort.finished",
    "savepoint.marked",
    "rollback.recorded",
    "rollback.done",
    "gc.marked",
    "gc.moved",
];

struct Armed {
    name: String,
    left: AtomicU64,
}

static ARMED: OnceLock<Option<Armed>> = OnceLock::new();

/// Dies here if this is the point that the environment names.
pub fn failpoint(name: &str) {
    debug_assert!(ALL.contains(&name), "{name} is not listed");
    let armed = ARMED.get_or_init(|| {
        let value = std::env::var("TXFS_FAILPOINT").ok()?;
        let (name, n) = value.split_once(':').unwrap_or((&value, "1"));
        Some(Armed { name: name.to_owned(), left: AtomicU64::new(n.parse().ok()?) })
    });
    let Some(armed) = armed else { return };
    if armed.name == name && armed.left.fetch_sub(1, Ordering::Relaxed) == 1 {
        log::warn!("killed at {name}, as TXFS_FAILPOINT says");
        if let Err(e) =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
        {
            log::error!("{e}");
        }
        std::process::abort();
    }
}
