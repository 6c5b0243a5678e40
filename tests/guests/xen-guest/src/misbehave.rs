//! Ways to end badly, for the cases that check whether each is recognised.

#![allow(unsafe_code, reason = "the faults are real")]

use crate::power;

/// Does what the word says; returns for a word it does not know.
pub(crate) fn misbehave(word: &str) {
    match word {
        "panic" => panic!("asked to panic"),
        "null" => {
            // SAFETY: none: the first page is not mapped, and the fault is what is wanted.
            unsafe { core::ptr::without_provenance::<u64>(8).read_volatile() };
        }
        "triple-fault" => power::triple_fault(),
        "power-off" => power::power_off(),
        _ => {}
    }
}
