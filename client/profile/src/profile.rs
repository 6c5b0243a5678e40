//! A profile: the contents of a recording, with everything that a report needs.
//!
//! Addresses are raw here; [`crate::symbols`] adds names later. Stacks are a tree of parent-pointer
//! nodes, so a million stacks that share their callers share their memory.
//!
//! ```
//! use unikprof_profile::profile::{Frame, ProfileBuilder};
//!
//! let mut builder = ProfileBuilder::new();
//! // Leaf first, as a stack walk finds it.
//! builder.add_stack(0, 3, &[Frame::leaf(0x1010), Frame::caller(0x2004)])?;
//! let profile = builder.finish();
//! assert_eq!(profile.sample_count(), 3);
//! # Ok::<(), unikprof_profile::profile::TooManyStacks>(())
//! ```

mod build_id;
mod builder;
mod counters;
mod distribution;
mod heap;
mod interval;
mod mode;
mod recording;
mod tree;

pub use build_id::BuildId;
pub use builder::ProfileBuilder;
pub use counters::{Came, Counters, SampledTime};
pub use distribution::Distribution;
pub use heap::{
    Amounts, Bounds, Estimate, Heap, Held, LiveSample, Measure, probability as sampling_probability,
};
pub use interval::Interval;
pub use mode::{Mode, Unit, Unwind};
pub use recording::{
    Architecture, Cost, FromRing, Merged, RecordingInfo, Runstate, TimeSpan, VcpuStats,
};
pub use tree::{ChildLists, NodeId, StackTree, TooManyStacks};

use std::fmt;

use crate::timeline::TraceIds;

/// A whole recording in memory.
///
/// Built by [`ProfileBuilder`], which guarantees what the readers rely on: every id is in range, a
/// node comes after its parent, and there is one sample for each node, vCPU and span.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    pub(crate) mappings: Vec<Mapping>,
    pub(crate) frames: Vec<Frame>,
    pub(crate) tree: StackTree,
    /// Counts of stacks, by vCPU.
    pub samples: Vec<Sample>,
    /// The allocations, where these are recorded; the samples are made from them.
    pub heap: Option<Heap>,
    pub(crate) span_names: Vec<String>,
    /// The place of each in a distributed trace.
    pub(crate) span_traces: Vec<Option<TraceIds>>,
    pub(crate) vcpus: Vec<VcpuStats>,
    pub(crate) recording: RecordingInfo,
}

impl Profile {
    /// The pieces of files that were mapped in the guest, in the recording's order.
    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    /// Every distinct frame; a [`FrameId`] is an index into it.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// The id of every frame, in order.
    pub fn frame_ids(&self) -> impl Iterator<Item = FrameId> + use<> {
        // The builder numbers the frames with a `u32`.
        (0..self.frames.len() as u32).map(FrameId)
    }

    /// The frame with this id.
    ///
    /// # Panics
    ///
    /// If the id comes from another profile and is out of range here.
    pub fn frame(&self, id: FrameId) -> Frame {
        self.frames[id.index()]
    }

    /// The tree of stacks; its items are frame ids.
    pub fn tree(&self) -> &StackTree {
        &self.tree
    }

    /// The counted stacks, ordered by node, then vCPU, then span.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// The place of a sample's span in a distributed trace.
    pub fn span_trace(&self, span: u32) -> Option<TraceIds> {
        *self.span_traces.get(span as usize)?
    }

    /// The names of the spans that contain samples; spans of different traces have their own.
    pub fn span_names(&self) -> &[String] {
        &self.span_names
    }

    /// Each vCPU's counters.
    pub fn vcpus(&self) -> &[VcpuStats] {
        &self.vcpus
    }

    /// The recording's metadata.
    pub fn recording(&self) -> &RecordingInfo {
        &self.recording
    }

