//! The command line: what can be said to `unikprof-client`, and what it does then.
//!
//! The program's `main` is [`main`] alone. Output for people and programs goes to stdout, errors,
//! warnings and progress to stderr; [`exit_code`] lists what the exit codes mean.

mod access;
mod arguments;
mod caller_table;
#[cfg(feature = "fleet")]
mod collect;
mod configure;
mod connect;
mod describe;
mod diff;
mod doctor;
mod events;
mod failure;
mod install_docs;
mod json;
mod keygen;
mod leaks;
mod names;
mod outputs;
#[cfg(feature = "fleet")]
mod record;
mod recordings;
mod recover;
mod report;
mod screen;
mod script;
#[cfg(feature = "fleet")]
mod serve;
mod snapshot;
mod status;
mod time;
mod top;
mod trace;
mod values;
mod view;

use std::ffi::OsString;
use std::process::ExitCode;

use crate::exit_code;
use arguments::{Arguments, Word};
pub(crate) use failure::Failure;
#[cfg(feature = "demo")]
pub(crate) use outputs::write_report;
#[cfg(feature = "demo")]
pub(crate) use screen::columns;
pub(crate) use screen::print;
#[cfg(feature = "demo")]
pub(crate) use values::nanoseconds;

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    ExitCode::from(run(std::env::args_os()))
}

/// Runs the program with these arguments, its own name first; answers its exit code.
fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let arguments = match Arguments::parse_words(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help that nobody reads to its end is no failure.
            let _ = error.print();
            return if error.use_stderr() { exit_code::USAGE } else { exit_code::SUCCESS };
        }
    };
    let done = match arguments.word {
        Word::Connect(arguments) => connect::run(arguments),
        Word::Report(arguments) => report::run(&arguments),
        Word::Diff(arguments) => diff::run(&arguments),
        Word::Script(arguments) => script::run(&arguments),
        Word::Leaks(arguments) => leaks::run(&arguments),
        Word::View(arguments) => view::run(&arguments),
        #[cfg(feature = "fleet")]
        Word::Record(arguments) => record::run(&arguments),
        #[cfg(feature = "fleet")]
        Word::Serve(arguments) => serve::run(&arguments),
        #[cfg(feature = "fleet")]
        Word::Collect(arguments) => collect::run(&arguments),
        Word::Recover(arguments) => recover::run(&arguments),
        Word::Doctor(arguments) => doctor::run(&arguments),
        Word::CallerTable(arguments) => caller_table::run(&arguments),
        Word::Configure(arguments) => configure::run(&arguments),
        Word::Keygen(arguments) => keygen::run(&arguments),
        #[cfg(feature = "demo")]
        Word::Demo(arguments) => crate::demo::run(&arguments),
        Word::InstallDocs(arguments) => install_docs::run(&arguments),
        Word::Completions { shell } => print(install_docs::completions(shell)),
    };
    match done {
        Ok(()) => exit_code::SUCCESS,
        Err(failure) => {
            if let Some(text) = failure.text() {
                eprintln!("error: {text}");
            }
            failure.exit_code()
        }
    }
}

#[cfg(test)]
mod tests {
    use unikprof_test_kit::documents;

    use super::*;

    /// Options that were renamed, or never existed.
    #[test]
    #[cfg(feature = "demo")]
    fn commands_in_the_documentation_are_understood() {
        const PROGRAM: &str = "unikprof-client";
        let commands = documents::commands(PROGRAM);
        for (line, words) in &commands {
            let words = std::iter::once(PROGRAM).chain(words.iter().map(String::as_str));
            if let Err(error) = Arguments::parse_words(words) {
                panic!("{line}\n{error}");
            }
        }
        assert!(commands.len() > 40, "{} were found", commands.len());
    }
}
