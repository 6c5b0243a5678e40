//! Load in lockstep: work that comes at a fixed period, so that it queues in one part of the period
//! and leaves the rest idle.
//!
//! The periodogram of the samples' times shows the period, and what lies in its two halves shows
//! how much it matters. Since samples are taken at random moments, no period of the sampling shows
//! in it.

use std::f64::consts::TAU;

use super::{CHANCE, FEW, Finding, Found, Subject, score};
use unikprof_profile::units::{duration, percent};

pub(super) const RULE: &str = "lockstep";

/// A half of the period with three times the load of the other half.
const NOTABLE_HALF: f64 = 0.75;
const SEVERE_HALF: f64 = 0.95;
/// In the busiest part of the period the vCPUs run for so much of their time: from there on, work
/// waits for other work as long as it takes itself (the mean of a queue with one server and random
/// arrivals).
const BUSY: f64 = 0.5;

/// So many bins of time: a period takes at least four, and is seen at least 16 times.
const BINS: u64 = 4_096;
const LEAST_BINS: usize = 4;
const LEAST_TIMES: usize = 16;
/// A bin has about so many samples of a vCPU that runs all the time.
const SAMPLES_OF_BIN: u64 = 4;
const LEAST_SAMPLES: usize = 500;
/// Into so many parts a period is divided.
const PHASES: usize = 16;
/// How many frequencies on each side tell what is usual at a frequency.
const NEIGHBOURS: usize = 32;

pub(super) fn rule(subject: &Subject<'_>) -> Found {
    let time = subject.sampled_time()?;
    let period_ns = subject.info().period_ns.max(1);
    let bins = time.parts(period_ns.saturating_mul(SAMPLES_OF_BIN), BINS);
    if bins.len() < 2 * LEAST_TIMES * LEAST_BINS {
        return Err("the time shown is too short to see a period 16 times; record for longer");
    }
    let (first, step_ns) = (bins[0].from_ns, bins[0].length_ns());
    let moments: Vec<(f64, u32)> = subject
        .ticks(&time)
        .map(|tick| (tick.at_ns.saturating_sub(first) as f64 / step_ns as f64, tick.vcpu))
        .filter(|(at, _)| *at < bins.len() as f64)
        .collect();
    if moments.len() < LEAST_SAMPLES {
        return Err(FEW);
    }
    let at: Vec<f64> = moments.iter().map(|(at, _)| *at).collect();
    let Some(found) = lockstep(&at, bins.len()) else {
        return Ok(Vec::new());
    };
    // Of the vCPUs' time, in the busiest part of the period; what was stolen they wanted as well.
    let stolen = subject.profile.runstate().stolen_share().unwrap_or(0.0);
    let got = (1.0 - stolen).max(0.05);
    let times = bins.len() as f64 / found.period;
    let part_ns = found.period * step_ns as f64 / PHASES as f64;
    let busy = found.most * period_ns as f64 / (times * part_ns * subject.vcpus() * got);
    if busy < BUSY {
        return Ok(Vec::new());
    }
    let length = duration((found.period * step_ns as f64).round() as u64);
    let together = moments_together(&moments, &found);
    let mut finding = Finding::new(
        RULE,
        score(found.half, NOTABLE_HALF, SEVERE_HALF),
        format!("{} of the load comes in one half of every {length}", percent(found.half)),
        "start periodic work at different moments, or spread it over its period; the page's \
         heatmap, or a range of one \
         period, shows what runs then",
    )
    .because(format!(
        "in the busiest sixteenth of the period the vCPUs have work for {} of their time, in all \
         for {}",
        percent(busy.min(1.0)),
        percent((busy * at.len() as f64 / (found.most * PHASES as f64)).min(1.0))
    ))
    .real("period_ns", found.period * step_ns as f64)
    .real("half_share", found.half)
    .real("busiest_share", busy);
    if together > 1 {
        finding = finding.because(format!("{together} vCPUs do so at the same time"));
    }
    if subject.info().fixed_interval {
        finding = finding.because(
            "the recording was sampled at a fixed interval, which such a load can be in step with: \
             remove \
             --fixed-interval",
        );
    }
    Ok(vec![finding])
}

