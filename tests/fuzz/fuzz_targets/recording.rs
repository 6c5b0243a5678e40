//! Any bytes as a recording file.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unikprof_fuzz::recording::check(bytes));
