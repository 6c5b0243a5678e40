//! The guest's spans: beginnings and ends brought together by name and number.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::rc::Rc;

use unikprof_proto::ring::kind;

use super::count::Entered;
use super::{Ring, Timeline, Window};
use crate::printable::Printable;
use crate::units::duration;

/// The spans of one name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SpanTable {
    /// The name.
    pub name: String,
    /// How long they took.
    pub times: SpanTimes,
    /// How many had not ended, or not within the window.
    pub unfinished: u64,
    /// How many ended whose beginning the rings no longer held.
    pub cut: u64,
    /// How many are asynchronous: no sample is theirs by time alone.
    pub asynchronous: u64,
    /// How many were begun as nested spans and ended on another vCPU: they are taken as
    /// asynchronous.
    pub moved: u64,
    /// How many were begun as nested spans, but ended in the order in which they began: they are
    /// taken as asynchronous.
    pub overlapped: u64,
}

/// How long spans took, from beginning to end on the guest's monotonic clock, in ns.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SpanTimes {
    /// In rising order.
    lengths_ns: Vec<u64>,
}

impl SpanTimes {
    /// How many there are.
    pub fn count(&self) -> u64 {
        self.lengths_ns.len() as u64
    }

    /// All together; spans may overlap.
    pub fn total_ns(&self) -> u64 {
        let lengths = self.lengths_ns.iter();
        lengths.fold(0, |sum, length| sum.saturating_add(*length))
    }

    /// The duration that `percent` percent of them did not exceed; 0 if there are none.
    pub fn percentile(&self, percent: u64) -> u64 {
        let rank = (self.count().saturating_mul(percent)).div_ceil(100);
        let at = rank.max(1).min(self.count()).saturating_sub(1);
        self.lengths_ns.get(at as usize).copied().unwrap_or(0)
    }

    /// The longest; 0 if there are none.
    pub fn max_ns(&self) -> u64 {
        self.lengths_ns.last().copied().unwrap_or(0)
    }
}

/// The spans that a part of a recording lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanFilter<'a> {
    /// Their name.
    pub name: &'a str,
    /// They took at least so long, in ns.
    pub longer_ns: Option<u64>,
    /// They took less than this, in ns.
    pub shorter_ns: Option<u64>,
}

impl<'a> SpanFilter<'a> {
    /// All spans of this name.
    pub const fn named(name: &'a str) -> SpanFilter<'a> {
        SpanFilter { name, longer_ns: None, shorter_ns: None }
    }
}

impl fmt::Display for SpanFilter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", Printable(self.name))?;
        if let Some(ns) = self.longer_ns {
            write!(f, " of at least {}", duration(ns))?;
        }
        if let Some(ns) = self.shorter_ns {
            write!(f, " of less than {}", duration(ns))?;
        }
        Ok(())
    }
}

/// The spans of a [filter](SpanFilter).
#[derive(Debug)]
pub(super) struct Chosen {
    names: Vec<u64>,
    /// Their places among the pairs; `None` if all of these names are.
    places: Option<HashSet<usize>>,
    /// How many spans of these names are left out because it is not known how long they took.
    pub(super) unknown: u64,
}

impl Chosen {
    pub(super) fn has(&self, name: u64, place: Option<usize>) -> bool {
        let is_one = |places: &HashSet<usize>| place.is_some_and(|place| places.contains(&place));
        self.names.contains(&name) && self.places.as_ref().is_none_or(is_one)
    }
}

/// A span on one vCPU, in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct VcpuSpan {
    pub(super) name: u64,
    /// Its place among the pairs.
    pub(super) place: usize,
    pub(super) window: Window,
}

/// A span of the guest: a beginning, and the end that belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestSpan {
    pub name: u64,
    pub number: u64,
    pub vcpu: u32,
    pub began_ns: u64,
    /// The vCPU and the moment.
    pub ended: Option<(u32, u64)>,
    /// Up to when it is known to be open: to its end, or if that is not in the rings to the first
    /// gap of a ring that may have held it.
    seen_until_ns: u64,
    pub nesting: Nesting,
    pub(crate) trace: Option<TraceIds>,
}

