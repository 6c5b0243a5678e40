//! Markers and counters: what the guest's rings tell besides samples.

use std::collections::BTreeMap;

use fxprof_processed_profile as fx;

use super::Categories;
use crate::report::TimelineView;
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::Mode;
use unikprof_profile::timeline::{Timeline, What, Window};

/// The kinds of markers, each with one field.
#[derive(Clone, Copy)]
enum Kind {
    /// A span of the guest's; its text is the vCPU that it ended on, if that is another one.
    Span,
    /// A mark of the guest's, or an event of the agent's. Its value is a text: numbers in the
    /// format have 53 bits.
    Mark,
    /// Time in which a vCPU did not run; its number is how much of the marker's time, in ms.
    Away,
    /// A value of a counter of the guest's, from its moment on. The front end draws a counter's
    /// changes; from these it draws its level.
    Level,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Span, Kind::Mark, Kind::Away, Kind::Level];

    fn schema(self) -> fx::RuntimeSchemaMarkerSchema {
        use fx::MarkerFieldFormat as As;
        let (type_name, table_label, key, label, format) = match self {
            Kind::Span => (
                "span",
                "{marker.name} {marker.data.endedOn}",
                "endedOn",
                "Ended on another vCPU",
                As::String,
            ),
            Kind::Mark => {
                ("mark", "{marker.name} {marker.data.value}", "value", "Value", As::String)
            }
            Kind::Away => (
                "time",
                "{marker.name} {marker.data.length}",
                "length",
                "Of this time",
                As::Duration,
            ),
            Kind::Level => {
                ("counter", "{marker.name} = {marker.data.value}", "value", "Value", As::Decimal)
            }
        };
        let in_chart =
            fx::MarkerLocations::MARKER_CHART.union(fx::MarkerLocations::TIMELINE_OVERVIEW);
        let is_level = matches!(self, Kind::Level);
        let graph = is_level.then(|| fx::RuntimeSchemaMarkerGraph {
            key: key.to_owned(),
            graph_type: fx::MarkerGraphType::Line,
            color: Some(fx::GraphColor::Green),
        });
        fx::RuntimeSchemaMarkerSchema {
            type_name: format!("unikprof {type_name}"),
            description: None,
            locations: match self {
                Kind::Level => fx::MarkerLocations::MARKER_TABLE,
                _ => in_chart.union(fx::MarkerLocations::MARKER_TABLE),
            },
            chart_label: match self {
                Kind::Mark => Some(table_label.to_owned()),
                Kind::Away => Some("{marker.data.length}".to_owned()),
                Kind::Span | Kind::Level => None,
            },
            tooltip_label: None,
            table_label: Some(table_label.to_owned()),
            fields: vec![fx::RuntimeSchemaMarkerField {
                key: key.to_owned(),
                label: label.to_owned(),
                format,
                flags: fx::MarkerFieldFlags::SEARCHABLE,
            }],
            graphs: graph.into_iter().collect(),
        }
    }
}

/// A marker with the value of its kind's field, as a text or as a number.
struct Marker {
    kind: fx::MarkerTypeHandle,
    name: fx::StringHandle,
    category: fx::CategoryHandle,
    text: fx::StringHandle,
    number: f64,
}

impl fx::Marker for Marker {
    fn marker_type(&self, _profile: &mut fx::Profile) -> fx::MarkerTypeHandle {
        self.kind
    }

    fn name(&self, _profile: &mut fx::Profile) -> fx::StringHandle {
        self.name
    }

    fn category(&self, _profile: &mut fx::Profile) -> fx::CategoryHandle {
        self.category
    }

    fn string_field_value(&self, _field_index: u32) -> fx::StringHandle {
        self.text
    }

    fn number_field_value(&self, _field_index: u32) -> f64 {
        self.number
    }
}

/// Adds markers to the vCPUs' threads.
pub(super) struct Markers<'p> {
    profile: &'p mut fx::Profile,
    /// By kind.
    types: [fx::MarkerTypeHandle; 4],
    threads: &'p BTreeMap<u32, fx::ThreadHandle>,
    categories: Categories,
    window: Window,
}

