//! The agent as the upcall sees it: ticks, blocking and waking.

use unikprof_proto::code::{frame_code, mode};

use super::Agent;
use crate::path::Path;
use crate::platform::{Platform, Registers};
use crate::sampler::Delivery;
use crate::slot::{Lookup, Owned, Sample, Slot, SlotCells, Times};
use crate::stack::{CodeMemory, ReadCode, StackMemory};
use crate::sync::{Ordering, add_owned};
use crate::walk::{Guide, Walked, walk};

/// A tick that took more cycles than this was interrupted itself: the vCPU lost its CPU meanwhile.
const INTERRUPTED_CYCLES: u64 = 50_000;

/// How things stood when a tick was delivered.
#[derive(Clone, Copy)]
struct Entry {
    vcpu: u32,
    cycles: u64,
    times: Times,
    now_ns: u64,
}

impl<'m, P: Platform> Agent<'m, P> {
    /// The timer upcall, on the vCPU it was delivered to. `registers` are those of the interrupted
    /// code, `None` where there are none (an upcall forced when events were unmasked).
    ///
    /// Answers the next deadline of this vCPU, as its timer is programmed, in ns: program it, or the
    /// guest's own where that is earlier. `None`: there is nothing to wait for.
    #[inline]
    pub fn on_tick(&self, registers: Option<&Registers>) -> Option<u64> {
        let (vcpu, slot) = self.current()?;
        let cells = slot.cells;
        let recording = cells.active();
        if recording == 0 {
            return None;
        }
        cells.prefetch();
        let entry = Entry {
            vcpu,
            cycles: self.platform.cycles(),
            times: self.times(vcpu, cells),
            now_ns: self.platform.now_ns(),
        };
        let Entry { times, now_ns, .. } = entry;
        if now_ns >= cells.until_ns() {
            cells.expire(now_ns, self.all_times(vcpu));
            return None;
        }
        let mode = cells.mode();
        if mode != mode::CPU && cells.is_blocked() {
            // Blocked time is counted when it is over; where it began before the recording, this is
            // the first that is seen of it. A slot that is taken is being blocked or woken.
            if recording != 0
                && !cells.has_block(recording)
                && let Some(owned) = slot.take()
            {
                self.note_block(Some(owned), slot, vcpu, registers);
            }
            return None;
        }
        if mode == mode::OFF_CPU {
            return self.deadline_after(cells, now_ns, u64::MAX);
        }
        let (left_ns, has_lost_cpu) = match cells.sampler.deliver(cells.sampled_ns(times)) {
            Delivery::Early(left_ns) => {
                cells.counters.early.fetch_add(1, Ordering::Relaxed);
                (left_ns, self.charge(&entry, cells))
            }
            Delivery::Due {
                lateness_ns,
                next_ns,
            } => (
                next_ns,
                self.tick(slot, recording, registers, lateness_ns, &entry),
            ),
        };
        if cells.is_blocked() {
            return None;
        }
        // Where the vCPU has lost its CPU since, the clock has gone on and its running time has not.
        let now_ns = if has_lost_cpu {
            self.platform.now_ns()
        } else {
            now_ns
        };
        self.deadline_after(cells, now_ns, left_ns)
    }

    /// The guest is about to block on this vCPU. Until [`on_wake`](Self::on_wake) there is no
    /// deadline: an idle guest stays asleep. The running time left to the target is kept.
    ///
    /// `registers` are those of the code that blocks, [`Registers::here`] as a rule: a recording of
    /// blocked time counts it to their stack. `None` where they are not known.
    #[inline]
    pub fn on_block(&self, registers: Option<&Registers>) {
        if let Some((vcpu, slot)) = self.current() {
            if slot.cells.active() != 0 && slot.cells.mode() != mode::CPU {
                self.note_block(slot.take_patiently(), slot, vcpu, registers);
            }
            slot.cells.set_blocked(true);
        }
    }

