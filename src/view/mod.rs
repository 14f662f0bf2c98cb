//! A transaction's namespace: its effects over the base as it was at its base generation.
//!
//! It works without FUSE: the operations are those of a file system on object numbers, the
//! adapter in [`crate::fuse`] decodes requests and calls them.
//!
//! An operation checks the merged state ([`state`]), builds an effect with its inverse, appends it
//! to the journal and only then performs it on the [`delta`].

pub mod acl;
pub mod api;
mod attrs;
pub mod cut;
pub mod delta;
mod dirs;
pub mod files;
pub mod layer;
pub mod marks;
mod names;
pub mod nodes;
mod procs;
pub mod staging;
pub mod state;

pub use layer::Layer;
pub use staging::Staging;
pub use state::{Parts, State, View};