impl<'p> Markers<'p> {
    pub(super) fn new(
        profile: &'p mut fx::Profile,
        threads: &'p BTreeMap<u32, fx::ThreadHandle>,
        categories: Categories,
        window: Window,
    ) -> Markers<'p> {
        let types = Kind::ALL.map(|kind| profile.register_marker_type(kind.schema()));
        Markers { profile, types, threads, categories, window }
    }

    pub(super) fn add(&mut self, view: &TimelineView<'_>, process: fx::ProcessHandle, mode: Mode) {
        let timeline = view.timeline;
        self.add_spans(timeline);
        self.add_events(timeline, mode);
        self.add_stolen(timeline);
        self.add_counters(timeline, process);
    }

    fn at(&self, at_ns: u64) -> fx::Timestamp {
        let since_ns = at_ns.saturating_sub(self.window.from_ns);
        fx::Timestamp::from_nanos_since_reference(since_ns)
    }

    /// Adds a marker with the value of its field.
    fn push(
        &mut self,
        kind: Kind,
        thread: fx::ThreadHandle,
        timing: fx::MarkerTiming,
        (name, category): (&str, fx::CategoryHandle),
        (text, number): (&str, f64),
    ) {
        let marker = Marker {
            kind: self.types[kind as usize],
            name: self.profile.intern_string(&Printable(name).to_string()),
            category,
            text: self.profile.intern_string(text),
            number,
        };
        self.profile.add_marker(thread, timing, marker);
    }

    /// From one moment to another. An end outside of the window is left open.
    fn timing(&self, from_ns: Option<u64>, to_ns: Option<u64>) -> fx::MarkerTiming {
        let window = self.window;
        let from = from_ns.filter(|from| *from >= window.from_ns);
        let to = to_ns.filter(|to| *to < window.to_ns);
        match (from.map(|at| self.at(at)), to.map(|at| self.at(at))) {
            (Some(from), Some(to)) => fx::MarkerTiming::Interval(from, to.max(from)),
            (Some(from), None) => fx::MarkerTiming::IntervalStart(from),
            (None, Some(to)) => fx::MarkerTiming::IntervalEnd(to),
            // From before the window until after it.
            (None, None) => fx::MarkerTiming::IntervalStart(self.at(window.from_ns)),
        }
    }

    fn add_spans(&mut self, timeline: &Timeline) {
        for span in timeline.guest_spans(self.window) {
            let Some(&thread) = self.threads.get(&span.vcpu) else {
                continue;
            };
            let ended_on = match span.ended {
                Some((vcpu, _)) if vcpu != span.vcpu => format!("vCPU {vcpu}"),
                _ => String::new(),
            };
            let ended = span.ended.map(|(_, at_ns)| at_ns);
            let timing = self.timing(Some(span.began_ns), ended);
            let name = timeline.name_or_id(span.name);
            let of = (name.as_str(), self.categories.guest);
            self.push(Kind::Span, thread, timing, of, (&ended_on, 0.0));
        }
    }

    fn add_events(&mut self, timeline: &Timeline, mode: Mode) {
        // Waits are samples in the other modes.
        let shows_waits = !matches!(mode, Mode::Wall | Mode::OffCpu);
        for event in timeline.events(self.window) {
            let Some(&thread) = self.threads.get(&event.vcpu) else {
                continue;
            };
            let (name, value) = match &event.what {
                What::Mark { name, value } => (name.as_str(), value.to_string()),
                What::Began { recording } => ("recording began", recording.to_string()),
                What::Ended { recording } => ("recording ended", recording.to_string()),
                What::Resumed => ("resumed after a suspension", String::new()),
                What::BadKey => ("a client's handshake failed", String::new()),
                What::Wake { length_ns } if shows_waits => {
                    let since = event.at_ns.checked_sub(*length_ns);
                    self.add_blocked(thread, since, Some(event.at_ns));
                    continue;
                }
                _ => continue,
            };
            let timing = fx::MarkerTiming::Instant(self.at(event.at_ns));
            let of = (name, self.categories.guest);
            self.push(Kind::Mark, thread, timing, of, (&value, 0.0));
        }
    }

    fn add_blocked(&mut self, thread: fx::ThreadHandle, from: Option<u64>, to: Option<u64>) {
        let from_ns = from.unwrap_or(self.window.from_ns).max(self.window.from_ns);
        let to_ns = to.unwrap_or(self.window.to_ns).min(self.window.to_ns);
        let timing = self.timing(from, to);
        let of = ("Blocked", self.categories.blocked);
        let ms = to_ns.saturating_sub(from_ns) as f64 / 1e6;
        self.push(Kind::Away, thread, timing, of, ("", ms));
    }

    /// The stolen part of each time between two moments at which the guest noted its vCPUs' times.
    fn add_stolen(&mut self, timeline: &Timeline) {
        for ring in timeline.rings() {
            let Some(&thread) = self.threads.get(&ring.vcpu) else {
                continue;
            };
            let (told, _) = ring.times_told();
            for pair in told.windows(2) {
                let ((from_ns, before), (to_ns, after)) = (pair[0], pair[1]);
                let stolen_ns = after[1].saturating_sub(before[1]);
                let is_seen = self.window.contains(from_ns) && self.window.contains(to_ns);
                if stolen_ns == 0 || !is_seen {
                    continue;
                }
                let timing = fx::MarkerTiming::Interval(self.at(from_ns), self.at(to_ns));
                let of = ("Stolen", self.categories.stolen);
                self.push(Kind::Away, thread, timing, of, ("", stolen_ns as f64 / 1e6));
            }
        }
    }

    /// The guest's counters are the whole guest's: their levels are on its first vCPU.
    fn add_counters(&mut self, timeline: &Timeline, process: fx::ProcessHandle) {
        let Some(&thread) = self.threads.values().next() else {
            return;
        };
        for series in timeline.counters(self.window) {
            let name = Printable(&series.name).to_string();
            let counter =
                self.profile.add_counter(process, &name, "Guest", "A counter of the guest's");
            let mut before: i64 = 0;
            for (at_ns, value) in series.values() {
                let at = self.at(*at_ns);
                // Of any two 64-bit numbers.
                let change = (i128::from(*value) - i128::from(before)) as f64;
                self.profile.add_counter_sample(counter, at, change, 1);
                before = *value;
                let timing = fx::MarkerTiming::Instant(at);
                let of = (series.name.as_str(), self.categories.guest);
                self.push(Kind::Level, thread, timing, of, ("", *value as f64));
            }
        }
    }
}
