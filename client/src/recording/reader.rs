//! Reading a recording file.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use unikprof_proto::code::start_flag;
use unikprof_proto::file::BlockHead;
use unikprof_proto::frame::{self, Frame as WireFrame, Message};
use unikprof_proto::message::{self, Epoch, EpochEnd, Welcome};
use unikprof_proto::preamble::VERSIONS;

use super::block;
use super::completeness::Completeness;
use super::epoch::{EpochProgress, Part};
use super::error::{Damage, RecordingError};
use super::format::{self, FileEnd, FileHeader, FileWindow, PREAMBLE, VERSION};
use super::rings::Rings;
use super::stacks::Stacks;
use super::totals::Totals;
use crate::agent_info::{AgentInfo, MAX_MAPPINGS, MappingError};
use crate::frame_reader::{FrameReadError, FrameReader};
use crate::printable::Printable;
use crate::profile::{Architecture, Mode, Profile, ProfileBuilder, RecordingInfo, Unwind};
use crate::timeline::{RecordingSpan, RingOrder, Timeline, Window};

/// What to do with a damaged file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reading {
    /// Refuse it.
    #[default]
    Strict,
    /// Read what comes before the damage, and say so in the profile's warnings.
    Salvage,
}

/// A recording file in memory.
#[derive(Debug, Clone)]
pub struct Recording {
    /// What was sampled.
    pub profile: Profile,
    /// The agent and its guest when the client connected.
    pub agent: AgentInfo,
    /// The client that wrote the file.
    pub client: String,
    /// Nanoseconds since 1970-01-01 UTC when it connected.
    pub created_unix_ns: u64,
    /// How many epochs the file holds, a cut one included.
    pub epochs: u32,
    /// Whether anything is missing.
    pub completeness: Completeness,
    /// How often the guest was suspended and resumed meanwhile.
    pub gaps: u32,
    /// Where the recording contradicts itself; the profile's warnings hold these too.
    pub contradictions: Vec<String>,
    /// What the guest's rings held, where it has them.
    pub timeline: Option<Timeline>,
    /// The recording in the timeline: its lane, its beginning and its end.
    pub span: Option<RecordingSpan>,
    /// The window that was asked for when the file was made.
    pub asked: Option<Window>,
}

impl Recording {
    /// Reads a file.
    ///
    /// # Errors
    /// [`RecordingError`]; with [`Reading::Salvage`] only where nothing can be read.
    pub fn open(path: &Path, reading: Reading) -> Result<Recording, RecordingError> {
        let open = |source| RecordingError::Open {
            path: path.into(),
            source,
        };
        let file = File::open(path).map_err(open)?;
        if file.metadata().map_err(open)?.is_dir() {
            return Err(open(io::Error::new(
                io::ErrorKind::IsADirectory,
                "it is a directory",
            )));
        }
        Recording::read(BufReader::new(file), path, reading)
    }

    /// The profile of the window that was asked for when the file was made, where one was.
    pub fn part_asked(&self) -> Option<Profile> {
        let (timeline, of) = self.timeline.as_ref().zip(self.span)?;
        Some(timeline.profile(&self.profile, &of, self.asked?, None))
    }

    /// Reads a file's bytes; `path` is for messages.
    ///
    /// # Errors
    /// As [`Recording::open`].
    pub fn read(
        mut source: impl Read,
        path: &Path,
        reading: Reading,
    ) -> Result<Recording, RecordingError> {
        let preamble = read_preamble(&mut source, path)?;
        if !preamble.starts_with(&BlockHead::MAGIC) {
            return Recording::read_file(&preamble, source, path, reading);
        }
        let file = block::file(&preamble, source, path, reading)?;
        let mut rest = &file[..];
        let preamble = read_preamble(&mut rest, path)?;
        Recording::read_file(&preamble, rest, path, reading)
    }

