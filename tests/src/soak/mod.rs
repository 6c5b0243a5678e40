//! The soak: a guest with a recording always on, under load, on bad lines and among hostile peers,
//! for as long as asked.

pub mod audit;
pub mod downloads;
pub mod events;
pub(crate) mod faults;
pub(crate) mod guest;
pub mod keeper;
pub mod keyed;
pub mod latency;
pub(crate) mod ledger;
pub mod line;
pub mod others;
pub mod peers;
pub mod phase;
pub(crate) mod program;
pub mod proxy;
pub mod random;
pub(crate) mod report;
pub mod rightful;
pub mod run;
pub(crate) mod samples;
pub mod speaker;
pub mod target;

use anyhow::{Context as _, Result};
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use crate::lab::guest_image::{cargo, run as compile};
use run::{Plan, run};

/// Runs a guest with a recording always on, under load, on bad lines and among hostile peers;
/// prints what became of it as Markdown. Fails where something was lost uncounted, or somebody got
/// in.
#[derive(Debug, Parser)]
#[command(name = "soak")]
struct Arguments {
    /// Duration in minutes
    #[arg(long, default_value_t = 60.0)]
    minutes: f64,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The guest asks for no key
    #[arg(long)]
    open: bool,
    /// Folder for downloads, which are left there; a temporary one of the system if omitted
    #[arg(long)]
    folder: Option<PathBuf>,
}

/// Runs the program with the arguments of this process; fails where something must not be.
pub fn main() -> ExitCode {
    match soak(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn soak(arguments: &Arguments) -> Result<bool> {
    let [guest, client] = build()?;
    let folder = match &arguments.folder {
        Some(folder) => folder.clone(),
        None => std::env::temp_dir().join(format!("unikprof-soak-{}", std::process::id())),
    };
    fs::create_dir_all(&folder).context("making a folder")?;
    eprintln!("downloads go to {}", folder.display());
    let outcome = run(Plan {
        duration: Duration::from_secs_f64(arguments.minutes.clamp(0.1, 100_000.0) * 60.0),
        seed: arguments.seed,
        keyed: !arguments.open,
        guest,
        client,
        folder,
    })?;
    println!("{outcome}");
    Ok(outcome.problems.is_empty())
}

/// Builds the guest and the client as this program was built; they lie beside it.
fn build() -> Result<[PathBuf; 2]> {
    let mut command = cargo();
    command
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["build", "--quiet", "--package", "unikprof-tests"])
        .args(["--bin", "hosted-guest", "--bin", "hosted-client"]);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    compile("building the guest and the client", &mut command)?;
    let own = std::env::current_exe().context("finding this program")?;
    Ok(["hosted-guest", "hosted-client"].map(|name| own.with_file_name(name)))
}
