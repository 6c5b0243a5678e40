//! From a file's frames about rings to a timeline.

use std::collections::BTreeMap;

use unikprof_proto::frame::{Frame, Message as _};
use unikprof_proto::message::{RingEnd, RingHead, RingRun};
use unikprof_proto::ring::{self, Record, Wait, kind};

use super::error::Damage;
use crate::profile::{Frame as ProfileFrame, NodeId, ProfileBuilder, SpecialFrame, TooManyStacks};
use crate::timeline::{Ring, RingOrder, RingOrderError, RingPart, Timeline, WallClock, Window};

/// What was read of the rings so far.
#[derive(Default)]
pub(super) struct Rings {
    order: RingOrder,
    names: BTreeMap<u32, String>,
    refused_names: u64,
    /// By vCPU.
    rings: BTreeMap<u32, Parts>,
    /// The vCPU whose ring began last.
    current: u32,
    /// By vCPU, the position up to which another file holds the records.
    seen: BTreeMap<u32, u64>,
}

/// The parts of one vCPU's ring, each fetched where the one before ended.
struct Parts {
    ring: Ring,
    /// Its records as they came: each run's first position, the one after its last, and its
    /// records.
    runs: Vec<(u64, u64, Vec<Record>)>,
    /// From when on the ring held all records, by the part that goes back furthest.
    held_since_ns: Option<u64>,
    /// Records before this position are left out.
    from: u64,
}

impl Rings {
    /// Takes a frame that [`RingOrder::takes`], except [`Nodes`](unikprof_proto::message::Nodes).
    pub(super) fn accept(&mut self, frame: &Frame<'_>) -> Result<(), Damage> {
        match self.order.accept(frame)? {
            RingPart::Name(name) => {
                self.names.insert(name.id, name.name.to_owned());
            }
            RingPart::NamesEnd(end) => self.refused_names = end.refused,
            RingPart::Head(head) => {
                self.current = head.vcpu;
                let from = self.seen.get(&head.vcpu).copied().unwrap_or(0);
                let parts = self.rings.entry(head.vcpu);
                let parts = parts.or_insert_with(|| Parts::of(&head, from));
                parts.begin(&head);
            }
            RingPart::Run(run) => self.current()?.run(&run)?,
            RingPart::End(end) => self.current()?.end(&end),
            RingPart::Nodes(_) | RingPart::StacksEnd(_) => {}
        }
        Ok(())
    }

    /// Leaves out the records before these positions, by vCPU.
    pub(super) fn skip(&mut self, seen: &BTreeMap<u32, u64>) {
        self.seen.clone_from(seen);
    }

    /// Whether a vCPU's ring is cut.
    pub(super) fn is_open(&self) -> bool {
        self.order.is_open()
    }

    /// The numbers of the stacks that the records name, rising, by vCPU.
    pub(super) fn named(&self) -> BTreeMap<u32, Vec<u64>> {
        let named = |parts: &Parts| {
            let records = parts.runs.iter().flat_map(|(.., records)| records);
            let names = records.filter(|record| matches!(record.kind, kind::SAMPLE | kind::WAIT));
            let mut named: Vec<u64> = names.map(|record| record.first).collect();
            named.sort_unstable();
            named.dedup();
            named.retain(|number| *number != 0);
            named
        };
        let all = self.rings.iter();
        all.map(|(vcpu, parts)| (*vcpu, named(parts))).collect()
    }

