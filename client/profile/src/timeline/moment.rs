//! Moments as users write them: since the beginning, before the end, or as clock times.

use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use thiserror::Error;

use super::{WallClock, Window};
use crate::units::{self, duration};

/// A moment of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Nanoseconds after the recording's beginning.
    Since(u64),
    /// Nanoseconds before its end.
    BeforeEnd(u64),
    /// A date, in ns since 1970 (UTC).
    Date(u64),
    /// A time of day (UTC), the last one before the end: ns since midnight.
    TimeOfDay(u64),
}

/// The reference for moments: a recording's beginning and end, and the guest's dates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// From its beginning to its end.
    pub whole: Window,
    /// The dates.
    pub clock: WallClock,
}

/// A moment cannot be.
#[expect(missing_docs, reason = "each message says it")]
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MomentError {
    #[error(
        "invalid time `{0}`: expected for example `12s` (after the recording began), `-30s` \
         (before its end, or \
         before now while it runs), `21:34:50` or `2026-11-21T21:34:50Z` (UTC)"
    )]
    Words(String),
    #[error(
        "clock times cannot be used because the guest has no wall clock; use for example `12s` \
         (after the recording \
         began) or `-30s` (before its end)"
    )]
    NoDate,
    #[error("the window from {from} to {to} is empty; recorded is {extent}")]
    Empty { from: String, to: String, extent: String },
    #[error("the window from {from} to {to} is outside of what is recorded, {extent}")]
    Outside { from: String, to: String, extent: String },
}

const DAY_NS: u64 = 86_400_000_000_000;

impl FromStr for Moment {
    type Err = MomentError;

    fn from_str(text: &str) -> Result<Moment, MomentError> {
        // With a colon it is a time of day, not hours, minutes and seconds that passed.
        let length_ns = |text: &str| {
            let length = units::parse_duration(text).filter(|_| !text.contains(':'))?;
            u64::try_from(length.as_nanos()).ok()
        };
        if let Some(before_ns) = text.strip_prefix('-').and_then(length_ns) {
            return Ok(Moment::BeforeEnd(before_ns));
        }
        if let Some(since_ns) = length_ns(text) {
            return Ok(Moment::Since(since_ns));
        }
        let date = text.parse::<Timestamp>().ok().or_else(|| {
            let date: DateTime = text.parse().ok().filter(|_| text.contains('-'))?;
            Some(date.to_zoned(TimeZone::UTC).ok()?.timestamp())
        });
        if let Some(date) = date {
            let date_ns = u64::try_from(date.as_nanosecond()).ok();
            return date_ns.map(Moment::Date).ok_or_else(|| MomentError::Words(text.to_owned()));
        }
        let time: Option<Time> = text.parse().ok().filter(|_| text.contains(':'));
        let since_midnight = time.and_then(|time| {
            let passed = (time - Time::midnight()).total(jiff::Unit::Nanosecond).ok()?;
            Some(passed as u64)
        });
        since_midnight.map(Moment::TimeOfDay).ok_or_else(|| MomentError::Words(text.to_owned()))
    }
}

impl Extent {
    /// A moment's time on the guest's monotonic clock, in ns.
    pub(crate) fn at(&self, moment: Moment) -> Result<u64, MomentError> {
        let Window { from_ns, to_ns } = self.whole;
        match moment {
            Moment::Since(since_ns) => Ok(from_ns.saturating_add(since_ns)),
            Moment::BeforeEnd(before_ns) => Ok(to_ns.saturating_sub(before_ns)),
            Moment::Date(date_ns) => self.clock.monotonic_ns(date_ns).ok_or(MomentError::NoDate),
            Moment::TimeOfDay(of_day_ns) => {
                let end = self.clock.unix_ns(to_ns).ok_or(MomentError::NoDate)?;
                let midnight = end - end % DAY_NS;
                let today = midnight.saturating_add(of_day_ns);
                let date_ns = if today <= end { today } else { today.saturating_sub(DAY_NS) };
                self.clock.monotonic_ns(date_ns).ok_or(MomentError::NoDate)
            }
        }
    }

