//! The statistics of a comparison: pure functions of what two recordings counted in blocks of their
//! time.
//!
//! Samples come in bursts: two samples a millisecond apart tell less than two a minute apart. So
//! the unit of all statistics is the block, a stretch of time, and not the sample.

use fastrand::Rng;
use statrs::distribution::{ContinuousCDF as _, Normal};
use statrs::function::beta::beta_reg;

use unikprof_profile::profile::Interval;
use unikprof_profile::units::sum;

/// The level of intervals, and the share of wrong ones among the functions shown as changed.
pub(crate) const LEVEL: f64 = 0.05;

/// How often a change of the stated size is found.
pub(super) const POWER: f64 = 0.8;

/// From this number of independent samples on, the normal distribution is as good as the exact one.
const MANY: f64 = 1_000.0;

/// The most independent samples that count beside [few](MANY) others: more make no difference, and
/// exceed what the exact distribution can compute.
const MOST: f64 = 1e5;

/// Sums of squares of differences that are a smaller part of those of the values are of rounding.
const ROUNDING: f64 = 1e-9;

/// What a function was counted in a block, by the block's number.
pub(crate) type Hits = (usize, f64);

/// A rate: what a function was counted, for each unit of what it is compared by (samples in all, or
/// calls of a span).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rate {
    hits: f64,
    of: f64,
    variance: f64,
    /// By what its certainty is less because the variance is an estimate from a few blocks.
    known: f64,
    /// As how many independent blocks its blocks count; infinite if the variance is not estimated.
    blocks: f64,
    /// How many neighbouring blocks tell as much as an independent one.
    alike: f64,
}

impl Rate {
    /// The rate over blocks, and its variance between them, as a ratio estimate has it (W. G.
    /// Cochran, "Sampling Techniques", 3rd edition, 1977, section 6.3). `of` has every block, in
    /// the order of time, and `hits` are in that order. Where neighbours are [`Alike`], fewer
    /// blocks are independent.
    pub(crate) fn of_blocks(hits: &[Hits], of: &[f64]) -> Rate {
        Rate::of_independent(hits, of).with_alike(Alike::of(hits, of).neighbours(0.0))
    }

    fn of_independent(hits: &[Hits], of: &[f64]) -> Rate {
        let mut sums = Sums::of(of);
        for (block, hits) in hits {
            sums.add(*hits, of[*block]);
        }
        sums.rate()
    }

    /// The rates of a function in both recordings, whose blocks are taken as alike in both as they
    /// are together: few phases may look like none in a recording. Of what is in no block of
    /// one of them the other tells. `fading` is that [of all functions](fading).
    pub(super) fn of_both(hits: [&[Hits]; 2], of: &[Vec<f64>; 2], fading: f64) -> [Rate; 2] {
        let neighbours = Alike::of_both(hits, of).neighbours(fading);
        [0, 1].map(|at| Rate::of_independent(hits[at], &of[at]).with_alike(neighbours))
    }

    fn with_alike(self, alike: f64) -> Rate {
        let blocks = (self.blocks / alike).max(2.0);
        let known = match self.known > 0.0 {
            true => (Interval::Z / student(blocks - 1.0)).powi(2),
            false => 0.0,
        };
        Rate { variance: self.variance * alike, known, blocks, alike, ..self }
    }

    /// The rate of samples that are taken as independent: a binomial proportion.
    pub(super) fn of_samples(hits: f64, of: f64) -> Rate {
        Rate { hits, of, variance: 0.0, known: 1.0, blocks: f64::INFINITY, alike: 1.0 }
            .sampled(1.0, of)
    }

    /// At least as uncertain as if the hits were independent samples that count `one` each, of
    /// those that count `whole` together. Samples that are all of one function have no variance,
    /// but could have missed others (A. Agresti and B. A. Coull, "Approximate is better than
    /// \"exact\"", 1998).
    pub(super) fn sampled(self, one: f64, whole: f64) -> Rate {
        if self.of <= 0.0 {
            return self;
        }
        let (hits, all) = (self.hits / one, whole / one);
        let added = Interval::Z * Interval::Z;
        let others = ((all - hits).max(0.0) + added / 2.0) / (all + added);
        let independent = hits * others * (one / self.of).powi(2);
        Rate { variance: self.variance.max(independent), ..self }
    }

    pub(super) fn rate(&self) -> f64 {
        if self.of > 0.0 { self.hits / self.of } else { 0.0 }
    }

