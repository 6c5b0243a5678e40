//! The words about recordings: how one is begun, and which one is meant.

use clap::Args;

use super::arguments::OutputArguments;
use super::names::NameArguments;
use super::values;
use crate::record::{DEFAULT_NAME, Keep, Mode, Preset, Settings, Unwind, own_name};

pub(super) const RECORD_HELP: &str = "\
The recording has a name of its own and leaves others in the guest alone. While
it runs, what it has counted is fetched before the guest's memory is full. The
guest ends it by itself, also if this client is gone; `stop --name` then fetches
it, and `check` tells the name. Ctrl-C ends it early and keeps what was sampled.

Examples:
  unikprof-client connect 10.0.0.5 record 30s
  unikprof-client connect 10.0.0.5 record 10s -o run.unikprof -o run.txt
  unikprof-client connect 10.0.0.5 record 1m -F 9973 --image guest.elf -o run.svg
  unikprof-client connect 10.0.0.5 record 10s --image guest.elf -o -";

pub(super) const START_HELP: &str = "\
Names tell recordings apart, for other clients too and after a lost connection.
An agent holds as many at a time as `check` tells; each keeps its own rate, mode
and counts.

Examples:
  unikprof-client connect 10.0.0.5 start --name flight --preset default
  unikprof-client connect 10.0.0.5 start --name waits --mode off-cpu --duration 8h
  unikprof-client connect 10.0.0.5 start --name close -F 4999 --delay 10s --duration 1m
  unikprof-client connect 10.0.0.5 start --name minute --max-age 1m --max-size 256KiB";

#[derive(Debug, Args)]
pub(super) struct RecordArguments {
    /// How long to record, as in 30s or 5m; 0 or without it, until Ctrl-C
    #[arg(value_name = "DURATION", default_value = "0s", hide_default_value = true, value_parser = values::nanoseconds)]
    duration_ns: u64,
    /// The recording's name; one of its own if not given
    #[arg(long, value_name = "NAME", value_parser = values::name)]
    name: Option<String>,
    #[command(flatten)]
    pub(super) sampling: SamplingArguments,
    #[command(flatten)]
    pub(super) outputs: OutputArguments,
    #[command(flatten)]
    pub(super) names: NameArguments,
}

#[derive(Debug, Args)]
pub(super) struct StartArguments {
    /// The recording's name, by which `check`, `dump` and `stop` find it
    #[arg(long, value_name = "NAME", default_value = DEFAULT_NAME, value_parser = values::name)]
    name: String,
    /// What the recording is for; what else is said here goes before it
    #[arg(long, value_enum)]
    preset: Option<Preset>,
    /// How long to record, as in 8h; 0 or without it, until `stop`
    #[arg(long = "duration", value_name = "TIME", default_value = "0s", hide_default_value = true, value_parser = values::nanoseconds)]
    duration_ns: u64,
    /// How far back the samples of a dump need to go, as in 5m; 0: as far as the guest has any
    #[arg(long = "max-age", value_name = "TIME", value_parser = values::nanoseconds)]
    max_age_ns: Option<u64>,
    /// How much the samples of a dump may take, the newest first, as in 512KiB; 0: all that the guest has
    #[arg(long = "max-size", value_name = "SIZE", value_parser = values::bytes)]
    max_bytes: Option<u64>,
    #[command(flatten)]
    pub(super) sampling: SamplingArguments,
    #[command(flatten)]
    pub(super) names: NameArguments,
}

#[derive(Debug, Args)]
pub(super) struct CheckArguments {
    /// Only this recording, and all that is known of it
    #[arg(long, value_name = "NAME", value_parser = values::name)]
    pub(super) name: Option<String>,
}

/// Which recording is meant.
#[derive(Debug, Args)]
pub(super) struct WhichArguments {
    /// The recording; may be left out where there is only one
    #[arg(long, value_name = "NAME", value_parser = values::name)]
    pub(super) name: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct DownloadArguments {
    #[command(flatten)]
    pub(super) which: WhichArguments,
    #[command(flatten)]
    pub(super) outputs: OutputArguments,
    #[command(flatten)]
    pub(super) names: NameArguments,
}

#[derive(Debug, Args)]
pub(super) struct StopArguments {
    /// Drop what it counted since the last dump, and write no file
    #[arg(long, conflicts_with_all = ["output", "format"])]
    pub(super) discard: bool,
    #[command(flatten)]
    pub(super) download: DownloadArguments,
}

/// How to sample.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(super) struct SamplingArguments {
    /// Samples a second of running time, on each vCPU; 997 or the preset's if not given
    #[arg(short = 'F', long = "rate", value_name = "HZ", value_parser = values::rate)]
    period_ns: Option<u64>,
    /// The mean time between samples instead of a rate, as in 1ms
    #[arg(long, value_name = "TIME", value_parser = values::interval, conflicts_with = "period_ns")]
    interval: Option<u64>,
    /// How long to wait before sampling begins
    #[arg(long = "delay", value_name = "TIME", default_value = "0s", hide_default_value = true, value_parser = values::nanoseconds)]
    delay_ns: u64,
    /// The most frames kept of a stack; 128 or the agent's limit if not given
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u32).range(1..))]
    depth: Option<u32>,
    /// What is sampled
    #[arg(long, value_enum, default_value_t)]
    mode: Mode,
    /// How stacks are unwound
    #[arg(long, value_enum, default_value_t)]
    pub(super) unwind: Unwind,
    /// Do not send the agent a table, made from the images, to find callers in: those of leaf
    /// functions are then guessed
    #[arg(long)]
    pub(super) no_caller_table: bool,
    /// What is kept where the guest's memory runs short; all or the preset's choice if not given
    #[arg(long, value_enum)]
    keep: Option<Keep>,
    /// Replace a finished recording that no client has fetched: the one of the same name or, if the guest
    /// holds as many as it can, any
    #[arg(long)]
    replace: bool,
    /// Sample at fixed intervals instead of random ones: a load in step with them fools the profile
    #[arg(long)]
    fixed_interval: bool,
}

impl RecordArguments {
    pub(super) fn settings(&self) -> Settings {
        let settings = Settings {
            name: self.name.clone().unwrap_or_else(|| own_name("record")),
            duration_ns: self.duration_ns,
            ..Settings::default()
        };
        self.sampling.apply_to(settings)
    }
}

impl StartArguments {
    pub(super) fn settings(&self) -> Settings {
        let preset = self.preset.unwrap_or(Preset::Profile).settings();
        let settings = Settings {
            name: self.name.clone(),
            duration_ns: self.duration_ns,
            max_age_ns: self.max_age_ns.unwrap_or(preset.max_age_ns),
            max_bytes: self.max_bytes.unwrap_or(preset.max_bytes),
            ..preset
        };
        self.sampling.apply_to(settings)
    }
}

impl SamplingArguments {
    fn apply_to(&self, settings: Settings) -> Settings {
        let asked_ns = self.interval.or(self.period_ns);
        Settings {
            period_ns: asked_ns.unwrap_or(settings.period_ns),
            mode: self.mode,
            depth: self.depth,
            delay_ns: self.delay_ns,
            keep: self.keep.unwrap_or(settings.keep),
            replace: self.replace,
            fixed_interval: self.fixed_interval,
            unwind: self.unwind,
            ..settings
        }
    }
}
