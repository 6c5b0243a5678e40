//! The lowest layer: the platform's interface, atomics, the division of memory blocks, short texts.
//!
//! It imports from no other layer. Upcalls call the platform's methods marked *upcall*, the
//! atomics, and [`text`]; [`block`] runs once, at the guest's start. Nothing here allocates or
//! locks.

pub(crate) mod block;
pub(crate) mod claim;
pub(crate) mod platform;
pub(crate) mod sync;
pub(crate) mod text;
