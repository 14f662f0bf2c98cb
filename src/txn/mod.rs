//! Transactions: from a view's effects to a generation of the base, and back.

pub mod apply;
pub mod failpoint;
pub mod store;
