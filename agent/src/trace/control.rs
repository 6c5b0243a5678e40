//! The trace that exists, if any: sent by a client, set, fetched and ended. The service calls it.

use core::fmt::Write as _;

use unikprof_proto::code::{refusal, trace_refusal, trace_state};
use unikprof_proto::message::{
    TraceArmed, TraceBegin, TraceFunctions, TraceProbes, TraceReady, TraceState,
};
use unikprof_proto::trace::{
    Caller, FunctionTotals, Probe, decode_functions, decode_probes, probe_kind,
};

use super::instruction::{Operation, decode};
use super::probes::{Execution, Place, ProbeCells, Role, State};
use super::slots::{self, SlotError};
use super::totals::FunctionCells;
use super::{BREAKPOINT, Trace, phase};
use crate::agent::AnyAgent;
use crate::ground::sync::{Ordering, fence};
use crate::ground::text::Text;
use crate::record::recorder::{Client, Outcome, Refused};

/// A trace ends after so long without a request about it.
const PATIENCE_NS: u64 = 30_000_000_000;

/// The number of measurements of a breakpoint's cost.
const MEASUREMENTS: u32 = 16;

/// A poll sets or removes at most so many probes.
const STEP: usize = 64;

/// The work left until all probes are set or removed, and the probe to continue at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Left {
    #[default]
    Nothing,
    Set(usize),
    /// All are set. Those of refused functions are removed before the others count.
    RemoveRefused(usize),
    RemoveAll(usize),
}

/// The trace that exists or was the last one.
#[derive(Debug, Default)]
pub(crate) struct Tracer {
    /// The id of the last trace; 0: there was none.
    id: u64,
    state: u32,
    client: Client,
    /// When its client has last sent a request about it.
    asked_ns: u64,
    started_ns: u64,
    ended_ns: u64,
    /// The cycle counter when it was armed.
    started_cycles: u64,
    /// The cost of the whole trace, when it has ended.
    cost_permille: u32,
    begin: Option<TraceBegin>,
    functions: u32,
    probes: u32,
    /// The reason why it cannot be armed.
    fault: Option<&'static str>,
    left: Left,
}

/// The error text if there is no tracing.
const NO_TRACING: &str = "the guest does not allow tracing: the agent was given no memory for it \
                          at its guest's start, or its platform cannot write to the guest's code";

#[inline(never)]
fn refused(code: u32, text: &str) -> Refused {
    Refused { code, text: Text::from(text) }
}

/// Reads the code at `address`.
#[allow(unsafe_code)]
fn read_code(address: u64, bytes: &mut [u8]) {
    let start = core::ptr::with_exposed_provenance::<u8>(address as usize);
    for (offset, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: the caller has found the address in one of the guest's executable mappings.
        *byte = unsafe { start.wrapping_add(offset).read_volatile() };
    }
}

impl Tracer {
    /// Ends the last trace and begins one.
    #[inline(never)]
    pub(crate) fn begin(
        &mut self,
        agent: &AnyAgent<'_, '_>,
        client: &Client,
        begin: &TraceBegin,
        now_ns: u64,
    ) -> Outcome<TraceReady> {
        let Some(trace) = &agent.trace else {
            return Outcome::Refused(refused(refusal::NO_TRACING, NO_TRACING));
        };
        if self.is_under_way() && (client.id == 0 || client.id != self.client.id) {
            return Outcome::Refused(self.of_another());
        }
        let room = (trace.functions.len(), trace.probes.capacity());
        let asked = (begin.functions as usize, begin.probes as usize);
        if asked.0 == 0 || asked.1 == 0 || asked.0 > room.0 || asked.1 > room.1 {
            let text = Text::format(format_args!(
                "the agent's memory has room for 1 to {} functions and 1 to {} probes; asked for \
                 {} and {}: trace fewer functions, or give it more memory for traces",
                room.0 as u64, room.1 as u64, asked.0 as u64, asked.1 as u64
            ));
            return Outcome::Refused(Refused { code: refusal::BAD_TRACE, text });
        }
        self.end(agent, trace_state::STOPPED, now_ns);
        // A handler of the last trace would count for this one.
        if self.is_busy() || trace.cells.inside.load(Ordering::SeqCst) != 0 {
            return Outcome::NotYet;
        }
        let own = slots::own_address();
        if !agent.platform().write_code(own, &[BREAKPOINT]) {
            let text = "the guest has a handler of breakpoints that does not call the agent";
            return Outcome::Refused(refused(refusal::BAD_TRACE, text));
        }
        trace.clear();
        let probe_cycles = measure(agent);
        let cells = trace.cells;
        cells.flags.store(begin.flags, Ordering::Relaxed);
        cells.slow_ns.store(begin.slow_ns, Ordering::Relaxed);
        cells.probe_cycles.store(probe_cycles, Ordering::Relaxed);
        cells.max_cost_permille.store(begin.max_cost_permille, Ordering::Relaxed);
        *self = Self {
            id: self.id + 1,
            state: trace_state::OPEN,
            client: *client,
            asked_ns: now_ns,
            begin: Some(*begin),
            ..Self::default()
        };
        Outcome::Done(TraceReady {
            trace: self.id,
            number: self.number().into(),
            probe_cycles,
            patience_ns: PATIENCE_NS,
        })
    }

