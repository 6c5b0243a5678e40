//! The order of an epoch's frames, checked alike on the wire and in a file.

use thiserror::Error;
use unikprof_proto::frame::{self, Frame, FrameError, Message};
use unikprof_proto::message::{Epoch, EpochEnd, Histogram, Nodes, VcpuEpoch};
use unikprof_proto::nodes::{self, Node, NodesError};

use crate::connection::{is_known, message_name};

/// Where the next frame of an epoch stands, and what the frames so far add up to.
#[derive(Debug, Default)]
pub(crate) struct EpochProgress {
    head: Option<Head>,
    vcpu: Option<Vcpu>,
    vcpus_seen: u32,
    samples: u64,
    repeating: bool,
}

/// What identifies an epoch when it is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    epoch: u64,
    recording: u64,
    started_ns: u64,
    ended_ns: u64,
    vcpus: u32,
}

#[derive(Debug)]
struct Vcpu {
    number: u32,
    nodes: u32,
    /// The id of the next node.
    next: u32,
    histograms: Vec<u32>,
}

/// A frame in its place.
#[derive(Debug)]
pub(crate) enum Part<'a> {
    /// The head.
    Epoch(Epoch<'a>),
    /// The next vCPU.
    Vcpu(Box<VcpuEpoch>),
    /// A distribution of that vCPU.
    Histogram(Histogram<'a>),
    /// The next nodes of that vCPU; they have been visited.
    Nodes,
    /// The end: the epoch is whole.
    End(EpochEnd),
    /// Seen before the connection broke.
    Repeated,
    /// Of a type that this client does not know.
    Unknown,
}

/// Why a frame is not in its place.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EpochError {
    /// The frame is not its message.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// Another message belongs here.
    #[error("expected {expected}, found {}", message_name(*found))]
    OutOfPlace {
        /// What belongs here.
        expected: &'static str,
        /// The type of the message found.
        found: u16,
    },
    /// The frame belongs to another epoch.
    #[error("a frame belongs to epoch {found}, in the middle of epoch {expected}")]
    OtherEpoch {
        /// The epoch begun.
        expected: u64,
        /// The epoch named.
        found: u64,
    },
    /// The epoch is another one when it is sent again.
    #[error("epoch {0} has changed since its first part was sent")]
    Changed(u64),
    /// The vCPUs are not in rising order, or there are more than the epoch's head says.
    #[error("vCPU {found} is out of order")]
    VcpuOrder {
        /// The vCPU named.
        found: u32,
    },
    /// Nodes are missing, repeated, or more than the vCPU's head says.
    #[error("expected stack nodes from {expected} to at most {last}, found {count} from {found}")]
    NodeOrder {
        /// The id of the next node.
        expected: u32,
        /// The id of the vCPU's last node.
        last: u32,
        /// The id of the first node found.
        found: u32,
        /// How many nodes were found.
        count: u32,
    },
    /// The nodes are not nodes.
    #[error(transparent)]
    Nodes(#[from] NodesError),
    /// The end came too early.
    #[error(
        "the epoch ends after {vcpus} of {expected_vcpus} vCPUs and {missing} stack nodes too early"
    )]
    Unfinished {
        /// How many vCPUs there were.
        vcpus: u32,
        /// How many there should be.
        expected_vcpus: u32,
        /// How many nodes the last vCPU lacks.
        missing: u32,
    },
}

impl EpochProgress {
    /// Whether an epoch has begun and not ended.
    pub(crate) fn is_open(&self) -> bool {
        self.head.is_some()
    }

    /// The samples in the nodes so far.
    pub(crate) fn samples(&self) -> u64 {
        self.samples
    }

    /// The vCPU and node to fetch from.
    pub(crate) fn next(&self) -> (u32, u32) {
        match &self.vcpu {
            None => (0, 1),
            // Histograms come before nodes: with the last node, the vCPU is whole.
            Some(vcpu) if vcpu.nodes > 0 && vcpu.missing() == 0 => {
                (vcpu.number.saturating_add(1), 1)
            }
            Some(vcpu) => (vcpu.number, vcpu.next),
        }
    }

