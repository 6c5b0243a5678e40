//! A recording's metadata: settings, times and the cost of sampling.

use std::fmt;

use serde::Serialize;
use unikprof_proto::message;

use super::counters::{Counters, CountersDisagree};
use super::distribution::Distribution;
use super::heap::Measure;
use super::mode::{Mode, Unit, Unwind};
use crate::printable::Printable;
use crate::timeline::SpanFilter;
use crate::units::duration;

/// How a recording was made.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RecordingInfo {
    /// The recording's name.
    pub name: String,
    /// The guest's name; empty if it has none.
    pub guest_name: String,
    /// The guest's identity, such as its UUID; empty if it has none.
    pub guest_id: String,
    /// The agent's version.
    pub agent_version: String,
    /// The guest's processor.
    pub architecture: Architecture,
    /// Which time it is about.
    pub mode: Mode,
    /// The mean time between two targets, in nanoseconds of the sampled clock; 0 where allocations
    /// are recorded.
    pub period_ns: u64,
    /// The mean number of bytes between two that are sampled, where allocations are recorded; else
    /// 0.
    pub interval_bytes: u64,
    /// What is shown of allocations.
    pub measure: Measure,
    /// The memory given to the agent, in bytes; 0 if that is not known.
    pub agent_memory_bytes: u64,
    /// The deepest stack that was kept whole, in frames.
    pub depth: u32,
    /// Whether the interval was fixed: a load in step with it can fool the profile.
    pub fixed_interval: bool,
    /// The checksum of the caller table in which callers were looked up; `None`: there was none.
    pub caller_table: Option<u32>,
    /// How the frames of a stack were found.
    pub unwind: Unwind,
    /// When it started, in nanoseconds since 1970 (UTC): by the guest's clock, or if it has none by
    /// the client's.
    pub started_unix_ns: Option<u64>,
    /// How long it ran, in nanoseconds of the guest's monotonic clock.
    pub elapsed_ns: u64,
    /// The time the agent's own network work took, in nanoseconds.
    pub server_ns: u64,
    /// A sample is late if more running time than this passed after its target, in nanoseconds.
    pub late_threshold_ns: u64,
    /// Which part of the recording this is, if it was made from the ring's samples and not from the
    /// recording's own counts. How callers were found, early deliveries and the cost of sampling
    /// are then unknown.
    pub ring: Option<FromRing>,
    /// The vCPUs that are shown, if not all.
    pub only_vcpus: Option<Vec<u32>>,
    /// The files, if several were merged.
    pub merged: Option<Merged>,
    /// The names of the guests, if several were merged. A vCPU's number is then a place in this
    /// list, and stands for all vCPUs of that guest.
    pub guests: Vec<String>,
    /// Whether something of it is missing: its counters are as far as they arrived.
    pub is_incomplete: bool,
    /// Warnings for the user from the agent or the recording's reader.
    pub warnings: Vec<String>,
}

/// Which part of a recording a profile from the ring shows.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct FromRing {
    /// From when on, in ns since the recording began.
    pub from_ns: u64,
    /// Up to when, likewise.
    pub to_ns: u64,
    /// Only samples inside a span of this name.
    pub inside: Option<String>,
    /// Of these only spans that took at least so long, in ns.
    pub(crate) longer_ns: Option<u64>,
    /// Of these only spans that took less, in ns.
    pub(crate) shorter_ns: Option<u64>,
}

impl FromRing {
    /// The spans inside which only samples are shown.
    pub fn spans(&self) -> Option<SpanFilter<'_>> {
        let name = self.inside.as_deref()?;
        Some(SpanFilter { name, longer_ns: self.longer_ns, shorter_ns: self.shorter_ns })
    }
}

/// The files from which a profile was merged. Times are in ns since 1970 (UTC): by the guest's
/// clock, or if it knows no date, by that of the machine that fetched the files.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Merged {
    /// How many files.
    pub files: u32,
    /// How many runs of the guest or of several guests: each start of an agent, and each resume
    /// after a suspension.
    pub runs: u32,
    /// How many recordings.
    pub recordings: u32,
    /// Epochs that were in more than one file and counted once.
    pub repeated_epochs: u32,
    /// From the first count to the last.
    pub time: TimeSpan,
    /// The times in between that no file has counts of.
    pub gaps: Vec<TimeSpan>,
    /// The times in which several runs were recorded at once: guests side by side.
    pub overlaps: Vec<TimeSpan>,
}

/// From one date to another, in ns since 1970 (UTC).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct TimeSpan {
    /// The first moment.
    pub from_unix_ns: u64,
    /// The moment after the last.
    pub to_unix_ns: u64,
}

impl TimeSpan {
    /// How long it is, in ns.
    pub fn length_ns(&self) -> u64 {
        self.to_unix_ns.saturating_sub(self.from_unix_ns)
    }
}