/// The place of a span in a distributed trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceIds {
    /// The trace's id, whose first byte is the highest.
    pub trace: u128,
    /// The span's id in it, likewise.
    pub span: u64,
}

/// The span that a sample or a wait belongs to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanOf {
    /// The name id of the innermost span.
    pub name: u64,
    /// The ids of the innermost span that has any.
    pub trace: Option<TraceIds>,
}

/// Whether the samples in a span's time, on its vCPU, are its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nesting {
    /// They are.
    Nested,
    /// The guest said that they are not.
    Asynchronous,
    /// It ended on another vCPU.
    Moved,
    /// It overlapped another one, and was not within it.
    Overlapped,
}

/// How many spans around a sample may give it the ids of a trace. A hostile file may have millions.
const MOST_AROUND: usize = 64;

/// All spans, by their beginnings.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    pairs: Vec<GuestSpan>,
    /// By name and number: where the pair is. A number that begins again leaves the one before
    /// unfinished.
    by_number: HashMap<(u64, u64), usize>,
    /// Name and moment of ends without a beginning.
    cut: Vec<(u64, u64)>,
}

impl Pairs {
    pub(super) fn of(timeline: &Timeline) -> Pairs {
        let mut pairs = Pairs::default();
        let mut ends = Vec::new();
        let mut begins = Vec::new();
        let mut traces: HashMap<u64, [Option<u64>; 3]> = HashMap::new();
        for (vcpu, record) in timeline.all_records(Window::ALL) {
            match record.kind {
                kind::SPAN_BEGIN | kind::ASYNC_SPAN_BEGIN => begins.push((vcpu, *record)),
                kind::SPAN_END => ends.push((vcpu, *record)),
                kind::TRACE_HIGH | kind::TRACE_LOW | kind::TRACE_SPAN => {
                    let part = usize::from(record.kind - kind::TRACE_HIGH);
                    traces.entry(record.first).or_default()[part] = Some(record.second);
                }
                _ => {}
            }
        }
        // A span may end on another vCPU, whose records come first or last here.
        begins.sort_by_key(|(_, record)| record.at_ns);
        for (vcpu, begin) in begins {
            let at = pairs.pairs.len();
            pairs.by_number.insert((begin.first, begin.second), at);
            pairs.pairs.push(GuestSpan {
                name: begin.first,
                number: begin.second,
                vcpu,
                began_ns: begin.at_ns,
                ended: None,
                seen_until_ns: u64::MAX,
                nesting: match begin.kind {
                    kind::ASYNC_SPAN_BEGIN => Nesting::Asynchronous,
                    _ => Nesting::Nested,
                },
                trace: match traces.get(&begin.second) {
                    Some([Some(high), Some(low), Some(span)]) => Some(TraceIds {
                        trace: u128::from(*high) << 64 | u128::from(*low),
                        span: *span,
                    }),
                    _ => None,
                },
            });
        }
        for (vcpu, end) in ends {
            let pair = pairs.by_number.get(&(end.first, end.second)).copied();
            let pair = pair.and_then(|at| pairs.pairs.get_mut(at));
            match pair {
                Some(pair) if pair.ended.is_none() => {
                    pair.ended = Some((vcpu, end.at_ns));
                    pair.seen_until_ns = end.at_ns;
                    if pair.vcpu != vcpu && pair.nesting == Nesting::Nested {
                        pair.nesting = Nesting::Moved;
                    }
                }
                _ => pairs.cut.push((end.first, end.at_ns)),
            }
        }
        for ring in &timeline.rings {
            let gaps = ring.all_gaps();
            let is_cut = |pair: &&mut GuestSpan| pair.ended.is_none() && pair.is_of(ring);
            for pair in pairs.pairs.iter_mut().filter(is_cut) {
                let next = gaps.partition_point(|gap| gap.to_ns <= pair.began_ns);
                if let Some(gap) = gaps.get(next) {
                    pair.seen_until_ns = pair.seen_until_ns.min(gap.from_ns.max(pair.began_ns));
                }
            }
        }
        for ring in &timeline.rings {
            pairs.find_overlaps(ring);
        }
        pairs
    }

