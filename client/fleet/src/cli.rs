//! The command line of `unikprof-fleet`.
//!
//! The program's `main` is [`main`] alone. Output for people and programs goes to stdout, errors,
//! warnings and progress to stderr; [`exit_code`](unikprof_client::exit_code) lists what the exit
//! codes mean.

mod collect;
mod record;
mod serve;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use unikprof_client::cli::shared::{
    self, CommandError, CompletionsArguments, InstallDocsArguments, install_docs, print_completions,
};

/// Record many running Xen unikernels over TCP: at once, on request over HTTP, or for ever
#[derive(Debug, Parser)]
#[command(
    name = "unikprof-fleet",
    version,
    after_help = HELP,
    subcommand_required = true,
    arg_required_else_help = true
)]
struct Arguments {
    #[command(subcommand)]
    word: Word,
}

const HELP: &str = "\
Examples:
  unikprof-fleet record --guests fleet.toml 30s               show what differs between guests
  unikprof-fleet serve --config fleet.toml                    answer HTTP requests for profiles
  unikprof-fleet collect --config fleet.toml                  deliver everything that guests count

Exit codes are those of `unikprof-client`.

One guest: unikprof-client";

const INSTALL_DOCS_HELP: &str = "\
Below the prefix it writes share/man/man1, share/bash-completion/completions,
share/zsh/site-functions and share/fish/vendor_completions.d.

Examples:
  unikprof-fleet install-docs
  sudo unikprof-fleet install-docs --prefix /usr/local
  man unikprof-fleet-collect";

#[derive(Debug, Subcommand)]
enum Word {
    /// Record many guests at once into one profile, and name those that differ from the rest
    Record(Box<record::RecordArguments>),
    /// Serve the profiles and metrics of many guests over HTTP, as pprof and for Prometheus
    Serve(serve::ServeArguments),
    /// Fetch all that many guests count, for ever, and deliver it to Pyroscope, Parca,
    /// OpenTelemetry or a folder
    Collect(collect::CollectArguments),
    /// Install the manual pages and the completions for bash, zsh and fish
    #[command(after_help = INSTALL_DOCS_HELP)]
    InstallDocs(InstallDocsArguments),
    /// Print a shell completion script
    #[command(after_help = "Example:\n  unikprof-fleet completions bash > \
                      ~/.local/share/bash-completion/completions/unikprof-fleet")]
    Completions(CompletionsArguments),
}

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    ExitCode::from(shared::run(Arguments::try_parse(), run))
}

fn run(arguments: Arguments) -> Result<(), CommandError> {
    match arguments.word {
        Word::Record(arguments) => record::run(&arguments),
        Word::Serve(arguments) => serve::run(&arguments),
        Word::Collect(arguments) => collect::run(&arguments),
        Word::InstallDocs(arguments) => install_docs(&arguments, &Arguments::command()),
        Word::Completions(arguments) => print_completions(&arguments, &Arguments::command()),
    }
}

#[cfg(test)]
mod tests {
    use unikprof_test_kit::documents;

    use super::*;

    /// clap breaks what is too long for the terminal, in the middle of a paragraph that has its own
    /// breaks.
    #[test]
    fn paragraphs_fit_a_terminal() {
        let program = Arguments::command();
        for word in program.get_subcommands().chain([&program]) {
            let help = word.get_after_help().map(ToString::to_string);
            for line in help.iter().flat_map(|help| help.lines()) {
                let is_prose = !line.starts_with(' ');
                assert!(!is_prose || line.len() <= 80, "{}: {line}", word.get_name());
            }
        }
    }

    /// Options that were renamed, or never existed.
    #[test]
    fn commands_in_the_documentation_are_understood() {
        const PROGRAM: &str = "unikprof-fleet";
        let commands = documents::commands(PROGRAM);
        for (line, words) in &commands {
            let words = std::iter::once(PROGRAM).chain(words.iter().map(String::as_str));
            if let Err(error) = Arguments::try_parse_from(words) {
                panic!("{line}\n{error}");
            }
        }
        assert!(commands.len() >= 7, "{} were found", commands.len());
    }

    #[test]
    fn the_reference_is_what_the_definitions_say() {
        const BLESS: &str = "UNIKPROF_BLESS=1 cargo test -p unikprof-fleet --lib the_reference";
        unikprof_test_kit::reference::check(&Arguments::command(), BLESS);
    }
}