impl RecordingInfo {
    /// The spans, if only samples inside spans are shown.
    pub fn inside(&self) -> Option<SpanFilter<'_>> {
        self.ring.as_ref()?.spans()
    }

    /// Whether only the rings tell of the recording, so that its settings are not known.
    pub fn is_unknown(&self) -> bool {
        self.period_ns == 0 && self.mode == Mode::Cpu
    }

    /// The unit of the stacks' counts.
    pub fn unit(&self) -> Unit {
        match (self.mode.unit(), self.measure) {
            // The rings hold when allocations were sampled, and not what each stands for.
            (Unit::Bytes, _) if self.ring.is_some() => Unit::Samples,
            (Unit::Bytes, Measure::Objects) => Unit::Objects,
            (unit, _) => unit,
        }
    }

    /// The requested mean rate, in samples a second; `None` if the period is zero.
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

/// One vCPU's activity and counters during the recording.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct VcpuStats {
    /// The vCPU's number.
    pub vcpu: u32,
    /// The outcomes of its ticks.
    pub counters: Counters,
    /// How its time was spent.
    pub runstate: Runstate,
    /// How long it was recorded, in nanoseconds.
    pub elapsed_ns: u64,
    /// What sampling cost it, if the agent measured that.
    pub cost: Option<Cost>,
    /// The running time between targets and their delivery, in nanoseconds, of all the recording so
    /// far; `None` where the agent did not tell.
    pub lateness_ns: Option<Distribution>,
    /// All bytes that the vCPU allocated meanwhile, sampled or not, where allocations are recorded.
    pub allocated_bytes: u64,
    /// Sampled allocations that it freed meanwhile, of all recordings of mode `live`.
    pub freed_samples: u64,
}

impl VcpuStats {
    /// Checks that every tick is accounted for, and the caller of every recorded one if these are
    /// known.
    pub fn check(&self, recording: &RecordingInfo) -> Result<(), CountersDisagree> {
        match self.counters.check() {
            Err(CountersDisagree::Ways { .. }) if recording.ring.is_some() => Ok(()),
            other => other,
        }
    }

    /// The share of the running time that sampling and its timer took, between 0 and 1 in a sound
    /// recording; `None` where either is unknown or nothing ran.
    pub fn cost_share(&self) -> Option<f64> {
        let cost = self.cost.as_ref()?;
        let running = self.runstate.running_ns.filter(|ns| *ns != 0)?;
        Some(cost.total_ns() as f64 / running as f64)
    }
}

/// How a vCPU's time was spent, in nanoseconds; `None` if the platform cannot tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
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

impl Runstate {
    /// What an agent tells; if its platform tells no states apart, the sampler's own clock knows
    /// the running time.
    pub fn told(running_ns: u64, states: Option<message::Runstate>) -> Runstate {
        match states {
            Some(states) => Runstate {
                running_ns: Some(states.running_ns),
                runnable_ns: Some(states.runnable_ns),
                blocked_ns: Some(states.blocked_ns),
                offline_ns: Some(states.offline_ns),
            },
            None => Runstate { running_ns: Some(running_ns), ..Runstate::default() },
        }
    }

    /// Stolen time as a share of the time in which the vCPU had work, between 0 and 1; `None` if
    /// the platform cannot tell or there was no work.
    pub fn stolen_share(&self) -> Option<f64> {
        let (running, stolen) = (self.running_ns?, self.runnable_ns?);
        let wanted = running.saturating_add(stolen);
        (wanted != 0).then(|| stolen as f64 / wanted as f64)
    }

    /// The time since an earlier moment; a value that is unknown in one of them, or went back, is
    /// unknown.
    pub fn since(&self, earlier: &Runstate) -> Runstate {
        let passed = |now: Option<u64>, then: Option<u64>| now?.checked_sub(then?);
        Runstate {
            running_ns: passed(self.running_ns, earlier.running_ns),
            runnable_ns: passed(self.runnable_ns, earlier.runnable_ns),
            blocked_ns: passed(self.blocked_ns, earlier.blocked_ns),
            offline_ns: passed(self.offline_ns, earlier.offline_ns),
        }
    }

    /// The sum of both; a value that is unknown in one of them is unknown.
    pub fn plus(&self, other: &Runstate) -> Runstate {
        let add = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
        Runstate {
            running_ns: add(self.running_ns, other.running_ns),
            runnable_ns: add(self.runnable_ns, other.runnable_ns),
            blocked_ns: add(self.blocked_ns, other.blocked_ns),
            offline_ns: add(self.offline_ns, other.offline_ns),
        }
    }
}

