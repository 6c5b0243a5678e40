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

/// For a function of a pointer and a size: subtracts the size from `$left` and returns, or calls
/// `$inner` with three more arguments like `aligned_with_caller` if the size is greater. Returns at
/// once for NULL.
///
/// The subtraction is one instruction, so no upcall on the same CPU comes in its middle. One that
/// comes before it may leave less than the comparison found; then it is undone.
#[cfg(feature = "heap")]
macro_rules! aligned_with_caller_if_more {
    ($left:ident, $inner:ident) => {
        core::arch::naked_asm!(
            "test rdi, rdi",
            "jz 3f",
            "cmp [rip + {left}], rsi",
            "jb 2f",
            "sub [rip + {left}], rsi",
            "jb 1f",
            "3: ret",
            "1: add [rip + {left}], rsi",
            "2: push rbp",
            "mov rbp, rsp",
            "mov rdx, [rbp + 8]",
            "lea rcx, [rbp + 16]",
            "mov r8, [rbp]",
            "and rsp, -16",
            "call {inner}",
            "mov rsp, rbp",
            "pop rbp",
            "ret",
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
        $crate::arch::aligned!($inner, "mov rcx, [rbp + 8]", "lea r8, [rbp + 16]", "mov r9, [rbp]")
    };
}
#[cfg(feature = "heap")]
pub(crate) use aligned_with_caller_of_three;

/// From a return address back to an address within the instruction that called.
pub(crate) const INTO_CALL: u64 = 1;

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
