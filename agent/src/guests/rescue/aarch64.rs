//! Switching stacks on aarch64.
#![allow(unsafe_code)]

/// Calls `function` with `argument` on the stack that ends at `top`.
///
/// # Safety
/// `top` is aligned to 16 bytes, with enough free memory below it for the call; `function` does not
/// unwind.
pub(super) unsafe fn switch(top: *mut u8, function: extern "C" fn(*mut u8), argument: *mut u8) {
    // The frame pointer is kept, so that a walk from inside finds its way back.
    // SAFETY: sp is restored from x20, which the callee keeps; everything else that a call may change is named by
    // the ABI clobbers.
    unsafe {
        core::arch::asm!(
            "mov x20, sp",
            "mov sp, {top}",
            "blr {function}",
            "mov sp, x20",
            top = in(reg) top,
            function = in(reg) function,
            in("x0") argument,
            out("x20") _,
            clobber_abi("C"),
        );
    }
}
