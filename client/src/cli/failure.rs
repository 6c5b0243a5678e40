//! The program's errors.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::output_format::UnknownOutputFormat;
use super::outputs::note;
use super::recover::RecoverError;
use super::shared::CommandError;
use crate::view::ViewError;
use unikprof_link::connection::ConnectionError;
use unikprof_link::key::{KeyFileError, NoRandomness};
use unikprof_link::plan::OrderError;
use unikprof_link::record::RecordError;
use unikprof_profile::caller_table::{CallerTableError, CompileError};
use unikprof_profile::output::OutputError;
use unikprof_profile::recording::RecordingError;
use unikprof_profile::symbols::SymbolError;
use unikprof_profile::timeline::MomentError;
use unikprof_report::diff::DiffError;
use unikprof_report::report::{AnnotationError, FunctionError, ReportError};

/// Every error of the program, with its message and exit code.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(
        "{} may hold earlier samples of this recording, and the guest has them no longer; choose \
         another name: `report` reads several files as one", path.display()
    )]
    Replaces { path: PathBuf },
    #[error(transparent)]
    Recording(#[from] RecordingError),
    #[error(transparent)]
    Recover(#[from] RecoverError),
    #[error(transparent)]
    Symbols(#[from] SymbolError),
    #[error(transparent)]
    CallerTable(#[from] CallerTableError),
    #[error(transparent)]
    Compile(#[from] CompileError),
    #[error("cannot configure {}: {problem}", path.display())]
    Image { path: PathBuf, problem: String },
    #[error(transparent)]
    Key(#[from] KeyFileError),
    #[error(transparent)]
    Randomness(NoRandomness),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("cannot write {}: {source}", path.display())]
    Report { path: PathBuf, source: ReportError },
    #[error("wrote {}, but no browser could be started; open the file yourself", path.display())]
    Browser { path: PathBuf },
    #[error("cannot write to standard output: {0}")]
    Stdout(io::Error),
    #[error(transparent)]
    Format(#[from] UnknownOutputFormat),
    #[error(transparent)]
    Moment(MomentError),
    #[error(transparent)]
    Function(FunctionError),
    #[error(transparent)]
    Annotation(AnnotationError),
    #[error(transparent)]
    Trace(#[from] OrderError),
    #[error("{0}")]
    Usage(String),
    #[error("the recording is incomplete: {reason}{}", arrived_in(path.as_deref()))]
    Incomplete {
        /// What arrived, unless it cannot be read back.
        path: Option<PathBuf>,
        reason: String,
    },
    #[error("this ended too early to tell a leak: there was only one look at what is held")]
    OneLook,
    #[error("{source}\n{}", place_of(recording))]
    AfterRecording { recording: PathBuf, source: Box<Failure> },
    /// An error that has been printed.
    #[error("an error was printed")]
    Told { exit_code: u8 },
    #[error("a check is bad")]
    Untrustworthy,
    #[error(transparent)]
    View(#[from] ViewError),
    #[error(transparent)]
    Diff(#[from] DiffError),
    #[error("the new recording is slower, as --fail-on asks")]
    Slower,
    #[error("cannot wait for signals: {0}")]
    Signals(io::Error),
    /// An error of `unikprof-fleet`.
    #[error("{source}")]
    Other { source: Box<dyn std::error::Error + Send + Sync>, exit_code: u8 },
    #[cfg(feature = "demo")]
    #[error(transparent)]
    Demo(#[from] crate::demo::DemoError),
}

fn place_of(recording: &Path) -> String {
    let path = recording.display();
    format!("the recording itself is in {path}; show it with `unikprof-client report`")
}

fn arrived_in(path: Option<&Path>) -> String {
    path.map_or_else(String::new, |path| {
        let path = path.display();
        format!("\nwhat arrived is in {path}; show it with `unikprof-client report`")
    })
}

impl From<CommandError> for Failure {
    fn from(error: CommandError) -> Failure {
        error.0
    }
}

impl Failure {
    /// What became of a recording, which is in this file: whether it has the name that was asked
    /// for, it could be `shown`, and nothing is missing. `is_only`: what a reader of stdout did not
    /// take is in no other place.
    pub(super) fn of_recording(
        path: PathBuf,
        displaced: Option<OutputError>,
        shown: Result<(), Failure>,
        is_only: bool,
        incomplete: Option<impl ToString>,
    ) -> Result<(), Failure> {
        let after = |source: Failure| match source {
            Failure::Stdout(error) if error.kind() == io::ErrorKind::BrokenPipe && !is_only => {
                Failure::Stdout(error)
            }
            // The file itself cannot be read: another program has written to it.
            Failure::Recording(error) => Failure::Recording(error),
            source => Failure::AfterRecording { recording: path.clone(), source: Box::new(source) },
        };
        let read = (!matches!(shown, Err(Failure::Recording(_)))).then(|| path.clone());
        let incomplete =
            incomplete.map(|reason| Failure::Incomplete { path: read, reason: reason.to_string() });
        // Each is told, and the last of them decides.
        let mut result = shown.map_err(after);
        let displaced = displaced.map(|error| after(error.into()));
        for failure in incomplete.into_iter().chain(displaced) {
            note(&mut result, failure);
        }
        result
    }

    /// What to tell the user; nothing where a reader of stdout has just had enough.
    pub(crate) fn text(&self) -> Option<String> {
        match self {
            Failure::Stdout(error) if error.kind() == io::ErrorKind::BrokenPipe => None,
            Failure::Untrustworthy | Failure::Slower | Failure::Told { .. } => None,
            Failure::AfterRecording { recording, source }
                if matches!(**source, Failure::Told { .. }) =>
            {
                Some(place_of(recording))
            }
            other => Some(other.to_string()),
        }
    }
}
