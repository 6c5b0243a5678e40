//! The breakpoint handler.
#![allow(unsafe_code)]

use unikprof_proto::code::{frame_code, trace_flag};
use unikprof_proto::ring::{Enter, Leave, how, kind};
use unikprof_proto::trace::probe_kind;

use super::instruction::{TrapFrame, indirect_target, is_taken};
use super::probes::{Execution, ProbeCells, Role, State};
use super::slots::{self, Slots};
use super::slow::Waiting;
use super::stacks::{Closed, Entry, Exit, Now, Stack};
use super::totals::{Ended, Event, FunctionCells};
use super::{BREAKPOINT, Trace, budget, phase};
use crate::agent::Agent;
use crate::ground::platform::{CallStack, Moment, Platform};
use crate::ground::sync::{AtomicU64, Ordering};
use crate::ring::Entry as Record;

/// Cycles of a handler beyond this number were another vCPU's: the hypervisor gave it the CPU.
const INTERRUPTED_CYCLES: u64 = 50_000;

/// Whether a breakpoint was the agent's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Breakpoint {
    /// It was. Continue with the frame's registers.
    Handled,
    /// It was not, and the frame is as it was.
    NotOurs,
}

/// The state after an instruction at a probe.
struct Continued {
    pc: u64,
    sp: u64,
    /// It is a transfer of control that leaves the function.
    leaves: bool,
}

fn add(cell: &AtomicU64, amount: u64) {
    cell.fetch_add(amount, Ordering::Relaxed);
}

/// The word at an address.
///
/// # Safety
/// The address is readable.
unsafe fn read(address: u64) -> u64 {
    let word = core::ptr::with_exposed_provenance::<u64>(address as usize);
    // SAFETY: the caller guarantees it.
    unsafe { word.read_unaligned() }
}

impl<'m, P: Platform> Agent<'m, P> {
    /// The guest's breakpoint handler, for the exception #BP (3) or the signal SIGTRAP. Call it
    /// with interrupts off, on a stack of its own (an IST entry), which leaves the interrupted
    /// code's red zone alone. `frame` has the interrupted code's registers; afterwards it has those
    /// to continue with, of which `pc` and the stack pointer may have changed.
    ///
    /// It is bounded, and neither allocates, locks, waits nor panics. It uses no floating point and
    /// no SSE registers if the agent was built without them.
    #[inline(never)] // The client finds the guest's handlers by their calls of it.
    pub fn on_breakpoint(&self, frame: &mut TrapFrame) -> Breakpoint {
        let Some(trace) = &self.trace else {
            return Breakpoint::NotOurs;
        };
        let address = frame.pc.wrapping_sub(1);
        let Some(probe) = trace.probes.find(address) else {
            return self.own_breakpoint(trace, address, frame);
        };
        trace.cells.inside.fetch_add(1, Ordering::SeqCst);
        let role = probe.role();
        let handled = match role.state {
            State::Set if trace.cells.phase.load(Ordering::Acquire) == phase::COUNTING => {
                self.serve(trace, probe, role, frame);
                Breakpoint::Handled
            }
            state if state == State::Set || trace.is_setting(address) => {
                if let Some(function) = trace.functions.get(usize::from(role.function)) {
                    trace.note_met(function, frame.sp());
                    function.recent.fetch_add(1, Ordering::Relaxed);
                }
                add(&trace.cells.stale, 1);
                self.resume_from(trace, probe, role, frame);
                Breakpoint::Handled
            }
            _ => late(trace, probe, role, frame),
        };
        trace.cells.inside.fetch_sub(1, Ordering::Release);
        handled
    }

    /// A breakpoint that is at no probe.
    #[cold]
    fn own_breakpoint(&self, trace: &Trace<'m>, address: u64, frame: &mut TrapFrame) -> Breakpoint {
        if address != slots::own_address() {
            return Breakpoint::NotOurs;
        }
        if trace.cells.rehearsal.load(Ordering::Relaxed) != 0 {
            self.rehearse(trace, frame);
        }
        Breakpoint::Handled
    }

    /// Counts what a probe has found, and executes its instruction.
    #[inline]
    fn serve(&self, trace: &Trace<'m>, probe: &ProbeCells, role: Role, frame: &mut TrapFrame) {
        let cells = trace.cells;
        let cycles = self.platform().cycles();
        let traps = cells.traps.fetch_add(1, Ordering::Relaxed);
        if let Some(function) = trace.functions.get(usize::from(role.function)) {
            function.recent.fetch_add(1, Ordering::Relaxed);
        }
        let sp = frame.sp();
        let leaves = self.resume_from(trace, probe, role, frame);
        let enters = role.kind & probe_kind::ENTRY != 0;
        let leaves = role.kind & probe_kind::EXIT != 0 && leaves;
        if enters || leaves {
            self.count_call(trace, role, sp, enters, leaves);
        }
        if traps % budget::EVERY == budget::EVERY - 1 {
            trace.judge(&self.platform());
        }
        let spent = self.platform().cycles().wrapping_sub(cycles);
        add(&cells.cycles, spent.min(INTERRUPTED_CYCLES));
    }