    /// Says that the epoch will be sent again from [`EpochProgress::next`] on: heads and
    /// histograms seen before are then repetitions.
    pub(crate) fn expect_repetition(&mut self) {
        self.repeating = self.is_open();
    }

    /// Checks the next frame, and hands nodes to `visit` with their ids.
    pub(crate) fn accept<'a>(
        &mut self,
        frame: &Frame<'a>,
        visit: impl FnMut(u32, Node<'_>),
    ) -> Result<Part<'a>, EpochError> {
        match frame.kind {
            Epoch::TYPE => self.head(frame::decode(frame)?),
            VcpuEpoch::TYPE => self.vcpu(frame::decode(frame)?),
            Histogram::TYPE => self.histogram(frame::decode(frame)?),
            Nodes::TYPE => self.nodes(&frame::decode(frame)?, visit),
            EpochEnd::TYPE => self.end(frame::decode(frame)?),
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
        match self.head {
            None => {
                self.head = Some(head);
                Ok(Part::Epoch(epoch))
            }
            Some(known) if self.repeating && known == head => Ok(Part::Repeated),
            Some(known) if self.repeating => Err(EpochError::Changed(known.epoch)),
            Some(_) => Err(self.out_of_place(Epoch::TYPE)),
        }
    }

    fn vcpu<'a>(&mut self, vcpu: VcpuEpoch) -> Result<Part<'a>, EpochError> {
        let head = self.belongs(VcpuEpoch::TYPE, vcpu.epoch)?;
        if let Some(known) = &self.vcpu {
            if self.repeating && known.number == vcpu.vcpu {
                return if known.nodes == vcpu.nodes {
                    Ok(Part::Repeated)
                } else {
                    Err(EpochError::Changed(head.epoch))
                };
            }
            if known.missing() > 0 {
                return Err(self.out_of_place(VcpuEpoch::TYPE));
            }
            if known.number >= vcpu.vcpu {
                return Err(EpochError::VcpuOrder { found: vcpu.vcpu });
            }
        }
        if self.vcpus_seen == head.vcpus {
            return Err(EpochError::VcpuOrder { found: vcpu.vcpu });
        }
        self.repeating = false;
        self.vcpus_seen += 1;
        self.vcpu = Some(Vcpu {
            number: vcpu.vcpu,
            nodes: vcpu.nodes,
            next: 1,
            histograms: Vec::new(),
        });
        Ok(Part::Vcpu(Box::new(vcpu)))
    }

