//! What the programs `unikprof-client` and `unikprof-fleet` share of their command lines: errors
//! and exit codes, output files, values of options, manual pages and completions.

use std::error::Error;
use std::path::{Path, PathBuf};
#[cfg(unix)]
use std::sync::Arc;

use clap::Command;

use super::failure::Failure;
pub use super::install_docs::{CompletionsArguments, InstallDocsArguments};
pub use super::name_pattern::{NamePattern, NamedAfter};
pub use super::outputs::{ReportOutput, Target};
pub use super::values::{nanoseconds, rate};
use super::{error_columns, install_docs, outputs, signals};
use crate::exit_code;
use crate::progress;
use unikprof_link::interrupt::Interrupt;
use unikprof_profile::output::OutputError;

/// An error of a subcommand: its message, and the program's exit code.
#[derive(Debug)]
pub struct CommandError(pub(super) Failure);

impl CommandError {
    /// An error that ends the program with this [exit code](exit_code).
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>, exit_code: u8) -> CommandError {
        CommandError(Failure::Other { source: error.into(), exit_code })
    }

    /// The command line is wrong.
    pub fn usage(message: impl Into<String>) -> CommandError {
        CommandError(Failure::Usage(message.into()))
    }

    /// The same error with more to tell.
    #[must_use]
    pub fn adding(self, text: &str) -> CommandError {
        let told = self.0.text().map(|told| told + "\n").unwrap_or_default();
        CommandError::new(told + text, self.0.exit_code())
    }

    /// Whether it is one: a reader of stdout that has gone is not.
    pub fn is_failure(&self) -> bool {
        self.0.exit_code() != exit_code::SUCCESS
    }

    /// Keeps this error in a result, and prints an earlier one.
    pub fn note(self, result: &mut Result<(), CommandError>) {
        let mut noted = std::mem::replace(result, Ok(())).map_err(|earlier| earlier.0);
        outputs::note(&mut noted, self.0);
        *result = noted.map_err(CommandError);
    }
}

impl From<Failure> for CommandError {
    fn from(failure: Failure) -> CommandError {
        CommandError(failure)
    }
}

impl From<OutputError> for CommandError {
    fn from(error: OutputError) -> CommandError {
        CommandError(error.into())
    }
}

/// Runs a parsed command line and prints its error to stderr. Returns the program's exit code.
pub fn run<A>(
    parsed: Result<A, clap::Error>,
    run: impl FnOnce(A) -> Result<(), CommandError>,
) -> u8 {
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(error) => {
            print_of_clap(&error);
            return if error.use_stderr() { exit_code::USAGE } else { exit_code::SUCCESS };
        }
    };
    // A file that reaches the limit of the process is then an error that is told. Failure leaves the
    // signal as it is.
    #[cfg(unix)]
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    match run(arguments) {
        Ok(()) => exit_code::SUCCESS,
        Err(CommandError(failure)) => {
            if let Some(text) = failure.text() {
                tell!("error: {text}");
            }
            failure.exit_code()
        }
    }
}

/// Prints what clap has to say. clap wraps help, but no errors.
fn print_of_clap(error: &clap::Error) {
    let text = error.render().to_string();
    let is_too_wide = |columns| text.lines().any(|line| line.chars().count() > columns);
    if error.use_stderr() && error_columns().is_some_and(is_too_wide) {
        tell!("{}", text.trim_end());
    } else {
        // Help that nobody reads to its end is no failure.
        let _ = error.print();
    }
}

/// Refuses an output that is one of these inputs, whatever links lead there.
pub fn no_input_is_replaced<'p>(
    inputs: impl IntoIterator<Item = &'p PathBuf>,
    outputs: impl IntoIterator<Item = &'p Path>,
) -> Result<(), CommandError> {
    Ok(outputs::no_input_is_replaced(inputs, outputs)?)
}

/// Writes to stdout. A reader that has gone, as in `| head`, ends the program quietly.
pub fn print(bytes: impl AsRef<[u8]>) -> Result<(), CommandError> {
    Ok(super::print(bytes)?)
}

/// `print` for text that people read: in the characters of the locale.
pub fn print_text(text: impl AsRef<[u8]>) -> Result<(), CommandError> {
    Ok(super::print_local(true, text)?)
}

/// Counts SIGINT, SIGTERM and SIGHUP from now on instead of ending the process.
pub fn interrupt() -> Result<Interrupt, CommandError> {
    let interrupt = Interrupt::default();
    signals::listen(&interrupt).map_err(Failure::Signals)?;
    Ok(interrupt)
}

/// [`interrupt`]; the first is acknowledged at once, with the words that samples are kept.
pub fn interrupt_recording() -> Result<Interrupt, CommandError> {
    let interrupt = Interrupt::default();
    let stopping = || {
        tell!("{}", progress::stopping("samples"));
        None
    };
    signals::listen_telling(&interrupt, stopping, |_| None).map_err(Failure::Signals)?;
    Ok(interrupt)
}

/// Installs the manual pages and completions of a program.
pub fn install_docs(
    arguments: &InstallDocsArguments,
    program: &Command,
) -> Result<(), CommandError> {
    Ok(install_docs::run(arguments, program)?)
}

/// Prints a program's completion script.
pub fn print_completions(
    arguments: &CompletionsArguments,
    program: &Command,
) -> Result<(), CommandError> {
    print(install_docs::completions(arguments.shell, program))
}
