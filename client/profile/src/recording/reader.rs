//! Reading a recording file.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use unikprof_proto::file::BlockHead;
use unikprof_proto::preamble::VERSIONS;

use super::block;
use super::completeness::Completeness;
use super::contents::{Contents, EpochCounts};
use super::error::{Damage, RecordingError};
use super::format::{self, PREAMBLE, VERSION};
use super::merge;
use crate::agent_info::AgentInfo;
use crate::frame_reader::FrameReader;
use crate::profile::Profile;
use crate::recover;
use crate::timeline::{RecordingSpan, Timeline, Window};
use crate::trace::Trace;

/// What to do with a damaged file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reading {
    /// Refuse it.
    #[default]
    Strict,
    /// Read the data before the damage, and report that in the profile's warnings.
    Salvage,
}

/// What is kept of the counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Keep {
    /// Their sums over all epochs.
    #[default]
    Sums,
    /// Each epoch's as well.
    Epochs,
}

/// A recording file in memory.
#[derive(Debug, Clone)]
pub struct Recording {
    /// The sampled stacks.
    pub profile: Profile,
    /// The agent and its guest when the client connected.
    pub agent: AgentInfo,
    /// Nanoseconds since 1970-01-01 UTC when it connected.
    pub created_unix_ns: u64,
    /// How many epochs the file holds, a cut one included.
    pub epochs: u32,
    /// When the last epoch ended, on the guest's monotonic clock in ns; 0 if there is none.
    pub ended_ns: u64,
    /// When it was counted, from the first epoch in the file to the last; `None` without counts, and
    /// of merged files, which may have counted with interruptions.
    pub counted: Option<Window>,
    /// Whether anything is missing.
    pub completeness: Completeness,
    /// How often the guest was suspended and resumed meanwhile.
    pub gaps: u32,
    /// Contradictions in the recording; the profile's warnings include them.
    pub contradictions: Vec<String>,
    /// The profile's warnings, without those about what the rings lack.
    pub own_warnings: Vec<String>,
    /// The contents of the guest's rings, if it has any.
    pub timeline: Option<Timeline>,
    /// The trace that the file is of, if it is one.
    pub trace: Option<Trace>,
    /// The recording in the timeline: its ring bit, its beginning and its end.
    pub span: Option<RecordingSpan>,
    /// The time window requested when the file was made.
    pub asked: Option<Window>,
    /// What each epoch of the recording counted, in order; empty unless it was [read
    /// so](Recording::open_by_epoch).
    pub epoch_counts: Vec<EpochCounts>,
}

impl Recording {
    /// Reads a file.
    pub fn open(path: &Path, reading: Reading) -> Result<Recording, RecordingError> {
        Recording::read(open(path)?, path, reading)
    }

    /// Reads several files as one recording: their counts are added up, data that is in more than
    /// one of them counts once, and the contents of their rings are one timeline.
    /// [`RecordingInfo::merged`](crate::profile::RecordingInfo::merged) lists times that no file
    /// covers.
    ///
    /// The files may come from several runs of the same build. Memory: one file, the distinct
    /// stacks of all, and a timeline of at most 16 million records, the newest.
    pub fn open_all(paths: &[PathBuf], reading: Reading) -> Result<Recording, RecordingError> {
        match paths {
            [only] => Recording::open(only, reading),
            several => merge::merge(several, reading, Keep::Sums),
        }
    }

    /// Does the same, and keeps what each epoch counted.
    pub fn open_by_epoch(paths: &[PathBuf], reading: Reading) -> Result<Recording, RecordingError> {
        match paths {
            [only] => Recording::read_and_keep(open(only)?, only, reading, Keep::Epochs),
            several => merge::merge(several, reading, Keep::Epochs),
        }
    }

    /// Rejects a trace; `path` is for the message.
    pub fn with_samples(self, path: &Path) -> Result<Recording, RecordingError> {
        match self.trace {
            None => Ok(self),
            Some(_) => Err(RecordingError::Trace { path: path.into() }),
        }
    }

    /// Keeps only these vCPUs.
    pub fn keep_vcpus(&mut self, wanted: &[u32]) -> Result<(), Vec<u32>> {
        let mut all: BTreeSet<u32> = self.profile.vcpus.iter().map(|stats| stats.vcpu).collect();
        let rings = self.timeline.iter().flat_map(Timeline::rings);
        all.extend(rings.map(|ring| ring.vcpu));
        if !wanted.iter().all(|vcpu| all.contains(vcpu)) {
            return Err(all.into_iter().collect());
        }
        all.retain(|vcpu| wanted.contains(vcpu));
        let Profile { samples, heap, vcpus, recording, .. } = &mut self.profile;
        samples.retain(|sample| all.contains(&sample.vcpu));
        if let Some(heap) = heap {
            heap.keep_vcpus(|vcpu| all.contains(&vcpu));
        }
        vcpus.retain(|stats| all.contains(&stats.vcpu));
        if let Some(timeline) = &mut self.timeline {
            timeline.keep_vcpus(&all);
        }
        recording.only_vcpus = Some(all.into_iter().collect());
        // Without counts the profile is that of the time that the rings of all vCPUs cover.
        if self.epochs == 0
            && let Some((timeline, of)) = self.timeline.as_ref().zip(self.span)
        {
            recording.warnings.clone_from(&self.own_warnings);
            self.profile = timeline.profile(&self.profile, &of, Window::ALL, None);
        }
        Ok(())
    }

