//! `install-docs`: manual pages and completions, made from the command line itself.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

use super::failure::Failure;
use super::print;
use unikprof_profile::output::OutputError;

pub(super) const HELP: &str = "\
Below the prefix it writes share/man/man1, share/bash-completion/completions,
share/zsh/site-functions and share/fish/vendor_completions.d.

Examples:
  unikprof-client install-docs
  sudo unikprof-client install-docs --prefix /usr/local
  man unikprof-client-connect-record";

/// Each shell's folder below a prefix, and the file name before and after the program's name.
const COMPLETIONS: [(Shell, &str, &str); 3] = [
    (Shell::Bash, "share/bash-completion/completions/", ""),
    (Shell::Zsh, "share/zsh/site-functions/_", ""),
    (Shell::Fish, "share/fish/vendor_completions.d/", ".fish"),
];

/// Where manual pages and completions go.
#[derive(Debug, Args)]
pub struct InstallDocsArguments {
    /// The folder to install below; ~/.local if not given
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
}

/// Which completions to print.
#[derive(Debug, Args)]
pub struct CompletionsArguments {
    /// The shell to print it for
    pub(super) shell: Shell,
}

/// Installs the manual pages and completions of `program`.
pub(super) fn run(arguments: &InstallDocsArguments, program: &Command) -> Result<(), Failure> {
    let own = || Some(std::env::home_dir()?.join(".local"));
    let Some(prefix) = arguments.prefix.clone().or_else(own) else {
        return Err(Failure::Usage(
            "there is no home folder: say where to install with --prefix".into(),
        ));
    };
    let pages = prefix.join("share/man/man1");
    create_folder(&pages)?;
    let mut built = program.clone().disable_help_subcommand(true);
    built.build();
    write_pages(&built, &pages)?;
    let name = program.get_name();
    let mut told = format!("wrote        {}\n", pages.join(format!("{name}*.1")).display());
    for (shell, before, after) in COMPLETIONS {
        let path = prefix.join(format!("{before}{name}{after}"));
        create_folder(path.parent().unwrap_or(&prefix))?;
        fs::write(&path, completions(shell, program)).map_err(OutputError::at(&path))?;
        told.push_str(&format!("wrote        {}\n", path.display()));
    }
    print(told)
}

/// The page of a subcommand, and those of its own subcommands.
fn write_pages(command: &Command, folder: &Path) -> Result<(), Failure> {
    let page = Man::new(command.clone()).source(concat!("unikprof ", env!("CARGO_PKG_VERSION")));
    let path = folder.join(page.get_filename());
    page.generate_to(folder).map_err(OutputError::at(&path))?;
    let mut subcommands = command.get_subcommands();
    subcommands.try_for_each(|subcommand| write_pages(subcommand, folder))
}

/// The script that completes a program's words in a shell.
pub(super) fn completions(shell: Shell, program: &Command) -> Vec<u8> {
    let mut script = Vec::new();
    let mut program = program.clone();
    let name = program.get_name().to_owned();
    clap_complete::generate(shell, &mut program, &name, &mut script);
    let text = String::from_utf8_lossy(&script);
    match shell {
        // clap_complete has two names for what stands behind a program's name with a hyphen.
        Shell::Bash => {
            text.replace(&name.replace('-', "__subcmd__"), &name.replace('-', "__")).into()
        }
        // Its `*::` completes no option behind the first of several files.
        Shell::Zsh => text.replace("'*::", "'*:").into(),
        _ => script,
    }
}

fn create_folder(path: &Path) -> Result<(), Failure> {
    Ok(fs::create_dir_all(path).map_err(OutputError::at(path))?)
}