    /// Sets the frame to where the instruction of a probe continues; returns whether it leaves its
    /// function.
    #[inline]
    fn resume_from(
        &self,
        trace: &Trace<'m>,
        probe: &ProbeCells,
        role: Role,
        frame: &mut TrapFrame,
    ) -> bool {
        let continued = self.continued(trace, probe, role, frame);
        frame.pc = continued.pc;
        frame.set_sp(continued.sp);
        continued.leaves
    }

    /// The state after the instruction of a probe.
    #[inline]
    fn continued(
        &self,
        trace: &Trace<'m>,
        probe: &ProbeCells,
        role: Role,
        frame: &TrapFrame,
    ) -> Continued {
        let (execution, length) = probe.execution();
        let address = probe.address();
        let next = address.wrapping_add(length.into());
        let sp = frame.sp();
        let jump = |target: u64| Continued {
            pc: target,
            sp,
            leaves: self.is_outside(trace, role, target),
        };
        match execution {
            Execution::Slot(slot) => Continued { pc: Slots::address(slot), sp, leaves: false },
            Execution::Return { pop } => Continued {
                // SAFETY: the interrupted instruction reads the same word.
                pc: unsafe { read(sp) },
                sp: sp.wrapping_add(8).wrapping_add(pop.into()),
                leaves: true,
            },
            Execution::Jump { relative } => jump(next.wrapping_add_signed(relative.into())),
            Execution::Branch { condition, relative } => {
                if is_taken(condition, frame.flags) {
                    jump(next.wrapping_add_signed(relative.into()))
                } else {
                    Continued { pc: next, sp, leaves: false }
                }
            }
            Execution::Indirect => {
                let bytes = probe.bytes();
                let bytes = bytes.get(..usize::from(length)).unwrap_or_default();
                // SAFETY: the interrupted instruction reads the same word.
                let target = indirect_target(bytes, address, frame, |place| unsafe { read(place) });
                // The decoder has accepted the instruction, so it has a target.
                jump(target.unwrap_or(address))
            }
        }
    }

    /// Whether an address lies outside of the parts of a function.
    pub(super) fn is_outside(&self, trace: &Trace<'m>, role: Role, address: u64) -> bool {
        let function = trace.functions.get(usize::from(role.function));
        let code = self.code().code(address);
        !function.zip(code).is_some_and(|(function, code)| function.contains(code))
    }

    /// Counts an entry, an exit, or both.
    #[inline]
    fn count_call(&self, trace: &Trace<'m>, role: Role, sp: u64, enters: bool, leaves: bool) {
        let platform = self.platform();
        let vcpu = platform.vcpu().filter(|vcpu| self.slot(*vcpu).is_some());
        match vcpu.zip(platform.call_stack(sp)) {
            Some((vcpu, place)) => {
                self.count_call_on(trace, role, vcpu, place, sp, enters, leaves);
            }
            None => add(&trace.cells.unplaced, 1),
        }
    }

    /// The same on this vCPU and stack.
    #[expect(clippy::too_many_arguments, reason = "the rehearsal chooses each of them")]
    #[inline]
    pub(super) fn count_call_on(
        &self,
        trace: &Trace<'m>,
        role: Role,
        vcpu: u32,
        place: CallStack,
        sp: u64,
        enters: bool,
        leaves: bool,
    ) {
        let platform = self.platform();
        let stack =
            if enters { trace.stacks.find_or_claim(place.id) } else { trace.stacks.find(place.id) };
        let Some(stack) = stack else {
            if enters {
                add(&trace.cells.too_deep, 1);
            }
            if leaves {
                self.count(trace, role.function, Event::Orphan);
            }
            return;
        };
        let Moment { now_ns, running_ns, .. } = platform.moment(vcpu);
        let now = Now { ns: now_ns, running_ns, vcpu };
        let position = place.end.wrapping_sub(sp);
        stack.advance(now);
        if enters {
            // SAFETY: the stack pointer of code that was just called points to the return address;
            // the platform knows this stack.
            let caller = self.code().code(unsafe { read(sp) });
            let caller = caller.unwrap_or(frame_code::UNKNOWN_CODE);
            let function = trace.functions.get(usize::from(role.function));
            let loops = function.is_some_and(FunctionCells::loops);
            let entry = stack.enter(role.function, caller, loops, position, now, |closed| {
                self.close(trace, role, &stack, now, &closed);
            });
            match entry {
                Entry::Again => {}
                Entry::TooDeep => add(&trace.cells.too_deep, 1),
                Entry::Call => self.open(trace, role, &stack, now, caller),
            }
        }
        if leaves {
            let exit = stack.leave(role.function, position, now, |closed| {
                self.close(trace, role, &stack, now, &closed);
            });
            match exit {
                Exit::Return | Exit::Elsewhere => {}
                Exit::Mismatched => add(&trace.cells.mismatched, 1),
                Exit::Orphan => self.count(trace, role.function, Event::Orphan),
            }
        }
        stack.release();
    }