    /// Takes functions in.
    #[inline(never)]
    pub(crate) fn functions(
        &mut self,
        agent: &AnyAgent<'_, '_>,
        client: &Client,
        message: &TraceFunctions<'_>,
        now_ns: u64,
    ) {
        let Some((trace, begin)) = self.open(agent, client, message.trace, now_ns) else {
            return;
        };
        let mut index = self.functions;
        let is_next =
            message.first == index && begin.functions.checked_sub(index) >= Some(message.count);
        let decoded = is_next.then(|| {
            decode_functions(message.count, message.payload, |function| {
                if let Some(cells) = trace.functions.get(index as usize) {
                    cells.begin(&function);
                }
                index += 1;
            })
        });
        match decoded {
            Some(Ok(())) => self.functions = index,
            Some(Err(_)) => self.fail("a function is malformed"),
            None => self.fail("functions were not sent in their order"),
        }
    }

    /// Takes probes in, and checks them.
    #[inline(never)]
    pub(crate) fn probes(
        &mut self,
        agent: &AnyAgent<'_, '_>,
        client: &Client,
        message: &TraceProbes<'_>,
        now_ns: u64,
    ) {
        let Some((trace, begin)) = self.open(agent, client, message.trace, now_ns) else {
            return;
        };
        let is_next = message.first == self.probes
            && begin.probes.checked_sub(self.probes) >= Some(message.count);
        let number = self.number();
        let functions = self.functions;
        let mut is_known = true;
        let decoded = is_next.then(|| {
            decode_probes(message.count, message.payload, |probe| {
                let function = trace.functions.get(probe.function as usize);
                match function.filter(|_| probe.function < functions) {
                    // Nothing of a function that is refused is set: neither a slot nor memory is
                    // spent on it.
                    Some(function) if function.refusal().is_some() => {}
                    Some(function) => {
                        if let Err(reason) = trace.prepare(agent, &probe, number) {
                            function.refuse(reason, probe.code);
                        }
                    }
                    None => is_known = false,
                }
            })
        });
        match decoded {
            Some(Ok(())) if is_known => self.probes += message.count,
            Some(Ok(())) => self.fail("a probe belongs to a function that was not sent"),
            Some(Err(_)) => self.fail("a probe is malformed"),
            None => self.fail("probes were not sent in their order"),
        }
    }

