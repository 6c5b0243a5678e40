//! The timer upcall: ticks and deadlines.
//!
//! Why: docs/design/decisions.md#a-tick-finds-cold-caches,
//! docs/design/decisions.md#small-values-stay-in-registers.

mod allocation;
mod blocking;
mod snapshot;

use unikprof_proto::code::frame_code;
use unikprof_proto::message::Counter;
use unikprof_proto::ring::{SAMPLE_LATE, kind, outcome};

use super::Agent;
use crate::count::recording::{Lookup, RecordingCells, Sample, Times};
use crate::count::sampler::Delivery;
use crate::count::slot::{Asked, Live, Now, Recorded, Slot, SlotCells};
use crate::ground::platform::{Continuation, Moment, Platform, Registers};
use crate::ground::sync::{Ordering, add_owned};
use crate::ring::Entry as RingEntry;
use crate::stack::path::Path;
use crate::stack::walk::{Guide, Walked, walk};
use crate::stack::{CodeMemory, ReadCode, StackMemory, Stacks};

/// Adds cycles to the cost of each recording, without owning the slot.
#[inline(never)]
fn charge_cycles(slot: &Slot<'_>, live: Live, cycles: u64) {
    for (_, recording) in slot.each(live) {
        recording.tick_cycles.fetch_add(cycles, Ordering::Relaxed);
    }
}

/// Counts a sample that found the slot in use, without owning the slot.
#[cold]
#[inline(never)]
fn count_lost(slot: &Slot<'_>, due: Live) {
    for (_, recording) in slot.each(due) {
        recording.counters.add_shared(Counter::Lost, 1);
    }
}

/// Ends the measurement that the last upcall began, if there is one.
#[inline]
fn end_measurement(slot: &Slot<'_>, registers: Option<&Registers>, entry: &Entry) {
    if slot.cells.measurements_left.end() {
        let Entry { cycles, running_ns, now_ns, .. } = *entry;
        slot.cells.delivery.end(registers, Moment { cycles, running_ns, now_ns });
    }
}

/// A tick that took more cycles than this was itself interrupted: the hypervisor gave the CPU to
/// another vCPU.
const INTERRUPTED_CYCLES: u64 = 50_000;

/// The time until the next tick if this one found the slot busy and could not count a wait or end a
/// recording. The code that it interrupted may own the slot.
const RETRY_NS: u64 = 100_000;

/// The clocks at a tick's delivery.
#[derive(Clone, Copy)]
struct Entry {
    vcpu: u32,
    cycles: u64,
    running_ns: u64,
    now_ns: u64,
}

/// A delivery of the timer at or after a target.
struct Delivered {
    live: Live,
    due: Live,
    /// The parameters of the walk.
    asked: Asked,
    lateness_ns: u64,
    late: bool,
}

impl<'m, P: Platform> Agent<'m, P> {
    /// The timer upcall; call it on the vCPU that it was delivered to. `registers` are those of the
    /// interrupted code, `None` if there are none (an upcall forced when events were unmasked).
    ///
    /// Returns this vCPU's next deadline in ns, on the clock that its timer is programmed with.
    /// Program it, or the guest's own deadline if that is earlier. It may have passed: then the timer
    /// must fire at once. The first ticks of a recording return such a deadline, to measure what a
    /// delivery costs. `None` if there is no deadline.
    #[inline]
    pub fn on_tick(&self, registers: Option<&Registers>) -> Option<u64> {
        let vcpu = self.platform.vcpu()?;
        let slot = self.slot(vcpu)?;
        if slot.cells.is_blocked() {
            self.note_block_under_way(vcpu, slot, registers);
        }
        self.deliver(vcpu, slot, registers)
    }

