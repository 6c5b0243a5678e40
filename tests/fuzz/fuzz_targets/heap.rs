//! Any calls of an allocator.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    unikprof_fuzz::heap::check(bytes);
});
