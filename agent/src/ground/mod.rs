//! What every other module stands on: the platform's interface, atomics, the division of memory blocks, short texts.
//!
//! Nothing here imports from another wing.

pub(crate) mod block;
pub(crate) mod platform;
pub(crate) mod sync;
pub(crate) mod text;
