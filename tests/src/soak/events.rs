//! The guest's own events, followed by the client's program: each of them is received, or told as
//! evicted.
//!
//! The guest tells of each of its requests and bursts in four steps: a mark with a number, the
//! beginning and the end of a span, and a counter with the number again. So whatever is missing
//! shows.

use anyhow::{Context as _, Result};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::downloads::Downloads;
use super::random::Random;
use super::speaker::Role;

/// The subject of those who follow events in the ledger.
pub const EVENTS: &str = "events";

/// A follower of the guest's events.
pub(crate) struct Follower<'f> {
    /// The client's program and the lines to the guest.
    pub(crate) downloads: Downloads<'f>,
    /// Set when it is enough.
    pub(crate) stop: &'f AtomicBool,
}

/// The guest's own events that were received.
#[derive(Debug, Default)]
pub struct Followed {
    /// The last that was received, by name.
    last: BTreeMap<String, u64>,
    pub events: u64,
    /// Events that came again: each follower begins with all that the rings hold.
    pub(crate) repeated: u64,
    /// Events that were not received, and of which the client said that records were evicted.
    pub(crate) evicted: u64,
    /// The problems found.
    pub(crate) problems: Vec<String>,
}

/// The steps of each request or burst: mark, begin, end, counter. An event's place among those of
/// its name is the number of the request times this, and the step.
const STEPS: u64 = 4;

/// The position of one follower among the events of a name.
#[derive(Debug, Clone, Copy)]
struct Reached {
    place: u64,
    /// The span that began last.
    span: Option<u64>,
}

impl Follower<'_> {
    /// Follows until told to stop, one client after the other.
    pub(crate) fn follow(&self, random: &mut Random) -> Result<Followed> {
        let words = ["events", "--follow", "--last", "1h", "--json", "--only", "mark,span,counter"];
        let path = self.downloads.folder.join("events.json");
        let mut followed = Followed::default();
        while !self.stop.load(Ordering::Relaxed) {
            let is_bad = random.below(3) == 0;
            let address =
                if is_bad { self.downloads.faulty } else { self.downloads.target.address };
            let wait = Duration::from_millis(500 + random.below(9_500));
            let ended = File::create(&path)
                .and_then(|file| {
                    let (program, results) = (self.downloads.program, Stdio::from(file));
                    program.begin_into(results, address, Role::View, &words)
                })
                .and_then(|running| {
                    let end = Instant::now() + wait;
                    while Instant::now() < end && !self.stop.load(Ordering::Relaxed) {
                        thread::sleep(Duration::from_millis(20));
                    }
                    running.interrupt_after(Duration::ZERO)
                });
            let finished = match ended {
                Ok(finished) => finished,
                // What others got still counts.
                Err(error) => {
                    followed.problems.push(format!("a follower: {error}"));
                    continue;
                }
            };
            let kind = if is_bad { "follow over a bad line" } else { "follow" };
            self.downloads.ledger.count(EVENTS, kind, finished.outcome());
            let printed = fs::read_to_string(&path).context("reading events")?;
            followed.take(&printed, &finished.said);
        }
        Ok(followed)
    }
}

impl Followed {
    /// Takes what one follower printed, and what it said beside that.
    fn take(&mut self, printed: &str, said: &str) {
        let mut reached = BTreeMap::new();
        let mut missing = 0;
        for line in printed.lines() {
            let event: Value = serde_json::from_str(line).unwrap_or_default();
            match self.event(&event, &mut reached) {
                Some(before) => missing += before,
                None => self.problems.push(format!("no event, or not in its place: {line}")),
            }
        }
        for (name, reached) in reached {
            let last = self.last.entry(name).or_default();
            *last = reached.place.max(*last);
        }
        let told = told_as_evicted(said);
        if missing <= told {
            self.evicted += missing;
        } else {
            self.problems.push(format!(
                "{missing} events are missing, {told} records were told as evicted: {said}"
            ));
        }
    }

    /// Takes the next event; answers how many are missing before it.
    fn event(&mut self, event: &Value, reached: &mut BTreeMap<String, Reached>) -> Option<u64> {
        let name = event["name"].as_str()?;
        let before = reached.get(name).copied();
        let value = event["value"].as_u64();
        let span = event["number"].as_u64();
        let place = match (event["kind"].as_str()?, before) {
            ("mark", _) => value? * STEPS,
            ("counter", _) => value? * STEPS + 3,
            // Its request is not known yet.
            ("span_begin" | "span_end", None) => return Some(0),
            ("span_begin", Some(before)) => after(before.place, 1),
            ("span_end", Some(before)) => after(before.place, 2),
            _ => return None,
        };
        let known = self.last.get(name).copied().unwrap_or(STEPS - 1);
        let last = before.map_or(known, |before| before.place);
        let is_repeated = place <= known;
        self.repeated += u64::from(is_repeated);
        self.events += u64::from(!is_repeated);
        let is_end = place % STEPS == 2;
        if before.is_some_and(|before| place <= before.place)
            || is_end && last + 1 == place && before.and_then(|before| before.span) != span
        {
            return None;
        }
        reached.insert(name.into(), Reached { place, span });
        Some(place.saturating_sub(last + 1))
    }
}

/// The next place of this step after another.
fn after(place: u64, step: u64) -> u64 {
    let next = place / STEPS * STEPS + step;
    if next > place { next } else { next + STEPS }
}

/// The number of records that the client said were evicted.
fn told_as_evicted(said: &str) -> u64 {
    let told = said.lines().filter_map(|line| {
        let (count, _) = line.strip_prefix("warning: ")?.split_once(" records were evicted")?;
        count.replace(',', "").parse::<u64>().ok()
    });
    told.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(events: &[(&str, u64)]) -> String {
        let line = |(kind, number): &(&str, u64)| {
            let key = if kind.starts_with("span") { "number" } else { "value" };
            format!("{{\"kind\":\"{kind}\",\"name\":\"n\",\"{key}\":{number}}}\n")
        };
        events.iter().map(line).collect()
    }

    const FIRST: [(&str, u64); 4] =
        [("mark", 1), ("span_begin", 70), ("span_end", 70), ("counter", 1)];

    #[test]
    fn events_that_come_again_are_counted_once() {
        let mut followed = Followed::default();
        followed.take(&printed(&FIRST), "");
        followed.take(&printed(&[&FIRST[2..], &[("mark", 2)]].concat()), "");
        assert_eq!(followed.problems, Vec::<String>::new());
        // Of the span's end nobody knows at first which it is.
        assert_eq!((followed.events, followed.repeated), (5, 1));
    }

    /// Guards a follower that would not see what it is for.
    #[test]
    fn whatever_is_missing_must_have_been_told() {
        for left_out in 0..4 {
            let mut events = [&FIRST[..], &[("mark", 2)]].concat();
            events.remove(left_out);
            let mut followed = Followed::default();
            followed.take(&printed(&events), "");
            assert!(!followed.problems.is_empty(), "{left_out}");
            let mut followed = Followed::default();
            let said = "warning: 1,234 records were evicted before they could be fetched";
            followed.take(&printed(&events), said);
            assert_eq!(followed.problems, Vec::<String>::new(), "{left_out}");
            // Without the mark nobody knows of which request the span is.
            let expected = if left_out == 0 { 3 } else { 1 };
            assert_eq!(followed.evicted, expected, "{left_out}");
        }
        let mut followed = Followed::default();
        followed.take(&printed(&[FIRST[0], FIRST[1], ("span_end", 71)]), "");
        assert!(!followed.problems.is_empty(), "another span's end");
    }
}
