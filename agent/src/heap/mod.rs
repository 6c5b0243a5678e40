//! The guest's allocations: the calls of its allocator, and an allocator for Rust guests that makes
//! them.
//!
//! All calls may be made in any context, at any time, also in an upcall that interrupts another of
//! them. None of them allocates, locks, waits or panics. A sampled allocation that finds its vCPU's
//! slot in use, because it interrupted the agent's own accounting, is counted as lost.

mod sampled;

use core::fmt::Write as _;

use unikprof_proto::ring::MAX_EVENT_NAME;

use crate::agent::Agent;
use crate::count::live::{Held, LiveEntry, LiveTable};
use crate::count::slot::Slot;
use crate::ground::platform::{Platform, Registers};
use crate::ring::EventNameError;

pub use sampled::Sampled;

impl<'m, P: Platform> Agent<'m, P> {
    /// Reports that the guest's allocator has returned `address` for `size` bytes. Nothing is
    /// counted for NULL or on a thread that is no vCPU.
    ///
    /// Call it in the allocator, or in a function that calls it: the stack of a sample begins
    /// there.
    #[inline(always)]
    pub fn on_alloc(&self, address: *const u8, size: usize) {
        self.on_alloc_from(address, size, Registers::here);
    }

    /// The same with the registers of the allocator's caller.
    #[inline(always)]
    pub fn on_alloc_from(
        &self,
        address: *const u8,
        size: usize,
        registers: impl FnOnce() -> Registers,
    ) {
        self.count_allocation(address.addr() as u64, size as u64, registers);
    }

    /// Reports an allocation that another sampler has drawn, such as that of a language's runtime,
    /// which draws one byte in `interval` at random. Each recording draws again for its own mean.
    /// That must be at least eight times as great: otherwise the recording lacks allocations that
    /// it would always have kept. Nothing is counted for a key, a size or an interval of 0.
    ///
    /// `key` stands for the address, which the runtime may change, until
    /// [`on_free`](Self::on_free). No allocation may have it as its address: an odd number is the
    /// address of none that an allocator returns.
    pub fn on_sampled_alloc(&self, key: u64, size: u64, interval: u64, registers: &Registers) {
        self.count_drawn((key, size), interval, registers);
    }

    /// Reports that the guest is about to free `address`, before another vCPU can allocate it.
    /// Nothing happens for NULL, for an address that was not sampled, or for one that was never
    /// allocated.
    #[inline(always)]
    pub fn on_free(&self, address: *const u8) {
        if self.may_be_live(address) {
            self.free_live(address);
        }
    }

    /// Reports that `old` was reallocated to `new` with `size` bytes: it is freed, and `new` is
    /// allocated. If `new` is NULL, a `size` of 0 means that `old` was freed, and any other size
    /// that nothing has changed. On several vCPUs call it before another one can allocate `old`.
    #[inline(always)]
    pub fn on_realloc(&self, old: *const u8, new: *const u8, size: usize) {
        self.on_realloc_from(old, new, size, Registers::here);
    }

    /// The same with the registers of the allocator's caller.
    #[inline(always)]
    pub fn on_realloc_from(
        &self,
        old: *const u8,
        new: *const u8,
        size: usize,
        registers: impl FnOnce() -> Registers,
    ) {
        if !new.is_null() || size == 0 {
            self.on_free(old);
        }
        self.on_alloc_from(new, size, registers);
    }

    /// Reports the state of one of the guest's arenas, such as a heap or a pool: the bytes in use
    /// and its size. They become the counters `NAME.used` and `NAME.size` in the ring.
    ///
    /// # Errors
    /// [`EventNameError`], if the agent has no ring, or if the name is too long or there are too
    /// many.
    pub fn arena(&self, name: &str, used: u64, size: u64) -> Result<(), EventNameError> {
        if name.is_empty() {
            return Err(EventNameError::Empty);
        }
        for (suffix, value) in [("used", used), ("size", size)] {
            let mut text = heapless::String::<MAX_EVENT_NAME>::new();
            if write!(text, "{name}.{suffix}").is_err() {
                return Err(EventNameError::TooLong(name.len() + 1 + suffix.len()));
            }
            self.counter(self.event_name(&text)?, value.cast_signed());
        }
        Ok(())
    }