    /// How many independent samples have the same relative variance (L. Kish, "Survey Sampling",
    /// 1965, section 8.2), fewer by what Student's t makes intervals wider (E. L. Korn and B. I.
    /// Graubard, "Confidence intervals for proportions with small expected number of positive
    /// counts estimated from survey data", 1998).
    fn independent(&self) -> f64 {
        let squared = self.rate() * self.rate();
        let as_many = if self.variance > 0.0 { squared / self.variance } else { self.hits };
        as_many * self.known
    }

    /// How many times as many samples it takes for the certainty of independent ones, at least 1,
    /// if this is a share.
    fn effect(&self) -> f64 {
        let independent = self.rate() * (1.0 - self.rate()) / self.of;
        // Of 0/0 the maximum is 1.
        (self.variance / independent).max(1.0)
    }
}

/// A factor between two rates, and its 95 % interval; infinite if there is nothing in the base.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Factor {
    pub(crate) factor: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Factor {
    /// Whether the interval leaves out that nothing changed.
    pub(super) fn is_apart(&self) -> bool {
        self.low > 1.0 || self.high < 1.0
    }
}

/// Two counts of independent samples, and how much was looked at for each.
struct Counts {
    base: f64,
    new: f64,
    /// How much more was looked at in the new recording.
    exposure: f64,
}

impl Counts {
    fn of(base: &Rate, new: &Rate) -> Counts {
        let mut counts = [base.independent(), new.independent()];
        if counts[0].min(counts[1]) <= MANY {
            counts = counts.map(|count| count.min(MOST));
        }
        // A count of 0 has no variance of its own: it is taken to be clustered as the other one is.
        let exposure = |own: &Rate, count: f64, other: &Rate, of_other: f64| match own.hits > 0.0 {
            true => count / own.rate(),
            false => own.of * of_other / other.hits,
        };
        Counts {
            base: counts[0],
            new: counts[1],
            exposure: exposure(new, counts[1], base, counts[0])
                / exposure(base, counts[0], new, counts[1]),
        }
    }

    fn is_many(&self) -> bool {
        self.base.min(self.new) > MANY
    }

    /// The variance of the factor's logarithm, by the delta method.
    fn variance(&self) -> f64 {
        1.0 / self.base + 1.0 / self.new
    }
}

/// By which factor a rate changed. `None` if neither recording has the function.
///
/// Of so many independent samples in both recordings together, those in the new one have a binomial
/// distribution whose parameter depends on the factor alone (J. Przyborowski and H. Wilenski,
/// 1940); the interval is the one of C. J. Clopper and E. S. Pearson, 1934. It holds for functions
/// that vanished or appeared as well.
pub(crate) fn factor(base: &Rate, new: &Rate) -> Option<Factor> {
    if base.hits + new.hits <= 0.0 || base.of <= 0.0 || new.of <= 0.0 {
        return None;
    }
    let counts = Counts::of(base, new);
    let factor = new.rate() / base.rate();
    if counts.is_many() {
        let width = (quantile(1.0 - LEVEL / 2.0) * counts.variance().sqrt()).exp();
        return Some(Factor { factor, low: factor / width, high: factor * width });
    }
    let of_share = |share: f64| share / (1.0 - share) / counts.exposure;
    let (a, b) = (counts.new, counts.base);
    // Of less than a sample nothing follows.
    let low = if a >= 1.0 { of_share(beta_quantile(a, b + 1.0, LEVEL / 2.0)) } else { 0.0 };
    let high = if b >= 1.0 {
        of_share(beta_quantile(a + 1.0, b, 1.0 - LEVEL / 2.0))
    } else {
        f64::INFINITY
    };
    Some(Factor { factor, low: low.min(factor), high: high.max(factor) })
}

/// The quantile of a beta distribution, by bisection: it ends whatever a recording holds.
fn beta_quantile(a: f64, b: f64, of: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if beta_reg(a, b, middle) < of {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low + high) / 2.0
}

/// The chance of two rates that are at least so far apart, if nothing changed: the test that
/// belongs to the interval of [`factor`]. 1 if neither recording has the function.
pub(crate) fn chance(base: &Rate, new: &Rate) -> f64 {
    if base.hits + new.hits <= 0.0 || base.of <= 0.0 || new.of <= 0.0 {
        return 1.0;
    }
    let counts = Counts::of(base, new);
    if counts.is_many() {
        let apart = (new.rate() / base.rate()).ln().abs() / counts.variance().sqrt();
        return 2.0 * normal().cdf(-apart);
    }
    // All that one side has lies in one block, which tells no variance.
    if !counts.exposure.is_finite() || counts.exposure <= 0.0 {
        return 1.0;
    }
    let (a, b) = (counts.new, counts.base);
    let share = counts.exposure / (1.0 + counts.exposure);
    let as_many = if a > 0.0 { beta_reg(a, b + 1.0, share) } else { 1.0 };
    let as_few = if b > 0.0 { beta_reg(b, a + 1.0, 1.0 - share) } else { 1.0 };
    (2.0 * as_many.min(as_few)).min(1.0)
}