    /// Has the probes set by the next calls of [`advance`](Self::advance). Repeats the answer if
    /// they are set.
    #[inline(never)]
    pub(crate) fn arm(
        &mut self,
        agent: &AnyAgent<'_, '_>,
        client: &Client,
        id: u64,
        now_ns: u64,
    ) -> Result<Option<TraceArmed>, Refused> {
        let trace = self.known(agent, client, id, now_ns)?;
        if client.id != self.client.id {
            return Err(self.of_another());
        }
        if self.state == trace_state::OPEN {
            if self.is_busy() {
                return Ok(None);
            }
            let begin = self.begin.ok_or_else(|| no_trace(id))?;
            if let Some(fault) = self.fault.take() {
                self.end(agent, trace_state::STOPPED, now_ns);
                return Err(refused(refusal::BAD_TRACE, fault));
            }
            if (self.functions, self.probes) != (begin.functions, begin.probes) {
                let text = "not all functions and probes were sent";
                return Err(refused(refusal::BAD_TRACE, text));
            }
            trace.begin_window(&agent.platform());
            trace.cells.phase.store(phase::SET, Ordering::SeqCst);
            self.left = Left::Set(0);
            return Ok(None);
        } else if self.state != trace_state::ARMED {
            return Err(refused(refusal::NO_TRACE, "the trace has ended"));
        }
        let refused = self.refusals(agent, 0).count() as u32;
        Ok(Some(TraceArmed {
            trace: id,
            started_ns: self.started_ns,
            probes: trace.number_set(),
            refused,
        }))
    }

    /// Ends a trace. It is answered when all probes are removed.
    #[inline(never)]
    pub(crate) fn stop(
        &mut self,
        agent: &AnyAgent<'_, '_>,
        client: &Client,
        id: u64,
        now_ns: u64,
    ) -> Outcome<TraceState> {
        if self.known(agent, client, id, now_ns).is_ok() {
            self.end(agent, trace_state::STOPPED, now_ns);
            if self.is_busy() {
                return Outcome::NotYet;
            }
        }
        self.state(agent, client, id, now_ns).into()
    }

    /// The state of a trace.
    #[inline(never)]
    pub(crate) fn state(
        &mut self,
        agent: &AnyAgent<'_, '_>,
        client: &Client,
        id: u64,
        now_ns: u64,
    ) -> Result<TraceState, Refused> {
        let trace = self.known(agent, client, id, now_ns)?;
        if self.is_under_way() {
            trace.judge(&agent.platform());
        }
        let cells = trace.cells;
        let read = |cell: &crate::ground::sync::AtomicU64| cell.load(Ordering::Relaxed);
        let (ended_ns, cost_permille) = if self.is_under_way() {
            (now_ns, cells.cost_permille.load(Ordering::Relaxed))
        } else {
            (self.ended_ns, self.cost_permille)
        };
        Ok(TraceState {
            trace: id,
            state: self.state,
            started_ns: self.started_ns,
            ended_ns,
            probes: trace.number_set(),
            traps: read(&cells.traps),
            stale: read(&cells.stale),
            unplaced: read(&cells.unplaced),
            too_deep: read(&cells.too_deep),
            mismatched: read(&cells.mismatched),
            truncated: read(&cells.truncated),
            callers_lost: read(&cells.callers_lost),
            cycles: read(&cells.cycles),
            cost_permille,
        })
    }

