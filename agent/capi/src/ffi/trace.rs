//! The calls of the guest's breakpoint handler.
//!
//! The handler of the exception #BP is an upcall too, which may come anywhere, also inside other
//! upcalls: see [`entry`](super::entry).

#[cfg(feature = "trace")]
use unikprof_agent::{Breakpoint, TrapFrame};

use super::one;
use crate::abi;
use crate::arch::aligned;

/// Returns the length in bytes of a block for `trace_memory`, at any alignment, for tracing
/// `functions` functions at a time, at most 1000, with calls open on `stacks` stacks, at most 255.
/// Returns 0 in an archive that was built without `--trace`.
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_trace_bytes(functions: usize, stacks: usize) -> usize {
    #[cfg(feature = "trace")]
    return unikprof_agent::trace_bytes(functions, stacks);
    #[cfg(not(feature = "trace"))]
    {
        let _ = (functions, stacks);
        0
    }
}

/// Handles the exception #BP (vector 3). Call it with interrupts off, on a stack of its own (an IST
/// entry), or on the interrupted stack if all code of the guest is compiled without a red zone.
/// `frame` holds all registers of the interrupted code.
///
/// Returns 1 if the breakpoint was the agent's: then continue with the registers in `frame`, of
/// which the program counter and the stack pointer may have changed. Returns 0 if it was not,
/// before `unikprof_init`, and in an archive that was built without `--trace`. May be called
/// wherever `unikprof_on_tick` may.
///
/// # Safety
///
/// For C: `frame` points to a valid structure.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_on_breakpoint(frame: *mut abi::TrapFrame) -> i32 {
    aligned!(on_breakpoint)
}

/// Returns the address that `pc` stands for. The agent executes copies of some instructions
/// elsewhere; a fault handler that looks at the instruction, or prints its address, passes the
/// address of the fault. Any address that is not that of a copy is returned unchanged. May be
/// called wherever `unikprof_on_tick` may.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_original_pc(pc: u64) -> u64 {
    aligned!(original_pc)
}

#[cfg(feature = "trace")]
const _: () = assert!(size_of::<TrapFrame>() == size_of::<abi::TrapFrame>());

unsafe extern "C" fn on_breakpoint(frame: *mut abi::TrapFrame) -> i32 {
    #[cfg(feature = "trace")]
    // SAFETY: guaranteed by the caller; both structures have the same fields.
    if let Some(frame) = unsafe { frame.cast::<TrapFrame>().as_mut() } {
        let handled = one::upcall(|agent| agent.on_breakpoint(frame));
        return i32::from(handled == Ok(Breakpoint::Handled));
    }
    let _ = frame;
    0
}

extern "C" fn original_pc(pc: u64) -> u64 {
    #[cfg(feature = "trace")]
    let original = one::upcall(|agent| agent.original_pc(pc));
    #[cfg(not(feature = "trace"))]
    let original = one::upcall(|_| pc);
    original.unwrap_or(pc)
}