/// The square of how far two shares are apart, in standard deviations, for Pearson's sum over all
/// functions: each counts by the share of the others.
pub(super) fn square([base, new]: &[Rate; 2]) -> f64 {
    let variance = base.variance / base.known + new.variance / new.known;
    let others = 1.0 - (base.rate() + new.rate()) / 2.0;
    if variance > 0.0 { (new.rate() - base.rate()).powi(2) / variance * others } else { 0.0 }
}

/// The fewest blocks that tell how samples are clustered, and in which a function must occur to be
/// tested: in fewer, the permutations differ too little. Which functions are tested does not depend
/// on which recording a block is from, so the tests stay valid (R. Bourgon, R. Gentleman and W.
/// Huber, "Independent filtering increases detection power", 2010).
pub(crate) const LEAST_BLOCKS: usize = 8;

/// The fewest permutations after which a function that plainly changed is not looked at further.
const LEAST_PERMUTATIONS: u32 = 2_048;

/// Permutations with a greater difference than the one seen, after which a function is not looked
/// at further.
const ENOUGH: u32 = 20;

/// For each function the chance of a difference at least as large as the one seen, if its blocks
/// could as well have been in the other recording; `None` where it occurs in too few blocks to
/// tell. `of` is what each block is compared by.
///
/// Blocks are permuted between the recordings, and differences are divided by their standard
/// deviation, so that the test holds if the variances differ too (A. Janssen, "Studentized
/// permutation tests for non-i.i.d. hypotheses and the generalized Behrens-Fisher problem", 1997).
/// A function whose chance is plainly large is given up early (J. Besag and P. Clifford,
/// "Sequential Monte Carlo p-values", 1991), and so is one that counts as changed at half of
/// [`LEVEL`], where it is looked at: each time after twice as many permutations. The permutations come from a fixed seed: equal
/// recordings have equal results.
pub(super) fn permuted(
    of: &[Vec<f64>; 2],
    functions: &[[&[Hits]; 2]],
    fading: f64,
) -> Vec<Option<f64>> {
    let in_base = of[0].len();
    let all_of = of.concat();
    let mut open: Vec<Tested> = Vec::new();
    let mut least = vec![0.0; functions.len()];
    for (at, [base, new_hits]) in functions.iter().enumerate() {
        let new = new_hits.iter().map(|(block, hits)| (block + in_base, *hits));
        let hits: Vec<Hits> = base.iter().copied().chain(new).collect();
        if hits.len() >= LEAST_BLOCKS {
            let mut sums = Sums::default();
            for (block, hits) in &hits {
                sums.add(*hits, all_of[*block]);
            }
            let rates = Rate::of_both([base, new_hits], of, fading);
            let seen = apart_by(&rates[0], &rates[1]);
            least[at] = least_chance(&rates[0], &rates[1]);
            open.push(Tested { at, hits, sums, seen, greater: 0 });
        }
    }
    let total = Sums::of(&all_of);
    let mut chances = vec![None; functions.len()];
    // As many as it takes for the least chance to stay significant among so many functions, twice.
    let most = (40 * open.len() as u32).clamp(LEAST_PERMUTATIONS, 100_000);
    let chance = |at: usize, greater: u32, of: u32| {
        let permuted: f64 = f64::from(greater) / f64::from(of);
        Some(permuted.max(least[at]))
    };
    let mut order: Vec<usize> = (0..all_of.len()).collect();
    let mut is_new: Vec<bool> = order.iter().map(|block| *block >= in_base).collect();
    let apart = |is_new: &[bool], group: &Sums, tested: &Tested| {
        let mut new = *group;
        for (block, hits) in &tested.hits {
            if is_new[*block] {
                new.add(*hits, all_of[*block]);
            }
        }
        let base = total.less(group).plus_hits(&tested.sums.less_hits(&new));
        apart_by(&base.rate(), &new.rate())
    };
    let group_of = |is_new: &[bool]| {
        let of = all_of.iter().zip(is_new).filter(|(_, is_new)| **is_new);
        Sums::of(of.map(|(of, _)| of))
    };
    let mut random = Rng::with_seed(0x756e_696b);
    for done in 1..=most {
        if open.is_empty() {
            break;
        }
        random.shuffle(&mut order);
        is_new.fill(false);
        for block in &order[in_base..] {
            is_new[*block] = true;
        }
        let group = group_of(&is_new);
        open.retain_mut(|tested| {
            // Equal differences may come out apart by rounding.
            let is_greater = apart(&is_new, &group, tested) >= tested.seen * (1.0 - 1e-9);
            tested.greater += u32::from(is_greater);
            if tested.greater == ENOUGH {
                chances[tested.at] = chance(tested.at, ENOUGH, done);
            }
            tested.greater < ENOUGH
        });
        if done >= LEAST_PERMUTATIONS && done.is_power_of_two() || done == most {
            for tested in &open {
                chances[tested.at] = chance(tested.at, tested.greater + 1, done + 1);
            }
            let shares = false_discoveries(&chances);
            open.retain(|tested| shares[tested.at].is_some_and(|share| share > LEVEL / 2.0));
        }
    }
    chances
}

