//! Numbers for people.

use std::time::Duration;

use jiff::fmt::friendly::SpanParser;
use jiff::{SpanRelativeTo, Timestamp};

use crate::profile::Unit;

/// `1234567` as `1,234,567`.
pub fn grouped(number: impl Into<i128>) -> String {
    let number: i128 = number.into();
    let digits = number.unsigned_abs().to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3 + 1);
    if number < 0 {
        out.push('-');
    }
    for (at, digit) in digits.chars().enumerate() {
        if at != 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Rounded up to two digits, for what is not known better.
pub fn two_digits(number: u64) -> u64 {
    let mut unit = 1;
    while number / unit >= 100 {
        unit *= 10;
    }
    number.div_ceil(unit).saturating_mul(unit)
}

/// Nanoseconds in the largest unit that leaves at least one digit before the point: `1.2 ms`,
/// `3.18 s`, `1 h 02 min 03 s`. A whole number of the unit has no digits behind the point.
pub fn duration(ns: u64) -> String {
    let in_unit = |unit_ns: u64, digits: usize, unit: &str| {
        let digits = if ns.is_multiple_of(unit_ns) { 0 } else { digits };
        format!("{:.digits$} {unit}", ns as f64 / unit_ns as f64)
    };
    // What would be rounded to 1000 of a unit is in the next one.
    match ns {
        0..1_000 => in_unit(1, 0, "ns"),
        1_000..999_950 => in_unit(1_000, 1, "µs"),
        999_950..999_950_000 => in_unit(1_000_000, 1, "ms"),
        999_950_000..59_995_000_000 => in_unit(1_000_000_000, 2, "s"),
        _ => {
            let seconds = ns.max(60_000_000_000) / 1_000_000_000;
            let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
            match (hours, minutes, seconds) {
                (0, _, 0) => format!("{minutes} min"),
                (0, ..) => format!("{minutes} min {seconds:02} s"),
                (_, 0, 0) => format!("{} h", grouped(hours)),
                (_, _, 0) => format!("{} h {minutes:02} min", grouped(hours)),
                _ => format!("{} h {minutes:02} min {seconds:02} s", grouped(hours)),
            }
        }
    }
}

/// As [`duration`], of the standard library's type.
pub fn std_duration(duration_of: Duration) -> String {
    duration(u64::try_from(duration_of.as_nanos()).unwrap_or(u64::MAX))
}

/// Reads a length of time as people write it: `30s`, `1m 30s`, `2 days`. A day has 24 hours.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let parser = SpanParser::new();
    let with_days = || {
        let span = parser.parse_span(text).ok()?;
        let length = span.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
        Duration::try_from(length).ok()
    };
    parser.parse_unsigned_duration(text).ok().or_else(with_days)
}

/// Bytes in the largest unit that leaves a digit before the point: `17 B`, `1.5 KiB`, `4 MiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    // What would be rounded to 1024.0 of a unit is in the next one.
    let rounded = bytes.saturating_add(bytes / 20_479);
    let Some(power) = (rounded.max(1).ilog2() / 10).checked_sub(1) else {
        return format!("{bytes} B");
    };
    let shift = 10 * (power + 1);
    let unit = UNITS[power as usize];
    if bytes.is_multiple_of(1 << shift) {
        format!("{} {unit}", bytes >> shift)
    } else {
        format!("{:.1} {unit}", bytes as f64 / (1_u64 << shift) as f64)
    }
}

/// A count of stacks in its unit: `1,234`, or `1.2 ms`.
pub fn amount(count: u64, unit: Unit) -> String {
    match unit {
        Unit::Samples | Unit::Objects => grouped(count),
        Unit::Nanoseconds => duration(count),
        Unit::Bytes => size(count),
    }
}

/// As [`amount`], with the word for what it is: `1,234 samples`, or `1.2 ms`.
pub fn amount_with_unit(count: u64, unit: Unit) -> String {
    match unit {
        Unit::Samples if count == 1 => "1 sample".into(),
        Unit::Samples => format!("{} samples", grouped(count)),
        Unit::Nanoseconds => duration(count),
        Unit::Bytes => size(count),
        Unit::Objects if count == 1 => "1 object".into(),
        Unit::Objects => format!("{} objects", grouped(count)),
    }
}

