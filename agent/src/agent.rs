//! The agent as the upcall sees it: ticks, blocking and waking.

use core::mem::MaybeUninit;

use unikprof_proto::code::frame_code;
use unikprof_proto::message::Snapshot;

use crate::code_map::{CodeMap, Mapping, MappingsError};
use crate::memory::{self, Parts};
use crate::platform::{Platform, Registers};
use crate::sampler::Delivery;
use crate::slot::{Sample, Slot, SlotCells};
use crate::stack::StackMemory;
use crate::sync::{AtomicU32, Ordering, add_owned};
use crate::table::Table;
use crate::walk::walk;

/// What the agent is told about its guest at the start.
#[derive(Clone, Copy, Debug)]
pub struct Config<'m> {
    /// How many vCPUs there are, at least 1. Each has a slot; the memory is divided evenly.
    pub vcpus: u32,
    /// The guest's executable mappings, sorted by address. Code outside them is shown as unknown.
    pub mappings: &'m [Mapping<'m>],
    /// The guest's name, where known.
    pub guest_name: Option<&'m str>,
    /// The guest's id (on Xen its UUID), where known.
    pub guest_id: Option<&'m str>,
    /// What the guest runs on: `xen` or `hosted`.
    pub platform_name: &'m str,
    /// Whether the agent is served even while the guest is stuck in a loop.
    pub reachable_when_busy: bool,
}

/// Why an agent cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartError {
    /// `Config::vcpus` is 0.
    NoVcpu,
    /// The memory block is too small: the least it must have, in bytes.
    Memory(usize),
    /// The mappings cannot be used.
    Mappings(MappingsError),
}

/// The profiler of one guest. Shared by the upcall and the service.
///
/// Every method may be called from any context, at any moment, also from an upcall that interrupts
/// another method: none of them allocates, locks, waits or panics.
#[derive(Debug)]
pub struct Agent<'m, P> {
    platform: P,
    config: Config<'m>,
    code: CodeMap,
    parts: Parts<'m>,
    memory_bytes: u64,
    served: AtomicU32,
    gaps: AtomicU32,
}

/// A tick that took more cycles than this was interrupted itself: the vCPU lost its CPU meanwhile.
const INTERRUPTED_CYCLES: u64 = 50_000;

/// How things stood when a tick was delivered.
#[derive(Clone, Copy)]
struct Entry {
    vcpu: u32,
    cycles: u64,
    running_ns: u64,
    now_ns: u64,
}