    /// The functions from `first` on that are not traced: their indices, reasons and codes.
    pub(crate) fn refusals<'m>(
        &self,
        agent: &AnyAgent<'_, 'm>,
        first: u32,
    ) -> impl Iterator<Item = (u32, u32, u32)> + use<'m> {
        let functions = self.all_functions(agent, first);
        functions.filter_map(|(index, cells)| {
            let (reason, code) = cells.refusal()?;
            Some((index, reason, code))
        })
    }

    /// The totals of the functions from `first` on that were called, and the function that makes up
    /// each histogram.
    pub(crate) fn totals<'m>(
        &self,
        agent: &AnyAgent<'_, 'm>,
        first: u32,
    ) -> impl Iterator<Item = (FunctionTotals, impl Fn(usize) -> u64 + use<'m>)> + use<'m> {
        let functions = self.all_functions(agent, first);
        functions.filter_map(|(index, cells)| {
            let totals = FunctionTotals { function: index, ..cells.totals() };
            let is_empty = totals.calls == 0 && totals.orphans == 0 && totals.flags == 0;
            (!is_empty).then_some((totals, move |bucket| cells.bucket(bucket)))
        })
    }

    /// The caller at the first used place from `from` on, and the place behind it.
    pub(crate) fn caller(&self, agent: &AnyAgent<'_, '_>, from: u32) -> Option<(Caller, u32)> {
        agent.trace.as_ref()?.callers.next(from)
    }

    /// The id of the last trace.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Sets or removes the next probes, and ends a trace whose client is gone. Returns when to call
    /// it again.
    pub(crate) fn advance(&mut self, agent: &AnyAgent<'_, '_>, now_ns: u64) -> Option<u64> {
        let until_ns = self.asked_ns.saturating_add(PATIENCE_NS);
        if now_ns >= until_ns {
            self.end(agent, trace_state::ABANDONED, now_ns);
        }
        if self.is_busy() {
            self.go_on(agent);
            return Some(now_ns);
        }
        self.is_under_way().then_some(until_ns)
    }

    /// Sets or removes at most [`STEP`] probes.
    #[inline(never)]
    fn go_on(&mut self, agent: &AnyAgent<'_, '_>) {
        let Some(trace) = &agent.trace else { return };
        let platform = agent.platform();
        if matches!(self.left, Left::Set(_)) {
            // A handler may not judge before the rehearsal: it would call functions with probes.
            let met = trace.cells.stale.swap(0, Ordering::Relaxed);
            trace.cells.traps.fetch_add(met, Ordering::Relaxed);
            if trace.judge(&platform) {
                // That was this step's work.
                return;
            }
        }
        self.left = match self.left {
            Left::Nothing => Left::Nothing,
            Left::Set(from) => trace.set_some(agent, from).map_or_else(
                || {
                    trace.rehearse(agent);
                    trace.clear();
                    for function in trace.functions {
                        function.clear_counts();
                    }
                    Left::RemoveRefused(0)
                },
                Left::Set,
            ),
            Left::RemoveRefused(from) => {
                let next = trace.remove_some(&platform, from, STEP, true);
                if next.is_none() {
                    trace.begin_window(&platform);
                    // Otherwise the guest has removed all probes meanwhile.
                    trace.change_phase(phase::SET, phase::COUNTING);
                    self.state = trace_state::ARMED;
                    self.started_ns = platform.now_ns();
                    self.started_cycles = platform.cycles();
                }
                next.map_or(Left::Nothing, Left::RemoveRefused)
            }
            Left::RemoveAll(from) => {
                let next = trace.remove_some(&platform, from, STEP, false);
                if next.is_none() {
                    trace.cells.phase.store(phase::NONE, Ordering::SeqCst);
                }
                next.map_or(Left::Nothing, Left::RemoveAll)
            }
        };
    }

    fn all_functions<'m>(
        &self,
        agent: &AnyAgent<'_, 'm>,
        first: u32,
    ) -> impl Iterator<Item = (u32, &'m FunctionCells)> + use<'m> {
        let functions = agent.trace.as_ref().map(|trace| trace.functions);
        let functions = functions.unwrap_or_default();
        let functions = functions.get(..self.functions as usize).unwrap_or_default();
        (0..).zip(functions).skip(first as usize)
    }

    /// Whether probes are being set or removed.
    pub(crate) fn is_busy(&self) -> bool {
        self.left != Left::Nothing
    }

    fn is_under_way(&self) -> bool {
        self.id != 0 && matches!(self.state, trace_state::OPEN | trace_state::ARMED)
    }

    /// The trace's number in ring records.
    fn number(&self) -> u16 {
        self.id as u16
    }

    /// The engine, if `id` is that of the trace. A request of the client that has begun the trace
    /// shows that it is not gone.
    fn known<'a, 'm>(
        &mut self,
        agent: &'a AnyAgent<'_, 'm>,
        client: &Client,
        id: u64,
        now_ns: u64,
    ) -> Result<&'a Trace<'m>, Refused> {
        let trace = agent.trace.as_ref();
        let trace = trace.filter(|_| id != 0 && id == self.id);
        if trace.is_some() && client.id == self.client.id {
            self.asked_ns = now_ns;
        }
        trace.ok_or_else(|| no_trace(id))
    }

    /// The engine and the request that began the trace, if this client may send more for it.
    fn open<'a, 'm>(
        &mut self,
        agent: &'a AnyAgent<'_, 'm>,
        client: &Client,
        id: u64,
        now_ns: u64,
    ) -> Option<(&'a Trace<'m>, TraceBegin)> {
        let trace = self.known(agent, client, id, now_ns).ok()?;
        let is_open = self.state == trace_state::OPEN && !self.is_busy() && self.fault.is_none();
        let may_send = is_open && client.id == self.client.id;
        Some((trace, self.begin.filter(|_| may_send)?))
    }

    /// Another client's trace is under way.
    fn of_another(&self) -> Refused {
        let mut text = Text::from(self.client.name.as_str());
        let _ = text
            .write_str(" is tracing; wait until it ends, at most 30 s after its client is gone");
        Refused { code: refusal::TRACING, text }
    }

    fn fail(&mut self, text: &'static str) {
        self.fault = Some(text);
    }

    /// Ends a trace that is under way: it counts nothing from now on. The next calls of
    /// [`advance`](Self::advance) remove its probes.
    fn end(&mut self, agent: &AnyAgent<'_, '_>, state: u32, now_ns: u64) {
        if self.is_under_way()
            && let Some(trace) = &agent.trace
        {
            trace.change_phase(phase::COUNTING, phase::SET);
            let passed = agent.platform().cycles().wrapping_sub(self.started_cycles);
            self.cost_permille =
                if self.state == trace_state::ARMED { trace.whole_cost(passed) } else { 0 };
            self.left = Left::RemoveAll(0);
            self.state = state;
            self.ended_ns = now_ns;
        }
    }
}

