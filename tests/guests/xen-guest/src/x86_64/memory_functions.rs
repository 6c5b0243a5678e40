//! Copying and filling memory by string instructions: see
//! [`memory_functions`](crate::memory_functions).

#![allow(unsafe_code, reason = "the C names and contracts are the compiler's")]

use core::arch::asm;

#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // SAFETY: the caller provides two valid ranges of `count` bytes; the direction flag is clear.
    unsafe {
        asm!(
            "rep movsq",
            "mov rcx, {rest}",
            "rep movsb",
            rest = in(reg) count % 8,
            inout("rcx") count / 8 => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags),
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
    // SAFETY: the ranges overlap with `to` above, so the copy goes downward, and the flag is
    // cleared again.
    unsafe {
        asm!(
            "std",
            "rep movsb",
            "cld",
            inout("rcx") count => _,
            inout("rdi") to.wrapping_add(count).wrapping_sub(1) => _,
            inout("rsi") from.wrapping_add(count).wrapping_sub(1) => _,
            options(nostack),
        );
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, count: usize) -> *mut u8 {
    let pattern = u64::from(value as u8) * 0x0101_0101_0101_0101;
    // SAFETY: the caller provides a valid range of `count` bytes; the direction flag is clear.
    unsafe {
        asm!(
            "rep stosq",
            "mov rcx, {rest}",
            "rep stosb",
            rest = in(reg) count % 8,
            inout("rcx") count / 8 => _,
            inout("rdi") to => _,
            in("rax") pattern,
            options(nostack, preserves_flags),
        );
    }
    to
}
