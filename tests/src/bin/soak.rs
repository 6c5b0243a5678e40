//! A guest under load, faults and hostile peers for as long as asked; see `soak --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    unikprof_tests::soak::main()
}
