//! From registers to a path of frames: the walk, the caller table and the code map.
//!
//! Everything here is called from upcalls, except for the upload of a caller table. The guest's
//! memory is read only inside the bounds that the platform returns. Nothing here counts, allocates
//! or panics.

mod architecture;
pub mod caller_table;
#[cfg(all(test, loom))]
mod caller_table_model;
pub mod code_map;
mod memory;
pub mod path;
pub mod walk;

pub use self::memory::{CodeMemory, FRAME_RECORD, ReadCode, ReadStack, StackMemory, Stacks};
