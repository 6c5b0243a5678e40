//! The ticks and waits of a recording, one by one in the order of time.

use std::iter::Peekable;

use unikprof_proto::ring::{Record, SAMPLE_LATE, kind, outcome};

use super::count::{Entered, Selection};
use super::recording_spans::RecordingSpan;
use super::spans::{Inside, SpanOf};
use super::{Ring, SpanFilter, Timeline, Window};
use crate::profile::NodeId;

/// A tick or a wait of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tick {
    /// On the guest's monotonic clock, in ns; of a wait its beginning, or that of the time asked
    /// for.
    pub at_ns: u64,
    /// Where it was taken.
    pub vcpu: u32,
    /// What became of it.
    pub outcome: Outcome,
    /// The interrupted stack, if it was recorded.
    pub stack: Option<NodeId>,
    /// The span that it fell into.
    pub span: Option<SpanOf>,
    /// The span that the code ran for, as the guest told.
    pub entered: Option<Entered>,
}

/// What became of a tick, or what a wait was within the time asked for.
#[expect(missing_docs, reason = "the names are the words of reports")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Recorded,
    Late,
    Aged,
    Overflow,
    Lost,
    Masked,
    Idle,
    /// A wait, or a part of one.
    Blocked {
        /// How long it was, in ns: the vCPU may have run, or waited for a CPU, in some of it.
        length_ns: u64,
        /// What was counted for it, in the mode's unit.
        count: u64,
        /// Whether the wait began there.
        is_first: bool,
        /// Whether the agent gave up its stack before the record was fetched.
        is_aged: bool,
    },
}

impl Outcome {
    /// As reports have it.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Recorded => "recorded",
            Outcome::Late => "late",
            Outcome::Aged => "aged",
            Outcome::Overflow => "overflow",
            Outcome::Lost => "lost",
            Outcome::Masked => "masked",
            Outcome::Idle => "idle",
            Outcome::Blocked { .. } => "blocked",
        }
    }
}

type Stream<'t> = Peekable<Box<dyn Iterator<Item = Tick> + 't>>;

impl Timeline {
    /// What a recording sampled within a window, vCPUs together, in the order of time: the same
    /// ticks and waits that [`Timeline::profile`] counts.
    pub fn ticks<'t>(
        &'t self,
        of: &'t RecordingSpan,
        window: Window,
        inside: Option<SpanFilter<'_>>,
    ) -> impl Iterator<Item = Tick> + 't {
        let window = self.bounded(of, window);
        let selection = Selection::new(self, of, inside);
        let mut streams: Vec<Stream<'t>> = Vec::new();
        for ring in &self.rings {
            let vcpu = selection.on(ring);
            let waits = vcpu.wait_ticks(window);
            streams.push((Box::new(waits.into_iter()) as Box<dyn Iterator<Item = _>>).peekable());
            let ticks = Box::new(vcpu.into_ticks(window)) as Box<dyn Iterator<Item = _>>;
            streams.push(ticks.peekable());
        }
        std::iter::from_fn(move || {
            let next = streams
                .iter_mut()
                .filter_map(|stream| Some((stream.peek()?.at_ns, stream)))
                .min_by_key(|(at_ns, _)| *at_ns);
            next?.1.next()
        })
    }
}

/// The tick that a record tells of, if it is one of the recording.
pub(super) fn tick(
    ring: &Ring,
    of: &RecordingSpan,
    record: &Record,
    entered: Option<Entered>,
    inside: &mut Inside,
) -> Option<Tick> {
    if !of.has(record.second, record.at_ns) {
        return None;
    }
    let outcome = match (record.kind, record.first) {
        (kind::SAMPLE, 0) => Outcome::Aged,
        (kind::SAMPLE, _) if record.second & SAMPLE_LATE != 0 => Outcome::Late,
        (kind::SAMPLE, _) => Outcome::Recorded,
        (kind::NO_SAMPLE, outcome::OVERFLOW) => Outcome::Overflow,
        (kind::NO_SAMPLE, outcome::MASKED) => Outcome::Masked,
        (kind::NO_SAMPLE, outcome::IDLE) => Outcome::Idle,
        // Whatever else may become of ticks: they have no stack.
        (kind::NO_SAMPLE, _) => Outcome::Lost,
        _ => return None,
    };
    Some(Tick {
        at_ns: record.at_ns,
        vcpu: ring.vcpu,
        outcome,
        stack: (record.kind == kind::SAMPLE).then(|| ring.stack(record.first)),
        span: inside.innermost(record.at_ns, entered),
        entered,
    })
}
