//! The order of an epoch's frames, checked alike on the wire and in a file.

use std::collections::BTreeSet;

use thiserror::Error;
use unikprof_proto::counts;
use unikprof_proto::frame::{self, Frame, FrameError, Message};
use unikprof_proto::live;
use unikprof_proto::message::{
    self, Counts, Epoch, Histogram, LiveSamples, Nodes, VcpuEnd, VcpuEpoch,
};
use unikprof_proto::run::InvalidRun;

use super::known_nodes::{KnownNodes, NodeError, NodeOrder};
use crate::messages::{is_known, message_name};

/// Which frames of an epoch were accepted so far, and what they add up to.
#[derive(Debug, Default)]
pub struct EpochProgress {
    head: Option<Head>,
    share: Option<Share>,
    /// The vCPUs whose shares are complete.
    done: BTreeSet<u32>,
    samples: u64,
    /// On the wire each answer begins with the epoch's head, and stacks come before their counts.
    is_wire: bool,
    /// The current share is sent again from where the connection broke.
    repeating: bool,
}

/// What identifies an epoch when its head is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    epoch: u64,
    recording: u64,
    started_ns: u64,
    ended_ns: u64,
    vcpus: u32,
}

/// One vCPU's share that was begun.
#[derive(Debug)]
struct Share {
    vcpu: u32,
    /// Its counters at both ends: others when it is sent again if the agent has given up some of
    /// its counts.
    counters: [message::Counters; 2],
    histograms: Vec<u32>,
    /// The number of the last stack that was counted; 0 before the first.
    counted: u64,
    samples: u64,
    /// The allocations that were still held.
    held: u64,
}