    /// Handles a timer delivery. Not inlined: its large stack frame must not add to that of
    /// `note_block_under_way`, which runs before it.
    #[inline(never)]
    fn deliver(&self, vcpu: u32, slot: &'m Slot<'m>, registers: Option<&Registers>) -> Option<u64> {
        let mut live = slot.live_and_request();
        if live.is_empty_or_request() {
            if live.has_request() {
                self.take_snapshot(slot, registers);
                live = live.recordings();
            }
            if live.is_empty() {
                return self.snapshot_deadline(slot);
            }
        }
        slot.prefetch(live);
        self.prefetch_caller(registers);
        if let Some(ring) = self.ring(vcpu) {
            ring.prefetch();
        }
        let moment = self.platform.moment(vcpu);
        // In a wait, or behind one that is not counted yet, there are no ticks of blocked time.
        let mut waits = slot.cells.is_blocked();
        let mut needs = slot.needs(live, waits);
        let entry = Entry {
            vcpu,
            cycles: moment.cycles,
            running_ns: moment.running_ns,
            now_ns: moment.now_ns,
        };
        let Entry { running_ns, now_ns, .. } = entry;
        if now_ns >= needs.until_ns || needs.counts_blocked && !slot.cells.is_running() {
            live = self.settle(vcpu, slot, now_ns);
            waits = !slot.cells.is_running();
            needs = slot.needs(live, waits);
            if slot.cells.has_uncounted_wait() || slot.live().bits() != live.bits() {
                // The slot is busy: a wait could not be counted, or a recording not be ended.
                needs.until_ns = needs.until_ns.min(now_ns.saturating_add(RETRY_NS));
            }
        }
        // No recording samples now; blocked time is counted at the wake.
        let Some((index, driver)) = slot.driver(needs) else {
            return self.idle_deadline(slot, needs.until_ns, now_ns);
        };
        let RecordingCells { sampler, .. } = driver;
        sampler.lead(running_ns);
        let (left_ns, has_lost_cpu) = match sampler.deliver(running_ns) {
            Delivery::Early(left_ns) => (left_ns, self.early(slot, live, registers, &entry)),
            Delivery::Due { lateness_ns, next_ns } => {
                let late = sampler.is_late(lateness_ns);
                let delivered = Delivered {
                    live,
                    due: slot.due(live, index, waits, late, running_ns),
                    asked: needs.asked,
                    lateness_ns,
                    late,
                };
                let has_lost_cpu = self.tick(slot, registers, &delivered, &entry);
                if slot.cells.measurements_left.are_left() {
                    (self.measure_delivery(slot, registers, &entry, next_ns), has_lost_cpu)
                } else {
                    (next_ns, has_lost_cpu)
                }
            }
        };
        if slot.cells.is_blocked() {
            return None;
        }
        // If the vCPU lost its CPU meanwhile, the clock has advanced but its running time has not.
        let now_ns = if has_lost_cpu { self.platform.now_ns() } else { now_ns };
        self.deadline_after(needs.until_ns, now_ns, left_ns)
    }

    /// This vCPU's next deadline in ns, on the clock that its timer is programmed with; `None` if
    /// nothing is recorded or the vCPU blocks.
    pub fn deadline(&self) -> Option<u64> {
        let (vcpu, slot) = self.current()?;
        let live = slot.live();
        if live.is_empty() || slot.cells.is_blocked() {
            return self.snapshot_deadline(slot);
        }
        let needs = slot.needs(live, false);
        let moment = self.platform.moment(vcpu);
        // The targets are only read: a tick, which may come at any moment, moves them on.
        let left_ns = slot
            .driver(needs)
            .map_or(u64::MAX, |(_, driver)| driver.sampler.left_ns(moment.running_ns));
        self.deadline_after(needs.until_ns, moment.now_ns, left_ns)
    }

    /// Whether a recording is running on this vCPU, also while it blocks.
    pub fn is_recording(&self) -> bool {
        self.current().is_some_and(|(_, slot)| !slot.live().is_empty())
    }

    /// The deadline while no recording samples: the earliest end of a recording. `None` if the vCPU
    /// blocks.
    #[cold]
    #[inline(never)]
    fn idle_deadline(&self, slot: &Slot<'_>, until_ns: u64, now_ns: u64) -> Option<u64> {
        if slot.cells.is_blocked() {
            return None;
        }
        self.deadline_after(until_ns, now_ns, u64::MAX)
    }

