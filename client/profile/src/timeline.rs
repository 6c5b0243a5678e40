//! Timelines: the timed records of a guest's rings.
//!
//! Counts have no times. If an agent has rings, a recording file contains, besides the counts, the
//! records still in the rings: each tick and its stack, the guest's own marks, spans and counters,
//! blocked time and stolen time. A [`Timeline`] contains all of these and answers
//!
//! - which [recordings](Timeline::recordings) the samples belong to,
//! - what a [`Window`] of time held, as a [profile](Timeline::profile) like any other,
//! - how the [seconds](Timeline::slices) differ,
//! - how long the guest's [spans](Timeline::spans) took and which values its
//!   [counters](Timeline::counters) had.
//!
//! Times are on the guest's monotonic clock, in ns; [`WallClock`] converts them to dates if the
//! guest knows the date. A ring drops its oldest records: [`Timeline::held_since`] gives the time
//! from which the records are complete.

mod clock;
mod count;
mod counters;
mod event;
mod join;
mod moment;
mod order;
mod profile;
mod recording_spans;
mod slices;
mod spans;
mod sparkline;
mod ticks;
mod times;
mod waits;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use unikprof_proto::ring::{Record, kind};

pub use clock::WallClock;
pub use count::{any_contains, union};
pub use counters::CounterSeries;
pub use event::{Event, What};
pub(crate) use join::{Join, JoinedRecording};
pub use moment::{Extent, Moment, MomentError};
pub use order::{RingOrder, RingOrderError, RingPart};
pub use recording_spans::RecordingSpan;
pub use slices::{Slice, slice_windows, step_ns};
pub use spans::{Nesting, SpanFilter, SpanOf, SpanTable, TraceIds};
pub use sparkline::sparkline;
pub use ticks::{Outcome, Tick};

use crate::profile::{NodeId, RecordingInfo};
use spans::Pairs;
use times::Times;
pub use waits::OpenWaits;

/// The contents of a guest's rings.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Timeline {
    /// By the vCPUs' numbers.
    rings: Vec<Ring>,
    names: BTreeMap<u32, String>,
    /// Names that the agent refused: too long, empty, or too many.
    refused_names: u64,
    /// Recordings that are known otherwise than by the ring, with their settings.
    known: Vec<(RecordingSpan, RecordingInfo)>,
    /// Whether it was joined from those of several files. Then `known` are their recordings, which
    /// share a ring bit.
    is_joined: bool,
}

/// The contents of one vCPU's ring.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ring {
    /// Whose ring it is.
    pub vcpu: u32,
    /// How many records the ring has room for.
    pub capacity: u64,
    /// How many records were dropped for newer ones since the agent started.
    pub evicted: u64,
    /// How many were evicted before they could be fetched: while the ring was read, or between two
    /// fetches.
    pub overwritten: u64,
    /// Where these lie: from the record before to the record after.
    pub gaps: Vec<Window>,
    /// The times between files that were merged which none of them covers.
    pub uncovered: Vec<Window>,
    /// How many records were left out because a merged timeline keeps the newest only.
    pub left_out: u64,
    /// How many were given up while they were written, since the agent started.
    pub given_up: u64,
    /// When the ring was read.
    pub read_at_ns: u64,
    /// The date at that moment, in ns since 1970 (UTC), if it is known.
    pub read_at_unix_ns: Option<u64>,
    /// From when on no record is missing, but for `gaps` and `uncovered`.
    pub held_since_ns: u64,
    /// In the order of their times.
    pub records: Vec<Record>,
    /// The positions of these, from the first to the one after the last.
    pub positions: Range<u64>,
    /// The vCPU's time so far at moments recorded outside the ring: running, runnable, blocked and
    /// offline, in ns.
    pub told: Vec<(u64, [u64; 4])>,
    /// The stacks that records name, by their numbers.
    pub stacks: Vec<(u64, NodeId)>,
    /// What stands for a stack that is not known.
    pub unknown_stack: NodeId,
    /// What stands for a stack that the agent gave up before its record was fetched.
    pub aged_stack: NodeId,
}

/// A range of time, excluding its end, on the guest's monotonic clock in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The first moment.
    pub from_ns: u64,
    /// The moment after the last.
    pub to_ns: u64,
}

impl Window {
    /// All time.
    pub const ALL: Window = Window::new(0, u64::MAX);

    /// From a moment to another.
    pub const fn new(from_ns: u64, to_ns: u64) -> Window {
        Window { from_ns, to_ns }
    }

