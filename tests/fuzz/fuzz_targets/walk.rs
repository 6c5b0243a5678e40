//! Any bytes as a stack.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unikprof_fuzz::walk::check(bytes));
