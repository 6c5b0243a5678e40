//! A file's frames, one after the other, and what they add up to.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use unikprof_proto::code::start_flag;
use unikprof_proto::frame::{self, Frame as WireFrame, Message};
use unikprof_proto::live;
use unikprof_proto::message::{self, Epoch, LiveSamples, Nodes, Snapshot, VcpuEnd, Welcome};

use super::completeness::Completeness;
use super::epoch::{EpochError, EpochProgress, Part};
use super::error::Damage;
use super::format::{FileEnd, FileHeader, FileWindow};
use super::known_nodes::{KnownNodes, NodeOrder};
use super::rings::Rings;
use super::stacks::Stacks;
use super::totals::Totals;
use super::traces;
use crate::agent_info::{AgentInfo, MAX_MAPPINGS, MappingError};
use crate::frame_reader::FrameReader;
use crate::printable::Printable;
use crate::profile::{Architecture, Mode, NodeId, ProfileBuilder, RecordingInfo, Unwind};
use crate::timeline::{RecordingSpan, RingOrder, Window};
use crate::trace::Trace;

/// What was read so far.
pub(super) struct Contents {
    pub(super) created_unix_ns: u64,
    pub(super) agent: AgentInfo,
    pub(super) builder: ProfileBuilder,
    pub(super) totals: Totals,
    /// By vCPU, how its time had gone at an epoch's beginning and end.
    pub(super) told: Vec<(u32, [Snapshot; 2])>,
    pub(super) info: RecordingInfo,
    /// What all epochs have in common, once one told it.
    recording: Option<Settings>,
    pub(super) epochs: u32,
    pub(super) gaps: u32,
    /// When the last vCPU's last share ended.
    pub(super) last_told_ns: u64,
    pub(super) progress: EpochProgress,
    nodes: KnownNodes,
    pub(super) stacks: Stacks,
    /// What the counters of the current epoch say that its stacks hold, so far and on the current
    /// vCPU.
    pub(super) counted: u64,
    counted_on_vcpu: u64,
    pub(super) contradictions: Vec<String>,
    pub(super) rings: Rings,
    pub(super) trace: Option<Trace>,
    /// Recordings that the file tells of without counts.
    pub(super) heads: Vec<(RecordingSpan, RecordingInfo)>,
    /// The recording whose counts these are.
    pub(super) span: Option<RecordingSpan>,
    pub(super) asked: Option<Window>,
    pub(super) end: Option<Completeness>,
    /// What other files of the same recording hold already.
    pub(super) seen: Seen,
    /// Whether the current epoch is one of these.
    is_seen: bool,
    /// The epochs that were counted, and those that were left out because they are in another file.
    pub(super) counted_epochs: Vec<EpochSpan>,
    pub(super) repeated_epochs: Vec<u64>,
    /// What each epoch counted, if that is kept.
    pub(super) epoch_counts: Vec<EpochCounts>,
}

/// What was counted in a part of the time.
#[derive(Debug, Clone)]
pub struct EpochCounts {
    /// On the clock of the timeline: the guest's monotonic one, of several runs the first one's.
    pub window: Window,
    /// Stacks with their counts; a stack may occur several times.
    pub stacks: Vec<(NodeId, u64)>,
}

/// What other files of one instance of an agent hold: it is counted once.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The numbers of the recording's epochs.
    pub(super) epochs: BTreeSet<u64>,
    /// By vCPU, the position after the last record.
    pub(super) records: BTreeMap<u32, u64>,
}

/// An epoch in time, on the guest's monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EpochSpan {
    pub(super) epoch: u64,
    pub(super) window: Window,
}

/// What makes counts of several epochs ones that can be added up.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Settings {
    recording: u64,
    period_ns: u64,
    interval_bytes: u64,
    mode: u32,
}

impl Contents {
    /// Reads what comes before the epochs.
    pub(super) fn begin<R: Read>(frames: &mut FrameReader<R>) -> Result<Contents, Damage> {
        let header: FileHeader<'_> = expect(frames, "the file's header")?;
        let created_unix_ns = header.created_unix_ns;
        let welcome: Welcome<'_> = expect(frames, "a welcome")?;
        let mappings = welcome.mappings;
        let mut agent = AgentInfo::new(&welcome);
        let nodes = KnownNodes::new(welcome.segment_nodes);
        if mappings > MAX_MAPPINGS {
            return Err(MappingError::TooMany(mappings).into());
        }
        for _ in 0..mappings {
            let mapping: message::Mapping<'_> = expect(frames, "a mapping")?;
            agent.mappings.add(&mapping)?;
        }
        Ok(Contents {
            created_unix_ns,
            agent,
            builder: ProfileBuilder::new(),
            totals: Totals::default(),
            told: Vec::new(),
            info: RecordingInfo::default(),
            recording: None,
            epochs: 0,
            gaps: 0,
            last_told_ns: 0,
            progress: EpochProgress::default(),
            nodes,
            stacks: Stacks::default(),
            counted: 0,
            counted_on_vcpu: 0,
            contradictions: Vec::new(),
            rings: Rings::default(),
            trace: None,
            heads: Vec::new(),
            span: None,
            asked: None,
            end: None,
            seen: Seen::default(),
            is_seen: false,
            counted_epochs: Vec::new(),
            repeated_epochs: Vec::new(),
            epoch_counts: Vec::new(),
        })
    }