    /// Whether it holds a moment.
    pub fn contains(&self, at_ns: u64) -> bool {
        (self.from_ns..self.to_ns).contains(&at_ns)
    }

    /// How long it is, in ns.
    pub fn length_ns(&self) -> u64 {
        self.to_ns.saturating_sub(self.from_ns)
    }

    /// From the beginning of the first to the end of the last of the two.
    #[must_use]
    pub(crate) fn around(self, other: Window) -> Window {
        Window::new(self.from_ns.min(other.from_ns), self.to_ns.max(other.to_ns))
    }

    /// The intersection of the two; empty if there is none.
    #[must_use]
    pub fn and(&self, other: Window) -> Window {
        let from_ns = self.from_ns.max(other.from_ns);
        Window::new(from_ns, self.to_ns.min(other.to_ns).max(from_ns))
    }
}

impl Ring {
    pub(crate) fn within(&self, window: Window) -> &[Record] {
        &self.records[self.places(window)]
    }

    /// What is recorded of the vCPU's time so far: moments, and its running, runnable, blocked and
    /// offline time until then; and whether the platform measures more than running time.
    pub fn times_told(&self) -> (Vec<(u64, [u64; 4])>, bool) {
        Times::of(self).into_parts()
    }

    /// The parts of a window whose records the ring has, in order.
    pub fn covered(&self, window: Window) -> Vec<Window> {
        let mut parts = Vec::new();
        let mut from_ns = window.from_ns.max(self.held_since_ns);
        for gap in self.all_gaps() {
            parts.push(Window::new(from_ns, gap.from_ns.min(window.to_ns)));
            from_ns = from_ns.max(gap.to_ns);
        }
        parts.push(Window::new(from_ns, window.to_ns));
        parts.retain(|part| part.length_ns() > 0);
        parts
    }

    /// The times from which records are missing, between the first and the last record: evicted
    /// before they were fetched, or in none of the files; in order and apart.
    pub fn all_gaps(&self) -> Vec<Window> {
        union(self.gaps.iter().chain(&self.uncovered).copied().collect())
    }

    fn places(&self, window: Window) -> Range<usize> {
        let from = self.records.partition_point(|record| record.at_ns < window.from_ns);
        let to = self.records.partition_point(|record| record.at_ns < window.to_ns);
        from..to.max(from)
    }

    /// The stack with the number that a sample names.
    pub(crate) fn stack(&self, number: u64) -> NodeId {
        if number == 0 {
            return self.aged_stack;
        }
        let known = self.stacks.binary_search_by_key(&number, |(known, _)| *known);
        known.map_or(self.unknown_stack, |at| self.stacks[at].1)
    }
}

impl Timeline {
    /// A timeline of these rings, with the names of their events. The records of each are brought
    /// into the order of their times.
    pub fn new(mut rings: Vec<Ring>, names: BTreeMap<u32, String>, refused_names: u64) -> Timeline {
        rings.sort_by_key(|ring| ring.vcpu);
        for ring in &mut rings {
            ring.records.sort_by_key(|record| record.at_ns);
        }
        Timeline { rings, names, refused_names, known: Vec::new(), is_joined: false }
    }

    /// Says what is known of a recording otherwise.
    pub(crate) fn know(&mut self, recording: RecordingSpan, info: RecordingInfo) {
        self.known.push((recording, info));
    }

    /// Adds a vCPU's time so far at a moment recorded outside its ring: running, runnable, blocked
    /// and offline, in ns.
    pub(crate) fn know_times(&mut self, vcpu: u32, at_ns: u64, sums: [u64; 4]) {
        let ring = self.rings.iter_mut().find(|ring| ring.vcpu == vcpu);
        if let Some(ring) = ring {
            ring.told.push((at_ns, sums));
        }
    }

    /// Leaves all vCPUs out but these.
    pub(crate) fn keep_vcpus(&mut self, wanted: &BTreeSet<u32>) {
        self.rings.retain(|ring| wanted.contains(&ring.vcpu));
    }

    /// The rings, by the vCPUs' numbers.
    pub fn rings(&self) -> &[Ring] {
        &self.rings
    }

    /// The name of an event's name id.
    pub(crate) fn name(&self, id: u64) -> Option<&str> {
        let id = u32::try_from(id).ok()?;
        self.names.get(&id).map(String::as_str)
    }

