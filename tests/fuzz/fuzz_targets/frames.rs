//! Any bytes as messages.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unikprof_fuzz::frames::check(bytes));
