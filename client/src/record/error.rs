//! Why a recording could not be made, or not wholly.

use std::time::Duration;

use thiserror::Error;
use unikprof_proto::code::refusal;

use super::status::{MOST_RECORDINGS, Names};
use crate::connection::ConnectionError;
use crate::exit_code;
use crate::output::OutputError;
use crate::printable::Printable;
use crate::recording::EpochError;
use crate::timeline::{MomentError, RingOrderError};
use crate::units::std_duration;

/// Why a recording could not be made, or not wholly.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The agent cannot be reached, is none, or refused.
    #[error(transparent)]
    Connection(ConnectionError),
    /// Another client holds the lease on the recording.
    #[error(
        "another client fetches this recording: {}. `copy` copies what waits and what the rings hold, and changes \
         nothing in the guest",
        Printable(text)
    )]
    Leased {
        /// The agent's text, which names the holder.
        text: String,
    },
    /// The connection was lost and did not come back.
    #[error("{source}. It could not be taken up again in {}", std_duration(*after))]
    Lost {
        /// How long it was tried.
        after: Duration,
        /// The last attempt's error.
        source: ConnectionError,
    },
    /// The guest at this address is another one now.
    #[error(
        "the guest was restarted, replaced or suspended while the connection was down: what the guest held before \
         cannot be fetched on into the same file; `check` shows what it holds now"
    )]
    GuestChanged,
    /// The recording was ended and fetched by somebody else.
    #[error(
        "recording {recording} is no longer in the guest: another client stopped and fetched it"
    )]
    Gone {
        /// Its id.
        recording: u64,
    },
    /// The recording could not be followed to its end.
    #[error(
        "{source}. Recording {recording}, `{}`, may go on in the guest: `check` tells, and `stop --name` \
         ends and fetches it",
        Printable(name)
    )]
    StillRunning {
        /// Its id.
        recording: u64,
        /// Its name.
        name: String,
        /// What happened.
        source: Box<RecordError>,
    },
    /// A setting is outside the agent's limits.
    #[error("{setting} of {asked} is outside this agent's limits: it takes {lowest} to {highest}")]
    Limit {
        /// Which setting.
        setting: &'static str,
        /// What was asked for.
        asked: String,
        /// The least accepted.
        lowest: String,
        /// The most accepted.
        highest: String,
    },
    /// Every frame is to be looked up, and there is nothing to look it up in.
    #[error("unwinding by the caller table needs one: name the guest's image with --image")]
    NoCallerTable,
    /// The agent takes requests too short for a caller table.
    #[error(
        "the agent broke the protocol: it takes a caller table, but in requests of at most {limit} \
         bytes, and one with a row in it has {needed}"
    )]
    ShortRequests {
        /// The longest body that it takes.
        limit: u32,
        /// The length needed.
        needed: usize,
    },
    /// The agent has not the rows of a caller table that were sent.
    #[error(
        "the agent lost rows of the caller table while they were sent: another client sends one too; try again"
    )]
    UploadDisturbed,
    /// The agent's counts are not in order.
    #[error("the agent broke the protocol while sending its counts: {0}")]
    Epoch(#[from] EpochError),
    /// The agent's rings are not in order.
    #[error("the agent broke the protocol while sending what happened when: {0}")]
    Ring(#[from] RingOrderError),
    /// A ring that does not end.
    #[error(
        "the agent broke the protocol: what it says of a ring has more than {most} bytes and does not end"
    )]
    EndlessRing {
        /// The most that is taken.
        most: usize,
    },
    /// The agent keeps no events.
    #[error(
        "the agent keeps no events: it was given no memory for a ring; give it some at the guest's start"
    )]
    NoRing,
    /// The window that was asked for cannot be.
    #[error(transparent)]
    Moment(#[from] MomentError),
    /// The agent holds counts that it does not hand out.
    #[error("the agent broke the protocol: it has counts that it does not let fetch")]
    NothingToFetch,
    /// The agent says that it has more recordings than any agent can have.
    #[error(
        "the agent broke the protocol: it tells of {count} recordings, at most {MOST_RECORDINGS} are read"
    )]
    TooManyTold {
        /// How many.
        count: u32,
    },
    /// There is no such recording.
    #[error("{}", no_such(wanted.as_deref(), there))]
    NoSuchRecording {
        /// Its name; `None`: whichever there is.
        wanted: Option<String>,
        /// Those that there are.
        there: Names,
    },
    /// There are several recordings, and none was named.
    #[error("several recordings are in the guest: {there}; say which one with --name")]
    WhichRecording {
        /// Those that there are.
        there: Names,
    },
    /// There is nothing to take a copy of.
    #[error(
        "nothing waits to be fetched yet (the recording's state: {state}). Counts wait once a recording's duration has \
         passed; before that, `dump` and `stop` fetch them, which takes a key with the role `control`"
    )]
    NothingWaits {
        /// What it is at.
        state: &'static str,
    },
    /// The recording file could not be begun.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The recording file could not be written on.
    #[error("{source}. The guest keeps what is not safe on disk: `{subcommand}` fetches it again")]
    Unwritten {
        /// The subcommand that fetches it.
        subcommand: &'static str,
        /// What happened.
        source: OutputError,
    },
}

