//! From registers to a path of frames: the walk, the caller table and the code map.
//!
//! Everything here is called from upcalls, except for the upload of a caller table. The guest's memory is read only
//! inside the bounds that the platform returns. Nothing here counts, allocates or panics.

#[cfg(target_arch = "aarch64")]
#[path = "aarch64.rs"]
mod architecture;
#[cfg(target_arch = "x86_64")]
#[path = "x86_64.rs"]
mod architecture;
pub mod caller_table;
#[cfg(all(test, loom))]
mod caller_table_model;
pub mod code_map;
mod memory;
pub mod path;
pub mod walk;

pub use self::memory::{CodeMemory, FRAME_RECORD, ReadCode, ReadStack, StackMemory, Stacks};
