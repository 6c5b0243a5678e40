//! The parts for aarch64: the boot, interrupts, the device tree, the timer.

pub(crate) mod boot;
pub(crate) mod early_console;
pub(crate) mod interrupts;
mod memory_functions;
pub(crate) mod offline;
pub(crate) mod processor;
pub(crate) mod random;
pub(crate) mod start_info;
