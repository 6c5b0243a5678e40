//! From the wire's stack nodes and counts to a profile's stacks.

use std::collections::{BTreeMap, HashMap};

use unikprof_proto::code::frame_code;
use unikprof_proto::live;
use unikprof_proto::nodes::Node;

use super::error::Damage;
use super::known_nodes::NodeError;
use crate::agent_info::AgentInfo;
use crate::profile::{
    AddressKind, Frame, LiveSample, NodeId, ProfileBuilder, SpecialFrame, TooManyStacks,
};

/// The deepest stack read, in frames: far above what an agent keeps.
const MAX_DEPTH: u32 = 4096;

/// The stack nodes and counts of a file, by vCPU. A node may come before or after the counts and
/// records that name it.
#[derive(Default)]
pub(super) struct Stacks {
    vcpus: BTreeMap<u32, VcpuStacks>,
    /// How many epochs began, if each one's counts are kept.
    epochs: Option<usize>,
}

/// Stacks with their counts.
pub(super) type StackCounts = Vec<(NodeId, u64)>;

#[derive(Default)]
pub(super) struct VcpuStacks {
    nodes: Vec<StoredNode>,
    /// The frames of all nodes, leaf first.
    frames: Vec<u32>,
    /// The counts of all epochs, by the stack's number.
    counts: HashMap<u64, u64>,
    /// The same by epoch, if they are kept: its place, the stack's number and the count.
    by_epoch: Vec<(usize, u64, u64)>,
    /// Allocations that were held at the end of an epoch, with the place of that epoch.
    held: Vec<(usize, live::Sample)>,
}

#[derive(Clone, Copy)]
struct StoredNode {
    number: u64,
    /// The parent's number; 0 for a root.
    parent: u64,
    /// Where its frames begin.
    frames: usize,
    length: u8,
    /// Whether a count or a record names it or a descendant.
    is_used: bool,
    /// `None` before it is resolved, or where an ancestor is missing.
    stack: Option<Stack>,
}

/// A stack whose innermost frame may be a leaf or, for its children, a caller.
#[derive(Clone, Copy)]
struct Stack {
    callers: NodeId,
    innermost: Frame,
    depth: u32,
    /// The size of the allocations that it counts.
    size: Option<u64>,
}

/// What counts mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Samples of time, or time.
    Time,
    /// Allocations, of which each byte was sampled with a chance of one in so many.
    Allocations { interval_bytes: u64 },
}

/// What [`Stacks::finish`] finds.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// By vCPU, the stacks that were named, in the order of their numbers.
    pub(super) named: BTreeMap<u32, Vec<(u64, NodeId)>>,
    /// The counts of each epoch; empty if they are not kept.
    pub(super) epochs: Vec<StackCounts>,
    /// What was held, with the places of the epochs.
    pub(super) held: Vec<(usize, LiveSample)>,
    /// Samples of allocations without a size.
    pub(super) without_size: u64,
}

/// Whether stacks may be missing that are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// They may not: the file is complete.
    Refused,
    /// Their counts are those of unknown code.
    Unknown,
}

impl Stacks {
    pub(super) fn add_node(&mut self, vcpu: u32, number: u64, node: Node<'_>) {
        let vcpu = self.vcpus.entry(vcpu).or_default();
        let frames = vcpu.frames.len();
        vcpu.frames.extend_from_slice(node.frames);
        vcpu.nodes.push(StoredNode {
            number,
            parent: node.parent,
            frames,
            // At most `nodes::MAX_FRAMES`.
            length: node.frames.len() as u8,
            is_used: false,
            stack: None,
        });
    }

    /// Keeps each epoch's counts. This takes 24 bytes for each count in the file.
    pub(super) fn keep_epochs(&mut self) {
        self.epochs = Some(0);
    }

    /// The counts that follow are those of another epoch.
    pub(super) fn begin_epoch(&mut self) {
        self.epochs = self.epochs.map(|epochs| epochs + 1);
    }

    /// Adds a stack's count.
    pub(super) fn add_count(&mut self, vcpu: u32, number: u64, count: u64) {
        let vcpu = self.vcpus.entry(vcpu).or_default();
        let sum = vcpu.counts.entry(number).or_default();
        *sum = sum.saturating_add(count);
        if let Some(at) = self.epochs.and_then(|epochs| epochs.checked_sub(1)) {
            vcpu.by_epoch.push((at, number, count));
        }
    }

    /// Adds an allocation that was held at the end of the epoch at this place.
    pub(super) fn add_held(&mut self, vcpu: u32, epoch: usize, sample: live::Sample) {
        let vcpu = self.vcpus.entry(vcpu).or_default();
        vcpu.held.push((epoch, sample));
    }

