//! Joins several timelines: the contents of a guest's rings as read for each file, and of the rings
//! of its next run.

use std::collections::{BTreeMap, HashSet, VecDeque};

use unikprof_proto::ring::{Record, Wait, kind};

use super::{RecordingSpan, Ring, Timeline, Window, any_contains, union};
use crate::profile::{NodeId, RecordingInfo};

/// The ring bit of all merged recordings.
const RING_BIT: u32 = 0;

/// The bits of a sample's second number that name recordings.
const RING_BITS: u64 = 0xff;

/// The most records that are kept, the newest: half a gigabyte.
const MOST_RECORDS: usize = 1 << 24;

/// One of the recordings whose files are merged.
#[derive(Debug, Clone)]
pub(crate) struct JoinedRecording {
    /// The run of the guest: an index into the shifts that [`Join::finish`] is given.
    pub(crate) run: usize,
    pub(crate) span: RecordingSpan,
    pub(crate) info: RecordingInfo,
    /// By vCPU, when it was counted, in order and apart, on the clock of the run. Its files may lack
    /// a part of its time, of which the rings still have records.
    pub(crate) counted: BTreeMap<u32, Vec<Window>>,
}

impl JoinedRecording {
    fn counted_on(&self, vcpu: u32) -> impl Iterator<Item = RecordingSpan> {
        let windows = self.counted.get(&vcpu).into_iter().flatten();
        windows.map(|window| RecordingSpan { window: *window, ..self.span })
    }
}

/// Timelines in the order of time, as they are read. Those of one run must not repeat records.
#[derive(Debug)]
pub(crate) struct Join {
    parts: VecDeque<Part>,
    names: BTreeMap<String, u32>,
    refused_names: u64,
    records: usize,
    most_records: usize,
    /// By vCPU: up to when parts were left out (on the clock of the part's run), and how many
    /// records they had.
    left_out: BTreeMap<u32, (usize, u64, u64)>,
}

#[derive(Debug)]
struct Part {
    run: usize,
    rings: Vec<Ring>,
}

impl Default for Join {
    fn default() -> Join {
        Join {
            parts: VecDeque::new(),
            names: BTreeMap::new(),
            refused_names: 0,
            records: 0,
            most_records: MOST_RECORDS,
            left_out: BTreeMap::new(),
        }
    }
}

impl Join {
    /// Adds what a file held. All files' stacks are in one tree.
    pub(crate) fn add(&mut self, run: usize, timeline: Timeline) {
        let Timeline { mut rings, names, refused_names, .. } = timeline;
        let ids: BTreeMap<u64, u64> = names
            .into_iter()
            .map(|(id, name)| {
                let next = self.names.len() as u32;
                let joined = *self.names.entry(name).or_insert(next);
                (u64::from(id), u64::from(joined))
            })
            .collect();
        self.refused_names = self.refused_names.max(refused_names);
        for ring in &mut rings {
            number_stacks_by_nodes(ring);
            for record in &mut ring.records {
                if kind::is_named(record.kind) {
                    // An unknown name stays one that no name has.
                    let unknown = record.first.saturating_add(1 << 32);
                    record.first = ids.get(&record.first).copied().unwrap_or(unknown);
                }
            }
            self.records += ring.records.len();
        }
        self.parts.push_back(Part { run, rings });
        while self.records > self.most_records && self.parts.len() > 1 {
            let Some(oldest) = self.parts.pop_front() else {
                break;
            };
            for ring in oldest.rings {
                self.records -= ring.records.len();
                let left_out = self.left_out.entry(ring.vcpu).or_default();
                *left_out = (oldest.run, ring.read_at_ns, left_out.2 + ring.records.len() as u64);
            }
        }
    }

