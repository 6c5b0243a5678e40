//! The recordings that a page can show: the report's own, and those that ran at the same time or
//! are parts of it.

use serde::Serialize;

use crate::report::{Report, TimelineView};
use unikprof_profile::profile::{Mode, RecordingInfo, Unit};
use unikprof_profile::timeline::{RecordingSpan, SpanFilter, Tick, Timeline, Window};

/// A recording within the time that a page shows.
pub(super) struct Shown<'r> {
    name: String,
    info: Option<&'r RecordingInfo>,
    of: RecordingSpan,
    window: Window,
    inside: Option<SpanFilter<'r>>,
    timeline: &'r Timeline,
    /// Its samples are those of the report's own recording within its time.
    is_part: bool,
}

/// The report's own recording, and then the others of which the rings tell.
pub(super) fn shown<'r>(
    report: &'r Report<'_>,
    view: &'r TimelineView<'_>,
) -> impl Iterator<Item = Shown<'r>> {
    let info = report.symbolized.profile().recording();
    let timeline = view.timeline;
    let window = timeline.bounded(&view.of, view.window);
    let own = Shown {
        name: info.name.clone(),
        info: Some(info),
        of: view.of,
        window,
        inside: info.inside(),
        timeline,
        is_part: false,
    };
    let others = timeline.recordings().into_iter();
    let others = others.filter(|other| *other != view.of).map(move |of| Shown {
        name: timeline.recording_name(&of),
        info: timeline.info(&of),
        of,
        window: timeline.bounded(&of, window),
        inside: info.inside(),
        timeline,
        is_part: info.merged.is_some(),
    });
    std::iter::once(own).chain(others.filter(|other| other.window.length_ns() > 0))
}

impl<'r> Shown<'r> {
    fn mode(&self) -> Mode {
        self.info.map_or(Mode::Cpu, |info| info.mode)
    }

    /// Its ticks and waits; none if they are among those of the report's own.
    pub(super) fn ticks(&self) -> impl Iterator<Item = Tick> + use<'_, 'r> {
        let ticks = |()| self.timeline.ticks(&self.of, self.window, self.inside);
        (!self.is_part).then_some(()).into_iter().flat_map(ticks)
    }

    /// What the page knows of it; times are since `began_ns`.
    pub(super) fn head(&self, began_ns: u64) -> RecordingHead {
        RecordingHead {
            name: self.name.clone(),
            mode: self.info.map(|info| info.mode.to_string()),
            // What the rings hold of allocations are samples.
            unit: match self.mode() {
                mode if mode.is_heap() => Unit::Samples,
                mode => mode.unit(),
            }
            .to_string(),
            period_ns: self.info.map_or(0, |info| info.period_ns),
            from_ns: self.window.from_ns.saturating_sub(began_ns),
            to_ns: self.window.to_ns.saturating_sub(began_ns),
            ticks: (!self.is_part).then(|| self.ticks().count()),
        }
    }
}

#[derive(Serialize)]
pub(super) struct RecordingHead {
    name: String,
    /// `None` if the file does not tell; then only its samples of running time are known.
    mode: Option<String>,
    unit: String,
    /// 0 if it is not known.
    period_ns: u64,
    from_ns: u64,
    to_ns: u64,
    /// How many of the columns' ticks and waits are its; `None` if they are among those of the
    /// first.
    ticks: Option<usize>,
}