    /// The frames of a stack, leaf first.
    pub fn stack(&self, node: NodeId) -> impl Iterator<Item = FrameId> + '_ {
        self.tree.path(node).map(FrameId)
    }

    /// The total count of all stacks on all vCPUs, in the recording's [unit](RecordingInfo::unit).
    pub fn sample_count(&self) -> u64 {
        self.samples.iter().fold(0, |sum: u64, s| sum.saturating_add(s.count))
    }

    /// The same of allocations in another measure; the profile itself where time was recorded.
    #[must_use]
    pub fn measured_by(mut self, measure: Measure) -> Profile {
        self.recording.measure = measure;
        self.count_heap();
        self
    }

    /// Makes the samples from the allocations.
    pub fn count_heap(&mut self) {
        if let Some(heap) = &self.heap {
            self.samples = heap.samples(self.recording.measure);
        }
    }

    /// What the agent counted and what the stacks hold, in samples or time, where these differ.
    pub fn uncounted(&self) -> Option<(u64, u64, Unit)> {
        if self.recording.is_incomplete {
            return None;
        }
        let counters = self.counters();
        let (counted, found, unit) = match (&self.heap, self.recording.mode) {
            // What was freed since is not held.
            (_, Mode::Live) => return None,
            (Some(heap), _) => (counters.recorded, heap.total().samples, Unit::Samples),
            (None, _) => (counters.counted(), self.sample_count(), self.recording.unit()),
        };
        (counted != found).then_some((counted, found, unit))
    }

    /// The counters of all vCPUs together. Of an incomplete recording nobody knows how many samples
    /// are missing.
    pub fn counters(&self) -> Counters {
        let counters = self.vcpus.iter().fold(Counters::default(), |sum, v| sum.plus(&v.counters));
        match self.recording.is_incomplete {
            true => Counters { missing: None, missing_blocked: None, ..counters },
            false => counters,
        }
    }

    /// The time of all vCPUs together; `None` if it is unknown for one of them.
    pub fn runstate(&self) -> Runstate {
        self.vcpus
            .iter()
            .map(|vcpu| vcpu.runstate)
            .reduce(|sum, next| sum.plus(&next))
            .unwrap_or_default()
    }

    /// The lateness of all vCPUs together; `None` if none of them has it.
    pub fn lateness_ns(&self) -> Option<Distribution> {
        self.vcpus
            .iter()
            .filter_map(|vcpu| vcpu.lateness_ns.clone())
            .reduce(|sum, next| sum.plus(&next))
    }

    /// What sampling cost on all vCPUs that were measured, and their running time in nanoseconds.
    pub fn cost(&self) -> Option<(Cost, u64)> {
        let measured = self.vcpus.iter().filter_map(|v| Some((v.cost?, v.runstate.running_ns?)));
        let sum = measured
            .reduce(|(cost, running), (more, ns)| (cost.plus(&more), running.saturating_add(ns)));
        sum.filter(|(_, running_ns)| *running_ns != 0)
    }

    /// The share of the running time that sampling and its timer took on all vCPUs that were
    /// measured.
    pub fn cost_share(&self) -> Option<f64> {
        self.cost().map(|(cost, running_ns)| cost.total_ns() as f64 / running_ns as f64)
    }

    /// The mapping that holds an address.
    pub fn mapping_of(&self, address: u64) -> Option<(usize, &Mapping)> {
        self.mappings.iter().enumerate().find(|(_, m)| m.contains(address))
    }
}

/// A piece of a file that was mapped in the guest: `[start, end)` held the file's bytes from
/// `file_offset` on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mapping {
    /// The first address.
    pub start: u64,
    /// The address after the last.
    pub end: u64,
    /// The file offset of the byte at `start`.
    pub file_offset: u64,
    /// The file's build-id, if the recording contains it.
    pub build_id: Option<BuildId>,
    /// The file's path or name in the guest; empty if there is none.
    pub path: String,
}

impl Mapping {
    /// Whether the address is in `[start, end)`.
    pub fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// The part of the path after the last `/`.
    pub fn file_name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// The file offset of an address, or `None` if the address is outside the mapping.
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        self.contains(address).then(|| (address - self.start).checked_add(self.file_offset))?
    }
}

/// An index into [`Profile::frames`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameId(pub u32);

impl FrameId {
    /// The place in [`Profile::frames`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One step of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Frame {
    /// A place in the guest's code.
    Address {
        /// As read by the agent: a pc or a return address, depending on `kind`.
        address: u64,
        /// Whether it is a pc or a return address.
        kind: AddressKind,
    },
    /// A mark that is not a code address.
    Special(SpecialFrame),
}