    /// Reads up to the first epoch that has counts: the recording, and where that epoch lies.
    /// `None` if the file holds no counts.
    pub(super) fn first_epoch<R: Read>(
        frames: &mut FrameReader<R>,
    ) -> Result<Option<(u64, EpochSpan)>, Damage> {
        while let Some(kind) = frames.advance()? {
            if kind != Epoch::TYPE {
                continue;
            }
            let epoch: Epoch<'_> = frame::decode(&frames.frame())?;
            if epoch.vcpus != 0 {
                return Ok(Some((epoch.recording, EpochSpan::of(&epoch))));
            }
        }
        Ok(None)
    }

    /// Leaves out what other files hold.
    pub(super) fn skip(&mut self, seen: Seen) {
        self.rings.skip(&seen.records);
        self.seen = seen;
    }

    /// Reads the epochs and the end.
    pub(super) fn read_on<R: Read>(&mut self, frames: &mut FrameReader<R>) -> Result<(), Damage> {
        while let Some(kind) = frames.advance()? {
            let frame = frames.frame();
            if self.end.is_some() {
                return Err(Damage::AfterEnd);
            }
            if kind == FileEnd::TYPE {
                let end: FileEnd<'_> = frame::decode(&frame)?;
                if end.complete && (self.progress.is_open() || self.rings.is_open()) {
                    return Err(Damage::OutOfPlace {
                        expected: if self.progress.is_open() {
                            "the end of an epoch"
                        } else {
                            "the end of a ring"
                        },
                        found: kind,
                    });
                }
                self.end = Some(if end.complete {
                    Completeness::Complete
                } else {
                    Completeness::Incomplete(Printable(end.reason).to_string())
                });
            } else if kind == FileWindow::TYPE {
                let asked: FileWindow = frame::decode(&frame)?;
                self.asked = Some(Window { from_ns: asked.from_ns, to_ns: asked.to_ns });
            } else if traces::takes(kind) {
                traces::accept(&mut self.trace, &frame)?;
            } else if kind == Nodes::TYPE {
                self.nodes(&frame::decode(&frame)?)?;
            } else if !self.progress.is_open() && RingOrder::takes(kind) {
                self.rings.accept(&frame)?;
            } else if kind == message::VcpuEpoch::TYPE
                && self.epochs == 0
                && !self.progress.is_open()
            {
                // What a crashed guest had counted: its rings tell more.
                let _: message::VcpuEpoch = frame::decode(&frame)?;
            } else {
                self.epoch_frame(&frame)?;
            }
        }
        match self.end {
            Some(_) => Ok(()),
            None => Err(Damage::NoEnd),
        }
    }

    /// Stack nodes belong to the vCPU, wherever they come.
    fn nodes(&mut self, run: &Nodes<'_>) -> Result<(), Damage> {
        let Contents { nodes, stacks, .. } = self;
        nodes.add(run, NodeOrder::Any, |number, node| {
            stacks.add_node(run.vcpu, number, node);
        })?;
        Ok(())
    }

    fn epoch_frame(&mut self, frame: &WireFrame<'_>) -> Result<(), Damage> {
        let Contents { progress, stacks, nodes, .. } = self;
        let is_seen = self.is_seen;
        let part = progress.accept(frame, nodes, |vcpu, number, count| {
            if !is_seen {
                stacks.add_count(vcpu, number, count);
            }
        })?;
        match part {
            Part::Epoch(epoch) => self.epoch(&epoch),
            Part::Vcpu(_) | Part::Histogram(_) | Part::Live(_) if is_seen => Ok(()),
            Part::End(..) if is_seen => {
                self.end_epoch();
                Ok(())
            }
            Part::Vcpu(share) => {
                self.last_told_ns = self.last_told_ns.max(share.end.at_ns);
                self.told.push((share.vcpu, [share.start, share.end]));
                let counted = self.totals.add(&share, self.info.mode);
                self.counted = self.counted.saturating_add(counted);
                self.counted_on_vcpu = counted;
                Ok(())
            }
            Part::Histogram(histogram) => {
                self.totals.add_histogram(&histogram);
                Ok(())
            }
            Part::Live(run) => self.live(&run),
            Part::End(end, found) => {
                self.vcpu_end(&end, found);
                Ok(())
            }
            Part::Nodes | Part::Counts | Part::Repeated | Part::Unknown => Ok(()),
        }
    }

    /// What was held at the end of the current epoch.
    fn live(&mut self, run: &LiveSamples<'_>) -> Result<(), Damage> {
        let epoch = self.counted_epochs.len().saturating_sub(1);
        let stacks = &mut self.stacks;
        live::decode(run.base_ns, run.count, run.payload, |sample| {
            stacks.add_held(run.vcpu, epoch, sample);
        })
        .map_err(EpochError::from)?;
        Ok(())
    }