    /// Puts the counts into the profile. Of each vCPU, the stacks of these numbers, which rise, are
    /// found as well: returned are those whose nodes are there, in the same order.
    ///
    /// # Errors
    /// [`Damage`]: a stack is too deep or has an impossible frame, there are too many, or one that was counted is
    /// missing and must not be.
    pub(super) fn finish(
        mut self,
        mut named: BTreeMap<u32, Vec<u64>>,
        missing: Missing,
        meaning: Meaning,
        agent: &AgentInfo,
        builder: &mut ProfileBuilder,
    ) -> Result<Found, Damage> {
        let mut found = Found {
            epochs: vec![StackCounts::new(); self.epochs.unwrap_or_default()],
            ..Found::default()
        };
        for (vcpu, stacks) in &mut self.vcpus {
            let named = named.remove(vcpu).unwrap_or_default();
            stacks.resolve(&named, agent, builder)?;
            found.without_size += stacks.count(*vcpu, missing, meaning, builder)?;
            stacks.find_held(*vcpu, missing, meaning, &mut found.held, builder)?;
            let mut of_vcpu = Vec::new();
            for number in named {
                if let Some(stack) = stacks.stack(number) {
                    of_vcpu.push((number, stack.end(meaning, builder)?));
                }
            }
            found.named.insert(*vcpu, of_vcpu);
            for (at, number, count) in std::mem::take(&mut stacks.by_epoch) {
                if let Some(stack) = stacks.stack(number) {
                    found.epochs[at].push((stack.end(meaning, builder)?, count));
                }
            }
        }
        Ok(found)
    }
}

impl VcpuStacks {
    /// Finds the stacks of all nodes that a count or one of these numbers needs.
    fn resolve(
        &mut self,
        named: &[u64],
        agent: &AgentInfo,
        builder: &mut ProfileBuilder,
    ) -> Result<(), Damage> {
        self.nodes.sort_unstable_by_key(|node| node.number);
        let held = self.held.iter().map(|(_, sample)| &sample.node);
        for number in self.counts.keys().chain(named).chain(held) {
            if let Some(at) = place(&self.nodes, *number) {
                self.nodes[at].is_used = true;
            }
        }
        // A parent's number is smaller than its children's.
        for at in (0..self.nodes.len()).rev() {
            let node = self.nodes[at];
            if let Some(parent) = place(&self.nodes[..at], node.parent)
                && node.is_used
            {
                self.nodes[parent].is_used = true;
            }
        }
        for at in 0..self.nodes.len() {
            let node = self.nodes[at];
            let frames = &self.frames[node.frames..node.frames + usize::from(node.length)];
            let parent = match (node.is_used, node.parent) {
                (false, _) => continue,
                (true, 0) => None,
                (true, number) => {
                    let parent = place(&self.nodes[..at], number);
                    match parent.and_then(|at| self.nodes[at].stack) {
                        Some(parent) => Some(parent),
                        None => continue,
                    }
                }
            };
            self.nodes[at].stack = Stack::of(parent, frames, agent, builder)?;
        }
        Ok(())
    }

    /// The stack that ends in a node; `None` if one of its nodes is missing.
    fn stack(&self, number: u64) -> Option<Stack> {
        place(&self.nodes, number).and_then(|at| self.nodes[at].stack)
    }

    fn count(
        &self,
        vcpu: u32,
        missing: Missing,
        meaning: Meaning,
        builder: &mut ProfileBuilder,
    ) -> Result<u64, Damage> {
        let mut without_size = 0_u64;
        let mut count_stack =
            |builder: &mut ProfileBuilder, stack, size: Option<u64>, count| match meaning {
                Meaning::Time => builder.count(vcpu, stack, count),
                Meaning::Allocations { interval_bytes } => match size {
                    Some(size) => {
                        builder.count_allocations(vcpu, stack, count, size, interval_bytes);
                    }
                    None => without_size = without_size.saturating_add(count),
                },
            };
        for node in &self.nodes {
            if let Some(count) = self.counts.get(&node.number)
                && let Some(stack) = node.stack
            {
                let leaf = stack.end(meaning, builder)?;
                count_stack(builder, leaf, stack.size, *count);
            }
        }
        let mut lacking: Vec<_> = self.counts.iter().collect();
        lacking.retain(|(number, _)| self.stack(**number).is_none());
        lacking.sort_unstable();
        for (&number, count) in lacking {
            if missing == Missing::Refused {
                return Err(self.lacks(vcpu, number));
            }
            let unknown = Frame::Special(SpecialFrame::UnknownCode);
            let stack = builder.step(NodeId::ROOT, unknown)?;
            count_stack(builder, stack, None, *count);
        }
        Ok(without_size)
    }

