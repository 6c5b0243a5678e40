//! Estimates from sampled allocations: bytes and objects, with intervals.
//!
//! The agent samples bytes at random, one in every `interval_bytes` on average (a Poisson process).
//! An allocation is sampled if one of its bytes is; allocations of at least `interval_bytes` always
//! are. So an allocation of `s` bytes is sampled with the probability
//!
//! ```text
//! p(s) = 1 - exp(-s / interval_bytes)   below interval_bytes,   1 from there on
//! ```
//!
//! independently of all others, and a sample stands for `s / p(s)` bytes and `1 / p(s)` objects.
//! These sums are unbiased (D. G. Horvitz and D. J. Thompson, "A Generalization of Sampling Without
//! Replacement From a Finite Universe", 1952), and their variance is estimated without bias by the
//! sum of `w² · (1 - p)` over the samples.
//!
//! Intervals of sums are those of M. P. Fay and E. J. Feuer, "Confidence intervals for directly
//! standardized rates: a method based on the gamma distribution", 1997: exact for one weight,
//! conservative for several, valid from the first sample on. Intervals of shares join those of the
//! part and of the rest (G. Y. Zou and A. Donner, "Construction of confidence limits about effect
//! measures: a general approach", 2008). Both take it that no size occurs so seldom in a stack that
//! it was never sampled there, although it makes up much of the sum: that can be so of small
//! objects, whose bytes are few.

use std::collections::HashMap;

use clap::ValueEnum;
use statrs::distribution::{ContinuousCDF as _, Gamma};

use super::interval::Interval;
use super::{NodeId, Sample};

/// What is shown of allocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Measure {
    /// Their bytes
    #[default]
    Bytes,
    /// Their number
    Objects,
}

/// The allocations of a profile.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Heap {
    /// By stack and vCPU. A profile's samples are these, rounded, in the measure that is shown.
    pub amounts: HashMap<(NodeId, u32), Amounts>,
    /// In mode `live`: what was held at the end of each epoch, oldest first. The amounts are those
    /// of the last.
    pub held: Vec<Held>,
}

impl Heap {
    /// The counts of a profile.
    pub(crate) fn samples(&self, measure: Measure) -> Vec<Sample> {
        let mut samples: Vec<Sample> = self
            .amounts
            .iter()
            .map(|(&(node, vcpu), amounts)| Sample {
                node,
                vcpu,
                span: None,
                count: amounts.of(measure).count(),
            })
            .filter(|sample| sample.count != 0)
            .collect();
        samples.sort_unstable_by_key(|sample| (sample.node, sample.vcpu));
        samples
    }

    /// The sum over all stacks.
    pub fn total(&self) -> Amounts {
        let mut total = Amounts::default();
        self.amounts.values().for_each(|amounts| total.plus(amounts));
        total
    }

    /// Of the allocations that were held, the amounts at the end of the last epoch.
    pub(crate) fn count_held(&mut self, interval_bytes: u64) {
        self.amounts.clear();
        let Some(last) = self.held.last() else {
            return;
        };
        for sample in &last.samples {
            let amounts = self.amounts.entry((sample.node, sample.vcpu)).or_default();
            let age_ns = last.at_ns.saturating_sub(sample.born_ns);
            amounts.add_held(sample.size, age_ns, interval_bytes);
        }
    }

    /// Gives every stack's allocations to another stack.
    pub fn moved(&self, to: impl Fn(NodeId) -> NodeId) -> Heap {
        let mut moved = Heap { amounts: HashMap::new(), held: self.held.clone() };
        for (&(node, vcpu), amounts) in &self.amounts {
            moved.amounts.entry((to(node), vcpu)).or_default().plus(amounts);
        }
        for sample in moved.held.iter_mut().flat_map(|held| &mut held.samples) {
            sample.node = to(sample.node);
        }
        moved
    }

    /// Keeps some vCPUs' allocations.
    pub(crate) fn keep_vcpus(&mut self, keeps: impl Fn(u32) -> bool) {
        self.amounts.retain(|(_, vcpu), _| keeps(*vcpu));
        for held in &mut self.held {
            held.samples.retain(|sample| keeps(sample.vcpu));
        }
    }
}