    /// Finds the nested spans of a vCPU that overlap without one being within the other.
    fn find_overlaps(&mut self, ring: &Ring) {
        // By their ends: the spans that are open, and those of them known to overlap others.
        let mut open: BTreeSet<(u64, usize)> = BTreeSet::new();
        let mut overlapping: BTreeSet<u64> = BTreeSet::new();
        for VcpuSpan { place: at, window: Window { from_ns, to_ns }, .. } in self.on(ring) {
            open = open.split_off(&(from_ns.saturating_add(1), 0));
            overlapping = overlapping.split_off(&from_ns.saturating_add(1));
            let still_open = open.split_off(&(to_ns, 0));
            let ended_first = std::mem::replace(&mut open, still_open);
            if ended_first.is_empty() && overlapping.range(..to_ns).next().is_none() {
                // One whose end is lost in a gap was perhaps open for longer: it proves nothing.
                if self.pairs[at].ended.is_some() {
                    open.insert((to_ns, at));
                }
                continue;
            }
            for (to_ns, at) in ended_first.into_iter().chain([(to_ns, at)]) {
                self.pairs[at].nesting = Nesting::Overlapped;
                overlapping.insert(to_ns);
            }
        }
    }

    /// How long the span with this name and number took, if both its ends are there.
    pub(super) fn length_ns(&self, name: u64, number: u64) -> Option<u64> {
        let pair = self.pairs.get(*self.by_number.get(&(name, number))?)?;
        let (_, ended_ns) = pair.ended?;
        Some(ended_ns.saturating_sub(pair.began_ns))
    }

    /// All spans as they are known to be open in a ring's time, whatever vCPU they began on.
    pub(super) fn open_in(&self, ring: &Ring) -> Vec<VcpuSpan> {
        let to_ns = |pair: &GuestSpan| match pair.ended {
            Some((_, at_ns)) => at_ns,
            None => pair.seen_until_ns.min(ring.read_at_ns),
        };
        let window = |pair: &GuestSpan| Window::new(pair.began_ns, to_ns(pair).max(pair.began_ns));
        let all = self.pairs.iter().enumerate().filter(|(_, pair)| pair.is_of(ring));
        all.map(|(place, pair)| VcpuSpan { name: pair.name, place, window: window(pair) }).collect()
    }

    /// The place of the span that code ran for, if its beginning is known.
    pub(super) fn place(&self, entered: Entered) -> Option<usize> {
        self.by_number.get(&(entered.name, entered.number)).copied()
    }

    /// The spans of a filter. How long one took that has not ended, or whose end is lost, is not
    /// known, except that it took as long as it was seen open.
    pub(super) fn chosen(&self, timeline: &Timeline, filter: SpanFilter<'_>) -> Chosen {
        let names = timeline.name_ids(filter.name);
        let until_ns = timeline.read_until().unwrap_or(0);
        let is_of_length = filter.longer_ns.or(filter.shorter_ns).is_some();
        let (mut places, mut unknown) = (HashSet::new(), 0);
        let named = self.pairs.iter().enumerate().filter(|(_, pair)| names.contains(&pair.name));
        for (place, pair) in named.filter(|_| is_of_length) {
            let to_ns = pair.ended.map_or(pair.seen_until_ns.min(until_ns), |(_, at_ns)| at_ns);
            let length_ns = to_ns.saturating_sub(pair.began_ns);
            let is_longer = filter.longer_ns.is_none_or(|least| length_ns >= least);
            let is_shorter = filter.shorter_ns.is_none_or(|most| length_ns < most);
            let is_known = pair.ended.is_some() || filter.shorter_ns.is_none();
            if is_longer && is_shorter && is_known {
                places.insert(place);
            } else if pair.ended.is_none() && is_shorter {
                unknown += 1;
            }
        }
        Chosen { names, places: is_of_length.then_some(places), unknown }
    }

    /// The nested spans of a vCPU, by their beginnings. What has not ended is known to be open up
    /// to the first gap of the ring: its end may be in the gap.
    pub(super) fn on(&self, ring: &Ring) -> Vec<VcpuSpan> {
        let is_here = |pair: &GuestSpan| pair.vcpu == ring.vcpu && pair.nesting == Nesting::Nested;
        let here = self.pairs.iter().enumerate().filter(|(_, pair)| is_here(pair));
        let stretch = |(place, pair): (usize, &GuestSpan)| {
            let window = Window::new(pair.began_ns, pair.seen_until_ns.max(pair.began_ns));
            VcpuSpan { name: pair.name, place, window }
        };
        here.map(stretch).collect()
    }
}

