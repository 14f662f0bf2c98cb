//! The whole program, over real mounts. Needs root and /dev/fuse and says so; the parts for
//! ordinary users run as the user `txfs-test`, which `scripts/setup test` makes.

#![allow(
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm
)]

mod bad_input;
mod crash;
mod daemon;
mod generations;
mod harness;
mod kernel;
mod main_job;
mod manifest;
mod open_files;
mod ordinary_user;
mod programs;
mod savepoints;
mod shell;
mod trace;
mod traps;
