//! Bursts: for a short time, much more runs than usual, of all work or of one function.
//!
//! The time is divided into parts. The median of a function's samples in the parts is its usual
//! load, and how the parts scatter about it tells how much of a difference is nothing special,
//! whatever the cause: a guest whose load varies all the time has a large scatter and few bursts. A
//! part in which the guest got less of the processor counts as if it had got all of it.

use std::collections::HashMap;

use statrs::distribution::{ContinuousCDF as _, Normal};

use super::activity::{Tally, stacks_in};
use super::{CHANCE, FEW, Finding, Found, Subject, Time, WindowOf, listed, score};
use unikprof_profile::profile::NodeId;
use unikprof_profile::timeline::Window;
use unikprof_profile::units::percent;

pub(super) const RULE: &str = "burst";

/// How much more of a vCPU than usual is worth a word: less delays nobody by much.
const NOTABLE_CPUS: f64 = 0.2;
/// A whole vCPU.
const SEVERE_CPUS: f64 = 1.0;
/// So many times the usual is far above it.
const TIMES: f64 = 2.0;
/// What takes more of the time than this is a phase of the guest's work and no burst.
const MOST_OF_THE_TIME: f64 = 0.25;

/// A part of the time has so many samples of a vCPU that runs all the time, so that a fifth of it
/// can be seen.
const LEAST_SAMPLES: u64 = 64;
/// What is stolen is recorded about once a second: of shorter parts it is not known well enough. A
/// burst lasts for two parts.
const LEAST_PART_NS: u64 = 125_000_000;
const MOST_PARTS: u64 = 480;
/// Of fewer parts nobody can say what is usual.
const LEAST_PARTS: usize = 16;
/// How many bursts of different functions are told.
const MOST_FOUND: usize = 3;
/// A function is special to a burst if its share there is higher by so much.
const SPECIAL: f64 = 0.2;

pub(super) fn rule(subject: &Subject<'_>) -> Found {
    let time = subject.sampled_time()?;
    let period_ns = subject.info().period_ns;
    let least_ns = LEAST_PART_NS.max(period_ns.saturating_mul(LEAST_SAMPLES));
    let parts = time.parts(least_ns, MOST_PARTS);
    if parts.len() < LEAST_PARTS {
        return Err("the time shown is too short to say what is usual; record for longer");
    }
    let stacks = stacks_in(subject, &time, &parts);
    let tallies: Vec<Tally> = stacks.iter().map(|s| Tally::of(subject, s)).collect();
    let all: Vec<f64> = tallies.iter().map(|tally| tally.samples).collect();
    if all.iter().sum::<f64>() < LEAST_SAMPLES as f64 {
        return Err(FEW);
    }
    let stolen = time.view.timeline.stolen_shares(&parts);
    let got: Vec<f64> = stolen
        .iter()
        // Of a part in which nearly everything was stolen hardly anything is known.
        .map(|stolen| (1.0 - stolen.unwrap_or(0.0)).max(0.05))
        .collect();
    let least = NOTABLE_CPUS * parts[0].length_ns() as f64 / period_ns.max(1) as f64;
    // Functions that have too few samples for one burst need not be looked at.
    let mut series: HashMap<u32, Vec<f64>> = HashMap::new();
    for (at, tally) in tallies.iter().enumerate() {
        for (label, count) in tally.labels() {
            let counts = series.entry(label).or_insert_with(|| vec![0.0; parts.len()]);
            counts[at] = count;
        }
    }
    series.retain(|_, counts| counts.iter().copied().fold(0.0, f64::max) >= least);
    let searched = (series.len() + 1) * parts.len();
    let of = |counts: &[f64]| burst(counts, &got, least, searched);
    let mut found: Vec<(Option<u32>, Burst)> = Vec::new();
    let mut by_label: Vec<(u32, Burst)> =
        series.iter().filter_map(|(label, counts)| Some((*label, of(counts)?))).collect();
    // The same from one run to the next.
    by_label.sort_by_key(|(label, _)| *label);
    found.extend(of(&all).map(|burst| (None, burst)));
    while found.len() < MOST_FOUND {
        by_label.retain(|(_, burst)| found.iter().all(|(_, told)| !told.overlaps(burst)));
        let most = by_label.iter().map(|(_, b)| b.excess).fold(0.0, f64::max);
        // Of functions that call each other, the innermost.
        let total = |label: u32| series[&label].iter().sum::<f64>();
        let own = |label: u32| tallies.iter().map(|tally| tally.own(label)).sum::<f64>();
        let inner_first = |a: u32, b: u32| {
            let by_total = total(a).total_cmp(&total(b));
            by_total.then_with(|| own(b).total_cmp(&own(a)))
        };
        let near = by_label.iter().filter(|(_, b)| b.excess >= 0.9 * most);
        let Some((label, burst)) = near.min_by(|a, b| inner_first(a.0, b.0)) else {
            break;
        };
        found.push((Some(*label), burst.clone()));
    }
    let told = found.into_iter().map(|(label, burst)| {
        let counts = label.map_or(&all, |label| &series[&label]);
        let parts = Parts { windows: &parts, stacks: &stacks, counts, got: &got, period_ns };
        tell(subject, &time, label, &burst, &parts)
    });
    Ok(told.collect())
}

