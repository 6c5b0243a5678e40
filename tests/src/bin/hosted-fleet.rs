//! The program for many guests, built beside the tests that run it: they find it wherever they are
//! built.

use std::process::ExitCode;

fn main() -> ExitCode {
    unikprof_fleet::cli::main()
}
