//! The program's start and exit: all that it needs from the system.
#![allow(unsafe_code)]

use core::arch::{asm, global_asm};

global_asm!(
    ".globl _start",
    "_start:",
    // The outermost frame.
    "xor ebp, ebp",
    "and rsp, -16",
    "call {begin}",
    "ud2",
    begin = sym begin,
);

extern "C" fn begin() -> ! {
    exit(crate::run().map_or_else(|step| step as u8, |()| 0))
}

/// The compiled core library refers to it, but never calls it: panics abort.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    exit(crate::Step::Panic as u8)
}

pub(crate) fn exit(code: u8) -> ! {
    const EXIT_GROUP: u64 = 231;
    // SAFETY: the call does not return and accesses none of the program's memory.
    unsafe {
        asm!(
            "syscall",
            in("rax") EXIT_GROUP,
            in("rdi") u64::from(code),
            options(noreturn, nostack),
        )
    }
}
