//! The command line of `unikprof-client`: arguments, output files, progress, exit codes and the demo.
//!
//! `unikprof-fleet` shares its [`exit_code`]s and [habits](cli::shared).

#[macro_use]
mod charset;

pub mod allocator;
pub mod cli;
#[cfg(feature = "demo")]
mod demo;
pub mod progress;
mod view;

pub use cli::exit_code;