#[inline(never)]
fn no_trace(id: u64) -> Refused {
    Refused {
        code: refusal::NO_TRACE,
        text: Text::format(format_args!(
            "there is no trace {id}; it was replaced by another one, or its client was gone too \
             long"
        )),
    }
}

/// The least number of cycles that a breakpoint has cost here; 0 if there is no counter.
fn measure(agent: &AnyAgent<'_, '_>) -> u64 {
    let platform = agent.platform();
    let once = |_| {
        let before = platform.cycles();
        slots::own_breakpoint();
        platform.cycles().wrapping_sub(before)
    };
    (0..MEASUREMENTS).map(once).min().unwrap_or(0)
}

impl<'m> Trace<'m> {
    /// Forgets what was counted. No probe is set and no handler runs.
    fn clear(&self) {
        let cells = self.cells;
        let counts = [
            &cells.traps,
            &cells.stale,
            &cells.unplaced,
            &cells.too_deep,
            &cells.mismatched,
            &cells.truncated,
            &cells.callers_lost,
            &cells.cycles,
        ];
        for count in counts {
            count.store(0, Ordering::Relaxed);
        }
        cells.cost_permille.store(0, Ordering::Relaxed);
        cells.window_ns.store(0, Ordering::Relaxed);
        self.stacks.clear();
        self.callers.clear();
        self.buffers.clear();
    }

