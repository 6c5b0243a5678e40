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
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    #[error("the guest said {found:?}; expected {expected}")]
    Answer { expected: String, found: String },
    #[error(transparent)]
    Lab(#[from] LabError),
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Recording(#[from] RecordingError),
    #[error(transparent)]
    Symbols(#[from] SymbolError),
    #[error(transparent)]
    Callers(#[from] CallerTableError),
    #[error(transparent)]
    Images(#[from] ImageError),
    #[error("{}: {source}", path.display())]
    Capture { path: PathBuf, source: CaptureError },
}

impl AccuracyError {
    /// An error of the system's while something was being done.
    pub(crate) fn io(what: &str) -> impl FnOnce(io::Error) -> AccuracyError + use<> {
        let what = what.to_owned();
        move |source| AccuracyError::Io { what, source }
    }
}
