//! Two functions without a frame, each with its own caller: one runs from the start, the other
//! after a line on standard input.
//!
//! A walk along frame pointers skips the callers; only the caller table knows them.
#![allow(unsafe_code)]

use std::arch::global_asm;
use std::error::Error;
use std::hint::black_box;

use unikprof_agent::hosted::Guest;

use crate::stop::Stop;

/// Short enough to notice the guest's end soon.
const TURNS: u64 = 20_000;

macro_rules! frameless {
    ($name:literal, $moves:literal) => {
        global_asm!(
            concat!(".pushsection .text.", $name, ", \"ax\", @progbits"),
            concat!(".globl ", $name),
            concat!(".type ", $name, ", @function"),
            concat!($name, ":"),
            ".cfi_startproc",
            "2: imul rax, rdi",
            "xor rax, rdi",
            "imul rax, rdi",
            concat!(".rept ", $moves),
            "lea rsp, [rsp - 8]",
            ".cfi_adjust_cfa_offset 8",
            "lea rsp, [rsp + 8]",
            ".cfi_adjust_cfa_offset -8",
            ".endr",
            "dec rdi",
            "jnz 2b",
            "ret",
            ".cfi_endproc",
            concat!(".size ", $name, ", . - ", $name),
            ".popsection"
        );
    };
}

// Each change of the stack pointer is a row of the table. With so many of them, the early function
// alone fills the room that a test gives the table at first, wherever the linker places the two.
frameless!("early_leaf", "14");
frameless!("late_leaf", "0");

unsafe extern "C" {
    fn early_leaf(turns: u64) -> u64;
    fn late_leaf(turns: u64) -> u64;
}

pub(crate) fn run(guest: &Guest, stop: &Stop) -> Result<(), Box<dyn Error>> {
    let _vcpu = guest.register_thread()?;
    while !stop.is_set() {
        if stop.was_told() {
            late_caller();
        } else {
            early_caller();
        }
    }
    Ok(())
}

#[inline(never)]
fn early_caller() {
    // SAFETY: it changes only registers that a call may change.
    black_box(unsafe { early_leaf(TURNS) } | 1);
}

#[inline(never)]
fn late_caller() {
    // SAFETY: as above.
    black_box(unsafe { late_leaf(TURNS) } | 1);
}