/// How many standard deviations two rates are apart.
fn apart_by(base: &Rate, new: &Rate) -> f64 {
    let apart = (new.rate() - base.rate()).abs();
    let deviation = (base.variance + new.variance).sqrt();
    if apart == 0.0 { 0.0 } else { apart / deviation }
}

/// The least chance of two rates so far apart: what permutations do not tell, because they part the
/// neighbours that are alike. Student's t, with as many degrees of freedom as independent blocks
/// leave (B. L. Welch, 1947); 0 if no neighbours are alike.
fn least_chance(base: &Rate, new: &Rate) -> f64 {
    if base.alike.max(new.alike) <= 1.0 {
        return 0.0;
    }
    let variance = base.variance + new.variance;
    // All in one block.
    if variance <= 0.0 {
        return 1.0;
    }
    let square = |rate: &Rate| rate.variance * rate.variance / (rate.blocks - 1.0);
    let freedom = variance.powi(2) / (square(base) + square(new));
    let apart = apart_by(base, new);
    beta_reg(freedom / 2.0, 0.5, freedom / (freedom + apart * apart))
}

/// How alike neighbouring blocks are, as where a program has phases that are longer than a block:
/// the sums of the squares of their deviations from a rate, and of the products with those of the
/// next block and of the one after it.
#[derive(Debug, Clone, Copy, Default)]
struct Alike {
    products: [f64; 3],
    blocks: f64,
    recordings: f64,
}

impl Alike {
    /// Nearly all of a recording in one phase tells next to nothing.
    const MOST: f64 = 0.95;

    fn of(hits: &[Hits], of: &[f64]) -> Alike {
        let all = sum(of.iter().copied());
        let rate = sum(hits.iter().map(|(_, hits)| *hits)) / all;
        // In blocks of the mean length, so that a recording does not outweigh a shorter one.
        let mean = all / of.len() as f64;
        let mut hits = hits.iter().peekable();
        let (mut products, mut before, mut whole) = ([0.0; 3], [0.0; 2], 0.0);
        for (block, of) in of.iter().enumerate() {
            let own = hits.next_if(|(at, _)| *at == block).map_or(0.0, |(_, hits)| *hits / mean);
            let apart = own - rate * of / mean;
            let pairs = products.iter_mut().zip([apart, before[0], before[1]]);
            pairs.for_each(|(products, other)| *products += apart * other);
            whole += own * own;
            before = [apart, before[0]];
        }
        // What rounding leaves of nothing tells nothing.
        let is_apart = of.len() >= LEAST_BLOCKS && products[0] > ROUNDING * whole;
        let products = if is_apart { products } else { [0.0; 3] };
        Alike { products, blocks: of.len() as f64, recordings: 1.0 }
    }

    /// Of the recordings that have the function.
    fn of_both(hits: [&[Hits]; 2], of: &[Vec<f64>; 2]) -> Alike {
        let there = hits.iter().zip(of).filter(|(hits, _)| !hits.is_empty());
        let all = there.map(|(hits, of)| Alike::of(hits, of));
        all.reduce(|all, next| all.and(&next)).unwrap_or_default()
    }

    fn and(self, other: &Alike) -> Alike {
        Alike {
            products: [0, 1, 2].map(|at| self.products[at] + other.products[at]),
            blocks: self.blocks + other.blocks,
            recordings: self.recordings + other.recordings,
        }
    }

    /// The coefficient of correlation between blocks at this distance, without its bias (F. H. C.
    /// Marriott and J. A. Pope, "Bias in the estimation of autocorrelations", 1954).
    fn correlation(&self, distance: usize) -> f64 {
        let coefficient = self.products[distance] / self.products[0];
        (coefficient * self.blocks + self.recordings) / (self.blocks - 3.0 * self.recordings)
    }

    /// Whether neighbours are more alike than chance makes one in 20.
    fn is_known(&self) -> bool {
        self.products[1] > 1.645 / self.blocks.sqrt() * self.products[0]
    }

