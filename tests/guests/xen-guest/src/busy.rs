//! A loop that only runs, at a known address, in which ticks should be found.

#![allow(
    unsafe_code,
    reason = "a section of its own, and one checked look at a stack"
)]

use core::ops::Range;

use crate::interrupts::Registers;

/// Runs until `is_over`, which is asked now and then.
#[inline(never)]
#[unsafe(link_section = ".text.busy_caller")]
pub(crate) fn run_until(is_over: fn() -> bool) -> u64 {
    let mut rounds = 0_u64;
    while !is_over() {
        rounds = rounds.wrapping_add(spin(10_000));
    }
    rounds
}

/// The loop. The assembly prevents its computation at compile time, and needs the frame.
#[inline(never)]
#[unsafe(link_section = ".text.busy_loop")]
fn spin(rounds: u64) -> u64 {
    let mut value = rounds;
    for _ in 0..rounds {
        value = core::hint::black_box(value).rotate_left(7) ^ 0x9e37_79b9;
    }
    value
}

/// Whether `pc` is in the loop.
pub(crate) fn contains(pc: u64) -> bool {
    unsafe extern "C" {
        static busy_loop_start: u8;
        static busy_loop_end: u8;
    }
    (&raw const busy_loop_start as u64..&raw const busy_loop_end as u64).contains(&pc)
}

/// Whether the frame at `registers.fp` returns into the loop's caller.
///
/// Wrong for the few instructions before the loop's frame is set up and after it is removed.
pub(crate) fn called_from(registers: Registers, stack: &Range<u64>) -> bool {
    unsafe extern "C" {
        static busy_caller_start: u8;
        static busy_caller_end: u8;
    }
    let place = registers.fp.wrapping_add(8);
    if !place.is_multiple_of(8) || place < stack.start || place > stack.end - 8 {
        return false;
    }
    // SAFETY: inside a stack, checked above, and aligned.
    let return_address = unsafe { (place as *const u64).read_volatile() };
    (&raw const busy_caller_start as u64..&raw const busy_caller_end as u64)
        .contains(&return_address)
}
