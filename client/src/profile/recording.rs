//! What a recording says of itself: settings, times, counters and its own price.

use std::fmt;

use serde::Serialize;
use thiserror::Error;

use crate::printable::Printable;

/// How a recording was made.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RecordingInfo {
    /// The recording's name.
    pub name: String,
    /// The guest's name; empty where it has none.
    pub guest_name: String,
    /// The guest's identity, such as its UUID; empty where it has none.
    pub guest_id: String,
    /// The agent's version.
    pub agent_version: String,
    /// The guest's processor.
    pub architecture: Architecture,
    /// Which time was sampled.
    pub mode: Mode,
    /// The mean time between two targets, in nanoseconds of the sampled clock.
    pub period_ns: u64,
    /// The deepest stack that was kept whole, in frames.
    pub depth: u32,
    /// Whether the interval was fixed: a load in step with it can fool the profile.
    pub fixed_interval: bool,
    /// When it started, in nanoseconds since 1970 (UTC), where the guest knows the date.
    pub started_unix_ns: Option<u64>,
    /// How long it ran, in nanoseconds of the guest's monotonic clock.
    pub elapsed_ns: u64,
    /// The time the agent's own network work took, in nanoseconds.
    pub server_ns: u64,
    /// A sample is late if more running time than this passed after its target, in nanoseconds.
    pub late_threshold_ns: u64,
    /// What the agent or the reader of the recording wants the user to know.
    pub warnings: Vec<String>,
}

impl RecordingInfo {
    /// The mean rate that was asked for, in samples a second; `None` where the period is zero.
    pub fn rate_hz(&self) -> Option<f64> {
        (self.period_ns != 0).then(|| 1e9 / self.period_ns as f64)
    }
}

/// The guest's processor.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Architecture {
    /// 64-bit x86.
    #[default]
    X86_64,
    /// 64-bit Arm.
    Aarch64,
    /// One this client does not know, as the agent calls it.
    Other(String),
}

impl Architecture {
    /// The processor that agents call so.
    pub fn from_name(name: &str) -> Architecture {
        match name {
            "x86_64" => Architecture::X86_64,
            "aarch64" => Architecture::Aarch64,
            _ => Architecture::Other(name.to_owned()),
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Architecture::X86_64 => f.write_str("x86_64"),
            Architecture::Aarch64 => f.write_str("aarch64"),
            Architecture::Other(name) if name.is_empty() => f.write_str("unknown processor"),
            Architecture::Other(name) => write!(f, "{}", Printable(name)),
        }
    }
}

/// Which time a recording samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// The vCPU's running time.
    #[default]
    Cpu,
    /// The time on the wall.
    Wall,
    /// The time not spent running.
    OffCpu,
    /// A code this client does not know.
    Other(u32),
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Cpu => f.write_str("cpu"),
            Mode::Wall => f.write_str("wall"),
            Mode::OffCpu => f.write_str("off-cpu"),
            Mode::Other(code) => write!(f, "mode {code}"),
        }
    }
}

/// What became of the deliveries of the sampling timer.
///
/// A tick is a delivery whose target was reached; each tick is in exactly one of `recorded`,
/// `overflow`, `lost`, `masked` and `idle`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counters {
    /// Deliveries whose target was reached.
    pub ticks: u64,
    /// Walked and counted in a stack.
    pub recorded: u64,
    /// The table of stacks was full.
    pub overflow: u64,
    /// The slot was busy.
    pub lost: u64,
    /// Due, but delivered without registers.
    pub masked: u64,
    /// Due while the guest blocked.
    pub idle: u64,
    /// Delivered before the target and armed again; no tick.
    pub early: u64,
    /// Recorded, but later than [`RecordingInfo::late_threshold_ns`] after the target.
    pub late: u64,
    /// Recorded, but deeper than the limit.
    pub truncated: u64,
    /// Recorded, but the chain of frames ended badly.
    pub broken: u64,
    /// Running time ÷ period − ticks: noise around zero, and negative as often, where all is
    /// well.
    pub missing: i64,
}

impl Counters {
    /// Checks `ticks = recorded + overflow + lost + masked + idle`.
    ///
    /// # Errors
    ///
    /// [`CountersDisagree`] with both sides; the profile has then lost track of samples.
    pub fn check(&self) -> Result<(), CountersDisagree> {
        let sum = [
            self.recorded,
            self.overflow,
            self.lost,
            self.masked,
            self.idle,
        ]
        .iter()
        .fold(0_u128, |sum, part| sum + u128::from(*part));
        if sum == u128::from(self.ticks) {
            Ok(())
        } else {
            Err(CountersDisagree {
                ticks: self.ticks,
                sum,
            })
        }
    }

