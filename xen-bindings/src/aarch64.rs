//! The parts for aarch64: the way into Xen, the virtual counter and its timer, and the interrupt
//! controller that Xen presents.
//!
//! The modules that all architectures share re-export these items at their public paths (`clock`).

pub(crate) mod clock;
pub mod gic;
mod hypercall;
mod registers;
pub mod timer;
pub(crate) mod vcpu;

pub use hypercall::HypercallInstruction;
