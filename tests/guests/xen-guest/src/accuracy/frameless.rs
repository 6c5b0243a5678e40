//! Functions without a frame in the middle of a stack: assembly that uses the frame pointer as a
//! general register, like C code compiled with `-fomit-frame-pointer`. Its unwind tables are
//! correct.
#![allow(unsafe_code, reason = "assembly is called")]

use core::arch::naked_asm;
use core::hint::black_box;

use unikprof_accuracy_loads::bursts::burst;

use super::clock::running_ns;

/// The work below each of the callers, in ns.
const OFTEN_NS: u64 = 600_000;
const SELDOM_NS: u64 = 200_000;

/// Calls both callers in turn; returns the ns below each.
pub(super) fn turn() -> [u64; 2] {
    [black_box(calls_often(OFTEN_NS)), black_box(calls_seldom(SELDOM_NS))]
}

#[inline(never)]
fn calls_often(ns: u64) -> u64 {
    // SAFETY: the function keeps the C ABI.
    black_box(unsafe { without_frame(ns) })
}

#[inline(never)]
fn calls_seldom(ns: u64) -> u64 {
    // SAFETY: the function keeps the C ABI.
    black_box(unsafe { without_frame(ns) })
}

/// Keeps a number in rbp over the call.
#[unsafe(naked)]
unsafe extern "C" fn without_frame(ns: u64) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_offset rbp, -16",
        "mov rbp, rdi",
        "call {twice}",
        "sub rax, rbp",
        "add rax, rbp",
        "pop rbp",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore rbp",
        "ret",
        ".cfi_endproc",
        twice = sym also_without_frame,
    )
}

/// Another such function below it, with space on its stack.
#[unsafe(naked)]
unsafe extern "C" fn also_without_frame(ns: u64) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_offset rbp, -16",
        "sub rsp, 32",
        ".cfi_adjust_cfa_offset 32",
        "mov ebp, 1234",
        "call {work}",
        "add rsp, 32",
        ".cfi_adjust_cfa_offset -32",
        "pop rbp",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore rbp",
        "ret",
        ".cfi_endproc",
        work = sym work,
    )
}

#[inline(never)]
extern "C" fn work(ns: u64) -> u64 {
    black_box(burst(&mut running_ns, ns))
}
