//! The integration tests of the client: its program as users meet it, and the library below it.
#![allow(clippy::unwrap_used)]

mod compiled;
mod peer;

mod caller_table;
mod command_line;
mod completions;
mod configure;
#[cfg(all(feature = "demo", target_os = "linux", target_arch = "x86_64"))]
mod crash_log;
#[cfg(all(feature = "demo", target_os = "linux", target_arch = "x86_64"))]
mod demo;
mod diff;
mod drain;
mod every_format;
mod heap_file;
mod identity;
#[cfg(unix)]
mod key_files;
mod keyed;
mod lease;
mod merge;
mod recording_file;
mod recording_flow;
mod recordings;
mod recover;
mod report_annotation;
mod report_calls;
mod report_intervals;
#[cfg(feature = "debuginfod")]
mod report_symbols;
mod report_warnings;
mod rings;
mod timeline_file;