/// A frame in its place.
#[derive(Debug)]
pub enum Part<'a> {
    /// The head.
    Epoch(Epoch<'a>),
    /// The next vCPU.
    Vcpu(Box<VcpuEpoch>),
    /// A distribution of that vCPU.
    Histogram(Histogram<'a>),
    /// Stack nodes of that vCPU; on the wire only.
    Nodes,
    /// Counts of that vCPU; each was passed to the visitor.
    Counts,
    /// Allocations of that vCPU that were still held.
    Live(LiveSamples<'a>),
    /// That vCPU's share is complete; the second field is the sum of its counts, or the number of
    /// what was still held.
    End(VcpuEnd, u64),
    /// A frame that was received before: the connection broke, or another answer begins with the
    /// same head.
    Repeated,
    /// A type that this client does not know.
    Unknown,
}

/// Why a frame is not in its place.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EpochError {
    /// The frame is damaged.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The frame is of another type than its place asks for.
    #[error("expected {expected}, found {}", message_name(*found))]
    OutOfPlace {
        /// What belongs there.
        expected: &'static str,
        /// The frame's type.
        found: u16,
    },
    /// The frame belongs to another epoch.
    #[error("a frame belongs to epoch {found}, in the middle of epoch {expected}")]
    OtherEpoch {
        /// The epoch that is being read.
        expected: u64,
        /// The frame's epoch.
        found: u64,
    },
    /// The heads of one epoch differ.
    #[error("epoch {0} has changed since its first part was sent")]
    Changed(u64),
    /// What is held now is another set than when its first part was sent: all of it is needed over
    /// one connection.
    #[error("the connection broke within what is held at the end of epoch {0}")]
    HeldAnew(u64),
    /// The epoch has another number of vCPUs than the guest.
    #[error("expected an epoch of {expected} vCPUs, found one of {found}")]
    Vcpus {
        /// The guest's vCPUs.
        expected: u32,
        /// The epoch's vCPUs.
        found: u32,
    },
    /// A vCPU's share is not where it belongs.
    #[error("vCPU {found} is out of order")]
    VcpuOrder {
        /// The vCPU.
        found: u32,
    },
    /// Counts are not in the order of their stacks.
    #[error("expected counts of stacks of vCPU {vcpu} above {counted}, found them from {found}")]
    CountOrder {
        /// The vCPU.
        vcpu: u32,
        /// The last stack that was counted.
        counted: u64,
        /// The first stack of these counts.
        found: u64,
    },
    /// A run of counts is invalid.
    #[error(transparent)]
    Counts(#[from] InvalidRun),
    /// Stack nodes are invalid.
    #[error(transparent)]
    Nodes(#[from] NodeError),
}

impl EpochProgress {
    /// An epoch as it comes on the wire: an answer for each vCPU, each with the epoch's head.
    pub fn on_the_wire() -> EpochProgress {
        EpochProgress { is_wire: true, ..EpochProgress::default() }
    }

    /// Whether an epoch was begun and is not complete.
    pub fn is_open(&self) -> bool {
        self.head.is_some() && !self.is_whole()
    }

    /// Whether the shares of all vCPUs are complete.
    pub fn is_whole(&self) -> bool {
        self.head.is_some_and(|head| self.share.is_none() && self.done.len() >= head.vcpus as usize)
    }

    /// The samples in the counts so far.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Whether a vCPU's share is complete.
    pub fn has(&self, vcpu: u32) -> bool {
        self.done.contains(&vcpu)
    }

    /// The number up to which a vCPU's stacks were counted; 0 if none was.
    pub fn counted(&self, vcpu: u32) -> u64 {
        match &self.share {
            Some(share) if share.vcpu == vcpu => share.counted,
            _ => 0,
        }
    }

    /// Takes the current share as one that is sent again over a new connection: its head and the
    /// histograms that were received are repetitions then.
    pub fn expect_repetition(&mut self) {
        self.repeating = self.share.is_some();
    }

    /// Checks the next frame. Stack nodes are added to `nodes`; counts are passed to `visit` with
    /// the vCPU and the stack's number.
    pub fn accept<'a>(
        &mut self,
        frame: &Frame<'a>,
        nodes: &mut KnownNodes,
        visit: impl FnMut(u32, u64, u64),
    ) -> Result<Part<'a>, EpochError> {
        match frame.kind {
            Epoch::TYPE => self.head(frame::decode(frame)?),
            VcpuEpoch::TYPE => self.vcpu(frame::decode(frame)?),
            Histogram::TYPE => self.histogram(frame::decode(frame)?),
            Nodes::TYPE => self.nodes(&frame::decode(frame)?, nodes),
            Counts::TYPE => self.counts(&frame::decode(frame)?, nodes, visit),
            LiveSamples::TYPE => self.live(frame::decode(frame)?, nodes),
            VcpuEnd::TYPE => self.end(frame::decode(frame)?, nodes),
            found if is_known(found) => Err(self.out_of_place(found)),
            _ => Ok(Part::Unknown),
        }
    }

    fn head<'a>(&mut self, epoch: Epoch<'a>) -> Result<Part<'a>, EpochError> {
        let head = Head {
            epoch: epoch.epoch,
            recording: epoch.recording,
            started_ns: epoch.started_ns,
            ended_ns: epoch.ended_ns,
            vcpus: epoch.vcpus,
        };
        let may_repeat = self.is_wire && (self.share.is_none() || self.repeating);
        match self.head {
            None => {
                self.head = Some(head);
                Ok(Part::Epoch(epoch))
            }
            Some(known) if may_repeat && known == head => Ok(Part::Repeated),
            Some(known) if may_repeat && known.epoch == head.epoch => {
                Err(EpochError::Changed(known.epoch))
            }
            Some(known) if may_repeat => {
                Err(EpochError::OtherEpoch { expected: known.epoch, found: head.epoch })
            }
            Some(_) => Err(self.out_of_place(Epoch::TYPE)),
        }
    }

    fn vcpu<'a>(&mut self, vcpu: VcpuEpoch) -> Result<Part<'a>, EpochError> {
        let head = self.belongs(VcpuEpoch::TYPE, vcpu.epoch)?;
        let counters = [vcpu.start.counters, vcpu.end.counters];
        match &self.share {
            Some(share) if self.repeating && share.vcpu == vcpu.vcpu => {
                return if share.counters != counters {
                    Err(EpochError::Changed(head.epoch))
                } else if share.held > 0 {
                    Err(EpochError::HeldAnew(head.epoch))
                } else {
                    Ok(Part::Repeated)
                };
            }
            Some(_) => return Err(self.out_of_place(VcpuEpoch::TYPE)),
            None => {}
        }
        if self.done.contains(&vcpu.vcpu) || self.done.len() >= head.vcpus as usize {
            return Err(EpochError::VcpuOrder { found: vcpu.vcpu });
        }
        self.share = Some(Share {
            vcpu: vcpu.vcpu,
            counters,
            histograms: Vec::new(),
            counted: 0,
            samples: 0,
            held: 0,
        });
        Ok(Part::Vcpu(Box::new(vcpu)))
    }

    fn histogram<'a>(&mut self, histogram: Histogram<'a>) -> Result<Part<'a>, EpochError> {
        self.belongs(Histogram::TYPE, histogram.epoch)?;
        let repeating = self.repeating;
        let share = self.current_share(Histogram::TYPE, histogram.vcpu)?;
        if share.histograms.contains(&histogram.kind) {
            return if repeating {
                Ok(Part::Repeated)
            } else {
                Err(self.out_of_place(Histogram::TYPE))
            };
        }
        share.histograms.push(histogram.kind);
        Ok(Part::Histogram(histogram))
    }

    fn nodes<'a>(
        &mut self,
        run: &Nodes<'_>,
        nodes: &mut KnownNodes,
    ) -> Result<Part<'a>, EpochError> {
        self.current_share(Nodes::TYPE, run.vcpu)?;
        self.repeating = false;
        nodes.add(run, NodeOrder::Rising, |_, _| ())?;
        Ok(Part::Nodes)
    }

    fn counts<'a>(
        &mut self,
        run: &Counts<'_>,
        nodes: &KnownNodes,
        mut visit: impl FnMut(u32, u64, u64),
    ) -> Result<Part<'a>, EpochError> {
        self.belongs(Counts::TYPE, run.epoch)?;
        let is_wire = self.is_wire;
        self.repeating = false;
        let share = self.current_share(Counts::TYPE, run.vcpu)?;
        if run.after < share.counted || run.count == 0 {
            return Err(EpochError::CountOrder {
                vcpu: run.vcpu,
                counted: share.counted,
                found: run.after,
            });
        }
        let (mut last, mut samples, mut unknown) = (share.counted, 0_u64, None);
        counts::decode(run.after, run.count, run.payload, |number, count| {
            last = number;
            samples = samples.saturating_add(count);
            if is_wire && !nodes.contains(run.vcpu, number) {
                unknown = unknown.or(Some(number));
            }
            visit(run.vcpu, number, count);
        })?;
        if let Some(number) = unknown {
            let vcpu = run.vcpu;
            return Err(NodeError::Unknown { vcpu, number }.into());
        }
        share.counted = last;
        share.samples = share.samples.saturating_add(samples);
        self.samples = self.samples.saturating_add(samples);
        Ok(Part::Counts)
    }

    fn live<'a>(
        &mut self,
        run: LiveSamples<'a>,
        nodes: &KnownNodes,
    ) -> Result<Part<'a>, EpochError> {
        self.belongs(LiveSamples::TYPE, run.epoch)?;
        let is_wire = self.is_wire;
        self.repeating = false;
        let share = self.current_share(LiveSamples::TYPE, run.vcpu)?;
        let vcpu = run.vcpu;
        let mut unknown = None;
        live::decode(run.base_ns, run.count, run.payload, |sample| {
            if is_wire && !nodes.contains(vcpu, sample.node) {
                unknown = unknown.or(Some(sample.node));
            }
        })?;
        if let Some(number) = unknown {
            return Err(NodeError::Unknown { vcpu, number }.into());
        }
        let count = u64::from(run.count);
        share.held = share.held.saturating_add(count);
        share.samples = share.samples.saturating_add(count);
        self.samples = self.samples.saturating_add(count);
        Ok(Part::Live(run))
    }

    fn end<'a>(&mut self, end: VcpuEnd, nodes: &mut KnownNodes) -> Result<Part<'a>, EpochError> {
        self.belongs(VcpuEnd::TYPE, end.epoch)?;
        let samples = self.current_share(VcpuEnd::TYPE, end.vcpu)?.samples;
        if self.is_wire {
            nodes.sent_up_to(end.vcpu, end.known)?;
        }
        self.repeating = false;
        self.share = None;
        self.done.insert(end.vcpu);
        Ok(Part::End(end, samples))
    }

    fn belongs(&self, found: u16, epoch: u64) -> Result<Head, EpochError> {
        let head = self.head.ok_or_else(|| self.out_of_place(found))?;
        if head.epoch == epoch {
            Ok(head)
        } else {
            Err(EpochError::OtherEpoch { expected: head.epoch, found: epoch })
        }
    }

    fn current_share(&mut self, found: u16, vcpu: u32) -> Result<&mut Share, EpochError> {
        let error = self.out_of_place(found);
        match &mut self.share {
            None => Err(error),
            Some(share) if share.vcpu == vcpu => Ok(share),
            Some(_) => Err(EpochError::VcpuOrder { found: vcpu }),
        }
    }

    fn out_of_place(&self, found: u16) -> EpochError {
        let expected = match (&self.head, &self.share) {
            (None, _) => "the header of an epoch",
            (Some(_), None) => "a vCPU's share of an epoch",
            (Some(_), Some(_)) => "stacks or counts of a vCPU, or their end",
        };
        EpochError::OutOfPlace { expected, found }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use unikprof_proto::message::Snapshot;

    use super::*;

    struct Epochs {
        progress: EpochProgress,
        nodes: KnownNodes,
    }

    impl Epochs {
        fn new(progress: EpochProgress) -> Epochs {
            Epochs { progress, nodes: KnownNodes::new(100) }
        }

        fn accept<'m, M: Message<'m>>(&mut self, message: &M) -> Result<String, EpochError> {
            let mut buffer = [0; 512];
            frame::encode(message, &mut buffer).unwrap();
            let frame = frame::split(&buffer).unwrap().unwrap();
            let Epochs { progress, nodes } = self;
            progress.accept(&frame, nodes, |_, _, _| ()).map(|part| {
                let shown = format!("{part:?}");
                shown.split('(').next().unwrap().to_owned()
            })
        }
    }

    fn head() -> Epoch<'static> {
        Epoch {
            interval_bytes: 0,
            epoch: 9,
            recording: 4,
            ring_bit: 0,
            name: "n",
            mode: 0,
            flags: 0,
            period_ns: 1,
            depth: 1,
            late_threshold_ns: 1,
            recording_started_ns: 0,
            started_ns: 0,
            ended_ns: 5,
            ended_wall_clock_ns: None,
            gaps: 0,
            server_ns: 0,
            vcpus: 2,
            caller_table: None,
        }
    }

    fn vcpu(vcpu: u32) -> VcpuEpoch {
        VcpuEpoch { epoch: 9, vcpu, start: Snapshot::default(), end: Snapshot::default() }
    }

    /// One node of one frame.
    fn node(vcpu: u32, first: u64) -> Nodes<'static> {
        Nodes { vcpu, first, count: 1, payload: &[0x11, 33] }
    }

    /// One count of 2, of the stack after this one.
    fn count(vcpu: u32, after: u64) -> Counts<'static> {
        Counts { epoch: 9, vcpu, after, count: 1, payload: &[1, 2] }
    }

    fn end(vcpu: u32, known: u64) -> VcpuEnd {
        VcpuEnd { epoch: 9, vcpu, known, samples: 2 }
    }

    #[test]
    fn counts_of_stacks_that_were_not_sent_are_rejected_on_the_wire() {
        let mut epochs = Epochs::new(EpochProgress::on_the_wire());
        epochs.accept(&head()).unwrap();
        epochs.accept(&vcpu(0)).unwrap();
        epochs.accept(&node(0, 100)).unwrap();
        let unknown = epochs.accept(&count(0, 100)).unwrap_err();
        let expected = NodeError::Unknown { vcpu: 0, number: 101 };
        assert_eq!(unknown, EpochError::Nodes(expected));
        // In a file the stacks may follow.
        let mut epochs = Epochs::new(EpochProgress::default());
        epochs.accept(&head()).unwrap();
        assert!(epochs.accept(&head()).is_err(), "the head comes once");
        epochs.accept(&vcpu(0)).unwrap();
        assert_eq!(epochs.accept(&count(0, 100)).unwrap(), "Counts");
    }

    #[test]
    fn frames_out_of_place_are_rejected() {
        let mut epochs = Epochs::new(EpochProgress::on_the_wire());
        assert!(matches!(epochs.accept(&end(0, 0)), Err(EpochError::OutOfPlace { .. })));
        epochs.accept(&head()).unwrap();
        assert!(epochs.accept(&node(0, 100)).is_err(), "nodes of no vCPU");
        assert!(epochs.accept(&count(0, 100)).is_err(), "counts of no vCPU");
        epochs.accept(&vcpu(1)).unwrap();
        assert!(epochs.accept(&head()).is_err(), "two heads");
        assert!(epochs.accept(&node(0, 100)).is_err(), "another vCPU's nodes");
        assert!(epochs.accept(&count(0, 99)).is_err(), "another vCPU's counts");
        assert!(epochs.accept(&end(0, 0)).is_err(), "another vCPU's end");
        let none = Counts { count: 0, payload: &[], ..count(1, 99) };
        assert!(epochs.accept(&none).is_err(), "an empty run");
        epochs.accept(&end(1, 0)).unwrap();
        assert!(epochs.accept(&vcpu(1)).is_err(), "the same vCPU again");
        let foreign = VcpuEpoch { epoch: 8, ..vcpu(2) };
        let other = EpochError::OtherEpoch { expected: 9, found: 8 };
        assert_eq!(epochs.accept(&foreign), Err(other.clone()));
        let foreign = Epoch { epoch: 8, ..head() };
        assert_eq!(epochs.accept(&foreign), Err(other));
        epochs.accept(&vcpu(2)).unwrap();
        epochs.accept(&end(2, 0)).unwrap();
        assert!(epochs.accept(&vcpu(3)).is_err(), "more than the head says");
    }
}
