//! The program's exit codes. They are stable: scripts may rely on them.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | anything else, such as a thread that could not be started, or too little memory |
//! | 2 | the command line is wrong |
//! | 3 | no connection to the agent, or it was lost and nothing could be kept |
//! | 4 | the peer is not an agent, uses other protocol versions or violates the protocol |
//! | 5 | the agent rejected the request, or has nothing to fetch yet |
//! | 6 | an input file is unreadable, damaged or the wrong one: recording, image or symbols |
//! | 7 | an output file could not be written |
//! | 8 | the recording is incomplete; what arrived was kept |
//! | 9 | `doctor` found something bad: the profile is not trustworthy |
//! | 10 | the agent requires a key, rejects the given key, or does not permit the request with it |
//! | 11 | no recording has the given name, or there are several and no name was given |
//! | 12 | another client holds the lease on the recording |
//! | 13 | `diff` found what `--fail-on` names: the new recording is slower |
//! | 130 | interrupted; nothing was kept |

use std::io;

use unikprof_proto::code::refusal;

use super::failure::Failure;
use super::recover::RecoverError;
#[cfg(feature = "demo")]
use crate::demo::DemoError;
use crate::view::ViewError;
use unikprof_link::connection::ConnectionError;
use unikprof_link::key::KeyFileError;
use unikprof_link::plan::OrderError;
use unikprof_link::record::RecordError;
use unikprof_profile::caller_table::{CallerTableError, Note};
use unikprof_report::diff::DiffError;
use unikprof_report::report::{AnnotationError, ReportError};

/// Done.
pub const SUCCESS: u8 = 0;
/// Any other error.
pub const OTHER: u8 = 1;
/// The command line is wrong.
pub const USAGE: u8 = 2;
/// No connection to the agent, or it was lost and nothing could be kept.
pub const CONNECTION: u8 = 3;
/// The peer is not an agent, uses other protocol versions or violates the protocol.
pub(crate) const PROTOCOL: u8 = 4;
/// The agent rejected the request, or has nothing to fetch yet.
pub const REFUSED: u8 = 5;
/// An input file is unreadable, damaged or the wrong one: recording, image or symbols.
pub const INPUT: u8 = 6;
/// An output file could not be written.
pub const OUTPUT: u8 = 7;
/// The recording is incomplete; what arrived was kept.
pub const INCOMPLETE: u8 = 8;
/// `doctor` found something bad: the profile is not trustworthy.
pub const UNTRUSTWORTHY: u8 = 9;
/// The agent requires a key, rejects the given key, or does not permit the request with it; or it
/// is not the agent that the key is for.
pub const KEY: u8 = 10;
/// No recording in the guest has the given name, or there are several and no name was given.
pub const NO_SUCH_RECORDING: u8 = 11;
/// Another client holds the lease on the recording.
pub const LEASED: u8 = 12;
/// `diff` found what `--fail-on` names: the new recording is slower.
pub const SLOWER: u8 = 13;
/// Interrupted; nothing was kept.
pub(crate) const INTERRUPTED: u8 = 130;

/// The exit code for an error of a connection.
pub fn of_connection(error: &ConnectionError) -> u8 {
    use ConnectionError::*;
    match error {
        Resolve { .. } | Connect { .. } | Lost { .. } | Closed { .. } | Silent { .. } => CONNECTION,
        Refused { code, .. } => match *code {
            refusal::NO_RECORDING | refusal::WHICH_RECORDING => NO_SUCH_RECORDING,
            _ => REFUSED,
        },
        KeyNeeded { .. }
        | OpenAgent { .. }
        | BadKey { .. }
        | FalseAgent { .. }
        | NotAllowed { .. } => KEY,
        Cryptography { .. } => OTHER,
        Interrupted => INTERRUPTED,
        // The other side does not say what an agent would.
        NotAnAgent { .. }
        | ClosedAtOnce { .. }
        | SilentAtOnce { .. }
        | NoCommonVersion { .. }
        | Preamble { .. }
        | Cut { .. }
        | Frame { .. }
        | Unexpected { .. }
        | UnknownSecurity { .. }
        | Record { .. }
        | Mapping(_) => PROTOCOL,
    }
}

