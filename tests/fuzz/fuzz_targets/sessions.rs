//! Any bytes from several clients at once.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unikprof_fuzz::sessions::check(bytes));
