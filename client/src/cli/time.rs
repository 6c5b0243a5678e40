//! Time windows on the command line, and in a recording.

use clap::Args;

use super::failure::Failure;
use super::values;
use unikprof_link::record::Asked;
use unikprof_profile::profile::Profile;
use unikprof_profile::recording::Recording;
use unikprof_profile::timeline::{Extent, Moment, RecordingSpan, SpanFilter, Timeline, Window};
use unikprof_report::report::TimelineView;

/// The part of a recording's time that is wanted; one meaning for every subcommand that takes it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Time")]
pub(super) struct WindowArguments {
    /// Only from this time on: 12s (after the recording began), -30s (before its end, or before now
    /// while it runs), 21:34:50 or 2026-11-21T21:34:50Z (UTC)
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    from: Option<Moment>,
    /// Only up to this time, in the same format
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    to: Option<Moment>,
    /// Only the last part: --last 30s is short for --from -30s
    #[arg(
        long, value_name = "TIME", allow_hyphen_values = true, value_parser = values::nanoseconds,
        conflicts_with_all = ["from", "to"]
    )]
    last: Option<u64>,
}

impl WindowArguments {
    pub(super) fn asked(&self) -> Asked {
        Asked { from: self.last.map(Moment::BeforeEnd).or(self.from), to: self.to }
    }
}

/// The part of a recording that is shown: a window of its time, and spans within it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Time")]
pub(super) struct PartArguments {
    #[command(flatten)]
    window: WindowArguments,
    /// Only samples inside spans of this name, on the same vCPU, and of code that ran for them
    #[arg(long, value_name = "NAME")]
    in_span: Option<String>,
    /// Of --in-span only spans that took at least this long, for example 50ms
    #[arg(long, value_name = "TIME", value_parser = values::nanoseconds, requires = "in_span")]
    longer: Option<u64>,
    /// Of --in-span only spans that took less than this
    #[arg(long, value_name = "TIME", value_parser = values::nanoseconds, requires = "in_span")]
    shorter: Option<u64>,
}

/// The part of a recording's time that a report shows.
#[derive(Debug, Args)]
#[command(next_help_heading = "Time")]
pub(super) struct ReportTimeArguments {
    /// List each second's rate, stolen and blocked time, and top function
    #[arg(long)]
    timeline: bool,
    /// Length of a line of --timeline, for example 100ms; default: 1s, or longer if there are too
    /// many lines
    #[arg(long, value_name = "TIME", value_parser = values::step, requires = "timeline")]
    step: Option<u64>,
    #[command(flatten)]
    part: PartArguments,
    /// Show everything that was counted, even if the file was dumped for a time window
    #[arg(long, conflicts_with_all = ["from", "to", "last", "in_span"])]
    whole: bool,
}

/// A part of a recording's time.
pub(super) struct Part {
    of: RecordingSpan,
    window: Window,
    /// The profile of it; `None` where the recording's own counts are wanted.
    pub(super) profile: Option<Profile>,
}

impl Part {
    /// Makes the recording one of this part alone.
    pub(super) fn cut(self, recording: &mut Recording) {
        if let Some(profile) = self.profile {
            recording.profile = profile;
            recording.asked = Some(self.window);
        }
    }

    /// The part with the timeline that it is of, for a report.
    pub(super) fn view<'t>(&self, timeline: &'t Timeline) -> TimelineView<'t> {
        TimelineView { timeline, of: self.of, window: self.window, seconds: false, step_ns: None }
    }
}

impl ReportTimeArguments {
    /// One of the options that was given.
    pub(super) fn given(&self) -> Option<&'static str> {
        let given = [("--timeline", self.timeline), ("--whole", self.whole)];
        let found = given.into_iter().find(|(_, is_given)| *is_given);
        found.map(|(option, _)| option).or(self.part.given())
    }

    /// The part with the timeline that it is of, and the seconds if they are wanted.
    pub(super) fn view<'t>(&self, part: &Part, timeline: &'t Timeline) -> TimelineView<'t> {
        TimelineView { seconds: self.timeline, step_ns: self.step, ..part.view(timeline) }
    }

    /// The part of the recording that is wanted; `None` where it holds no timeline and needs none.
    pub(super) fn part(&self, recording: &Recording) -> Result<Option<Part>, Failure> {
        let mode = recording.profile.recording().mode;
        if self.timeline && mode.is_heap() {
            return Err(Failure::Usage(format!(
                "--timeline lists samples of time, and the recording is of mode {mode}"
            )));
        }
        if self.timeline && (recording.timeline.is_none() || recording.span.is_none()) {
            return Err(no_times());
        }
        self.part.of(recording, self.whole)
    }
}

/// The file is a trace.
pub(super) fn no_samples(option: &str) -> Failure {
    Failure::Usage(format!(
        "{option} is for recordings of samples, and the file is a trace of function calls: omit it"
    ))
}

/// The recording has counts alone.
pub(super) fn no_times() -> Failure {
    Failure::Usage(
        "the recording has no times: it holds counts alone. Build the agent with its feature \
         `ring` (in C with --ring), \
         give it memory for a ring, and record again"
            .into(),
    )
}

