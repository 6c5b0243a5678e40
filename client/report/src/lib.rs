//! Shows where a unikernel spends its time: a profile becomes text, JSON, a page, or another program's
//! format.
//!
//! It takes a [`unikprof_profile::profile::Profile`] with its symbols. It gives [`report::Report`]s,
//! differences between two profiles, what [`doctor`] thinks of a recording, and memory that is not
//! returned. It connects to no guest, and writes only to what it is given.
//!
//! ```no_run
//! # use std::path::Path;
//! # use unikprof_profile::recording::{Reading, Recording};
//! # use unikprof_profile::symbols::{Images, Symbolizer};
//! use unikprof_report::report::{Format, Report, ReportOptions};
//!
//! # let recording = Recording::open(Path::new("run.unikprof"), Reading::Strict)?;
//! let symbolized = Symbolizer::new(Images::default()).resolve(&recording.profile)?;
//! let report = Report::new(&symbolized, ReportOptions::default());
//! report.write(Format::Text, &mut std::io::stdout())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod diff;
pub mod doctor;
pub mod finding;
pub mod leaks;
pub mod report;