impl RecordError {
    /// The program's exit code for it.
    pub fn exit_code(&self) -> u8 {
        match self {
            RecordError::Connection(error) => error.exit_code(),
            RecordError::Lost { .. } | RecordError::GuestChanged | RecordError::Gone { .. } => {
                exit_code::CONNECTION
            }
            RecordError::StillRunning { source, .. } => source.exit_code(),
            RecordError::Limit { .. }
            | RecordError::NothingWaits { .. }
            | RecordError::UploadDisturbed => exit_code::REFUSED,
            RecordError::NoSuchRecording { .. } | RecordError::WhichRecording { .. } => {
                exit_code::NO_SUCH_RECORDING
            }
            RecordError::NoCallerTable => exit_code::USAGE,
            RecordError::ShortRequests { .. } | RecordError::TooManyTold { .. } => {
                exit_code::PROTOCOL
            }
            RecordError::Epoch(_)
            | RecordError::NothingToFetch
            | RecordError::Ring(_)
            | RecordError::EndlessRing { .. } => exit_code::PROTOCOL,
            RecordError::Leased { .. } => exit_code::LEASED,
            RecordError::NoRing => exit_code::REFUSED,
            RecordError::Moment(_) => exit_code::USAGE,
            RecordError::Output(error) | RecordError::Unwritten { source: error, .. } => {
                error.exit_code()
            }
        }
    }

    /// Whether the agent refused with this [code](unikprof_proto::code::refusal).
    pub(super) fn is_refused(&self, refusal: u32) -> bool {
        matches!(
            self,
            RecordError::Connection(ConnectionError::Refused { code, .. }) if *code == refusal
        )
    }

    /// Whether an epoch has changed while it was fetched.
    pub(super) fn is_changed_epoch(&self) -> bool {
        matches!(self, RecordError::Epoch(EpochError::Changed(_)))
            || self.is_refused(refusal::EPOCH_CHANGED)
    }

    /// Whether the user gave up.
    pub fn is_interrupt(&self) -> bool {
        match self {
            RecordError::Connection(error) => matches!(error, ConnectionError::Interrupted),
            RecordError::StillRunning { source, .. } => source.is_interrupt(),
            _ => false,
        }
    }

    /// Adds that the recording itself may go on without this client.
    pub(super) fn while_running(self, recording: u64, name: &str) -> RecordError {
        match self {
            gone @ (RecordError::Gone { .. } | RecordError::GuestChanged) => gone,
            source => RecordError::StillRunning {
                recording,
                name: name.into(),
                source: Box::new(source),
            },
        }
    }
}

impl From<ConnectionError> for RecordError {
    fn from(error: ConnectionError) -> RecordError {
        match error {
            ConnectionError::Refused { code, text } if code == refusal::LEASED => {
                RecordError::Leased { text }
            }
            other => RecordError::Connection(other),
        }
    }
}

fn no_such(wanted: Option<&str>, there: &Names) -> String {
    match wanted {
        Some(name) => format!(
            "no recording in the guest is called `{}`; there: {there}",
            Printable(name)
        ),
        None => "there is no recording in the guest; `start` begins one".into(),
    }
}
