//! What grows: allocations that are made again and again and stay.
//!
//! The evidence is what recordings of mode `live` tell: each sampled allocation's stack, size and
//! birth, and whether it was still held at several times. Let A be the first of these times and B
//! the last. A stack's *survivors* were allocated after A, are held at B, and are older than a
//! given age. Honest memory dies: what was allocated early is gone, and for everything new
//! something old went. So a stack grows, and is shown, if
//!
//! 1. **its survivors do not thin out with age.** The time of their births is cut in half; if the
//!    older half has less than `THINNED` of the younger half's, and less than as many by more
//!    than chance explains (binomial, `THIN`), the age is raised to that of the older half, and
//!    so on: what is left does not die out, or is too little to tell. Of memory with a mean life of
//!    half the time, which the next rule judges, the older half has 0.37. Chance alone would cut a
//!    leak, with enough samples, in a guest that runs a little faster at the end. If the next rule
//!    rejects what is left, chance alone cuts: a leak may be a small part of what its stack
//!    allocates, most of which lives for a short time;
//! 2. **more came than went.** Against the survivors stand the allocations that were seen at that
//!    age at any time from A on and are gone at B. Where memory only fluctuates, each is as likely
//!    to be the one as the other: a sign test (binomial). Its chance times twice the number of
//!    stacks that were looked at (Bonferroni) must be below `CHANCE`; And those that were seen at
//!    that age at one of the times in between lived on: with a mean life of half the time from A to
//!    B, counted from that age, so few would go (Poisson) with a chance below `CHANCE` in the
//!    same way. A recording begins with an empty table, so memory that lives for a while always
//!    grows at first, and less of it has gone than came;
//! 3. **it came all the time.** Of eight equal parts of the time as many have births as chance
//!    makes it (occupancy, `UNEVEN`): what was allocated at a few moments is a load, an
//!    initialization or a cache that was filled, not a leak;
//! 4. **it goes on.** Neither in the younger half of the time nor in the last of the eight parts
//!    are there fewer births than chance explains (binomial, `STOPPED`) at `KEPT` of the rate
//!    before, or none at all where chance does not explain that at the rate before. A leak that
//!    slows down goes on.
//!
//! Each stack that has survivors and is not shown has the `Rule` that rejected it.
//!
//! What lives longer than half the time from A to B, and was not there before A, may not be told
//! from a leak: that takes a longer time. Growth is estimated from the survivors that the first
//! step leaves, with the interval of [`heap`](unikprof_profile::profile) estimates: it is about the sampling,
//! the tests above are about what the guest does.

use std::collections::HashMap;

use statrs::function::beta::beta_reg;
use statrs::function::gamma::gamma_ur;

use unikprof_profile::profile::{Amounts, Bounds, Held, LiveSample, NodeId};

mod text;

pub use text::{json, write};

/// How often a look at honest memory, whose allocations die independently, may show something.
const CHANCE: f64 = 0.001;

/// How often the survivors of a leak are taken to thin out, to come at a few moments, or to have
/// stopped.
const THIN: f64 = 0.01;
const UNEVEN: f64 = 0.001;
const STOPPED: f64 = 0.001;

/// Survivors thin out if the older half has less than this part of the younger half's.
const THINNED: f64 = 2.0 / 3.0;

/// A stack that grows has at least this part of its earlier rate.
const KEPT: f64 = 0.5;

/// Fewer survivors than this show nothing, whatever else there is.
const LEAST: usize = 10;

/// Memory that lives on average for more than this part of the time from A to B is not told from a
/// leak.
const LIFE: f64 = 0.5;

/// Into how many parts the time of births is cut.
const PARTS: usize = 8;

/// The age from which on an allocation counts, unless it is given: this part of the time from A to
/// B.
const OLDER_PART: u64 = 16;

/// What a look at a guest's memory came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Growth {
    /// A and B, on the guest's monotonic clock.
    pub from_ns: u64,
    /// The end of the time that was looked at, in ns.
    pub to_ns: u64,
    /// The age from which on allocations count.
    pub older_ns: u64,
    /// All that was held at A and at B.
    pub held: [Amounts; 2],
    /// How many stacks have survivors.
    pub(crate) stacks: usize,
    /// Whether samples were dropped, before A or after it, so that all sums are lower bounds.
    pub is_lower_bound: bool,
    /// Those that grow, by evidence.
    pub(crate) growing: Vec<Growing>,
    /// The others, by what they hold.
    pub(crate) rejected: Vec<Rejected>,
}

