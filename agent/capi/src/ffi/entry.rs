//! The calls for upcalls. They may run on any stack, however it is aligned.
//!
//! Interrupt paths of C kernels may leave the stack misaligned, and have not saved SSE state. Each
//! entry here aligns the stack for the guest's functions that the agent calls. It saves no SSE
//! state: the archive uses none (a test checks this), and the guest's functions are compiled like
//! the rest of its upcall code. The frame pointer is kept, so that a stack walk from inside still
//! works.

use unikprof_agent::{Agent, Registers};

use super::{one, read};
use crate::abi::{self, UNIKPROF_NO_DEADLINE};
use crate::arch::{INTO_CALL, aligned, aligned_with_caller};
use crate::status::{Misuse, UNIKPROF_OK};

/// Handles the timer's upcall, on the vCPU that received it. `registers` are those of the
/// interrupted code, or NULL if no code was interrupted (an upcall that was handled when events
/// were unmasked): a due tick is then counted as masked.
///
/// Returns the next deadline of this vCPU in ns, on the clock of `now_ns`: program the timer for
/// it, or for the guest's own deadline if that is earlier. It may have passed: then the timer must
/// fire at once. The first ticks of a recording return such a deadline, to measure what a delivery
/// costs. Returns UNIKPROF_NO_DEADLINE if there is nothing to wait for, or before `unikprof_init`.
///
/// May be called at any time, on any stack, however it is aligned, nested, and on several vCPUs at
/// once. It uses no vector or floating-point registers, and calls no functions except those of
/// `struct unikprof_ops`: an upcall that has not saved these registers may call it. The same holds
/// for all calls that may be made wherever this one may.
///
/// # Safety
///
/// For C: `registers` is NULL or points to a valid structure.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_on_tick(registers: *const abi::Registers) -> u64 {
    aligned!(on_tick)
}

/// The guest is about to block on this vCPU, with upcalls masked. Until `unikprof_on_wake` the
/// sampler has no deadline there: program the guest's own deadline only, so that an idle guest
/// stays asleep. `registers` are those of the blocking code, or NULL for the caller's: a recording
/// of blocked time counts the time to their stack.
///
/// Returns UNIKPROF_OK or an error code. May be called wherever `unikprof_on_tick` may.
///
/// # Safety
///
/// For C: `registers` is NULL or points to a valid structure.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_on_block(registers: *const abi::Registers) -> i32 {
    aligned_with_caller!(on_block)
}

/// The guest woke on this vCPU. Returns the next deadline like `unikprof_on_tick`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_on_wake() -> u64 {
    aligned!(on_wake)
}

/// Returns the next deadline of this vCPU like `unikprof_on_tick`. A guest without `kick` calls it
/// after each `unikprof_poll` and `unikprof_connection_output`, since a recording may have begun,
/// and programs its timer.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_deadline() -> u64 {
    aligned!(deadline)
}

/// The guest was restored or has migrated, and its event channels and clocks work again. Recordings
/// continue and note the gap. Call it on one vCPU, before its timer is armed; the other vCPUs are
/// kicked. Returns the next deadline like `unikprof_on_tick`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_resume() -> u64 {
    aligned!(resume)
}

unsafe extern "C" fn on_tick(registers: *const abi::Registers) -> u64 {
    // SAFETY: guaranteed by the caller.
    let registers = unsafe { read::registers(registers) };
    deadline_of(one::upcall(|agent| agent.on_tick(registers.as_ref())))
}

unsafe extern "C" fn on_block(registers: *const abi::Registers, pc: u64, sp: u64, fp: u64) -> i32 {
    // SAFETY: guaranteed by the caller.
    let registers = unsafe { read::registers(registers) };
    // The return address belongs to the statement behind the call.
    let registers = registers.unwrap_or(Registers::new(pc.wrapping_sub(INTO_CALL), sp, fp));
    match one::upcall(|agent| agent.on_block(Some(&registers))) {
        Ok(()) => UNIKPROF_OK,
        Err(misuse) => misuse.0,
    }
}

extern "C" fn on_wake() -> u64 {
    deadline_of(one::upcall(Agent::on_wake))
}

extern "C" fn deadline() -> u64 {
    deadline_of(one::upcall(Agent::deadline))
}

extern "C" fn resume() -> u64 {
    deadline_of(one::upcall(|agent| {
        agent.resume();
        agent.deadline()
    }))
}

#[inline]
fn deadline_of(answer: Result<Option<u64>, Misuse>) -> u64 {
    match answer {
        Ok(deadline_ns) => deadline_ns.unwrap_or(UNIKPROF_NO_DEADLINE),
        Err(misuse) => {
            one::note(misuse);
            UNIKPROF_NO_DEADLINE
        }
    }
}
