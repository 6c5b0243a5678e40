//! The arguments about recordings: how one is started, and which one is meant.

use clap::Args;

use super::arguments::OutputArguments;
use super::failure::Failure;
use super::names::NameArguments;
use super::values;
use unikprof_link::record::{
    DEFAULT_INTERVAL_BYTES, DEFAULT_NAME, Keep, Mode, Preset, Settings, own_name,
};
use unikprof_profile::profile::Unwind;

pub(super) const RECORD_HELP: &str = "\
The recording runs beside others in the guest, under a generated name. Its
counts are fetched before the guest's memory is full. The guest ends it on time
even if this client is gone; `check` then shows its name, and `stop --name`
fetches it. Ctrl-C ends it early and keeps what was sampled.

Examples:
  unikprof-client connect 10.0.0.5 record 30s
  unikprof-client connect 10.0.0.5 record 10s -o run.unikprof -o run.txt
  unikprof-client connect 10.0.0.5 record 1m -F 9973 --image guest.elf -o run.svg
  unikprof-client connect 10.0.0.5 record 10s --image guest.elf -o -
  unikprof-client connect 10.0.0.5 record 1m --mode alloc --image guest.elf -o -
  unikprof-client connect 10.0.0.5 record 1m --mode live --every 64KiB -o run.pb.gz";

pub(super) const START_HELP: &str = "\
A recording's name identifies it, for other clients too and after a lost
connection. Several recordings can run at once, each with its own rate, mode and
counts; `check` shows the agent's limit.

Examples:
  unikprof-client connect 10.0.0.5 start --name flight --preset default
  unikprof-client connect 10.0.0.5 start --name waits --mode off-cpu --duration 8h
  unikprof-client connect 10.0.0.5 start --name close -F 4999 --delay 10s --duration 1m
  unikprof-client connect 10.0.0.5 start --name minute --max-age 1m --max-size 256KiB";

#[derive(Debug, Args)]
pub(super) struct RecordArguments {
    /// How long to record, for example 30s or 5m; until Ctrl-C if 0 or omitted
    #[arg(
        value_name = "DURATION", default_value = "0s", hide_default_value = true,
        value_parser = values::nanoseconds
    )]
    duration_ns: u64,
    /// The recording's name; generated if omitted
    #[arg(long, value_name = "NAME", value_parser = values::name)]
    name: Option<String>,
    #[command(flatten)]
    pub(super) sampling: SamplingArguments,
    /// In the modes alloc and live, the mean number of bytes between two that are sampled [default:
    /// 512KiB]
    #[arg(
        long, value_name = "SIZE", value_parser = values::interval_bytes, help_heading = "Sampling"
    )]
    every: Option<u64>,
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
    /// A set of defaults; explicit options override the preset
    #[arg(long, value_enum)]
    preset: Option<Preset>,
    /// How long to record, for example 8h; until `stop` if 0 or omitted
    #[arg(
        long = "duration", value_name = "TIME", default_value = "0s", hide_default_value = true,
        value_parser = values::nanoseconds
    )]
    duration_ns: u64,
    /// Maximum age of samples in a dump, for example 5m; 0 means no limit
    #[arg(long = "max-age", value_name = "TIME", value_parser = values::nanoseconds)]
    max_age_ns: Option<u64>,
    /// Maximum size of the samples in a dump, newest first, for example 512KiB; 0 means no limit
    #[arg(long = "max-size", value_name = "SIZE", value_parser = values::bytes)]
    max_bytes: Option<u64>,
    #[command(flatten)]
    pub(super) sampling: SamplingArguments,
    /// In the modes alloc and live, the mean number of bytes between two that are sampled [default:
    /// 512KiB]
    #[arg(
        long, value_name = "SIZE", value_parser = values::interval_bytes, help_heading = "Sampling"
    )]
    every: Option<u64>,
    #[command(flatten)]
    pub(super) names: NameArguments,
}

#[derive(Debug, Args)]
pub(super) struct CheckArguments {
    /// Show only this recording, in detail
    #[arg(long, value_name = "NAME", value_parser = values::name)]
    pub(super) name: Option<String>,
}

