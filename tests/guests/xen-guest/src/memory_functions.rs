//! The functions that the compiler calls to compare memory, for every guest without a C library,
//! and a symbol that the compiled core library refers to but never calls, because panics abort.
//! Those that copy and fill are the processor's.

#![allow(unsafe_code, reason = "the C names and contracts are the compiler's")]

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