/// Parts of the time in which there is far more of something than usual.
#[derive(Debug, Clone, PartialEq)]
struct Burst {
    parts: Vec<usize>,
    /// The samples beyond the usual.
    excess: f64,
}

impl Burst {
    /// Whether most of either is in the other.
    fn overlaps(&self, other: &Burst) -> bool {
        let both = self.parts.iter().filter(|at| other.parts.contains(at)).count();
        2 * both > self.parts.len().min(other.parts.len())
    }
}

/// The burst among the parts of the time, with so many samples in each, where the guest got such a
/// share of the time that it wanted; at least so many samples beyond the usual. `searched` is how
/// many parts of anything are looked at.
fn burst(counts: &[f64], got: &[f64], least: f64, searched: usize) -> Option<Burst> {
    let wanted = |at: usize| counts[at] / got[at];
    let usual = median((0..counts.len()).map(wanted))?;
    // The square root of a count of independent samples has a standard deviation of about 1/2,
    // whatever the count (F. J. Anscombe, "The transformation of Poisson, binomial and
    // negative-binomial data", 1948).
    let root = |count: f64| 2.0 * (count + 0.375).sqrt();
    let apart = |at: usize| root(counts[at]) - root(usual * got[at]);
    // The median of the absolute deviations, over its value for a normal distribution.
    let scatter = median((0..counts.len()).map(|at| apart(at).abs()))? / 0.674_5;
    let normal = Normal::standard();
    let enough = normal.inverse_cdf(1.0 - CHANCE / searched.max(1) as f64) * scatter.max(1.0);
    let stands_out = |at: &usize| {
        let more = wanted(*at) - usual;
        apart(*at) >= enough && more >= least && wanted(*at) >= TIMES * usual
    };
    let stands: Vec<bool> = (0..counts.len()).map(|at| stands_out(&at)).collect();
    // Work at even intervals, of which one part holds two and the others one, stands out in no two
    // parts that follow each other.
    let is_beside = |at: usize| at > 0 && stands[at - 1] || stands.get(at + 1) == Some(&true);
    let parts: Vec<usize> = (0..counts.len()).filter(|at| stands[*at] && is_beside(*at)).collect();
    if parts.is_empty() || parts.len() as f64 > MOST_OF_THE_TIME * counts.len() as f64 {
        return None;
    }
    let excess = parts.iter().map(|at| counts[*at] - usual * got[*at]).sum();
    Some(Burst { parts, excess })
}

/// `None` of nothing.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        _ if values.is_empty() => None,
        0 => Some((values[middle - 1] + values[middle]) / 2.0),
        _ => Some(values[middle]),
    }
}

/// The parts of the time, and what was sampled there.
struct Parts<'p> {
    windows: &'p [Window],
    stacks: &'p [HashMap<NodeId, u64>],
    counts: &'p [f64],
    got: &'p [f64],
    period_ns: u64,
}

fn tell(
    subject: &Subject<'_>,
    time: &Time<'_>,
    label: Option<u32>,
    burst: &Burst,
    parts: &Parts<'_>,
) -> Finding {
    let is_in: Vec<bool> = (0..parts.counts.len()).map(|at| burst.parts.contains(&at)).collect();
    // The mean in vCPUs that ran, in the burst or elsewhere.
    let cpus = |wanted: bool| {
        let chosen = || is_in.iter().enumerate().filter(|(_, is)| **is == wanted);
        let length: u64 = chosen().map(|(at, _)| parts.windows[at].length_ns()).sum();
        let samples: f64 = chosen().map(|(at, _)| parts.counts[at] / parts.got[at]).sum();
        samples * parts.period_ns as f64 / length.max(1) as f64
    };
    let (inside, outside) = (cpus(true), cpus(false));
    let windows = joined(time, burst, parts.windows);
    let length_ns: u64 = windows.iter().map(|w| w.to_ns - w.from_ns).sum();
    let what = match label {
        Some(label) => format!("`{}`", subject.text(label)),
        None => "the guest".to_owned(),
    };
    let next = match windows.first() {
        Some(first) => format!(
            "look at that time alone: `report {}`, or drag over it in the page",
            first.options()
        ),
        None => String::new(),
    };
    let mut finding = Finding::new(
        RULE,
        score(inside - outside, NOTABLE_CPUS, SEVERE_CPUS),
        format!(
            "{what} has {inside:.2} vCPUs in {} of {:.2} s, {outside:.2} elsewhere",
            match windows.len() {
                1 => "a burst".to_owned(),
                many => format!("{many} bursts"),
            },
            length_ns as f64 / 1e9
        ),
        next,
    )
    .because(format!("it is at {}", listed(&windows)))
    .count("bursts", windows.len() as u64)
    .real("vcpus_in_bursts", inside)
    .real("vcpus_elsewhere", outside);
    let tally = |wanted: bool| {
        let mut sum: HashMap<NodeId, u64> = HashMap::new();
        let chosen = is_in.iter().enumerate().filter(|(_, is)| **is == wanted);
        for (stack, count) in chosen.flat_map(|(at, _)| &parts.stacks[at]) {
            *sum.entry(*stack).or_default() += count;
        }
        Tally::of(subject, &sum)
    };
    let (inside, outside) = (tally(true), tally(false));
    let special = label.or_else(|| inside.special(&outside, SPECIAL));
    if let Some(label) = special {
        finding = finding.because(format!(
            "`{}` has {} of the samples in them, {} elsewhere",
            subject.text(label),
            percent(inside.share(label)),
            percent(outside.share(label))
        ));
        finding.functions.push(subject.text(label).to_owned());
    } else {
        finding =
            finding.because("the same functions run in them as elsewhere: there is more to do");
    }
    if parts.got.iter().any(|got| *got < 0.9) {
        finding = finding.because("stolen time is accounted for: the guest wanted to run so much");
    }
    finding.windows = windows;
    finding
}

