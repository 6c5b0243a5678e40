//! `install-docs`: manual pages and completions, made from the command line itself.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

use super::arguments::command;
use super::failure::Failure;
use super::print;
use crate::output::OutputError;

pub(super) const HELP: &str = "\
Below the prefix it writes share/man/man1, share/bash-completion/completions,
share/zsh/site-functions and share/fish/vendor_completions.d.

Examples:
  unikprof-client install-docs
  sudo unikprof-client install-docs --prefix /usr/local
  man unikprof-client-connect-record";

/// The program's name, as its pages and completions are called.
const PROGRAM: &str = "unikprof-client";

/// Where each shell looks below a prefix.
const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "share/bash-completion/completions/unikprof-client"),
    (Shell::Zsh, "share/zsh/site-functions/_unikprof-client"),
    (Shell::Fish, "share/fish/vendor_completions.d/unikprof-client.fish"),
];

#[derive(Debug, Args)]
pub(super) struct InstallDocsArguments {
    /// The folder to install below; ~/.local if not given
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
}

pub(super) fn run(arguments: &InstallDocsArguments) -> Result<(), Failure> {
    let own = || Some(std::env::home_dir()?.join(".local"));
    let Some(prefix) = arguments.prefix.clone().or_else(own) else {
        return Err(Failure::Usage(
            "there is no home folder: say where to install with --prefix".into(),
        ));
    };
    let pages = prefix.join("share/man/man1");
    create_folder(&pages)?;
    let mut command = command().disable_help_subcommand(true);
    command.build();
    write_pages(&command, &pages)?;
    let mut told = format!("wrote        {}\n", pages.join("unikprof-client*.1").display());
    for (shell, name) in COMPLETIONS {
        let path = prefix.join(name);
        create_folder(path.parent().unwrap_or(&prefix))?;
        fs::write(&path, completions(shell)).map_err(OutputError::at(&path))?;
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

/// The script that completes this program's words in a shell.
pub(super) fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), PROGRAM, &mut script);
    script
}

fn create_folder(path: &Path) -> Result<(), Failure> {
    Ok(fs::create_dir_all(path).map_err(OutputError::at(path))?)
}
