//! The profiler for guests that know nothing of it, if it is linked in.
//!
//! The linker's `--wrap` would do without this call, but the guest is one object, in which no call
//! is from elsewhere.

#![allow(unsafe_code, reason = "the function may be missing, which only assembly can tell")]

use core::arch::asm;

use crate::interrupts;

/// Calls a function as the C ABI has it, unless its address is 0.
macro_rules! call_if_linked {
    ($function:literal) => {
        asm!(
            concat!(".weak ", $function),
            concat!("mov eax, offset ", $function),
            "test eax, eax",
            "jz 2f",
            "call rax",
            "2:",
            clobber_abi("C"),
        )
    };
}

/// Starts it: after the connection to Xen, before xenstore is used.
pub(crate) fn start() {
    interrupts::disable();
    // SAFETY: its contract is met.
    unsafe { call_if_linked!("unikprof_dropin_start") };
    interrupts::enable();
}

/// Leaves a crash dump on the console, if something is recorded.
pub(crate) fn crash() {
    // SAFETY: its contract is met on the first vCPU; a panic of another may leave no dump.
    unsafe { call_if_linked!("unikprof_dropin_crash") };
}

/// Connects its network again, in a restored domain, while xenstore and the console are not used.
pub(crate) fn resume() {
    // SAFETY: its contract is met on the first vCPU; on others it does nothing.
    unsafe { call_if_linked!("unikprof_dropin_resume") };
}
