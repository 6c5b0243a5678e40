//! Ends the guest in several ways, for the cases that check that each is recognised.

#![allow(unsafe_code, reason = "the faults are real")]

use crate::{power, processor};

/// Ends the guest as the word says; returns if it does not know the word.
pub(crate) fn misbehave(word: &str) {
    match word {
        "panic" => panic!("asked to panic"),
        "null" => {
            // SAFETY: deliberately unsound: the first page is not mapped, and the fault is wanted.
            unsafe { core::ptr::without_provenance::<u64>(8).read_volatile() };
        }
        "triple-fault" => processor::give_up(),
        "power-off" => power::power_off(),
        _ => {}
    }
}