    /// Reads what follows a file's preamble.
    fn read_file(
        preamble: &[u8],
        source: impl Read,
        path: &Path,
        reading: Reading,
    ) -> Result<Recording, RecordingError> {
        let versions = preamble.first_chunk().and_then(format::versions);
        let Some((file, protocol)) = versions else {
            return Err(RecordingError::NotARecording {
                path: path.into(),
                found: preamble.to_owned(),
            });
        };
        if file != VERSION || !(VERSIONS.lowest..=VERSIONS.highest).contains(&protocol) {
            return Err(RecordingError::Version {
                path: path.into(),
                file,
                protocol,
            });
        }
        let mut frames = FrameReader::new(source);
        let damaged = |offset: u64, source, salvageable| RecordingError::Damaged {
            path: path.into(),
            offset: offset + PREAMBLE as u64,
            source,
            salvageable,
        };
        let mut contents =
            Contents::begin(&mut frames).map_err(|e| damaged(frames.offset(), e, false))?;
        let damage = match contents.read_on(&mut frames) {
            Ok(()) => None,
            Err(damage) if reading == Reading::Salvage => Some(format!(
                "the file is damaged at byte {}: {damage}; this is what comes before",
                frames.offset() + PREAMBLE as u64
            )),
            Err(damage) => return Err(damaged(frames.offset(), damage, true)),
        };
        Ok(contents.finish(damage))
    }
}

fn read_preamble(source: &mut impl Read, path: &Path) -> Result<Vec<u8>, RecordingError> {
    let mut preamble = Vec::with_capacity(PREAMBLE);
    match source.take(PREAMBLE as u64).read_to_end(&mut preamble) {
        Ok(_) => Ok(preamble),
        Err(source) => Err(RecordingError::Open {
            path: path.into(),
            source,
        }),
    }
}

/// What was read so far.
struct Contents {
    client: String,
    created_unix_ns: u64,
    agent: AgentInfo,
    builder: ProfileBuilder,
    totals: Totals,
    info: RecordingInfo,
    /// What all epochs have in common, once one told it.
    recording: Option<Settings>,
    epochs: u32,
    gaps: u32,
    progress: EpochProgress,
    stacks: Stacks,
    /// What the counters of the current epoch say that its stacks hold.
    counted: u64,
    contradictions: Vec<String>,
    rings: Rings,
    /// Recordings that the file tells of without counts.
    heads: Vec<(RecordingSpan, RecordingInfo)>,
    /// The recording whose counts these are.
    span: Option<RecordingSpan>,
    asked: Option<Window>,
    end: Option<Completeness>,
}

/// What makes counts of several epochs ones that can be added up.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Settings {
    recording: u64,
    period_ns: u64,
    mode: u32,
}

impl Contents {
    /// Reads what comes before the epochs.
    fn begin<R: Read>(frames: &mut FrameReader<R>) -> Result<Contents, Damage> {
        let header: FileHeader<'_> = expect(frames, "the file's header")?;
        let (client, created_unix_ns) = (header.client.to_owned(), header.created_unix_ns);
        let welcome: Welcome<'_> = expect(frames, "a welcome")?;
        let mappings = welcome.mappings;
        let mut agent = AgentInfo::new(&welcome);
        if mappings > MAX_MAPPINGS {
            return Err(MappingError::TooMany(mappings).into());
        }
        for _ in 0..mappings {
            let mapping: message::Mapping<'_> = expect(frames, "a mapping")?;
            agent.mappings.add(&mapping)?;
        }
        Ok(Contents {
            client,
            created_unix_ns,
            agent,
            builder: ProfileBuilder::new(),
            totals: Totals::default(),
            info: RecordingInfo::default(),
            recording: None,
            epochs: 0,
            gaps: 0,
            progress: EpochProgress::default(),
            stacks: Stacks::default(),
            counted: 0,
            contradictions: Vec::new(),
            rings: Rings::default(),
            heads: Vec::new(),
            span: None,
            asked: None,
            end: None,
        })
    }