    /// Whether nothing was added.
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The one timeline, on the clock of the first run, and the recording in it that stands for all
    /// of them. Each run's clock is `shifts_ns` behind the first one's. The recordings must not
    /// overlap, and come in the order of time. Ticks and waits outside of the time that was counted
    /// belong to none of them.
    pub(crate) fn finish(
        self,
        shifts_ns: &[i64],
        mut recordings: Vec<JoinedRecording>,
    ) -> (Timeline, RecordingSpan) {
        let shift_of = |run: usize| shifts_ns.get(run).copied().unwrap_or(0);
        for recording in &mut recordings {
            let shift_ns = shift_of(recording.run);
            let windows = recording.counted.values_mut().flatten();
            windows.for_each(|window| *window = shifted_window(*window, shift_ns));
            let ends = recording.counted.values().filter_map(|w| w.first().zip(w.last()));
            let ends = ends.map(|(first, last)| Window::new(first.from_ns, last.to_ns));
            recording.span.window = ends.reduce(Window::around).unwrap_or(Window::new(0, 0));
        }
        let mut rings: BTreeMap<u32, (usize, Ring)> = BTreeMap::new();
        for part in self.parts {
            for mut ring in part.rings {
                let of_run = recordings.iter().filter(|r| r.run == part.run);
                let counted: Vec<RecordingSpan> =
                    of_run.flat_map(|r| r.counted_on(ring.vcpu)).collect();
                shift(&mut ring, shift_of(part.run));
                for at in 0..ring.records.len() {
                    let told_ns = ring.records[at].at_ns;
                    relabel(&mut ring.records[at], part.run, &counted);
                    // What tells the span of a wait that was cut goes with it.
                    let moved_ns = ring.records[at].at_ns;
                    if let Some(before) = at.checked_sub(1).map(|at| &mut ring.records[at])
                        && (before.kind, before.at_ns) == (kind::ENTERED, told_ns)
                    {
                        before.at_ns = moved_ns;
                    }
                }
                match rings.get_mut(&ring.vcpu) {
                    Some((last_run, joined)) => {
                        append(joined, ring, *last_run == part.run);
                        *last_run = part.run;
                    }
                    None => {
                        if let Some(&(run, until_ns, count)) = self.left_out.get(&ring.vcpu) {
                            let until_ns = shifted(until_ns, shift_of(run));
                            ring.held_since_ns = ring.held_since_ns.max(until_ns);
                            ring.left_out = count;
                        }
                        rings.insert(ring.vcpu, (part.run, ring));
                    }
                }
            }
        }
        let mut rings: Vec<Ring> = rings.into_values().map(|(_, ring)| ring).collect();
        for ring in &mut rings {
            let windows: Vec<Window> = recordings
                .iter()
                .flat_map(|recording| recording.counted_on(ring.vcpu))
                .map(|counted| counted.window)
                .collect();
            let between =
                windows.windows(2).map(|pair| Window::new(pair[0].to_ns, pair[1].from_ns));
            ring.uncovered.extend(between.filter(|gap| gap.length_ns() > 0));
            ring.stacks.sort_unstable();
            ring.stacks.dedup();
            ring.records.sort_by_key(|record| record.at_ns);
            join_times(ring, &windows);
        }
        let counted = recordings.iter().flat_map(|r| r.counted.values().flatten());
        leave_out_between(&mut rings, &union(counted.copied().collect()));
        let names = self.names.into_iter().map(|(name, id)| (id, name));
        let mut timeline = Timeline::new(rings, names.collect(), self.refused_names);
        timeline.is_joined = true;
        let first = recordings.first().map(|recording| recording.span);
        let whole = recordings.iter().map(|r| r.span.window).reduce(Window::around);
        let span = RecordingSpan {
            recording: first.and_then(|first| first.recording),
            ring_bit: RING_BIT,
            window: whole.unwrap_or(Window::ALL),
        };
        for JoinedRecording { mut span, info, .. } in recordings {
            span.ring_bit = RING_BIT;
            timeline.know(span, info);
        }
        (timeline, span)
    }
}

/// Names the stacks of a ring's records by their nodes, which mean the same in all files.
fn number_stacks_by_nodes(ring: &mut Ring) {
    let mut used: Vec<NodeId> = Vec::new();
    for at in 0..ring.records.len() {
        let Record { kind, first, .. } = ring.records[at];
        if matches!(kind, kind::SAMPLE | kind::WAIT) && first != 0 {
            let node = ring.stack(first);
            ring.records[at].first = node.index() as u64;
            used.push(node);
        }
    }
    used.sort_unstable();
    used.dedup();
    ring.stacks = used.iter().map(|node| (node.index() as u64, *node)).collect();
}

fn shifted(at_ns: u64, shift_ns: i64) -> u64 {
    at_ns.saturating_add_signed(shift_ns)
}

fn shifted_window(window: Window, shift_ns: i64) -> Window {
    Window::new(shifted(window.from_ns, shift_ns), shifted(window.to_ns, shift_ns))
}