/// Parts that follow each other, or have one other part between them, are one.
fn joined(time: &Time<'_>, burst: &Burst, windows: &[Window]) -> Vec<WindowOf> {
    let mut all: Vec<(usize, usize)> = Vec::new();
    for at in &burst.parts {
        match all.last_mut() {
            Some((_, last)) if at - *last <= 2 => *last = *at,
            _ => all.push((*at, *at)),
        }
    }
    let window = |(first, last): (usize, usize)| {
        time.of(Window::new(windows[first].from_ns, windows[last].to_ns))
    };
    all.into_iter().map(window).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use fastrand::Rng;

    use super::*;

    /// A number of independent samples, of which so many are due.
    fn poisson(random: &mut Rng, mean: f64) -> f64 {
        let (mut passed, mut count) = (0.0, 0.0);
        loop {
            passed -= (1.0 - random.f64()).ln();
            if passed > mean {
                return count;
            }
            count += 1.0;
        }
    }

    fn series(random: &mut Rng, load: impl Fn(&mut Rng, usize) -> f64) -> Vec<f64> {
        (0..100)
            .map(|at| {
                let mean = load(random, at);
                poisson(random, mean)
            })
            .collect()
    }

    /// Whether anything is found in a recording of a hundred parts with 50 functions.
    fn finds(random: &mut Rng, load: impl Fn(&mut Rng, usize) -> f64 + Copy) -> bool {
        let got = [1.0; 100];
        (0..50).any(|_| burst(&series(random, load), &got, 20.0, 5_000).is_some())
    }

    /// How often a burst is found in a load that has none, of 200 recordings: a steady one, one
    /// that varies by a half at random, and one that comes in requests of which each takes a tenth
    /// of a part.
    fn of_nothing(recordings: u32) -> [u32; 3] {
        let mut random = Rng::with_seed(3);
        let mut count = |load: fn(&mut Rng, usize) -> f64| {
            let found = (0..recordings).filter(|_| finds(&mut random, load));
            found.count() as u32
        };
        [
            count(|_, _| 30.0),
            count(|random, _| 45.0 * (0.5 + random.f64())),
            count(|random, _| 10.0 * poisson(random, 4.0)),
        ]
    }

    #[test]
    fn a_load_without_bursts_has_none() {
        let found = of_nothing(200);
        assert!(found.iter().all(|found| *found <= 2), "{found:?} of 200");
    }

    #[test]
    #[ignore = "by hand: prints the figures of docs/evidence/accuracy.md"]
    fn in_full() {
        println!("{:?} of 5,000", of_nothing(5_000));
    }

    #[test]
    fn a_burst_is_found_where_it_is() {
        let mut random = Rng::with_seed(5);
        let got = [1.0; 100];
        let counts = series(&mut random, |_, at| if (40..44).contains(&at) { 100.0 } else { 20.0 });
        let found = burst(&counts, &got, 20.0, 5_000).unwrap();
        assert_eq!(found.parts, [40, 41, 42, 43]);
        // Half of the time is no burst.
        let counts = series(&mut random, |_, at| if at < 40 { 100.0 } else { 20.0 });
        assert_eq!(burst(&counts, &got, 20.0, 5_000), None);
    }

    /// A guest that gets the whole processor for a moment runs more, but does not want more.
    #[test]
    fn time_that_is_not_stolen_is_no_burst() {
        let mut random = Rng::with_seed(5);
        let got: Vec<f64> = (0..100).map(|at| if at / 4 == 10 { 1.0 } else { 0.3 }).collect();
        let counts = series(&mut random, |_, at| 100.0 * if at / 4 == 10 { 1.0 } else { 0.3 });
        assert_eq!(burst(&counts, &got, 20.0, 5_000), None);
        assert!(burst(&counts, &[1.0; 100], 20.0, 5_000).is_some());
    }

    #[test]
    fn nothing_has_no_bursts() {
        assert_eq!(burst(&[], &[], 1.0, 1), None);
        assert_eq!(burst(&[0.0; 20], &[1.0; 20], 1.0, 20), None);
        let hostile = [f64::MAX, 0.0, f64::MAX, 1.0];
        burst(&hostile, &[0.05; 4], 1.0, usize::MAX);
    }
}