impl GuestSpan {
    /// Whether it may be open in a ring's time: an asynchronous one is on no vCPU.
    fn is_of(&self, ring: &Ring) -> bool {
        self.vcpu == ring.vcpu || self.nesting != Nesting::Nested
    }
}

impl Timeline {
    /// The guest's spans by their names, those that end in the window, or are unfinished and begin
    /// before its end; in the order of their total times, longest first.
    pub fn spans(&self, window: Window) -> Vec<SpanTable> {
        let pairs = Pairs::of(self);
        let mut tables: BTreeMap<u64, SpanTable> = BTreeMap::new();
        for pair in &pairs.pairs {
            let is_before = pair.ended.is_some_and(|(_, ended)| ended < window.from_ns);
            if is_before || pair.began_ns >= window.to_ns {
                continue;
            }
            let table = tables.entry(pair.name).or_default();
            match pair.ended.filter(|(_, ended)| window.contains(*ended)) {
                None => table.unfinished += 1,
                Some((_, ended_ns)) => {
                    let length_ns = ended_ns.saturating_sub(pair.began_ns);
                    table.times.lengths_ns.push(length_ns);
                }
            }
            match pair.nesting {
                Nesting::Nested => {}
                Nesting::Asynchronous => table.asynchronous += 1,
                Nesting::Moved => table.moved += 1,
                Nesting::Overlapped => table.overlapped += 1,
            }
        }
        for (name, at_ns) in &pairs.cut {
            if window.contains(*at_ns) {
                tables.entry(*name).or_default().cut += 1;
            }
        }
        let mut all: Vec<SpanTable> = tables
            .into_iter()
            .map(|(id, mut table)| {
                table.name = self.name_or_id(id);
                table.times.lengths_ns.sort_unstable();
                table
            })
            .collect();
        all.sort_by_key(|table| std::cmp::Reverse(table.times.total_ns()));
        all
    }

    /// The guest's spans that overlap a window, by their beginnings.
    pub fn guest_spans(&self, window: Window) -> Vec<GuestSpan> {
        let mut spans = Pairs::of(self).pairs;
        spans.retain(|span| {
            let is_before = span.ended.is_some_and(|(_, at_ns)| at_ns < window.from_ns);
            !is_before && span.began_ns < window.to_ns
        });
        spans
    }

    /// When spans of this name ran that ended in a window, as far as they lie in it. Those whose
    /// beginning the rings do not hold have no length. What had begun before is in it in place of
    /// what has not ended, as many in the long run.
    pub fn ended_spans(&self, name: &str, window: Window) -> Vec<Window> {
        let names = self.name_ids(name);
        let Pairs { pairs, cut, .. } = Pairs::of(self);
        let pairs = pairs.into_iter().map(|pair| (pair.name, Some(pair.began_ns), pair.ended));
        let cut = cut.into_iter().map(|(name, at_ns)| (name, None, Some((0, at_ns))));
        let spans = pairs.chain(cut).filter(|(name, ..)| names.contains(name));
        let spans = spans.filter_map(|(_, began_ns, ended)| {
            let (_, to_ns) = ended?;
            let from_ns = began_ns.unwrap_or(to_ns).max(window.from_ns).min(to_ns);
            Some(Window::new(from_ns, to_ns))
        });
        spans.filter(|span| window.contains(span.to_ns)).collect()
    }

    /// A name of events; where the file holds none, its number.
    pub fn name_or_id(&self, id: u64) -> String {
        match self.name(id) {
            Some(name) => name.to_owned(),
            None => format!("[name {id}]"),
        }
    }
}

/// Whether moments in rising order lie in spans, and in which.
pub(super) struct Inside {
    /// By their beginnings.
    stretches: Vec<VcpuSpan>,
    next: usize,
    /// Those that have begun, by their place, and when they end.
    open: BTreeMap<usize, VcpuSpan>,
    pairs: Rc<Pairs>,
}

