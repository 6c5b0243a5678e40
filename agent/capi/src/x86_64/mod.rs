//! The x86-64 parts of the archive: the entries of upcalls, the trap for panics, and the cycle
//! counter.
#![allow(unsafe_code, reason = "instructions without an equivalent in Rust")]

/// The body of a naked function that calls `$inner` with the same arguments on an aligned stack.
macro_rules! aligned {
    ($inner:ident $(, $more:literal)*) => {
        core::arch::naked_asm!(
            "push rbp",
            "mov rbp, rsp",
            $($more,)*
            "and rsp, -16",
            "call {}",
            "mov rsp, rbp",
            "pop rbp",
            "ret",
            sym $inner
        )
    };
}
pub(crate) use aligned;

/// Like `aligned`, for a function of one argument; `$inner` gets three more: the program counter,
/// stack pointer and frame pointer of the caller.
macro_rules! aligned_with_caller {
    ($inner:ident) => {
        $crate::arch::aligned!(
            $inner,
            "mov rsi, [rbp + 8]",
            "lea rdx, [rbp + 16]",
            "mov rcx, [rbp]"
        )
    };
}
pub(crate) use aligned_with_caller;

/// The time stamp counter.
#[inline]
pub(crate) fn cycles() -> u64 {
    // SAFETY: every x86-64 CPU has the instruction; the guest runs where it is permitted.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// An invalid instruction.
#[cfg(unikprof_archive)]
pub(crate) fn trap() -> ! {
    // SAFETY: the instruction does not return.
    unsafe { core::arch::asm!("ud2", options(noreturn, nomem, nostack)) }
}
