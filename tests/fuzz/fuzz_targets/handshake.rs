//! Strangers at an agent with keys.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| unikprof_fuzz::keyed::check_handshake(bytes));
