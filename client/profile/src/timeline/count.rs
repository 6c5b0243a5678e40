//! Counts ticks and waits in a part of a recording's time.
//!
//! The agent writes a record wherever it counts, so the counts of a window are the sum of its
//! records. A wait's record has what was counted for it; a window that holds a part of the wait has
//! that part of it, in proportion to the time. So a window over a whole recording has the
//! recording's counts, and windows that part it sum to it.

use std::collections::HashMap;
use std::rc::Rc;

use unikprof_proto::ring::{Record, Wait, kind};

use super::recording_spans::RecordingSpan;
use super::spans::{Chosen, Inside, Pairs, SpanFilter, SpanOf, VcpuSpan};
use super::ticks::{Outcome, Tick, tick};
use super::{Ring, Timeline, Window};
use crate::profile::{Counters, NodeId};

/// The ticks and waits that count: those of a recording, or those of them that lie inside spans.
pub(super) struct Selection<'t> {
    of: &'t RecordingSpan,
    pairs: Rc<Pairs>,
    /// The spans in which ticks and waits count; everywhere if `None`.
    inside: Option<Rc<Chosen>>,
}

/// Counts by stack and span.
pub(super) type Stacks = HashMap<(NodeId, Option<SpanOf>), u64>;

/// What one vCPU's records come to within a window.
pub(super) struct Counted {
    pub(super) counters: Counters,
    pub(super) stacks: Stacks,
}

/// Counts the records of one vCPU, window by window in the order of time.
pub(super) struct VcpuCount<'t> {
    pub(super) ring: &'t Ring,
    of: &'t RecordingSpan,
    spans: Inside,
    allowed: Option<Allowed>,
    waits: Vec<CountedWait>,
    entered: EnteredNext,
}

/// Where ticks and waits count.
struct Allowed {
    /// While nested spans are open, in order and apart.
    nested: Vec<Window>,
    /// While any of the spans is open, likewise.
    open: Vec<Window>,
    chosen: Rc<Chosen>,
    pairs: Rc<Pairs>,
}

impl Allowed {
    fn has(&self, entered: Option<Entered>) -> bool {
        entered.is_some_and(|entered| self.chosen.has(entered.name, self.pairs.place(entered)))
    }
}

/// The span that the code of a tick or a wait ran for, as the guest told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entered {
    pub name: u64,
    pub number: u64,
}

/// Finds the spans that ticks and waits ran for: the record before tells of it.
#[derive(Debug, Default)]
struct EnteredNext(Option<(u64, Entered)>);

impl EnteredNext {
    /// The span of this record, which must be the one after that of the last call.
    fn of(&mut self, record: &Record) -> Option<Entered> {
        match record.kind {
            kind::ENTERED => {
                let entered = Entered { name: record.first, number: record.second };
                self.0 = Some((record.at_ns, entered));
                None
            }
            kind::SAMPLE | kind::NO_SAMPLE | kind::WAIT => {
                let (at_ns, entered) = self.0.take()?;
                (at_ns == record.at_ns).then_some(entered)
            }
            _ => None,
        }
    }
}

/// A wait, or a part of one, that a recording counted.
#[derive(Debug, Clone, Copy)]
pub(super) struct CountedWait {
    window: Window,
    /// `None` if it was counted as overflow.
    stack: Option<NodeId>,
    /// Whether the agent gave up the stack before the record was fetched.
    is_aged: bool,
    /// The span that the call was made in.
    span: Option<SpanOf>,
    entered: Option<Entered>,
    /// What was counted for it, in the mode's unit.
    count: u64,
    is_first: bool,
}

impl CountedWait {
    /// What it counts within a window.
    fn within(&self, window: Window) -> u64 {
        let until = |at_ns: u64| {
            let passed_ns = at_ns.saturating_sub(self.window.from_ns);
            match self.window.length_ns() {
                length_ns if passed_ns >= length_ns => self.count,
                length_ns => {
                    let part = u128::from(self.count) * u128::from(passed_ns);
                    u64::try_from(part / u128::from(length_ns)).unwrap_or(self.count)
                }
            }
        };
        if self.window.length_ns() == 0 {
            return if window.contains(self.window.from_ns) { self.count } else { 0 };
        }
        until(window.to_ns).saturating_sub(until(window.from_ns))
    }

    /// Whether it lies in a window, in part or whole.
    fn meets(&self, window: Window) -> bool {
        window.contains(self.window.from_ns) || self.window.and(window).length_ns() > 0
    }
}

