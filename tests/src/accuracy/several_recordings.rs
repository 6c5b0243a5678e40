//! Case 11: several recordings at once over one sampler, at different rates and in different modes,
//! on the load of [case 1](super::known_shares): each must tell the same shares.

use anyhow::Result;
use unikprof_accuracy_loads::shares::FUNCTIONS;
use unikprof_link::record::{Mode, Settings};
use unikprof_profile::profile::Interval;

use super::guest::settings;
use super::hosted::HostedGuest;
use super::recorded::Recorded;
use super::row::{Row, Verdict, percent};

/// A function may be off by so many standard deviations: less likely than 1e-8 by chance.
pub const DEVIATIONS: f64 = 6.0;

/// The recordings: name, mode and period in ns.
const RECORDINGS: [(&str, Mode, u64); 3] = [
    ("fast", Mode::Cpu, 1_003_009),
    ("waits", Mode::Wall, 3_010_000),
    ("slow", Mode::Cpu, 7_100_000),
];

/// The result of one of them.
#[derive(Debug)]
pub struct One {
    pub(crate) name: &'static str,
    pub(crate) period_ns: u64,
    /// Its samples of running time.
    pub(crate) running: u64,
    /// The thread's CPU time while the load ran, in ns.
    pub(crate) total_ns: u64,
    /// Whether its counters add up, and nothing was lost.
    pub is_whole: bool,
    /// Each function: its name, its true share and the samples' share of running time.
    pub(crate) functions: Vec<(&'static str, f64, Interval)>,
}

impl One {
    /// The function that is farthest from its truth, in standard deviations.
    pub fn worst(&self) -> (&'static str, f64) {
        let off = |(name, truth, shown): &(&'static str, f64, Interval)| {
            let deviation = (truth * (1.0 - truth) / self.running.max(1) as f64).sqrt();
            (*name, (shown.share - truth).abs() / deviation.max(1e-9))
        };
        let all = self.functions.iter().map(off);
        all.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(("no function", f64::INFINITY))
    }

    /// The samples of running time, as a part of those that its period promises.
    pub fn kept(&self) -> f64 {
        self.running as f64 * self.period_ns as f64 / self.total_ns.max(1) as f64
    }
}

pub fn measure(guest: &mut HostedGuest, run_ns: u64) -> Result<Vec<One>> {
    let asked = RECORDINGS.map(|(name, mode, period_ns)| Settings {
        name: name.into(),
        mode,
        ..settings(period_ns)
    });
    let recorded = guest.record_together(&asked, &format!("shares ns={run_ns}"))?;
    let pairs = RECORDINGS.iter().zip(&recorded);
    Ok(pairs.map(|((name, _, period_ns), recorded)| one(name, *period_ns, recorded)).collect())
}

fn one(name: &'static str, period_ns: u64, recorded: &Recorded) -> One {
    // The guest blocks before and after the load.
    let running = recorded.samples - recorded.marked("[blocked");
    let function = |(function, _): &(&'static str, _)| {
        let own = recorded.own(function).samples;
        let truth = recorded.truth.share(function);
        (*function, truth, Interval::wilson(own, running))
    };
    One {
        name,
        period_ns,
        running,
        total_ns: recorded.truth.total_ns(),
        is_whole: recorded.counters.check().is_ok()
            && recorded.counters.overflow == 0
            && recorded.counters.lost == 0,
        functions: FUNCTIONS.iter().map(function).collect(),
    }
}

pub(crate) fn rows(guest: &mut HostedGuest, run_ns: u64) -> Result<Vec<Row>> {
    let all = measure(guest, run_ns)?;
    let row = |one: &One| {
        let (name, off) = one.worst();
        Row {
            case: 11,
            load: format!("`{}` beside two others, case 1's load", one.name),
            truth: format!("{} shares by thread CPU clock", one.functions.len()),
            said: format!(
                "`{name}` is the farthest off, {off:.1} deviations of {} samples; {} of those due \
                 came",
                one.running,
                percent(one.kept())
            ),
            interval: format!("at most {DEVIATIONS} deviations"),
            verdict: Verdict::of(one.is_whole && off < DEVIATIONS, || format!("{off:.1}")),
            ..Row::default()
        }
    };
    Ok(all.iter().map(row).collect())
}