/// The sampled allocations that were held at one time.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Held {
    /// When, on the guest's monotonic clock.
    pub at_ns: u64,
    /// Sampled allocations that were held.
    pub samples: Vec<LiveSample>,
}

/// A sampled allocation that was still held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LiveSample {
    /// The stack that allocated.
    pub node: NodeId,
    /// The vCPU that allocated.
    pub vcpu: u32,
    /// In bytes, as it was asked for.
    pub size: u64,
    /// On the guest's monotonic clock.
    pub born_ns: u64,
}

/// Allocations that were sampled, and what they stand for.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Amounts {
    /// How many sampled allocations it is from.
    pub samples: u64,
    /// Bytes that were allocated.
    pub bytes: Estimate,
    /// Allocations.
    pub objects: Estimate,
    /// The sum of the ages of what is held, each weighted by its bytes, in ns; and the greatest.
    pub(crate) age_bytes: f64,
    /// The age of the oldest, in ns.
    pub oldest_ns: u64,
}

/// A sum that is known from a part of what it is made of.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Estimate {
    /// Of allocations that are always sampled.
    exact: f64,
    /// Of the others.
    estimated: f64,
    variance: f64,
    /// The greatest weight among the others.
    heaviest: f64,
}

/// A sum and its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// The estimate itself.
    pub value: f64,
    /// The lower end of its 95 % interval.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// The probability with which an allocation is sampled.
pub fn probability(size: u64, interval_bytes: u64) -> f64 {
    if size >= interval_bytes {
        return 1.0;
    }
    // An agent samples no byte of nothing; a hostile file must not divide by zero.
    let share = size.max(1) as f64 / interval_bytes as f64;
    -(-share).exp_m1()
}

impl Amounts {
    /// Adds so many samples of this size.
    pub(crate) fn add(&mut self, samples: u64, size: u64, interval_bytes: u64) {
        let p = probability(size, interval_bytes);
        self.samples = self.samples.saturating_add(samples);
        self.bytes.add(samples as f64, size as f64 / p, p);
        self.objects.add(samples as f64, 1.0 / p, p);
    }

    /// Adds one that was held at this age.
    pub fn add_held(&mut self, size: u64, age_ns: u64, interval_bytes: u64) {
        self.add(1, size, interval_bytes);
        self.age_bytes += age_ns as f64 * size as f64 / probability(size, interval_bytes);
        self.oldest_ns = self.oldest_ns.max(age_ns);
    }

    /// Adds what was allocated elsewhere.
    pub fn plus(&mut self, other: &Amounts) {
        self.samples = self.samples.saturating_add(other.samples);
        self.bytes.plus(&other.bytes);
        self.objects.plus(&other.objects);
        self.age_bytes += other.age_bytes;
        self.oldest_ns = self.oldest_ns.max(other.oldest_ns);
    }

    /// The estimate of this measure.
    pub fn of(&self, measure: Measure) -> &Estimate {
        match measure {
            Measure::Bytes => &self.bytes,
            Measure::Objects => &self.objects,
        }
    }

    /// The mean size of an allocation in bytes; `None` if there are none.
    pub fn mean_size(&self) -> Option<f64> {
        let mean = self.bytes.value() / self.objects.value();
        mean.is_finite().then_some(mean)
    }

    /// The mean age of a byte that is held, in ns; `None` if none is.
    pub fn mean_age_ns(&self) -> Option<u64> {
        let mean = self.age_bytes / self.bytes.value();
        mean.is_finite().then_some(mean as u64)
    }
}

impl Estimate {
    fn add(&mut self, samples: f64, weight: f64, p: f64) {
        if p >= 1.0 {
            self.exact += samples * weight;
            return;
        }
        self.estimated += samples * weight;
        self.variance += samples * weight * weight * (1.0 - p);
        self.heaviest = self.heaviest.max(weight);
    }

