//! `collect`: everything that many guests count, for the engines that keep profiles.

use std::path::PathBuf;

use clap::Args;

use unikprof_client::cli::shared::{CommandError, interrupt, print, print_text};
use unikprof_client::exit_code;

use crate::{Audit, CollectError, Config, Shard, collect};

#[derive(Debug, Args)]
#[command(after_help = COLLECT_HELP, arg_required_else_help = true)]
pub(super) struct CollectArguments {
    /// The guests, and where their profiles go
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Collect from this part of the guests, of so many of about one size: 1/8 to 8/8 for eight
    /// collectors, each with a spool of its own
    #[arg(long, value_name = "PART/PARTS", conflicts_with = "audit")]
    shard: Option<Shard>,
    /// Only print where every tick is, from the spool
    #[arg(long)]
    audit: bool,
    /// As JSON
    #[arg(long, requires = "audit")]
    json: bool,
}

const COLLECT_HELP: &str = "\
Keeps a recording named `collect` running in each guest, fetches what it has
counted every 15 seconds into a spool on disk, and delivers it from there
until Ctrl-C. A guest forgets nothing before it is in the spool, and the spool
nothing before all of [[push]] have accepted it.

fleet.toml, beside the guests (see `serve --help`):
  [collect]
  spool = \"spool\"              # a folder of its own
  spool-bytes = 1073741824     # beyond that, the oldest is dropped
  every = \"15s\"

  [[push]]
  kind = \"pyroscope\"           # or parca, otlp, folder
  url = \"http://10.0.0.2:4040\"

  [[push]]
  kind = \"folder\"
  path = \"recordings\"          # a .unikprof per guest and hour
  keep-for = \"30d\"

Examples:
  unikprof-fleet collect --config fleet.toml
  unikprof-fleet collect --config fleet.toml --audit";

const TICKS_MISSING: &str =
    "ticks are missing: what was fetched is neither delivered, dropped nor in the spool";

pub(super) fn run(arguments: &CollectArguments) -> Result<(), CommandError> {
    let config = Config::read(&arguments.config)?;
    if arguments.audit {
        let audit = Audit::read(&config.collect.spool).map_err(CollectError::from)?;
        if arguments.json {
            print(audit.json())?;
        } else {
            print_text(audit.to_string())?;
        }
        return match audit.adds_up() {
            true => Ok(()),
            false => Err(CommandError::new(TICKS_MISSING, exit_code::UNTRUSTWORTHY)),
        };
    }
    let interrupt = interrupt()?;
    let shard = arguments.shard.unwrap_or(Shard::ALL);
    collect(&arguments.config, config, shard, &interrupt, |guests, spool| {
        // Whoever started the program may wait for this line.
        let _ = print(format!("collecting from {guests} guests into {}\n", spool.display()));
    })?;
    Ok(())
}
