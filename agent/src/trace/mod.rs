//! Tracing: each call of chosen functions, with its duration, by breakpoints in the guest's code.
//!
//! A *probe* replaces the first byte of an instruction by `int3`, at a function's entry and at each
//! of its exits. The guest's breakpoint handler calls [`Agent::on_breakpoint`], which finds the
//! probe by its address, pushes to or pops from the stack's shadow stack, counts, and lets the
//! guest continue: in a slot with a copy of the instruction, or, after a transfer of control, at
//! its target. Return addresses are never replaced.
//!
//! | file | what it owns |
//! |---|---|
//! | `instruction` | which instructions a probe may replace, and the emulation of transfers |
//! | `slots` | places for copies of instructions, in the agent's text |
//! | `probes` | the table of probes |
//! | `stacks` | shadow stacks: the open calls |
//! | `totals` | what is counted for each function and its callers |
//! | `slow` | buffers for calls that are kept only if their root call was slow |
//! | `breakpoint` | the handler |
//! | `budget` | the cost of the trace, and the removal of the probes that cost most |
//! | `rehearsal` | which functions the handler itself calls |
//! | `control` | the trace that exists, and its setting and removal, for the service |
//!
//! Why: docs/design/decisions.md#breakpoints-and-slots,
//! docs/design/decisions.md#what-is-accepted-is-listed,
//! docs/design/decisions.md#probes-stay-in-the-table,
//! docs/design/decisions.md#probes-are-set-and-removed-in-steps,
//! docs/design/decisions.md#calls-are-paired-by-stack-pointer,
//! docs/design/decisions.md#the-handler-is-rehearsed,
//! docs/design/decisions.md#costs-are-bounded-in-the-handler.
//!
//! The handler is bounded. It never allocates, locks, waits or panics, and uses no floating point.
//! It calls these methods of the platform: `vcpu`, `call_stack`, `moment`, `now_ns`, `cycles` and
//! `write_code`. No probe may be set in their code.

mod breakpoint;
mod budget;
mod control;
mod instruction;
mod probes;
#[cfg(all(test, not(loom)))]
mod processor_tests;
mod rehearsal;
mod slots;
mod slow;
mod stacks;
mod totals;

use core::mem::MaybeUninit;

use unikprof_proto::trace::MAX_FUNCTIONS;

use self::probes::{ProbeCells, Probes, State, probe_bytes};
use self::slots::Slots;
use self::slow::Buffers;
use self::stacks::{MAX_STACKS, Stacks, stack_bytes};
use self::totals::{Callers, FunctionCells, caller_bytes};
use crate::agent::{Agent, AnyAgent};
use crate::ground::block::take;
use crate::ground::platform::{Platform, Registers};
use crate::ground::sync::{AtomicU32, AtomicU64, Ordering};

pub use self::breakpoint::Breakpoint;
pub(crate) use self::control::Tracer;
pub use self::instruction::TrapFrame;

/// Memory for probes and callers, for each function that there is memory for.
const PROBES_EACH: usize = 8;
const CALLERS_EACH: usize = 4;

/// Everything about tracing, in the memory block that the guest gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trace<'m> {
    cells: &'m TraceCells,
    functions: &'m [FunctionCells],
    probes: Probes<'m>,
    slots: Slots<'m>,
    stacks: Stacks<'m>,
    callers: Callers<'m>,
    buffers: Buffers<'m>,
    /// [`Agent::on_breakpoint`] for this agent's platform.
    handler: Handler,
}

/// The handler of an agent whose platform's type is not known here. The first argument is the
/// agent.
type Handler = fn(*const (), &mut TrapFrame) -> Breakpoint;

