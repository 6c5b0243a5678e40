//! A client with a key that seals what it likes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unikprof_fuzz::keyed::check_sealed(bytes));
