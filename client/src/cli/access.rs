//! The options with which an agent is reached.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{Failure, values};
use unikprof_link::connection::{Access, Timeouts};
use unikprof_link::key::Key;

/// The environment variable that names the key file if the option is absent.
const VARIABLE: &str = "UNIKPROF_KEY_FILE";

/// The help heading of the connection options.
pub(super) const CONNECTION: &str = "Connection";

/// How long to wait, and how to authenticate. The key itself is never an argument: every user of
/// the machine can see those.
#[derive(Debug, Args)]
pub(super) struct AccessArguments {
    /// Timeout for connecting and for each part of a response
    #[arg(
        long, value_name = "TIME", default_value = "8s", value_parser = values::duration,
        global = true, help_heading = CONNECTION
    )]
    timeout: Duration,
    /// The key file for an agent that requires a key; default: $UNIKPROF_KEY_FILE
    ///
    /// `keygen` makes it. A file that other users can read is rejected.
    #[arg(long, value_name = "FILE", global = true, help_heading = CONNECTION)]
    pub(super) key_file: Option<PathBuf>,
}

impl AccessArguments {
    pub(super) fn timeouts(&self) -> Timeouts {
        Timeouts { connect: self.timeout, answer: self.timeout }
    }

    /// The key file, if one is named; an empty variable counts as unset.
    pub(super) fn key_file(&self) -> Option<PathBuf> {
        let named = || std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
        self.key_file.clone().or_else(|| named().map(Into::into))
    }

    /// Reads the key.
    pub(super) fn access(&self) -> Result<Access, Failure> {
        match self.key_file() {
            Some(path) => Ok(Key::read(&path)?.into()),
            None => Ok(Access::Open),
        }
    }
}
