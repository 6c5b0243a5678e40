//! The program for many guests; see [`unikprof_fleet::cli`].

use std::process::ExitCode;

use unikprof_client::allocator::Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    unikprof_fleet::cli::main()
}
