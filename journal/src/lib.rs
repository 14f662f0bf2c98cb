//! The journal of txfs.
//!
//! It knows effects and their inverses, the records in which they are kept, the order in which
//! records may stand, and the [sled](https://docs.rs/sled) store that holds them. It knows nothing
//! of FUSE, of the command line, or of how effects reach the disk.

mod check;
pub mod codec;
mod disk;
pub mod effect;
pub mod error;
mod frame;
mod generations;
pub mod id;
mod list;
pub mod name;
pub mod object;
pub mod order;
pub mod plan;
pub mod record;
mod seal;
pub mod store;
mod writer;

pub use effect::*;
pub use error::JournalError;
pub use frame::FORMAT;
pub use id::*;
pub use list::TxnWriter;
pub use name::{BadName, Name, RelPath};
pub use object::*;
pub use plan::{GenerationHead, GenerationRecord, Holds, Plan, PlanHead, Seen, Step};
pub use record::{EffectEntry, Entry, Record, TxnHead, TxnState};
pub use seal::Sealed;
pub use store::Journal;
