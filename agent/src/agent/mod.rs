//! The agent: its configuration, memory and vCPU slots, and the calls of the guest.

pub(crate) mod head;
mod instance;
pub(crate) mod recordings;
mod upcall;

use core::mem::MaybeUninit;

use unikprof_proto::message::Snapshot;
use unikprof_proto::ring::kind;

use self::head::{Head, HeadCells};
use self::recordings::Recordings;
use crate::count::live::LiveTable;
use crate::count::memory;
use crate::count::points::PointCells;
use crate::count::recording::MAX_RECORDINGS;
use crate::count::slot::{Slot, SlotCells};
use crate::count::table::SEGMENTS;
use crate::ground::claim::{Claim, Claimable};
use crate::ground::platform::Platform;
use crate::ground::sync::{AtomicU32, AtomicU64, Ordering};
use crate::ring::Rings;
use crate::stack::caller_table::{CallerTable, LinkedTableError};
use crate::stack::code_map::{CodeMap, Mapping, MappingsError};
#[cfg(feature = "trace")]
use crate::trace::Trace;

/// The guest's description, given to the agent at the start.
#[derive(Clone, Copy, Debug)]
pub struct Config<'m> {
    /// The number of vCPUs, at least 1. Each has a slot; the memory is divided evenly.
    pub vcpus: u32,
    /// The maximum number of recordings at a time, 1 to [`MAX_RECORDINGS`]. Each one after the
    /// first takes 16 bytes of memory for every 64 bytes of stacks.
    pub recordings: u32,
    /// The guest's executable mappings, sorted by address. Code outside them is shown as unknown.
    pub mappings: &'m [Mapping<'m>],
    /// The guest's name, if known.
    pub guest_name: Option<&'m str>,
    /// The guest's id (on Xen its UUID), if known.
    pub guest_id: Option<&'m str>,
    /// The platform that the guest runs on: `xen` or `hosted`.
    pub platform_name: &'m str,
    /// Whether clients reach the agent even while the guest is stuck in a loop.
    pub reachable_when_busy: bool,
}

/// Why an agent cannot start.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum StartError {
    /// `Config::vcpus` is 0.
    NoVcpu,
    /// `Config::recordings` is 0, or more than [`MAX_RECORDINGS`].
    Recordings(u32),
    /// The memory block is smaller than this number of bytes, the minimum.
    Memory(usize),
    /// The mappings cannot be used.
    Mappings(MappingsError),
}

/// The profiler of one guest. Shared by the upcall and the service.
///
/// Every method may be called from any context, at any moment, also from an upcall that interrupts
/// another method: none of them allocates, locks, waits or panics.
#[derive(Debug)]
pub struct Agent<'m, P: ?Sized> {
    config: Config<'m>,
    code: CodeMap,
    callers: Option<CallerTable<'m>>,
    rings: Option<Rings<'m>>,
    live: Option<LiveTable<'m>>,
    #[cfg(feature = "trace")]
    pub(crate) trace: Option<Trace<'m>>,
    pub(crate) slots: &'m [Slot<'m>],
    heads: [HeadCells; MAX_RECORDINGS],
    memory_bytes: u64,
    recordings: Claimable<Recordings>,
    gaps: AtomicU32,
    instance: AtomicU64,
    /// Last, so that an agent can be converted to [`AnyAgent`].
    platform: P,
}

/// An agent on any platform, with dynamic dispatch. Code that upcalls do not call takes the agent
/// in this form, so that it is compiled once, however many platforms there are.
pub(crate) type AnyAgent<'p, 'm> = Agent<'m, dyn Platform + 'p>;

