//! Why a recording file cannot be read.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use unikprof_proto::file::BlockError;
use unikprof_proto::frame::FrameError;
use unikprof_proto::preamble::VERSIONS;

use super::epoch::EpochError;
use super::format::{MAGIC, VERSION};
use super::known_nodes::NodeError;
use crate::agent_info::{MappingError, UnknownCode};
use crate::frame_reader::FrameReadError;
use crate::messages::message_name;
use crate::printable::{PrintableBytes, path_word};
use crate::profile::TooManyStacks;
use crate::recover::Holder;
use crate::timeline::RingOrderError;

/// Why a file could not be read.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "fields are named for what they hold")]
pub enum RecordingError {
    /// It cannot be opened.
    #[error("cannot read {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    /// It is no recording.
    #[error(
        "{} is not a unikprof recording: expected it to begin with {}, {}",
        path.display(), PrintableBytes(&MAGIC), beginning(found)
    )]
    NotARecording { path: PathBuf, found: Vec<u8> },
    /// It is not a recording, but contains, or may contain, the data of a crashed guest.
    #[error("{} is not a unikprof recording, but {}", path.display(), way_out(*holder, path))]
    Remains {
        path: PathBuf,
        /// What it seems to be.
        holder: Holder,
    },
    /// It is of another version.
    #[error("{} {}", path.display(), other_version(*file, *protocol, layout.as_ref()))]
    Version {
        path: PathBuf,
        file: u16,
        /// The protocol version of its frames.
        protocol: u16,
        /// Where an intact frame has another layout, if the versions do not tell it: the file is of
        /// another build.
        layout: Option<(u64, FrameError)>,
    },
    /// It is a block of memory that a guest left when it crashed, and not whole.
    #[error(
        "{} is an incomplete crash dump from a guest's memory: {source}; `report --salvage` reads \
         the part that \
         is there", path.display()
    )]
    Block { path: PathBuf, source: BlockError },
    /// No file was given.
    #[error("there is no recording to read")]
    NoFiles,
    /// Two files cannot be one profile.
    #[error("{} and {} cannot be one profile: {why}", first.display(), other.display())]
    Apart {
        first: PathBuf,
        other: PathBuf,
        /// What differs, and what to do.
        why: String,
    },
    /// A file without counts among several.
    #[error(
        "{} has only the contents of a guest's rings (a copy of a running recording, or a crash \
         dump) and no counts; \
         report such a file on its own",
        path.display()
    )]
    NoCounts { path: PathBuf },
    /// It has calls of functions where samples are needed.
    #[error("{0} is a trace of function calls and has no samples: show it with `report \
             {0}`", path.display())]
    Trace { path: PathBuf },
    /// It is damaged or was cut.
    #[error("{} is damaged at byte {offset}: {source}{}", path.display(), advice(*salvageable))]
    Damaged {
        path: PathBuf,
        /// Where the damaged frame begins.
        offset: u64,
        source: Damage,
        /// Whether there are intact frames before it.
        salvageable: bool,
    },
}

/// What is wrong inside a file.
#[derive(Debug, Error)]
pub enum Damage {
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file ends in the middle of a frame.
    #[error("the file is truncated in the middle of a frame")]
    Cut,
    /// The end marker is missing.
    #[error("the file is truncated: the end marker is missing")]
    NoEnd,
    /// Data follows the end marker.
    #[error("there is data after the end of the recording")]
    AfterEnd,
    /// A frame is damaged.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A frame is of another type than its place asks for.
    #[error("expected {expected}, found {}", message_name(*found))]
    OutOfPlace {
        /// What belongs there.
        expected: &'static str,
        /// The frame's type.
        found: u16,
    },
    /// A mapping is invalid.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// A frame of an epoch is not in its place.
    #[error(transparent)]
    Epoch(#[from] EpochError),
    /// A part of a ring is not in its place.
    #[error(transparent)]
    Ring(#[from] RingOrderError),
    /// A frame of a stack is in no mapping.
    #[error(transparent)]
    Code(#[from] UnknownCode),
    /// Stack nodes are invalid.
    #[error(transparent)]
    Nodes(#[from] NodeError),
    /// A stack has too many frames.
    #[error("a stack has {found} frames; the limit is {most}")]
    TooDeep {
        /// The limit.
        most: u32,
        /// The stack's frames.
        found: u32,
    },
    /// The epochs do not belong together.
    #[error(
        "the file mixes epochs of two recordings ({first} and {second}) or of different settings"
    )]
    TwoRecordings {
        /// The recording's id in the first of the epochs.
        first: u64,
        /// The one in another.
        second: u64,
    },
    /// A trace is invalid.
    #[error(transparent)]
    Trace(#[from] crate::trace::TraceError),
    /// There are more stacks than a profile can hold.
    #[error(transparent)]
    TooManyStacks(#[from] TooManyStacks),
}

impl Damage {
    /// A frame whose checksum is right and whose body is malformed: its bytes are those that were
    /// written, by a program of another build.
    pub(super) fn other_layout(&self) -> Option<FrameError> {
        match self {
            Damage::Frame(body @ FrameError::Body(_))
            | Damage::Epoch(EpochError::Frame(body @ FrameError::Body(_))) => Some(*body),
            _ => None,
        }
    }
}

impl From<FrameReadError> for Damage {
    fn from(error: FrameReadError) -> Damage {
        match error {
            FrameReadError::Io(error) => Damage::Io(error),
            FrameReadError::Frame(error) => Damage::Frame(error),
            FrameReadError::Cut(_) => Damage::Cut,
        }
    }
}

fn way_out(holder: Holder, path: &Path) -> String {
    let (is, makes) = match holder {
        Holder::Log => ("a log that contains a crash dump", "extracts the recording"),
        Holder::Memory => ("a memory block that contains a crash dump", "extracts the recording"),
        Holder::Core => ("a memory dump", "searches it for a crash dump"),
    };
    format!("{is}: `unikprof-client recover {}` {makes}", path_word(path))
}

fn beginning(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "found an empty file".to_owned();
    }
    format!("found {}", PrintableBytes(bytes))
}

/// What a file of another version is, and how it can be read.
fn other_version(file: u16, protocol: u16, layout: Option<&(u64, FrameError)>) -> String {
    const WRITER: &str = "use the client that wrote it, or record again";
    if let Some((offset, source)) = layout {
        return format!(
            "was written by another build of file version {file}, whose messages differ from this \
             client's ({source}, at byte {offset}): {WRITER}"
        );
    }
    let instead = match file > VERSION || protocol > VERSIONS.highest {
        true => "use a newer client",
        false => WRITER,
    };
    format!(
        "has file version {file} and protocol version {protocol}, but this client reads file \
         version {VERSION} and protocol version {VERSIONS}: {instead}"
    )
}

fn advice(salvageable: bool) -> &'static str {
    if salvageable {
        "; `report --salvage` reads the part before it"
    } else {
        "; nothing was recorded before it, so nothing can be salvaged"
    }
}
