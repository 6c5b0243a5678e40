//! Counts ticks and waits in a part of a recording's time.

use std::collections::HashMap;

use unikprof_proto::ring::{Record, kind};

use super::recording_spans::RecordingSpan;
use super::spans::{Inside, Pairs, VcpuSpan};
use super::ticks::{Outcome, tick};
use super::{Ring, Timeline, Window};
use crate::profile::{Counters, Mode, NodeId, RecordingInfo};

/// The ticks and waits that count: those of a recording, as its mode says, or those of them that
/// lie inside spans.
pub(super) struct Selection<'t> {
    of: &'t RecordingSpan,
    mode: Mode,
    period_ns: u64,
    pairs: Pairs,
    /// The spans' name ids.
    inside: Option<Vec<u64>>,
}

/// Counts by stack and span.
pub(super) type Stacks = HashMap<(NodeId, Option<u64>), u64>;

/// What one vCPU's records come to within a window.
pub(super) struct Counted {
    pub(super) counters: Counters,
    pub(super) stacks: Stacks,
}

/// Counts the records of one vCPU, window by window in the order of time.
pub(super) struct VcpuCount<'t> {
    ring: &'t Ring,
    of: &'t RecordingSpan,
    mode: Mode,
    period_ns: u64,
    spans: Inside,
    /// Where ticks and waits count, in order and apart; everywhere if `None`.
    allowed: Option<Vec<Window>>,
    waits: Vec<Wait>,
    /// Blocked time before the present window.
    blocked_ns: u64,
}

/// From a block to what comes next of block, wake and the ring's end.
pub(super) struct Wait {
    pub(super) window: Window,
    /// Of the call that blocks; 0 if it is not known.
    pub(super) stack: u64,
    /// The name of the innermost span that the call was made in.
    pub(super) span: Option<u64>,
}

impl<'t> Selection<'t> {
    /// All of a recording, or with `inside` what happened while a span of this name was open on the
    /// same vCPU.
    pub(super) fn new(
        timeline: &Timeline,
        of: &'t RecordingSpan,
        info: &RecordingInfo,
        inside: Option<&str>,
    ) -> Selection<'t> {
        Selection {
            of,
            mode: info.mode,
            period_ns: info.period_ns,
            pairs: Pairs::of(timeline),
            inside: inside.map(|name| timeline.name_ids(name)),
        }
    }

    /// A count of this vCPU's records.
    pub(super) fn on(&self, ring: &'t Ring) -> VcpuCount<'t> {
        let stretches = self.pairs.on(ring.vcpu);
        let allowed = self.inside.as_ref();
        let allowed = allowed.map(|names| windows_of(&stretches, names));
        VcpuCount {
            ring,
            of: self.of,
            mode: self.mode,
            period_ns: self.period_ns,
            waits: match self.mode {
                Mode::Wall | Mode::OffCpu => waits(ring, Inside::new(stretches.clone())),
                Mode::Cpu | Mode::Alloc | Mode::Live | Mode::Other(_) => Vec::new(),
            },
            spans: Inside::new(stretches),
            allowed,
            blocked_ns: 0,
        }
    }
}