    /// Counts a delivery before its target; returns whether the vCPU lost its CPU meanwhile.
    #[cold]
    #[inline(never)]
    fn early(
        &self,
        slot: &Slot<'_>,
        live: Live,
        registers: Option<&Registers>,
        entry: &Entry,
    ) -> bool {
        end_measurement(slot, registers, entry);
        let blocked = slot.cells.is_blocked();
        let samples = |(_, recording): &(usize, &RecordingCells)| recording.samples(blocked);
        for (_, recording) in slot.each(live).filter(samples) {
            recording.counters.add_shared(Counter::Early, 1);
        }
        self.charge(entry, slot, live)
    }

    /// Takes the slot, walks the stack and counts the sample, or counts why there is none. Returns
    /// whether the vCPU lost its CPU meanwhile.
    #[inline]
    fn tick(
        &self,
        slot: &'m Slot<'m>,
        registers: Option<&Registers>,
        delivered: &Delivered,
        entry: &Entry,
    ) -> bool {
        let Delivered { live, due, asked, lateness_ns, late } = *delivered;
        let Some(owned) = slot.take() else {
            return self.find_busy(slot, registers, delivered, entry);
        };
        let Some(served) = owned.served(due) else {
            return self.charge(entry, slot, live);
        };
        let recordings = served.recordings();
        let Some(registers) = registers.filter(|_| !slot.cells.is_blocked()) else {
            self.count_unsampled(slot, recordings, entry);
            return self.charge(entry, slot, live);
        };
        let mut path = owned.path_cells().begin();
        if late {
            // The code that ran at the target is not known, only the code that runs now.
            path.push(frame_code::LATE);
        }
        let walked = self.walk(registers, slot.cells, asked, &mut path);
        let recorded = owned.record(&path, Sample { walked, late }, served);
        self.write_sample(entry.vcpu, slot, entry.now_ns, recorded, recordings, late);
        let (cycles, has_lost_cpu) = self.cycles_since(entry, slot, live);
        for (index, recording) in slot.each(slot.left(live)) {
            add_owned(&recording.tick_cycles, cycles);
            if recordings.has(index) {
                recording.add_costs(cycles, lateness_ns);
            }
        }
        has_lost_cpu
    }

    /// After a tick, if [measurements](crate::count::delivery) are left: begins one. Returns the
    /// time to the next deadline, which is 0 then.
    #[cold]
    #[inline(never)]
    fn measure_delivery(
        &self,
        slot: &Slot<'_>,
        registers: Option<&Registers>,
        entry: &Entry,
        next_ns: u64,
    ) -> u64 {
        end_measurement(slot, registers, entry);
        let SlotCells { measurements_left, delivery, .. } = slot.cells;
        if !measurements_left.begin() {
            return next_ns;
        }
        let can_measure = entry.cycles != 0 && !slot.cells.is_blocked();
        let Some(registers) = registers.filter(|_| can_measure) else {
            end_measurement(slot, None, entry);
            return next_ns;
        };
        let moment = self.platform.moment(entry.vcpu);
        delivery.begin(registers, moment, self.platform.cycles());
        0
    }

    /// Counts a tick without a sample: the vCPU blocks, or there are no registers. The caller must
    /// own the slot.
    #[cold]
    #[inline(never)]
    fn count_unsampled(&self, slot: &Slot<'_>, recordings: Live, entry: &Entry) {
        let (counter, outcome) = if slot.cells.is_blocked() {
            (Counter::Idle, outcome::IDLE)
        } else {
            (Counter::Masked, outcome::MASKED)
        };
        for (_, recording) in slot.each(recordings) {
            recording.counters.add_owned(counter, 1);
        }
        self.write_no_sample(entry.vcpu, slot, entry.now_ns, outcome, recordings.bits());
    }

