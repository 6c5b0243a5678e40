//! Shows where a unikernel spends its time: a profile becomes text, JSON, a page, or another program's
//! format.
//!
//! It takes a [`unikprof_profile::profile::Profile`] with its symbols. It gives [`report::Report`]s,
//! differences between two profiles, what [`doctor`] thinks of a recording, and memory that is not
//! returned. It connects to no guest, and writes only to what it is given.

pub mod diff;
pub mod doctor;
mod finding;
pub mod leaks;
pub mod report;