impl Inside {
    pub(super) fn new(stretches: Vec<VcpuSpan>, pairs: Rc<Pairs>) -> Inside {
        Inside { stretches, next: 0, open: BTreeMap::new(), pairs }
    }

    /// The one that began last: of the nested spans that hold this moment, and the one that code had
    /// entered. Moments must come in order.
    pub(super) fn innermost(&mut self, at_ns: u64, entered: Option<Entered>) -> Option<SpanOf> {
        self.move_to(at_ns);
        let nested = self.open.values().next_back();
        let pair = |place: usize| self.pairs.pairs.get(place);
        let pair_of = |entered| pair(self.pairs.place(entered)?);
        let began_ns = entered.and_then(pair_of).map_or(0, |pair| pair.began_ns);
        let name = match (nested, entered) {
            (Some(nested), Some(entered)) if nested.window.from_ns < began_ns => entered.name,
            (Some(nested), _) => nested.name,
            (None, entered) => entered?.name,
        };
        let holding = self.open.values().rev().take(MOST_AROUND);
        let mut holding = holding.filter(|span| span.window.contains(at_ns)).peekable();
        let ids = |span: &VcpuSpan| pair(span.place)?.trace;
        // From the inside out: nested spans within the entered one, the entered one, and those around.
        let mut within = std::iter::from_fn(|| holding.next_if(|it| it.window.from_ns >= began_ns));
        let trace = within.find_map(ids);
        let trace = trace.or_else(|| entered.and_then(|entered| pair_of(entered)?.trace));
        let trace = trace.or_else(|| holding.find_map(ids));
        Some(SpanOf { name, trace })
    }

