//! Any bytes as an image, or as the call frame information of one.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unikprof_fuzz::caller_table::check(bytes));
