//! Which guests differ from the rest of a fleet: by the shares of the functions' own time.
//!
//! A guest's distance from the rest is half the sum of the differences of all shares: the share of
//! its time that would have to be spent elsewhere for both to be alike (the total variation
//! distance). A guest is told to differ if chance does not explain the distance (Pearson's test of
//! homogeneity, corrected for the number of guests), and if at least [`LEAST`] of it is more than
//! chance would be expected to make.
//!
//! Samples come in bursts, and guests are never quite alike. So the test compares with how far the
//! other guests are apart among themselves, where that is more than independent samples explain:
//! with the median of their test values, as in an analysis of variance. Guests that differ are left
//! out of the rest, one after the other, while those left are three at least, and most of all: two
//! guests differ as much from each other.

use std::collections::BTreeMap;

use statrs::distribution::{ChiSquared, ContinuousCDF as _, FisherSnedecor};

use unikprof_profile::symbols::FunctionId;

/// The chance that a fleet of guests that are alike has one that is told to differ.
const LEVEL: f64 = 0.01;

/// The least distance beyond chance that is worth a look.
const LEAST: f64 = 0.05;

/// What a function is counted at least, as expected, to be tested by itself and not among all
/// others.
const LEAST_EXPECTED: f64 = 5.0;

/// By how many standard deviations a function's shares differ that is named.
const APART: f64 = 3.0;

/// The most functions that are named of a guest.
const MOST_FUNCTIONS: usize = 5;

/// What each function of a guest was counted itself.
pub(super) type Counts = BTreeMap<FunctionId, f64>;

/// How a guest differs from the rest.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Difference {
    /// Its place among the guests.
    pub(crate) guest: usize,
    pub(crate) distance: f64,
    /// The distance that chance would be expected to make.
    pub(crate) chance: f64,
    /// Those that make the difference, the largest first.
    pub(crate) functions: Vec<FunctionShares>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FunctionShares {
    pub(crate) function: FunctionId,
    pub(crate) guest: f64,
    /// In all other guests together that are not told to differ.
    pub(crate) rest: f64,
}

/// The distances of a fleet's guests from the rest.
#[derive(Debug, Default)]
pub(crate) struct Differences {
    /// Those that differ, the most different first.
    pub(crate) different: Vec<Difference>,
    /// The others, in their order; none if there is no rest.
    pub(crate) alike: Vec<Difference>,
}

impl Differences {
    pub(super) fn of(guests: &[Counts]) -> Differences {
        let all = (0..guests.len()).filter(|guest| total(&guests[*guest]) > 0.0);
        let mut rest: Vec<usize> = all.collect();
        let fewest_left = 2.max(rest.len() / 2);
        let level = LEVEL / rest.len().max(1) as f64;
        let mut different = Vec::new();
        while rest.len() > fewest_left.max(2) {
            let Some(found) = farthest(guests, &rest, level) else {
                break;
            };
            rest.retain(|guest| *guest != found.guest);
            different.push(found);
        }
        let pool = Pool::of(guests, &rest);
        let alike = rest.iter().filter(|_| rest.len() > 1);
        let alike = alike.map(|guest| {
            let others = pool.without(&guests[*guest]);
            difference(*guest, &guests[*guest], &others, 1.0)
        });
        Differences { alike: alike.collect(), different }
    }
}

/// The guest that differs most, if one does.
fn farthest(guests: &[Counts], rest: &[usize], level: f64) -> Option<Difference> {
    let pool = Pool::of(guests, rest);
    let tests = rest.iter().filter_map(|guest| {
        let others = pool.without(&guests[*guest]);
        let test = Test::of(&guests[*guest], &others)?;
        let found = difference(*guest, &guests[*guest], &others, 1.0);
        (found.distance - found.chance >= LEAST).then_some((*guest, test))
    });
    let (guest, test) = tests.max_by(|a, b| a.1.ratio().total_cmp(&b.1.ratio()))?;
    let others: Vec<usize> = rest.iter().copied().filter(|it| *it != guest).collect();
    let (spread, freedom) = spread(guests, &others);
    let found = difference(guest, &guests[guest], &pool.without(&guests[guest]), spread);
    let is_found = test.chance(spread, freedom) <= level && found.distance - found.chance >= LEAST;
    is_found.then_some(found)
}