    /// Ends the reading, also of a ring that is cut: the timeline with these stacks, dated by
    /// `clock` where the guest tells no date; `None` if there is no ring.
    pub(super) fn finish(
        self,
        clock: &WallClock,
        mut stacks: BTreeMap<u32, Vec<(u64, NodeId)>>,
        builder: &mut ProfileBuilder,
    ) -> Result<Option<Timeline>, TooManyStacks> {
        let mut rings = Vec::new();
        for (vcpu, parts) in self.rings {
            let mut ring = parts.finish();
            ring.read_at_unix_ns = ring.read_at_unix_ns.or_else(|| clock.unix_ns(ring.read_at_ns));
            ring.stacks = stacks.remove(&vcpu).unwrap_or_default();
            let mut special = |special| builder.step(NodeId::ROOT, ProfileFrame::Special(special));
            let (mut has_aged, mut has_unknown) = (false, false);
            for record in &ring.records {
                match (record.kind, record.first) {
                    (kind::SAMPLE, 0) => has_aged = true,
                    (kind::WAIT, 0) => {
                        let wait = Wait::from_number(record.third);
                        has_aged |= wait.ring_bits != 0 && !wait.is_overflow;
                    }
                    (kind::SAMPLE | kind::WAIT, number) => {
                        let known = ring.stacks.binary_search_by_key(&number, |(known, _)| *known);
                        has_unknown |= known.is_err();
                    }
                    _ => {}
                }
            }
            if has_aged {
                ring.aged_stack = special(SpecialFrame::Aged)?;
            }
            if has_unknown {
                ring.unknown_stack = special(SpecialFrame::UnknownCode)?;
            }
            rings.push(ring);
        }
        let is_there = !rings.is_empty();
        Ok(is_there.then(|| Timeline::new(rings, self.names, self.refused_names)))
    }

    fn current(&mut self) -> Result<&mut Parts, Damage> {
        // The order accepts no part of a ring before its head.
        self.rings.get_mut(&self.current).ok_or(Damage::OutOfPlace {
            expected: "the header of a vCPU's ring",
            found: RingRun::TYPE,
        })
    }
}

impl Parts {
    fn of(head: &RingHead, from: u64) -> Parts {
        Parts {
            ring: Ring { vcpu: head.vcpu, evicted: head.oldest, ..Ring::default() },
            runs: Vec::new(),
            held_since_ns: None,
            from,
        }
    }

    fn begin(&mut self, head: &RingHead) {
        self.ring.capacity = head.capacity;
        self.ring.read_at_ns = self.ring.read_at_ns.max(head.now_ns);
        self.ring.read_at_unix_ns = head.wall_clock_ns.or(self.ring.read_at_unix_ns);
    }

    fn run(&mut self, run: &RingRun<'_>) -> Result<(), Damage> {
        let mut records = Vec::new();
        let decoded = ring::decode(run.base_ns, run.count, run.payload, |record| {
            records.push(record);
        });
        decoded.map_err(RingOrderError::from)?;
        let after = run.first.saturating_add(run.count.into());
        let seen = self.from.saturating_sub(run.first);
        let seen = usize::try_from(seen).unwrap_or(usize::MAX);
        records.drain(..seen.min(records.len()));
        if !records.is_empty() {
            self.runs.push((run.first.max(self.from), after, records));
        }
        Ok(())
    }

    fn end(&mut self, end: &RingEnd) {
        self.ring.given_up = end.lost;
        let since_ns = self.held_since_ns.get_or_insert(end.whole_since_ns);
        *since_ns = end.whole_since_ns.min(*since_ns);
    }

    /// The ring with its records in their order.
    fn finish(self) -> Ring {
        let Parts { mut ring, mut runs, held_since_ns, from } = self;
        runs.sort_unstable_by_key(|(first, ..)| *first);
        let mut next = 0;
        for (first, after, records) in &mut runs {
            let repeated = next.clamp(*first, *after);
            let count = usize::try_from(repeated - *first).unwrap_or(usize::MAX);
            records.drain(..count.min(records.len()));
            *first = repeated;
            next = next.max(*after);
        }
        runs.retain(|(.., records)| !records.is_empty());
        for ((_, after, before), (first, _, next)) in runs.iter().zip(runs.iter().skip(1)) {
            let evicted = first.saturating_sub(*after);
            let ends = before.last().zip(next.first());
            if let Some((last, first)) = ends.filter(|_| evicted > 0) {
                ring.gaps.push(Window { from_ns: last.at_ns, to_ns: first.at_ns.max(last.at_ns) });
            }
            ring.overwritten = ring.overwritten.saturating_add(evicted);
        }
        let ends = runs.first().zip(runs.last());
        ring.positions = match ends {
            Some(((first, ..), (_, after, _))) => *first..*after,
            None => from..from,
        };
        ring.records = runs.into_iter().flat_map(|(.., records)| records).collect();
        let first_ns = ring.records.first().map_or(0, |first| first.at_ns);
        // In a file that is cut, the end may be missing.
        ring.held_since_ns = match held_since_ns {
            Some(since_ns) => since_ns.min(ring.read_at_ns),
            None => first_ns,
        };
        ring
    }
}
