//! What is known of the fleet, as [OpenMetrics] text.
//!
//! Written here and not by a library: `prometheus-client` does not escape labels' values, and names
//! come from guests.
//!
//! [OpenMetrics]: https://prometheus.io/docs/specs/om/open_metrics_spec/

use std::fmt::{self, Display, Write as _};
use std::time::UNIX_EPOCH;

use unikprof_link::record::RecordingStatus;
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::Counters;

use super::member::{Answer, Known, Member};
use super::take;

/// The type of the answer.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics of these guests.
pub(super) fn text<'m>(members: impl Iterator<Item = &'m Member>) -> String {
    let mut families = Vec::new();
    for member in members {
        let guest = &member.guest;
        let own = guest.labels.iter().map(|(key, value)| (&**key, &**value));
        let mut samples = Samples {
            families: &mut families,
            count: 0,
            name: String::new(),
            labels: [("guest", &*guest.name)].into_iter().chain(own).collect(),
        };
        // Each guest is looked at once.
        of_guest(&member.known(), &mut samples);
    }
    families.concat() + "# EOF\n"
}

/// All families of a guest. Every name begins with `unikprof_`.
fn of_guest(known: &Known, out: &mut Samples<'_>) {
    out.gauge("up", "Whether the guest's agent answered when it was asked last.");
    out.maybe(known.up().map(u8::from));
    out.counter("failed_contacts", "How often the agent was asked and did not answer.");
    out.one(known.failures);
    out.gauge("last_contact_timestamp_seconds", "When the agent answered last.");
    let at = known.answered.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    out.maybe(at.map(|at| at.as_secs_f64()));
    let last = known.last.as_deref();
    out.gauge("vcpus", "The guest's vCPUs.");
    out.maybe(last.map(|last| last.agent.vcpus));
    out.gauge("recordings", "Recordings in the agent, by state.");
    for state in ["delayed", "recording", "finished"] {
        let of_state = |one: &&RecordingStatus| one.state_name() == state;
        let count = |last: &Answer| last.status.recordings.iter().filter(of_state).count();
        out.maybe_with(&[("state", state)], last.map(count));
    }
    out.counter("ticks", "Ticks of each recording that the agent has, by what became of them.");
    each_recording(known, |one| {
        let recording = ("recording", one.name.as_str());
        out.ticks(&[recording], &Counters::from(&one.counters));
    });
    out.gauge(
        "ticks_missing",
        "Running time by the period less the ticks, of each recording of \
                                running time since it was seen first: some at most if all is well.",
    );
    let running_ns = last.and_then(|last| last.times.running_ns);
    each_recording(known, |one| {
        let missing = known.firsts.missing(one, running_ns);
        out.maybe_with(&[("recording", &one.name)], missing);
    });
    out.gauge("stack_nodes", "Stack nodes in use.");
    out.maybe(last.map(|last| last.status.agent.nodes_used));
    out.gauge("stack_nodes_capacity", "Stack nodes that there is room for.");
    out.maybe(last.map(|last| last.status.agent.nodes_capacity));
    out.gauge("ring_records", "Records in the rings.");
    out.maybe(rings(known, |ring| ring.held));
    out.gauge("ring_records_capacity", "Records that the rings have room for.");
    out.maybe(rings(known, |ring| ring.capacity));
    out.counter("ring_records_evicted", "Records that made room for newer ones.");
    out.maybe(rings(known, |ring| ring.evicted));
    out.gauge("sessions", "Open sessions of the agent, this program's included.");
    out.maybe(last.map(|last| last.status.agent.sessions));
    out.counter(
        "rejections",
        "Connections that the agent refused or closed, and requests it did not allow.",
    );
    if let Some(Answer { status, .. }) = last {
        let peers = &status.agent.peers;
        for (reason, count) in [
            ("bad_key", peers.bad_key),
            ("bad_record", peers.bad_record),
            ("malformed", peers.malformed),
            ("timed_out", peers.timed_out),
            ("turned_away", peers.turned_away),
            ("displaced", peers.displaced),
            ("not_allowed", peers.not_allowed),
        ] {
            out.with(&[("reason", reason)], count);
        }
    }
    out.counter(
        "vcpu_seconds",
        "How the guest's vCPUs have spent their time, as far as its platform tells.",
    );
    let times = last.map(|last| last.times).unwrap_or_default();
    for (state, ns) in [
        ("running", times.running_ns),
        ("stolen", times.runnable_ns),
        ("blocked", times.blocked_ns),
        ("offline", times.offline_ns),
    ] {
        out.maybe_with(&[("state", state)], ns.map(seconds));
    }
    out.counter("network_seconds", "Time of the agent's own network work.");
    out.maybe(last.map(|last| seconds(last.status.agent.server_ns)));
    out.gauge("guest_counter", "The guest's own counters: the value that each got last.");
    for (name, value) in last.iter().flat_map(|_| &known.counters) {
        out.with(&[("counter", name)], value);
    }
    out.counter("profiles", "Profiles that were asked of this program.");
    out.with(&[("outcome", "taken")], known.profiles.taken);
    out.with(&[("outcome", "failed")], known.profiles.failed);
    out.counter(
        "profile_ticks",
        "Ticks of all profiles, those that were given up included, by what became of them.",
    );
    out.ticks(&[], &known.profiles.counters);
    out.gauge(
        "profile_ticks_missing",
        "Running time by the period less the ticks, in the last profile: near zero if all is well.",
    );
    out.maybe(known.profiles.missing);
    out.counter("profile_cost_seconds", "What sampling cost for all profiles.");
    out.one(seconds(known.profiles.cost_ns));
}