/// A stack that has survivors and is not shown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rejected {
    pub(crate) node: NodeId,
    /// Its survivors.
    pub(crate) amounts: Amounts,
    pub(crate) rule: Rule,
}

/// The rule that rejected a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    /// There are too few survivors.
    Few,
    /// Those left by rule 1 are too few.
    ThinsOut,
    /// Rule 2: as much went as came.
    ComesAndGoes,
    /// Rule 2: they were not seen for long enough.
    MayStillGo,
    /// Rule 3.
    Moments,
    /// Rule 4.
    Stopped,
}

impl Rule {
    /// What the stack's memory does, in words.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Rule::Few => "has too few samples",
            Rule::ThinsOut => "thins out with age",
            Rule::ComesAndGoes => "comes and goes",
            Rule::MayStillGo => "may only live long",
            Rule::Moments => "came at a few moments",
            Rule::Stopped => "fell below half of its rate",
        }
    }
}

/// A stack that grows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Growing {
    pub(crate) node: NodeId,
    /// The survivors.
    pub(crate) amounts: Amounts,
    /// Bytes in a minute.
    pub(crate) per_minute: Bounds,
    /// Objects in a minute.
    pub(crate) objects_per_minute: Bounds,
    /// From this age on the survivors do not thin out, in ns.
    pub(crate) older_ns: u64,
    /// Allocations that were seen at that age and are gone.
    pub(crate) gone: u64,
    /// The chance that memory which only fluctuates looks like this, for any of the stacks.
    pub(crate) chance: f64,
}

/// All that was held at a time.
pub fn amounts(held: &Held, interval_bytes: u64) -> Amounts {
    amounts_of(&held.samples, held.at_ns, interval_bytes)
}

fn amounts_of(samples: &[LiveSample], at_ns: u64, interval_bytes: u64) -> Amounts {
    let mut amounts = Amounts::default();
    for sample in samples {
        let age_ns = at_ns.saturating_sub(sample.born_ns);
        amounts.add_held(sample.size, age_ns, interval_bytes);
    }
    amounts
}

/// Compares what was held at several times, the oldest first; `from` is the place of A. The age is
/// `older_ns`, or if it is `None` a sixteenth of the time. `None` if there are not two times.
pub fn find(
    times: &[Held],
    from: usize,
    older_ns: Option<u64>,
    interval_bytes: u64,
) -> Option<Growth> {
    let (first, last) = (times.get(from)?, times.last()?);
    let length_ns = last.at_ns.checked_sub(first.at_ns).filter(|ns| *ns != 0)?;
    let older_ns = older_ns.unwrap_or(length_ns / OLDER_PART);
    let amounts_at = |held| amounts(held, interval_bytes);
    let mut growth = Growth {
        from_ns: first.at_ns,
        to_ns: last.at_ns,
        older_ns,
        held: [amounts_at(first), amounts_at(last)],
        stacks: 0,
        is_lower_bound: false,
        growing: Vec::new(),
        rejected: Vec::new(),
    };
    let end_ns = last.at_ns.saturating_sub(older_ns);
    let mut survivors: HashMap<NodeId, Vec<LiveSample>> = HashMap::new();
    for sample in &last.samples {
        if sample.born_ns > first.at_ns && sample.born_ns <= end_ns {
            survivors.entry(sample.node).or_default().push(*sample);
        }
    }
    growth.stacks = survivors.len();
    let times = &times[from..];
    let gone = gone_by_stack(times);
    let seen_at: Vec<u64> = times.iter().map(|held| held.at_ns).collect();
    for (node, samples) in survivors {
        let gone = gone.get(&node).map_or(&[][..], Vec::as_slice);
        let amounts = amounts_of(&samples, last.at_ns, interval_bytes);
        match judge(node, &samples, gone, &seen_at, &growth, interval_bytes) {
            Ok(growing) => growth.growing.push(growing),
            Err(rule) => growth.rejected.push(Rejected { node, amounts, rule }),
        }
    }
    let by_evidence = |a: &Growing, b: &Growing| {
        let chance = a.chance.total_cmp(&b.chance);
        chance.then(b.per_minute.value.total_cmp(&a.per_minute.value))
    };
    growth.growing.sort_by(by_evidence);
    growth.rejected.sort_by(|a, b| {
        let [a_bytes, b_bytes] = [a, b].map(|it| it.amounts.bytes.value());
        b_bytes.total_cmp(&a_bytes).then(a.node.cmp(&b.node))
    });
    Some(growth)
}

