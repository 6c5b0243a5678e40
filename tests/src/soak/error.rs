//! Why a soak has no result.

use std::io;

use thiserror::Error;

use super::line::End;

/// Why a soak has no result.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SoakError {
    /// The guest and the client cannot be built.
    #[error("the guest and the client cannot be built:\n{0}")]
    Build(String),
    /// The system failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The guest did not say what was expected of it.
    #[error("the guest said {found:?}; expected {expected}")]
    Guest {
        /// What it was to say.
        expected: &'static str,
        /// What it said; empty where it ended.
        found: String,
    },
    /// A rightful client did not get what it asked for.
    #[error("{what}, in all of {tries} tries; the last was {last:?}")]
    NotServed {
        /// What was asked for.
        what: &'static str,
        /// How often.
        tries: u32,
        /// How the last try ended.
        last: End,
    },
    /// The client's program failed where it must not.
    #[error("`{words}` ended with {code:?}:\n{said}")]
    Client {
        /// Its arguments.
        words: String,
        /// Its exit code.
        code: Option<i32>,
        /// What it printed.
        said: String,
    },
}

impl SoakError {
    /// For `map_err`.
    pub(super) fn io(what: &'static str) -> impl FnOnce(io::Error) -> SoakError {
        move |source| SoakError::Io { what, source }
    }
}
