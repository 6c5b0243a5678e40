//! The parts for x86-64: the boot, descriptors and interrupts, the way into Xen, starting vCPUs.

pub(crate) mod boot;
#[cfg(feature = "trace")]
pub(crate) mod breakpoints;
pub(crate) mod descriptors;
#[cfg(feature = "gate")]
pub(crate) mod dropin;
pub(crate) mod early_console;
pub(crate) mod hypercall_page;
pub(crate) mod interrupts;
mod memory_functions;
#[cfg(feature = "trace")]
pub(crate) mod probed;
pub(crate) mod processor;
pub(crate) mod random;
#[cfg(feature = "gate")]
pub(crate) mod signals;
pub(crate) mod start_info;
