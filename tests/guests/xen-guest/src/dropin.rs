//! The profiler for guests that know nothing of it, if it is linked in.
//!
//! The linker's `--wrap` would do without this call, but the guest is one object, in which no call is from elsewhere.

#![allow(
    unsafe_code,
    reason = "the function may be missing, which only assembly can tell"
)]

use core::arch::asm;

use crate::interrupts;

/// Starts it: after the connection to Xen, before xenstore is used.
pub(crate) fn start() {
    interrupts::disable();
    // SAFETY: the function is called as the C ABI has it, unless its address is 0; its contract is met.
    unsafe {
        asm!(
            ".weak unikprof_dropin_start",
            "mov eax, offset unikprof_dropin_start",
            "test eax, eax",
            "jz 2f",
            "call rax",
            "2:",
            clobber_abi("C"),
        );
    }
    interrupts::enable();
}
