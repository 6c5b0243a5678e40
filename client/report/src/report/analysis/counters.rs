//! Counters that only rise, and whose names say that they count what is held: memory or a queue.
//! What counts work that was done rises too, and is a finding if its rate has changed.

use super::{Finding, Found, Subject, Time, WindowOf, score};
use unikprof_profile::printable::Printable;
use unikprof_profile::timeline::{CounterSeries, Ring, Window};
use unikprof_profile::units::grouped;

pub(super) const RULE: &str = "rising counter";

/// A counter rises so often in each quarter of the time. A level that goes up or down at random
/// does that by chance once in 2^12 times, and one that has risen and stays is none.
const QUARTERS: u64 = 4;
const RISES: usize = 3;
const SEVERE: f64 = 5.0;

/// A rate has changed if a counter rises in each of so many equal parts of the time by more, or by
/// less, than in any part before a moment that is not among the first or last `LEAST_PARTS`. Parts
/// that differ by chance do that once in 18,000 times, whatever their distribution: twice the sum
/// of 1 / C(24, 6), …, 1 / C(24, 18).
const PARTS: u64 = 24;
const LEAST_PARTS: usize = 6;
/// The least change of a rate that is told.
const NOTABLE: f64 = 2.0;

pub(super) fn rule(subject: &Subject<'_>) -> Found {
    let time = subject.time()?;
    let quarter_ns = time.window.length_ns().div_ceil(QUARTERS).max(1);
    let series = time.view.timeline.counters(time.window);
    let found = series.iter().filter_map(|series| {
        if !counts_what_is_held(series.name()) {
            return changed_rate(&time, series);
        }
        let growth = series.growth(&[])?;
        let mut rises = [0_usize; QUARTERS as usize];
        for (between, step) in &growth {
            let quarter = between.to_ns.saturating_sub(time.window.from_ns) / quarter_ns;
            if *step > 0.0 {
                rises[quarter.min(QUARTERS - 1) as usize] += 1;
            }
        }
        let fewest = rises.into_iter().min().filter(|rises| *rises >= RISES)?;
        let grown: f64 = growth.iter().map(|(_, step)| step).sum();
        let seconds = time.window.length_ns() as f64 / 1e9;
        let name = Printable(series.name()).to_string();
        let mut finding = Finding::new(
            RULE,
            score(fewest as f64, RISES as f64, SEVERE * RISES as f64).min(CAREFUL),
            format!(
                "`{name}` only rises: from {} to {} in {seconds:.1} s",
                grouped(series.min()),
                grouped(series.last())
            ),
            "if it does not fall later, it is a leak: compare two moments in the page",
        )
        .because(format!(
            "it rises by {:.1} a second, {} times in all, and never falls",
            grown / seconds,
            grouped(rises.iter().sum::<usize>() as i128)
        ))
        .real("rise_per_second", grown / seconds)
        .count("rises", rises.iter().sum::<usize>() as u64);
        let whole: WindowOf = time.of(time.window);
        finding.windows.push(whole);
        Some(finding)
    });
    Ok(found.collect())
}

fn changed_rate(time: &Time<'_>, series: &CounterSeries) -> Option<Finding> {
    let (first_ns, _) = *series.values().first()?;
    let from_ns = time.window.from_ns.max(first_ns);
    let part_ns = Window { from_ns, ..time.window }.length_ns().div_ceil(PARTS).max(1);
    let mut rises = [0.0; PARTS as usize];
    // Of what rose while records were missing it is not known when.
    let mut gaps = time.view.timeline.rings().iter().flat_map(Ring::all_gaps);
    if gaps.any(|gap| gap.and(time.window).length_ns() > 0) {
        return None;
    }
    for (between, step) in series.growth(&[])? {
        let part = between.to_ns.saturating_sub(from_ns) / part_ns;
        rises[part.min(PARTS - 1) as usize] += step;
    }
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
    let most = |of: &[f64]| of.iter().copied().fold(0.0, f64::max);
    let least = |of: &[f64]| of.iter().copied().fold(f64::INFINITY, f64::min);
    let changes = (LEAST_PARTS..=rises.len() - LEAST_PARTS).filter_map(|at| {
        let (before, after) = rises.split_at(at);
        let is_change = most(before) < least(after) || most(after) < least(before);
        let (before, after) = (mean(before), mean(after));
        let factor = before.max(after) / before.min(after);
        (is_change && factor >= NOTABLE).then_some((at, factor, before, after))
    });
    let (at, _, before, after) = changes.max_by(|a, b| a.1.total_cmp(&b.1))?;
    let seconds = part_ns as f64 / 1e9;
    let (before, after) = (before / seconds, after / seconds);
    let since = time.of(Window { from_ns: from_ns + at as u64 * part_ns, ..time.window });
    let mut finding = Finding::new(
        RULE,
        CAREFUL,
        format!(
            "`{}` rises by {after:.1} a second since {:.1} s, by {before:.1} before",
            Printable(series.name()),
            since.from_ns as f64 / 1e9
        ),
        "if nobody asked for it, compare the time before with that after it in the page",
    )
    .because(format!("no {seconds:.1} s of one side are like any of the other"))
    .real("rise_per_second_before", before)
    .real("rise_per_second", after);
    finding.windows.push(since);
    Some(finding)
}

/// Whether it is a leak only the reader knows: it never comes before what is certain.
const CAREFUL: u32 = 25;

fn counts_what_is_held(name: &str) -> bool {
    const HELD: [&str; 17] = [
        "alloc",
        "backlog",
        "buffer",
        "byte",
        "cache",
        "depth",
        "heap",
        "held",
        "in flight",
        "in use",
        "live",
        "mem",
        "open",
        "pages",
        "pending",
        "queue",
        "waiting",
    ];
    let name = name.to_lowercase().replace(['_', '-'], " ");
    // What was done with it is counted up.
    const DONE: [&str; 7] = ["done", "hits", "misses", "opened", "sent", "served", "total"];
    let is_done = name.split(' ').any(|word| DONE.contains(&word));
    !is_done && HELD.iter().any(|held| name.contains(held))
}