impl Frame {
    /// The interrupted instruction.
    pub fn leaf(pc: u64) -> Frame {
        Frame::Address { address: pc, kind: AddressKind::Leaf }
    }

    /// A return address found on the stack.
    pub fn caller(return_address: u64) -> Frame {
        Frame::Address { address: return_address, kind: AddressKind::Caller }
    }

    /// The address to look up: the pc itself for a leaf, one less for a caller.
    ///
    /// A return address points after its call, which may already be another line or, after a call
    /// that never returns, another function.
    pub fn lookup_address(self) -> Option<u64> {
        match self {
            Frame::Address { address, kind: AddressKind::Leaf } => Some(address),
            Frame::Address { address, kind: AddressKind::Caller } => Some(address.wrapping_sub(1)),
            Frame::Special(_) => None,
        }
    }
}

/// Whether an address is an interrupted pc or a return address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressKind {
    /// The interrupted pc.
    Leaf,
    /// A return address: it belongs to the call before it.
    Caller,
}

/// A mark in a stack that is not a code address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SpecialFrame {
    /// The stack was deeper than the recording's limit: its root side is cut off here.
    Truncated,
    /// The chain of frames ended badly here.
    Broken,
    /// Code outside every mapping.
    UnknownCode,
    /// The agent's own work.
    AgentWork,
    /// The guest was blocked: the leaf of blocked time in a wall-clock recording.
    Blocked,
    /// The sample arrived late: the leaf of a stack whose next frame is the code that ran when it
    /// arrived, not the code that ran when it was due.
    Late,
    /// Samples and blocked time whose stacks the agent gave up before they were fetched, the oldest
    /// first, because memory ran short.
    Aged,
    /// A code this client does not know.
    Other(u32),
}

impl fmt::Display for SpecialFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpecialFrame::Truncated => f.write_str("[truncated]"),
            SpecialFrame::Broken => f.write_str("[broken]"),
            SpecialFrame::UnknownCode => f.write_str("[unknown code]"),
            SpecialFrame::AgentWork => f.write_str("[unikprof agent]"),
            SpecialFrame::Blocked => f.write_str("[blocked]"),
            SpecialFrame::Late => f.write_str("[sample arrived late]"),
            SpecialFrame::Aged => f.write_str("[aged]"),
            SpecialFrame::Other(code) => write!(f, "[special {code}]"),
        }
    }
}

/// How often, or how long, one vCPU was found in one stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// The stack's leaf in [`Profile::tree`], never the root.
    pub node: NodeId,
    /// The vCPU that was sampled.
    pub vcpu: u32,
    /// The innermost open span of the guest, as an index into [`Profile::span_names`]; `None` also
    /// if spans are unknown.
    pub span: Option<u32>,
    /// The number of samples or nanoseconds, bytes or objects: of the recording's
    /// [unit](RecordingInfo::unit).
    pub count: u64,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_caller_is_looked_up_inside_its_call() {
        assert_eq!(Frame::leaf(0x10).lookup_address(), Some(0x10));
        assert_eq!(Frame::caller(0x10).lookup_address(), Some(0x0f));
        // A hostile recording may hold a return address of zero.
        assert_eq!(Frame::caller(0).lookup_address(), Some(u64::MAX));
        assert_eq!(Frame::Special(SpecialFrame::Blocked).lookup_address(), None);
    }

    #[test]
    fn a_mapping_knows_its_edges() {
        let mapping = Mapping {
            start: 0x1000,
            end: 0x2000,
            file_offset: u64::MAX - 0x10,
            path: "/usr/lib/libc.so.6".into(),
            ..Mapping::default()
        };
        assert_eq!(mapping.file_name(), "libc.so.6");
        assert!(mapping.contains(0x1000) && !mapping.contains(0x2000));
        assert_eq!(mapping.offset_of(0x1010), Some(u64::MAX));
        assert_eq!(mapping.offset_of(0x1011), None, "an offset past the end of all files");
        assert_eq!(mapping.offset_of(0x2000), None);
    }
}