    /// How many neighbouring blocks tell as much as an independent one: the sum of the coefficients
    /// at all distances, each of which is `fading` times the one before it. At least that of the
    /// nearest is taken: of a first-order autoregression it is the same. 1 if `fading` is 0 and
    /// neighbours may be as alike by chance.
    fn neighbours(&self, fading: f64) -> f64 {
        let is_alike = if fading > 0.0 { self.products[1] > 0.0 } else { self.is_known() };
        if !is_alike {
            return 1.0;
        }
        let nearest = self.correlation(1).min(Alike::MOST);
        1.0 + 2.0 * nearest / (1.0 - nearest.max(fading))
    }
}

/// By what the likeness of blocks fades with each block between them, by all functions together:
/// phases are those of a program, and one function shows little of them beside its own noise. 0 if
/// neighbours are no more alike than chance makes them.
pub(super) fn fading<'h>(
    of: &[Vec<f64>; 2],
    functions: impl Iterator<Item = [&'h [Hits]; 2]>,
) -> f64 {
    let in_both = functions.filter(|hits| hits.iter().all(|hits| !hits.is_empty()));
    let all = in_both.map(|hits| Alike::of_both(hits, of));
    let together = all.reduce(|all, next| Alike { products: all.and(&next).products, ..all });
    let known = together.filter(Alike::is_known);
    known.map_or(0.0, |all| (all.correlation(2) / all.correlation(1)).clamp(0.0, Alike::MOST))
}

/// A function that is still looked at.
struct Tested {
    at: usize,
    /// The blocks that it occurs in.
    hits: Vec<Hits>,
    sums: Sums,
    /// The difference seen.
    seen: f64,
    greater: u32,
}

/// Sums over blocks, from which a rate and its variance follow.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    blocks: f64,
    of: f64,
    of_squares: f64,
    hits: f64,
    squares: f64,
    products: f64,
}

impl Sums {
    /// Of these blocks, without hits.
    fn of<'a>(blocks: impl IntoIterator<Item = &'a f64>) -> Sums {
        let mut sums = Sums::default();
        for of in blocks {
            sums.blocks += f64::from(u8::from(*of > 0.0));
            sums.of += of;
            sums.of_squares += of * of;
        }
        sums
    }

    /// Adds hits in a block that is among the blocks already.
    fn add(&mut self, hits: f64, of: f64) {
        self.hits += hits;
        self.squares += hits * hits;
        self.products += hits * of;
    }

    /// The blocks that are not in another.
    fn less(&self, other: &Sums) -> Sums {
        Sums {
            blocks: self.blocks - other.blocks,
            of: self.of - other.of,
            of_squares: self.of_squares - other.of_squares,
            ..Sums::default()
        }
    }

    fn less_hits(&self, other: &Sums) -> Sums {
        Sums {
            hits: self.hits - other.hits,
            squares: self.squares - other.squares,
            products: self.products - other.products,
            ..*self
        }
    }

    fn plus_hits(&self, other: &Sums) -> Sums {
        Sums { hits: other.hits, squares: other.squares, products: other.products, ..*self }
    }

    fn rate(&self) -> Rate {
        let Sums { of, hits, .. } = *self;
        let rate = if of > 0.0 { hits / of } else { 0.0 };
        // Σ(h − r·d)², without the blocks.
        let squares = self.squares - 2.0 * rate * self.products + rate * rate * self.of_squares;
        // What rounding leaves of nothing is nothing.
        let squares = if squares > ROUNDING * self.squares { squares } else { 0.0 };
        let freedom = self.blocks - 1.0;
        let variance = if freedom > 0.0 && of > 0.0 {
            squares * (self.blocks / freedom) / (of * of)
        } else {
            0.0
        };
        let known = if freedom > 0.0 { (Interval::Z / student(freedom)).powi(2) } else { 0.0 };
        Rate { hits, of, variance, known, blocks: self.blocks, alike: 1.0 }
    }
}

/// What is known of a share in the long run, beyond the recording.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LongRun {
    pub(crate) interval: Interval,
    /// Whether samples come in clusters, beyond what chance does in one of 200 steady shares.
    pub(crate) is_clustered: bool,
}

/// The share of the hits in all blocks; `None` if there are too few of them.
pub(crate) fn long_run(hits: &[Hits], of: &[f64]) -> Option<LongRun> {
    if of.len() < LEAST_BLOCKS {
        return None;
    }
    let rate = Rate::of_blocks(hits, of);
    let effect = rate.effect();
    let freedom = of.len() as f64 - 1.0;
    // The quantile of a χ² distribution over its degrees of freedom (Wilson and Hilferty, 1931).
    let spread = 2.0 / (9.0 * freedom);
    let chance = (1.0 - spread + quantile(0.995) * spread.sqrt()).powi(3);
    Some(LongRun {
        interval: Interval::of_share(rate.rate(), rate.of * rate.known / effect),
        is_clustered: effect / rate.alike > chance,
    })
}

