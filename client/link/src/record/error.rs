//! Errors while recording or fetching.

use std::time::Duration;

use thiserror::Error;
use unikprof_proto::code::refusal;

use super::collect::Request;
use super::snapshot::SnapshotError;
use crate::connection::ConnectionError;
use unikprof_profile::output::OutputError;
use unikprof_profile::printable::{Printable, word};
use unikprof_profile::recorder_status::{MOST_RECORDINGS, NotFound};
use unikprof_profile::recording::{EpochError, RecordingError};
use unikprof_profile::timeline::{MomentError, RingOrderError};
use unikprof_profile::trace::TraceError;
use unikprof_profile::units::std_duration;

/// Why a recording could not be made or fetched completely.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "fields are named for what they hold")]
pub enum RecordError {
    /// The agent is unreachable, is not an agent, or rejected the request.
    #[error(transparent)]
    Connection(ConnectionError),
    /// Another client holds the lease on the recording.
    #[error("{}. `copy` still works: it changes nothing in the guest", Printable(text))]
    Leased {
        /// The agent's text, which names the holder.
        text: String,
        /// [`refusal::LEASED`] or [`refusal::HOLDER_GONE`].
        code: u32,
    },
    /// The connection was lost and did not come back.
    #[error(
        "{source}. Reconnecting failed for {}; if the guest no longer runs, its console tells why",
        std_duration(*after)
    )]
    Lost {
        /// How long it was tried.
        after: Duration,
        source: ConnectionError,
    },
    /// What is held is of one moment, and each connection broke within it.
    #[error(
        "for {} no connection lasted until all that the guest holds had arrived; a longer --retry \
         may help",
        std_duration(*after)
    )]
    HeldCut {
        /// How long it was tried.
        after: Duration,
    },
    /// The same where nothing that was written can be taken back.
    #[error(
        "the connection broke before all that the guest holds had arrived, and what was written to \
         a device cannot be taken back: write to a file"
    )]
    HeldCutOnDevice,
    /// The address now belongs to another guest, or to a restarted one.
    #[error(
        "the guest was restarted, replaced or suspended while the connection was down: what is \
         there now is another, and `check` shows what it has"
    )]
    GuestChanged,
    /// Another client fetched or discarded it.
    #[error(
        "what was to be fetched of recording {recording} is no longer in the guest: another client \
         fetched or discarded it"
    )]
    Gone { recording: u64 },
    /// The recording could not be followed to its end.
    #[error(
        "{source}. Recording `{}` may still be in the guest: `unikprof-client connect {guest} {} \
         --name {}` {}",
        Printable(name),
        request.subcommand(),
        word(name),
        match request {
            Request::Stop { .. } => "ends it and fetches the rest",
            Request::Dump { .. } | Request::Copy { .. } => "fetches the rest",
        }
    )]
    StillRunning {
        /// What fetches the rest.
        request: Request,
        name: String,
        /// [`Session::guest_words`](super::Session::guest_words).
        guest: String,
        source: Box<RecordError>,
    },
    /// Another client fetched a part of it, as while the connection of this one was down.
    #[error(
        "another client has fetched a part of the recording: {epochs} of its epochs, with what \
         they counted, are in that client's file only"
    )]
    PartElsewhere { epochs: u64 },
    /// The recording could not be copied to its end.
    #[error("{source}. Nothing in the guest has changed: try again")]
    CopyBroke { source: Box<RecordError> },
    /// A setting is outside the agent's limits.
    #[error("{setting} {asked} is outside the agent's limits: {lowest} to {highest}")]
    Limit { setting: &'static str, asked: String, lowest: String, highest: String },
    /// Unwinding by the caller table was requested without a table.
    #[error("`--unwind table` needs a caller table: name the guest's image with --image")]
    NoCallerTable,
    /// The guest has not reported any allocation.
    #[error(
        "the guest has reported no allocation to its agent so far, so none can be recorded: its \
         allocator must report to the \
         agent, which needs the feature `heap` (C: `--heap`); see docs/guide/memory.md"
    )]
    NoAllocations,
    /// The guest does not allow traces.
    #[error(
        "the guest does not allow traces: build it with the agent's feature `trace` (C: `--trace`) \
         and give the agent \
         memory for traces when the guest starts; see docs/guide/trace.md"
    )]
    NoTraces,
    /// The agent takes requests too short for what it accepts.
    #[error(
        "the agent violated the protocol: it limits requests to {limit} bytes; {what} needs \
         {needed}"
    )]
    ShortRequests {
        /// What does not fit.
        what: &'static str,
        /// The longest body that it takes.
        limit: u32,
        /// The length needed.
        needed: usize,
    },
    /// The agent's counts are malformed.
    #[error("the agent violated the protocol while sending counts: {0}")]
    Epoch(#[from] EpochError),
    /// The agent's rings are malformed.
    #[error("the agent violated the protocol while sending a ring: {0}")]
    Ring(#[from] RingOrderError),
    /// A vCPU's snapshot is malformed.
    #[error("the agent violated the protocol while sending a snapshot: {0}")]
    Snapshot(#[from] SnapshotError),
    /// An answer that does not end.
    #[error("the agent violated the protocol: the answer about {what} is longer than {most} bytes")]
    Endless {
        /// What was asked for.
        what: &'static str,
        /// The most that is taken.
        most: usize,
    },
    /// The agent's answers about a trace are malformed.
    #[error("the agent violated the protocol while tracing: {0}")]
    Trace(#[from] TraceError),
    /// The records and stacks of a running recording, as the agent sent them, cannot be read.
    #[error("the agent violated the protocol while sending its rings: {0}")]
    Unreadable(Box<RecordingError>),
    /// No recording is running, and this client's role does not allow starting one.
    #[error(
        "no recording is running in the guest, and a key with the role `view` cannot start one: \
         start one with a key \
         with the role `control`"
    )]
    NothingRuns,
    /// The agent keeps no events.
    #[error(
        "the agent keeps no events because it has no ring; give it memory for one when the guest \
         starts"
    )]
    NoRing,
    /// The requested window is impossible.
    #[error(transparent)]
    Moment(#[from] MomentError),
    /// The agent reports counts that it does not send.
    #[error("the agent violated the protocol: it reports counts but does not send them")]
    NothingToFetch,
    /// The agent reports more recordings than an agent can have.
    #[error(
        "the agent violated the protocol: it reports {count} recordings; at most {MOST_RECORDINGS} \
         are possible"
    )]
    TooManyTold { count: u32 },
    /// The recording asked for is not found.
    #[error(transparent)]
    NotFound(#[from] NotFound),
    /// There is nothing to copy.
    #[error(
        "there is nothing to copy yet: the recording is {state}, and its counts can be copied once \
         it has ended. \
         Until then, use `dump` or `stop`, which need a key with the role `control`"
    )]
    NothingWaits { state: &'static str },
    /// The recording's delay is not over.
    #[error(
        "recording {recording} has not begun: its delay is not over, so there is nothing to dump. \
         `check` shows when it \
         begins, `stop --discard` cancels it"
    )]
    NotBegun { recording: u64 },
    /// The recording was stopped before its delay was over.
    #[error(
        "recording {recording} is stopped, but it had not begun: its delay was not over, so there \
         is nothing to write"
    )]
    NeverBegun { recording: u64 },
    /// The recording file could not be created.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// Writing the recording file failed.
    #[error("{source}. What was not yet written is still in the guest: `{command}` fetches it")]
    Unwritten {
        /// The command that fetches it.
        command: String,
        source: OutputError,
    },
    /// The recording file was removed or replaced, and could not be written to another place.
    #[error(
        "{source}. The file was removed or replaced while it was written: its {bytes} bytes, which \
         the guest has cleared, are lost"
    )]
    FileLost {
        /// What is lost.
        bytes: u64,
        source: Box<RecordError>,
    },
}

