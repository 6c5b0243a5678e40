//! End-to-end cases of unikprof, and what they run on.

// Not published: an error's message describes it.
#![allow(missing_docs)]

pub mod accuracy;
pub mod c_xen_guest;
pub mod guest_statistics;
pub mod many_guests;
pub mod process;
pub mod profiled;
pub mod soak;
pub mod source;
pub mod xen_bench;

pub use unikprof_lab as lab;
pub use unikprof_lab::requirement;
