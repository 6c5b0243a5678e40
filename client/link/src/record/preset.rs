//! Named sets of settings.

use clap::ValueEnum;

use super::settings::{Keep, Settings};

/// A named set of settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// Continuous recording: 97 Hz; a dump without a time window has at most the last 5 minutes and
    /// 512 KiB of samples; when memory is full, the newest stacks are kept. Costs a tenth of
    /// `profile`
    Default,
    /// Detailed recording for a limited time: 997 Hz; a dump has all samples, and no stack is
    /// dropped. Every report shows the cost
    Profile,
}

impl Preset {
    /// Its settings; the recording's name and everything that no preset sets have their defaults.
    pub fn settings(self) -> Settings {
        match self {
            Preset::Default => Settings {
                period_ns: 1_000_000_000 / 97,
                max_age_ns: 300_000_000_000,
                max_bytes: 512 << 10,
                keep: Keep::Newest,
                ..Settings::default()
            },
            Preset::Profile => Settings::default(),
        }
    }
}