/// What the sampling of one vCPU cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Cost {
    /// Half of the samples cost at most this many cycles.
    pub cycles_p50: u64,
    /// 99 % of the samples cost at most this many cycles.
    pub cycles_p99: u64,
    /// The dearest sample, in cycles.
    pub cycles_max: u64,
    /// The rate of the cycle counter; zero if it is unknown.
    pub cycles_per_second: u64,
    /// The upcalls together, from entry to exit, in nanoseconds.
    pub sampling_ns: u64,
    /// Deliveries of the timer: ticks and early ones. 0 where nothing is sampled by time.
    pub deliveries: u64,
    /// The estimated time of the timer's deliveries outside the upcalls, arming included, in
    /// nanoseconds; `None` if the agent has not measured any.
    pub delivery_ns: Option<u64>,
    /// The number of deliveries that the estimate was made from.
    pub deliveries_measured: u64,
}

impl Cost {
    /// The sum of both costs, in nanoseconds.
    pub fn total_ns(&self) -> u64 {
        self.sampling_ns.saturating_add(self.delivery_ns.unwrap_or(0))
    }

    /// The cost of two vCPUs, without the cycles of samples. Where one has no estimate, as one that
    /// hardly runs, its deliveries are taken to cost as much as the other's.
    pub fn plus(&self, other: &Cost) -> Cost {
        let alike = |known: &Cost, unknown: &Cost| {
            let all = u128::from(known.deliveries) + u128::from(unknown.deliveries);
            let ns = u128::from(known.delivery_ns?) * all;
            let ns = ns.checked_div(known.deliveries.into());
            Some(ns.map_or(0, |ns| u64::try_from(ns).unwrap_or(u64::MAX)))
        };
        let delivery_ns = match (self.delivery_ns, other.delivery_ns) {
            (Some(a), Some(b)) => Some(a.saturating_add(b)),
            _ => alike(self, other).or_else(|| alike(other, self)),
        };
        Cost {
            sampling_ns: self.sampling_ns.saturating_add(other.sampling_ns),
            deliveries: self.deliveries.saturating_add(other.deliveries),
            delivery_ns,
            deliveries_measured: self.deliveries_measured.saturating_add(other.deliveries_measured),
            ..Cost::default()
        }
    }

    /// `sampling 9.8 ms; delivery and arming about 21.4 ms, estimated from 16 deliveries`.
    pub fn text(&self) -> String {
        let sampling = duration(self.sampling_ns);
        match self.delivery_ns {
            _ if self.deliveries == 0 => format!("sampling {sampling}"),
            Some(ns) => format!(
                "sampling {sampling}; delivery and arming about {}, estimated from {} deliveries",
                duration(ns),
                self.deliveries_measured
            ),
            None => format!("sampling {sampling}; delivery and arming were not measured"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against an idle vCPU, which has too few deliveries for an estimate, taking that of all
    /// others away.
    #[test]
    fn a_vcpu_without_an_estimate_costs_what_the_others_do() {
        let busy = Cost { deliveries: 5_000, delivery_ns: Some(70_000), ..Cost::default() };
        let idle = Cost { deliveries: 50, ..Cost::default() };
        let none = Cost { sampling_ns: 3, ..Cost::default() };
        for sum in [busy.plus(&idle), idle.plus(&busy)] {
            assert_eq!((sum.deliveries, sum.delivery_ns), (5_050, Some(70_700)));
        }
        assert_eq!(busy.plus(&none).delivery_ns, Some(70_000));
        assert_eq!(none.plus(&busy).delivery_ns, Some(70_000));
        assert_eq!(idle.plus(&none).delivery_ns, None);
    }

    #[test]
    fn the_share_of_an_unknown_running_time_is_unknown() {
        let mut stats = VcpuStats {
            cost: Some(Cost { sampling_ns: 2, delivery_ns: Some(3), ..Cost::default() }),
            ..VcpuStats::default()
        };
        assert_eq!(stats.cost_share(), None);
        stats.runstate.running_ns = Some(0);
        assert_eq!(stats.cost_share(), None);
        stats.runstate.running_ns = Some(50);
        assert_eq!(stats.cost_share(), Some(0.1));
    }

    #[test]
    fn time_without_work_is_not_stolen() {
        let of = |running_ns, runnable_ns| Runstate {
            running_ns,
            runnable_ns,
            blocked_ns: Some(1_000),
            offline_ns: None,
        };
        assert_eq!(of(Some(30), Some(10)).stolen_share(), Some(0.25));
        assert_eq!(of(Some(0), Some(0)).stolen_share(), None);
        assert_eq!(of(Some(30), None).stolen_share(), None);
        let both = of(Some(30), Some(10)).plus(&of(Some(1), None));
        assert_eq!((both.running_ns, both.runnable_ns), (Some(31), None));
    }
}
