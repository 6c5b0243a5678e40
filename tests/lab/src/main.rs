//! A flame graph of a unikernel on a real Xen, from nothing; see `xen-demo --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    unikprof_lab::demo::main()
}