impl<'t> Selection<'t> {
    /// All of a recording, or with `inside` what happened while a nested span of this name was open
    /// on the same vCPU, or ran for an asynchronous one.
    pub(super) fn new(
        timeline: &Timeline,
        of: &'t RecordingSpan,
        inside: Option<SpanFilter<'_>>,
    ) -> Selection<'t> {
        let pairs = Pairs::of(timeline);
        Selection {
            of,
            inside: inside.map(|filter| Rc::new(pairs.chosen(timeline, filter))),
            pairs: Rc::new(pairs),
        }
    }

    /// How many spans are left out because it is not known how long they took.
    pub(super) fn unknown_spans(&self) -> u64 {
        self.inside.as_ref().map_or(0, |chosen| chosen.unknown)
    }

    /// A count of this vCPU's records.
    pub(super) fn on(&self, ring: &'t Ring) -> VcpuCount<'t> {
        let nested = self.pairs.on(ring);
        let allowed = self.inside.as_ref().map(|chosen| Allowed {
            nested: windows_of(&nested, chosen),
            open: windows_of(&self.pairs.open_in(ring), chosen),
            chosen: Rc::clone(chosen),
            pairs: Rc::clone(&self.pairs),
        });
        VcpuCount {
            ring,
            of: self.of,
            allowed,
            waits: waits(ring, self.of, Inside::new(nested.clone(), Rc::clone(&self.pairs))),
            spans: Inside::new(nested, Rc::clone(&self.pairs)),
            entered: EnteredNext::default(),
        }
    }
}