    fn histogram<'a>(&mut self, histogram: Histogram<'a>) -> Result<Part<'a>, EpochError> {
        self.belongs(Histogram::TYPE, histogram.epoch)?;
        let repeating = self.repeating;
        let vcpu = self.current_vcpu(Histogram::TYPE, histogram.vcpu)?;
        if vcpu.histograms.contains(&histogram.kind) {
            return if repeating {
                Ok(Part::Repeated)
            } else {
                Err(self.out_of_place(Histogram::TYPE))
            };
        }
        if vcpu.next > 1 {
            return Err(self.out_of_place(Histogram::TYPE));
        }
        vcpu.histograms.push(histogram.kind);
        Ok(Part::Histogram(histogram))
    }

    fn nodes<'a>(
        &mut self,
        run: &Nodes<'a>,
        mut visit: impl FnMut(u32, Node<'_>),
    ) -> Result<Part<'a>, EpochError> {
        self.belongs(Nodes::TYPE, run.epoch)?;
        let vcpu = self.current_vcpu(Nodes::TYPE, run.vcpu)?;
        if run.first != vcpu.next || run.count == 0 || run.count > vcpu.missing() {
            return Err(EpochError::NodeOrder {
                expected: vcpu.next,
                last: vcpu.nodes,
                found: run.first,
                count: run.count,
            });
        }
        let mut samples = 0_u64;
        nodes::decode(run.first, run.count, run.payload, |id, node| {
            samples = samples.saturating_add(node.count);
            visit(id, node);
        })?;
        vcpu.next = vcpu.next.saturating_add(run.count);
        self.samples = self.samples.saturating_add(samples);
        self.repeating = false;
        Ok(Part::Nodes)
    }

    fn end<'a>(&mut self, end: EpochEnd) -> Result<Part<'a>, EpochError> {
        let head = self.belongs(EpochEnd::TYPE, end.epoch)?;
        let missing = self.vcpu.as_ref().map_or(0, Vcpu::missing);
        if self.vcpus_seen < head.vcpus || missing > 0 {
            return Err(EpochError::Unfinished {
                vcpus: self.vcpus_seen,
                expected_vcpus: head.vcpus,
                missing,
            });
        }
        Ok(Part::End(end))
    }

    fn belongs(&self, found: u16, epoch: u64) -> Result<Head, EpochError> {
        let head = self.head.ok_or_else(|| self.out_of_place(found))?;
        if head.epoch == epoch {
            Ok(head)
        } else {
            Err(EpochError::OtherEpoch {
                expected: head.epoch,
                found: epoch,
            })
        }
    }

    fn current_vcpu(&mut self, found: u16, number: u32) -> Result<&mut Vcpu, EpochError> {
        let error = self.out_of_place(found);
        match &mut self.vcpu {
            None => Err(error),
            Some(vcpu) if vcpu.number == number => Ok(vcpu),
            Some(_) => Err(EpochError::VcpuOrder { found: number }),
        }
    }

    fn out_of_place(&self, found: u16) -> EpochError {
        let expected = match (&self.head, &self.vcpu) {
            (None, _) => "the head of an epoch",
            (Some(_), None) => "a vCPU's share of an epoch",
            (Some(_), Some(vcpu)) if vcpu.missing() > 0 => "stack nodes",
            _ => "the next vCPU or the end of the epoch",
        };
        EpochError::OutOfPlace { expected, found }
    }
}

impl Vcpu {
    /// How many nodes are still to come.
    fn missing(&self) -> u32 {
        // `next` begins at 1 and moves by runs that fit.
        self.nodes - (self.next - 1)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use unikprof_proto::message::Snapshot;

    use super::*;

    fn accept<'m, M: Message<'m>>(
        progress: &mut EpochProgress,
        message: &M,
    ) -> Result<String, EpochError> {
        let mut buffer = [0; 512];
        frame::encode(message, &mut buffer).unwrap();
        let frame = frame::split(&buffer).unwrap().unwrap();
        progress.accept(&frame, |_, _| ()).map(|part| {
            let shown = format!("{part:?}");
            shown.split('(').next().unwrap().to_owned()
        })
    }

    fn head() -> Epoch<'static> {
        Epoch {
            epoch: 9,
            recording: 4,
            lane: 0,
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

    fn vcpu(vcpu: u32, nodes: u32) -> VcpuEpoch {
        VcpuEpoch {
            epoch: 9,
            vcpu,
            start: Snapshot::default(),
            end: Snapshot::default(),
            nodes,
        }
    }

    fn histogram(vcpu: u32) -> Histogram<'static> {
        Histogram {
            epoch: 9,
            vcpu,
            kind: 0,
            max: 1,
            buckets: &[],
        }
    }

    /// One node of one frame with the count 2.
    fn node(vcpu: u32, first: u32) -> Nodes<'static> {
        Nodes {
            epoch: 9,
            vcpu,
            first,
            count: 1,
            payload: &[0x31, 33, 2],
        }
    }

    const END: EpochEnd = EpochEnd {
        epoch: 9,
        samples: 6,
    };

