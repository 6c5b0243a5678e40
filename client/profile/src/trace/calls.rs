//! The calls of a trace, from the records of the rings: a tree for each stack of the guest.
//!
//! Records come from an agent or a file and may say anything: a call that ends without having
//! begun, functions that do not exist, times that run backwards. What does not fit is counted and
//! left out. After records were lost, the calls that were open before keep their place and later
//! calls begin a new tree: nobody knows which of them had ended.

use std::collections::BTreeMap;

use unikprof_proto::ring::{Enter, Leave, how, kind};

use crate::timeline::{Ring, Timeline};

/// The calls of a trace.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Calls {
    /// In the order of their beginnings; a call stands before those inside it.
    pub all: Vec<Call>,
    /// Times at which records were lost: the vCPU, from the last record before to the first one
    /// after.
    pub holes: Vec<Hole>,
    /// Records that were evicted from the rings before they could be fetched.
    pub lost: u64,
    /// Ends of calls whose beginning is not there: it was before the trace, or its record was lost.
    pub(crate) orphans: u64,
    /// Calls that ended together with one around them, whose own end is not there.
    pub without_end: u64,
    /// Records of another trace.
    pub foreign: u64,
    /// Records that name functions which the trace does not have, or that are nested deeper than
    /// any agent keeps.
    pub unknown: u64,
    /// Calls that end before they begin; their duration counts as zero.
    pub backwards: u64,
}

/// Lost records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hole {
    pub vcpu: u32,
    pub from_ns: u64,
    pub to_ns: u64,
}

/// One call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Its place in the trace.
    pub function: u16,
    /// The vCPU on which it began.
    pub vcpu: u32,
    /// The number of the guest's stack.
    pub stack: u64,
    /// The code of its return address.
    pub(crate) caller: u32,
    /// On the guest's monotonic clock.
    pub start_ns: u64,
    /// If its end is not known: a time at which it was certainly over, or the time of the last
    /// record.
    pub end_ns: u64,
    /// How it ended.
    pub end: End,
    /// While no traced call inside it was open and the vCPU did not run.
    pub waited_ns: u64,
    /// The call that it was made in.
    pub parent: Option<usize>,
    pub(crate) depth: u32,
    /// Records were lost while it was open: calls inside it may be missing.
    pub has_hole: bool,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum End {
    /// As calls do.
    Returned,
    /// By an exception or the like, and found later: its duration is too long.
    Unwound,
    /// By an unseen jump to another traced function.
    Replaced,
    /// It was open at the last record.
    Open,
    /// The record of its end was lost.
    Lost,
}

impl End {
    /// In the order of the declaration.
    pub const ALL: [End; 5] = [End::Returned, End::Unwound, End::Replaced, End::Open, End::Lost];

    /// The mark in tables.
    pub fn text(self) -> &'static str {
        match self {
            End::Returned => "",
            End::Unwound => "unwound",
            End::Replaced => "replaced",
            End::Open => "still open",
            End::Lost => "end lost",
        }
    }
}

impl Call {
    /// From its start to its end, waiting included.
    pub fn duration_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}

/// How deep calls may be nested: far beyond any agent's memory, well within this program's stack.
const MOST_OPEN: usize = 512;

/// What happens, in the order of time.
#[derive(Debug, Clone, Copy)]
enum Step {
    Hole(Hole),
    Enter(Enter),
    Leave(Leave),
}

/// The calls that are open on one stack.
#[derive(Debug, Default)]
struct Open {
    /// The vCPU of the last record.
    vcpu: u32,
    calls: Vec<usize>,
    /// Those that were open when records were lost.
    before_hole: Vec<usize>,
}