    fn plus(&mut self, other: &Estimate) {
        self.exact += other.exact;
        self.estimated += other.estimated;
        self.variance += other.variance;
        self.heaviest = self.heaviest.max(other.heaviest);
    }

    /// The sum of what was added.
    pub fn value(&self) -> f64 {
        self.exact + self.estimated
    }

    /// As a profile's count.
    pub fn count(&self) -> u64 {
        self.value().round() as u64
    }

    /// The standard deviation of [`value`](Self::value).
    pub fn deviation(&self) -> f64 {
        self.variance.sqrt()
    }

    /// The sum with its interval. `least_weight` is what a sample at least stands for: if nothing
    /// was sampled, as much as a few of them can still be there.
    pub fn bounds(&self, least_weight: f64) -> Bounds {
        let heaviest = self.heaviest.max(least_weight);
        let (low, high) = gamma_interval(self.estimated, self.variance, heaviest);
        let value = self.value();
        Bounds { value, low: (self.exact + low).min(value), high: (self.exact + high).max(value) }
    }

    /// The share of this part in a whole that contains it.
    pub fn share_of(&self, whole: &Estimate, least_weight: f64) -> Interval {
        let all = whole.value();
        if all <= 0.0 {
            return Interval { share: 0.0, low: 0.0, high: 1.0 };
        }
        let rest = Estimate {
            exact: (whole.exact - self.exact).max(0.0),
            estimated: (whole.estimated - self.estimated).max(0.0),
            variance: (whole.variance - self.variance).max(0.0),
            heaviest: whole.heaviest,
        };
        let [part, rest] = [self.bounds(least_weight), rest.bounds(least_weight)];
        // (1 - q)·part - q·rest is about zero at the true share q, and how far from it grows evenly
        // with q.
        let is_within = |q: f64, of_part: f64, of_rest: f64| {
            let apart = (1.0 - q) * part.value - q * rest.value;
            apart.abs() <= ((1.0 - q) * of_part).hypot(q * of_rest)
        };
        let share = (part.value / all).clamp(0.0, 1.0);
        let end = |mut outside: f64, of_part: f64, of_rest: f64| {
            if is_within(outside, of_part, of_rest) {
                return outside;
            }
            let mut inside = share;
            for _ in 0..50 {
                let middle = f64::midpoint(inside, outside);
                if is_within(middle, of_part, of_rest) {
                    inside = middle;
                } else {
                    outside = middle;
                }
            }
            inside
        };
        Interval {
            share,
            low: end(0.0, part.value - part.low, rest.high - rest.value),
            high: end(1.0, part.high - part.value, rest.value - rest.low),
        }
    }
}

/// 2.5 % and 97.5 % for a sum of weighted samples, of which the heaviest stands for `heaviest`.
fn gamma_interval(sum: f64, variance: f64, heaviest: f64) -> (f64, f64) {
    let low = if sum > 0.0 && variance > 0.0 {
        gamma_quantile(0.025, sum * sum / variance) * variance / sum
    } else {
        sum
    };
    let (sum, variance) = (sum + heaviest, variance + heaviest * heaviest);
    let high = if sum > 0.0 && variance > 0.0 {
        gamma_quantile(0.975, sum * sum / variance) * variance / sum
    } else {
        sum
    };
    (low, high)
}

/// A quantile of the gamma distribution with this shape and scale 1.
fn gamma_quantile(p: f64, shape: f64) -> f64 {
    /// From this shape on, the normal distribution of the cube root (Wilson and Hilferty, 1931) is
    /// as good.
    const MANY: f64 = 200.0;
    if shape < MANY
        && let Ok(gamma) = Gamma::new(shape, 1.0)
    {
        return gamma.inverse_cdf(p);
    }
    let spread = 1.0 / (9.0 * shape);
    let z = if p < 0.5 { -Interval::Z } else { Interval::Z };
    shape * (1.0 - spread + z * spread.sqrt()).powi(3)
}

#[cfg(test)]
mod simulation {
    //! The agent's sampling, step by step.

    use fastrand::Rng;