    /// Handles a tick that found the slot busy. If it interrupted this vCPU's own block accounting,
    /// it walks the stack and defers the sample to that code, marked as the agent's own work.
    /// Otherwise the tick is lost.
    #[cold]
    #[inline(never)]
    fn find_busy(
        &self,
        slot: &'m Slot<'m>,
        registers: Option<&Registers>,
        delivered: &Delivered,
        entry: &Entry,
    ) -> bool {
        let &Delivered { asked, late, .. } = delivered;
        let due = slot.left(delivered.due);
        if let (Some(cells), Some(registers)) = (slot.cells.deferred_path(), registers) {
            let mut path = cells.begin();
            if late {
                path.push(frame_code::LATE);
            }
            let walked = self.walk(registers, slot.cells, asked, &mut path);
            if !slot.cells.in_own_work() {
                path.push(frame_code::AGENT);
            }
            slot.cells.defer(&path, Sample { walked, late }, due);
        } else {
            count_lost(slot, due);
            self.write_no_sample(entry.vcpu, slot, entry.now_ns, outcome::LOST, due.bits());
        }
        self.charge(entry, slot, delivered.live)
    }

    /// The rare work of a tick: ends the recordings whose time is over, and counts a wait that the
    /// wake could not count. Returns the other recordings.
    #[cold]
    #[inline(never)]
    fn settle(&self, vcpu: u32, slot: &Slot<'_>, now_ns: u64) -> Live {
        let now = Now { ns: now_ns, times: self.all_times(vcpu), ring: self.ring(vcpu) };
        if slot.cells.has_uncounted_wait()
            && let Some(owned) = slot.take()
        {
            owned.end_block(slot.live(), now);
            slot.cells.set_running(true);
        }
        slot.expire(now)
    }

    /// Prefetches the first entry for the lookup of the interrupted function's caller.
    #[inline]
    fn prefetch_caller(&self, registers: Option<&Registers>) {
        if let (Some(callers), Some(registers)) = (&self.callers, registers) {
            callers.prefetch(&self.code, registers.pc);
        }
    }

    /// Writes to the ring why these recordings have no sample of a tick or an allocation.
    #[inline]
    fn write_no_sample(&self, vcpu: u32, slot: &Slot<'_>, now_ns: u64, outcome: u64, of: u32) {
        if let Some(ring) = self.ring(vcpu) {
            let entry = RingEntry::new(kind::NO_SAMPLE, outcome, of.into());
            ring.push_tick(now_ns, slot.cells.entered(), entry);
        }
    }

    /// Writes a sample that was counted to the ring, as each of the recordings counted it.
    #[inline]
    fn write_sample(
        &self,
        vcpu: u32,
        slot: &Slot<'_>,
        now_ns: u64,
        recorded: Recorded,
        of: Live,
        late: bool,
    ) {
        let Some(ring) = self.ring(vcpu) else {
            return;
        };
        let Recorded { place, overflow } = recorded;
        let bits = of.bits() & !overflow;
        if bits != 0 {
            let marks = if late { SAMPLE_LATE } else { 0 };
            let second = u64::from(bits) | marks;
            let entered = slot.cells.entered();
            ring.push_tick(now_ns, entered, RingEntry::new(kind::SAMPLE, place.into(), second));
        }
        if overflow != 0 {
            self.write_no_sample(vcpu, slot, now_ns, outcome::OVERFLOW, overflow);
        }
    }

    /// Walks the stack of `registers`. Not inlined: the loop over the frames then has all processor
    /// registers for itself, and all callers share its code.
    #[inline(never)]
    fn walk(
        &self,
        registers: &Registers,
        cells: &SlotCells,
        Asked { depth, lookup }: Asked,
        path: &mut Path<'_>,
    ) -> Walked {
        let callers = self.callers.as_ref();
        let guide = Guide {
            code: &self.code,
            callers: callers.filter(|_| lookup != Lookup::None),
            every_frame: lookup == Lookup::EveryFrame,
            instructions: Instructions(self),
        };
        #[cfg(feature = "trace")]
        let registers = &self.original(registers);
        let stacks = PlatformStacks(&self.platform);
        let walked = walk(registers, stacks, &guide, depth.into(), path);
        if cells.in_own_work() {
            path.push(frame_code::AGENT);
        }
        walked
    }