    #[test]
    fn a_whole_epoch_passes_and_is_counted() {
        let mut progress = EpochProgress::default();
        assert_eq!(accept(&mut progress, &head()).unwrap(), "Epoch");
        assert_eq!(accept(&mut progress, &vcpu(0, 2)).unwrap(), "Vcpu");
        assert_eq!(accept(&mut progress, &histogram(0)).unwrap(), "Histogram");
        assert_eq!(accept(&mut progress, &node(0, 1)).unwrap(), "Nodes");
        assert_eq!(progress.next(), (0, 2));
        assert_eq!(accept(&mut progress, &node(0, 2)).unwrap(), "Nodes");
        assert_eq!(progress.next(), (1, 1));
        assert_eq!(accept(&mut progress, &vcpu(3, 1)).unwrap(), "Vcpu");
        assert_eq!(accept(&mut progress, &node(3, 1)).unwrap(), "Nodes");
        assert_eq!(accept(&mut progress, &END).unwrap(), "End");
        assert_eq!(progress.samples(), 6);
    }

    #[test]
    fn an_epoch_taken_up_again_repeats_only_what_it_may() {
        let mut progress = EpochProgress::default();
        accept(&mut progress, &head()).unwrap();
        accept(&mut progress, &vcpu(0, 2)).unwrap();
        accept(&mut progress, &histogram(0)).unwrap();
        accept(&mut progress, &node(0, 1)).unwrap();
        assert!(
            accept(&mut progress, &vcpu(0, 2)).is_err(),
            "not repeating yet"
        );
        progress.expect_repetition();
        assert_eq!(accept(&mut progress, &head()).unwrap(), "Repeated");
        assert_eq!(accept(&mut progress, &vcpu(0, 2)).unwrap(), "Repeated");
        assert_eq!(accept(&mut progress, &histogram(0)).unwrap(), "Repeated");
        assert_eq!(accept(&mut progress, &node(0, 2)).unwrap(), "Nodes");
        progress.expect_repetition();
        let other = Epoch {
            ended_ns: 6,
            ..head()
        };
        assert_eq!(accept(&mut progress, &other), Err(EpochError::Changed(9)));
        assert_eq!(
            accept(&mut progress, &vcpu(0, 7)),
            Err(EpochError::Changed(9))
        );
    }

    #[test]
    fn frames_out_of_place_are_refused() {
        let mut progress = EpochProgress::default();
        assert!(matches!(
            accept(&mut progress, &END),
            Err(EpochError::OutOfPlace { .. })
        ));
        accept(&mut progress, &head()).unwrap();
        assert!(accept(&mut progress, &head()).is_err(), "two heads");
        assert!(
            accept(&mut progress, &node(0, 1)).is_err(),
            "nodes of no vCPU"
        );
        accept(&mut progress, &vcpu(1, 1)).unwrap();
        assert!(
            accept(&mut progress, &node(0, 1)).is_err(),
            "another vCPU's nodes"
        );
        assert!(accept(&mut progress, &node(1, 2)).is_err(), "a gap");
        assert!(matches!(
            accept(&mut progress, &END),
            Err(EpochError::Unfinished {
                vcpus: 1,
                expected_vcpus: 2,
                missing: 1
            })
        ));
        accept(&mut progress, &node(1, 1)).unwrap();
        assert!(accept(&mut progress, &node(1, 2)).is_err(), "one too many");
        assert!(
            accept(&mut progress, &vcpu(1, 1)).is_err(),
            "the same vCPU again"
        );
        let foreign = VcpuEpoch {
            epoch: 8,
            ..vcpu(2, 0)
        };
        assert_eq!(
            accept(&mut progress, &foreign),
            Err(EpochError::OtherEpoch {
                expected: 9,
                found: 8
            })
        );
        accept(&mut progress, &vcpu(2, 0)).unwrap();
        assert!(
            accept(&mut progress, &vcpu(3, 0)).is_err(),
            "more than the head says"
        );
    }
}
