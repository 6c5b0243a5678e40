//! Events and shares of time, as the client's program tells them.

use jiff::Timestamp;
use serde_json::Value;
use unikprof_profile::timeline::WallClock;
use unikprof_tests::source::lines_of;

use super::Client;

/// All events that the guest's rings hold.
pub(crate) fn events(client: &Client) -> Vec<Value> {
    lines(&client.must(&["events", "--json"]).stdout)
}

/// A JSON object on each line.
pub(crate) fn lines(text: &str) -> Vec<Value> {
    let lines = text.lines();
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The report for programs.
pub(crate) fn report(client: &Client, name: &str, more: &[&str]) -> Value {
    let words = [&["--format", "json"], more].concat();
    client.report(name, &words).expect_json()
}

/// The ticks and waits that `script` prints, a line each.
pub(crate) fn script(client: &Client, name: &str, more: &[&str]) -> Vec<Value> {
    let image = client.image().to_str().unwrap();
    let words = ["script", name, "--json", "--image", image];
    lines(&client.run(&[&words, more].concat()).expect_success().stdout)
}

/// A report's rows of the functions whose path ends with `name`.
pub(crate) fn rows<'r>(report: &'r Value, name: &'r str) -> impl Iterator<Item = &'r Value> {
    let functions = report["functions"].as_array().unwrap().iter();
    functions.filter(move |row| row["name"].as_str().unwrap().ends_with(name))
}

/// The sum of one of their numbers, such as `self`.
pub(crate) fn sum(report: &Value, name: &str, key: &str) -> u64 {
    let found = rows(report, name).map(|row| row[key].as_u64().unwrap());
    found.sum()
}

/// The share of a function's own samples.
pub(crate) fn share(report: &Value, name: &str) -> f64 {
    let found = rows(report, name).map(|row| row["self_share"].as_f64().unwrap());
    found.sum()
}

/// Asserts that a row has a line of the function `name` of this source.
pub(crate) fn expect_line_of(row: &Value, name: &str, file: &str, source: &str) {
    assert!(row["file"].as_str().unwrap().ends_with(file), "{row:#}");
    let line = usize::try_from(row["line"].as_u64().unwrap()).unwrap();
    let lines = lines_of(name, source).unwrap();
    assert!(lines.contains(&line), "{name} has {lines:?}: {row:#}");
}

/// Asserts that a report (`--json`) accounts for every tick; answers how many were recorded.
pub(crate) fn counters_add_up(report: &Value) -> u64 {
    let vcpus = report["vcpus"].as_array().unwrap().iter();
    for counters in vcpus.map(|vcpu| &vcpu["counters"]).chain([&report["counters"]]) {
        let count = |name: &str| counters[name].as_u64().unwrap();
        let parts = ["recorded", "overflow", "lost", "masked", "idle"];
        let sum: u64 = parts.iter().map(|part| count(part)).sum();
        assert_eq!(count("ticks"), sum, "{counters:#}");
    }
    let recorded = report["counters"]["recorded"].as_u64().unwrap();
    // Beside its ticks a recording of mode `wall` has samples of blocked time.
    let blocked = if report["recording"]["mode"] == "wall" {
        report["counters"]["blocked"].as_u64().unwrap()
    } else {
        0
    };
    let samples = recorded + blocked;
    assert_eq!(report["samples"]["recorded"], samples);
    let functions = report["functions"].as_array().unwrap();
    let own: u64 = functions.iter().map(|f| f["self"].as_u64().unwrap()).sum();
    assert_eq!(own, samples, "every sample has one leaf");
    recorded
}

/// A span of the guest's, on its clock: from its beginning to its end.
pub(crate) struct Span {
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
    clock: WallClock,
}

impl Span {
    /// The first of this name that began after a recording had, and has ended.
    pub(crate) fn since_recording(events: &[Value], name: &str) -> Option<Span> {
        let is = |event: &Value, kind: &str| event["kind"] == kind;
        let began = events.iter().position(|e| is(e, "recording_began"))?;
        let named = |e: &&Value, kind: &str| is(e, kind) && e["name"] == name;
        let first = events[began..].iter().find(|e| named(e, "span_begin"))?;
        let mut ends = events.iter().filter(|e| named(e, "span_end"));
        let end = ends.find(|e| e["number"] == first["number"])?;
        let from_ns = first["at_ns"].as_u64()?;
        let to_ns = end["at_ns"].as_u64()?;
        assert_eq!(end["length_ns"], to_ns - from_ns);
        Some(Span {
            from_ns,
            to_ns,
            clock: WallClock::new([(from_ns, first["unix_ns"].as_u64()?)]),
        })
    }

    /// A moment so many ns after the beginning, as a date.
    pub(crate) fn date(&self, after_ns: u64) -> String {
        let unix_ns = self.clock.unix_ns(self.from_ns + after_ns).unwrap();
        let date = Timestamp::from_nanosecond(unix_ns.into()).unwrap();
        date.to_string()
    }

    /// Dumps the window from its beginning to its end into a file; answers what the program said.
    pub(crate) fn dump(&self, client: &Client, name: &str) -> String {
        let (from, to) = (self.date(0), self.date(self.length_ns()));
        let words = ["dump", "--from", &from, "--to", &to, "-o", name];
        client.must(&words).stdout
    }

    pub(crate) fn length_ns(&self) -> u64 {
        self.to_ns - self.from_ns
    }
}
