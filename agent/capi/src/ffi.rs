//! The calls that C makes, and everything in this package that has to trust C.
//!
//! Only what cannot be checked is trusted: that a pointer which is not NULL points to what its
//! description says, that memory given to the agent is used by nothing else, and that functions
//! given to it keep their contracts.
#![allow(unsafe_code, reason = "pointers, functions and memory of C's")]

mod access;
mod arena;
mod boot;
mod calls;
mod clock;
mod entry;
mod events;
mod guest;
mod heap;
mod one;
mod read;
mod trace;

pub use boot::*;
pub use calls::*;
pub use entry::*;
pub use events::*;
pub use heap::*;
pub use trace::*;
