//! The aarch64 parts of the archive: the entries of upcalls, the trap for panics, and the counter
//! of time.
//!
//! The stack pointer is always aligned: the processor checks it at each access. So an entry is a
//! jump; the guest's functions find the caller's frame record, as a walk from inside does.
#![allow(unsafe_code, reason = "instructions without an equivalent in Rust")]

/// The body of a naked function that continues in `$inner` with the same arguments.
macro_rules! aligned {
    ($inner:ident) => {
        core::arch::naked_asm!("b {}", sym $inner)
    };
}
pub(crate) use aligned;

/// Like `aligned`, for a function of one argument; `$inner` gets three more: the program counter,
/// stack pointer and frame pointer of the caller.
macro_rules! aligned_with_caller {
    ($inner:ident) => {
        core::arch::naked_asm!("mov x1, x30", "mov x2, sp", "mov x3, x29", "b {}", sym $inner)
    };
}
pub(crate) use aligned_with_caller;

/// For a function of a pointer and a size: subtracts the size from `$left` and returns, or
/// continues in `$inner` with three more arguments like `aligned_with_caller` if the size is
/// greater. Returns at once for NULL.
///
/// An upcall between load and store ends with an exception return, after which the store fails and
/// is tried again.
#[cfg(feature = "heap")]
macro_rules! aligned_with_caller_if_more {
    ($left:ident, $inner:ident) => {
        core::arch::naked_asm!(
            "cbz x0, 2f",
            "adrp x9, {left}",
            "add x9, x9, :lo12:{left}",
            "1: ldxr x10, [x9]",
            "subs x10, x10, x1",
            "b.lo 3f",
            "stxr w11, x10, [x9]",
            "cbnz w11, 1b",
            "2: ret",
            "3: clrex",
            "mov x2, x30",
            "mov x3, sp",
            "mov x4, x29",
            "b {inner}",
            left = sym $left,
            inner = sym $inner
        )
    };
}
#[cfg(feature = "heap")]
pub(crate) use aligned_with_caller_if_more;

/// Like `aligned_with_caller`, for a function of three arguments.
#[cfg(feature = "heap")]
macro_rules! aligned_with_caller_of_three {
    ($inner:ident) => {
        core::arch::naked_asm!("mov x3, x30", "mov x4, sp", "mov x5, x29", "b {}", sym $inner)
    };
}
#[cfg(feature = "heap")]
pub(crate) use aligned_with_caller_of_three;

/// From a return address back to the instruction that called.
pub(crate) const INTO_CALL: u64 = 4;

/// The virtual counter, whose rate is fixed and lower than the processor's.
#[inline]
pub(crate) fn cycles() -> u64 {
    let count: u64;
    // SAFETY: kernels may read the register, and programs on Linux.
    unsafe {
        core::arch::asm!("mrs {}, \
                          cntvct_el0", out(reg) count, options(nomem, nostack, preserves_flags));
    }
    count
}

/// An invalid instruction.
#[cfg(unikprof_archive)]
pub(crate) fn trap() -> ! {
    // SAFETY: the instruction does not return.
    unsafe { core::arch::asm!("udf #0", options(noreturn, nomem, nostack)) }
}