/// A period, in bins.
#[derive(Debug, Clone, PartialEq)]
struct Lockstep {
    period: f64,
    /// The share of the samples in the half of the period that has most.
    half: f64,
    /// The first of the phases of that half.
    begins: usize,
    /// The samples in the phase that has most, of all periods together.
    most: f64,
}

/// The period of samples at these moments, in bins.
fn lockstep(at: &[f64], bins: usize) -> Option<Lockstep> {
    let mut counts = vec![0.0; bins];
    for moment in at {
        counts[*moment as usize] += 1.0;
    }
    let frequencies = LEAST_TIMES..bins / LEAST_BINS;
    let powers: Vec<f64> = (0..frequencies.end + NEIGHBOURS)
        .map(|frequency| power(&counts, frequency as f64))
        .collect();
    // The power of noise has an exponential distribution about that of its neighbours; its median
    // is ln 2 of its mean.
    let over = |frequency: usize| {
        let from = frequency.saturating_sub(NEIGHBOURS).max(1);
        let mut near = powers[from..=frequency + NEIGHBOURS - 1].to_vec();
        near.sort_by(f64::total_cmp);
        let usual = near[near.len() / 2] / std::f64::consts::LN_2;
        powers[frequency] / usual.max(f64::MIN_POSITIVE)
    };
    let enough = (frequencies.len() as f64 / CHANCE).ln();
    let strongest = frequencies
        .clone()
        .filter(|frequency| over(*frequency) >= enough)
        .max_by(|a, b| powers[*a].total_cmp(&powers[*b]))?;
    // A short pulse is as strong at the multiples of its frequency: the longest period of which it
    // is one.
    let whole = (2..=8).rev().map(|divisor| strongest as f64 / f64::from(divisor));
    let whole = whole
        .map(|frequency| frequency.round() as usize)
        .find(|frequency| *frequency >= LEAST_TIMES && over(*frequency) >= enough);
    let period = bins as f64 / exactly(&counts, whole.unwrap_or(strongest));
    let folded = |moments: &[f64]| {
        let mut phases = [0.0; PHASES];
        for moment in moments {
            let phase = (moment / period).fract();
            phases[((phase * PHASES as f64) as usize).min(PHASES - 1)] += 1.0;
        }
        phases
    };
    // Noise has no phase that lasts: both halves of the time must agree on it.
    let (early, late) = at.split_at(at.len() / 2);
    let (phases, early, late) = (folded(at), half(&folded(early)), half(&folded(late)));
    let apart = early.1.abs_diff(late.1);
    let agree = apart.min(PHASES - apart) <= PHASES / 4;
    let (share, begins) = half(&phases);
    let is_notable = [share, early.0, late.0].iter().all(|share| *share >= NOTABLE_HALF);
    (agree && is_notable).then(|| Lockstep {
        period,
        half: share,
        begins,
        most: phases.iter().copied().fold(0.0, f64::max),
    })
}

/// The power of a frequency: so many times in all bins together.
fn power(counts: &[f64], frequency: f64) -> f64 {
    // G. Goertzel, "An algorithm for the evaluation of finite trigonometric series", 1958.
    let turn = 2.0 * (TAU * frequency / counts.len() as f64).cos();
    let (mut last, mut before) = (0.0, 0.0);
    for count in counts {
        (last, before) = (count + turn * last - before, last);
    }
    last * last + before * before - turn * last * before
}

/// The frequency near this one with the highest power: samples at the right period stay in phase to
/// the end.
fn exactly(counts: &[f64], near: usize) -> f64 {
    const STEPS: i32 = 16;
    let around = (-STEPS..=STEPS).map(|step| near as f64 + f64::from(step) / f64::from(STEPS));
    around.max_by(|a, b| power(counts, *a).total_cmp(&power(counts, *b))).unwrap_or(near as f64)
}

