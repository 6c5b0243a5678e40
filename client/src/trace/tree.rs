//! Calls as trees to look at: some hidden, short ones left out, repetitions folded.

use super::calls::{Calls, End};

/// What of the calls is shown.
pub(crate) struct Selection<'s> {
    /// Only calls that took so long, in ns.
    pub(crate) min_ns: u64,
    /// Whether the calls of a function are left out, and those inside them shown in their place.
    pub(crate) is_hidden: &'s dyn Fn(u16) -> bool,
    /// Whether calls of a function, with those inside them, are shown; all others are only if they
    /// lie in one of these.
    pub(crate) is_inside: Option<&'s dyn Fn(u16) -> bool>,
}

/// A call, or several consecutive ones of the same shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Branch {
    /// The place in [`Calls::all`] of the first.
    pub(crate) call: usize,
    pub(crate) function: u16,
    /// The number of the guest's stack.
    pub(crate) stack: u64,
    /// How many there are.
    pub(crate) times: u64,
    pub(crate) start_ns: u64,
    /// Of all of them.
    pub(crate) duration_ns: u64,
    /// Without the calls inside that are shown or left out for being short.
    pub(crate) self_ns: u64,
    /// With the calls inside.
    pub(crate) blocked_ns: u64,
    /// How they ended, if not by a return: each way, and how many.
    pub(crate) ends: Vec<(End, u64)>,
    pub(crate) has_hole: bool,
    pub(crate) inside: Vec<Branch>,
    /// Calls inside that are left out for being short, with all calls inside them, and their
    /// duration.
    pub(crate) short: Short,
}

/// Calls that are left out for being short.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Short {
    pub(crate) calls: u64,
    pub(crate) duration_ns: u64,
}

impl Short {
    pub(super) fn add(&mut self, other: Short) {
        self.calls = self.calls.saturating_add(other.calls);
        self.duration_ns = self.duration_ns.saturating_add(other.duration_ns);
    }
}

/// The calls inside each call.
pub(crate) struct Inside {
    lists: Vec<Vec<u32>>,
    roots: Vec<usize>,
}

impl Inside {
    pub(crate) fn of(calls: &Calls) -> Inside {
        let mut lists = vec![Vec::new(); calls.all.len()];
        let mut roots = Vec::new();
        for (at, call) in calls.all.iter().enumerate() {
            match call.parent {
                Some(parent) => lists[parent].push(at as u32),
                None => roots.push(at),
            }
        }
        Inside { lists, roots }
    }

    /// The calls directly inside one.
    pub(crate) fn direct(&self, call: usize) -> impl Iterator<Item = usize> + '_ {
        self.lists[call].iter().map(|at| *at as usize)
    }
}

/// The trees of all calls, and what was left out for being short.
pub(crate) fn trees(
    calls: &Calls,
    inside: &Inside,
    selection: &Selection<'_>,
) -> (Vec<Branch>, Short) {
    let mut trees = Vec::new();
    for &root in &inside.roots {
        match selection.is_inside {
            None => trees.extend(branches(calls, inside, selection, root)),
            Some(is_inside) => {
                let mut open = vec![root];
                while let Some(call) = open.pop() {
                    if is_inside(calls.all[call].function) {
                        trees.extend(branches(calls, inside, selection, call));
                    } else {
                        open.extend(inside.direct(call));
                    }
                }
            }
        }
    }
    trees.sort_by_key(|tree| (tree.start_ns, tree.call));
    prune(trees, selection.min_ns)
}

/// The tree of one call.
pub(crate) fn branches(
    calls: &Calls,
    inside: &Inside,
    selection: &Selection<'_>,
    at: usize,
) -> Vec<Branch> {
    let call = &calls.all[at];
    let children = inside.direct(at);
    let children = children.flat_map(|child| branches(calls, inside, selection, child));
    let children: Vec<Branch> = children.collect();
    if (selection.is_hidden)(call.function) {
        return children;
    }
    let sum = |of: fn(&Branch) -> u64| children.iter().map(of).fold(0, u64::saturating_add);
    let duration_ns = call.duration_ns();
    let self_ns = duration_ns.saturating_sub(sum(|it| it.duration_ns));
    let hidden_ns =
        inside.direct(at).filter(|child| (selection.is_hidden)(calls.all[*child].function));
    let hidden_ns = hidden_ns.fold(0, |sum: u64, child| {
        sum.saturating_add(blocked_of_hidden(calls, inside, selection, child))
    });
    let blocked_ns =
        call.blocked_ns.saturating_add(hidden_ns).saturating_add(sum(|it| it.blocked_ns));
    let (children, short) = prune(children, selection.min_ns);
    vec![Branch {
        call: at,
        function: call.function,
        stack: call.stack,
        times: 1,
        start_ns: call.start_ns,
        duration_ns,
        self_ns,
        blocked_ns,
        ends: match call.end {
            End::Returned => Vec::new(),
            end => vec![(end, 1)],
        },
        has_hole: call.has_hole,
        inside: children,
        short,
    }]
}

/// The blocked time of a hidden call and of hidden calls inside it: it belongs to the call around
/// them.
fn blocked_of_hidden(calls: &Calls, inside: &Inside, selection: &Selection<'_>, at: usize) -> u64 {
    let hidden =
        inside.direct(at).filter(|child| (selection.is_hidden)(calls.all[*child].function));
    let own = calls.all[at].blocked_ns;
    hidden.fold(own, |sum, child| {
        sum.saturating_add(blocked_of_hidden(calls, inside, selection, child))
    })
}