impl Calls {
    /// The calls of the trace with this number, of functions with an index below `functions`;
    /// `from_ns` is when it began.
    pub fn of(timeline: &Timeline, number: u16, functions: usize, from_ns: u64) -> Calls {
        let mut calls = Calls::default();
        let mut steps: Vec<(u64, u32, u64, Step)> = Vec::new();
        let mut last_ns = from_ns;
        for ring in timeline.rings() {
            calls.lost = calls.lost.saturating_add(ring.overwritten);
            for hole in holes(ring, from_ns) {
                calls.holes.push(hole);
                steps.push((hole.to_ns, ring.vcpu, 0, Step::Hole(hole)));
            }
            for record in &ring.records {
                let (trace, function, step) = match record.kind {
                    kind::ENTER => {
                        let enter = Enter::from_number(record.first);
                        (enter.trace, enter.function, Step::Enter(enter))
                    }
                    kind::LEAVE => {
                        let leave = Leave::from_number(record.first);
                        (leave.trace, leave.function, Step::Leave(leave))
                    }
                    _ => continue,
                };
                if trace != number {
                    calls.foreign += 1;
                } else if usize::from(function) >= functions {
                    calls.unknown += 1;
                } else {
                    last_ns = last_ns.max(record.at_ns);
                    steps.push((record.at_ns, ring.vcpu, record.second, step));
                }
            }
        }
        // The order of a ring's own records stays: several may have the same time.
        steps.sort_by_key(|(at_ns, ..)| *at_ns);
        let mut stacks: BTreeMap<u64, Open> = BTreeMap::new();
        for (at_ns, vcpu, stack, step) in steps {
            match step {
                Step::Hole(hole) => {
                    for open in stacks.values_mut().filter(|open| open.vcpu == hole.vcpu) {
                        open.before_hole.append(&mut open.calls);
                        for &call in &open.before_hole {
                            calls.all[call].has_hole = true;
                        }
                    }
                }
                Step::Enter(enter) => {
                    let open = stacks.entry(stack).or_default();
                    open.vcpu = vcpu;
                    let parent = open.calls.last().copied();
                    if open.calls.len() >= MOST_OPEN {
                        calls.unknown += 1;
                        continue;
                    }
                    open.calls.push(calls.all.len());
                    calls.all.push(Call {
                        function: enter.function,
                        vcpu,
                        stack,
                        caller: enter.caller,
                        start_ns: at_ns,
                        end_ns: at_ns,
                        end: End::Lost,
                        waited_ns: 0,
                        parent,
                        depth: parent.map_or(0, |parent| calls.all[parent].depth + 1),
                        has_hole: false,
                    });
                }
                Step::Leave(leave) => {
                    let open = stacks.entry(stack).or_default();
                    open.vcpu = vcpu;
                    calls.leave(open, &leave, at_ns);
                }
            }
        }
        for open in stacks.into_values() {
            for call in open.before_hole {
                calls.without_end += 1;
                calls.close(call, last_ns, End::Lost, 0);
            }
            for call in open.calls {
                calls.close(call, last_ns, End::Open, 0);
            }
        }
        calls.holes.sort_by_key(|hole| (hole.from_ns, hole.vcpu));
        calls
    }

    /// Nothing tells when the open calls of functions without probes have ended: they take no time,
    /// and what began later is inside the calls around them.
    pub fn cut_open(&mut self, is_removed: impl Fn(u16) -> bool) {
        for at in 0..self.all.len() {
            let is_cut = |call: &Call| call.end == End::Open && is_removed(call.function);
            // Those around it stand before it.
            if let Some(parent) = self.all[at].parent {
                let around = &self.all[parent];
                let parent = if is_cut(around) { around.parent } else { Some(parent) };
                self.all[at].parent = parent;
                self.all[at].depth = parent.map_or(0, |parent| self.all[parent].depth + 1);
            }
            let call = &mut self.all[at];
            if is_cut(call) {
                call.end_ns = call.start_ns;
                call.waited_ns = 0;
            }
        }
    }

