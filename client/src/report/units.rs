//! Numbers for people.

use jiff::Timestamp;

use crate::profile::Unit;

/// `1234567` as `1,234,567`.
pub(crate) fn grouped(number: impl Into<i128>) -> String {
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

/// Nanoseconds in the largest unit that leaves at least one digit before the point.
pub(crate) fn duration(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        1_000_000_000..60_000_000_000 => format!("{:.2} s", ns as f64 / 1e9),
        _ => {
            let seconds = ns / 1_000_000_000;
            let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
            match hours {
                0 => format!("{minutes} min {seconds:02} s"),
                _ => format!("{} h {minutes:02} min {seconds:02} s", grouped(hours)),
            }
        }
    }
}

/// A count of stacks in its unit: `1,234`, or `1.2 ms`.
pub(crate) fn amount(count: u64, unit: Unit) -> String {
    match unit {
        Unit::Samples => grouped(count),
        Unit::Nanoseconds => duration(count),
    }
}

/// As [`amount`], with the word for what it is: `1,234 samples`, or `1.2 ms`.
pub(crate) fn amount_with_unit(count: u64, unit: Unit) -> String {
    match unit {
        Unit::Samples if count == 1 => "1 sample".into(),
        Unit::Samples => format!("{} samples", grouped(count)),
        Unit::Nanoseconds => duration(count),
    }
}

/// A share between 0 and 1 as a percentage with one digit.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// `part` of `whole` as a percentage; a part that is there never shows as nothing.
pub(crate) fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    let share = part as f64 / whole as f64;
    if part != 0 && share < 0.000_5 {
        "<0.1 %".to_owned()
    } else {
        percent(share)
    }
}

/// Nanoseconds since 1970 as a date in UTC, or `None` where no calendar reaches.
pub(crate) fn date(unix_ns: u64) -> Option<String> {
    let timestamp = Timestamp::from_nanosecond(i128::from(unix_ns)).ok()?;
    Some(timestamp.strftime("%Y-%m-%d %H:%M:%S UTC").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_from_the_right() {
        let shown: Vec<String> = [0_i64, 999, 1_000, -1_234_567, i64::MIN]
            .map(grouped)
            .into();
        assert_eq!(
            shown,
            [
                "0",
                "999",
                "1,000",
                "-1,234,567",
                "-9,223,372,036,854,775,808"
            ]
        );
        assert_eq!(grouped(u64::MAX), "18,446,744,073,709,551,615");
    }

    #[test]
    fn durations_choose_their_unit() {
        let shown: Vec<String> = [0, 999, 1_500, 2_000_000, 30_000_000_000, 3_723_000_000_000]
            .map(duration)
            .into();
        assert_eq!(
            shown,
            [
                "0 ns",
                "999 ns",
                "1.5 µs",
                "2.0 ms",
                "30.00 s",
                "1 h 02 min 03 s"
            ]
        );
        assert_eq!(duration(61_000_000_000), "1 min 01 s");
    }

    #[test]
    fn a_small_part_does_not_vanish() {
        assert_eq!(share(1, 1_000_000), "<0.1 %");
        assert_eq!(share(0, 10), "0.0 %");
        assert_eq!(share(1, 0), "-");
    }

    #[test]
    fn dates_are_in_utc() {
        assert_eq!(
            date(1_700_000_000_000_000_000).as_deref(),
            Some("2023-11-14 22:13:20 UTC")
        );
        assert!(date(u64::MAX).is_some_and(|text| text.starts_with("2554-")));
    }
}
