//! The key that the user names.

use std::path::PathBuf;

use clap::Args;

use super::Failure;
use crate::connection::Access;
use crate::key::Key;

/// Where the key file stands, if no argument says it.
const VARIABLE: &str = "UNIKPROF_KEY_FILE";

/// The heading of what concerns the connection alone, apart from what a word is about.
pub(super) const CONNECTION: &str = "Connection";

/// What to show the agent. A key itself is no argument: everybody on a machine sees those.
#[derive(Debug, Args)]
pub(super) struct AccessArguments {
    /// The file with the key that the agent asks for; UNIKPROF_KEY_FILE names one as well
    ///
    /// `keygen` makes it. A file that others can read is refused.
    #[arg(long, value_name = "FILE", global = true, help_heading = CONNECTION)]
    key_file: Option<PathBuf>,
}

impl AccessArguments {
    /// Reads the key, if one is named; an empty variable names none.
    pub(super) fn access(&self) -> Result<Access, Failure> {
        let named = || std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
        match self.key_file.clone().or_else(|| named().map(Into::into)) {
            Some(path) => Ok(Key::read(&path)?.into()),
            None => Ok(Access::Open),
        }
    }
}
