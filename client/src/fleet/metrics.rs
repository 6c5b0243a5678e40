//! What is known of the fleet, as [OpenMetrics] text.
//!
//! Written here and not by a library: `prometheus-client` does not escape labels' values, and names come from guests.
//!
//! [OpenMetrics]: https://prometheus.io/docs/specs/om/open_metrics_spec/

use std::fmt::{self, Display, Write as _};
use std::time::UNIX_EPOCH;

use super::member::{Answer, Known, Member};
use super::take;
use crate::printable::Printable;
use crate::profile::Counters;
use crate::record::RecordingStatus;

/// The type of the answer.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics of these guests.
pub(super) fn text<'m>(members: impl Iterator<Item = &'m Member>) -> String {
    // A family is in one piece, and each guest is looked at once.
    let mut texts: Vec<String> = FAMILIES.iter().map(Family::head).collect();
    for member in members {
        let guest = &member.guest;
        let own = guest.labels.iter().map(|(key, value)| (&**key, &**value));
        let labels: Vec<_> = [("guest", &*guest.name)].into_iter().chain(own).collect();
        let known = member.known();
        for (family, out) in FAMILIES.iter().zip(&mut texts) {
            let labels = &labels;
            (family.samples)(
                &known,
                &mut Samples {
                    out,
                    family,
                    labels,
                },
            );
        }
    }
    texts.concat() + "# EOF\n"
}

/// Metrics of one name.
struct Family {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    samples: fn(&Known, &mut Samples<'_>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gauge,
    Counter,
}

impl Family {
    const fn new(
        kind: Kind,
        name: &'static str,
        help: &'static str,
        samples: fn(&Known, &mut Samples<'_>),
    ) -> Family {
        Family {
            name,
            kind,
            help,
            samples,
        }
    }

    fn head(&self) -> String {
        let kind = match self.kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
        };
        let Family { name, help, .. } = self;
        format!("# TYPE unikprof_{name} {kind}\n# HELP unikprof_{name} {help}\n")
    }
}

/// Every name begins with `unikprof_`.
const FAMILIES: &[Family] = &[
    Family::new(
        Kind::Gauge,
        "up",
        "Whether the guest's agent answered when it was asked last.",
        |known, out| {
            out.maybe(known.up().map(u8::from));
        },
    ),
    Family::new(
        Kind::Counter,
        "failed_contacts",
        "How often the agent was asked and did not answer.",
        |known, out| {
            out.one(known.failures);
        },
    ),
    Family::new(
        Kind::Gauge,
        "last_contact_timestamp_seconds",
        "When the agent answered last.",
        |known, out| {
            let at = known
                .answered
                .and_then(|at| at.duration_since(UNIX_EPOCH).ok());
            out.maybe(at.map(|at| at.as_secs_f64()));
        },
    ),
    Family::new(Kind::Gauge, "vcpus", "The guest's vCPUs.", |known, out| {
        out.of_last(known, |last| last.agent.vcpus);
    }),
    Family::new(
        Kind::Gauge,
        "recordings",
        "Recordings in the agent, by state.",
        |known, out| {
            let Some(last) = &known.last else { return };
            for state in ["delayed", "recording", "finished"] {
                let of_state = |one: &&RecordingStatus| one.state_name() == state;
                let count = last.status.recordings.iter().filter(of_state).count();
                out.with(&[("state", state)], count);
            }
        },
    ),
    Family::new(
        Kind::Counter,
        "ticks",
        "Ticks of each recording that the agent has, by what became of them.",
        |known, out| {
            each_recording(known, |one| {
                let recording = ("recording", one.name.as_str());
                out.ticks(&[recording], &Counters::from(&one.counters));
            });
        },
    ),
    Family::new(
        Kind::Gauge,
        "ticks_missing",
        "Running time by the period less the ticks, of each recording of running time since it was seen first: some at most if all is well.",
        |known, out| {
            let running_ns = known.last.as_ref().and_then(|last| last.times.running_ns);
            each_recording(known, |one| {
                if let Some(missing) = known.firsts.missing(one, running_ns) {
                    out.with(&[("recording", &one.name)], missing);
                }
            });
        },
    ),
    Family::new(
        Kind::Gauge,
        "stack_nodes",
        "Stack nodes in use.",
        |known, out| {
            out.of_last(known, |last| last.status.agent.nodes_used);
        },
    ),
    Family::new(
        Kind::Gauge,
        "stack_nodes_capacity",
        "Stack nodes that there is room for.",
        |known, out| {
            out.of_last(known, |last| last.status.agent.nodes_capacity);
        },
    ),
    Family::new(
        Kind::Gauge,
        "ring_records",
        "Records in the rings.",
        |known, out| {
            out.maybe(rings(known, |ring| ring.held));
        },
    ),
    Family::new(
        Kind::Gauge,
        "ring_records_capacity",
        "Records that the rings have room for.",
        |known, out| {
            out.maybe(rings(known, |ring| ring.capacity));
        },
    ),
    Family::new(
        Kind::Counter,
        "ring_records_evicted",
        "Records that made room for newer ones.",
        |known, out| {
            out.maybe(rings(known, |ring| ring.evicted));
        },
    ),
    Family::new(
        Kind::Gauge,
        "sessions",
        "Open sessions of the agent, this program's included.",
        |known, out| {
            out.of_last(known, |last| last.status.agent.sessions);
        },
    ),
    Family::new(
        Kind::Counter,
        "rejections",
        "Connections that the agent refused or closed, and requests it did not allow.",
        |known, out| {
            let Some(last) = &known.last else { return };
            let peers = &last.status.agent.peers;
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
        },
    ),
    Family::new(
        Kind::Counter,
        "vcpu_seconds",
        "How the guest's vCPUs have spent their time, as far as its platform tells.",
        |known, out| {
            let Some(last) = &known.last else { return };
            let times = &last.times;
            for (state, ns) in [
                ("running", times.running_ns),
                ("stolen", times.runnable_ns),
                ("blocked", times.blocked_ns),
                ("offline", times.offline_ns),
            ] {
                if let Some(ns) = ns {
                    out.with(&[("state", state)], seconds(ns));
                }
            }
        },
    ),
    Family::new(
        Kind::Counter,
        "network_seconds",
        "Time of the agent's own network work.",
        |known, out| {
            out.of_last(known, |last| seconds(last.status.agent.server_ns));
        },
    ),
    Family::new(
        Kind::Gauge,
        "guest_counter",
        "The guest's own counters: the value that each got last.",
        |known, out| {
            let counters = known.last.iter().flat_map(|_| &known.counters);
            for (name, value) in counters {
                out.with(&[("counter", name)], value);
            }
        },
    ),
    Family::new(
        Kind::Counter,
        "profiles",
        "Profiles that were asked of this program.",
        |known, out| {
            out.with(&[("outcome", "taken")], known.profiles.taken);
            out.with(&[("outcome", "failed")], known.profiles.failed);
        },
    ),
    Family::new(
        Kind::Counter,
        "profile_ticks",
        "Ticks of all profiles, those that were given up included, by what became of them.",
        |known, out| {
            out.ticks(&[], &known.profiles.counters);
        },
    ),
    Family::new(
        Kind::Gauge,
        "profile_ticks_missing",
        "Running time by the period less the ticks, in the last profile: near zero if all is well.",
        |known, out| {
            out.maybe(known.profiles.missing);
        },
    ),
    Family::new(
        Kind::Counter,
        "profile_cost_seconds",
        "What sampling cost for all profiles.",
        |known, out| {
            out.one(seconds(known.profiles.cost_ns));
        },
    ),
];

fn each_recording(known: &Known, tell: impl FnMut(&RecordingStatus)) {
    // Those of profiles have another name each time, and metrics of their own.
    let recordings = known.last.iter().flat_map(|last| &last.status.recordings);
    recordings.filter(|one| !take::is_own(one)).for_each(tell);
}

fn rings(known: &Known, of: fn(&crate::record::RingFill) -> u64) -> Option<u64> {
    let rings = &known.last.as_ref()?.rings;
    let sum = |sum: u64, ring| sum.saturating_add(of(ring));
    (!rings.is_empty()).then(|| rings.iter().fold(0, sum))
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Where a guest's values of one family go.
struct Samples<'a> {
    out: &'a mut String,
    family: &'static Family,
    labels: &'a [(&'a str, &'a str)],
}

impl Samples<'_> {
    fn one(&mut self, value: impl Display) {
        self.with(&[], value);
    }

