//! The functions that the compiler calls to copy, fill and compare memory, for every guest without a C library, and a
//! symbol that the compiled core library refers to but never calls, because panics abort.

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
    // SAFETY: the ranges overlap with `to` above, so the copy goes downward, and the flag is cleared again.
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

#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
    let mut done = 0;
    while done < count {
        // SAFETY: `done` is below `count`, for which both ranges are valid.
        let (a, b) = unsafe {
            if count - done >= 8 {
                let words = (
                    left.add(done).cast::<u64>().read_unaligned(),
                    right.add(done).cast::<u64>().read_unaligned(),
                );
                if words.0 == words.1 {
                    done += 8;
                    continue;
                }
            }
            (*left.add(done), *right.add(done))
        };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
        done += 1;
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
    // SAFETY: the same contract.
    unsafe { memcmp(left, right, count) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    let mut length = 0;
    // SAFETY: the text ends with a zero byte, and no byte after it is read.
    while unsafe { text.add(length).read_volatile() } != 0 {
        length += 1;
    }
    length
}

#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