    /// Reports allocations of this vCPU that were not reported one by one, and returns the bytes
    /// that it may allocate before the agent must look: a caller that counts them itself, and
    /// reports them here, need not report each allocation. `bytes` are at most what was returned
    /// last. Returns 0 on a thread that is no vCPU.
    pub fn spend(&self, bytes: u64) -> u64 {
        let vcpu = self.platform().vcpu();
        vcpu.and_then(|vcpu| self.slot(vcpu)).map_or(0, |slot| {
            let points = &slot.cells.points;
            points.pass(bytes.min(points.left()));
            points.left()
        })
    }

    /// False for nearly all addresses without a live sample.
    #[inline(always)]
    fn may_be_live(&self, address: *const u8) -> bool {
        let live = self.live();
        live.is_some_and(|live| live.used() != 0 && live.may_have(address.addr() as u64))
    }

    #[cold]
    #[inline(never)]
    fn free_live(&self, address: *const u8) {
        if let Some(live) = self.live() {
            free(live, self.slots, address.addr() as u64, self.platform().now_ns());
        }
    }

    /// Removes a live sample, so that its address may be used again. A recording that has ended
    /// keeps it.
    #[cold]
    fn take_live(&self, address: *const u8) -> Option<Taken> {
        let now_ns = self.platform().now_ns();
        let mut youngest: Option<Taken> = None;
        // Entries of several recordings may have the address: each has a stack of its own.
        loop {
            let (mut stack, mut kept) = (0, 0);
            let found = self.live()?.free(address.addr() as u64, &mut |entry| {
                // While it is in the table it has its stack.
                stack = self.number_of_stack(entry);
                kept = ended(self.slots, entry.held, now_ns);
                entry.held.only(kept)
            });
            let Some(entry) = found else {
                return youngest;
            };
            let held = entry.held.only(entry.held.recordings() & !kept);
            // Older ones are of a recording that was removed: see `free`.
            if youngest.is_none_or(|it| it.entry.born_ns <= entry.born_ns) {
                let entry = LiveEntry { held, ..entry };
                youngest = Some(Taken { entry, stack });
            }
        }
    }

    /// The [number](LiveEntry::stack) of a live sample's stack.
    fn number_of_stack(&self, entry: &LiveEntry) -> u64 {
        let slot = self.slot(entry.held.vcpu());
        slot.map_or(0, |slot| entry.stack(&slot.table))
    }

    /// Returns a live sample to the table; `false` if there is no room for it, or if its stack has
    /// been given up since.
    #[cold]
    fn put_back(&self, taken: &Taken) -> bool {
        let &Taken { ref entry, stack } = taken;
        let has_stack = || stack != 0 && self.number_of_stack(entry) == stack;
        self.live().is_some_and(|live| live.put_back(entry, has_stack))
    }
}

// What follows is compiled once, for size.

/// Removes the live samples at an address. A recording that has ended keeps its own. Those of a
/// removed recording seem to be of the next one with its index until they are removed.
#[inline(never)]
fn free(live: &LiveTable<'_>, slots: &[Slot<'_>], address: u64, now_ns: u64) {
    let mut by_those_that_run =
        |entry: &LiveEntry| entry.held.only(ended(slots, entry.held, now_ns));
    while let Some(freed) = live.free(address, &mut by_those_that_run) {
        count_freed(slots, freed.held);
    }
}

/// The ended ones of the recordings that a live sample is held for.
fn ended(slots: &[Slot<'_>], held: Held, now_ns: u64) -> u32 {
    let Some(slot) = slots.get(held.vcpu() as usize) else {
        return 0;
    };
    let (live, held) = (slot.live(), held.recordings());
    slot.each(live.with(live.bits() & held))
        .filter(|(_, recording)| now_ns < recording.until_ns())
        .fold(held, |kept, (index, _)| kept & !(1 << index))
}

fn count_freed(slots: &[Slot<'_>], freed: Held) {
    if let Some(slot) = slots.get(freed.vcpu() as usize) {
        slot.cells.points.count_freed();
    }
}

/// A live sample that was removed.
#[derive(Clone, Copy)]
struct Taken {
    entry: LiveEntry,
    /// The number of its stack, 0 if it is being given up.
    stack: u64,
}
