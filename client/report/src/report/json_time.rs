//! The part of the JSON report that is about time; [`json`](super::json) documents it.

use serde::Serialize;

use super::{Report, TimelineView, seconds};

/// The parts of the time shown that a counter has means of.
const PARTS: usize = 40;

/// All of it; empty where a recording holds no time.
#[derive(Default)]
pub(super) struct Time {
    pub(super) spans: Vec<Span>,
    pub(super) values: Vec<Values>,
    pub(super) marks: Vec<Mark>,
    pub(super) refused_names: u64,
    pub(super) seconds: Vec<Second>,
}

#[derive(Serialize)]
pub(super) struct Span {
    name: String,
    count: u64,
    total_ns: u64,
    p50_ns: u64,
    p99_ns: u64,
    max_ns: u64,
    unfinished: u64,
    cut: u64,
    asynchronous: u64,
    moved: u64,
    overlapped: u64,
}

#[derive(Serialize)]
pub(super) struct Values {
    name: String,
    min: i64,
    max: i64,
    last: i64,
    means: Vec<Option<f64>>,
}

#[derive(Serialize)]
pub(super) struct Mark {
    name: String,
    count: u64,
}

#[derive(Serialize)]
pub(super) struct Second {
    from_ns: u64,
    unix_ns: Option<u64>,
    length_ns: u64,
    held: bool,
    covered: bool,
    ticks: u64,
    recorded: u64,
    shown: u64,
    stolen: Option<f64>,
    blocked: Option<f64>,
    top: Option<String>,
    top_share: Option<f64>,
}

pub(super) fn of(report: &Report<'_>, view: &TimelineView<'_>) -> Time {
    let timeline = view.timeline;
    let window = timeline.bounded(&view.of, view.window);
    let spans = timeline.spans(window).into_iter().map(|table| Span {
        count: table.times.count(),
        total_ns: table.times.total_ns(),
        p50_ns: table.times.percentile(50),
        p99_ns: table.times.percentile(99),
        max_ns: table.times.max_ns(),
        unfinished: table.unfinished,
        cut: table.cut,
        asynchronous: table.asynchronous,
        moved: table.moved,
        overlapped: table.overlapped,
        name: table.name,
    });
    let values = timeline.counters(window).into_iter().map(|series| Values {
        min: series.min(),
        max: series.max(),
        last: series.last(),
        means: series.means(window, PARTS),
        name: series.name,
    });
    let marks = timeline.marks(window).into_iter();
    Time {
        spans: spans.collect(),
        values: values.collect(),
        marks: marks.map(|(name, count)| Mark { name, count }).collect(),
        refused_names: timeline.refused_names(),
        seconds: if view.seconds { seconds_of(report, view) } else { Vec::new() },
    }
}

fn seconds_of(report: &Report<'_>, view: &TimelineView<'_>) -> Vec<Second> {
    let clock = view.timeline.wall_clock();
    let seconds = seconds::of(report, view).into_iter().map(|second| {
        let slice = &second.slice;
        let top = second.top(report);
        Second {
            from_ns: slice.window.from_ns.saturating_sub(view.of.window.from_ns),
            unix_ns: clock.unix_ns(slice.window.from_ns),
            length_ns: slice.window.length_ns(),
            held: slice.is_held,
            covered: slice.is_covered,
            ticks: slice.counters.ticks,
            recorded: second.recorded(),
            shown: second.shown,
            stolen: second.stolen(),
            blocked: second.blocked(),
            top: top.map(|(label, _)| label.text.clone()),
            top_share: top.map(|(_, share)| share),
        }
    });
    seconds.collect()
}