/// The state that all vCPUs share. All counts are since the trace began.
#[derive(Debug)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
#[repr(C, align(64))]
struct TraceCells {
    /// The handlers that run at present.
    inside: AtomicU32,
    /// See [`trace_flag`](unikprof_proto::code::trace_flag).
    flags: AtomicU32,
    /// See [`phase`].
    phase: AtomicU32,
    /// See
    /// [`TraceBegin::max_cost_permille`](unikprof_proto::message::TraceBegin::max_cost_permille).
    max_cost_permille: AtomicU32,
    /// The bit of the rehearsal that is under way; 0: none.
    rehearsal: AtomicU32,
    /// 1 while the cost is compared with its limit.
    is_judging: AtomicU32,
    /// The cost over the last window.
    cost_permille: AtomicU32,
    _padding: AtomicU32,
    /// The address of the probe that is being set; 0: none.
    setting: AtomicU64,
    /// The stack pointer of the rehearsal.
    rehearsal_sp: AtomicU64,
    /// See [`TraceBegin::slow_ns`](unikprof_proto::message::TraceBegin::slow_ns).
    slow_ns: AtomicU64,
    /// The cost of a breakpoint without its handler, in cycles.
    probe_cycles: AtomicU64,
    /// The beginning of the window over which the cost is measured: the time, the cycle counter,
    /// and what was counted. Time 0: there is none.
    window_ns: AtomicU64,
    window_start: AtomicU64,
    window_traps: AtomicU64,
    window_cycles: AtomicU64,
    traps: AtomicU64,
    stale: AtomicU64,
    unplaced: AtomicU64,
    too_deep: AtomicU64,
    mismatched: AtomicU64,
    truncated: AtomicU64,
    callers_lost: AtomicU64,
    cycles: AtomicU64,
}

/// The phase of a trace. All of its probes begin and cease to count at one moment, so that
/// a call whose entry was counted misses its exit only if it is open at the end. The service alone
/// leaves [`NONE`](phase::NONE).
mod phase {
    /// No probe is set.
    pub(super) const NONE: u32 = 0;
    /// Probes are being set or removed, and count nothing.
    pub(super) const SET: u32 = 1;
    pub(super) const COUNTING: u32 = 2;
}

/// The size of a memory block, of any alignment, for tracing `functions` functions at a time, at
/// most [`MAX_FUNCTIONS`], with calls open on `stacks` stacks of the guest, at most 255. See
/// [`Agent::with_trace`](crate::Agent::with_trace).
pub const fn trace_bytes(functions: usize, stacks: usize) -> usize {
    let functions = if functions > MAX_FUNCTIONS { MAX_FUNCTIONS } else { functions };
    let stacks = if stacks > MAX_STACKS { MAX_STACKS } else { stacks };
    size_of::<TraceCells>()
        + functions * size_of::<FunctionCells>()
        + probe_bytes(functions * PROBES_EACH)
        + caller_bytes(functions * CALLERS_EACH)
        + stack_bytes(stacks)
        + slots::MEMORY
        + slow::MEMORY
        // Padding to align twelve slices.
        + 12 * align_of::<FunctionCells>()
}

/// The platform's part in setting and removing probes. The table of these methods leads to no
/// others: the breakpoint handler uses it too, and must not reach those that are not bounded.
trait Hands {
    fn now_ns(&self) -> u64;
    fn cycles(&self) -> u64;
    fn write_code(&self, address: u64, bytes: &[u8]) -> bool;
}

impl<P: Platform + ?Sized> Hands for &P {
    fn now_ns(&self) -> u64 {
        (**self).now_ns()
    }

    fn cycles(&self) -> u64 {
        (**self).cycles()
    }

    fn write_code(&self, address: u64, bytes: &[u8]) -> bool {
        (**self).write_code(address, bytes)
    }
}

impl<'m> Trace<'m> {
    /// Divides a block for as many functions as it has room for; `None` if that is not one.
    fn in_block(block: &'m mut [MaybeUninit<u8>], stacks: usize, handler: Handler) -> Option<Self> {
        let stacks = stacks.clamp(1, MAX_STACKS);
        let (mut functions, mut above) = (0, MAX_FUNCTIONS + 1);
        while above - functions > 1 {
            let middle = functions.midpoint(above);
            if trace_bytes(middle, stacks) <= block.len() {
                functions = middle;
            } else {
                above = middle;
            }
        }
        if functions == 0 {
            return None;
        }
        let mut rest = block;
        Some(Self {
            cells: take(&mut rest, 1)?.first()?,
            functions: take(&mut rest, functions)?,
            probes: Probes::in_block(&mut rest, functions * PROBES_EACH)?,
            slots: Slots::in_block(&mut rest)?,
            stacks: Stacks::in_block(&mut rest, stacks)?,
            callers: Callers::in_block(&mut rest, functions * CALLERS_EACH)?,
            buffers: Buffers::in_block(&mut rest)?,
            handler,
        })
    }

    /// Whether the service is setting the probe at `address`, and may write its breakpoint after a
    /// crash has removed it.
    fn is_setting(&self, address: u64) -> bool {
        self.cells.setting.load(Ordering::SeqCst) == address
    }

