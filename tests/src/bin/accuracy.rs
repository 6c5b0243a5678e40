//! Loads whose truth is known, beside what a profile says of them; see `accuracy --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    unikprof_tests::accuracy::main()
}