/// The share of the half of the period with most, and where it begins.
fn half(phases: &[f64; PHASES]) -> (f64, usize) {
    let all: f64 = phases.iter().sum();
    let from = |begin: usize| -> f64 {
        let half = (0..PHASES / 2).map(|at| phases[(begin + at) % PHASES]);
        half.sum::<f64>() / all.max(1.0)
    };
    let begins = (0..PHASES).max_by(|a, b| from(*a).total_cmp(&from(*b)));
    let begins = begins.unwrap_or(0);
    (from(begins), begins)
}

/// How many vCPUs have most of their samples in the same half of the period.
fn moments_together(moments: &[(f64, u32)], found: &Lockstep) -> usize {
    let mut vcpus: std::collections::BTreeMap<u32, (u64, u64)> = std::collections::BTreeMap::new();
    for (at, vcpu) in moments {
        let phase = ((at / found.period).fract() * PHASES as f64) as usize;
        let (inside, all) = vcpus.entry(*vcpu).or_default();
        *inside += u64::from((phase + PHASES - found.begins) % PHASES < PHASES / 2);
        *all += 1;
    }
    let is_in = |(inside, all): &&(u64, u64)| *inside as f64 >= NOTABLE_HALF * *all as f64;
    vcpus.values().filter(is_in).count()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use fastrand::Rng;

    use super::*;

    /// The moments of samples of a guest that runs where `runs` says so, in bins; four a bin.
    fn moments(random: &mut Rng, runs: impl Fn(f64) -> bool) -> Vec<f64> {
        let (mut at, mut all) = (0.0, Vec::new());
        while at < 2_048.0 {
            // Between nothing and twice the mean, as the agent draws.
            at += random.f64() * 0.5;
            if at < 2_048.0 && runs(at) {
                all.push(at);
            }
        }
        all
    }

    #[test]
    fn a_period_is_found_whatever_its_shape() {
        let mut random = Rng::with_seed(1);
        for (period, busy) in [(50.0, 0.3), (97.3, 0.1), (20.7, 0.5), (110.0, 0.6)] {
            let at = moments(&mut random, |at| (at / period).fract() < busy);
            let found = lockstep(&at, 2_048).unwrap();
            assert!((found.period / period - 1.0).abs() < 0.005, "{period}: {found:?}");
            assert!(found.half >= 0.8, "{period}: {found:?}");
        }
    }

    /// A load that runs all the time, but more in one half.
    #[test]
    fn a_slight_swing_is_not_worth_a_word() {
        let mut random = Rng::with_seed(1);
        let mut other = Rng::with_seed(2);
        let at = moments(&mut random, |_| true);
        let at: Vec<f64> =
            at.into_iter().filter(|at| (at / 40.0).fract() < 0.5 || other.f64() < 0.6).collect();
        assert_eq!(lockstep(&at, 2_048), None);
    }

    /// In how many recordings a period is found if the load has none: busy all the time, and busy
    /// and idle for random times of about ten bins, and of about a hundred.
    fn of_nothing(recordings: u32) -> [u32; 3] {
        let mut random = Rng::with_seed(9);
        [0.0, 10.0, 100.0].map(|length| {
            let found = (0..recordings).filter(|_| {
                let mut ends = vec![];
                let mut end = 0.0;
                while length > 0.0 && end < 2_048.0 {
                    end -= (1.0 - random.f64()).ln() * length;
                    ends.push(end);
                }
                let runs = |at: f64| ends.partition_point(|end| *end <= at) % 2 == 0;
                let at = moments(&mut random, runs);
                at.len() >= LEAST_SAMPLES && lockstep(&at, 2_048).is_some()
            });
            found.count() as u32
        })
    }

    #[test]
    fn a_load_without_a_period_has_none() {
        let found = of_nothing(20);
        assert_eq!(found, [0; 3], "of 20");
    }

    #[test]
    #[ignore = "by hand: prints the figures of docs/evidence/accuracy.md"]
    fn in_full() {
        println!("{:?} of 1,000", of_nothing(1_000));
    }
}