/// How many times as far as independent samples explain these guests are apart, at least 1, and the
/// degrees of freedom of that.
fn spread(guests: &[Counts], of: &[usize]) -> (f64, f64) {
    let pool = Pool::of(guests, of);
    let tests = of.iter().filter_map(|guest| {
        let counts = &guests[*guest];
        Test::of(counts, &pool.without(counts))
    });
    let tests: Vec<Test> = tests.collect();
    let mut ratios: Vec<f64> = tests.iter().map(Test::ratio).collect();
    ratios.sort_by(f64::total_cmp);
    let median = ratios.get(ratios.len() / 2).copied().unwrap_or(1.0);
    let freedom: f64 = tests.iter().map(|test| test.freedom).sum();
    // A median varies about as much as a mean of half as many.
    (median.max(1.0), (freedom / 2.0).max(1.0))
}

fn total(counts: &Counts) -> f64 {
    counts.values().sum()
}

/// Several guests together.
#[derive(Debug, Default)]
struct Pool(Counts);

impl Pool {
    fn of(guests: &[Counts], of: &[usize]) -> Pool {
        let mut pool = Pool::default();
        for (function, count) in of.iter().flat_map(|guest| &guests[*guest]) {
            *pool.0.entry(*function).or_default() += count;
        }
        pool
    }

    /// Without one of them.
    fn without(&self, guest: &Counts) -> Counts {
        let mut rest = self.0.clone();
        for (function, count) in guest {
            if let Some(sum) = rest.get_mut(function) {
                *sum = (*sum - count).max(0.0);
            }
        }
        rest
    }
}

/// Each function with its counts in both.
fn pairs<'a>(
    guest: &'a Counts,
    rest: &'a Counts,
) -> impl Iterator<Item = (FunctionId, f64, f64)> + 'a {
    // A pool has every function of its guests, if only with a count of 0.
    rest.iter()
        .map(|(function, other)| (*function, guest.get(function).copied().unwrap_or(0.0), *other))
}

fn difference(number: usize, guest: &Counts, rest: &Counts, spread: f64) -> Difference {
    let (of_guest, of_rest) = (total(guest).max(1.0), total(rest).max(1.0));
    let (mut distance, mut chance) = (0.0, 0.0);
    let mut functions = Vec::new();
    for (function, own, other) in pairs(guest, rest) {
        let shares = (own / of_guest, other / of_rest);
        let apart = (shares.0 - shares.1).abs();
        let both = (own + other) / (of_guest + of_rest);
        let variance = both * (1.0 - both) * spread * (1.0 / of_guest + 1.0 / of_rest);
        distance += apart / 2.0;
        // The mean distance of a normal distribution's values from their mean.
        chance += (variance * std::f64::consts::FRAC_2_PI).sqrt() / 2.0;
        if apart >= APART * variance.sqrt() && apart > 0.0 {
            functions.push(FunctionShares { function, guest: shares.0, rest: shares.1 });
        }
    }
    let apart = |shares: &FunctionShares| (shares.guest - shares.rest).abs();
    functions.sort_by(|a, b| apart(b).total_cmp(&apart(a)));
    functions.truncate(MOST_FUNCTIONS);
    Difference { guest: number, distance, chance, functions }
}

/// Pearson's test that a guest and the rest have the same shares.
#[derive(Debug, Clone, Copy)]
struct Test {
    squares: f64,
    freedom: f64,
}

impl Test {
    /// `None` if there is too little to test.
    fn of(guest: &Counts, rest: &Counts) -> Option<Test> {
        let (of_guest, of_rest) = (total(guest), total(rest));
        let all = of_guest + of_rest;
        let smaller = of_guest.min(of_rest) / all;
        let mut cells: Vec<[f64; 2]> = Vec::new();
        let mut seldom = [0.0, 0.0];
        for (_, own, other) in pairs(guest, rest) {
            if (own + other) * smaller >= LEAST_EXPECTED {
                cells.push([own, other]);
            } else {
                seldom = [seldom[0] + own, seldom[1] + other];
            }
        }
        if (seldom[0] + seldom[1]) * smaller >= LEAST_EXPECTED {
            cells.push(seldom);
        } else if let Some(last) = cells.last_mut() {
            *last = [last[0] + seldom[0], last[1] + seldom[1]];
        }
        let squares = cells.iter().map(|cell| {
            let both = cell[0] + cell[1];
            let expected = [both * of_guest / all, both * of_rest / all];
            let square = |at: usize| (cell[at] - expected[at]).powi(2) / expected[at];
            square(0) + square(1)
        });
        (cells.len() > 1)
            .then(|| Test { squares: squares.sum(), freedom: cells.len() as f64 - 1.0 })
    }

    fn ratio(&self) -> f64 {
        self.squares / self.freedom
    }

