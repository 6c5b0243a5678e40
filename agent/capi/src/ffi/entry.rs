//! The calls of upcalls: they may come on any stack, however it is aligned.
//!
//! Interrupt paths in C kernels leave the stack off the ABI, and have saved no SSE state. Each entry here
//! aligns the stack for the functions that the agent calls back. It saves nothing: the archive uses none
//! of that state (a test holds that), and what is called back is the kernel's own. The frame pointer is
//! kept, so that a walk from inside finds its way.

use unikprof_agent::{Agent, Registers};

use super::{one, read};
use crate::abi::{self, UNIKPROF_NO_DEADLINE};
use crate::arch::{aligned, aligned_with_caller};
use crate::status::{Misuse, UNIKPROF_OK};

/// The timer's upcall, on the vCPU that it was delivered to. `registers` are those of the interrupted
/// code, NULL where there are none (an upcall that was forced when events were unmasked): then a tick
/// that is due is counted as masked.
///
/// Answers the next deadline of this vCPU in ns, on the clock of `now_ns`: program the timer for it, or
/// for the guest's own where that is earlier. UNIKPROF_NO_DEADLINE: nothing to wait for, also before
/// `unikprof_init`. May be called at any time, on any stack, nested, and on several vCPUs at once.
///
/// # Safety
/// C's: `registers` is NULL or leads to a structure of its kind.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_on_tick(registers: *const abi::Registers) -> u64 {
    aligned!(on_tick)
}

/// The guest is about to block on this vCPU, with its upcalls held back. Until `unikprof_on_wake` the
/// sampler has no deadline there: program the guest's own alone, so that an idle guest stays asleep.
/// `registers` are those of the code that blocks, NULL for the caller's own: a recording of blocked time
/// counts it to their stack.
///
/// Answers UNIKPROF_OK or a code. May be called where `unikprof_on_tick` may.
///
/// # Safety
/// C's: `registers` is NULL or leads to a structure of its kind.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_on_block(registers: *const abi::Registers) -> i32 {
    aligned_with_caller!(on_block)
}

/// The guest woke on this vCPU. Answers the next deadline as `unikprof_on_tick` does.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_on_wake() -> u64 {
    aligned!(on_wake)
}

/// The next deadline of this vCPU, as `unikprof_on_tick` answers it: a guest without `kick` programs it
/// after each `unikprof_poll` and `unikprof_connection_output`, since a recording may have begun.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_deadline() -> u64 {
    aligned!(deadline)
}

/// The guest was restored from a save or has migrated, and its event channels and clocks work again. A
/// recording goes on and notes the gap. Call it on one vCPU before its timer is armed; the others are
/// kicked. Answers the next deadline as `unikprof_on_tick` does.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_resume() -> u64 {
    aligned!(resume)
}

unsafe extern "C" fn on_tick(registers: *const abi::Registers) -> u64 {
    // SAFETY: the caller's promise.
    let registers = unsafe { read::registers(registers) };
    deadline_of(one::upcall(|agent| agent.on_tick(registers.as_ref())))
}

unsafe extern "C" fn on_block(registers: *const abi::Registers, pc: u64, sp: u64, fp: u64) -> i32 {
    // SAFETY: the caller's promise.
    let registers = unsafe { read::registers(registers) }.unwrap_or(Registers::new(pc, sp, fp));
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
