//! From counted stacks to a profile.

use std::collections::HashMap;

use super::{
    Amounts, Frame, FrameId, Heap, Held, Mapping, Mode, NodeId, Profile, RecordingInfo, Sample,
    SpecialFrame, StackTree, TooManyStacks, VcpuStats,
};

/// Collects stacks and their metadata.
///
/// Adding a stack costs one look-up for each frame that differs from the stack added before it,
/// so stacks in a sorted order are the cheapest.
#[derive(Debug, Default)]
pub struct ProfileBuilder {
    mappings: Vec<Mapping>,
    frames: Vec<Frame>,
    frame_ids: HashMap<Frame, FrameId>,
    tree: StackTree,
    samples: Vec<Sample>,
    vcpus: Vec<VcpuStats>,
    recording: RecordingInfo,
    heap: Heap,
    /// The stack added last, root first: the next one often shares its callers.
    last: Vec<(Frame, NodeId)>,
}

impl Profile {
    /// A profile of the same guest with a sample at each of these addresses, to look up their
    /// names.
    pub fn at_addresses(
        &self,
        addresses: impl Iterator<Item = u64>,
    ) -> Result<Profile, TooManyStacks> {
        let mut builder = ProfileBuilder::new();
        for mapping in &self.mappings {
            builder.add_mapping(mapping.clone());
        }
        builder.set_recording(RecordingInfo {
            architecture: self.recording.architecture.clone(),
            ..RecordingInfo::default()
        });
        for address in addresses {
            builder.add_stack(0, 1, &[Frame::leaf(address)])?;
        }
        Ok(builder.finish())
    }
}

impl ProfileBuilder {
    /// A builder that holds nothing yet.
    pub fn new() -> ProfileBuilder {
        ProfileBuilder::default()
    }

    /// Counts a stack, its frames leaf first. The counts of equal stacks add up. A stack without
    /// frames counts as [`SpecialFrame::UnknownCode`], so every sample is in every report.
    pub fn add_stack(
        &mut self,
        vcpu: u32,
        count: u64,
        leaf_first: &[Frame],
    ) -> Result<(), TooManyStacks> {
        let unknown = [Frame::Special(SpecialFrame::UnknownCode)];
        let leaf_first = if leaf_first.is_empty() { &unknown } else { leaf_first };
        let root_first = leaf_first.iter().rev();
        let shared = root_first
            .clone()
            .zip(&self.last)
            .take_while(|(frame, (last, _))| *frame == last)
            .count();
        self.last.truncate(shared);
        let mut node = self.last.last().map_or(NodeId::ROOT, |(_, node)| *node);
        for &frame in root_first.skip(shared) {
            node = self.step(node, frame)?;
            self.last.push((frame, node));
        }
        self.count(vcpu, node, count);
        Ok(())
    }

    /// The stack that is `caller` and one frame deeper, for readers that have a tree themselves;
    /// [`NodeId::ROOT`] is the empty stack.
    pub fn step(&mut self, caller: NodeId, frame: Frame) -> Result<NodeId, TooManyStacks> {
        let id = self.frame_id(frame)?;
        self.tree.child(caller, id.0)
    }

    /// Counts a stack that [`ProfileBuilder::step`] made.
    pub fn count(&mut self, vcpu: u32, node: NodeId, count: u64) {
        self.samples.push(Sample { node, vcpu, span: None, count });
    }

    /// Counts sampled allocations of a stack that [`ProfileBuilder::step`] made.
    pub fn count_allocations(
        &mut self,
        vcpu: u32,
        node: NodeId,
        samples: u64,
        size: u64,
        interval_bytes: u64,
    ) {
        let amounts: &mut Amounts = self.heap.amounts.entry((node, vcpu)).or_default();
        amounts.add(samples, size, interval_bytes);
    }

    /// Adds what was held at the end of an epoch; the last counts.
    pub fn add_held(&mut self, held: Held) {
        self.heap.held.push(held);
    }

    /// Adds a mapping; the first is taken to be the program's own.
    pub fn add_mapping(&mut self, mapping: Mapping) {
        self.mappings.push(mapping);
    }

    /// Adds a vCPU's counters.
    pub fn add_vcpu(&mut self, stats: VcpuStats) {
        self.vcpus.push(stats);
    }

    /// Sets the recording's metadata.
    pub fn set_recording(&mut self, recording: RecordingInfo) {
        self.recording = recording;
    }