impl PartArguments {
    /// One of the options that was given.
    fn given(&self) -> Option<&'static str> {
        let given = [
            ("--from", self.window.from.is_some()),
            ("--to", self.window.to.is_some()),
            ("--last", self.window.last.is_some()),
            ("--in-span", self.in_span.is_some()),
        ];
        let found = given.into_iter().find(|(_, is_given)| *is_given);
        found.map(|(option, _)| option)
    }

    /// The spans that only are wanted.
    pub(super) fn spans(&self) -> Option<SpanFilter<'_>> {
        let name = self.in_span.as_deref()?;
        Some(SpanFilter { name, longer_ns: self.longer, shorter_ns: self.shorter })
    }

    /// The same with the other spans of this name, if spans of a length are wanted.
    pub(super) fn with_others(&self) -> Option<PartArguments> {
        let (longer, shorter) = (self.shorter, self.longer);
        let is_one = longer.is_some() != shorter.is_some();
        is_one.then(|| PartArguments { longer, shorter, ..self.clone() })
    }

    /// The part of the recording that is wanted, even if the file was dumped for a time window if
    /// it is the `whole`; `None` where it holds no timeline and needs none.
    pub(super) fn of(&self, recording: &Recording, whole: bool) -> Result<Option<Part>, Failure> {
        let is_part = self.window.asked().is_part() || self.in_span.is_some();
        if let Some(option) = self.given().filter(|_| recording.trace.is_some()) {
            return Err(no_samples(option));
        }
        if let (Some(longer), Some(shorter)) = (self.longer, self.shorter)
            && longer >= shorter
        {
            return Err(Failure::Usage(
                "no span is at least as long as --longer and shorter than --shorter: --longer must \
                 be the shorter time"
                    .into(),
            ));
        }
        let mode = recording.profile.recording().mode;
        if mode.is_heap() && is_part {
            return Err(Failure::Usage(format!(
                "a recording of mode {mode} is shown as a whole: the rings do not tell what a part \
                 of its time allocated; \
                 record for that time alone"
            )));
        }
        let Some((timeline, of)) = recording.timeline.as_ref().zip(recording.span) else {
            return match is_part {
                true => Err(no_times()),
                false => Ok(None),
            };
        };
        let Some(extent) = extent(timeline, &of, recording.counted.map(|_| recording.ended_ns))
        else {
            return Ok(None);
        };
        let Asked { from, to } = self.window.asked();
        let window = match (from, to) {
            (None, None) if whole || mode.is_heap() => None,
            (None, None) => recording.asked,
            (from, to) => {
                let window = extent.window(from, to).map_err(Failure::Moment)?;
                Some(window.and(extent.whole))
            }
        };
        // If a part was fetched before, the ring may hold that, too: who names no time means that of
        // the file's counts.
        let counted = recording.counted.map_or(extent.whole, |counted| extent.whole.and(counted));
        let span = self.spans();
        if let Some(span) = span {
            expect_span(timeline, span.name)?;
        }
        let profile = match (window, span) {
            (None, None) => None,
            (window, span) => {
                let window = window.unwrap_or(counted);
                Some(timeline.profile(&recording.profile, &of, window, span))
            }
        };
        Ok(Some(Part { of, window: window.unwrap_or(counted), profile }))
    }
}

/// From a recording's beginning to its end, as far as is known: the rings are read some time after
/// the last of what was counted.
fn extent(timeline: &Timeline, of: &RecordingSpan, counted_ns: Option<u64>) -> Option<Extent> {
    let held = timeline.extent()?;
    let from_ns = match of.window.from_ns {
        0 => held.from_ns,
        began_ns => began_ns,
    };
    let last_ns = counted_ns.map(|counted_ns| {
        let sampled_ns = timeline.last_sample_ns(of).map_or(0, |at_ns| at_ns.saturating_add(1));
        counted_ns.max(sampled_ns)
    });
    let to_ns = of.window.to_ns.min(last_ns.unwrap_or(held.to_ns)).min(held.to_ns).max(from_ns);
    Some(Extent { whole: Window { from_ns, to_ns }, clock: timeline.wall_clock() })
}

fn expect_span(timeline: &Timeline, name: &str) -> Result<(), Failure> {
    let tables = timeline.spans(Window::ALL);
    if tables.iter().any(|table| table.name == name) {
        return Ok(());
    }
    let names: Vec<String> = tables
        .iter()
        .map(|table| format!("`{}`", unikprof_profile::printable::Printable(&table.name)))
        .collect();
    Err(Failure::Usage(if names.is_empty() {
        format!("no span is called `{name}`: the guest recorded no spans")
    } else {
        format!("no span is called `{name}`; the recording has {}", names.join(", "))
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use unikprof_profile::timeline::Ring;
    use unikprof_proto::ring::{Record, kind};

    use super::*;

    /// Guards a last second that ends when the rings were read, after the last sample.
    #[test]
    fn the_end_is_that_of_the_data() {
        let sample = |at_ns| Record { kind: kind::SAMPLE, at_ns, first: 1, second: 1, third: 0 };
        let ring =
            Ring { records: vec![sample(10), sample(90)], read_at_ns: 200, ..Ring::default() };
        let timeline = Timeline::new(vec![ring], BTreeMap::new(), 0);
        let of = RecordingSpan { recording: Some(1), ring_bit: 0, window: Window::ALL };
        let end = |counted: Option<u64>| extent(&timeline, &of, counted).unwrap().whole.to_ns;
        assert_eq!(end(Some(100)), 100);
        assert_eq!(end(Some(50)), 91, "the guest went on after what was counted");
        assert_eq!(end(None), 200, "rings alone tell when nothing ran");
    }
}
