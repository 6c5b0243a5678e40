//! The calls that C makes, and everything in this package that has to trust C.
//!
//! Trust ends at what cannot be checked: that a pointer which is not NULL leads to what it is said to,
//! that memory given is nobody else's, and that functions given do what their description asks.
#![allow(unsafe_code, reason = "pointers, functions and memory of C's")]

mod access;
mod arena;
mod boot;
mod calls;
mod entry;
mod events;
mod guest;
mod one;
mod read;

pub use boot::*;
pub use calls::*;
pub use entry::*;
pub use events::*;
