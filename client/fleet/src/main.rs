//! The program for many guests; see [`unikprof_fleet::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    unikprof_fleet::cli::main()
}