impl<'t> VcpuCount<'t> {
    /// What the records come to within a window. Windows must come in the order of time, and none
    /// may overlap.
    pub(super) fn count(&mut self, window: Window) -> Counted {
        let mut counted = Counted { counters: Counters::default(), stacks: Stacks::new() };
        for record in self.ring.within(window) {
            let Some(tick) = self.tick(record) else {
                continue;
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
        for (wait, part) in self.waits_in(window) {
            let c = &mut counted.counters;
            let begins = part.iter().any(|part| part.contains(wait.window.from_ns));
            c.blocks += u64::from(wait.is_first && begins);
            let count = part.iter().map(|part| wait.within(*part)).fold(0, u64::saturating_add);
            let Some(stack) = wait.stack else {
                c.blocked_overflow = c.blocked_overflow.saturating_add(count);
                continue;
            };
            let sum = if wait.is_aged { &mut c.blocked_aged } else { &mut c.blocked };
            *sum = sum.saturating_add(count);
            if count != 0 {
                let sum = counted.stacks.entry((stack, wait.span)).or_default();
                *sum = sum.saturating_add(count);
            }
        }
        counted
    }

    /// What was counted of waits in these windows.
    pub(super) fn blocked_in(&self, windows: &[Window]) -> u64 {
        let parts = windows.iter().flat_map(|window| self.waits_in(*window));
        let counts =
            parts.flat_map(|(wait, parts)| parts.into_iter().map(|part| wait.within(part)));
        counts.fold(0, u64::saturating_add)
    }

    /// The parts of a window of which the recording's counts are known, in order: those that the
    /// ring covers, and its waits, as their records tell what was counted also within a gap.
    pub(super) fn known(&self, window: Window) -> Vec<Window> {
        let waits = self.waits_near(window).map(|wait| wait.window.and(window));
        union(waits.chain(self.ring.covered(window)).collect())
    }

    /// How much of a window counts, in ns.
    pub(super) fn length_ns(&self, window: Window) -> u64 {
        match &self.allowed {
            Some(allowed) => length_within_ns(&allowed.open, window),
            None => window.length_ns(),
        }
    }

    /// The ticks within a window, in the order of time.
    pub(super) fn into_ticks(mut self, window: Window) -> impl Iterator<Item = Tick> + use<'t> {
        self.ring.within(window).iter().filter_map(move |record| self.tick(record))
    }

    /// The tick that a record tells of, if it counts.
    fn tick(&mut self, record: &Record) -> Option<Tick> {
        let entered = self.entered.of(record);
        let is_in =
            |allowed: &Allowed| allowed.has(entered) || any_contains(&allowed.nested, record.at_ns);
        if !self.allowed.as_ref().is_none_or(is_in) {
            return None;
        }
        tick(self.ring, self.of, record, entered, &mut self.spans)
    }

    /// The waits within a window as single outcomes, in the order of time.
    pub(super) fn wait_ticks(&self, window: Window) -> Vec<Tick> {
        let ticks = self.waits_in(window).filter_map(|(wait, parts)| {
            let first = parts.first()?;
            let length_ns = |part: &Window| wait.window.and(*part).length_ns();
            Some(Tick {
                at_ns: wait.window.from_ns.max(first.from_ns),
                vcpu: self.ring.vcpu,
                outcome: Outcome::Blocked {
                    length_ns: parts.iter().map(length_ns).fold(0, u64::saturating_add),
                    count: parts.iter().map(|part| wait.within(*part)).sum(),
                    is_first: wait.is_first && first.contains(wait.window.from_ns),
                    is_aged: wait.is_aged,
                },
                stack: wait.stack,
                span: wait.span,
                entered: wait.entered,
            })
        });
        ticks.collect()
    }

    /// The waits that lie in a window or end where it begins.
    fn waits_near(&self, window: Window) -> impl Iterator<Item = &CountedWait> {
        let first = self.waits.partition_point(|wait| wait.window.to_ns < window.from_ns);
        let waits = self.waits[first..].iter();
        waits.take_while(move |wait| wait.window.from_ns < window.to_ns)
    }

    /// The waits that lie in a window, with the parts of the window in which they count.
    fn waits_in(&self, window: Window) -> impl Iterator<Item = (&CountedWait, Vec<Window>)> {
        self.waits_near(window).filter_map(move |wait| {
            let parts = match &self.allowed {
                Some(allowed) if !allowed.has(wait.entered) => {
                    let first =
                        allowed.nested.partition_point(|one| one.to_ns < wait.window.from_ns);
                    let near = allowed.nested[first..].iter();
                    let near = near.take_while(|one| one.from_ns <= wait.window.to_ns);
                    near.map(|one| one.and(window)).filter(|part| wait.meets(*part)).collect()
                }
                _ if wait.meets(window) => vec![window],
                _ => Vec::new(),
            };
            (!parts.is_empty()).then_some((wait, parts))
        })
    }
}

impl RecordingSpan {
    /// The wait that a record tells of, and when it was within the recording's time; `None` if the
    /// recording did not count it.
    pub(super) fn wait(&self, record: &Record) -> Option<(Wait, Window)> {
        let wait = Wait::from_number(record.third);
        let bit = 1_u64.checked_shl(self.ring_bit).unwrap_or(0);
        if record.kind != kind::WAIT || u64::from(wait.ring_bits) & bit == 0 {
            return None;
        }
        let (from_ns, to_ns) = (record.at_ns.saturating_sub(wait.length_ns), record.at_ns);
        // A recording may end in a wait, and be noticed to have ended when the vCPU wakes.
        let meets = from_ns < self.window.to_ns && to_ns >= self.window.from_ns;
        let is_last = to_ns == self.window.from_ns && wait.length_ns > 0;
        (meets && !is_last).then(|| (wait, Window::new(from_ns, to_ns).and(self.window)))
    }
}

/// The waits that a recording counted on a vCPU, in order and apart.
fn waits(ring: &Ring, of: &RecordingSpan, mut spans: Inside) -> Vec<CountedWait> {
    let mut entered_next = EnteredNext::default();
    let wait = |record: &Record| {
        let entered = entered_next.of(record);
        let (wait, window) = of.wait(record)?;
        Some(CountedWait {
            window,
            stack: (!wait.is_overflow).then(|| ring.stack(record.first)),
            is_aged: !wait.is_overflow && record.first == 0,
            span: None,
            entered,
            count: record.second,
            is_first: wait.is_first,
        })
    };
    let mut waits: Vec<CountedWait> = ring.records.iter().filter_map(wait).collect();
    // A hostile file may hold any times.
    waits.sort_by_key(|wait| (wait.window.to_ns, wait.window.from_ns));
    waits.dedup_by(|next, kept| {
        next.window.from_ns = next.window.from_ns.max(kept.window.to_ns);
        false
    });
    for wait in &mut waits {
        wait.span = spans.innermost(wait.window.from_ns, wait.entered);
    }
    waits
}

/// When one of the chosen spans was open, in order and apart.
fn windows_of(stretches: &[VcpuSpan], chosen: &Chosen) -> Vec<Window> {
    let named = stretches.iter().filter(|s| chosen.has(s.name, Some(s.place)));
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
pub fn union(mut windows: Vec<Window>) -> Vec<Window> {
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
pub fn any_contains(windows: &[Window], at_ns: u64) -> bool {
    let after = windows.partition_point(|window| window.from_ns <= at_ns);
    let last = after.checked_sub(1).and_then(|at| windows.get(at));
    last.is_some_and(|window| window.contains(at_ns))
}
