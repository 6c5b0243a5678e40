//! The command-line client of unikprof; see [`unikprof_client::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    unikprof_client::cli::main()
}
