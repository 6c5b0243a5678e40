//! What happened when, as the client's program tells it.

use jiff::Timestamp;
use serde_json::Value;
use unikprof_client::timeline::WallClock;

use super::{Client, Guest};

/// All events that the guest's rings hold.
pub(crate) fn events(client: &Client) -> Vec<Value> {
    lines(
        &client
            .connect(&["events", "--json"])
            .expect_success()
            .stdout,
    )
}

/// A JSON object on each line.
pub(crate) fn lines(text: &str) -> Vec<Value> {
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// The report for programs.
pub(crate) fn report(client: &Client, name: &str, more: &[&str]) -> Value {
    client
        .report(name, &[&["--format", "json"], more].concat())
        .expect_json()
}

/// The ticks and waits that `script` prints, a line each.
pub(crate) fn script(client: &Client, name: &str, more: &[&str]) -> Vec<Value> {
    let image = Guest::program().display().to_string();
    let words = ["script", name, "--json", "--image", &image];
    lines(&client.run(&[&words, more].concat()).expect_success().stdout)
}

/// The share of a function's own samples.
pub(crate) fn share(report: &Value, function: &str) -> f64 {
    let functions = report["functions"].as_array().unwrap();
    let found = functions
        .iter()
        .filter(|f| f["name"].as_str().unwrap().ends_with(function));
    found.map(|f| f["self_share"].as_f64().unwrap()).sum()
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
        client.connect(&words).expect_success().stdout
    }

    pub(crate) fn length_ns(&self) -> u64 {
        self.to_ns - self.from_ns
    }
}