/// The number of standard deviations that contains 95 % if the deviation itself is estimated with
/// `freedom` degrees of freedom: Student's t by the expansion of Cornish and Fisher.
fn student(freedom: f64) -> f64 {
    let z = Interval::Z;
    let terms = [
        (z.powi(3) + z) / 4.0,
        (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0,
        (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0,
    ];
    let powers = [freedom, freedom.powi(2), freedom.powi(3)];
    let terms = terms.iter().zip(powers);
    z + terms.map(|(term, power)| term / power).sum::<f64>()
}

/// For each chance the least share of wrong ones among all functions that are shown with it or a
/// smaller one (Y. Benjamini and Y. Hochberg, "Controlling the false discovery rate", 1995).
pub(crate) fn false_discoveries(chances: &[Option<f64>]) -> Vec<Option<f64>> {
    let mut ranked: Vec<(usize, f64)> =
        chances.iter().enumerate().filter_map(|(at, chance)| Some((at, (*chance)?))).collect();
    ranked.sort_by(|a, b| a.1.total_cmp(&b.1));
    let tests = ranked.len() as f64;
    let mut adjusted = vec![None; chances.len()];
    let mut least: f64 = 1.0;
    for (rank, (at, chance)) in ranked.iter().enumerate().rev() {
        least = least.min(chance * tests / (rank + 1) as f64);
        adjusted[*at] = Some(least);
    }
    adjusted
}

/// How finely two recordings show a function: the standard deviation of its factor's logarithm, and
/// how many functions it is one of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sight {
    deviation: f64,
    /// The standard deviations from which on a change is significant. One change among many
    /// functions must pass the first step of Benjamini and Hochberg, which is Bonferroni's.
    threshold: f64,
    /// What share of the time the function has, if shares are compared: a function that takes
    /// longer makes the whole longer too.
    share: f64,
}

impl Sight {
    /// Of a function among so many tested ones. `is_share` says whether the rates are shares.
    /// `None` if one of the recordings has none of it.
    pub(super) fn of(base: &Rate, new: &Rate, tests: usize, is_share: bool) -> Option<Sight> {
        if base.hits <= 0.0 || new.hits <= 0.0 || base.of <= 0.0 || new.of <= 0.0 {
            return None;
        }
        Some(Sight {
            deviation: Counts::of(base, new).variance().sqrt(),
            threshold: quantile(1.0 - LEVEL / 2.0 / tests.max(1) as f64),
            share: if is_share { base.rate() } else { 0.0 },
        })
    }

    /// The least slow-down that is found with the probability [`POWER`]: 0.05 is 5 %. `None` if
    /// even an endless one is not.
    pub(super) fn least(&self) -> Option<f64> {
        let seen = ((self.threshold + quantile(POWER)) * self.deviation).exp();
        let rest = 1.0 - self.share * seen;
        (rest > 0.0).then(|| (seen - 1.0) / rest)
    }

    /// The probability with which a slow-down is found (J. Cohen, "Statistical Power Analysis",
    /// 1988).
    pub(super) fn power(&self, slowdown: f64) -> f64 {
        normal().cdf(self.logarithm(slowdown) / self.deviation - self.threshold)
    }

    /// How many times as long both recordings must be to find a slow-down with the probability
    /// [`POWER`].
    pub(super) fn times_longer(&self, slowdown: f64) -> f64 {
        let needed = self.logarithm(slowdown) / (self.threshold + quantile(POWER));
        (self.deviation / needed).powi(2)
    }

    /// How far a slow-down moves the rate.
    fn logarithm(&self, slowdown: f64) -> f64 {
        ((1.0 + slowdown) / (1.0 + self.share * slowdown)).ln()
    }
}

fn normal() -> Normal {
    Normal::standard()
}

fn quantile(of: f64) -> f64 {
    normal().inverse_cdf(of)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn counts(hits: f64, of: f64) -> Rate {
        Rate::of_samples(hits, of)
    }

    /// The example of Benjamini and Hochberg, 1995, section 4.
    #[test]
    fn the_published_discoveries_come_out() {
        let chances = [
            0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262,
            0.5719, 0.6528, 0.7590, 1.0,
        ];
        let mut chances: Vec<Option<f64>> = chances.into_iter().map(Some).collect();
        chances.insert(3, None);
        let found = false_discoveries(&chances);
        let significant: Vec<usize> =
            (0..found.len()).filter(|at| found[*at].is_some_and(|share| share <= LEVEL)).collect();
        assert_eq!((significant, found[3]), (vec![0, 1, 2, 4], None));
    }

    /// The exact interval of 8 successes in 10 is 0.4439 to 0.9748 (Clopper and Pearson); equal
    /// exposure makes odds of it.
    #[test]
    fn small_counts_have_the_exact_interval() {
        let found = factor(&counts(2.0, 1e9), &counts(8.0, 1e9)).unwrap();
        let odds = |share: f64| share / (1.0 - share);
        assert!((found.low / odds(0.4439) - 1.0).abs() < 1e-3, "{found:?}");
        assert!((found.high / odds(0.9748) - 1.0).abs() < 3e-3, "{found:?}");
        // Twice the upper tail of 8 in 10: 2 · 56 / 1024.
        let chance = chance(&counts(2.0, 1e9), &counts(8.0, 1e9));
        assert!((chance - 112.0 / 1024.0).abs() < 1e-6, "{chance}");
    }

    /// A long recording's blocks hold more, and say no more of how alike neighbours are.
    #[test]
    fn likeness_does_not_depend_on_what_a_block_holds() {
        let phases: Vec<Hits> = (0..40).map(|at| (at, f64::from(at as u32 / 5 % 2))).collect();
        let alike = |each: f64| {
            let other: Vec<Hits> = (0..160).map(|at| (at, each * (at * 7 % 3) as f64)).collect();
            let rates = Rate::of_both([&phases, &other], &[vec![1.0; 40], vec![each; 160]], 0.5);
            rates[0].alike
        };
        assert!((alike(1.0) - alike(100.0)).abs() < 1e-9, "{} {}", alike(1.0), alike(100.0));
    }

    /// As where the work is a start that happens once.
    #[test]
    fn work_in_one_block_tells_nothing() {
        let mut of = [vec![0.0; 40], vec![0.0; 160]];
        (of[0][1], of[1][1]) = (1.0, 1.0);
        let hits = [20..23, 30..35].map(|blocks| blocks.map(|at| (at, 1.0)).collect::<Vec<Hits>>());
        let hits = hits.each_ref().map(Vec::as_slice);
        assert_eq!(permuted(&of, &[hits], fading(&of, [hits].into_iter())), [Some(1.0)]);
    }

    /// The test says no change exactly where the interval holds 1, on both sides of what counts as
    /// many.
    #[test]
    fn the_test_and_the_interval_agree() {
        for base in [0.0, 1.0, 7.0, 300.0, 999.0, 1_500.0, 1e6] {
            for new in [0.0_f64, 1.0, 9.0, 350.0, 1_010.0, 1_580.0, 1.004e6, 1e15] {
                for of in [1e7, 1e16] {
                    let (base, new) = (counts(base, 1e7), counts(new.min(of), of));
                    let Some(found) = factor(&base, &new) else {
                        continue;
                    };
                    let chance = chance(&base, &new);
                    assert_eq!(
                        chance < LEVEL,
                        found.is_apart(),
                        "{base:?} {new:?} {found:?} {chance}"
                    );
                    assert!(found.low <= found.factor && found.factor <= found.high, "{found:?}");
                }
            }
        }
        assert_eq!(factor(&counts(0.0, 9.0), &counts(0.0, 9.0)), None);
        let little = Rate { variance: 1.0, ..counts(1.0, 4.0) };
        let found = factor(&little, &little).unwrap();
        assert_eq!((found.low, found.high), (0.0, f64::INFINITY), "less than a sample");
        assert_eq!(factor(&counts(1.0, 9.0), &counts(0.0, 0.0)), None);
    }

    /// A function that has all samples of half of the parts: each part tells as much as one sample.
    /// Samples that are spread evenly tell no more than independent ones.
    #[test]
    fn the_long_run_is_known_by_as_many_samples_as_there_are_bursts() {
        let of = [100.0; 32];
        let hits = |count: &dyn Fn(usize) -> f64| -> Vec<Hits> {
            (0..of.len()).map(|block| (block, count(block))).collect()
        };
        let bursts = hits(&|block| (block % 2) as f64 * 100.0);
        let found = long_run(&bursts, &of).unwrap();
        assert!(found.is_clustered, "{found:?}");
        // 31 blocks at 2.0395 standard deviations, 97.5 % of a t distribution.
        let expected = Interval::of_share(0.5, 31.0 * (Interval::Z / 2.0395).powi(2));
        assert!((found.interval.low - expected.low).abs() < 1e-4, "{found:?}");
        let even = long_run(&hits(&|block| 48.0 + (block % 5) as f64), &of).unwrap();
        assert!(!even.is_clustered, "{even:?}");
        let independent = Interval::of_share(even.interval.share, 3_200.0);
        assert!(even.interval.low < independent.low, "{even:?}, {independent:?}");
        assert!(even.interval.low > independent.low - 0.002, "{even:?}, {independent:?}");
        for all in [0.0, 100.0] {
            let found = long_run(&hits(&|_| all), &of).unwrap();
            assert!(!found.is_clustered && found.interval.high - found.interval.low < 0.002);
        }
        assert_eq!(long_run(&bursts[..7], &of[..7]), None);
        assert!(long_run(&bursts[..8], &of[..8]).is_some());
    }

    /// Guards a change of −2.5 to +2.6 % of what is all of both recordings, and is sure to be.
    #[test]
    fn a_function_that_has_all_samples_cannot_change_by_much() {
        let of = [100.0; 40];
        let all: Vec<Hits> = of.iter().copied().enumerate().collect();
        let by_blocks = Rate::of_blocks(&all, &of).sampled(1.0, 4_000.0);
        for rate in [counts(4_000.0, 4_000.0), by_blocks] {
            let found = factor(&rate, &rate).unwrap();
            assert!(found.low > 0.998 && found.low < 1.0, "{found:?}");
            assert!(found.high < 1.002 && found.high > 1.0, "{found:?}");
        }
    }

    /// Of two recordings in which a block has all or nothing, a block tells as much as a sample.
    #[test]
    fn clustered_samples_tell_as_much_as_blocks() {
        let of = vec![100.0; 40];
        let bursts = |every: usize| -> Vec<Hits> {
            let blocks = (0..40).filter(|block| block % every == 0);
            blocks.map(|block| (block, 100.0)).collect()
        };
        let (base, new) = (bursts(4), bursts(2));
        let rates = [&base, &new].map(|hits| Rate::of_blocks(hits, &of));
        let by_blocks = chance(&rates[0], &rates[1]);
        assert!((0.01..0.1).contains(&by_blocks), "{by_blocks}");
        assert!(chance(&counts(1_000.0, 4_000.0), &counts(2_000.0, 4_000.0)) < 1e-9);
        let permuted = permuted(&[of.clone(), of], &[[&base, &new], [&base[..3], &new[..4]]], 0.0);
        // The hypergeometric distribution of 30 bursts in 80 blocks has 2 · 0.0184 from 20 in 40
        // on.
        assert!((permuted[0].unwrap() - 0.0368).abs() < 0.012, "{permuted:?}");
        assert_eq!(permuted[1], None, "seven blocks are too few");
    }

    /// A phase of half a recording tells little of how much there is of it in another one, which may
    /// have begun behind it. What had no phases and is in no block of the other is gone.
    #[test]
    fn a_phase_may_be_missing_by_chance_and_a_steady_function_is_gone() {
        let of = [vec![100.0; 40], vec![100.0; 40]];
        let phase: Vec<Hits> = (0..20).map(|block| (block, 90.0)).collect();
        let rest: Vec<Hits> = (0..40).map(|block| (block, 10.0)).collect();
        let chance_of = |base: &[Hits], new: &[Hits]| {
            let [base, new] = Rate::of_both([base, new], &of, 0.0);
            least_chance(&base, &new).max(chance(&base, &new))
        };
        assert!(chance_of(&rest, &[]) < 1e-4);
        assert!(chance_of(&phase, &[]) > 0.01);
        assert!(chance_of(&phase, &rest) > 0.1);
    }

    /// 150,000 samples a side show a function of 10 % that is slower by 5 %, among 50 functions.
    #[test]
    fn the_stated_power_is_that_of_independent_samples() {
        let share = |slowdown: f64| 0.1 * (1.0 + slowdown) / (1.0 + 0.1 * slowdown);
        let of = 150_000.0;
        let rates = [counts(0.1 * of, of), counts(share(0.05) * of, of)];
        let sight = Sight::of(&rates[0], &rates[1], 50, true).unwrap();
        assert!((sight.least().unwrap() - 0.05).abs() < 0.005, "{sight:?}");
        assert!((sight.power(sight.least().unwrap()) - POWER).abs() < 1e-9);
        let longer = sight.times_longer(0.01) * of;
        let rates = [counts(0.1 * longer, longer), counts(share(0.01) * longer, longer)];
        let sight = Sight::of(&rates[0], &rates[1], 50, true).unwrap();
        assert!((sight.power(0.01) - POWER).abs() < 0.02, "{sight:?}");
        // Beside nothing else, a share cannot show anything.
        let all = Sight::of(&counts(of, of), &counts(of, of), 1, true).unwrap();
        assert_eq!(all.least(), None);
    }
}
