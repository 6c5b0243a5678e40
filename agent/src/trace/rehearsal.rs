//! The rehearsal: before a trace begins, the agent runs its handler once outside of a breakpoint,
//! with all probes set. A function whose probe that meets is called by the handler itself. A
//! breakpoint in it would call the handler without end, so it is not traced.
//!
//! Meanwhile a breakpoint only notes that it was met, without a call of the platform, and its
//! instruction is executed. An interrupt can meet probes during a rehearsal, too; therefore there
//! are several, and each must meet the function.
#![allow(unsafe_code)]

use unikprof_proto::code::trace_refusal;
use unikprof_proto::ring::how;
use unikprof_proto::trace::probe_kind;

use super::breakpoint::late;
use super::instruction::{TrapFrame, indirect_target, is_taken};
use super::probes::{ProbeCells, Role, State};
use super::slow::Waiting;
use super::stacks::{Closed, Now};
use super::totals::FunctionCells;
use super::{Breakpoint, Trace, slots};
use crate::agent::{Agent, AnyAgent};
use crate::ground::platform::{CallStack, Platform};
use crate::ground::sync::Ordering;

/// The number of rehearsals.
const TIMES: u32 = 4;

/// The bits of [`FunctionCells::marks`] that say which rehearsals met a function.
const MET: u32 = ((1 << TIMES) - 1) << 16;

/// A breakpoint with a stack pointer at most so far below that of the rehearsal belongs to it.
const STACK_BYTES: u64 = 64 << 10;

/// [`Agent::on_breakpoint`] of an agent on the platform `P`.
pub(super) fn handler<P: Platform>(agent: *const (), frame: &mut TrapFrame) -> Breakpoint {
    // SAFETY: `run` passes the agent that this function was chosen for. Its lifetime is that of its
    // memory, which `on_breakpoint` does not keep.
    let agent = unsafe { &*agent.cast::<Agent<'_, P>>() };
    agent.on_breakpoint(frame)
}

impl Trace<'_> {
    /// Runs the rehearsals, and refuses the functions that the handler calls. All probes are set,
    /// and count nothing.
    pub(super) fn rehearse(&self, agent: &AnyAgent<'_, '_>) {
        let cells = self.cells;
        for round in 0..TIMES {
            self.run(agent, 1 << (16 + round));
        }
        cells.rehearsal.store(0, Ordering::SeqCst);
        for function in self.functions {
            let met = function.marks.fetch_and(!MET, Ordering::Relaxed);
            if met & MET == MET {
                function.refuse(trace_refusal::AGENT, function.code());
            }
        }
    }

    /// One rehearsal: what a handler calls of the platform, and the handler itself.
    #[inline(never)]
    fn run(&self, agent: &AnyAgent<'_, '_>, bit: u32) {
        let here = 0_u64;
        let sp = (&raw const here).addr() as u64;
        self.cells.rehearsal_sp.store(sp, Ordering::Relaxed);
        self.cells.rehearsal.store(bit, Ordering::SeqCst);
        let platform = agent.platform();
        let vcpu = platform.vcpu().unwrap_or(0);
        core::hint::black_box((
            platform.call_stack(sp),
            platform.moment(vcpu),
            platform.now_ns(),
            platform.cycles(),
        ));
        // What the removal of probes writes.
        let _ = platform.write_code(slots::own_address(), &[super::BREAKPOINT]);
        let mut frame = TrapFrame { pc: slots::own_address() + 1, ..TrapFrame::default() };
        frame.set_sp(sp);
        let _ = (self.handler)(core::ptr::from_ref(agent).cast(), &mut frame);
    }

    /// Notes a breakpoint at a probe that is set and counts nothing.
    pub(super) fn note_met(&self, function: &FunctionCells, sp: u64) {
        let bit = self.cells.rehearsal.load(Ordering::SeqCst);
        let from_sp = self.cells.rehearsal_sp.load(Ordering::Relaxed);
        if from_sp.wrapping_sub(sp) < STACK_BYTES {
            function.marks.fetch_or(bit, Ordering::Relaxed);
        }
    }
}

impl<'m, P: Platform> Agent<'m, P> {
    /// The handler's part in a rehearsal: everything that it does at an entry and an exit, and what
    /// it does seldom. What it counts is forgotten before the trace begins; its ring records have
    /// the trace number 0.
    #[cold]
    #[inline(never)]
    pub(super) fn rehearse(&self, trace: &Trace<'m>, frame: &mut TrapFrame) {
        let role = Role {
            state: State::Set,
            trace: 0,
            function: 0,
            kind: probe_kind::ENTRY | probe_kind::EXIT,
        };
        let platform = self.platform();
        let vcpu = platform.vcpu().unwrap_or(0);
        let place = CallStack { id: 1, end: frame.sp().wrapping_add(64) };
        for (enters, leaves) in [(true, false), (false, true)] {
            self.count_call_on(trace, role, vcpu, place, frame.sp(), enters, leaves);
        }
        let taken = (0..16).filter(|condition| is_taken(*condition, frame.flags));
        let target = indirect_target(&[0xff, 0x64, 0x24, 0x08], 0, frame, |place| place);
        core::hint::black_box((taken.count(), target, self.is_outside(trace, role, frame.pc)));
        self.rehearse_slow(trace, role, place);
        trace.judge(&platform);
        trace.begin_window(&platform);
        trace.remove_hottest(&platform, 0, 0);
        let removed = ProbeCells::removed(slots::own_address());
        trace.remove(&removed, &platform);
        // The breakpoint is there, so it is another debugger's, and the frame stays as it is.
        let _ = core::hint::black_box(late(trace, &removed, removed.role(), frame));
    }

    /// Rehearses the handler's work in slow traces, with a buffer that is given back.
    fn rehearse_slow(&self, trace: &Trace<'m>, role: Role, place: CallStack) {
        let now_ns = self.platform().now_ns();
        let buffer = trace.buffers.claim();
        for is_end in [false, true] {
            trace.buffers.push(buffer, Waiting { at_ns: now_ns, is_end, number: 0 });
        }
        if let Some(stack) = trace.stacks.find_or_claim(place.id) {
            let now = Now { ns: now_ns, running_ns: 0, vcpu: 0 };
            let closed = Closed {
                function: role.function,
                how: how::RETURNED,
                is_outermost: true,
                entered_ns: now_ns,
                duration_ns: 0,
                self_ns: 0,
                waited_ns: 0,
                caller: 0,
                root: Some(buffer),
            };
            self.keep_slow(trace, role, &stack, now, &closed, buffer);
            stack.release();
        }
        trace.buffers.release(buffer);
    }
}
