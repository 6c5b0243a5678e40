//! The program `xen-demo` beside the cases that run it.

use std::process::ExitCode;

fn main() -> ExitCode {
    unikprof_tests::lab::demo::main()
}
