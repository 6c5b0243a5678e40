//! Why a case has no figures.

use std::io;
use std::path::PathBuf;

use thiserror::Error;
use unikprof_client::caller_table::CallerTableError;
use unikprof_client::connection::ConnectionError;
use unikprof_client::record::RecordError;
use unikprof_client::recording::RecordingError;
use unikprof_client::symbols::SymbolError;

use super::capture::CaptureError;
use super::images::ImageError;
use crate::lab::LabError;

/// Why a case has no figures.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AccuracyError {
    /// The guest cannot be built.
    #[error("the guest cannot be built:\n{output}")]
    Build {
        /// Cargo's messages.
        output: String,
    },
    /// The guest or a file failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// The guest did not say what was expected.
    #[error("the guest said {found:?}; expected {expected}")]
    Answer {
        /// What it was to say.
        expected: String,
        /// What it said.
        found: String,
    },
    /// The emulated machine of a guest on a Xen.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// The client cannot talk to the guest.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// The client cannot record.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The recording cannot be read.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// The recording cannot be named.
    #[error(transparent)]
    Symbols(#[from] SymbolError),
    /// No caller table can be made for the guest.
    #[error(transparent)]
    Callers(#[from] CallerTableError),
    /// The guest's images cannot be used.
    #[error(transparent)]
    Images(#[from] ImageError),
    /// What was captured cannot be read.
    #[error("{}: {source}", path.display())]
    Capture {
        path: PathBuf,
        /// What is wrong with it.
        source: CaptureError,
    },
}

impl AccuracyError {
    /// An error of the system's while something was being done.
    pub fn io(what: &str) -> impl FnOnce(io::Error) -> AccuracyError + use<> {
        let what = what.to_owned();
        move |source| AccuracyError::Io { what, source }
    }
}