    fn maybe(&mut self, value: Option<impl Display>) {
        if let Some(value) = value {
            self.one(value);
        }
    }

    /// A value of what the agent answered last.
    fn of_last<T: Display>(&mut self, known: &Known, value: impl FnOnce(&Answer) -> T) {
        self.maybe(known.last.as_deref().map(value));
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
        let total = if self.family.kind == Kind::Counter {
            "_total"
        } else {
            ""
        };
        // Writing to a string does not fail.
        let _ = write!(self.out, "unikprof_{}{total}{{", self.family.name);
        let is_free = |(key, _): &&(&str, &str)| more.iter().all(|(taken, _)| taken != key);
        let labels = more.iter().chain(self.labels.iter().filter(is_free));
        for (at, (key, value)) in labels.enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let _ = write!(self.out, "{comma}{key}=\"{}\"", Escaped(value));
        }
        let _ = writeln!(self.out, "}} {value}");
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
    use super::super::config::{Guest, How};
    use super::*;
    use crate::connection::Address;

    #[test]
    fn hostile_names_stay_in_their_quotes() {
        let labels = [("app".into(), "a\"} 1\nb\\".into())];
        let member = Member::new(Guest {
            name: "web".into(),
            address: Address::new("10.0.0.5", 7777),
            labels: labels.into(),
            how: How::default(),
        });
        member.known().failure = Some("down".into());
        let text = text(std::iter::once(&member));
        let line = "unikprof_up{guest=\"web\",app=\"a\\\"} 1\\\\u{a}b\\\\\"} 0\n";
        assert!(text.contains(line), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