    fn epoch(&mut self, epoch: &Epoch<'_>) -> Result<(), Damage> {
        let span = RecordingSpan {
            recording: Some(epoch.recording),
            ring_bit: epoch.ring_bit,
            window: Window { from_ns: epoch.recording_started_ns, ..Window::ALL },
        };
        if epoch.vcpus == 0 {
            // It describes a recording for the samples in the rings. Nothing else belongs to it.
            self.progress = EpochProgress::default();
            self.heads.push((span, self.info_of(epoch)));
            return Ok(());
        }
        self.span = Some(span);
        let this = Settings {
            recording: epoch.recording,
            period_ns: epoch.period_ns,
            interval_bytes: epoch.interval_bytes,
            mode: epoch.mode,
        };
        match self.recording {
            Some(first) if first != this => {
                return Err(Damage::TwoRecordings {
                    first: first.recording,
                    second: this.recording,
                });
            }
            Some(_) => {}
            None => {
                self.recording = Some(this);
                self.info = self.info_of(epoch);
            }
        }
        self.is_seen = self.seen.epochs.contains(&epoch.epoch);
        if self.is_seen {
            self.repeated_epochs.push(epoch.epoch);
            return Ok(());
        }
        self.counted_epochs.push(EpochSpan::of(epoch));
        self.stacks.begin_epoch();
        self.epochs = self.epochs.saturating_add(1);
        self.gaps = self.gaps.max(epoch.gaps);
        let info = &mut self.info;
        let elapsed_ns = epoch.ended_ns.saturating_sub(epoch.started_ns);
        info.elapsed_ns = info.elapsed_ns.saturating_add(elapsed_ns);
        info.server_ns = info.server_ns.saturating_add(epoch.server_ns);
        Ok(())
    }

    fn info_of(&self, epoch: &Epoch<'_>) -> RecordingInfo {
        let length_ns = epoch.ended_ns.saturating_sub(epoch.started_ns);
        RecordingInfo {
            name: epoch.name.into(),
            mode: Mode::from_code(epoch.mode),
            period_ns: epoch.period_ns,
            interval_bytes: epoch.interval_bytes,
            depth: epoch.depth,
            fixed_interval: epoch.flags & start_flag::FIXED_INTERVAL != 0,
            caller_table: epoch.caller_table,
            unwind: match epoch.flags & start_flag::UNWIND_TABLE {
                0 => Unwind::FramePointers,
                _ => Unwind::Table,
            },
            started_unix_ns: epoch
                .ended_wall_clock_ns
                .and_then(|ended| ended.checked_sub(length_ns))
                .or_else(|| {
                    self.agent.client_clock(self.created_unix_ns).unix_ns(epoch.started_ns)
                }),
            late_threshold_ns: epoch.late_threshold_ns,
            ..self.info_of_agent()
        }
    }

    pub(super) fn info_of_agent(&self) -> RecordingInfo {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        RecordingInfo {
            guest_name: text(&self.agent.guest_name),
            guest_id: text(&self.agent.guest_id),
            agent_version: self.agent.agent_version.clone(),
            agent_memory_bytes: self.agent.memory_bytes,
            architecture: Architecture::from_name(&self.agent.architecture),
            ..RecordingInfo::default()
        }
    }

    /// Ends the epoch if the shares of all vCPUs are complete.
    fn end_epoch(&mut self) {
        if self.progress.is_whole() {
            self.progress = EpochProgress::default();
            self.counted = 0;
        }
    }

    /// Compares the sum of a vCPU's counts with what its end and its counters say.
    fn vcpu_end(&mut self, end: &VcpuEnd, found: u64) {
        self.end_epoch();
        let counted = match self.info.mode {
            // The counters count what was sampled, of which some is freed.
            Mode::Live => found,
            _ => self.counted_on_vcpu,
        };
        // A hostile file must not fill the screen.
        const MOST: usize = 32;
        if (found != end.samples || found != counted) && self.contradictions.len() < MOST {
            self.contradictions.push(format!(
                "the counts of epoch {} on vCPU {} do not add up: {found} in stacks, {} at its \
                 end, {counted} in counters",
                end.epoch, end.vcpu, end.samples
            ));
        }
    }
}

impl EpochSpan {
    fn of(epoch: &Epoch<'_>) -> EpochSpan {
        EpochSpan {
            epoch: epoch.epoch,
            window: Window {
                from_ns: epoch.started_ns,
                to_ns: epoch.ended_ns.max(epoch.started_ns),
            },
        }
    }
}

/// The next frame, which must be this message.
fn expect<'a, R: Read, M: Message<'a>>(
    frames: &'a mut FrameReader<R>,
    expected: &'static str,
) -> Result<M, Damage> {
    match frames.advance()? {
        None => Err(Damage::NoEnd),
        Some(found) if found == M::TYPE => Ok(frame::decode(&frames.frame())?),
        Some(found) => Err(Damage::OutOfPlace { expected, found }),
    }
}
