//! Transactions: from a view's effects to a generation of the base, and back.

pub mod apply;
pub mod failpoint;
pub mod net;
pub mod planner;
pub mod show;
pub mod store;
pub mod undo;
pub mod verbs;
pub mod workspace;

pub use workspace::Workspace;
