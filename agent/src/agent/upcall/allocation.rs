//! Allocations: which of them are sampled, and for which recordings.
//!
//! Why: docs/design/decisions.md#a-chunk-of-bytes-between-two-looks,
//! docs/design/decisions.md#the-size-is-the-leaf.
#![cfg(feature = "heap")]

use unikprof_proto::code::{frame_code, mode};
use unikprof_proto::message::Counter;
use unikprof_proto::ring::outcome;

use super::{INTERRUPTED_CYCLES, charge_cycles, count_lost};
use crate::agent::Agent;
use crate::count::live::{Held, LiveEntry, LiveTable};
use crate::count::points::Point;
use crate::count::recording::Sample;
use crate::count::slot::{Live, Owned, Served, Slot};
use crate::ground::platform::{Platform, Registers};
use crate::stack::path::Path;

/// An allocation that is sampled.
struct Sampled {
    vcpu: u32,
    address: u64,
    size: u64,
    /// The least mean interval of the recordings.
    least: u64,
}

impl<'m, P: Platform> Agent<'m, P> {
    /// Counts an allocation, and samples it if its turn has come. `registers` are those of the
    /// allocator's caller.
    #[inline(always)]
    pub(crate) fn count_allocation(
        &self,
        address: u64,
        size: u64,
        registers: impl FnOnce() -> Registers,
    ) {
        if address != 0
            && let Some((vcpu, slot)) = self.current()
            && !slot.cells.points.pass(size)
        {
            self.visit(vcpu, slot, (address, size), 0, &registers());
        }
    }

    /// Counts an allocation that another sampler has drawn at the mean `interval`.
    pub(crate) fn count_drawn(
        &self,
        (address, size): (u64, u64),
        interval: u64,
        registers: &Registers,
    ) {
        if address != 0
            && size != 0
            && interval != 0
            && let Some((vcpu, slot)) = self.current()
        {
            self.visit(vcpu, slot, (address, size), interval, registers);
        }
    }

    /// Counts an allocation that may be sampled. `drawn` is the mean interval at which another
    /// sampler has drawn it; 0 if none has.
    #[cold]
    #[inline(never)]
    fn visit(
        &self,
        vcpu: u32,
        slot: &'m Slot<'m>,
        (address, size): (u64, u64),
        drawn: u64,
        registers: &Registers,
    ) {
        let (live, points) = (slot.live(), &slot.cells.points);
        let (least, point) = if drawn == 0 {
            let intervals = slot.each(live).filter_map(|(_, recording)| recording.interval_bytes());
            let least = intervals.min().unwrap_or(0);
            (least, points.visit(size, least))
        } else {
            (drawn, Some(points.drawn_elsewhere(size, drawn)))
        };
        if let Some(point) = point {
            let sampled = Sampled { vcpu, address, size, least };
            self.sample_allocation(slot, live, &sampled, point, registers);
        }
    }

    fn sample_allocation(
        &self,
        slot: &'m Slot<'m>,
        live: Live,
        sampled: &Sampled,
        point: Point,
        registers: &Registers,
    ) {
        let vcpu = sampled.vcpu;
        let cycles = self.platform.cycles();
        let now_ns = self.platform.now_ns();
        let due = due(slot, live, sampled, point, now_ns);
        if due.is_empty() {
            return;
        }
        match slot.take_for_accounting() {
            Some(owned) => {
                if let Some(served) = owned.served(due) {
                    self.keep_allocation(&owned, slot, sampled, served, now_ns, registers);
                }
            }
            None => {
                let due = slot.left(due);
                count_lost(slot, due);
                self.write_no_sample(vcpu, slot, now_ns, outcome::LOST, due.bits());
            }
        }
        self.count_deferred(vcpu, slot);
        let spent = self.platform.cycles().wrapping_sub(cycles);
        charge_cycles(slot, slot.left(due), spent.min(INTERRUPTED_CYCLES));
    }

    /// Walks the stack of a sampled allocation and keeps it for each recording.
    fn keep_allocation(
        &self,
        owned: &Owned<'m>,
        slot: &'m Slot<'m>,
        sampled: &Sampled,
        served: Served,
        now_ns: u64,
        registers: &Registers,
    ) {
        let mut path = owned.path_cells().begin();
        let (counting, holding) = divide(slot, served.recordings(), sampled.size, &mut path);
        let asked = slot.needs_of_several(slot.live(), false).asked;
        let walked = self.walk(registers, slot.cells, asked, &mut path);
        let sample = Sample { walked, late: false };
        if counting != 0 {
            let only = served.only(counting);
            let recorded = owned.record_cold(&path, sample, only);
            self.write_sample(sampled.vcpu, slot, now_ns, recorded, only.recordings(), false);
        }
        if holding != 0 {
            hold(slot, self.live(), sampled, (&path, sample), served.only(holding), now_ns);
        }
    }
}

// What follows does not depend on the platform: it is compiled once, for size.

/// The recordings that sample an allocation.
#[inline(never)]
fn due(slot: &Slot<'_>, live: Live, sampled: &Sampled, point: Point, now_ns: u64) -> Live {
    let &Sampled { size, least, .. } = sampled;
    let points = &slot.cells.points;
    let mut due = 0;
    for (index, recording) in slot.each(live) {
        let interval = recording.interval_bytes();
        let is_kept = |interval| points.is_kept(point, size, least, interval);
        if now_ns < recording.until_ns() && interval.is_some_and(is_kept) {
            due |= 1 << index;
        }
    }
    live.with(due)
}

/// The recordings that count an allocation, and those that hold it, a bit for each. If there are
/// any of the first, the size becomes the leaf of the path: exact for a recording that keeps all
/// allocations of this size, or that would keep all of the size it is rounded to; otherwise
/// rounded.
#[inline(never)]
fn divide(slot: &Slot<'_>, recordings: Live, size: u64, path: &mut Path<'_>) -> (u32, u32) {
    let (mut counting, mut holding, mut least) = (0, 0, u64::MAX);
    for (index, recording) in slot.each(recordings) {
        if recording.mode() == mode::ALLOC {
            counting |= 1 << index;
            least = least.min(recording.interval_bytes().unwrap_or(u64::MAX));
        } else {
            holding |= 1 << index;
        }
    }
    if counting != 0 {
        path.push(frame_code::size(slot.cells.points.rounded_below(size, least)));
    }
    (counting, holding)
}

/// Keeps a sampled allocation in the table of live ones.
#[inline(never)]
fn hold(
    slot: &Slot<'_>,
    live: Option<&LiveTable<'_>>,
    sampled: &Sampled,
    (path, sample): (&Path<'_>, Sample),
    served: Served,
    now_ns: u64,
) {
    let recordings = served.recordings();
    let place = slot.table.keep_outside(0, path).ok();
    let is_held = place.zip(live).is_some_and(|(place, live)| {
        live.insert(&LiveEntry {
            address: sampled.address,
            size: sampled.size,
            born_ns: now_ns,
            held: Held::new(place, sampled.vcpu, recordings.bits()),
        })
    });
    for (_, recording) in slot.each(recordings) {
        if is_held {
            recording.count(sample);
        } else {
            recording.counters.add_owned(Counter::Overflow, 1);
        }
    }
}
