//! Copying and filling memory: see [`memory_functions`](crate::memory_functions). Loops in
//! assembly, because the compiler would replace loops in Rust by calls of these functions.

#![allow(unsafe_code, reason = "the C names and contracts are the compiler's")]

use core::arch::asm;

#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // SAFETY: the caller provides two valid ranges of `count` bytes; memory needs no alignment.
    unsafe {
        asm!(
            "2:",
            "cmp {count}, #8",
            "b.lo 3f",
            "ldr {word}, [{from}], #8",
            "str {word}, [{to}], #8",
            "sub {count}, {count}, #8",
            "b 2b",
            "3:",
            "cbz {count}, 4f",
            "ldrb {word:w}, [{from}], #1",
            "strb {word:w}, [{to}], #1",
            "sub {count}, {count}, #1",
            "b 3b",
            "4:",
            count = inout(reg) count => _,
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            word = out(reg) _,
            options(nostack),
        );
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    if to.addr().wrapping_sub(from.addr()) >= count {
        // SAFETY: going upward never writes what is still to be read.
        return unsafe { memcpy(to, from, count) };
    }
    // SAFETY: the ranges overlap with `to` above, so the copy goes downward.
    unsafe {
        asm!(
            "2:",
            "cbz {count}, 3f",
            "sub {count}, {count}, #1",
            "ldrb {byte:w}, [{from}, {count}]",
            "strb {byte:w}, [{to}, {count}]",
            "b 2b",
            "3:",
            count = inout(reg) count => _,
            from = in(reg) from,
            to = in(reg) to,
            byte = out(reg) _,
            options(nostack),
        );
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, count: usize) -> *mut u8 {
    let pattern = u64::from(value as u8) * 0x0101_0101_0101_0101;
    // SAFETY: the caller provides a valid range of `count` bytes.
    unsafe {
        asm!(
            "2:",
            "cmp {count}, #8",
            "b.lo 3f",
            "str {pattern}, [{to}], #8",
            "sub {count}, {count}, #8",
            "b 2b",
            "3:",
            "cbz {count}, 4f",
            "strb {pattern:w}, [{to}], #1",
            "sub {count}, {count}, #1",
            "b 3b",
            "4:",
            count = inout(reg) count => _,
            to = inout(reg) to => _,
            pattern = in(reg) pattern,
            options(nostack),
        );
    }
    to
}
