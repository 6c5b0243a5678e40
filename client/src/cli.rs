//! The command line: what can be said to `unikprof-client`, and what it does then.
//!
//! The program's `main` is [`main`] alone. Output for people and programs goes to stdout, errors,
//! warnings and progress to stderr; [`exit_code`] lists what the exit codes mean.

mod access;
mod arguments;
mod caller_table;
mod configure;
mod connect;
mod describe;
mod diff;
mod doctor;
mod events;
pub mod exit_code;
mod failure;
mod install_docs;
mod json;
mod keygen;
mod leaks;
mod name_pattern;
mod names;
mod output_format;
mod outputs;
mod recordings;
mod recover;
mod report;
mod screen;
mod script;
pub mod shared;
pub mod signals;
mod snapshot;
mod status;
mod time;
mod top;
mod trace;
mod values;
mod view;

use std::ffi::OsString;
use std::process::ExitCode;

use arguments::{Arguments, Word, command};
pub(crate) use failure::Failure;
#[cfg(feature = "demo")]
pub(crate) use outputs::write_report;
#[cfg(feature = "demo")]
pub(crate) use report::open_page;
#[cfg(feature = "demo")]
pub(crate) use screen::{columns, pasted};
pub(crate) use screen::{error_columns, print, print_local};
#[cfg(feature = "demo")]
pub(crate) use values::nanoseconds;

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    ExitCode::from(run(std::env::args_os()))
}

/// Runs the program with these arguments, its own name first; answers its exit code.
fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    shared::run(Arguments::parse_words(arguments), |arguments| Ok(run_word(arguments.word)?))
}

fn run_word(word: Word) -> Result<(), Failure> {
    match word {
        Word::Connect(arguments) => connect::run(arguments),
        Word::Report(arguments) => report::run(&arguments),
        Word::Diff(arguments) => diff::run(&arguments),
        Word::Script(arguments) => script::run(&arguments),
        Word::Leaks(arguments) => leaks::run(&arguments),
        Word::View(arguments) => view::run(&arguments),
        Word::Recover(arguments) => recover::run(&arguments),
        Word::Doctor(arguments) => doctor::run(&arguments),
        Word::CallerTable(arguments) => caller_table::run(&arguments),
        Word::Configure(arguments) => configure::run(&arguments),
        Word::Keygen(arguments) => keygen::run(&arguments),
        #[cfg(feature = "demo")]
        Word::Demo(arguments) => crate::demo::run(&arguments),
        Word::InstallDocs(arguments) => install_docs::run(&arguments, &command()),
        Word::Completions(arguments) => {
            print(install_docs::completions(arguments.shell, &command()))
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

    #[test]
    #[cfg(feature = "demo")]
    fn the_reference_is_what_the_definitions_say() {
        const BLESS: &str = "UNIKPROF_BLESS=1 cargo test -p unikprof-client --lib the_reference";
        unikprof_test_kit::reference::check(&command(), BLESS);
    }
}