    /// Brings counts of the same stack together, so that they take memory for distinct stacks only.
    pub(crate) fn compact(&mut self) {
        self.samples.sort_unstable_by_key(|s| (s.node, s.vcpu));
        self.samples.dedup_by(|next, kept| {
            let same = (next.node, next.vcpu) == (kept.node, kept.vcpu);
            if same {
                kept.count = kept.count.saturating_add(next.count);
            }
            same
        });
        self.samples.retain(|s| s.count != 0);
    }

    /// The number of counts that are kept.
    pub(crate) fn count_len(&self) -> usize {
        self.samples.len()
    }

    /// The profile, its samples merged and in order.
    pub fn finish(mut self) -> Profile {
        self.compact();
        self.samples.shrink_to_fit();
        self.tree.shrink();
        self.vcpus.sort_by_key(|v| v.vcpu);
        let is_heap = self.recording.mode.is_heap() && self.recording.ring.is_none();
        if self.recording.mode == Mode::Live {
            self.heap.count_held(self.recording.interval_bytes);
        }
        let mut profile = Profile {
            mappings: self.mappings,
            frames: self.frames,
            tree: self.tree,
            samples: self.samples,
            heap: is_heap.then_some(self.heap),
            span_names: Vec::new(),
            span_traces: Vec::new(),
            vcpus: self.vcpus,
            recording: self.recording,
        };
        profile.count_heap();
        profile
    }

    fn frame_id(&mut self, frame: Frame) -> Result<FrameId, TooManyStacks> {
        if let Some(id) = self.frame_ids.get(&frame) {
            return Ok(*id);
        }
        let id = FrameId(u32::try_from(self.frames.len()).map_err(|_| TooManyStacks)?);
        self.frames.push(frame);
        self.frame_ids.insert(frame, id);
        Ok(id)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_same_stack_of_one_vcpu_becomes_one_sample() {
        let mut builder = ProfileBuilder::new();
        let stack = [Frame::leaf(1), Frame::caller(2)];
        builder.add_stack(0, 2, &stack).unwrap();
        builder.add_stack(1, 1, &stack).unwrap();
        builder.add_stack(0, 0, &[Frame::leaf(9)]).unwrap();
        builder.add_stack(0, 3, &stack).unwrap();
        let profile = builder.finish();
        let found: Vec<_> = profile.samples().iter().map(|s| (s.vcpu, s.count)).collect();
        assert_eq!(found, [(0, 5), (1, 1)]);
        let frames: Vec<Frame> =
            profile.stack(profile.samples()[0].node).map(|id| profile.frame(id)).collect();
        assert_eq!(frames, stack);
    }

    #[test]
    fn a_pc_and_a_return_address_of_equal_value_stay_apart() {
        let mut builder = ProfileBuilder::new();
        builder.add_stack(0, 1, &[Frame::leaf(7), Frame::caller(7)]).unwrap();
        assert_eq!(builder.finish().frames().len(), 2);
    }

    #[test]
    fn a_tree_and_whole_stacks_meet_in_the_same_nodes() {
        let mut builder = ProfileBuilder::new();
        builder.add_stack(0, 2, &[Frame::leaf(1), Frame::caller(2)]).unwrap();
        let outer = builder.step(NodeId::ROOT, Frame::caller(2)).unwrap();
        let inner = builder.step(outer, Frame::leaf(1)).unwrap();
        builder.count(0, inner, 3);
        builder.add_stack(0, 5, &[]).unwrap();
        let profile = builder.finish();
        let counts: Vec<u64> = profile.samples().iter().map(|s| s.count).collect();
        assert_eq!(counts, [5, 5]);
        assert_eq!(profile.tree().node_count(), 4);
    }

    #[test]
    fn a_shared_prefix_is_not_mistaken_for_the_whole_stack() {
        let mut builder = ProfileBuilder::new();
        builder.add_stack(0, 1, &[Frame::leaf(3), Frame::caller(2), Frame::caller(1)]).unwrap();
        builder.add_stack(0, 1, &[Frame::caller(2), Frame::caller(1)]).unwrap();
        builder.add_stack(0, 1, &[]).unwrap();
        builder.add_stack(0, 1, &[Frame::leaf(4), Frame::caller(2), Frame::caller(1)]).unwrap();
        let profile = builder.finish();
        let depths: Vec<usize> =
            profile.samples().iter().map(|s| profile.stack(s.node).count()).collect();
        assert_eq!(depths, [2, 3, 1, 3]);
        assert_eq!(profile.tree().node_count(), 6);
    }
}