impl<'m, P: Platform> Agent<'m, P> {
    /// An agent that keeps all it ever needs in `memory`; it never allocates.
    ///
    /// # Errors
    /// [`StartError`] where the configuration cannot be used.
    pub fn new(
        platform: P,
        config: Config<'m>,
        memory: &'m mut [MaybeUninit<u8>],
    ) -> Result<Self, StartError> {
        let vcpus = config.vcpus as usize;
        if vcpus == 0 {
            return Err(StartError::NoVcpu);
        }
        let code = CodeMap::new(config.mappings).map_err(StartError::Mappings)?;
        let memory_bytes = memory.len() as u64;
        let parts = memory::divide(memory, vcpus)
            .ok_or(StartError::Memory(memory::minimum_bytes(vcpus)))?;
        Ok(Self {
            platform,
            config,
            code,
            parts,
            memory_bytes,
            served: AtomicU32::new(0),
            gaps: AtomicU32::new(0),
        })
    }

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
            running_ns: self.platform.running_ns(vcpu),
            now_ns: self.platform.now_ns(),
        };
        let Entry {
            running_ns, now_ns, ..
        } = entry;
        if now_ns >= cells.until_ns() {
            cells.expire(now_ns, running_ns);
            return None;
        }
        let left_ns = match cells.sampler.deliver(running_ns) {
            Delivery::Early(left_ns) => {
                cells.counters.early.fetch_add(1, Ordering::Relaxed);
                add_owned(&cells.tick_cycles, self.cycles_since(&entry, cells));
                left_ns
            }
            Delivery::Due {
                lateness_ns,
                next_ns,
            } => {
                self.tick(slot, recording, registers, lateness_ns, &entry);
                next_ns
            }
        };
        if cells.is_blocked() {
            return None;
        }
        // Where the vCPU has lost its CPU since, the clock has gone on and its running time has not.
        let now_ns = if self.has_lost_cpu(&entry) {
            self.platform.now_ns()
        } else {
            now_ns
        };
        Some(self.deadline_after(cells, now_ns, left_ns))
    }

    /// The guest is about to block on this vCPU. Until [`on_wake`](Self::on_wake) there is no
    /// deadline: an idle guest stays asleep. The running time left to the target is kept.
    pub fn on_block(&self) {
        if let Some((_, slot)) = self.current() {
            slot.cells.set_blocked(true);
        }
    }

    /// The guest woke on this vCPU; answers the next deadline as [`on_tick`](Self::on_tick) does.
    pub fn on_wake(&self) -> Option<u64> {
        let (_, slot) = self.current()?;
        slot.cells.set_blocked(false);
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
        let left_ns = cells.sampler.left_ns(self.platform.running_ns(vcpu));
        Some(self.deadline_after(cells, self.platform.now_ns(), left_ns))
    }

    /// The guest was restored from a save or has migrated. A recording goes on and notes the gap.
    ///
    /// Call it on one vCPU, when event channels and clocks work again and before anything is armed;
    /// then arm the [`deadline`](Self::deadline) of this vCPU. The others are kicked.
    pub fn resume(&self) {
        self.platform.resume();
        self.gaps.fetch_add(1, Ordering::Relaxed);
        let current = self.platform.vcpu();
        for (vcpu, slot) in self.slots() {
            if slot.cells.active() != 0 && Some(vcpu) != current {
                self.platform.kick(vcpu);
            }
        }
    }

    /// What the agent was told at the start.
    pub fn config(&self) -> &Config<'m> {
        &self.config
    }

    /// The platform below.
    pub fn platform(&self) -> &P {
        &self.platform
    }

    /// Takes the slot, walks and counts, or counts why not.
    #[inline]
    fn tick(
        &self,
        slot: Slot<'m>,
        recording: u64,
        registers: Option<&Registers>,
        lateness_ns: u64,
        entry: &Entry,
    ) {
        let cells = slot.cells;
        let counters = &cells.counters;
        let Some(owned) = slot.take() else {
            counters.lost.fetch_add(1, Ordering::Relaxed);
            return;
        };
        // The recording may have ended between the look and the taking.
        if cells.active() != recording {
            return;
        }
        add_owned(&counters.taken, 1);
        if cells.is_blocked() {
            return add_owned(&counters.idle, 1);
        }
        let Some(registers) = registers else {
            return add_owned(&counters.masked, 1);
        };
        let stack = self.platform.stack_bounds(registers.sp).map(stack_memory);
        let (mut path, end) = walk(
            registers,
            stack.as_ref(),
            &self.code,
            cells.depth(),
            owned.path_cells(),
        );
        if cells.in_own_work() {
            path.push(frame_code::AGENT);
        }
        owned.record(
            &path,
            Sample {
                end,
                late: cells.sampler.is_late(lateness_ns),
            },
        );
        cells.lateness_ns.add(lateness_ns);
        let cycles = self.cycles_since(entry, cells);
        cells.sample_cycles.add(cycles);
        add_owned(&cells.tick_cycles, cycles);
    }

    #[inline]
    fn has_lost_cpu(&self, entry: &Entry) -> bool {
        self.platform.cycles().wrapping_sub(entry.cycles) >= INTERRUPTED_CYCLES
    }

    /// The cycles that this tick has run. The counter goes on while others have the CPU, so a tick
    /// that took longer than any can is charged by the running time instead.
    #[inline]
    fn cycles_since(&self, entry: &Entry, cells: &SlotCells) -> u64 {
        let cycles = self.platform.cycles().wrapping_sub(entry.cycles);
        if cycles < INTERRUPTED_CYCLES {
            return cycles;
        }
        self.cycles_run(entry, cells).min(cycles)
    }

    /// The running time of this tick, in cycles at the rate they have come since the epoch began.
    #[cold]
    #[inline(never)]
    fn cycles_run(&self, entry: &Entry, cells: &SlotCells) -> u64 {
        let ran_ns = self
            .platform
            .running_ns(entry.vcpu)
            .saturating_sub(entry.running_ns);
        let start = cells.boundary(cells.epoch());
        let cycles = self.platform.cycles().saturating_sub(start.cycles);
        let passed_ns = self.platform.now_ns().saturating_sub(start.at_ns).max(1);
        let run = u128::from(ran_ns) * u128::from(cycles) / u128::from(passed_ns);
        u64::try_from(run).unwrap_or(u64::MAX)
    }

    fn current(&self) -> Option<(u32, Slot<'m>)> {
        let vcpu = self.platform.vcpu()?;
        Some((vcpu, self.slot(vcpu)?))
    }

    /// The slot of a vCPU.
    #[inline]
    pub(crate) fn slot(&self, vcpu: u32) -> Option<Slot<'m>> {
        let vcpu = vcpu as usize;
        let cells: &'m SlotCells = self.parts.slots.get(vcpu)?;
        let count = self.nodes_per_vcpu();
        let nodes = self.parts.nodes.get(vcpu * count..(vcpu + 1) * count)?;
        let length = Table::index_length(count);
        let index = self.parts.index.get(vcpu * length..(vcpu + 1) * length)?;
        Some(Slot {
            cells,
            table: Table::new(nodes, index, cells.used()),
        })
    }

    /// All slots, in the order of their vCPUs.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (u32, Slot<'m>)> + use<'_, 'm, P> {
        (0..self.config.vcpus).filter_map(|vcpu| Some((vcpu, self.slot(vcpu)?)))
    }

    #[inline]
    fn deadline_after(&self, cells: &SlotCells, now_ns: u64, left_ns: u64) -> u64 {
        let deadline_ns = now_ns.saturating_add(left_ns).min(cells.until_ns());
        self.platform.timer_deadline(deadline_ns)
    }

    /// How often the guest was resumed.
    pub(crate) fn gaps(&self) -> u32 {
        self.gaps.load(Ordering::Relaxed)
    }

    pub(crate) fn nodes_per_vcpu(&self) -> usize {
        self.parts.nodes.len() / self.parts.slots.len().max(1)
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    pub(crate) fn code(&self) -> &CodeMap {
        &self.code
    }

    /// A vCPU at this moment, without its counters.
    pub(crate) fn snapshot(&self, vcpu: u32) -> Snapshot {
        Snapshot {
            at_ns: self.platform.now_ns(),
            cycles: self.platform.cycles(),
            running_ns: self.platform.running_ns(vcpu),
            runstate: self.platform.runstate(vcpu),
            ..Snapshot::default()
        }
    }

    /// Marks this vCPU's work as the agent's own until the guard is dropped.
    pub(crate) fn own_work(&self) -> OwnWork<'m> {
        let cells = self.current().map(|(_, slot)| slot.cells);
        if let Some(cells) = cells {
            cells.enter_own_work();
        }
        OwnWork(cells)
    }

    /// Claims the one service an agent may have.
    pub(crate) fn claim_service(&self) -> bool {
        self.served.swap(1, Ordering::AcqRel) == 0
    }

    pub(crate) fn release_service(&self) {
        self.served.store(0, Ordering::Release);
    }
}

/// While it lives, samples of its vCPU are marked as the agent's own work.
pub(crate) struct OwnWork<'m>(Option<&'m SlotCells>);

impl Drop for OwnWork<'_> {
    fn drop(&mut self) {
        if let Some(cells) = self.0 {
            cells.leave_own_work();
        }
    }
}

#[allow(unsafe_code)]
#[inline]
fn stack_memory(bounds: core::ops::Range<u64>) -> StackMemory {
    // SAFETY: the bounds come from the platform, whose contract is that they are readable for as
    // long as the upcall runs; the value does not outlive it.
    unsafe { StackMemory::new(bounds) }
}

impl core::fmt::Display for StartError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NoVcpu => f.write_str("there must be at least one vCPU"),
            Self::Memory(least) => write!(f, "the memory block must have at least {least} bytes"),
            Self::Mappings(error) => write!(f, "{error}"),
        }
    }
}

impl core::error::Error for StartError {}
