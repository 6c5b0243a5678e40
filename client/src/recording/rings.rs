//! From a file's frames about rings to a timeline.

use std::collections::BTreeMap;

use unikprof_proto::frame::{Frame, Message as _};
use unikprof_proto::message::{Nodes, RingHead, RingRun};
use unikprof_proto::nodes;
use unikprof_proto::ring::{self, Record, kind};

use super::error::Damage;
use super::ring_stacks::RingStacks;
use crate::agent_info::AgentInfo;
use crate::profile::{Frame as ProfileFrame, NodeId, ProfileBuilder, SpecialFrame};
use crate::timeline::{Ring, RingOrder, RingOrderError, RingPart, Timeline};

/// What was read of the rings so far.
#[derive(Default)]
pub(super) struct Rings {
    order: RingOrder,
    names: BTreeMap<u32, String>,
    refused_names: u64,
    /// By vCPU.
    rings: BTreeMap<u32, Ring>,
    current: Option<Current>,
    /// vCPUs whose stacks were cleared while they were told.
    cleared: Vec<u32>,
}

/// The vCPU that is being read.
struct Current {
    ring: Ring,
    /// Its records as they came: each run's first position, the one after its last, and its records.
    runs: Vec<(u64, u64, Vec<Record>)>,
    stacks: RingStacks,
    /// How often the stacks had been cleared when the ring was read, and whether they have been since.
    cleared: u64,
    are_others: bool,
    /// From when on no record is missing, where the ring's end has told.
    held_since_ns: Option<u64>,
}

impl Rings {
    /// Takes a frame that [`RingOrder::takes`].
    pub(super) fn accept(
        &mut self,
        frame: &Frame<'_>,
        agent: &AgentInfo,
        builder: &mut ProfileBuilder,
    ) -> Result<(), Damage> {
        match self.order.accept(frame)? {
            RingPart::Name(name) => {
                self.names.insert(name.id, name.name.to_owned());
            }
            RingPart::NamesEnd(end) => self.refused_names = end.refused,
            RingPart::Head(head) => {
                self.end_vcpu(agent, builder)?;
                if self.rings.contains_key(&head.vcpu) {
                    return Err(RingOrderError::Twice(head.vcpu).into());
                }
                self.current = Some(Current::of(&head));
            }
            RingPart::Run(run) => self.current()?.run(&run)?,
            RingPart::End(end) => {
                let current = self.current()?;
                current.ring.given_up = end.lost;
                current.held_since_ns = Some(end.whole_since_ns);
            }
            RingPart::Nodes(run) => self.current()?.nodes(&run)?,
            RingPart::StacksEnd(end) => {
                let current = self.current()?;
                current.are_others = end.cleared != current.cleared;
                self.end_vcpu(agent, builder)?;
            }
        }
        Ok(())
    }

    /// Whether a vCPU's ring is cut.
    pub(super) fn is_open(&self) -> bool {
        self.order.is_open()
    }

    /// Ends the reading, also of a ring that is cut: the vCPUs whose samples name stacks that were cleared before they
    /// were told, and the timeline; `None` where there is no ring.
    pub(super) fn finish(
        mut self,
        agent: &AgentInfo,
        builder: &mut ProfileBuilder,
    ) -> (Vec<u32>, Option<Timeline>) {
        // More stacks than numbers: what is cut then goes without.
        let is_whole = self.end_vcpu(agent, builder).is_ok();
        let rings: Vec<Ring> = self.rings.into_values().collect();
        let is_there = is_whole && !rings.is_empty();
        let timeline = is_there.then(|| Timeline::new(rings, self.names, self.refused_names));
        (self.cleared, timeline)
    }

    fn current(&mut self) -> Result<&mut Current, Damage> {
        // The order lets nothing of a ring come before its head.
        self.current.as_mut().ok_or(Damage::OutOfPlace {
            expected: "the head of a vCPU's ring",
            found: RingRun::TYPE,
        })
    }

    fn end_vcpu(&mut self, agent: &AgentInfo, builder: &mut ProfileBuilder) -> Result<(), Damage> {
        if let Some(current) = self.current.take() {
            let are_others = current.are_others;
            let ring = current.end(agent, builder)?;
            if are_others && ring.unknown_stack != NodeId::ROOT {
                self.cleared.push(ring.vcpu);
            }
            self.rings.insert(ring.vcpu, ring);
        }
        Ok(())
    }
}

impl Current {
    fn of(head: &RingHead) -> Current {
        Current {
            ring: Ring {
                vcpu: head.vcpu,
                capacity: head.capacity,
                evicted: head.oldest,
                read_at_ns: head.now_ns,
                read_at_unix_ns: head.wall_clock_ns,
                ..Ring::default()
            },
            runs: Vec::new(),
            stacks: RingStacks::default(),
            cleared: head.cleared,
            are_others: false,
            held_since_ns: None,
        }
    }

    fn run(&mut self, run: &RingRun<'_>) -> Result<(), Damage> {
        let mut records = Vec::new();
        let decoded = ring::decode(run.base_ns, run.count, run.payload, |record| {
            records.push(record);
        });
        decoded.map_err(RingOrderError::from)?;
        let after = run.first.saturating_add(run.count.into());
        self.runs.push((run.first, after, records));
        Ok(())
    }

    fn nodes(&mut self, run: &Nodes<'_>) -> Result<(), Damage> {
        let Current { stacks, .. } = self;
        let decoded = nodes::decode(run.first, run.count, run.payload, |id, node| {
            stacks.add(id, node);
        });
        Ok(decoded.map_err(RingOrderError::from)?)
    }

    /// The ring with its records in their order and the stacks that these name.
    fn end(self, agent: &AgentInfo, builder: &mut ProfileBuilder) -> Result<Ring, Damage> {
        let Current {
            mut ring,
            mut runs,
            mut stacks,
            ..
        } = self;
        runs.sort_unstable_by_key(|(first, ..)| *first);
        let gaps = runs.iter().zip(runs.iter().skip(1));
        // The order lets no position come twice.
        ring.overwritten = gaps.fold(0, |sum: u64, ((_, after, _), (first, ..))| {
            sum.saturating_add(first.saturating_sub(*after))
        });
        ring.records = runs.into_iter().flat_map(|(.., records)| records).collect();
        let first_ns = ring.records.first().map_or(0, |first| first.at_ns);
        // A file that is cut lacks the end that tells.
        ring.held_since_ns = match self.held_since_ns {
            Some(since_ns) => since_ns.min(ring.read_at_ns),
            None => first_ns,
        };
        if self.are_others {
            stacks.clear();
        }
        let mut lacks_some = false;
        for named in named(&ring.records) {
            let stack = match u32::try_from(named) {
                Ok(id) if id != 0 => stacks.stack(id, agent, builder)?.map(|stack| (id, stack)),
                _ => None,
            };
            match stack {
                Some(stack) => ring.stacks.push(stack),
                None => lacks_some = true,
            }
        }
        if lacks_some {
            let unknown = ProfileFrame::Special(SpecialFrame::UnknownCode);
            ring.unknown_stack = builder.step(NodeId::ROOT, unknown)?;
        }
        Ok(ring)
    }
}

/// The stacks that records name, each once, in the order of their ids.
fn named(records: &[Record]) -> Vec<u64> {
    let names = records.iter().filter(|record| {
        record.kind == kind::SAMPLE || (record.kind == kind::BLOCK && record.first != 0)
    });
    let mut named: Vec<u64> = names.map(|record| record.first).collect();
    named.sort_unstable();
    named.dedup();
    named
}
