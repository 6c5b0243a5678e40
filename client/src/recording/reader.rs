//! Reading a recording file.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use unikprof_proto::file::BlockHead;
use unikprof_proto::preamble::VERSIONS;

use super::block;
use super::completeness::Completeness;
use super::contents::Contents;
use super::error::RecordingError;
use super::format::{self, PREAMBLE, VERSION};
use crate::agent_info::AgentInfo;
use crate::frame_reader::FrameReader;
use crate::profile::Profile;
use crate::recover;
use crate::timeline::{RecordingSpan, Timeline, Window};

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
    /// The recording in the timeline: its ring bit, its beginning and its end.
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
            // Whether the rest can be read does not matter: it is none.
            let holder = recover::holder(preamble.chain(source)).unwrap_or_default();
            return Err(match holder {
                Some(holder) => RecordingError::Remains {
                    path: path.into(),
                    holder,
                },
                None => RecordingError::NotARecording {
                    path: path.into(),
                    found: preamble.to_owned(),
                },
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
                "the file is damaged at byte {}: {damage}; only the part before is shown",
                frames.offset() + PREAMBLE as u64
            )),
            Err(damage) => return Err(damaged(frames.offset(), damage, true)),
        };
        let finished = contents.finish(reading, damage);
        finished.map_err(|damage| damaged(frames.offset(), damage, true))
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