    /// Removes a probe. If the platform cannot write, it stays set, and the handler serves it.
    #[inline(never)]
    fn remove(&self, probe: &ProbeCells, platform: &dyn Hands) {
        let role = probe.role();
        let is_restored =
            role.state != State::Set || platform.write_code(probe.address(), &[probe.first_byte()]);
        if is_restored {
            probe.set_role(probes::Role { state: State::Removed, ..role });
        }
    }

    /// Removes at most `most` set probes, beginning at the probe `from`: all, or only those of
    /// refused functions. Returns where to continue, if any are left.
    #[inline(never)]
    fn remove_some(
        &self,
        platform: &dyn Hands,
        from: usize,
        most: usize,
        only_refused: bool,
    ) -> Option<usize> {
        let mut left = most;
        for (index, probe) in self.probes.all().enumerate().skip(from) {
            let role = probe.role();
            let function = self.functions.get(usize::from(role.function));
            let is_refused = || function.is_none_or(|function| function.refusal().is_some());
            if role.state == State::Removed || only_refused && !is_refused() {
                continue;
            }
            if role.state == State::Set {
                if left == 0 {
                    return Some(index);
                }
                left -= 1;
            }
            self.remove(probe, platform);
        }
        None
    }

    /// Replaces the breakpoints of probes in code that was read at `start` by the bytes that they
    /// replaced.
    pub(crate) fn restore_bytes(&self, start: u64, bytes: &mut [u8]) {
        for (address, byte) in (start..).zip(bytes) {
            if *byte == BREAKPOINT
                && let Some(probe) = self.probes.find(address)
            {
                *byte = probe.first_byte();
            }
        }
    }
}

/// The instruction `int3`.
pub(crate) const BREAKPOINT: u8 = 0xcc;

impl<'m, P: Platform> Agent<'m, P> {
    /// Gives the agent a memory block for tracing, which allows it: a client with the role `trace`,
    /// or any client of an open agent, may then set breakpoints in the guest's code.
    /// [`trace_bytes`] returns the size for a number of functions and of `stacks`, the guest's
    /// stacks on which traced functions may be open at a time.
    ///
    /// The guest must call [`on_breakpoint`](Self::on_breakpoint) in its breakpoint handler before
    /// a client connects. There is no tracing without a block, if it is too small, or if the
    /// platform does not [write code](Platform::write_code).
    #[must_use]
    pub fn with_trace(mut self, block: &'m mut [MaybeUninit<u8>], stacks: usize) -> Self {
        // What is there already. Not in a slot: an earlier agent may have used it.
        let may_write = self.platform().write_code(slots::own_address(), &[BREAKPOINT]);
        self.trace = Trace::in_block(block, stacks, rehearsal::handler::<P>).filter(|_| may_write);
        self
    }
}

impl<P: Platform + ?Sized> Agent<'_, P> {
    /// The address that `pc` stands for: that of the original instruction if `pc` lies in a slot of
    /// the agent, otherwise `pc` itself. For fault handlers that look at the instruction, and for
    /// logs.
    #[inline]
    pub fn original_pc(&self, pc: u64) -> u64 {
        let trace = self.trace.as_ref();
        trace.and_then(|trace| trace.slots.original(pc)).unwrap_or(pc)
    }

    /// The registers with the [original](Self::original_pc) program counter.
    #[inline]
    pub(crate) fn original(&self, registers: &Registers) -> Registers {
        Registers { pc: self.original_pc(registers.pc), ..*registers }
    }

    /// Whether the agent has memory for traces and can write the guest's code.
    pub fn can_trace(&self) -> bool {
        self.trace.is_some()
    }
}

impl<P: Platform> Agent<'_, P> {
    /// Removes all probes at once, for a guest that crashes, or whose agent is stopped. A trace
    /// that is under way counts nothing from now on.
    pub fn stop_tracing(&self) {
        let agent: &AnyAgent<'_, '_> = self;
        agent.remove_probes();
    }
}

impl AnyAgent<'_, '_> {
    /// Removes all probes. A service that is setting them meanwhile, on another vCPU, sees the
    /// phase, and sets no more.
    pub(crate) fn remove_probes(&self) {
        if let Some(trace) = &self.trace {
            trace.cells.phase.store(phase::NONE, Ordering::SeqCst);
            trace.remove_some(&self.platform(), 0, usize::MAX, false);
        }
    }
}
