//! Delivery of profiles to the engines that keep them.
//!
//! ```text
//! Delivery ─► Target ─┬─► pyroscope  POST /push.v1.PusherService/Push   Connect, JSON
//!                     ├─► parca      POST /api/profiles/writeraw        gRPC gateway, JSON
//!                     └─► otlp       POST /v1development/profiles       OTLP/HTTP, protobuf
//! ```
//!
//! An answer is one of three [`Verdict`]s. Acceptance and rejection are what the engine itself says,
//! in its own format. A status alone may be of a proxy, or of another server at a wrong URL:
//! whatever can change without a new profile is tried again.

mod hangup;
mod http;
#[cfg(feature = "otlp")]
mod otlp;
mod parca;
mod pyroscope;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use unikprof_profile::printable::Printable;
use unikprof_profile::profile::Mode;
use unikprof_profile::symbols::Symbolized;

use super::config::{Engine, Guest, Remote};
use http::Http;

/// The most labels of a series: Pyroscope's limit, less those that samples have themselves (`vcpu`
/// and `span`).
const MOST_LABELS: usize = 28;

/// The longest value of a label, in bytes: Pyroscope's limit.
const LONGEST_VALUE: usize = 2048;

/// The longest name of a label, in bytes: Pyroscope's limit.
const LONGEST_NAME: usize = 1024;

/// A profile of a guest over a period of time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Delivery<'a> {
    pub(super) guest: &'a Guest,
    pub(super) symbolized: &'a Symbolized<'a>,
    /// Unique among the guest's deliveries: engines know a second delivery by it.
    pub(super) from_unix_ns: u64,
    pub(super) to_unix_ns: u64,
}

/// What became of a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The engine has it.
    Accepted,
    /// It may have it later, and perhaps has it, or a part of it, already.
    Later {
        reason: String,
        /// How long the engine asks to be left alone, an hour at most.
        after: Option<Duration>,
    },
    /// It will not take it.
    Never {
        reason: String,
        /// Whether it has some pieces of it.
        in_part: bool,
    },
}

impl Verdict {
    fn later(reason: impl fmt::Display) -> Verdict {
        Verdict::Later { reason: reason.to_string(), after: None }
    }

    fn never(reason: impl fmt::Display) -> Verdict {
        Verdict::Never { reason: reason.to_string(), in_part: false }
    }
}

/// Takes deliveries. One that is repeated must have the same guest and times.
pub(super) trait Target: Send + Sync + fmt::Debug {
    /// Delivers; returns within about half a minute for each request that it takes.
    fn deliver(&self, delivery: &Delivery<'_>) -> Verdict;
}

/// The target for an engine.
pub(super) fn target(engine: Engine, remote: &Remote) -> Box<dyn Target> {
    match engine {
        Engine::Pyroscope => Box::new(pyroscope::Pyroscope(Http::new(remote, pyroscope::PATH))),
        Engine::Parca => Box::new(parca::Parca(Http::new(remote, parca::PATH))),
        #[cfg(feature = "otlp")]
        Engine::Otlp => Box::new(otlp::Otlp(Http::new(remote, otlp::PATH))),
    }
}

/// The labels of a guest's series: `__name__`, `service_name`, `guest`, and its own as far as there
/// is room, in the order of their names.
fn series_labels(delivery: &Delivery<'_>) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([
        ("__name__".to_owned(), profile_name(delivery).to_owned()),
        ("service_name".to_owned(), service_name(delivery.guest)),
    ]);
    for (name, value) in delivery.guest.all_labels() {
        let is_short = name.len() <= LONGEST_NAME;
        if labels.len() < MOST_LABELS && is_short && !value.is_empty() {
            labels.entry(name).or_insert_with(|| label_value(&value));
        }
    }
    labels
}

/// The name by which viewers know this kind of profile.
fn profile_name(delivery: &Delivery<'_>) -> &'static str {
    match delivery.symbolized.profile().recording().mode {
        Mode::Cpu => "process_cpu",
        Mode::Wall => "wall",
        Mode::OffCpu => "off_cpu",
        Mode::Alloc | Mode::Live => "memory",
        Mode::Other(_) => "time",
    }
}

/// The label `service_name`, else the label `app`, else the guest's name.
pub(super) fn service_name(guest: &Guest) -> String {
    let labels = ["service_name", "app"].map(|name| guest.labels.get(name));
    let given = labels.into_iter().flatten().find(|value| !value.is_empty());
    label_value(given.unwrap_or(&guest.name))
}

fn label_value(value: &str) -> String {
    let mut value = Printable(value).to_string();
    value.truncate(value.floor_char_boundary(LONGEST_VALUE));
    value
}