    /// The guest woke on this vCPU; answers the next deadline as [`on_tick`](Self::on_tick) does.
    pub fn on_wake(&self) -> Option<u64> {
        let (vcpu, slot) = self.current()?;
        let cells = slot.cells;
        let recording = cells.active();
        if recording != 0 && cells.has_block(recording) {
            let cycles = self.platform.cycles();
            let times = self.all_times(vcpu);
            match slot.take_patiently() {
                Some(owned) => owned.end_block(recording, times),
                None => {
                    let weight = cells.take_blocked(times);
                    let uncounted = &cells.counters.blocked_overflow;
                    uncounted.fetch_add(weight, Ordering::Relaxed);
                    cells.close_block();
                }
            }
            self.charge_since(cycles, cells);
        }
        cells.set_blocked(false);
        self.deadline()
    }

    /// The next deadline of this vCPU, as its timer is programmed, in ns; `None` while nothing is
    /// recorded or the vCPU blocks.
    pub fn deadline(&self) -> Option<u64> {
        let (vcpu, slot) = self.current()?;
        let cells = slot.cells;
        if cells.active() == 0 || cells.is_blocked() {
            return None;
        }
        let left_ns = if cells.mode() == mode::OFF_CPU {
            u64::MAX
        } else {
            let sampled_ns = cells.sampled_ns(self.times(vcpu, cells));
            cells.sampler.left_ns(sampled_ns)
        };
        self.deadline_after(cells, self.platform.now_ns(), left_ns)
    }

    /// Takes the slot, walks and counts, or counts why not; answers whether the vCPU has lost its CPU
    /// meanwhile.
    #[inline]
    fn tick(
        &self,
        slot: Slot<'m>,
        recording: u64,
        registers: Option<&Registers>,
        lateness_ns: u64,
        entry: &Entry,
    ) -> bool {
        let cells = slot.cells;
        let counters = &cells.counters;
        let Some(owned) = slot.take() else {
            counters.lost.fetch_add(1, Ordering::Relaxed);
            return self.charge(entry, cells);
        };
        // The recording may have ended between the look and the taking.
        if cells.active() != recording {
            return false;
        }
        add_owned(&counters.taken, 1);
        if cells.is_blocked() {
            add_owned(&counters.idle, 1);
            return self.charge(entry, cells);
        }
        let Some(registers) = registers else {
            add_owned(&counters.masked, 1);
            return self.charge(entry, cells);
        };
        let late = cells.sampler.is_late(lateness_ns);
        let mut path = owned.path_cells().begin();
        if late {
            // What ran then is not known, only what runs now.
            path.push(frame_code::LATE);
        }
        let (path, walked) = self.walk(registers, cells, path);
        owned.record(&path, Sample { walked, late });
        cells.lateness_ns.add(lateness_ns);
        let (cycles, has_lost_cpu) = self.cycles_since(entry, cells);
        cells.sample_cycles.add(cycles);
        add_owned(&cells.tick_cycles, cycles);
        has_lost_cpu
    }

