//! Transactions for directories. See `DESIGN.md`.

pub mod base;
pub mod classify;
pub mod cli;
pub mod daemon;
pub mod fuse;
pub mod hook;
pub mod lower;
pub mod proto;
pub mod report;
pub mod run;
pub mod shell;
pub mod sys;
pub mod txn;
pub mod view;