    fn leave(&mut self, open: &mut Open, leave: &Leave, at_ns: u64) {
        let is_it = |calls: &Calls, call: &usize| calls.all[*call].function == leave.function;
        let list = if open.calls.iter().any(|call| is_it(self, call)) {
            &mut open.calls
        } else if open.before_hole.iter().any(|call| is_it(self, call)) {
            // What was called since the hole has ended, too.
            while let Some(call) = open.calls.pop() {
                self.without_end += 1;
                self.close(call, at_ns, End::Lost, 0);
            }
            &mut open.before_hole
        } else {
            self.orphans += 1;
            return;
        };
        while let Some(call) = list.pop() {
            if !is_it(self, &call) {
                self.without_end += 1;
                self.close(call, at_ns, End::Lost, 0);
                continue;
            }
            let end = match leave.how {
                how::UNWOUND => End::Unwound,
                how::REPLACED => End::Replaced,
                how::OPEN => End::Open,
                _ => End::Returned,
            };
            self.close(call, at_ns, end, leave.waited_ns);
            return;
        }
    }

    fn close(&mut self, call: usize, at_ns: u64, end: End, waited_ns: u64) {
        let call = &mut self.all[call];
        if at_ns < call.start_ns {
            self.backwards += 1;
        }
        call.end_ns = at_ns.max(call.start_ns);
        call.end = end;
        // It cannot have waited longer than it took.
        call.waited_ns = waited_ns.min(call.end_ns - call.start_ns);
    }
}

/// Where records of a ring are missing, from a moment on.
fn holes(ring: &Ring, from_ns: u64) -> impl Iterator<Item = Hole> + '_ {
    let vcpu = ring.vcpu;
    let first = (ring.held_since_ns > from_ns).then_some((from_ns, ring.held_since_ns));
    let gaps = ring.gaps.iter().map(|gap| (gap.from_ns, gap.to_ns));
    let all = first.into_iter().chain(gaps);
    all.filter(move |(_, to_ns)| *to_ns > from_ns).map(move |(from_ns, to_ns)| Hole {
        vcpu,
        from_ns,
        to_ns,
    })
}

#[cfg(test)]
mod tests {
    use unikprof_proto::ring::Record;

    use unikprof_test_kit::calls::{TRACE, enter, leave};

    use super::*;
    use crate::timeline::Window;

    fn timeline(rings: Vec<Vec<Record>>, gaps: Vec<Window>) -> Timeline {
        let rings = rings.into_iter().enumerate().map(|(vcpu, records)| Ring {
            vcpu: vcpu as u32,
            records,
            gaps: if vcpu == 0 { gaps.clone() } else { Vec::new() },
            overwritten: if vcpu == 0 { gaps.len() as u64 * 10 } else { 0 },
            ..Ring::default()
        });
        Timeline::new(rings.collect(), BTreeMap::new(), 0)
    }

    /// Each call: its function, beginning, end, how it ended, and its parent's place.
    fn shape(calls: &Calls) -> Vec<(u16, u64, u64, End, Option<usize>)> {
        let all = calls.all.iter();
        all.map(|it| (it.function, it.start_ns, it.end_ns, it.end, it.parent)).collect()
    }

    #[test]
    fn calls_nest_on_each_stack_by_itself_whichever_vcpu_it_runs_on() {
        let first =
            vec![enter(0, 1, 10), enter(1, 2, 11), enter(1, 1, 12), leave(1, 1, 15, how::RETURNED)];
        // Stack 1 moved to the other vCPU.
        let second = vec![leave(1, 2, 18, how::UNWOUND), leave(0, 1, 20, how::RETURNED)];
        let calls = Calls::of(&timeline(vec![first, second], vec![]), TRACE, 2, 0);
        assert_eq!(
            shape(&calls),
            [
                (0, 10, 20, End::Returned, None),
                (1, 11, 18, End::Unwound, None),
                (1, 12, 15, End::Returned, Some(0)),
            ]
        );
        assert_eq!((calls.orphans, calls.without_end, calls.lost), (0, 0, 0));
        assert_eq!(calls.all[0].waited_ns, 10, "at most its duration");
    }

