//! The functions in assembly of x86-64.

use core::arch::naked_asm;

use super::under;

/// Calls `under` with a frame pointer whose record is its own caller.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn cyclic_chain(steps: u32) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_offset rbp, -16",
        // A record whose frame pointer is its own address, and whose return address is here.
        "lea rax, [rip + {under}]",
        "push rax",
        ".cfi_adjust_cfa_offset 8",
        "push rax",
        ".cfi_adjust_cfa_offset 8",
        "mov [rsp], rsp",
        "mov rbp, rsp",
        "call {under}",
        "add rsp, 16",
        ".cfi_adjust_cfa_offset -16",
        "pop rbp",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore rbp",
        "ret",
        ".cfi_endproc",
        under = sym under,
    )
}

/// Calls `under` with a frame pointer that is on no stack.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn corrupted_chain(steps: u32) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_offset rbp, -16",
        "mov rbp, 0x123456789abcdef0",
        "call {under}",
        "pop rbp",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore rbp",
        "ret",
        ".cfi_endproc",
        under = sym under,
    )
}

/// Calls `under` with a frame pointer of 0.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn missing_chain(steps: u32) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_offset rbp, -16",
        "xor ebp, ebp",
        "call {under}",
        "pop rbp",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore rbp",
        "ret",
        ".cfi_endproc",
        under = sym under,
    )
}
