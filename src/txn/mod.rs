//! Transactions: from a view's effects to a generation of the base, and back.

pub mod apply;
pub mod failpoint;
mod gate;
mod generation;
mod marks;
pub mod net;
pub mod planner;
pub mod prints;
mod ready;
mod rebase;
mod rollback;
mod room;
pub mod savepoints;
mod share;
pub mod show;
mod snapshot;
pub mod store;
pub mod undo;
pub mod validate;
pub mod verbs;
pub mod workspace;
mod writers;

pub use workspace::Workspace;