    /// The ids that have this name: one, but in a hostile file.
    pub(crate) fn name_ids(&self, name: &str) -> Vec<u64> {
        let same = self.names.iter().filter(|(_, known)| *known == name);
        same.map(|(id, _)| u64::from(*id)).collect()
    }

    /// How many names of events the agent refused since it started: too long, empty, or too many.
    pub fn refused_names(&self) -> u64 {
        self.refused_names
    }

    /// The time of day over the guest's monotonic clock.
    pub fn wall_clock(&self) -> WallClock {
        let heads = self.rings.iter().filter_map(|ring| {
            let unix_ns = ring.read_at_unix_ns?;
            Some((ring.read_at_ns, unix_ns))
        });
        let records = self.all_records(Window::ALL);
        let records = records.filter(|(_, record)| record.kind == kind::CLOCK);
        WallClock::new(heads.chain(records.map(|(_, r)| (r.at_ns, r.first))))
    }

    /// Whether no part of a window lies between files that were merged.
    pub fn covers(&self, window: Window) -> bool {
        self.uncovered().iter().all(|gap| gap.and(window).length_ns() == 0)
    }

    /// The times between files that were merged which none of them covers.
    pub fn uncovered(&self) -> Vec<Window> {
        union(self.rings.iter().flat_map(|ring| &ring.uncovered).copied().collect())
    }

    /// From when on no record of any vCPU is missing, but for those that were evicted before they
    /// could be fetched.
    pub fn held_since(&self) -> u64 {
        let since = self.rings.iter().map(|ring| ring.held_since_ns);
        since.max().unwrap_or(0)
    }

    /// Up to when the rings tell how the time of every vCPU went; `None` if one of them does not.
    pub fn times_told_until(&self) -> Option<u64> {
        let told = self.rings.iter().map(|ring| Times::of(ring).last_ns());
        told.collect::<Option<Vec<u64>>>()?.into_iter().min()
    }

    /// Up to when the rings of all vCPUs were read; `None` if there is no ring.
    pub fn read_until(&self) -> Option<u64> {
        self.rings.iter().map(|ring| ring.read_at_ns).min()
    }

    /// From the first record to the time at which the rings were read; `None` if there is no
    /// record.
    pub fn extent(&self) -> Option<Window> {
        let first = self.rings.iter().filter_map(|ring| ring.records.first());
        let last = self.rings.iter().filter_map(|ring| ring.records.last());
        let from_ns = first.map(|record| record.at_ns).min()?;
        let to_ns = last.map(|record| record.at_ns.saturating_add(1)).max()?;
        let read = self.rings.iter().map(|ring| ring.read_at_ns).max();
        // A hostile file may hold any times.
        Some(Window::new(from_ns, read.map_or(to_ns, |read| read.max(to_ns))))
    }

    /// The records of all vCPUs within a window: vCPU by vCPU.
    pub(crate) fn all_records(&self, window: Window) -> impl Iterator<Item = (u32, &Record)> {
        self.rings.iter().flat_map(move |ring| {
            let records = ring.within(window).iter();
            records.map(move |record| (ring.vcpu, record))
        })
    }

    /// The events within a window, except ticks and times, in order.
    pub fn events(&self, window: Window) -> Vec<Event> {
        self.events_after(window, &mut OpenWaits::default())
    }

    /// The same, where waits may have begun in an earlier timeline.
    pub fn events_after(&self, window: Window, waits: &mut OpenWaits) -> Vec<Event> {
        let pairs = Pairs::of(self);
        let mut events: Vec<Event> = self
            .all_records(window)
            .filter_map(|(vcpu, record)| match record.kind {
                kind::WAIT => waits.wake(vcpu, record),
                _ => Event::of(vcpu, record, &pairs, |id| self.name(id)),
            })
            .collect();
        events.sort_by_key(|event| event.at_ns);
        // What concerns the whole guest is in every vCPU's ring, and each recording that counts a
        // wait has a record of it.
        events.dedup_by(|next, kept| {
            if next.at_ns != kept.at_ns {
                return false;
            }
            match (&next.what, &mut kept.what) {
                // A recording that began in the wait has counted only a part of it.
                (What::Wake { length_ns: one }, What::Wake { length_ns: other })
                    if next.vcpu == kept.vcpu =>
                {
                    *other = (*one).max(*other);
                    true
                }
                (one, other) => one == other && one.is_of_the_guest(),
            }
        });
        events
    }
}
