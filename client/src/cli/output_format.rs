//! What an output file holds.

use std::path::Path;
use std::str::FromStr;

use thiserror::Error;

use unikprof_report::report;

/// A raw recording, or a report in one of its formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum OutputFormat {
    /// The raw recording, `.unikprof`: lossless, and the source of all reports.
    Recording,
    /// Something drawn from it.
    Report(report::Format),
}

/// Neither a format's name nor a file's ending that stands for one.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}; for the raw recording use `unikprof`, with the extension .unikprof")]
pub(crate) struct UnknownOutputFormat(#[from] report::UnknownFormat);

const RECORDING: &str = "unikprof";

impl OutputFormat {
    /// The format that a file's ending stands for.
    pub(crate) fn from_path(path: &Path) -> Result<OutputFormat, UnknownOutputFormat> {
        match path.extension() {
            Some(ending) if ending.eq_ignore_ascii_case(RECORDING) => Ok(OutputFormat::Recording),
            _ => Ok(OutputFormat::Report(report::Format::from_path(path)?)),
        }
    }
}

impl FromStr for OutputFormat {
    type Err = UnknownOutputFormat;

    fn from_str(name: &str) -> Result<OutputFormat, UnknownOutputFormat> {
        match name {
            RECORDING => Ok(OutputFormat::Recording),
            name => Ok(OutputFormat::Report(name.parse()?)),
        }
    }
}
