//! Records running unikernels, symbolizes the recordings and reports where time is spent.

#[macro_use]
mod charset;

pub(crate) mod agent_info;
pub mod allocator;
pub mod caller_table;
pub mod cli;
pub mod connection;
pub mod deadline;
#[cfg(feature = "demo")]
mod demo;
mod diff;
pub mod doctor;
mod finding;
pub mod frame_reader;
#[cfg(test)]
mod golden;
pub mod interrupt;
pub mod key;
mod leaks;
mod messages;
pub mod output;
mod plan;
pub mod printable;
pub mod profile;
pub mod progress;
pub mod record;
pub mod recorder_status;
pub mod recording;
pub mod recover;
pub mod report;
mod runs;
pub mod symbols;
pub mod timeline;
mod trace;
pub mod units;
mod view;

pub use cli::exit_code;