impl<'m, P: Platform> Agent<'m, P> {
    /// An agent that keeps all its data in `memory`. It never allocates.
    ///
    /// # Errors
    /// [`StartError`] if the configuration cannot be used.
    pub fn new(
        platform: P,
        config: Config<'m>,
        memory: &'m mut [MaybeUninit<u8>],
    ) -> Result<Self, StartError> {
        let memory_bytes = memory.len() as u64;
        let instance = instance::draw(&platform, 0, memory.as_ptr().addr() as u64);
        let (code, slots) = divide(&config, memory)?;
        let mut agent = Self::with_slots(platform, config, code, slots);
        agent.memory_bytes = memory_bytes;
        agent.instance = AtomicU64::new(instance);
        Ok(agent)
    }

    /// An agent with the given slots and without an instance id.
    pub(crate) fn with_slots(
        platform: P,
        config: Config<'m>,
        code: CodeMap,
        slots: &'m [Slot<'m>],
    ) -> Self {
        Self {
            config,
            code,
            callers: None,
            rings: None,
            live: None,
            #[cfg(feature = "trace")]
            trace: None,
            slots,
            heads: core::array::from_fn(|_| HeadCells::default()),
            memory_bytes: 0,
            recordings: Claimable::new(Recordings::default()),
            gaps: AtomicU32::new(0),
            instance: AtomicU64::new(0),
            platform,
        }
    }

    /// Gives the agent a memory block for a caller table, which clients send.
    /// [`caller_table_bytes`](crate::caller_table_bytes) returns the size for a number of rows.
    /// Without a block the agent accepts no caller table.
    #[must_use]
    pub fn with_caller_memory(mut self, block: &'m mut [MaybeUninit<u8>]) -> Self {
        self.callers = CallerTable::in_block(block, self.code.end());
        self
    }

    /// Gives the agent a memory block for its flight recorder, a ring per vCPU that drops its
    /// oldest records: the time of each sample, and the guest's events from [`mark`](Self::mark)
    /// and the calls beside it. See [`ring_bytes`](crate::ring_bytes) for the size. There are no
    /// rings without a block, if it is too small, or without the feature `ring`: then the block
    /// stays unused, event names are rejected, and other events are not kept.
    #[must_use]
    pub fn with_ring(mut self, block: &'m mut [MaybeUninit<u8>]) -> Self {
        if cfg!(feature = "ring") {
            self.rings = Rings::in_block(block, self.config.vcpus as usize);
        }
        self
    }

    /// Gives the agent a memory block for samples of allocations that are still held. Without a
    /// block, if it is too small, or without the feature `heap`, the agent does not record in mode
    /// [`LIVE`](unikprof_proto::code::mode::LIVE). [`live_bytes`](crate::live_bytes) returns the
    /// size for a number of samples; about three quarters of them have room before some are
    /// dropped. All vCPUs share it.
    #[must_use]
    pub fn with_live_memory(mut self, block: &'m mut [MaybeUninit<u8>]) -> Self {
        if cfg!(feature = "heap") {
            self.live = LiveTable::in_block(block);
        }
        self
    }

    /// Installs a caller table that was linked into the image, as `unikprof-client caller-table`
    /// makes it, for recordings that begin before a client has connected. Returns the number of its
    /// rows. The agent must have [memory](Self::with_caller_memory) for it. Nothing may be recorded
    /// meanwhile, and no client may send a table.
    ///
    /// # Errors
    /// [`LinkedTableError`].
    pub fn install_caller_table(&self, file: &[u8]) -> Result<u32, LinkedTableError> {
        let none = CallerTable::new(&[], &[], 0);
        self.callers.as_ref().unwrap_or(&none).install_file(file, self.config.mappings, &self.code)
    }
}

impl<'m, P: Platform + ?Sized> Agent<'m, P> {
    /// Notes that the guest was restored from a save or has migrated. Recordings continue and note
    /// the gap, the [instance id](Self::instance) is renewed, and encrypted sessions end before
    /// another byte is sent.
    ///
    /// Call it on one vCPU, when event channels and clocks work again and before anything is armed;
    /// then arm the [`deadline`](Self::deadline) of this vCPU. The platform kicks the other vCPUs.
    pub fn resume(&self) {
        // Done first: a service that runs concurrently ends its encrypted sessions as soon as it
        // sees the new number.
        self.gaps.fetch_add(1, Ordering::SeqCst);
        self.platform.resume();
        let previous = self.instance();
        let renewed = instance::draw(&self.platform, previous, self.slots.as_ptr().addr() as u64);
        self.instance.store(renewed, Ordering::Relaxed);
        self.note_everywhere(kind::RESUMED, 0, 0);
        let current = self.platform.vcpu();
        for (vcpu, slot) in self.slots() {
            if !slot.live().is_empty() && Some(vcpu) != current {
                self.platform.kick(vcpu);
            }
        }
    }