    /// Reads the epochs and the end.
    fn read_on<R: Read>(&mut self, frames: &mut FrameReader<R>) -> Result<(), Damage> {
        while let Some(kind) = next(frames)? {
            let frame = frames.frame();
            if self.end.is_some() {
                return Err(Damage::AfterEnd);
            }
            if kind == FileEnd::TYPE {
                let end: FileEnd<'_> = frame::decode(&frame)?;
                if end.complete && (self.progress.is_open() || self.rings.is_open()) {
                    return Err(Damage::OutOfPlace {
                        expected: match self.progress.is_open() {
                            true => "the end of an epoch",
                            false => "the end of a ring",
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
                self.asked = Some(Window {
                    from_ns: asked.from_ns,
                    to_ns: asked.to_ns,
                });
            } else if self.is_of_rings(kind) {
                self.rings.accept(&frame, &self.agent, &mut self.builder)?;
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

    /// Whether a frame of this type is about rings, here.
    fn is_of_rings(&self, kind: u16) -> bool {
        let is_free = !self.progress.is_open();
        is_free && RingOrder::takes(kind) && (kind != message::Nodes::TYPE || self.rings.is_open())
    }

    fn epoch_frame(&mut self, frame: &WireFrame<'_>) -> Result<(), Damage> {
        let Contents {
            progress,
            stacks,
            agent,
            builder,
            ..
        } = self;
        let mut wrong = None;
        let part = progress.accept(frame, |_, node| {
            if wrong.is_none() {
                wrong = stacks.add(node, agent, builder).err();
            }
        })?;
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        match part {
            Part::Epoch(epoch) => self.epoch(&epoch),
            Part::Vcpu(share) => {
                self.stacks.begin(share.vcpu);
                let counted = self.totals.add(&share, self.info.mode);
                self.counted = self.counted.saturating_add(counted);
                Ok(())
            }
            Part::Histogram(histogram) => {
                self.totals.set_histogram(&histogram);
                Ok(())
            }
            Part::End(end) => {
                self.epoch_end(&end);
                Ok(())
            }
            Part::Nodes | Part::Repeated | Part::Unknown => Ok(()),
        }
    }

    fn epoch(&mut self, epoch: &Epoch<'_>) -> Result<(), Damage> {
        let span = RecordingSpan {
            recording: Some(epoch.recording),
            lane: epoch.lane,
            window: Window {
                from_ns: epoch.recording_started_ns,
                ..Window::ALL
            },
        };
        if epoch.vcpus == 0 {
            // Nothing was counted: who it is, for the rings' samples.
            self.heads.push((span, self.info_of(epoch)));
            return Ok(());
        }
        self.span = Some(span);
        let this = Settings {
            recording: epoch.recording,
            period_ns: epoch.period_ns,
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
            depth: epoch.depth,
            fixed_interval: epoch.flags & start_flag::FIXED_INTERVAL != 0,
            caller_table: epoch.caller_table,
            unwind: match epoch.flags & start_flag::UNWIND_TABLE {
                0 => Unwind::FramePointers,
                _ => Unwind::Table,
            },
            started_unix_ns: epoch
                .ended_wall_clock_ns
                .and_then(|ended| ended.checked_sub(length_ns)),
            late_threshold_ns: epoch.late_threshold_ns,
            ..self.info_of_agent()
        }
    }

    fn info_of_agent(&self) -> RecordingInfo {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        RecordingInfo {
            guest_name: text(&self.agent.guest_name),
            guest_id: text(&self.agent.guest_id),
            agent_version: self.agent.agent_version.clone(),
            architecture: Architecture::from_name(&self.agent.architecture),
            ..RecordingInfo::default()
        }
    }

    fn epoch_end(&mut self, end: &EpochEnd) {
        let progress = std::mem::take(&mut self.progress);
        let counted = std::mem::take(&mut self.counted);
        let found = progress.samples();
        // A hostile file must not fill the screen.
        const MOST: usize = 32;
        if (found != end.samples || found != counted) && self.contradictions.len() < MOST {
            self.contradictions.push(format!(
                "the counts of epoch {} do not add up: its stacks hold {found}, its end says {}, \
                 its counters {counted}",
                end.epoch, end.samples
            ));
        }
    }

    fn finish(mut self, damage: Option<String>) -> Recording {
        let cut_epoch = self.progress.is_open();
        let completeness = match (damage, self.end.take()) {
            (Some(damage), _) => Completeness::Salvaged(damage),
            (None, Some(end)) => end,
            // `read_on` calls a missing end damage.
            (None, None) => Completeness::Salvaged(Damage::NoEnd.to_string()),
        };
        let mut warnings = Vec::new();
        if let Completeness::Incomplete(reason) | Completeness::Salvaged(reason) = &completeness {
            warnings.push(format!("the recording is incomplete: {reason}"));
        }
        if cut_epoch {
            warnings.push(format!(
                "the last epoch is cut: its stacks hold {} {}, of at least {} that its counters tell of",
                self.progress.samples(),
                self.info.mode.unit(),
                self.counted
            ));
        }
        let is_ring_cut = self.rings.is_open();
        if is_ring_cut {
            warnings.push(
                "the ring of a vCPU is cut: its newest records or its stacks are missing".into(),
            );
        }
        let mut timeline = std::mem::take(&mut self.rings).finish(&mut self.builder);
        let mut span = self.span;
        if let Some(timeline) = &mut timeline {
            for known in self.heads.iter().map(|(span, _)| *span).chain(span) {
                timeline.know(known);
            }
            // Its end, where the rings tell it.
            span = match span.and_then(|span| span.recording) {
                Some(id) => timeline.recording(id),
                None => timeline.busiest(),
            };
        }
        if self.epochs == 0 {
            match (&timeline, span) {
                (Some(timeline), Some(span)) => {
                    self.info = self.info_of_span(&span);
                    warnings.extend(about_rings_alone(timeline, &span));
                }
                _ => warnings.push("the file holds no samples at all".into()),
            }
        }
        if self.gaps > 0 {
            warnings.push(format!(
                "the guest was suspended and resumed {} times; what happened in between was not sampled",
                self.gaps
            ));
        }
        let (vcpus, of_totals) = self.totals.finish(self.info.mode, self.info.period_ns);
        self.contradictions.extend(of_totals);
        warnings.extend(self.contradictions.iter().cloned());
        self.info.warnings = warnings;
        for mapping in self.agent.mappings.iter() {
            self.builder.add_mapping(mapping.clone());
        }
        for stats in vcpus {
            self.builder.add_vcpu(stats);
        }
        self.builder.set_recording(self.info);
        let mut profile = self.builder.finish();
        if self.epochs == 0
            && let Some((timeline, span)) = timeline.as_ref().zip(span)
        {
            profile = timeline.profile(&profile, &span, Window::ALL, None);
        }
        Recording {
            profile,
            agent: self.agent,
            client: self.client,
            created_unix_ns: self.created_unix_ns,
            epochs: self.epochs,
            completeness,
            gaps: self.gaps,
            contradictions: self.contradictions,
            timeline,
            span,
            asked: self.asked,
        }
    }

    /// What is known of a recording that the rings alone tell of.
    fn info_of_span(&self, span: &RecordingSpan) -> RecordingInfo {
        let same = |(known, _): &&(RecordingSpan, _)| known.recording == span.recording;
        match self.heads.iter().find(same) {
            Some((_, info)) => info.clone(),
            None => RecordingInfo {
                name: name_of(span),
                ..self.info_of_agent()
            },
        }
    }
}

/// A recording without a name.
fn name_of(span: &RecordingSpan) -> String {
    match span.recording {
        Some(id) => format!("recording {id}"),
        None => format!("lane {}", span.lane),
    }
}

fn about_rings_alone(timeline: &Timeline, span: &RecordingSpan) -> Vec<String> {
    let mut warnings = vec![
        "the file holds no counts: all it shows is what was still in the guest's rings".to_owned(),
    ];
    let all = timeline.recordings();
    let others: Vec<String> = all
        .iter()
        .filter(|other| *other != span)
        .map(name_of)
        .collect();
    if !others.is_empty() {
        warnings.push(format!(
            "the rings hold other recordings as well: {}; this is {}, which has the most samples",
            others.join(", "),
            name_of(span)
        ));
    }
    warnings
}

/// Goes to the next frame.
fn next<R: Read>(frames: &mut FrameReader<R>) -> Result<Option<u16>, Damage> {
    frames.advance().map_err(|error| match error {
        FrameReadError::Io(error) => Damage::Io(error),
        FrameReadError::Frame(error) => Damage::Frame(error),
        FrameReadError::Cut(_) => Damage::Cut,
    })
}

/// The next frame, which must be this message.
fn expect<'a, R: Read, M: Message<'a>>(
    frames: &'a mut FrameReader<R>,
    expected: &'static str,
) -> Result<M, Damage> {
    match next(frames)? {
        None => Err(Damage::NoEnd),
        Some(found) if found == M::TYPE => Ok(frame::decode(&frames.frame())?),
        Some(found) => Err(Damage::OutOfPlace { expected, found }),
    }
}
