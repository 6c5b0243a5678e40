//! Values on the command line: rates, times and names.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use unikprof_proto::message::{
    MAX_INTERVAL_BYTES, MAX_NAME, MAX_PERIOD_NS, MIN_INTERVAL_BYTES, MIN_PERIOD_NS,
};

use super::output_format::OutputFormat;
use unikprof_profile::units;
use unikprof_report::report::Format;

/// A report's format, by its name.
pub(super) fn format() -> impl TypedValueParser<Value = Format> {
    let names = PossibleValuesParser::new(Format::all().map(Format::name));
    names.try_map(|name| name.parse::<Format>())
}

/// An output's format, by its name.
pub(super) fn output_format() -> impl TypedValueParser<Value = OutputFormat> {
    let names = Format::all().map(Format::name);
    let names = PossibleValuesParser::new(names.chain(["unikprof"]));
    names.try_map(|name| name.parse::<OutputFormat>())
}

/// A rate as the period it means, in ns.
pub fn rate(text: &str) -> Result<u64, String> {
    let [slowest, fastest] = [MAX_PERIOD_NS, MIN_PERIOD_NS].map(|ns| 1e9 / ns as f64);
    match text.parse::<f64>() {
        Ok(hertz) if (slowest..=fastest).contains(&hertz) => Ok((1e9 / hertz).round() as u64),
        _ => Err(format!(
            "expected a rate from {slowest} to {fastest} samples per second, for example `-F 997`"
        )),
    }
}

/// A step of a report's time, in ns.
pub(super) fn step(text: &str) -> Result<u64, String> {
    match nanoseconds(text)? {
        ns if ns >= 1_000 => Ok(ns),
        _ => Err("a step must be at least 1us".into()),
    }
}

/// A sampling interval as the period it is, in ns.
pub(super) fn interval(text: &str) -> Result<u64, String> {
    match nanoseconds(text)? {
        ns if (MIN_PERIOD_NS..=MAX_PERIOD_NS).contains(&ns) => Ok(ns),
        _ => {
            let (least, most) = (MIN_PERIOD_NS / 1_000, MAX_PERIOD_NS / 1_000_000_000);
            Err(format!("expected an interval from {least}us to {most}s, such as `1ms`"))
        }
    }
}

/// A length of time, in ns.
pub fn nanoseconds(text: &str) -> Result<u64, String> {
    duration(text).and_then(|duration| {
        u64::try_from(duration.as_nanos()).map_err(|_| "expected at most 584 years".into())
    })
}

/// A count.
pub(super) fn count(text: &str) -> Result<usize, String> {
    let expected = "expected a whole number such as `10`";
    text.parse().map_err(|_| expected.into())
}

/// A vCPU's number.
pub(super) fn vcpu(text: &str) -> Result<u32, String> {
    let expected = "expected a vCPU's number, as in `--vcpu 0`, or several, as in `--vcpu 0,2`";
    text.parse().map_err(|_| expected.into())
}

/// A length of time.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    if text.starts_with('-') {
        return Err("expected a duration without a sign, such as `30s`".into());
    }
    match text.parse::<f64>() {
        Ok(0.0) => return Ok(Duration::ZERO),
        Ok(number) if number.is_finite() => {
            return Err(format!("a duration needs a unit, for example `{text}s` or `{text}ms`"));
        }
        _ => {}
    }
    units::parse_duration(text)
        .ok_or_else(|| "expected a duration such as `30s`, `500ms`, `1m 30s` or `8h`".into())
}

/// A size, in bytes.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit());
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let shift = match unit.trim() {
        "B" => Some(0),
        "KiB" | "K" | "k" => Some(10),
        "MiB" | "M" | "m" => Some(20),
        "GiB" | "G" | "g" => Some(30),
        "TiB" | "T" | "t" => Some(40),
        "" if number == "0" => Some(0),
        _ => None,
    };
    let bytes = shift.and_then(|shift| number.parse::<u64>().ok()?.checked_mul(1 << shift));
    bytes.ok_or_else(|| "expected a size such as `512KiB` or `4MiB`, or 0 for no limit".into())
}

