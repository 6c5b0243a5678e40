//! From a file's frames about rings to a timeline.

use std::collections::BTreeMap;

use unikprof_proto::frame::{Frame, Message as _};
use unikprof_proto::message::{Nodes, RingHead, RingRun, StacksEnd};
use unikprof_proto::nodes;
use unikprof_proto::ring::{self, kind};

use super::error::Damage;
use super::stacks::Stacks;
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
    /// The position of the record that comes next, where none is missing.
    next: u64,
    stacks: Stacks,
    /// The stacks that records name, in the order of their ids.
    wanted: Vec<u32>,
    /// How many of these are found.
    found: usize,
    /// Whether some record's stack is not there.
    lacks_some: bool,
    /// How often the stacks had been cleared when the records were read.
    cleared: u64,
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
                self.end_vcpu(builder)?;
                if self.rings.contains_key(&head.vcpu) {
                    return Err(RingOrderError::Twice(head.vcpu).into());
                }
                self.current = Some(Current::of(&head));
            }
            RingPart::Run(run) => self.current()?.run(&run)?,
            RingPart::End(end) => {
                let current = self.current()?;
                current.ring.given_up = end.lost;
                current.ring.held_since_ns = end.whole_since_ns.min(current.ring.read_at_ns);
                current.name_stacks();
            }
            RingPart::Nodes(run) => self.current()?.nodes(&run, agent, builder)?,
            RingPart::StacksEnd(end) => {
                if self.current()?.forgets_stacks(&end) {
                    self.cleared.push(end.vcpu);
                }
                self.end_vcpu(builder)?;
            }
        }
        Ok(())
    }

    /// Whether a vCPU's ring is cut.
    pub(super) fn is_open(&self) -> bool {
        self.order.is_open()
    }

    /// The vCPUs whose samples name stacks that were cleared before they were told.
    pub(super) fn cleared(&self) -> &[u32] {
        &self.cleared
    }

    /// The timeline, also of rings that are cut; `None` where there is no ring.
    pub(super) fn finish(mut self, builder: &mut ProfileBuilder) -> Option<Timeline> {
        if let Some(current) = &mut self.current {
            current.name_stacks();
        }
        // More stacks than numbers: what is cut then goes without.
        self.end_vcpu(builder).ok()?;
        let rings: Vec<Ring> = self.rings.into_values().collect();
        let is_there = !rings.is_empty();
        is_there.then(|| Timeline::new(rings, self.names, self.refused_names))
    }

    fn current(&mut self) -> Result<&mut Current, Damage> {
        // The order lets nothing of a ring come before its head.
        self.current.as_mut().ok_or(Damage::OutOfPlace {
            expected: "the head of a vCPU's ring",
            found: RingRun::TYPE,
        })
    }

    fn end_vcpu(&mut self, builder: &mut ProfileBuilder) -> Result<(), Damage> {
        if let Some(mut current) = self.current.take() {
            current.lacks_some |= current.found < current.wanted.len();
            if current.lacks_some {
                let unknown = ProfileFrame::Special(SpecialFrame::UnknownCode);
                current.ring.unknown_stack = builder.step(NodeId::ROOT, unknown)?;
            }
            self.rings.insert(current.ring.vcpu, current.ring);
        }
        Ok(())
    }
}

impl Current {
    fn of(head: &RingHead) -> Current {
        let mut stacks = Stacks::default();
        stacks.begin(head.vcpu);
        Current {
            ring: Ring {
                vcpu: head.vcpu,
                capacity: head.capacity,
                evicted: head.oldest,
                read_at_ns: head.now_ns,
                read_at_unix_ns: head.wall_clock_ns,
                ..Ring::default()
            },
            next: head.oldest,
            stacks,
            wanted: Vec::new(),
            found: 0,
            lacks_some: false,
            cleared: head.cleared,
        }
    }

    fn run(&mut self, run: &RingRun<'_>) -> Result<(), Damage> {
        let Current { ring, next, .. } = self;
        let is_first = ring.records.is_empty();
        let decoded = ring::decode(run.base_ns, run.count, run.payload, |record| {
            ring.records.push(record);
        });
        decoded.map_err(RingOrderError::from)?;
        if !is_first {
            // The order lets positions only rise.
            let missing = run.first.saturating_sub(*next);
            ring.overwritten = ring.overwritten.saturating_add(missing);
        } else {
            // Until the end tells, which a file that is cut lacks.
            ring.held_since_ns = ring.records.first().map_or(0, |first| first.at_ns);
        }
        *next = run.first.saturating_add(run.count.into());
        Ok(())
    }

    /// Forgets the stacks that were told, where they may be others than the records name; answers whether so.
    fn forgets_stacks(&mut self, end: &StacksEnd) -> bool {
        let are_others = end.cleared != self.cleared && !self.wanted.is_empty();
        if are_others {
            self.ring.stacks.clear();
            self.lacks_some = true;
        }
        are_others
    }

    /// Notes which stacks the records name.
    fn name_stacks(&mut self) {
        let named = self.ring.records.iter().filter(|record| {
            record.kind == kind::SAMPLE || (record.kind == kind::BLOCK && record.first != 0)
        });
        let mut lacks_some = false;
        self.wanted = named
            .filter_map(|record| {
                let id = u32::try_from(record.first).ok().filter(|id| *id != 0);
                lacks_some |= id.is_none();
                id
            })
            .collect();
        self.lacks_some |= lacks_some;
        self.wanted.sort_unstable();
        self.wanted.dedup();
    }

    fn nodes(
        &mut self,
        run: &Nodes<'_>,
        agent: &AgentInfo,
        builder: &mut ProfileBuilder,
    ) -> Result<(), Damage> {
        let Current {
            ring,
            stacks,
            wanted,
            found,
            ..
        } = self;
        let mut wrong = None;
        let decoded = nodes::decode(run.first, run.count, run.payload, |id, node| {
            if wrong.is_some() {
                return;
            }
            let is_wanted = wanted.binary_search(&id).is_ok();
            match stacks.name(node, is_wanted, agent, builder) {
                Ok(Some(stack)) => {
                    ring.stacks.push((id, stack));
                    *found += 1;
                }
                Ok(None) => {}
                Err(error) => wrong = Some(error),
            }
        });
        decoded.map_err(RingOrderError::from)?;
        wrong.map_or(Ok(()), Err)
    }
}
