//! The cost of sampling for a guest on a real Xen, in an emulator; see `xen-bench --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    unikprof_tests::xen_bench::main()
}
