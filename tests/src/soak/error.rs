//! Why a soak has no result.

use std::io;

use thiserror::Error;

use super::line::End;
use crate::lab::LabError;

/// Why a soak has no result.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SoakError {
    #[error(transparent)]
    Build(#[from] LabError),
    #[error("{what}: {source}")]
    Io {
        what: &'static str,
        source: io::Error,
    },
    #[error("the guest said {found:?}; expected {expected}")]
    Guest {
        expected: &'static str,
        found: String,
    },
    #[error("{what}, in all of {tries} tries; the last was {last:?}")]
    NotServed {
        what: &'static str,
        tries: u32,
        last: End,
    },
    #[error("`{words}` ended with {code:?}:\n{said}")]
    Client {
        words: String,
        code: Option<i32>,
        said: String,
    },
}

impl SoakError {
    /// For `map_err`.
    pub(super) fn io(what: &'static str) -> impl Fn(io::Error) -> SoakError + Copy {
        move |source| SoakError::Io { what, source }
    }
}