    /// The chance of as much, if it is from the same distribution and all values are `spread` times
    /// as large.
    fn chance(&self, spread: f64, freedom: f64) -> f64 {
        if spread <= 1.0 {
            let distribution = ChiSquared::new(self.freedom);
            distribution.map_or(1.0, |it| it.sf(self.squares))
        } else {
            let distribution = FisherSnedecor::new(self.freedom, freedom);
            distribution.map_or(1.0, |it| it.sf(self.ratio() / spread))
        }
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    const SEEDS: u64 = 100;

    /// A guest with so many samples; the functions' shares fall like those of real programs.
    fn guest(samples: usize, burst: usize, random: &mut Rng) -> Counts {
        let mut counts = Counts::new();
        for _ in 0..samples / burst {
            // Of 200 functions each has about the same share of what those before it leave.
            let function = (200.0_f64.powf(random.f64()) - 1.0) as u32;
            *counts.entry(FunctionId(function)).or_default() += burst as f64;
        }
        counts
    }

    /// Moves this share of a guest's time into a function.
    fn shift(counts: &mut Counts, share: f64, to: u32) {
        let moved = total(counts) * share;
        counts.values_mut().for_each(|count| *count = (*count * (1.0 - share)).round());
        *counts.entry(FunctionId(to)).or_default() += moved.round();
    }

    fn different(guests: &[Counts]) -> Vec<usize> {
        let found = Differences::of(guests).different;
        found.iter().map(|found| found.guest).collect()
    }

    /// In how many of the seeds some guest is told to differ though all are alike.
    fn alarms(guests: usize, samples: impl Fn(usize) -> usize, burst: usize) -> usize {
        let named = |seed: &u64| {
            let mut random = Rng::with_seed(*seed);
            let all: Vec<Counts> =
                (0..guests).map(|at| guest(samples(at), burst, &mut random)).collect();
            !different(&all).is_empty()
        };
        (0..SEEDS).filter(named).count()
    }

    /// Chance alone must name nobody, however few samples a guest has.
    #[test]
    fn guests_that_are_alike_are_not_named() {
        let most = (SEEDS as f64 * 0.05) as usize;
        for (guests, samples) in [(3, 300), (8, 100), (8, 3_000), (30, 300)] {
            let alarms = alarms(guests, |_| samples, 1);
            assert!(alarms <= most, "{alarms} of {guests} guests, {samples} samples");
        }
        let alarms = alarms(8, |at| if at == 0 { 12 } else { 1_000 }, 1);
        assert!(alarms <= most, "{alarms}, one with few samples");
    }

    /// Samples in bursts of ten tell a tenth of what as many independent ones tell, and the test is
    /// not exact for them.
    #[test]
    fn bursts_are_no_difference() {
        for guests in [4, 12] {
            let alarms = alarms(guests, |_| 1_000, 10);
            assert!(alarms <= SEEDS as usize / 20, "{alarms} of {guests} guests");
        }
    }

    #[test]
    fn those_that_do_something_else_are_named_and_no_others() {
        let mut missed = 0;
        for seed in 0..SEEDS {
            let mut random = Rng::with_seed(seed);
            let mut all: Vec<Counts> = (0..8).map(|_| guest(800, 1, &mut random)).collect();
            shift(&mut all[2], 0.3, 150);
            shift(&mut all[5], 0.25, 7);
            let found = Differences::of(&all);
            let mut named = different(&all);
            named.sort_unstable();
            missed += usize::from(named != [2, 5]);
            let first = &found.different[0];
            let to = if first.guest == 2 { 150 } else { 7 };
            assert_eq!(first.functions[0].function, FunctionId(to), "seed {seed}");
            assert!(found.alike.iter().all(|other| other.guest != first.guest));
        }
        assert!(missed <= SEEDS as usize / 20, "{missed}");
    }

    /// What is significant among a million samples is not worth a look.
    #[test]
    fn a_small_difference_is_not_named() {
        let mut random = Rng::with_seed(1);
        let mut all: Vec<Counts> = (0..4).map(|_| guest(200_000, 1, &mut random)).collect();
        shift(&mut all[0], 0.03, 199);
        assert_eq!(different(&all), [0; 0]);
        shift(&mut all[0], 0.1, 199);
        assert_eq!(different(&all), [0]);
    }

    #[test]
    fn of_two_nobody_can_tell_which_one_differs() {
        let mut random = Rng::with_seed(1);
        let mut all = vec![guest(500, 1, &mut random), guest(500, 1, &mut random)];
        shift(&mut all[0], 0.9, 100);
        assert_eq!(different(&all), [0; 0]);
        assert_eq!(Differences::of(&all).alike.len(), 2);
        assert!(Differences::of(&[Counts::new()]).alike.is_empty());
    }
}
