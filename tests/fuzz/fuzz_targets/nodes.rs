//! Any bytes as stack nodes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unikprof_fuzz::nodes::check(bytes));
