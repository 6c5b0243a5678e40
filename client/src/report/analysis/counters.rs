//! Counters that only rise, and whose names say that they count what is held: memory or a queue.
//! What counts work that was done rises too, and is no finding.

use super::{Finding, Found, Subject, WindowOf, score};
use crate::printable::Printable;
use crate::units::grouped;

pub(super) const RULE: &str = "rising counter";

/// A counter rises so often in each quarter of the time. A level that goes up or down at random
/// does that by chance once in 2^12 times, and one that has risen and stays is none.
const QUARTERS: u64 = 4;
const RISES: usize = 3;
const SEVERE: f64 = 5.0;

pub(super) fn rule(subject: &Subject<'_>) -> Found {
    let time = subject.time()?;
    let quarter_ns = time.window.length_ns().div_ceil(QUARTERS).max(1);
    let series = time.view.timeline.counters(time.window);
    let found =
        series.iter().filter(|series| counts_what_is_held(series.name())).filter_map(|series| {
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
    HELD.iter().any(|held| name.contains(held))
}
