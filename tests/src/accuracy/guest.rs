//! Guests that run loads on demand: what the cases need of them, hosted or on a Xen.

use anyhow::Result;
use unikprof_link::record::Settings;
use unikprof_proto::caller_table::Row;

use super::capture::Captured;
use super::images::Images;
use super::recorded::Recorded;

pub trait Guest {
    /// Records while the guest does what `command` says, and nothing else; with the caller table of
    /// the guest, as the client's program does.
    fn record(&mut self, settings: &Settings, command: &str) -> Result<Recorded>;

    /// Captures so many samples of a leaf load, or of the load `frameless`.
    fn capture(&mut self, load: &str, samples: usize) -> Result<Captures>;
}

/// Captured samples, and all that is needed to walk them.
pub struct Captures {
    pub(crate) samples: Vec<Captured>,
    /// The location of their code, and its unwind tables.
    pub(crate) images: Images,
    /// The caller table that the client makes of it.
    pub(crate) callers: Vec<Row>,
}

/// Settings for a recording that lasts as long as its load.
pub(crate) fn settings(period_ns: u64) -> Settings {
    Settings { name: "accuracy".into(), period_ns, replace: true, ..Settings::default() }
}
