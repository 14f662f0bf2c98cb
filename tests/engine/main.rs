//! Journal, view, commit, undo and recovery together, without FUSE: needs neither /dev/fuse nor root.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    missing_docs,
    unreachable_pub
)]

mod drive;
mod history;
#[path = "../e2e/manifest.rs"]
mod manifest;
mod meanwhile;
mod recovery;
mod savepoints;