/// The mean number of bytes between two allocations that are sampled.
pub(super) fn interval_bytes(text: &str) -> Result<u64, String> {
    let bytes = bytes(text).ok();
    bytes.filter(|bytes| (MIN_INTERVAL_BYTES..=MAX_INTERVAL_BYTES).contains(bytes)).ok_or_else(
        || {
            let [least, most] = [MIN_INTERVAL_BYTES, MAX_INTERVAL_BYTES].map(units::size);
            format!("expected a size with its unit, such as `64KiB`, from {least} to {most}")
        },
    )
}

/// The name of a recording.
pub(super) fn name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > MAX_NAME || text.chars().any(char::is_control) {
        return Err(format!("a name must have 1 to {MAX_NAME} bytes and no control characters"));
    }
    if text.starts_with('-') {
        return Err("a name must not begin with `-`, as options do".to_owned());
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_that_no_agent_accepts_are_refused() {
        assert_eq!(rate("997"), Ok(1_003_009));
        assert_eq!(rate("0.1"), Ok(MAX_PERIOD_NS));
        assert_eq!(rate("100000"), Ok(MIN_PERIOD_NS));
        for text in ["0", "-1", "nan", "inf", "0.09", "100001", "1e6", "fast", ""] {
            let refused = rate(text);
            let is_told = |error: &String| error.contains("from 0.1 to 100000 samples");
            assert!(refused.as_ref().is_err_and(is_told), "{text}: {refused:?}");
        }
    }

    #[test]
    fn a_time_without_its_unit_is_not_guessed() {
        assert_eq!(nanoseconds("1m 30s"), Ok(90_000_000_000));
        assert_eq!(nanoseconds("0"), Ok(0));
        assert_eq!(interval("1ms"), Ok(1_000_000));
        assert!(duration("30").is_err_and(|error| error.contains("`30s`")));
        for text in ["soon", "inf", "", "-5s", "5s ago", "1 month"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert!(nanoseconds("1000years").is_err());
        assert!(nanoseconds("600000000000s").is_err());
        assert_eq!(nanoseconds("2 days"), Ok(48 * 3_600_000_000_000));
        assert_eq!(step("1us"), Ok(1_000));
        assert!(step("0s").is_err() && step("10ns").is_err());
        for text in ["0s", "9us", "11s"] {
            let refused = interval(text);
            let is_told = |error: &String| error.contains("from 10us to 10s");
            assert!(refused.as_ref().is_err_and(is_told), "{text}: {refused:?}");
        }
    }

    #[test]
    fn a_size_without_its_unit_is_not_guessed() {
        assert_eq!(bytes("512KiB"), Ok(512 << 10));
        assert_eq!(bytes("4 MiB"), Ok(4 << 20));
        assert_eq!(bytes("2g"), Ok(2 << 30));
        assert_eq!(bytes("1TiB"), Ok(1 << 40));
        assert_eq!(bytes("0"), Ok(0));
        for text in ["512", "", "KiB", "1.5MiB", "-1B", "99999999999GiB", "5 apples"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_interval_of_bytes_has_limits_and_cannot_be_0() {
        assert_eq!(interval_bytes("64B"), Ok(64));
        assert_eq!(interval_bytes("1TiB"), Ok(1 << 40));
        for text in ["1", "0", "63B", "2TiB", "often"] {
            let refused = interval_bytes(text);
            let is_told = |error: &String| error.contains("from 64 B to 1 TiB");
            assert!(refused.as_ref().is_err_and(is_told), "{text}: {refused:?}");
        }
    }

    #[test]
    fn names_are_short_and_printable() {
        assert!(name("nightly").is_ok());
        assert!(name("").is_err() && name("a\nb").is_err());
        // Advice to `stop --name -n` would not work.
        assert!(name("-n").is_err());
        assert!(name(&"n".repeat(65)).is_err());
    }
}
