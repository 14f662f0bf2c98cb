//! The journal of txfs.
//!
//! It knows effects and their inverses, the records in which they are kept, the order in which
//! records may stand, and the [sled](https://docs.rs/sled) store that holds them. It knows nothing
//! of FUSE, of the command line, or of how effects reach the disk.

pub mod effect;
pub mod id;
pub mod name;
pub mod object;
pub mod plan;
pub mod record;

pub use effect::*;
pub use id::*;
pub use name::{BadName, Name, RelPath};
pub use object::*;
pub use plan::{GenerationRecord, Plan};
pub use record::*;
