//! What the archive has of its own on x86-64: the entries of upcalls, the trap that a panic ends in, and the
//! cycle counter.
#![allow(
    unsafe_code,
    reason = "instructions that the language has no words for"
)]

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

/// The same for a function of one argument; `$inner` has three more, which are the program counter, stack
/// pointer and frame pointer of the caller.
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
    // SAFETY: every x86-64 has the instruction; a guest runs where it may be used.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// An invalid instruction.
#[cfg(unikprof_archive)]
pub(crate) fn trap() -> ! {
    // SAFETY: the instruction does not return.
    unsafe { core::arch::asm!("ud2", options(noreturn, nomem, nostack)) }
}