/// The exit code for an error while recording or fetching.
pub fn of_record(error: &RecordError) -> u8 {
    match error {
        RecordError::Connection(error) => of_connection(error),
        RecordError::Lost { .. }
        | RecordError::HeldCut { .. }
        | RecordError::HeldCutOnDevice
        | RecordError::GuestChanged
        | RecordError::PartElsewhere { .. }
        | RecordError::Gone { .. } => CONNECTION,
        RecordError::StillRunning { source, .. } | RecordError::CopyBroke { source, .. } => {
            of_record(source)
        }
        RecordError::Limit { .. }
        | RecordError::NothingWaits { .. }
        | RecordError::NotBegun { .. }
        | RecordError::NeverBegun { .. }
        | RecordError::NoRing
        | RecordError::NoAllocations
        | RecordError::NoTraces => REFUSED,
        RecordError::NotFound(_) => NO_SUCH_RECORDING,
        RecordError::NoCallerTable | RecordError::Moment(_) => USAGE,
        RecordError::NothingRuns => KEY,
        RecordError::Leased { .. } => LEASED,
        RecordError::Output(_) | RecordError::Unwritten { .. } | RecordError::FileLost { .. } => {
            OUTPUT
        }
        // The agent violated the protocol.
        RecordError::ShortRequests { .. }
        | RecordError::TooManyTold { .. }
        | RecordError::Epoch(_)
        | RecordError::Unreadable(_)
        | RecordError::NothingToFetch
        | RecordError::Ring(_)
        | RecordError::Snapshot(_)
        | RecordError::Endless { .. }
        | RecordError::Trace(_) => PROTOCOL,
    }
}

/// The exit code for an error of a key file.
pub fn of_key_file(error: &KeyFileError) -> u8 {
    match error {
        KeyFileError::Exists { .. } | KeyFileError::Write { .. } => OUTPUT,
        _ => INPUT,
    }
}

/// The exit code for a missing caller table.
pub fn of_caller_table(error: &CallerTableError) -> u8 {
    match error {
        CallerTableError::Symbols(_) => INPUT,
        CallerTableError::Needed(note) => match note {
            Note::NoImage { .. } => USAGE,
            Note::Image(_) | Note::Symbols(_) => INPUT,
            Note::Architecture { .. }
            | Note::NoRoom { .. }
            | Note::Partial { .. }
            | Note::TooManyRows => REFUSED,
        },
    }
}

impl Failure {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::Connection(error) => of_connection(error),
            Failure::Record(error) => of_record(error),
            Failure::CallerTable(error) => of_caller_table(error),
            Failure::Key(error) => of_key_file(error),
            Failure::Recover(RecoverError::Replaces { .. }) => OUTPUT,
            Failure::Recording(_)
            | Failure::Symbols(_)
            | Failure::Compile(_)
            | Failure::Recover(_)
            | Failure::Image { .. } => INPUT,
            Failure::Stdout(error) if error.kind() == io::ErrorKind::BrokenPipe => SUCCESS,
            Failure::Report { source: ReportError::NotBuiltIn { .. }, .. } => USAGE,
            Failure::Output(_)
            | Failure::Report { .. }
            | Failure::Stdout(_)
            | Failure::Replaces { .. } => OUTPUT,
            Failure::Annotation(AnnotationError::Code { .. } | AnnotationError::Processor(_)) => {
                INPUT
            }
            Failure::Trace(OrderError::Plan(_) | OrderError::Symbols(_) | OrderError::NoImage) => {
                INPUT
            }
            Failure::Trace(
                OrderError::AllRefused { .. }
                | OrderError::Architecture { .. }
                | OrderError::CLibrary { .. },
            ) => REFUSED,
            Failure::Annotation(_)
            | Failure::Trace(_)
            | Failure::Format(_)
            | Failure::Function(_)
            | Failure::Moment(_)
            | Failure::Usage(_) => USAGE,
            Failure::Incomplete { .. } | Failure::OneLook => INCOMPLETE,
            Failure::Untrustworthy => UNTRUSTWORTHY,
            Failure::Diff(DiffError::NoSuchFunction { .. } | DiffError::NoWork { .. }) => USAGE,
            Failure::Diff(_) => INPUT,
            Failure::Slower => SLOWER,
            Failure::AfterRecording { source, .. } => match source.exit_code() {
                SUCCESS => OUTPUT,
                other => other,
            },
            Failure::View(ViewError::Code(_)) => INPUT,
            Failure::View(_)
            | Failure::Browser { .. }
            | Failure::Signals(_)
            | Failure::Randomness(_) => OTHER,
            Failure::Other { exit_code, .. } | Failure::Told { exit_code } => *exit_code,
            #[cfg(feature = "demo")]
            Failure::Demo(DemoError::NoTime) => USAGE,
            #[cfg(feature = "demo")]
            Failure::Demo(_) => OTHER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_from_a_recording_that_is_not_there() {
        let refused = |code| of_connection(&ConnectionError::Refused { code, text: "no".into() });
        assert_eq!(refused(refusal::BUSY), 5);
        assert_eq!(refused(refusal::NO_RECORDING), 11);
        assert_eq!(
            Failure::from(unikprof_profile::recording::RecordingError::NoFiles).exit_code(),
            6
        );
    }
}