impl RecordError {
    /// Whether the agent refused with this [code](unikprof_proto::code::refusal).
    pub(super) fn is_refused(&self, refusal: u32) -> bool {
        matches!(
            self,
            RecordError::Connection(ConnectionError::Refused { code, .. })
                | RecordError::Leased { code, .. } if *code == refusal
        )
    }

    /// Whether an epoch has changed while it was fetched.
    pub(super) fn is_changed_epoch(&self) -> bool {
        matches!(self, RecordError::Epoch(EpochError::Changed(_)))
            || self.is_refused(refusal::EPOCH_CHANGED)
    }

    /// Whether the user interrupted.
    pub fn is_interrupt(&self) -> bool {
        match self {
            RecordError::Connection(error) => matches!(error, ConnectionError::Interrupted),
            RecordError::StillRunning { source, .. } | RecordError::CopyBroke { source, .. } => {
                source.is_interrupt()
            }
            _ => false,
        }
    }

    /// Whether the line or the user ended it.
    pub fn is_broken_off(&self) -> bool {
        match self {
            RecordError::Connection(ConnectionError::Interrupted) => true,
            RecordError::Connection(error) => error.may_be_taken_up_again(),
            RecordError::Lost { .. } | RecordError::HeldCut { .. } => true,
            _ => false,
        }
    }

    /// Adds that a copy changed nothing in the guest.
    pub fn while_copying(self) -> RecordError {
        match self {
            told @ (RecordError::Gone { .. }
            | RecordError::GuestChanged
            | RecordError::Output(_)
            | RecordError::Unwritten { .. }) => told,
            source => RecordError::CopyBroke { source: Box::new(source) },
        }
    }

    /// Adds that the recording itself may continue without this client, and which `request` fetches
    /// the rest.
    pub fn while_running(self, request: Request, name: &str, guest: &str) -> RecordError {
        match self {
            // The recording is gone, or the error names what fetches it.
            told @ (RecordError::Gone { .. }
            | RecordError::GuestChanged
            | RecordError::Leased { .. }
            | RecordError::NeverBegun { .. }
            | RecordError::StillRunning { .. }
            | RecordError::PartElsewhere { .. }
            | RecordError::Unwritten { .. }
            | RecordError::Output(_)) => told,
            source => RecordError::StillRunning {
                request,
                name: name.into(),
                guest: guest.to_owned(),
                source: Box::new(source),
            },
        }
    }
}

impl From<ConnectionError> for RecordError {
    fn from(error: ConnectionError) -> RecordError {
        match error {
            ConnectionError::Refused {
                code: code @ (refusal::LEASED | refusal::HOLDER_GONE),
                text,
            } => RecordError::Leased { text, code },
            other => RecordError::Connection(other),
        }
    }
}