    #[test]
    fn what_does_not_fit_is_counted_and_left_out() {
        let records = vec![
            leave(0, 1, 5, how::RETURNED),
            enter(9, 1, 6),
            Record { first: Enter::from_number(0).to_number(), ..enter(0, 1, 7) },
            enter(0, 1, 10),
            enter(1, 1, 12),
            leave(0, 1, 20, how::RETURNED),
            enter(1, 3, 30),
        ];
        let calls = Calls::of(&timeline(vec![records], vec![]), TRACE, 2, 0);
        assert_eq!(
            shape(&calls),
            [
                (0, 10, 20, End::Returned, None),
                (1, 12, 20, End::Lost, Some(0)),
                (1, 30, 30, End::Open, None),
            ]
        );
        let Calls { orphans, foreign, unknown, without_end, backwards, .. } = calls;
        assert_eq!((orphans, foreign, unknown), (1, 1, 1));
        assert_eq!((without_end, backwards), (1, 0));
    }

    /// After lost records, nobody knows which calls are open: what follows is no child of theirs.
    #[test]
    fn lost_records_leave_a_hole_and_no_false_children() {
        let records = vec![
            enter(0, 1, 10),
            enter(1, 1, 12),
            enter(1, 1, 50),
            leave(1, 1, 55, how::RETURNED),
            leave(0, 1, 60, how::RETURNED),
            enter(1, 1, 70),
            leave(1, 1, 71, how::RETURNED),
        ];
        let gap = Window { from_ns: 12, to_ns: 50 };
        let calls = Calls::of(&timeline(vec![records], vec![gap]), TRACE, 2, 0);
        assert_eq!(
            shape(&calls),
            [
                (0, 10, 60, End::Returned, None),
                (1, 12, 60, End::Lost, Some(0)),
                (1, 50, 55, End::Returned, None),
                (1, 70, 71, End::Returned, None),
            ]
        );
        let holes: Vec<bool> = calls.all.iter().map(|call| call.has_hole).collect();
        assert_eq!(holes, [true, true, false, false]);
        assert_eq!((calls.lost, calls.holes.len()), (10, 1));
    }

    /// Nobody knows when the first call of 1 ended, whose probes were removed: what follows may not
    /// be inside it.
    #[test]
    fn calls_behind_one_without_an_end_are_inside_its_caller() {
        let records = vec![
            enter(0, 1, 10),
            enter(1, 1, 20),
            enter(2, 1, 30),
            leave(2, 1, 40, how::RETURNED),
            leave(1, 1, 50, how::OPEN),
            leave(0, 1, 60, how::RETURNED),
        ];
        let mut calls = Calls::of(&timeline(vec![records], vec![]), TRACE, 3, 0);
        calls.cut_open(|function| function == 1);
        assert_eq!(
            shape(&calls),
            [
                (0, 10, 60, End::Returned, None),
                (1, 20, 20, End::Open, Some(0)),
                (2, 30, 40, End::Returned, Some(0)),
            ]
        );
        assert_eq!(calls.all[2].depth, 1);
    }

    /// No order of records may panic.
    #[test]
    fn any_records_are_survived() {
        let mut random = fastrand::Rng::with_seed(16);
        for _ in 0..300 {
            let records = |random: &mut fastrand::Rng| -> Vec<Record> {
                let record = |random: &mut fastrand::Rng| Record {
                    kind: random.choice([kind::ENTER, kind::LEAVE, 31]).unwrap_or(0),
                    at_ns: random.u64(0..50) << random.u32(0..58),
                    first: u64::from(random.u16(0..4))
                        | u64::from(random.u16(TRACE - 1..=TRACE)) << 16
                        | random.u64(..) << 32,
                    second: random.u64(0..3),
                    third: 0,
                };
                (0..40).map(|_| record(random)).collect()
            };
            let rings = vec![records(&mut random), records(&mut random)];
            let gaps = vec![Window { from_ns: random.u64(0..20), to_ns: random.u64(0..60) }];
            let calls = Calls::of(&timeline(rings, gaps), TRACE, 3, 0);
            for call in &calls.all {
                assert!(call.end_ns >= call.start_ns && call.waited_ns <= call.duration_ns());
                assert!(call.parent.is_none_or(|parent| {
                    let parent = &calls.all[parent];
                    parent.depth + 1 == call.depth && parent.stack == call.stack
                }));
            }
        }
    }
}
