//! Traces of any code, by a client that says anything.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    unikprof_fuzz::traces::check(bytes);
});
