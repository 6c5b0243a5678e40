//! The functions that the compiler calls to copy, fill and compare memory, and symbols that the compiled core library
//! refers to but never calls, because panics abort.
#![allow(unsafe_code, reason = "the C names and contracts are the compiler's")]

use core::arch::asm;

#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // SAFETY: the caller provides two valid ranges of `count` bytes; the direction flag is clear.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") count => _,
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
        // SAFETY: upward, nothing is overwritten before it is read.
        return unsafe { memcpy(to, from, count) };
    }
    // SAFETY: the caller provides two valid ranges of `count` bytes, not zero here; downward, nothing is overwritten
    // before it is read. The direction flag is clear again at the end.
    unsafe {
        asm!(
            "std",
            "rep movsb",
            "cld",
            inout("rcx") count => _,
            inout("rdi") to.add(count - 1) => _,
            inout("rsi") from.add(count - 1) => _,
            options(nostack),
        );
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, count: usize) -> *mut u8 {
    // SAFETY: the caller provides a valid range of `count` bytes; the direction flag is clear.
    unsafe {
        asm!(
            "rep stosb",
            inout("rcx") count => _,
            inout("rdi") to => _,
            in("al") value as u8,
            options(nostack, preserves_flags),
        );
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
    for index in 0..count {
        // SAFETY: the caller provides two valid ranges of `count` bytes.
        let (left, right) = unsafe { (left.add(index).read(), right.add(index).read()) };
        if left != right {
            return i32::from(left) - i32::from(right);
        }
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
    // SAFETY: the same contract.
    unsafe { memcmp(left, right, count) }
}

#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    crate::process::exit(crate::Step::Panic as u8)
}