    /// The window between two moments; a missing moment is the recording's own beginning or end.
    pub fn window(&self, from: Option<Moment>, to: Option<Moment>) -> Result<Window, MomentError> {
        let whole = self.whole;
        let from_ns = from.map_or(Ok(whole.from_ns), |from| self.at(from))?;
        let to_ns = to.map_or(Ok(whole.to_ns), |to| self.at(to))?;
        if from_ns < to_ns && whole.from_ns < to_ns && from_ns < whole.to_ns {
            return Ok(Window::new(from_ns, to_ns));
        }
        let is_dated = |moment| matches!(moment, Some(Moment::Date(_) | Moment::TimeOfDay(_)));
        let extent = match is_dated(from) || is_dated(to) {
            true => format!("{} to {}", self.date(whole.from_ns), self.date(whole.to_ns)),
            false => format!("0 s to {}", duration(whole.length_ns())),
        };
        let from = from.map_or("the beginning".into(), |from| self.words(from, from_ns));
        let to = to.map_or("the end".into(), |to| self.words(to, to_ns));
        Err(match to_ns <= from_ns && whole.from_ns <= to_ns && from_ns <= whole.to_ns {
            true => MomentError::Empty { from, to, extent },
            false => MomentError::Outside { from, to, extent },
        })
    }

    /// A moment as its user means it.
    fn words(&self, moment: Moment, at_ns: u64) -> String {
        match moment {
            Moment::Since(since_ns) => duration(since_ns),
            Moment::BeforeEnd(before_ns) => format!("{} before the end", duration(before_ns)),
            Moment::Date(unix_ns) => date(unix_ns),
            Moment::TimeOfDay(_) => self.date(at_ns),
        }
    }

    fn date(&self, at_ns: u64) -> String {
        self.clock.unix_ns(at_ns).map_or_else(String::new, date)
    }
}

fn date(unix_ns: u64) -> String {
    let time = Timestamp::from_nanosecond(unix_ns.into());
    time.map_or_else(|_| String::new(), |time| format!("{time:.0}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn span(dates: bool) -> Extent {
        // It ends a minute after a midnight.
        let end_unix = 20_000 * DAY_NS + 60 * SECOND;
        let told = dates.then_some((200 * SECOND, end_unix));
        Extent { whole: Window::new(100 * SECOND, 200 * SECOND), clock: WallClock::new(told) }
    }

    fn at(text: &str) -> Result<u64, MomentError> {
        span(true).at(text.parse()?).map(|ns| ns / SECOND)
    }

    #[test]
    fn every_way_to_say_a_moment_finds_it() {
        assert_eq!(at("12s"), Ok(112));
        assert_eq!(at("1m 30s"), Ok(190));
        assert_eq!(at("-30s"), Ok(170));
        assert_eq!(at("-0s"), Ok(200), "the end");
        assert_eq!(at("00:01"), Ok(200));
        assert_eq!(at("00:00:40"), Ok(180));
        assert_eq!(at("23:59:50"), Ok(130), "the evening before");
        assert_eq!(at("2024-10-04T00:00:10Z"), Ok(150));
        assert_eq!(at("2024-10-04 00:00:10"), Ok(150));
        assert_eq!(at("2024-10-04T02:00:10+02:00"), Ok(150));
    }

    #[test]
    fn what_is_no_moment_is_refused() {
        for text in
            ["", "12", "soon", "25:00:00", "-00:00:10", "--30s", "-", "1969-01-01T00:00:00Z"]
        {
            assert!(matches!(at(text), Err(MomentError::Words(_))), "{text}");
        }
        let moment = "00:00:40".parse().unwrap();
        assert_eq!(span(false).at(moment), Err(MomentError::NoDate));
        let (late, early) = ("20s".parse().unwrap(), "10s".parse().unwrap());
        let empty = span(true).window(Some(late), Some(early));
        assert!(matches!(empty, Err(MomentError::Empty { .. })));
        for (from, to, told) in [
            (
                Some("110s"),
                None,
                "from 1 min 50 s to the end is outside of what is recorded, 0 s to 1 min 40 s",
            ),
            (None, Some("-110s"), "from the beginning to 1 min 50 s before the end is outside"),
            (Some("-0s"), None, "from 0 ns before the end to the end is empty"),
            (
                Some("2024-10-05"),
                Some("2024-10-06"),
                "from 2024-10-05T00:00:00Z to 2024-10-06T00:00:00Z is outside of what is recorded, \
                 2024-10-03T23:59:20Z to 2024-10-04T00:01:00Z",
            ),
        ] {
            let [from, to] = [from, to].map(|text| text.map(|text| text.parse().unwrap()));
            let error = span(true).window(from, to).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
        let open = span(true).window(Some(late), None).unwrap();
        assert_eq!(open.length_ns(), 80 * SECOND);
    }
}
