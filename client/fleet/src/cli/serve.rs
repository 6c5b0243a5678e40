//! `serve`: many guests, for the engines that keep profiles.

use std::path::PathBuf;

use clap::Args;

use unikprof_client::cli::shared::{CommandError, interrupt, print};

use crate::{Config, serve};

#[derive(Debug, Args)]
#[command(after_help = SERVE_HELP, arg_required_else_help = true)]
pub(super) struct ServeArguments {
    /// The guests, and how they are served
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

const SERVE_HELP: &str = "\
Answers HTTP requests until Ctrl-C:
  /guests/NAME/debug/pprof/profile?seconds=N  records N seconds, as pprof
  /guests/NAME/debug/pprof/wall, .../offcpu   the same in these modes
  /metrics                                    OpenMetrics, for Prometheus
  /guests                                     the guests, as JSON
  /                                           the fleet on one page, for browsers

fleet.toml, of which only `name` and `address` are required:
  [serve]
  listen = \"127.0.0.1:7780\"    # TLS and authentication: a proxy in front
  longest = \"60s\"              # the limit of `seconds`

  [defaults]
  key-file = \"fleet.key\"
  rate = 97
  symbols = \"images\"           # a folder of images by build-id

  [[guests]]
  name = \"web-1\"
  address = \"10.0.0.5:7777\"
  labels = { app = \"web\" }

  [[targets]]
  file = \"targets.json\"        # Prometheus' file_sd; or url, for http_sd

The file and the lists are read again when they change.

Example:
  unikprof-fleet serve --config fleet.toml
  curl -o web.pb.gz \"http://127.0.0.1:7780/guests/web-1/debug/pprof/profile?seconds=10\"";

pub(super) fn run(arguments: &ServeArguments) -> Result<(), CommandError> {
    let config = Config::read(&arguments.config)?;
    let interrupt = interrupt()?;
    serve(&arguments.config, config, &interrupt, |address, guests| {
        // Whoever started the program may wait for this line.
        let _ = print(format!("serving {guests} guests on {address}\n"));
    })?;
    Ok(())
}