    /// This moment, the vCPU's times until then, and its ring.
    fn now(&self, vcpu: u32) -> Now<'m> {
        // The clock is read last, so that no time is longer than what has passed.
        let times = self.all_times(vcpu);
        Now { times, ns: self.platform.now_ns(), ring: self.ring(vcpu) }
    }

    fn all_times(&self, vcpu: u32) -> Times {
        Times {
            running_ns: self.platform.running_ns(vcpu),
            blocked_ns: self.platform.blocked_ns(vcpu),
        }
    }

    /// Adds this tick's cycles to the agent's cost; returns whether the vCPU lost its CPU
    /// meanwhile.
    #[cold]
    #[inline(never)]
    fn charge(&self, entry: &Entry, slot: &Slot<'_>, live: Live) -> bool {
        let (cycles, has_lost_cpu) = self.cycles_since(entry, slot, live);
        charge_cycles(slot, slot.left(live), cycles);
        has_lost_cpu
    }

    /// The cycles that this tick has run, and whether the vCPU lost its CPU meanwhile. The cycle
    /// counter also advances while another vCPU has the CPU, so an implausibly long tick is charged
    /// by its running time instead.
    #[inline]
    fn cycles_since(&self, entry: &Entry, slot: &Slot<'_>, live: Live) -> (u64, bool) {
        let cycles = self.platform.cycles().wrapping_sub(entry.cycles);
        if cycles < INTERRUPTED_CYCLES {
            return (cycles, false);
        }
        let recording = slot.each(live).next().map(|(_, recording)| recording);
        let run = self.cycles_run(entry.vcpu, entry.running_ns, recording);
        (run.min(cycles), true)
    }

    /// The running time since `running_ns` in cycles, at the mean rate since the start of the
    /// recording's epoch.
    #[cold]
    #[inline(never)]
    fn cycles_run(&self, vcpu: u32, running_ns: u64, recording: Option<&RecordingCells>) -> u64 {
        let Some(recording) = recording else {
            return 0;
        };
        let ran_ns = self.platform.running_ns(vcpu).saturating_sub(running_ns);
        let start = recording.boundary(recording.epoch());
        let cycles = self.platform.cycles().saturating_sub(start.cycles);
        let passed_ns = self.platform.now_ns().saturating_sub(start.at_ns).max(1);
        let run = u128::from(ran_ns) * u128::from(cycles) / u128::from(passed_ns);
        u64::try_from(run).unwrap_or(u64::MAX)
    }

    #[inline]
    fn deadline_after(&self, until_ns: u64, now_ns: u64, left_ns: u64) -> Option<u64> {
        let deadline_ns = now_ns.saturating_add(left_ns).min(until_ns);
        (deadline_ns != u64::MAX).then(|| self.platform.timer_deadline(deadline_ns))
    }
}

/// The instructions that the platform allows to be read.
struct Instructions<'a, 'm, P>(&'a Agent<'m, P>);

#[allow(unsafe_code)]
impl<P: Platform> ReadCode for Instructions<'_, '_, P> {
    #[inline]
    fn around(&self, pc: u64) -> Option<[u8; 5]> {
        let bounds = self.0.platform.code_bounds(pc)?;
        // SAFETY: the bounds come from the platform, whose contract is that they are readable for
        // as long as the upcall runs; the value does not outlive it.
        let bytes = unsafe { CodeMemory::new(bounds) }.around(pc);
        #[cfg(feature = "trace")]
        let bytes = match &self.0.trace {
            Some(trace) => bytes.map(|mut bytes| {
                trace.restore_bytes(pc.wrapping_sub(1), &mut bytes);
                bytes
            }),
            None => bytes,
        };
        bytes
    }
}

/// The stacks of a platform.
struct PlatformStacks<'p, P>(&'p P);

#[allow(unsafe_code)]
impl<P: Platform> Stacks for PlatformStacks<'_, P> {
    type Stack = StackMemory;

    #[inline]
    fn at(&self, address: u64) -> Option<StackMemory> {
        let bounds = self.0.stack_bounds(address)?;
        // SAFETY: the bounds come from the platform, whose contract is that they are readable for
        // as long as the upcall runs; the value does not outlive it.
        Some(unsafe { StackMemory::new(bounds) })
    }

    #[inline]
    fn continuation(&self, sp: u64, fp: u64) -> Option<Continuation> {
        self.0.continuation(sp, fp)
    }
}