    /// Checks a probe and adds it to the table. Fails with a [reason](trace_refusal).
    #[inline(never)]
    fn prepare(&self, agent: &AnyAgent<'_, '_>, probe: &Probe<'_>, number: u16) -> Result<(), u32> {
        let length = probe.instruction.len();
        let address = agent.code().range(probe.code, length as u32);
        let address = address.ok_or(trace_refusal::NOT_WRITABLE)?;
        let mut found = [0; unikprof_proto::trace::MAX_INSTRUCTION];
        let found = found.get_mut(..length).unwrap_or_default();
        read_code(address, found);
        if found != probe.instruction {
            return Err(trace_refusal::OTHER_BYTES);
        }
        let instruction = decode(probe.instruction).ok_or(trace_refusal::INSTRUCTION)?;
        let displacement = match instruction.operation {
            Operation::Copy { displacement } => displacement,
            _ => probe.displacement,
        };
        let without_slot = Execution::without_slot(instruction.operation);
        let is_exit = probe.kind & probe_kind::EXIT != 0;
        if usize::from(instruction.length) != length
            || displacement != probe.displacement
            || is_exit && without_slot.is_none()
        {
            return Err(trace_refusal::INSTRUCTION);
        }
        if self.overlaps(address, length) {
            return Err(trace_refusal::OVERLAP);
        }
        let cells = match self.probes.find(address) {
            Some(cells) if cells.role().state != State::Removed => {
                return Err(trace_refusal::OVERLAP);
            }
            Some(cells) if !cells.has(probe.instruction) => {
                return Err(trace_refusal::OTHER_BYTES);
            }
            Some(cells) => cells,
            None => {
                let place = Place { address, bytes: probe.instruction };
                if self.probes.is_full() {
                    return Err(trace_refusal::NO_ROOM);
                }
                let execution = match without_slot {
                    Some(execution) => execution,
                    None => {
                        let write =
                            |address, bytes: &[u8]| agent.platform().write_code(address, bytes);
                        let slot = self.slots.make(&place, instruction, write);
                        Execution::Slot(slot.map_err(|error| match error {
                            SlotError::None => trace_refusal::NO_SLOT,
                            SlotError::NotWritable => trace_refusal::NOT_WRITABLE,
                        })?)
                    }
                };
                let added = self.probes.add(&place, instruction, execution);
                added.ok_or(trace_refusal::NO_ROOM)?
            }
        };
        cells.set_role(Role {
            state: State::Prepared,
            trace: number,
            function: probe.function as u16,
            kind: probe.kind,
        });
        Ok(())
    }

    /// Whether another probe lies inside of this instruction, or the instruction inside of another
    /// probe's.
    fn overlaps(&self, address: u64, length: usize) -> bool {
        let is_used = |probe: &ProbeCells| probe.role().state != State::Removed;
        let mut inside = (1..length as u64).filter_map(|offset| self.probes.find(address + offset));
        let mut before =
            (1..unikprof_proto::trace::MAX_INSTRUCTION as u64).filter_map(|distance| {
                let probe = self.probes.find(address.wrapping_sub(distance))?;
                let (_, length) = probe.execution();
                (u64::from(length) > distance).then_some(probe)
            });
        inside.any(is_used) || before.any(is_used)
    }

    /// The number of probes that are set.
    fn number_set(&self) -> u32 {
        let is_set = |probe: &&ProbeCells| probe.role().state == State::Set;
        self.probes.all().filter(is_set).count() as u32
    }

    /// Sets at most [`STEP`] prepared probes of functions that are not refused, beginning at the
    /// probe `from`. Returns where to continue, if any are left.
    #[inline(never)]
    fn set_some(&self, agent: &AnyAgent<'_, '_>, from: usize) -> Option<usize> {
        let platform = agent.platform();
        let mut left = STEP;
        for (index, probe) in self.probes.all().enumerate().skip(from) {
            let role = probe.role();
            let function = self.functions.get(usize::from(role.function));
            let Some(function) = function.filter(|it| {
                role.state == State::Prepared && it.refusal().is_none() && !it.is_removed()
            }) else {
                continue;
            };
            if self.cells.phase.load(Ordering::SeqCst) != phase::SET {
                return None;
            }
            if left == 0 {
                return Some(index);
            }
            left -= 1;
            self.cells.setting.store(probe.address(), Ordering::SeqCst);
            let set = Role { state: State::Set, ..role };
            probe.set_role(set);
            if !platform.write_code(probe.address(), &[BREAKPOINT]) {
                let state = State::Removed;
                probe.set_role(Role { state, ..role });
                let code = agent.code().code(probe.address()).unwrap_or(0);
                function.refuse(trace_refusal::NOT_WRITABLE, code);
            }
            // A crash on another vCPU may have looked at this probe before it was set, or removed
            // it before the breakpoint was written. The fence: either it finds the probe set, after
            // the breakpoint was written, or its phase is seen here.
            fence(Ordering::SeqCst);
            if self.cells.phase.load(Ordering::SeqCst) != phase::SET {
                probe.set_role(set);
                self.remove(probe, &platform);
            }
            self.cells.setting.store(0, Ordering::SeqCst);
        }
        None
    }

    /// Changes the phase if it is `from`.
    fn change_phase(&self, from: u32, to: u32) {
        let phase = &self.cells.phase;
        let _ = phase.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed);
    }
}
