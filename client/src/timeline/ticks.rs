//! The ticks and waits of a recording, one by one in the order of time.

use std::iter::Peekable;

use unikprof_proto::ring::{Record, SAMPLE_LATE, kind, outcome};

use super::count::{any_contains, length_within_ns, waits, windows_of};
use super::recording_spans::RecordingSpan;
use super::spans::{Inside, Pairs};
use super::{Ring, Timeline, Window};
use crate::profile::{Mode, NodeId};

/// A tick or a wait of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tick {
    /// On the guest's monotonic clock, in ns; of a wait its beginning, or that of the time asked
    /// for.
    pub(crate) at_ns: u64,
    pub(crate) vcpu: u32,
    pub(crate) outcome: Outcome,
    pub(crate) stack: Option<NodeId>,
    /// The name id of the innermost span.
    pub(crate) span: Option<u64>,
}

/// What became of a tick, or how long a wait was within the time asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Recorded,
    Late,
    Aged,
    Overflow,
    Lost,
    Masked,
    Idle,
    Blocked { ns: u64 },
}

impl Outcome {
    pub(crate) fn name(self) -> &'static str {
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
    /// What a recording of this mode sampled within a window, vCPUs together, in the order of time.
    /// With `inside`, only what happened while a span of this name was open on the same vCPU, as in
    /// [`Timeline::profile`].
    pub(crate) fn ticks<'t>(
        &'t self,
        of: &'t RecordingSpan,
        mode: Mode,
        window: Window,
        inside: Option<&str>,
    ) -> impl Iterator<Item = Tick> + 't {
        let window = self.bounded(of, window);
        let pairs = Pairs::of(self);
        let names = inside.map(|name| self.name_ids(name));
        let mut streams: Vec<Stream<'t>> = Vec::new();
        for ring in &self.rings {
            let spans = pairs.on(ring.vcpu);
            let allowed = names.as_ref().map(|names| windows_of(&spans, names));
            if let Mode::Wall | Mode::OffCpu = mode {
                let waits = waits(ring, Inside::new(spans.clone())).into_iter();
                let allowed = allowed.clone();
                let ticks = waits.filter_map(move |wait| {
                    let shown = wait.window.and(window);
                    let ns = match &allowed {
                        Some(allowed) => length_within_ns(allowed, shown),
                        None => shown.length_ns(),
                    };
                    (ns != 0).then(|| Tick {
                        at_ns: shown.from_ns,
                        vcpu: ring.vcpu,
                        outcome: Outcome::Blocked { ns },
                        stack: (wait.stack != 0).then(|| ring.stack(wait.stack)),
                        span: wait.span,
                    })
                });
                streams.push((Box::new(ticks) as Box<dyn Iterator<Item = Tick>>).peekable());
            }
            let mut inside = Inside::new(spans);
            let is_allowed = move |record: &&Record| {
                let allowed = allowed.as_deref();
                allowed.is_none_or(|allowed| any_contains(allowed, record.at_ns))
            };
            let ticks = ring.within(window).iter().filter(is_allowed);
            let ticks = ticks.filter_map(move |record| tick(ring, of, record, &mut inside));
            streams.push((Box::new(ticks) as Box<dyn Iterator<Item = Tick>>).peekable());
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
        span: inside.innermost(record.at_ns),
    })
}