/// An allocation that is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Gone {
    born_ns: u64,
    /// When it was seen for the last time.
    seen_ns: u64,
}

/// Of each stack the allocations that are gone at the last time.
fn gone_by_stack(times: &[Held]) -> HashMap<NodeId, Vec<Gone>> {
    let Some((last, before)) = times.split_last() else {
        return HashMap::new();
    };
    // An allocation has no name; equal ones are told by their number.
    let mut left: HashMap<LiveSample, usize> = HashMap::new();
    for sample in &last.samples {
        *left.entry(*sample).or_default() += 1;
    }
    let mut gone: HashMap<NodeId, Vec<Gone>> = HashMap::new();
    let mut told: HashMap<LiveSample, usize> = HashMap::new();
    // From the last: where it was seen first is where it was oldest.
    for held in before.iter().rev() {
        let mut here: HashMap<LiveSample, usize> = HashMap::new();
        for sample in &held.samples {
            *here.entry(*sample).or_default() += 1;
        }
        for (sample, count) in here {
            let known = left.get(&sample).copied().unwrap_or(0);
            let told = told.entry(sample).or_insert(known);
            let one = Gone { born_ns: sample.born_ns, seen_ns: held.at_ns };
            for _ in *told..count {
                gone.entry(sample.node).or_default().push(one);
            }
            *told = count.max(*told);
        }
    }
    gone
}

/// Judges a stack by its survivors and by those that are gone.
fn judge(
    node: NodeId,
    survivors: &[LiveSample],
    gone: &[Gone],
    seen_at: &[u64],
    of: &Growth,
    interval_bytes: u64,
) -> Result<Growing, Rule> {
    let with = |thinned| {
        let survivors = survivors.to_vec();
        judge_cut(node, survivors, thinned, gone, seen_at, of, interval_bytes)
    };
    with(THINNED).or_else(|rule| match rule {
        Rule::ComesAndGoes | Rule::MayStillGo => with(1.0).map_err(|_| rule),
        _ => Err(rule),
    })
}