/// Leaves out short calls, and joins consecutive ones of the same shape.
fn prune(branches: Vec<Branch>, min_ns: u64) -> (Vec<Branch>, Short) {
    let mut short = Short::default();
    let mut kept: Vec<Branch> = Vec::new();
    for branch in branches {
        if branch.duration_ns < min_ns {
            short.add(Short { calls: branch.calls(), duration_ns: branch.duration_ns });
            continue;
        }
        match kept.last_mut() {
            Some(last) if last.has_shape_of(&branch) => last.join(branch),
            _ => kept.push(branch),
        }
    }
    (kept, short)
}

impl Branch {
    /// All calls in it, those that are not shown as well.
    pub(crate) fn calls(&self) -> u64 {
        let inside = self.inside.iter().map(Branch::calls);
        inside.fold(self.times.saturating_add(self.short.calls), u64::saturating_add)
    }

    fn has_shape_of(&self, other: &Branch) -> bool {
        self.function == other.function
            && self.stack == other.stack
            && self.inside.len() == other.inside.len()
            && self.inside.iter().zip(&other.inside).all(|(a, b)| a.has_shape_of(b))
    }

    fn join(&mut self, other: Branch) {
        self.times = self.times.saturating_add(other.times);
        self.duration_ns = self.duration_ns.saturating_add(other.duration_ns);
        self.self_ns = self.self_ns.saturating_add(other.self_ns);
        self.blocked_ns = self.blocked_ns.saturating_add(other.blocked_ns);
        for (end, count) in other.ends {
            match self.ends.iter_mut().find(|(known, _)| *known == end) {
                Some((_, known)) => *known = known.saturating_add(count),
                None => self.ends.push((end, count)),
            }
        }
        self.has_hole |= other.has_hole;
        self.short.add(other.short);
        for (mine, other) in self.inside.iter_mut().zip(other.inside) {
            mine.join(other);
        }
    }
}

#[cfg(test)]
mod tests {
    use unikprof_proto::ring::{Record, how};

    use super::super::calls::tests::{TRACE, enter, leave, timeline};
    use super::*;

    /// One line for each branch: its function, times, duration, self time and short calls.
    fn drawn(branches: &[Branch]) -> String {
        branches
            .iter()
            .map(|it| {
                let inside = match it.inside.as_slice() {
                    [] => String::new(),
                    inside => format!(" [{}]", drawn(inside)),
                };
                let short = match it.short.calls {
                    0 => String::new(),
                    calls => format!(" short {calls} {}", it.short.duration_ns),
                };
                format!(
                    "{}x{} {} {}{short}{inside}",
                    it.function, it.times, it.duration_ns, it.self_ns
                )
            })
            .collect::<Vec<_>>()
            .join("; ")
    }

    /// 0 calls 1 three times, each of which calls 2, then 3, which calls 2.
    fn calls() -> Calls {
        let mut records: Vec<Record> = vec![enter(0, 1, 0)];
        for at in [10, 20, 30] {
            records.extend([
                enter(1, 1, at),
                enter(2, 1, at + 1),
                leave(2, 1, at + 3, how::RETURNED),
                leave(1, 1, at + 5, how::RETURNED),
            ]);
        }
        records.extend([
            enter(3, 1, 50),
            enter(2, 1, 51),
            leave(2, 1, 52, how::UNWOUND),
            leave(3, 1, 80, how::RETURNED),
            leave(0, 1, 100, how::RETURNED),
        ]);
        Calls::of(&timeline(vec![records], vec![]), TRACE, 4, 0)
    }

    fn shown(min_ns: u64, hidden: &[u16], inside: Option<u16>) -> String {
        let calls = calls();
        let is_inside = |function| Some(function) == inside;
        let selection = Selection {
            min_ns,
            is_hidden: &|function| hidden.contains(&function),
            is_inside: inside.is_some().then_some(&is_inside),
        };
        let (trees, short) = trees(&calls, &Inside::of(&calls), &selection);
        let all: u64 = trees.iter().map(Branch::calls).sum();
        if hidden.is_empty() && inside.is_none() {
            assert_eq!(all + short.calls, 9, "no call vanishes");
        }
        drawn(&trees)
    }

    #[test]
    fn repetitions_are_folded() {
        assert_eq!(shown(0, &[], None), "0x1 100 55 [1x3 15 9 [2x3 6 6]; 3x1 30 29 [2x1 1 1]]");
    }

    #[test]
    fn short_calls_are_left_out_and_counted() {
        assert_eq!(shown(2, &[], None), "0x1 100 55 [1x3 15 9 [2x3 6 6]; 3x1 30 29 short 1 1]");
        assert_eq!(shown(6, &[], None), "0x1 100 55 short 6 15 [3x1 30 29 short 1 1]");
        assert_eq!(shown(101, &[], None), "");
    }

    #[test]
    fn hidden_functions_leave_what_they_called_and_their_time() {
        assert_eq!(shown(0, &[1, 3], None), "0x1 100 93 [2x4 7 7]");
        assert_eq!(shown(0, &[0], None), "1x3 15 9 [2x3 6 6]; 3x1 30 29 [2x1 1 1]");
    }

    #[test]
    fn only_what_happens_inside_a_function_is_shown() {
        assert_eq!(shown(0, &[], Some(3)), "3x1 30 29 [2x1 1 1]");
        assert_eq!(shown(0, &[], Some(1)), "1x3 15 9 [2x3 6 6]");
    }
}
