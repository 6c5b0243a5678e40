//! The command-line client of unikprof; see [`unikprof_client::cli`].

use std::process::ExitCode;

use unikprof_client::allocator::Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    unikprof_client::cli::main()
}