fn shift(ring: &mut Ring, shift_ns: i64) {
    ring.read_at_ns = shifted(ring.read_at_ns, shift_ns);
    ring.held_since_ns = shifted(ring.held_since_ns, shift_ns);
    for gap in &mut ring.gaps {
        *gap = shifted_window(*gap, shift_ns);
    }
    for (at_ns, _) in &mut ring.told {
        *at_ns = shifted(*at_ns, shift_ns);
    }
    for record in &mut ring.records {
        record.at_ns = shifted(record.at_ns, shift_ns);
    }
}

/// Gives a sample or a wait of one of these recordings, which are in the order of time, the bit of
/// all, and others none; and spans of different runs different numbers.
fn relabel(record: &mut Record, run: usize, recordings: &[RecordingSpan]) {
    let near = |from_ns: u64, to_ns: u64| {
        let first = recordings.partition_point(|r| r.window.to_ns < from_ns);
        recordings[first..].iter().take_while(move |r| r.window.from_ns <= to_ns)
    };
    let at_ns = record.at_ns;
    match record.kind {
        kind::SAMPLE | kind::NO_SAMPLE => {
            let is_one = near(at_ns, at_ns).any(|r| r.has(record.second, at_ns));
            record.second = record.second & !RING_BITS | u64::from(is_one) << RING_BIT;
        }
        kind::WAIT => {
            let mut wait = Wait { ring_bits: 0, ..Wait::from_number(record.third) };
            let from_ns = at_ns.saturating_sub(wait.length_ns);
            if let Some((_, window)) = near(from_ns, at_ns).find_map(|r| r.wait(record)) {
                // What lies behind the recording's end does not belong to the next one.
                wait.ring_bits = 1 << RING_BIT;
                wait.length_ns = window.length_ns();
                record.at_ns = window.to_ns;
            }
            record.third = wait.to_number();
        }
        kind::SPAN_BEGIN | kind::ASYNC_SPAN_BEGIN | kind::SPAN_END | kind::ENTERED => {
            record.second = record.second.wrapping_add((run as u64) << 48);
        }
        kind::TRACE_HIGH | kind::TRACE_LOW | kind::TRACE_SPAN => {
            record.first = record.first.wrapping_add((run as u64) << 48);
        }
        _ => {}
    }
}

/// Appends what a vCPU's ring held at a later reading.
fn append(joined: &mut Ring, ring: Ring, same_run: bool) {
    let last_ns = joined.records.last().map(|record| record.at_ns);
    let first_ns = ring.records.first().map(|record| record.at_ns);
    if same_run {
        let missing = ring.positions.start.saturating_sub(joined.positions.end);
        if missing > 0 && !ring.records.is_empty() {
            joined.overwritten = joined.overwritten.saturating_add(missing);
            joined.uncovered.extend(
                last_ns.zip(first_ns).map(|(last, first)| Window::new(last, first.max(last))),
            );
        }
        joined.given_up = ring.given_up;
    } else {
        joined
            .uncovered
            .push(Window::new(joined.read_at_ns, ring.held_since_ns.max(joined.read_at_ns)));
        joined.given_up = joined.given_up.saturating_add(ring.given_up);
    }
    if !ring.records.is_empty() || !same_run {
        joined.positions = ring.positions;
    }
    joined.overwritten = joined.overwritten.saturating_add(ring.overwritten);
    joined.capacity = joined.capacity.max(ring.capacity);
    joined.read_at_ns = joined.read_at_ns.max(ring.read_at_ns);
    joined.read_at_unix_ns = ring.read_at_unix_ns.or(joined.read_at_unix_ns);
    joined.gaps.extend(ring.gaps);
    joined.records.extend(ring.records);
    joined.told.extend(ring.told);
    joined.stacks.extend(ring.stacks);
    for (known, also) in
        [(&mut joined.unknown_stack, ring.unknown_stack), (&mut joined.aged_stack, ring.aged_stack)]
    {
        if *known == NodeId::ROOT {
            *known = also;
        }
    }
}

/// Leaves out the guest's marks and spans that are of no recording: marks between them, and spans
/// that ended there, or that began there and did not end in one.
fn leave_out_between(rings: &mut [Ring], recordings: &[Window]) {
    let is_in = |record: &Record| any_contains(recordings, record.at_ns);
    let is_end = |record: &&Record| record.kind == kind::SPAN_END && is_in(record);
    let ends = rings.iter().flat_map(|ring| &ring.records).filter(is_end);
    let ended: HashSet<(u64, u64)> = ends.map(|end| (end.first, end.second)).collect();
    for ring in rings {
        ring.records.retain(|record| match record.kind {
            kind::MARK | kind::SPAN_END => is_in(record),
            kind::SPAN_BEGIN | kind::ASYNC_SPAN_BEGIN => {
                is_in(record) || ended.contains(&(record.first, record.second))
            }
            _ => true,
        });
    }
}