    /// Opens what has begun. Of the spans that have ended, takes out those that began last.
    fn move_to(&mut self, at_ns: u64) {
        while let Some(stretch) = self.stretches.get(self.next) {
            if stretch.window.from_ns > at_ns {
                break;
            }
            self.open.insert(self.next, *stretch);
            self.next += 1;
        }
        // Each is taken out once: what has ended holds no later moment either.
        while let Some(last) = self.open.last_entry() {
            if last.get().window.contains(at_ns) {
                break;
            }
            last.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use unikprof_proto::ring::Record;

    use super::*;

    fn timeline(events: &[(u32, u8, u64, u64, u64)]) -> Timeline {
        let mut rings: BTreeMap<u32, Ring> = BTreeMap::new();
        for &(vcpu, kind, at_ns, first, second) in events {
            let ring = rings.entry(vcpu).or_default();
            ring.vcpu = vcpu;
            ring.records.push(Record { kind, at_ns, first, second, ..Record::default() });
        }
        let names = [(0, "request".to_owned()), (1, "disk".to_owned())];
        Timeline::new(rings.into_values().collect(), names.into(), 0)
    }

    const BEGIN: u8 = kind::SPAN_BEGIN;
    const END: u8 = kind::SPAN_END;

    #[test]
    fn overlapping_spans_are_told_apart_by_their_numbers() {
        let timeline = timeline(&[
            (0, BEGIN, 10, 0, 7),
            (0, BEGIN, 20, 0, 8),
            (0, END, 50, 0, 7),
            (0, END, 120, 0, 8),
            (0, BEGIN, 130, 1, 7),
            (0, END, 5, 1, 99),
            (1, END, 60, 0, 9),
            (0, BEGIN, 40, 0, 9),
        ]);
        let tables = timeline.spans(Window::ALL);
        let [request, disk] = &tables[..] else {
            panic!("{tables:?}");
        };
        assert_eq!(request.name, "request");
        assert_eq!((request.times.count(), request.times.total_ns()), (3, 160));
        assert_eq!((request.times.percentile(50), request.times.max_ns()), (40, 100));
        assert_eq!((request.moved, request.unfinished, request.cut), (1, 0, 0));
        assert_eq!((disk.unfinished, disk.cut), (1, 1));
        let early = Window::new(0, 60);
        let early = &timeline.spans(early)[0];
        assert_eq!((early.times.count(), early.unfinished), (1, 2));
    }

    #[test]
    fn the_innermost_span_is_the_one_that_began_last() {
        let timeline = timeline(&[
            (0, BEGIN, 10, 0, 1),
            (0, BEGIN, 20, 1, 2),
            (0, END, 30, 1, 2),
            (0, END, 50, 0, 1),
            (0, BEGIN, 60, 1, 3),
        ]);
        let pairs = Pairs::of(&timeline);
        let mut inside = Inside::new(pairs.on(&timeline.rings()[0]), Rc::new(pairs));
        let names: Vec<Option<u64>> = [5, 10, 25, 30, 49, 50, 61]
            .map(|at_ns| Some(inside.innermost(at_ns, None)?.name))
            .into();
        let expected = [None, Some(0), Some(1), Some(0), Some(0), None, Some(1)];
        assert_eq!(names, expected);
    }

    /// Guards against a span whose end is lost in a gap taking the samples of all that are open
    /// across the gap.
    #[test]
    fn a_span_whose_end_is_lost_overlaps_no_other() {
        let mut timeline =
            timeline(&[(0, BEGIN, 100, 0, 1), (0, BEGIN, 150, 1, 2), (0, END, 500, 1, 2)]);
        timeline.rings[0].gaps.push(Window::new(200, 300));
        let pairs = Pairs::of(&timeline);
        assert!(pairs.pairs.iter().all(|pair| pair.nesting == Nesting::Nested));
    }

    /// Guards against spans that last up to the ring's end because their own was evicted.
    #[test]
    fn a_span_whose_end_is_lost_is_neither_long_nor_short() {
        let mut timeline = timeline(&[
            (0, BEGIN, 100, 0, 1),
            (0, kind::ASYNC_SPAN_BEGIN, 100, 0, 2),
            (0, BEGIN, 400, 0, 3),
            (1, BEGIN, 100, 1, 4),
        ]);
        timeline.rings[0].gaps.push(Window::new(200, 300));
        timeline.rings[1].gaps.push(Window::new(150, 160));
        timeline.rings.iter_mut().for_each(|ring| ring.read_at_ns = 1_000);
        let pairs = Pairs::of(&timeline);
        let open = pairs.open_in(&timeline.rings[0]);
        let ends: Vec<u64> = open.iter().map(|span| span.window.to_ns).collect();
        assert_eq!(ends, [200, 150, 1_000], "an asynchronous one may have ended on another vCPU");
        let chosen = |longer_ns, shorter_ns| {
            let name = "request";
            let chosen = pairs.chosen(&timeline, SpanFilter { name, longer_ns, shorter_ns });
            let has = [0, 1, 3].map(|place| chosen.has(0, Some(place)));
            (has, chosen.unknown)
        };
        assert_eq!(chosen(Some(500), None), ([false, false, true], 2));
        assert_eq!(chosen(Some(100), None), ([true, false, true], 1), "open for so long at least");
        assert_eq!(chosen(None, Some(500)), ([false, false, false], 2));
        assert_eq!(chosen(None, None), ([true; 3], 0));
    }

    /// Guards against the ids of a request in place of those of a call within it.
    #[test]
    fn a_span_within_an_entered_one_has_its_own_ids() {
        let ids = |number, id| {
            [(kind::TRACE_HIGH, 7), (kind::TRACE_LOW, 7), (kind::TRACE_SPAN, id)]
                .map(|(kind, second)| (0, kind, 20, number, second))
        };
        let begins = [(0, kind::ASYNC_SPAN_BEGIN, 10, 0, 1), (0, BEGIN, 20, 1, 2)];
        let ends = [(0, END, 30, 1, 2), (0, END, 40, 0, 1)];
        let timeline = timeline(&[&begins[..], &ids(1, 101), &ids(2, 102), &ends].concat());
        let pairs = Pairs::of(&timeline);
        let mut inside = Inside::new(pairs.on(&timeline.rings()[0]), Rc::new(pairs));
        let entered = Some(Entered { name: 0, number: 1 });
        let traces = [25, 35].map(|at_ns| inside.innermost(at_ns, entered).unwrap().trace.unwrap());
        assert_ne!(traces[0], traces[1]);
        assert!(format!("{:?}", traces[0]).contains("102"), "{:?}", traces[0]);
    }
}