fn each_recording(known: &Known, tell: impl FnMut(&RecordingStatus)) {
    // Those of profiles have another name each time, and metrics of their own.
    let recordings = known.last.iter().flat_map(|last| &last.status.recordings);
    recordings.filter(|one| !take::is_own(one)).for_each(tell);
}

fn rings(known: &Known, of: fn(&unikprof_link::record::RingFill) -> u64) -> Option<u64> {
    let rings = &known.last.as_ref()?.rings;
    let sum = |sum: u64, ring| sum.saturating_add(of(ring));
    (!rings.is_empty()).then(|| rings.iter().fold(0, sum))
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// The values of a guest, family by family in the same order for each guest: a family's are in one
/// piece.
struct Samples<'a> {
    families: &'a mut Vec<String>,
    /// How many of them this guest has.
    count: usize,
    /// The present one's, as samples have it.
    name: String,
    labels: Vec<(&'a str, &'a str)>,
}

impl Samples<'_> {
    fn gauge(&mut self, name: &str, help: &str) {
        self.family(name, "gauge", "", help);
    }

    fn counter(&mut self, name: &str, help: &str) {
        self.family(name, "counter", "_total", help);
    }

    fn family(&mut self, name: &str, kind: &str, suffix: &str, help: &str) {
        if self.count == self.families.len() {
            let head = format!("# TYPE unikprof_{name} {kind}\n# HELP unikprof_{name} {help}\n");
            self.families.push(head);
        }
        self.count += 1;
        self.name = format!("unikprof_{name}{suffix}");
    }

    fn one(&mut self, value: impl Display) {
        self.with(&[], value);
    }

    fn maybe(&mut self, value: Option<impl Display>) {
        self.maybe_with(&[], value);
    }

    fn maybe_with(&mut self, more: &[(&str, &str)], value: Option<impl Display>) {
        if let Some(value) = value {
            self.with(more, value);
        }
    }

    /// What became of ticks.
    fn ticks(&mut self, more: &[(&str, &str)], counters: &Counters) {
        for (outcome, count) in counters.outcomes() {
            let labels: Vec<_> = more.iter().copied().chain([("outcome", outcome)]).collect();
            self.with(&labels, count);
        }
    }

    /// A value with further labels, which come before those that the configuration gives the guest.
    fn with(&mut self, more: &[(&str, &str)], value: impl Display) {
        let Some(out) = self.families.get_mut(self.count.saturating_sub(1)) else {
            return;
        };
        // Writing to a string does not fail.
        let _ = write!(out, "{}{{", self.name);
        let is_free = |(key, _): &&(&str, &str)| more.iter().all(|(taken, _)| taken != key);
        let labels = more.iter().chain(self.labels.iter().filter(is_free));
        for (at, (key, value)) in labels.enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let _ = write!(out, "{comma}{key}=\"{}\"", Escaped(value));
        }
        let _ = writeln!(out, "}} {value}");
    }
}

/// A label's value.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in Printable(self.0).to_string().chars() {
            match character {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::Guest;
    use super::*;

    #[test]
    fn hostile_names_stay_in_their_quotes() {
        let labels = [("app".into(), "a\"} 1\nb\\".into())];
        let member = Member::new(Guest { labels: labels.into(), ..Guest::named("web") });
        member.known().failure = Some("down".into());
        let text = text(std::iter::once(&member));
        let line = "unikprof_up{guest=\"web\",app=\"a\\\"} 1\\\\u{a}b\\\\\"} 0\n";
        assert!(text.contains(line), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