/// Lets the sums of a vCPU's kinds of time stand still between recordings, and go on where the next
/// begins: what passed in between belongs to none, and another run counts from zero.
fn join_times(ring: &mut Ring, windows: &[Window]) {
    if windows.len() < 2 {
        return;
    }
    let of = |at_ns: u64| {
        let after = windows.partition_point(|window| window.from_ns <= at_ns);
        let at = after.checked_sub(1)?;
        (at_ns <= windows[at].to_ns).then_some(at)
    };
    // By recording and half (running and runnable, blocked and offline): the first and the last
    // sums.
    let mut ends: Vec<[Option<[[u64; 2]; 2]>; 2]> = vec![[None; 2]; windows.len()];
    let mut told: Vec<(u64, usize, [u64; 2])> = Vec::new();
    for record in &ring.records {
        match record.kind {
            kind::RAN => told.push((record.at_ns, 0, [record.first, record.second])),
            kind::WAITED => told.push((record.at_ns, 1, [record.first, record.second])),
            _ => {}
        }
    }
    for (at_ns, sums) in &ring.told {
        told.push((*at_ns, 0, [sums[0], sums[1]]));
        told.push((*at_ns, 1, [sums[2], sums[3]]));
    }
    told.sort_by_key(|(at_ns, ..)| *at_ns);
    for (at_ns, half, sums) in told {
        if let Some(recording) = of(at_ns) {
            let ends = ends[recording][half].get_or_insert([sums, sums]);
            ends[1] = sums;
        }
    }
    // What is added to each recording's sums, modulo 2⁶⁴.
    let mut added = vec![[[0_u64; 2]; 2]; windows.len()];
    for half in 0..2 {
        let mut reached: Option<[u64; 2]> = None;
        for recording in 0..windows.len() {
            let Some([first, last]) = ends[recording][half] else {
                continue;
            };
            for at in 0..2 {
                let goes_on = reached.map_or(first[at], |reached| reached[at]);
                added[recording][half][at] = goes_on.wrapping_sub(first[at]);
            }
            let added = added[recording][half];
            reached = Some([0, 1].map(|at| last[at].wrapping_add(added[at])));
        }
    }
    ring.told.retain_mut(|(at_ns, sums)| {
        of(*at_ns).is_some_and(|recording| {
            for (at, sum) in sums.iter_mut().enumerate() {
                *sum = sum.wrapping_add(added[recording][at / 2][at % 2]);
            }
            true
        })
    });
    ring.records.retain_mut(|record| {
        let half = match record.kind {
            kind::RAN => 0,
            kind::WAITED => 1,
            _ => return true,
        };
        of(record.at_ns).is_some_and(|recording| {
            let added = added[recording][half];
            record.first = record.first.wrapping_add(added[0]);
            record.second = record.second.wrapping_add(added[1]);
            true
        })
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A day of many samples does not fit in memory: the newest files are kept whole, and what is
    /// not is told.
    #[test]
    fn the_oldest_files_are_left_out_and_counted() {
        let ring = |from: u64| Ring {
            records: (from..from + 60)
                .map(|at_ns| Record { kind: kind::SAMPLE, at_ns, first: 0, second: 1, third: 0 })
                .collect(),
            positions: from..from + 60,
            held_since_ns: from,
            read_at_ns: from + 60,
            ..Ring::default()
        };
        let mut join = Join { most_records: 130, ..Join::default() };
        for from in [0, 60, 120, 180] {
            join.add(0, Timeline::new(vec![ring(from)], BTreeMap::new(), 0));
        }
        let span = RecordingSpan { recording: Some(1), ring_bit: 0, window: Window::ALL };
        let info = RecordingInfo::default();
        let counted = BTreeMap::from([(0, vec![Window::new(0, 240)])]);
        let (timeline, _) =
            join.finish(&[0], vec![JoinedRecording { run: 0, span, info, counted }]);
        let ring = &timeline.rings()[0];
        assert_eq!((ring.records.len(), ring.left_out), (120, 120));
        let holds = |from_ns, to_ns| {
            let window = Window::new(from_ns, to_ns);
            ring.covered(window) == [window]
        };
        assert!(holds(120, 240) && !holds(119, 240));
    }
}