    /// The agent's id: random, never 0, and renewed by [`resume`](Self::resume). Numbers of
    /// recordings, epochs and stacks identify the same object only within one instance: a guest
    /// that reboots, or is restored twice from one save, counts them from the start again.
    pub fn instance(&self) -> u64 {
        self.instance.load(Ordering::Relaxed)
    }

    /// The configuration given at the start.
    pub fn config(&self) -> &Config<'m> {
        &self.config
    }

    /// The platform that the agent runs on.
    pub fn platform(&self) -> &P {
        &self.platform
    }

    #[inline]
    pub(crate) fn current(&self) -> Option<(u32, &'m Slot<'m>)> {
        let vcpu = self.platform.vcpu()?;
        Some((vcpu, self.slot(vcpu)?))
    }

    /// The slot of a vCPU.
    #[inline]
    pub(crate) fn slot(&self, vcpu: u32) -> Option<&'m Slot<'m>> {
        self.slots.get(vcpu as usize)
    }

    /// All slots, in the order of their vCPUs.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (u32, &'m Slot<'m>)> + use<'m, P> {
        (0..).zip(self.slots)
    }

    /// The caller table; `None` if there is no memory for one.
    pub(crate) fn callers(&self) -> Option<&CallerTable<'m>> {
        self.callers.as_ref()
    }

    /// The rings; `None` if there is no memory for them.
    #[inline]
    pub(crate) fn rings(&self) -> Option<&Rings<'m>> {
        // Constant without the feature, so the compiler removes all code that depends on it.
        if cfg!(feature = "ring") { self.rings.as_ref() } else { None }
    }

    /// The table of live allocations; `None` if there is no memory for one.
    #[inline]
    pub(crate) fn live(&self) -> Option<&LiveTable<'m>> {
        if cfg!(feature = "heap") { self.live.as_ref() } else { None }
    }

    /// Whether the guest has reported an allocation.
    #[inline(never)]
    pub(crate) fn sees_allocations(&self) -> bool {
        let mut slots = self.slots();
        cfg!(feature = "heap") && slots.any(|(_, slot)| slot.cells.points.allocated() != 0)
    }

    /// Stores the head of the recording that begins at this index.
    pub(crate) fn keep_head(&self, index: usize, head: &Head) {
        if let Some(cells) = self.heads.get(index) {
            cells.write(head);
        }
    }

    /// Removes the head of a recording that no longer exists.
    pub(crate) fn forget_head(&self, index: usize) {
        if let Some(cells) = self.heads.get(index) {
            cells.clear();
        }
    }

    /// The heads of the existing recordings, with their indices.
    pub(crate) fn heads(&self) -> impl Iterator<Item = (usize, Head)> {
        let heads = self.heads.iter().enumerate();
        heads.filter_map(|(index, cells)| Some((index, cells.read()?)))
    }

    /// The number of times that the guest was resumed.
    pub(crate) fn gaps(&self) -> u32 {
        self.gaps.load(Ordering::SeqCst)
    }

    #[inline]
    pub(crate) fn nodes_per_vcpu(&self) -> usize {
        let table = self.slots.first().map(|slot| slot.table);
        table.map_or(0, |table| SEGMENTS * table.segment_nodes() as usize)
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    pub(crate) fn code(&self) -> &CodeMap {
        &self.code
    }

    /// The vCPU's clocks at this moment, without counters. They are read again, a few times at most,
    /// if the reader lost its CPU in between.
    pub(crate) fn snapshot(&self, vcpu: u32) -> Snapshot {
        const TRIES: u32 = 4;
        const MOMENT_NS: u64 = 1_000_000;
        let points = self.slot(vcpu).map(|slot| &slot.cells.points);
        let points = points.filter(|_| cfg!(feature = "heap"));
        let delivery = self.slot(vcpu).map(|slot| slot.cells.delivery.estimate());
        let (delivery_cycles, deliveries_measured) = delivery.unwrap_or_default();
        let mut snapshot = Snapshot::default();
        for _ in 0..TRIES {
            snapshot = Snapshot {
                allocated_bytes: points.map_or(0, PointCells::allocated),
                freed_samples: points.map_or(0, PointCells::freed),
                at_ns: self.platform.now_ns(),
                cycles: self.platform.cycles(),
                running_ns: self.platform.running_ns(vcpu),
                blocked_ns: self.platform.blocked_ns(vcpu),
                runstate: self.platform.runstate(vcpu),
                delivery_cycles,
                deliveries_measured,
                ..Snapshot::default()
            };
            if self.platform.now_ns().saturating_sub(snapshot.at_ns) < MOMENT_NS {
                break;
            }
        }
        snapshot
    }

    /// Whether the platform knows the [times in each state](Platform::runstate) of any vCPU. Not
    /// for upcalls.
    pub(crate) fn tells_runstate(&self) -> bool {
        self.slots().any(|(vcpu, _)| self.platform.runstate(vcpu).is_some())
    }

    /// Marks this vCPU's work as the agent's own until the guard is dropped: samples of it are shown
    /// as the agent's. The service marks its own work; a platform marks what it does around a poll,
    /// if it interrupts the guest for it.
    #[must_use]
    pub fn own_work(&self) -> OwnWork<'m> {
        let cells = self.current().map(|(_, slot)| slot.cells);
        if let Some(cells) = cells {
            cells.enter_own_work();
        }
        OwnWork(cells)
    }

    /// Claims the recordings for the agent's only service; `None` if another service has claimed
    /// them.
    pub(crate) fn claim_recordings(&self) -> Option<Claim<'_, Recordings>> {
        self.recordings.claim()
    }
}

