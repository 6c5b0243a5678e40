//! Guests that run loads on demand: what the cases need of them, hosted or on a Xen.

use std::path::PathBuf;

use unikprof_client::record::Settings;

use super::capture::Captured;
use super::error::AccuracyError;
use super::images::Images;
use super::recorded::Recorded;

/// A guest that runs loads on demand.
pub trait Guest {
    /// Records while the guest does what `command` says, and nothing else.
    ///
    /// # Errors
    /// [`AccuracyError`].
    fn record(&mut self, settings: &Settings, command: &str) -> Result<Recorded, AccuracyError>;

    /// Captures so many samples of a leaf load, with the images they lie in.
    ///
    /// # Errors
    /// [`AccuracyError`].
    fn capture(
        &mut self,
        load: &str,
        samples: usize,
    ) -> Result<(Images, Vec<Captured>), AccuracyError>;

    /// The program that the guest runs.
    fn program(&self) -> PathBuf;
}

/// Settings for a recording that lasts as long as its load.
pub fn settings(period_ns: u64) -> Settings {
    Settings {
        name: "accuracy".into(),
        period_ns,
        discard: true,
        ..Settings::default()
    }
}
