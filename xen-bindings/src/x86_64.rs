//! The parts for x86-64: the way into Xen, its CPUID leaves, the TSC clock, Xen's timers, PVH start
//! information, the delivery of upcalls by a vector, and starting vCPUs.
//!
//! The modules that all architectures share re-export these items at their public paths (`clock`,
//! `hvm`, `vcpu`).

pub(crate) mod callback;
pub(crate) mod clock;
pub mod cpuid;
mod hypercall;
pub mod start_info;
pub mod timer;
pub(crate) mod vcpu;

pub use hypercall::{HypercallInstruction, HypercallPage, NotXen};