    /// The profile of the time window requested when the file was made, if there was one.
    pub fn part_asked(&self) -> Option<Profile> {
        if self.profile.heap.is_some() {
            return None;
        }
        let (timeline, of) = self.timeline.as_ref().zip(self.span)?;
        Some(timeline.profile(&self.profile, &of, self.asked?, None))
    }

    /// Reads a file's bytes; `path` is for messages.
    pub fn read(
        source: impl Read,
        path: &Path,
        reading: Reading,
    ) -> Result<Recording, RecordingError> {
        Recording::read_and_keep(source, path, reading, Keep::Sums)
    }

    fn read_and_keep(
        mut source: impl Read,
        path: &Path,
        reading: Reading,
        keep: Keep,
    ) -> Result<Recording, RecordingError> {
        read(&mut source, path, reading, |mut contents, frames| {
            if keep == Keep::Epochs {
                contents.stacks.keep_epochs();
            }
            let damage = read_on(&mut contents, frames, reading)?;
            contents.finish(reading, damage)
        })
    }
}

/// The frames of a file behind its preamble.
pub(super) type Frames<'r> = FrameReader<&'r mut dyn Read>;

/// Reads the epochs, the rings and the end. What ended it before, in words, where damaged files are
/// read.
pub(super) fn read_on(
    contents: &mut Contents,
    frames: &mut Frames<'_>,
    reading: Reading,
) -> Result<Option<String>, Damage> {
    match contents.read_on(frames) {
        Ok(()) => Ok(None),
        // Of a file of another build nothing can be known.
        Err(damage) if reading == Reading::Salvage && damage.other_layout().is_none() => {
            Ok(Some(format!(
                "the file is damaged at byte {}: {damage}; only the part before it is shown",
                frames.offset() + PREAMBLE as u64
            )))
        }
        Err(damage) => Err(damage),
    }
}

pub(super) fn open(path: &Path) -> Result<BufReader<File>, RecordingError> {
    let open = |source| RecordingError::Open { path: path.into(), source };
    let file = File::open(path).map_err(open)?;
    if file.metadata().map_err(open)?.is_dir() {
        return Err(open(io::Error::new(io::ErrorKind::IsADirectory, "it is a directory")));
    }
    Ok(BufReader::new(file))
}

/// Reads a file's bytes, or those of a block of memory that a guest left when it crashed.
/// `read_rest` is given the file's head and reads what follows.
pub(super) fn read<T>(
    source: &mut dyn Read,
    path: &Path,
    reading: Reading,
    read_rest: impl FnOnce(Contents, &mut Frames<'_>) -> Result<T, Damage>,
) -> Result<T, RecordingError> {
    let preamble = read_preamble(source, path)?;
    if !preamble.starts_with(&BlockHead::MAGIC) {
        return read_file(&preamble, source, path, read_rest);
    }
    let file = block::file(&preamble, source, path, reading)?;
    let mut rest = &file[..];
    let preamble = read_preamble(&mut rest, path)?;
    read_file(&preamble, &mut rest, path, read_rest)
}

/// Reads what follows a file's preamble.
fn read_file<T>(
    preamble: &[u8],
    source: &mut dyn Read,
    path: &Path,
    read_rest: impl FnOnce(Contents, &mut Frames<'_>) -> Result<T, Damage>,
) -> Result<T, RecordingError> {
    let versions = preamble.first_chunk().and_then(format::versions);
    let Some((file, protocol)) = versions else {
        // Whether the rest can be read does not matter: it is none.
        let holder = recover::holder(preamble.chain(source)).unwrap_or_default();
        return Err(match holder {
            Some(holder) => RecordingError::Remains { path: path.into(), holder },
            None => RecordingError::NotARecording { path: path.into(), found: preamble.to_owned() },
        });
    };
    if file != VERSION || !(VERSIONS.lowest..=VERSIONS.highest).contains(&protocol) {
        return Err(RecordingError::Version { path: path.into(), file, protocol, layout: None });
    }
    let mut frames = FrameReader::new(source);
    let damaged = |offset: u64, source: Damage, salvageable| {
        let (path, offset) = (path.into(), offset + PREAMBLE as u64);
        match source.other_layout() {
            Some(frame) => {
                let layout = Some((offset, frame));
                RecordingError::Version { path, file, protocol, layout }
            }
            None => RecordingError::Damaged { path, offset, source, salvageable },
        }
    };
    let contents = Contents::begin(&mut frames).map_err(|e| damaged(frames.offset(), e, false))?;
    let found = read_rest(contents, &mut frames);
    found.map_err(|damage| damaged(frames.offset(), damage, true))
}

fn read_preamble(source: &mut dyn Read, path: &Path) -> Result<Vec<u8>, RecordingError> {
    let mut preamble = Vec::with_capacity(PREAMBLE);
    match source.take(PREAMBLE as u64).read_to_end(&mut preamble) {
        Ok(_) => Ok(preamble),
        Err(source) => Err(RecordingError::Open { path: path.into(), source }),
    }
}