    /// Counts and records a call that begins.
    fn open(&self, trace: &Trace<'m>, role: Role, stack: &Stack<'m>, now: Now, caller: u32) {
        self.count(trace, role.function, Event::Call);
        if !trace.callers.count(role.function, caller) {
            add(&trace.cells.callers_lost, 1);
        }
        let number = Enter { function: role.function, trace: role.trace, caller }.to_number();
        if trace.cells.slow_ns.load(Ordering::Relaxed) == 0 {
            return self.record(trace, stack, now, now.ns, kind::ENTER, number);
        }
        if let Some(buffer) = stack.root() {
            let waiting = Waiting { at_ns: now.ns, is_end: false, number };
            trace.buffers.push(buffer, waiting);
        } else if trace
            .functions
            .get(usize::from(role.function))
            .is_some_and(FunctionCells::is_root)
        {
            stack.set_root(trace.buffers.claim());
        }
    }

    /// Counts and records a call that has ended.
    fn close(&self, trace: &Trace<'m>, role: Role, stack: &Stack<'m>, now: Now, closed: &Closed) {
        let mut how = closed.how;
        if let Some(function) = trace.functions.get(usize::from(closed.function)) {
            if how != how::RETURNED && function.is_removed() {
                // Nothing tells when and how the open call of a function without probes has ended.
                how = how::OPEN;
            } else {
                match how {
                    how::UNWOUND => function.count(Event::Unwound),
                    how::REPLACED => function.count(Event::Replaced),
                    _ => {}
                }
                function.end(&Ended {
                    is_outermost: closed.is_outermost,
                    was_seen: how == how::RETURNED,
                    duration_ns: closed.duration_ns,
                    self_ns: closed.self_ns,
                    waited_ns: closed.waited_ns,
                });
            }
        }
        let number = Leave {
            function: closed.function,
            trace: role.trace,
            how,
            waited_ns: closed.waited_ns,
        }
        .to_number();
        let slow_ns = trace.cells.slow_ns.load(Ordering::Relaxed);
        if slow_ns == 0 {
            self.record(trace, stack, now, now.ns, kind::LEAVE, number);
        } else if let Some(buffer) = closed.root {
            if closed.duration_ns >= slow_ns {
                self.keep_slow(trace, role, stack, now, closed, buffer);
                self.record(trace, stack, now, now.ns, kind::LEAVE, number);
            }
            trace.buffers.release(buffer);
        } else if let Some(buffer) = stack.root() {
            let waiting = Waiting { at_ns: now.ns, is_end: true, number };
            trace.buffers.push(buffer, waiting);
        }
    }

    /// Records the beginning of a slow root call, and the calls inside of it.
    #[cold]
    #[inline(never)]
    pub(super) fn keep_slow(
        &self,
        trace: &Trace<'m>,
        role: Role,
        stack: &Stack<'m>,
        now: Now,
        closed: &Closed,
        buffer: u32,
    ) {
        let enter = Enter { function: closed.function, trace: role.trace, caller: closed.caller };
        let number = enter.to_number();
        self.record(trace, stack, now, closed.entered_ns, kind::ENTER, number);
        let is_whole = trace.buffers.each(buffer, |waiting| {
            let kind = if waiting.is_end { kind::LEAVE } else { kind::ENTER };
            self.record(trace, stack, now, waiting.at_ns, kind, waiting.number);
        });
        if !is_whole {
            add(&trace.cells.truncated, 1);
        }
    }

    /// Writes a record to the vCPU's ring.
    #[inline]
    fn record(
        &self,
        trace: &Trace<'m>,
        stack: &Stack<'m>,
        now: Now,
        at_ns: u64,
        kind: u8,
        number: u64,
    ) {
        if trace.cells.flags.load(Ordering::Relaxed) & trace_flag::COUNT == 0
            && let Some(ring) = self.ring(now.vcpu)
        {
            ring.push(at_ns, Record::new(kind, number, stack.number().into()));
        }
    }

    fn count(&self, trace: &Trace<'m>, function: u16, event: Event) {
        if let Some(function) = trace.functions.get(usize::from(function)) {
            function.count(event);
        }
    }
}

/// A breakpoint at a probe that is not set: it was removed after the processor had executed it, so
/// the guest continues with what is there now. If the breakpoint is still there, it is another
/// debugger's.
#[cold]
pub(super) fn late(
    trace: &Trace<'_>,
    probe: &ProbeCells,
    role: Role,
    frame: &mut TrapFrame,
) -> Breakpoint {
    let address = probe.address();
    let byte = core::ptr::with_exposed_provenance::<u8>(address as usize);
    // SAFETY: the processor has just executed it. Volatile because it may be changed meanwhile.
    let byte = unsafe { byte.read_volatile() };
    // The probe may have been set again between the two reads.
    if byte == BREAKPOINT && role.state == State::Removed && probe.role() == role {
        return Breakpoint::NotOurs;
    }
    add(&trace.cells.stale, 1);
    frame.pc = address;
    Breakpoint::Handled
}
