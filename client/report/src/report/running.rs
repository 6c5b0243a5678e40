//! The functions of a running recording, computed incrementally without keeping a profile.

use std::collections::{BTreeMap, HashMap};

use super::functions::FunctionTable;
use super::shares::Shares;
use super::uncertainty::{Recorded, Unplaced};
use unikprof_profile::profile::{Counters, Mode, Profile, Runstate};

/// Sums by function, of all parts that were added.
#[derive(Debug, Default)]
pub struct RunningTable {
    mode: Mode,
    recorded: u64,
    /// Of them, those of broken or truncated stacks.
    cut: u64,
    length_ns: u64,
    functions: HashMap<String, Sums>,
    counters: BTreeMap<u32, Counters>,
    runstate: Option<Runstate>,
}

#[derive(Debug, Default)]
struct Sums {
    own: u64,
    total: u64,
    in_whole: u64,
}

/// What a part of the time came to, beside its functions.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    /// What was recorded.
    pub mode: Mode,
    /// What all stacks hold.
    pub recorded: u64,
    /// From its start to its end.
    pub length_ns: u64,
    /// All vCPUs' ticks.
    pub counters: Counters,
    /// Of all vCPUs together, where the rings tell.
    pub runstate: Runstate,
}

impl Summary {
    /// Sums up a profile.
    pub fn of(profile: &Profile) -> Summary {
        Summary {
            mode: profile.recording().mode,
            recorded: profile.sample_count(),
            length_ns: profile.recording().elapsed_ns,
            counters: profile.counters(),
            runstate: profile.runstate(),
        }
    }

    /// The share of the time in which vCPUs were blocked, between 0 and 1; `None` where the
    /// platform cannot tell.
    pub fn blocked_share(&self) -> Option<f64> {
        let Runstate { running_ns, runnable_ns, blocked_ns, offline_ns } = self.runstate;
        let other = runnable_ns.unwrap_or(0).saturating_add(offline_ns.unwrap_or(0));
        let all = running_ns?.saturating_add(blocked_ns?).saturating_add(other);
        (all != 0).then(|| blocked_ns.unwrap_or(0) as f64 / all as f64)
    }

    /// Samples a second of the guest's time, all vCPUs together; in mode wall those of waits as
    /// well.
    pub fn samples_per_second(&self) -> Option<f64> {
        let seconds = self.length_ns as f64 / 1e9;
        let waits = if self.mode == Mode::Wall { self.counters.blocked } else { 0 };
        let samples = self.counters.recorded.saturating_add(waits);
        (self.length_ns != 0).then(|| samples as f64 / seconds)
    }
}

impl RunningTable {
    /// Adds a part of the time; `names` are those of the table's rows.
    pub fn add(&mut self, table: &FunctionTable, names: &[String], profile: &Profile) {
        self.mode = profile.recording().mode;
        self.length_ns = self.length_ns.saturating_add(profile.recording().elapsed_ns);
        self.recorded = self.recorded.saturating_add(table.recorded);
        self.cut = self.cut.saturating_add(table.cut);
        for vcpu in profile.vcpus() {
            let sum = self.counters.entry(vcpu.vcpu).or_default();
            *sum = sum.plus(&vcpu.counters);
        }
        let runstate = profile.runstate();
        // A part of which nothing is known says nothing of the others.
        if runstate.running_ns.is_some() {
            self.runstate = Some(self.runstate.map_or(runstate, |sum| sum.plus(&runstate)));
        }
        for (row, name) in table.rows.iter().zip(names) {
            let sums = self.functions.entry(name.clone()).or_default();
            sums.own = sums.own.saturating_add(row.own);
            sums.total = sums.total.saturating_add(row.total);
            sums.in_whole = sums.in_whole.saturating_add(row.in_whole);
        }
    }

    /// What all parts came to.
    pub fn summary(&self) -> Summary {
        let counters = self.counters.values();
        Summary {
            mode: self.mode,
            recorded: self.recorded,
            length_ns: self.length_ns,
            counters: counters.fold(Counters::default(), |sum, next| sum.plus(next)),
            runstate: self.runstate.unwrap_or_default(),
        }
    }

    /// The functions, in no order.
    pub fn shares(&self) -> impl Iterator<Item = (&str, Shares)> {
        let all = Recorded {
            count: self.recorded,
            unit: self.mode.unit(),
            unplaced: Unplaced::among(self.counters.values(), self.mode, self.recorded),
        };
        let late = self.counters.values().map(|counters| counters.late);
        let late = late.fold(0, u64::saturating_add);
        self.functions.iter().map(move |(name, sums)| {
            // The worst case: all late samples that can be in it.
            let total_share = all.share(sums.total, late.min(sums.total));
            let shares = Shares {
                own: sums.own,
                total: sums.total,
                own_share: all.share(sums.own, 0),
                total_share: all.with_cut(total_share, sums.total, sums.in_whole, self.cut),
            };
            (name.as_str(), shares)
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::report::{Report, ReportOptions};
    use unikprof_profile::profile::{Frame, Interval, ProfileBuilder};
    use unikprof_profile::symbols::Symbolizer;

    /// Guards an interval of 0.2 to 98.8 % after two parts of the time.
    #[test]
    fn intervals_since_the_start_are_of_what_was_recorded() {
        let mut running = RunningTable::default();
        for hot in [60, 20] {
            let mut builder = ProfileBuilder::new();
            builder.add_stack(0, hot, &[Frame::leaf(0x1000)]).unwrap();
            builder.add_stack(0, 100 - hot, &[Frame::leaf(0x2000)]).unwrap();
            let profile = builder.finish();
            let symbolized = Symbolizer::default().resolve(&profile).unwrap();
            let report = Report::new(&symbolized, ReportOptions::default());
            let table = report.functions();
            let names: Vec<String> = table.rows.iter().map(|row| row.text.clone()).collect();
            running.add(table, &names, &profile);
        }
        let shares: Vec<Shares> = running.shares().map(|(_, shares)| shares).collect();
        let hot = shares.iter().find(|shares| shares.own == 80).unwrap();
        assert_eq!(hot.own_share, Interval::wilson(80, 200));
    }

    /// In mode wall a guest that waits is sampled all the same.
    #[test]
    fn waits_are_samples_in_mode_wall_alone() {
        let counters = Counters { recorded: 172, blocked: 1_800, ..Counters::default() };
        let rate = |mode| {
            let length_ns = 1_000_000_000;
            Summary { mode, length_ns, counters, ..Summary::default() }.samples_per_second()
        };
        assert_eq!(rate(Mode::Wall), Some(1_972.0));
        assert_eq!(rate(Mode::OffCpu), Some(172.0), "these are ns");
    }
}