/// The sum of floats; of none 0, where `Iterator::sum` has −0, which is shown as such and divides to
/// −∞.
pub fn sum(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(0.0, |sum, value| sum + value)
}

/// A share between 0 and 1 as a percentage with one digit.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// `part` of `whole` as a percentage; a part that is there never shows as nothing.
pub fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    let share = part as f64 / whole as f64;
    if part != 0 && share < 0.000_5 { "<0.1 %".to_owned() } else { percent(share) }
}

/// Nanoseconds since 1970 as a date in UTC, or `None` where no calendar reaches.
pub fn date(unix_ns: u64) -> Option<String> {
    let timestamp = Timestamp::from_nanosecond(i128::from(unix_ns)).ok()?;
    Some(timestamp.strftime("%Y-%m-%d %H:%M:%S UTC").to_string())
}

/// The rate of a period, with as many digits as one would say.
pub fn rate_text(period_ns: u64) -> String {
    if period_ns == 0 {
        return "unknown".into();
    }
    let rate = 1e9 / period_ns as f64;
    if rate >= 100.0 {
        format!("{rate:.0}")
    } else {
        // Three significant digits, without the zeros that say nothing.
        let shown = format!("{rate:.3}");
        shown.trim_end_matches('0').trim_end_matches('.').into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_digits_are_rounded_up() {
        assert_eq!([0, 99, 100, 101, 10_239].map(two_digits), [0, 99, 100, 110, 11_000]);
        assert_eq!(two_digits(u64::MAX), u64::MAX, "it stops at the largest");
    }

    #[test]
    fn numbers_are_grouped_from_the_right() {
        let shown: Vec<String> = [0_i64, 999, 1_000, -1_234_567, i64::MIN].map(grouped).into();
        assert_eq!(shown, ["0", "999", "1,000", "-1,234,567", "-9,223,372,036,854,775,808"]);
        assert_eq!(grouped(u64::MAX), "18,446,744,073,709,551,615");
    }

    #[test]
    fn durations_choose_their_unit() {
        let shown: Vec<String> =
            [0, 999, 1_500, 2_000_000, 30_000_000_000, 3_723_000_000_000].map(duration).into();
        assert_eq!(shown, ["0 ns", "999 ns", "1.5 µs", "2 ms", "30 s", "1 h 02 min 03 s"]);
        let seconds = |seconds| std_duration(Duration::from_secs(seconds));
        assert_eq!(seconds(61), "1 min 01 s");
        assert_eq!(seconds(5 * 60), "5 min");
        assert_eq!((seconds(8 * 3600), seconds(3601)), ("8 h".into(), "1 h 00 min 01 s".into()));
        assert_eq!(duration(3_181_000_000), "3.18 s");
        assert_eq!(seconds(u64::MAX), "5,124,095 h 34 min 33 s");
    }

    #[test]
    fn what_is_rounded_to_the_next_unit_is_in_it() {
        for (ns, text) in [
            (999_949, "999.9 µs"),
            (999_951, "1.0 ms"),
            (999_960_000, "1.00 s"),
            (59_994_000_000, "59.99 s"),
            (59_996_000_000, "1 min"),
        ] {
            assert_eq!(duration(ns), text, "{ns}");
        }
        for (bytes, text) in [
            (1023, "1023 B"),
            ((1 << 20) - 60, "1023.9 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            ((1 << 30) - 1, "1.0 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(size(bytes), text, "{bytes}");
        }
    }

    #[test]
    fn a_small_part_does_not_vanish() {
        assert_eq!(share(1, 1_000_000), "<0.1 %");
        assert_eq!(share(0, 10), "0.0 %");
        assert_eq!(share(1, 0), "-");
    }

    #[test]
    fn dates_are_in_utc() {
        assert_eq!(date(1_700_000_000_000_000_000).as_deref(), Some("2023-11-14 22:13:20 UTC"));
        assert!(date(u64::MAX).is_some_and(|text| text.starts_with("2554-")));
    }

    #[test]
    fn rates_are_said_as_people_do() {
        assert_eq!(rate_text(1_003_009), "997");
        assert_eq!(rate_text(10_000_000_000), "0.1");
        assert_eq!(rate_text(1_000_000_000), "1");
        assert_eq!(rate_text(0), "unknown");
    }
}