    /// Finds the stacks of what was held.
    fn find_held(
        &self,
        vcpu: u32,
        missing: Missing,
        meaning: Meaning,
        held: &mut Vec<(usize, LiveSample)>,
        builder: &mut ProfileBuilder,
    ) -> Result<(), Damage> {
        for (epoch, sample) in &self.held {
            let node = match self.stack(sample.node) {
                Some(stack) => stack.end(meaning, builder)?,
                None if missing == Missing::Refused => return Err(self.lacks(vcpu, sample.node)),
                None => builder.step(NodeId::ROOT, Frame::Special(SpecialFrame::UnknownCode))?,
            };
            let sample = LiveSample { node, vcpu, size: sample.size, born_ns: sample.born_ns };
            held.push((*epoch, sample));
        }
        Ok(())
    }

    /// What is wrong with a stack that is needed and missing.
    fn lacks(&self, vcpu: u32, number: u64) -> Damage {
        let parent = place(&self.nodes, number).map(|at| self.nodes[at].parent);
        Damage::Nodes(match parent {
            Some(parent) => NodeError::Parent { vcpu, number, parent },
            None => NodeError::Unknown { vcpu, number },
        })
    }
}

impl Stack {
    /// The stack of a node with these frames; `None` if it has none.
    fn of(
        parent: Option<Stack>,
        frames: &[u32],
        agent: &AgentInfo,
        builder: &mut ProfileBuilder,
    ) -> Result<Option<Stack>, Damage> {
        let (size, frames) = match frames {
            [first, rest @ ..] => match frame_code::size_of(*first) {
                Some(size) => (Some(size), rest),
                None => (None, frames),
            },
            [] => (None, frames),
        };
        if size.is_some() && frames.is_empty() {
            let unknown = Stack {
                callers: NodeId::ROOT,
                innermost: Frame::Special(SpecialFrame::UnknownCode),
                depth: 0,
                size: None,
            };
            return Ok(Some(Stack { size, ..parent.unwrap_or(unknown) }));
        }
        // The decoder rejects nodes without frames.
        let ([innermost, outer @ ..], Some(&outermost)) = (frames, frames.last()) else {
            return Ok(None);
        };
        let (mut callers, mut depth) = match parent {
            Some(parent) => {
                let frame = if marks_a_place(outermost) {
                    parent.innermost
                } else {
                    as_caller(parent.innermost)
                };
                (builder.step(parent.callers, frame)?, parent.depth)
            }
            None => (NodeId::ROOT, 0),
        };
        for (&code, &inner) in outer.iter().zip(frames).rev() {
            let frame = agent.mappings.frame(code, marks_a_place(inner))?;
            callers = builder.step(callers, frame)?;
        }
        depth += frames.len() as u32;
        if depth > MAX_DEPTH {
            return Err(Damage::TooDeep { most: MAX_DEPTH, found: depth });
        }
        Ok(Some(Stack { callers, innermost: agent.mappings.frame(*innermost, true)?, depth, size }))
    }

    /// The stack that ends here.
    fn end(&self, meaning: Meaning, builder: &mut ProfileBuilder) -> Result<NodeId, TooManyStacks> {
        let innermost = match (meaning, self.size) {
            (Meaning::Time, None) => self.innermost,
            // No code was interrupted: it is where the allocator returns to.
            _ => as_caller(self.innermost),
        };
        builder.step(self.callers, innermost)
    }
}

/// Where a node lies among those that are sorted by their numbers.
fn place(nodes: &[StoredNode], number: u64) -> Option<usize> {
    // Numbers of a segment are consecutive, so that the node is often exactly this far from the
    // last.
    let guess = nodes
        .last()
        .and_then(|last| last.number.checked_sub(number))
        .and_then(|back| nodes.len().checked_sub(1)?.checked_sub(usize::try_from(back).ok()?));
    match guess {
        Some(at) if nodes[at].number == number => Some(at),
        _ => nodes.binary_search_by_key(&number, |node| node.number).ok(),
    }
}

/// Whether the frame below this mark is an interrupted place, as a leaf is, and no return address.
fn marks_a_place(code: u32) -> bool {
    matches!(code, frame_code::BLOCKED | frame_code::LATE)
}

fn as_caller(frame: Frame) -> Frame {
    match frame {
        Frame::Address { address, .. } => Frame::Address { address, kind: AddressKind::Caller },
        special => special,
    }
}