impl VcpuCount<'_> {
    /// What the records come to within a window. Windows must come in the order of time, and none
    /// may overlap.
    pub(super) fn count(&mut self, window: Window) -> Counted {
        let mut counted = Counted { counters: Counters::default(), stacks: Stacks::new() };
        let ring = self.ring;
        for record in ring.within(window) {
            self.tick(record, &mut counted);
        }
        let first = self.waits.partition_point(|wait| wait.window.to_ns <= window.from_ns);
        let mut blocked_ns = self.blocked_ns;
        for wait in &self.waits[first..] {
            if wait.window.from_ns >= window.to_ns {
                break;
            }
            let length_ns = self.length_ns(wait.window.and(window));
            if length_ns != 0 {
                let before_ns = blocked_ns;
                blocked_ns = blocked_ns.saturating_add(length_ns);
                self.wait(wait, before_ns, blocked_ns, &mut counted);
            }
        }
        self.blocked_ns = blocked_ns;
        counted
    }

    /// How much of a window counts, in ns.
    pub(super) fn length_ns(&self, window: Window) -> u64 {
        match &self.allowed {
            Some(allowed) => length_within_ns(allowed, window),
            None => window.length_ns(),
        }
    }

    fn tick(&mut self, record: &Record, counted: &mut Counted) {
        let allowed = self.allowed.as_deref();
        if allowed.is_some_and(|allowed| !any_contains(allowed, record.at_ns)) {
            return;
        }
        let Some(tick) = tick(self.ring, self.of, record, &mut self.spans) else {
            return;
        };
        let c = &mut counted.counters;
        c.ticks += 1;
        c.late += u64::from(tick.outcome == Outcome::Late);
        *match tick.outcome {
            Outcome::Recorded | Outcome::Late => &mut c.recorded,
            Outcome::Aged => &mut c.aged,
            Outcome::Overflow => &mut c.overflow,
            Outcome::Masked => &mut c.masked,
            Outcome::Idle => &mut c.idle,
            Outcome::Lost | Outcome::Blocked { .. } => &mut c.lost,
        } += 1;
        if let Some(stack) = tick.stack {
            *counted.stacks.entry((stack, tick.span)).or_default() += 1;
        }
    }

    /// Counts a wait that makes all blocked time grow from one of these to the other.
    fn wait(&self, wait: &Wait, before_ns: u64, after_ns: u64, counted: &mut Counted) {
        let amount = match self.mode {
            // One for each period, whichever waits it is made of.
            Mode::Wall => {
                let periods = |ns: u64| ns.checked_div(self.period_ns).unwrap_or(0);
                periods(after_ns) - periods(before_ns)
            }
            _ => after_ns - before_ns,
        };
        let c = &mut counted.counters;
        c.blocks += 1;
        if wait.stack == 0 {
            c.blocked_overflow = c.blocked_overflow.saturating_add(amount);
            return;
        }
        c.blocked = c.blocked.saturating_add(amount);
        let count = counted.stacks.entry((self.ring.stack(wait.stack), wait.span)).or_default();
        *count = count.saturating_add(amount);
    }
}

/// The waits of a vCPU, in order and apart.
pub(super) fn waits(ring: &Ring, mut spans: Inside) -> Vec<Wait> {
    let mut waits = Vec::new();
    let mut open: Option<(u64, u64)> = None;
    let changes = ring.records.iter().filter_map(|record| match record.kind {
        kind::BLOCK => Some((record.at_ns, Some(record.first))),
        kind::WAKE => Some((record.at_ns, None)),
        _ => None,
    });
    for (at_ns, stack) in changes.chain([(ring.read_at_ns, None)]) {
        if let Some((from_ns, stack)) = open.take() {
            let to_ns = at_ns.max(from_ns);
            waits.push(Wait {
                window: Window::new(from_ns, to_ns),
                stack,
                span: spans.innermost(from_ns),
            });
        }
        open = stack.map(|stack| (at_ns, stack));
    }
    waits
}

/// When a span of one of these names was open, in order and apart.
pub(super) fn windows_of(stretches: &[VcpuSpan], names: &[u64]) -> Vec<Window> {
    let named = stretches.iter().filter(|s| names.contains(&s.name));
    union(named.map(|stretch| stretch.window).collect())
}

/// How much of a window lies in these, which are in order and apart, in ns.
pub(super) fn length_within_ns(windows: &[Window], window: Window) -> u64 {
    let first = windows.partition_point(|part| part.to_ns <= window.from_ns);
    windows[first..]
        .iter()
        .take_while(|part| part.from_ns < window.to_ns)
        .map(|part| part.and(window).length_ns())
        .fold(0, u64::saturating_add)
}

/// Windows that overlap as one, in the order of time.
pub(crate) fn union(mut windows: Vec<Window>) -> Vec<Window> {
    windows.retain(|window| window.length_ns() > 0);
    windows.sort_unstable_by_key(|window| window.from_ns);
    windows.dedup_by(|next, kept| {
        let touches = next.from_ns <= kept.to_ns;
        if touches {
            kept.to_ns = kept.to_ns.max(next.to_ns);
        }
        touches
    });
    windows
}

/// Whether one of these windows, in order and apart, holds a moment.
pub(crate) fn any_contains(windows: &[Window], at_ns: u64) -> bool {
    let after = windows.partition_point(|window| window.from_ns <= at_ns);
    let last = after.checked_sub(1).and_then(|at| windows.get(at));
    last.is_some_and(|window| window.contains(at_ns))
}