    /// One vCPU's countdown of bytes.
    pub(crate) struct Sampler {
        pub(crate) random: Rng,
        interval: f64,
        left: f64,
    }

    impl Sampler {
        pub(crate) fn new(seed: u64, interval_bytes: u64) -> Sampler {
            let mut sampler = Sampler {
                random: Rng::with_seed(seed),
                interval: interval_bytes as f64,
                left: 0.0,
            };
            sampler.left = sampler.draw();
            sampler
        }

        /// An exponential draw with the mean of the interval.
        fn draw(&mut self) -> f64 {
            self.exponential() * self.interval
        }

        pub(crate) fn exponential(&mut self) -> f64 {
            -(1.0 - self.random.f64()).ln()
        }

        /// Whether an allocation is sampled.
        pub(crate) fn allocate(&mut self, size: u64) -> bool {
            if size as f64 >= self.interval {
                return true;
            }
            self.left -= size as f64;
            let is_sampled = self.left < 0.0;
            while self.left < 0.0 {
                self.left += self.draw();
            }
            is_sampled
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::simulation::Sampler;
    use super::*;

    /// How many of so many runs must have the truth in their 95 % intervals: 183 or more of 200
    /// come with a probability of 99.9 % if 95 % do.
    const RUNS: u64 = 200;
    const LEAST: u32 = 183;

    /// The published example: a directly standardized rate of few events, Fay and Feuer, 1997,
    /// table II gives the method; with one weight it is the exact Poisson interval (F. Garwood,
    /// 1936).
    #[test]
    fn equal_weights_have_the_exact_poisson_interval() {
        for (count, low, high) in [(0.0, 0.0, 3.689), (1.0, 0.0253, 5.572), (10.0, 4.795, 18.390)] {
            let (found_low, found_high) = gamma_interval(count * 7.0, count * 49.0, 7.0);
            assert!((found_low / 7.0 - low).abs() < 1e-3, "{count}: {found_low}");
            assert!((found_high / 7.0 - high).abs() < 1e-3, "{count}: {found_high}");
        }
        // The two ways to compute a quantile meet.
        for p in [0.025, 0.975] {
            let [below, above] = [199.999, 200.0].map(|shape| gamma_quantile(p, shape));
            assert!((below / above - 1.0).abs() < 1e-4, "{below} {above}");
        }
    }

    #[test]
    fn what_is_always_sampled_is_exact() {
        let mut amounts = Amounts::default();
        amounts.add(3, 4096, 4096);
        amounts.add(1, 1 << 40, 4096);
        let bytes = amounts.bytes.bounds(0.0);
        assert_eq!(bytes.value, (3 * 4096 + (1_u64 << 40)) as f64);
        assert_eq!((bytes.low, bytes.high), (bytes.value, bytes.value));
        assert_eq!(amounts.objects.count(), 4);
    }

    #[test]
    fn hostile_sizes_and_intervals_give_numbers() {
        for (samples, size, interval) in [
            (1, 0, 0),
            (u64::MAX, u64::MAX, u64::MAX),
            (u64::MAX, 1, u64::MAX),
            (1, 0, u64::MAX),
            (0, 5, 10),
        ] {
            let mut amounts = Amounts::default();
            amounts.add(samples, size, interval);
            for estimate in [amounts.bytes, amounts.objects] {
                let bounds = estimate.bounds(1.0);
                assert!(bounds.low <= bounds.value && bounds.value <= bounds.high, "{bounds:?}");
                let share = estimate.share_of(&estimate, 1.0);
                assert!(share.low <= share.share && share.share <= share.high, "{share:?}");
            }
        }
        let none = Estimate::default().share_of(&Estimate::default(), 1.0);
        assert_eq!((none.low, none.high), (0.0, 1.0));
    }

    /// A place in the program that allocates.
    struct Site {
        count: u64,
        size: fn(&mut fastrand::Rng) -> u64,
    }

    const INTERVAL: u64 = 64 << 10;

    const SITES: [Site; 5] = [
        Site { count: 40_000, size: |_| 64 },
        Site { count: 10_000, size: |random| random.u64(100..1_000) },
        Site { count: 3_000, size: |random| 1 << random.u32(9..15) },
        Site { count: 60, size: |random| random.u64(30_000..200_000) },
        Site { count: 500, size: |_| 1_500 },
    ];

    #[test]
    fn intervals_hold_the_truth_in_at_least_183_of_200_runs() {
        let names = ["bytes", "objects", "share of bytes", "share of objects"];
        let mut held = [[0_u32; 4]; SITES.len()];
        let mut held_in_all = [0_u32; 2];
        for seed in 0..RUNS {
            let mut sampler = Sampler::new(seed, INTERVAL);
            let mut truths = [[0_u64; 2]; SITES.len()];
            let mut found = [Amounts::default(); SITES.len()];
            // Interleaved as in a program.
            let mut order: Vec<usize> = SITES
                .iter()
                .enumerate()
                .flat_map(|(at, site)| std::iter::repeat_n(at, site.count as usize))
                .collect();
            sampler.random.shuffle(&mut order);
            for at in order {
                let size = (SITES[at].size)(&mut sampler.random);
                truths[at][0] += size;
                truths[at][1] += 1;
                if sampler.allocate(size) {
                    found[at].add(1, size, INTERVAL);
                }
            }
            let mut all = Amounts::default();
            found.iter().for_each(|amounts| all.plus(amounts));
            let least = [INTERVAL as f64, 0.0];
            for (measure, of) in [Measure::Bytes, Measure::Objects].into_iter().enumerate() {
                let whole: u64 = truths.iter().map(|truth| truth[measure]).sum();
                let bounds = all.of(of).bounds(least[measure]);
                let is_held = (bounds.low..=bounds.high).contains(&(whole as f64));
                held_in_all[measure] += u32::from(is_held);
                for (at, amounts) in found.iter().enumerate() {
                    let truth = truths[at][measure] as f64;
                    let bounds = amounts.of(of).bounds(least[measure]);
                    let is_held = (bounds.low..=bounds.high).contains(&truth);
                    held[at][measure] += u32::from(is_held);
                    let share = amounts.of(of).share_of(all.of(of), least[measure]);
                    let is_held = (share.low..=share.high).contains(&(truth / whole as f64));
                    held[at][2 + measure] += u32::from(is_held);
                }
            }
        }
        for (at, held) in held.iter().enumerate() {
            for (name, held) in names.iter().zip(held) {
                assert!(*held >= LEAST, "site {at}: {name} in {held} of {RUNS}");
            }
        }
        assert!(held_in_all.iter().all(|held| *held >= LEAST), "{held_in_all:?}");
    }

    /// The mean over many runs comes to the truth: of all that was allocated, and of what is left
    /// after frees that know nothing of the sampling.
    #[test]
    fn sums_are_unbiased_also_after_random_frees() {
        const RUNS: u64 = 2_000;
        let mut sums = [0.0; 4];
        let mut truths = [0.0; 4];
        for seed in 0..RUNS {
            let mut sampler = Sampler::new(seed, 4096);
            let (mut made, mut kept) = (Amounts::default(), Amounts::default());
            for _ in 0..400 {
                let octave = sampler.random.u32(4..14);
                let size = 1 + sampler.random.u64(0..1 << octave);
                let is_kept = sampler.random.f64() < 0.3;
                truths[0] += size as f64;
                truths[1] += 1.0;
                if is_kept {
                    truths[2] += size as f64;
                    truths[3] += 1.0;
                }
                if sampler.allocate(size) {
                    made.add(1, size, 4096);
                    if is_kept {
                        kept.add(1, size, 4096);
                    }
                }
            }
            let found = [made.bytes, made.objects, kept.bytes, kept.objects];
            sums.iter_mut().zip(found).for_each(|(sum, found)| *sum += found.value());
        }
        for ((sum, truth), within) in sums.iter().zip(truths).zip([0.005, 0.03, 0.01, 0.06]) {
            assert!((sum / truth - 1.0).abs() < within, "{sum} of {truth}");
        }
    }
}