/// Checks a configuration and divides the memory for it. Not inlined, so that all platforms share
/// it.
#[inline(never)]
fn divide<'m>(
    config: &Config<'_>,
    memory: &'m mut [MaybeUninit<u8>],
) -> Result<(CodeMap, &'m [Slot<'m>]), StartError> {
    let vcpus = config.vcpus as usize;
    if vcpus == 0 {
        return Err(StartError::NoVcpu);
    }
    let recordings = config.recordings as usize;
    if !(1..=MAX_RECORDINGS).contains(&recordings) {
        return Err(StartError::Recordings(config.recordings));
    }
    let code = CodeMap::new(config.mappings).map_err(StartError::Mappings)?;
    let slots = memory::divide(memory, vcpus, recordings)
        .ok_or(StartError::Memory(memory::minimum_bytes(vcpus, recordings)))?;
    Ok((code, slots))
}

/// A guard: until it is dropped, samples of its vCPU are marked as the agent's own work. See
/// [`Agent::own_work`].
#[derive(Debug)]
pub struct OwnWork<'m>(Option<&'m SlotCells>);

impl Drop for OwnWork<'_> {
    fn drop(&mut self) {
        if let Some(cells) = self.0 {
            cells.leave_own_work();
        }
    }
}

impl core::fmt::Display for StartError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NoVcpu => f.write_str("there must be at least one vCPU"),
            Self::Recordings(asked) => write!(
                f,
                "there can be 1 to {MAX_RECORDINGS} recordings at a time; asked for {asked}"
            ),
            Self::Memory(least) => write!(f, "the memory block must have at least {least} bytes"),
            Self::Mappings(error) => write!(f, "{error}"),
        }
    }
}

impl core::error::Error for StartError {}
