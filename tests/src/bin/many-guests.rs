//! A fleet of guests in one process, for tests of scale; see `many-guests --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    unikprof_tests::many_guests::main()
}
