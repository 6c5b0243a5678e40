//! The functions in assembly of aarch64.

use core::arch::naked_asm;

use super::under;

/// Calls `under` with a frame pointer whose record is its own caller.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn cyclic_chain(steps: u32) -> u64 {
    naked_asm!(
        ".cfi_startproc",
        "stp x29, x30, [sp, #-32]!",
        ".cfi_adjust_cfa_offset 32",
        ".cfi_offset x29, -32",
        ".cfi_offset x30, -24",
        // A record whose frame pointer is its own address, and whose return address is in `under`.
        "adrp x9, {under}",
        "add x9, x9, :lo12:{under}",
        "add x29, sp, #16",
        "stp x29, x9, [x29]",
        "bl {under}",
        "ldp x29, x30, [sp], #32",
        ".cfi_adjust_cfa_offset -32",
        ".cfi_restore x29",
        ".cfi_restore x30",
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
        "stp x29, x30, [sp, #-32]!",
        ".cfi_adjust_cfa_offset 32",
        ".cfi_offset x29, -32",
        ".cfi_offset x30, -24",
        "mov x29, #0xdef0",
        "movk x29, #0x1234, lsl #48",
        "bl {under}",
        "ldp x29, x30, [sp], #32",
        ".cfi_adjust_cfa_offset -32",
        ".cfi_restore x29",
        ".cfi_restore x30",
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
        "stp x29, x30, [sp, #-32]!",
        ".cfi_adjust_cfa_offset 32",
        ".cfi_offset x29, -32",
        ".cfi_offset x30, -24",
        "mov x29, xzr",
        "bl {under}",
        "ldp x29, x30, [sp], #32",
        ".cfi_adjust_cfa_offset -32",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "ret",
        ".cfi_endproc",
        under = sym under,
    )
}