    /// Both together, stopping at the largest number.
    pub fn plus(&self, other: &Counters) -> Counters {
        Counters {
            ticks: self.ticks.saturating_add(other.ticks),
            recorded: self.recorded.saturating_add(other.recorded),
            overflow: self.overflow.saturating_add(other.overflow),
            lost: self.lost.saturating_add(other.lost),
            masked: self.masked.saturating_add(other.masked),
            idle: self.idle.saturating_add(other.idle),
            early: self.early.saturating_add(other.early),
            late: self.late.saturating_add(other.late),
            truncated: self.truncated.saturating_add(other.truncated),
            broken: self.broken.saturating_add(other.broken),
            missing: self.missing.saturating_add(other.missing),
        }
    }
}

/// The ticks are not the sum of their parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "the accounting does not add up: {ticks} ticks, but recorded + overflow + lost + masked + \
     idle = {sum}"
)]
pub struct CountersDisagree {
    /// The ticks there were.
    pub ticks: u64,
    /// The sum of the parts.
    pub sum: u128,
}

/// What one vCPU did and counted during the recording.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct VcpuStats {
    /// The vCPU's number.
    pub vcpu: u32,
    /// What became of its ticks.
    pub counters: Counters,
    /// Where its time went.
    pub runstate: Runstate,
    /// How long it was recorded, in nanoseconds.
    pub elapsed_ns: u64,
    /// What sampling cost it, where the agent measured.
    pub cost: Option<Cost>,
}

impl VcpuStats {
    /// Sampling's share of the running time, between 0 and 1 in a sound recording; `None`
    /// where either is unknown or nothing ran.
    pub fn cost_share(&self) -> Option<f64> {
        let cost = self.cost.as_ref()?;
        let running = self.runstate.running_ns.filter(|ns| *ns != 0)?;
        Some(cost.total_ns as f64 / running as f64)
    }
}

/// Where a vCPU's time went, in nanoseconds; `None` where the platform cannot tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Runstate {
    /// On a processor.
    pub running_ns: Option<u64>,
    /// Ready, but others ran: stolen time.
    pub runnable_ns: Option<u64>,
    /// Waiting for an event.
    pub blocked_ns: Option<u64>,
    /// Paused or not up.
    pub offline_ns: Option<u64>,
}

/// What the samples of one vCPU cost, entry to exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Half of the samples cost at most this many cycles.
    pub cycles_p50: u64,
    /// 99 % of the samples cost at most this many cycles.
    pub cycles_p99: u64,
    /// The dearest sample, in cycles.
    pub cycles_max: u64,
    /// The rate of the cycle counter; zero where it is unknown.
    pub cycles_per_second: u64,
    /// All samples together, in nanoseconds.
    pub total_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_that_is_off_by_one_is_told() {
        let mut counters = Counters {
            ticks: 15,
            recorded: 1,
            overflow: 2,
            lost: 3,
            masked: 4,
            idle: 5,
            ..Counters::default()
        };
        assert_eq!(counters.check(), Ok(()));
        counters.ticks = 16;
        assert_eq!(
            counters.check(),
            Err(CountersDisagree { ticks: 16, sum: 15 })
        );
        // Early deliveries are outside the sum.
        counters.ticks = 15;
        counters.early = 100;
        assert_eq!(counters.check(), Ok(()));
    }

    #[test]
    fn hostile_counters_do_not_overflow() {
        let huge = Counters {
            ticks: 1,
            recorded: u64::MAX,
            lost: u64::MAX,
            missing: i64::MIN,
            ..Counters::default()
        };
        assert!(huge.check().is_err());
        let sum = huge.plus(&huge);
        assert_eq!((sum.recorded, sum.missing), (u64::MAX, i64::MIN));
    }

    #[test]
    fn the_share_of_an_unknown_running_time_is_unknown() {
        let mut stats = VcpuStats {
            cost: Some(Cost {
                total_ns: 5,
                ..Cost::default()
            }),
            ..VcpuStats::default()
        };
        assert_eq!(stats.cost_share(), None);
        stats.runstate.running_ns = Some(0);
        assert_eq!(stats.cost_share(), None);
        stats.runstate.running_ns = Some(50);
        assert_eq!(stats.cost_share(), Some(0.1));
    }
}
