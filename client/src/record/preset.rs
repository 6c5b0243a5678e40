//! Settings that have a name.

use clap::ValueEnum;

use super::settings::{Keep, Settings};

/// What a recording is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// Always on: 97 Hz without an end; a dump holds at most the last 5 minutes and 512 KiB of samples, unless it
    /// asks for a window, and where memory runs short the newest stacks are kept. It costs a tenth of `profile`
    Default,
    /// To look closely for a while: 997 Hz, a dump holds all there is, and no stack is given up. Every report tells what it has cost;
    /// docs/BENCHMARKS.md tells what to expect of both
    Profile,
}

impl Preset {
    /// The settings it stands for; the recording's name and what concerns no preset are the defaults.
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