/// The same; survivors whose older half has at least the part `thinned` of the younger half's do
/// not thin out.
fn judge_cut(
    node: NodeId,
    mut survivors: Vec<LiveSample>,
    thinned: f64,
    gone: &[Gone],
    seen_at: &[u64],
    of: &Growth,
    interval_bytes: u64,
) -> Result<Growing, Rule> {
    let from_ns = of.from_ns;
    let all = survivors.len();
    let mut end_ns = of.to_ns.saturating_sub(of.older_ns);
    let halves = |survivors: &[LiveSample], end_ns: u64| {
        let middle_ns = u64::midpoint(from_ns, end_ns);
        let old = survivors.iter().filter(|sample| sample.born_ns <= middle_ns);
        (middle_ns, old.count())
    };
    // What thins out with age is cut off.
    loop {
        if survivors.len() < LEAST {
            let is_cut = survivors.len() != all;
            return Err(if is_cut { Rule::ThinsOut } else { Rule::Few });
        }
        let (middle_ns, old) = halves(&survivors, end_ns);
        let is_thin = (old as f64) < thinned * (survivors.len() - old) as f64;
        if !is_thin || at_most(old, survivors.len()) >= THIN {
            break;
        }
        survivors.retain(|sample| sample.born_ns <= middle_ns);
        end_ns = middle_ns;
    }
    let older_ns = of.to_ns.saturating_sub(end_ns);
    // From when on an allocation is seen to be that old.
    let old_at = |born_ns: u64| {
        let mut times = seen_at.iter().copied();
        times.find(|at_ns| at_ns.saturating_sub(born_ns) >= older_ns)
    };
    let watched = |born_ns: u64, until_ns: u64| {
        let at_ns = old_at(born_ns).filter(|at_ns| *at_ns <= until_ns)?;
        Some((until_ns - at_ns) as f64)
    };
    let of_gone = gone.iter().filter_map(|it| watched(it.born_ns, it.seen_ns));
    let (went, went_ns) = of_gone.fold((0, 0.0), |(count, sum), ns| (count + 1, sum + ns));
    let mut chance = at_most(went, went + survivors.len());
    let mut rule = Rule::ComesAndGoes;
    // Without a time in between nothing new is seen twice.
    if seen_at.len() > 2 {
        let of_survivors = survivors.iter().filter_map(|it| watched(it.born_ns, of.to_ns));
        let watched_ns = of_survivors.sum::<f64>() + went_ns;
        let life_ns = LIFE * of.to_ns.saturating_sub(of.from_ns) as f64;
        let lives = so_few(went, watched_ns / life_ns);
        if lives > chance {
            (chance, rule) = (lives, Rule::MayStillGo);
        }
    }
    // Two cuts are tried.
    chance *= 2.0 * of.stacks as f64;
    if chance > CHANCE {
        return Err(rule);
    }
    let length_ns = end_ns.saturating_sub(from_ns).max(1);
    let mut parts = [0; PARTS];
    for sample in &survivors {
        let since = u128::from(sample.born_ns.saturating_sub(from_ns));
        let part = since * PARTS as u128 / (u128::from(length_ns) + 1);
        parts[(part as usize).min(PARTS - 1)] += 1;
    }
    let filled = parts.iter().filter(|births| **births != 0).count();
    if occupied_at_most(filled, survivors.len()) < UNEVEN {
        return Err(Rule::Moments);
    }
    for last in [PARTS / 2, 1] {
        let births: usize = parts[PARTS - last..].iter().sum();
        let so_few_at = |rate: f64| {
            let [now, before] = [rate * last as f64, (PARTS - last) as f64];
            heads_at_most(births, survivors.len(), now / (now + before)) < STOPPED
        };
        if so_few_at(KEPT) || births == 0 && so_few_at(1.0) {
            return Err(Rule::Stopped);
        }
    }
    let amounts = amounts_of(&survivors, of.to_ns, interval_bytes);
    let minutes = length_ns as f64 / 60e9;
    let per_minute = |bounds: Bounds| Bounds {
        value: bounds.value / minutes,
        low: bounds.low / minutes,
        high: bounds.high / minutes,
    };
    Ok(Growing {
        node,
        amounts,
        per_minute: per_minute(amounts.bytes.bounds(interval_bytes as f64)),
        objects_per_minute: per_minute(amounts.objects.bounds(0.0)),
        older_ns,
        gone: went as u64,
        chance,
    })
}

/// The probability of at most so many heads among so many fair coins.
fn at_most(heads: usize, coins: usize) -> f64 {
    heads_at_most(heads, coins, 0.5)
}

/// The same of coins that show heads with the probability `p`.
fn heads_at_most(heads: usize, coins: usize, p: f64) -> f64 {
    if heads >= coins {
        return 1.0;
    }
    // The upper tail of the other side, as a beta function.
    beta_reg((coins - heads) as f64, heads as f64 + 1.0, 1.0 - p)
}

/// The probability of at most so many events where `mean` are expected (Poisson).
fn so_few(events: usize, mean: f64) -> f64 {
    if mean <= 0.0 {
        return 1.0;
    }
    gamma_ur(events as f64 + 1.0, mean)
}

/// The probability that so many births, each in any part of the time alike, fall into at most so
/// many of the parts.
fn occupied_at_most(filled: usize, births: usize) -> f64 {
    // With more, all parts are filled as good as certainly.
    const MANY: usize = 500;
    let mut by_filled = [0.0; PARTS + 1];
    by_filled[0] = 1.0;
    for _ in 0..births.min(MANY) {
        let mut next = [0.0; PARTS + 1];
        for (filled, chance) in by_filled.iter().enumerate() {
            let again = filled as f64 / PARTS as f64;
            next[filled] += chance * again;
            if filled < PARTS {
                next[filled + 1] += chance * (1.0 - again);
            }
        }
        by_filled = next;
    }
    by_filled[..=filled.min(PARTS)].iter().sum()
}

#[cfg(test)]
mod tests;