/// Which recording is meant.
#[derive(Debug, Args)]
pub(super) struct WhichArguments {
    /// The recording's name; optional if there is only one
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
    /// Drop the data since the last dump instead of downloading it
    #[arg(long, conflicts_with_all = ["output", "format"])]
    pub(super) discard: bool,
    #[command(flatten)]
    pub(super) download: DownloadArguments,
}

/// How to sample.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(super) struct SamplingArguments {
    /// Samples per second of running time on each vCPU; default: 997, or the preset's
    #[arg(short = 'F', long = "rate", value_name = "HZ", value_parser = values::rate)]
    period_ns: Option<u64>,
    /// Mean time between samples, for example 1ms, instead of a rate
    #[arg(long, value_name = "TIME", value_parser = values::interval, conflicts_with = "period_ns")]
    interval: Option<u64>,
    /// How long to wait before sampling begins
    #[arg(
        long = "delay", value_name = "TIME", default_value = "0s", hide_default_value = true,
        value_parser = values::nanoseconds
    )]
    delay_ns: u64,
    /// Maximum number of frames in a stack; default: 128, or the agent's limit if that is lower
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u32).range(1..))]
    depth: Option<u32>,
    /// What to sample
    #[arg(long, value_enum, default_value_t)]
    mode: Mode,
    #[command(flatten)]
    pub(super) unwinding: UnwindArguments,
    /// What to keep when the guest's memory is full; default: all, or the preset's
    #[arg(long, value_enum)]
    keep: Option<Keep>,
    /// Replace a finished recording that no client has fetched: the one of the same name or, if the
    /// agent has no room for another recording, any
    #[arg(long)]
    replace: bool,
    /// Sample at fixed instead of random intervals; periodic work in step with them biases the
    /// profile
    #[arg(long)]
    fixed_interval: bool,
}

/// How to find the callers.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(super) struct UnwindArguments {
    /// How to unwind stacks
    #[arg(long, value_enum, default_value_t)]
    pub(super) unwind: Unwind,
    /// Do not send the agent a caller table made from the images; callers of leaf functions are
    /// then guessed
    #[arg(long)]
    pub(super) no_caller_table: bool,
}

impl RecordArguments {
    pub(super) fn settings(&self) -> Result<Settings, Failure> {
        self.sampling.check(self.every)?;
        let settings = Settings {
            interval_bytes: self.every.unwrap_or(DEFAULT_INTERVAL_BYTES),
            name: self.name.clone().unwrap_or_else(|| own_name("record")),
            duration_ns: self.duration_ns,
            ..Settings::default()
        };
        Ok(self.sampling.apply_to(settings))
    }
}

impl StartArguments {
    pub(super) fn settings(&self) -> Result<Settings, Failure> {
        self.sampling.check(self.every)?;
        let preset = self.preset.unwrap_or(Preset::Profile).settings();
        let settings = Settings {
            interval_bytes: self.every.unwrap_or(DEFAULT_INTERVAL_BYTES),
            name: self.name.clone(),
            duration_ns: self.duration_ns,
            max_age_ns: self.max_age_ns.unwrap_or(preset.max_age_ns),
            max_bytes: self.max_bytes.unwrap_or(preset.max_bytes),
            ..preset
        };
        Ok(self.sampling.apply_to(settings))
    }
}

impl SamplingArguments {
    /// Rejects options of another kind of sampling than the mode's.
    pub(super) fn check(&self, every: Option<u64>) -> Result<(), Failure> {
        let of_time = self.period_ns.is_some() || self.interval.is_some() || self.fixed_interval;
        match (self.mode.is_heap(), every) {
            (true, _) if of_time => Err(Failure::Usage(
                "allocations are sampled by bytes, at random: use --every SIZE instead of a rate \
                 or an interval of time"
                    .into(),
            )),
            (false, Some(_)) => Err(Failure::Usage(
                "--every is for allocations: add --mode alloc or --mode live, or give a rate with \
                 -F"
                .into(),
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn apply_to(&self, settings: Settings) -> Settings {
        let asked_ns = self.interval.or(self.period_ns);
        Settings {
            period_ns: asked_ns.unwrap_or(settings.period_ns),
            mode: self.mode,
            depth: self.depth,
            delay_ns: self.delay_ns,
            keep: self.keep.unwrap_or(settings.keep),
            replace: self.replace,
            fixed_interval: self.fixed_interval,
            unwind: self.unwinding.unwind,
            ..settings
        }
    }
}