    /// Walks the stack of `registers` as the recording asks.
    #[inline]
    fn walk<'p>(
        &self,
        registers: &Registers,
        cells: &SlotCells,
        path: Path<'p>,
    ) -> (Path<'p>, Walked) {
        let lookup = cells.lookup();
        let callers = self.callers.as_ref();
        let guide = Guide {
            code: &self.code,
            callers: callers.filter(|_| lookup != Lookup::None),
            every_frame: lookup == Lookup::EveryFrame,
            instructions: Instructions(&self.platform),
        };
        let stack = self.platform.stack_bounds(registers.sp).map(stack_memory);
        let (mut path, walked) = walk(registers, stack.as_ref(), &guide, cells.depth(), path);
        if cells.in_own_work() {
            path.push(frame_code::AGENT);
        }
        (path, walked)
    }

    /// The vCPU blocks in the code of `registers`: keeps its stack for the time to come. Who has not got
    /// the slot knows no stack.
    #[cold]
    #[inline(never)]
    fn note_block(
        &self,
        owned: Option<Owned<'m>>,
        slot: Slot<'m>,
        vcpu: u32,
        registers: Option<&Registers>,
    ) {
        let cells = slot.cells;
        let recording = cells.active();
        if recording == 0 || cells.has_block(recording) {
            return;
        }
        let cycles = self.platform.cycles();
        let stack = match (&owned, registers) {
            (Some(owned), Some(registers)) => {
                let mut path = owned.path_cells().begin();
                if cells.mode() == mode::WALL {
                    path.push(frame_code::BLOCKED);
                }
                let (path, _) = self.walk(registers, cells, path);
                slot.table.keep(&path).unwrap_or(0)
            }
            _ => 0,
        };
        cells.open_block(recording, stack, self.platform.blocked_ns(vcpu));
        self.charge_since(cycles, cells);
    }

    /// Adds what blocking or waking has cost since `cycles` to the agent's price.
    fn charge_since(&self, cycles: u64, cells: &SlotCells) {
        let spent = self.platform.cycles().wrapping_sub(cycles);
        // More than that was somebody else's.
        add_owned(&cells.tick_cycles, spent.min(INTERRUPTED_CYCLES));
    }

    /// The vCPU's times, as far as its recording needs them.
    #[inline]
    fn times(&self, vcpu: u32, cells: &SlotCells) -> Times {
        if cells.mode() == mode::CPU {
            Times {
                running_ns: self.platform.running_ns(vcpu),
                blocked_ns: 0,
            }
        } else {
            self.all_times(vcpu)
        }
    }

    fn all_times(&self, vcpu: u32) -> Times {
        Times {
            running_ns: self.platform.running_ns(vcpu),
            blocked_ns: self.platform.blocked_ns(vcpu),
        }
    }

    /// Adds this tick's cycles to the agent's price; answers whether the vCPU has lost its CPU
    /// meanwhile.
    #[inline]
    fn charge(&self, entry: &Entry, cells: &SlotCells) -> bool {
        let (cycles, has_lost_cpu) = self.cycles_since(entry, cells);
        add_owned(&cells.tick_cycles, cycles);
        has_lost_cpu
    }

    /// The cycles that this tick has run, and whether the vCPU has lost its CPU meanwhile. The counter
    /// goes on while others have the CPU, so a tick that took longer than any can is charged by the
    /// running time instead.
    #[inline]
    fn cycles_since(&self, entry: &Entry, cells: &SlotCells) -> (u64, bool) {
        let cycles = self.platform.cycles().wrapping_sub(entry.cycles);
        if cycles < INTERRUPTED_CYCLES {
            return (cycles, false);
        }
        (self.cycles_run(entry, cells).min(cycles), true)
    }

    /// The running time of this tick, in cycles at the rate they have come since the epoch began.
    #[cold]
    #[inline(never)]
    fn cycles_run(&self, entry: &Entry, cells: &SlotCells) -> u64 {
        let ran_ns = self
            .platform
            .running_ns(entry.vcpu)
            .saturating_sub(entry.times.running_ns);
        let start = cells.boundary(cells.epoch());
        let cycles = self.platform.cycles().saturating_sub(start.cycles);
        let passed_ns = self.platform.now_ns().saturating_sub(start.at_ns).max(1);
        let run = u128::from(ran_ns) * u128::from(cycles) / u128::from(passed_ns);
        u64::try_from(run).unwrap_or(u64::MAX)
    }

    #[inline]
    fn deadline_after(&self, cells: &SlotCells, now_ns: u64, left_ns: u64) -> Option<u64> {
        let deadline_ns = now_ns.saturating_add(left_ns).min(cells.until_ns());
        (deadline_ns != u64::MAX).then(|| self.platform.timer_deadline(deadline_ns))
    }
}

/// The instructions that a platform lets be read.
struct Instructions<'p, P>(&'p P);

#[allow(unsafe_code)]
impl<P: Platform> ReadCode for Instructions<'_, P> {
    #[inline]
    fn around(&self, pc: u64) -> Option<[u8; 5]> {
        let bounds = self.0.code_bounds(pc)?;
        // SAFETY: the bounds come from the platform, whose contract is that they are readable for as
        // long as the upcall runs; the value does not outlive it.
        unsafe { CodeMemory::new(bounds) }.around(pc)
    }
}

#[allow(unsafe_code)]
#[inline]
fn stack_memory(bounds: core::ops::Range<u64>) -> StackMemory {
    // SAFETY: the bounds come from the platform, whose contract is that they are readable for as
    // long as the upcall runs; the value does not outlive it.
    unsafe { StackMemory::new(bounds) }
}
