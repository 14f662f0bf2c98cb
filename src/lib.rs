//! Transactions for directories. See `DESIGN.md`.

pub mod cli;
pub mod proto;
pub mod view;
