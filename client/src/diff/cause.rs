//! The cause of a change: the smallest set of functions without which the rest is as it was.

use super::side::{NameId, Names, Sides, Stack};
use super::statistics::{self, Factor, Hits, LEVEL};
use super::{FunctionHits, Measure};

/// The most functions that a cause has. With more, the recordings are not of the same program.
const MOST: usize = 50;

/// What a function has to do with a change.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Role {
    /// It is part of the cause. The factor is that of its own time if all functions outside of the
    /// cause are as they were; `None` if there are none.
    Cause(Option<Factor>),
    /// It is part of the cause, and what it has more or less, these others have less or more.
    Moved { factor: Option<Factor>, others: Vec<String> },
    /// Its time with its callees changed because of callees in the cause.
    Carries,
    /// Only its share changed, because the time of others did.
    Displaced,
}

/// The functions of a cause, and what follows for others.
#[derive(Debug, Default)]
pub(super) struct Cause {
    /// In the order in which they explain most.
    functions: Vec<(NameId, Option<Factor>, Vec<NameId>)>,
    carries: Vec<NameId>,
    displaced: Vec<NameId>,
}

impl Cause {
    /// Takes the function with the greatest change out of both recordings, compares the rest by its
    /// shares, and so on until nothing in the rest differs more than chance explains. With shares,
    /// a function whose share fell only because another one became slower is then as it was: what
    /// is left serves as the reference, as in the analysis of counts of unknown total (S. Anders
    /// and W. Huber, "Differential expression analysis for sequence count data", 2010).
    pub(super) fn of(
        sides: &Sides,
        hits: &[FunctionHits],
        measure: &Measure,
        is_changed: &dyn Fn(NameId) -> bool,
    ) -> Cause {
        let mut found: Vec<NameId> = Vec::new();
        let mut rest = measure.clone();
        while found.len() < MOST {
            let chances: Vec<Option<f64>> = (0..hits.len())
                .map(|at| {
                    let [base, new] = rest.rates(&hits[at].own);
                    let is_open = !found.contains(&at);
                    is_open.then(|| statistics::chance(&base, &new))
                })
                .collect();
            let shares = statistics::false_discoveries(&chances);
            let differs = |at: &NameId| match found.is_empty() || !measure.is_share {
                true => is_changed(*at) && !found.contains(at),
                false => shares[*at].is_some_and(|share| share <= LEVEL),
            };
            let size = |at: &NameId| {
                let [base, new] = rest.rates(&hits[*at].own);
                let (base, new) = (base.rate(), new.rate());
                ((new - base).abs(), base.max(new) / base.min(new))
            };
            let next = (0..hits.len()).filter(differs).max_by(|a, b| {
                let (a, b) = (size(a), size(b));
                // Of two functions that make up everything, the one with the greater factor,
                // whatever rounding does.
                let is_tie = (a.0 - b.0).abs() <= 1e-9 * a.0;
                let (a, b) = if is_tie { (a.1, b.1) } else { (a.0, b.0) };
                a.total_cmp(&b)
            });
            let Some(next) = next else { break };
            found.push(next);
            rest = without(&found, hits, measure);
            if rest.is_empty() {
                break;
            }
        }
        // What vanished or appeared has not only another share.
        let is_in_one = |at: &NameId| hits[*at].own.iter().any(Vec::is_empty);
        let more = (0..hits.len()).filter(|at| is_changed(*at) && is_in_one(at));
        let more: Vec<NameId> = more.filter(|at| !found.contains(at)).collect();
        found.extend(more);
        rest = without(&found, hits, measure);
        if rest.is_empty() {
            // Nothing is left that could serve as a reference.
            found = (0..hits.len()).filter(|at| is_changed(*at)).collect();
        }
        let factor = |at: NameId| {
            let [base, new] = rest.rates(&hits[at].own);
            statistics::factor(&base, &new)
        };
        let mut functions: Vec<(NameId, Option<Factor>, Vec<NameId>)> =
            found.iter().map(|at| (*at, factor(*at), moved(*at, &found, hits, &rest))).collect();
        // What moved to several functions came to each of them from one.
        for (from, others) in functions.iter().map(|f| (f.0, f.2.clone())).collect::<Vec<_>>() {
            for (to, _, back) in &mut functions {
                if others.contains(to) && back.is_empty() {
                    back.push(from);
                }
            }
        }
        let others = || (0..hits.len()).filter(|at| !found.contains(at));
        Cause {
            functions,
            carries: others().filter(|at| carries(*at, &found, sides, hits, measure)).collect(),
            displaced: others().filter(|at| is_changed(*at)).collect(),
        }
    }

    pub(super) fn role(&self, at: NameId, names: &Names) -> Option<Role> {
        let of_cause = self.functions.iter().find(|(name, ..)| *name == at);
        if let Some((_, factor, others)) = of_cause {
            return Some(if others.is_empty() {
                Role::Cause(*factor)
            } else {
                Role::Moved {
                    factor: *factor,
                    others: others.iter().map(|at| names.all[*at].clone()).collect(),
                }
            });
        }
        if self.carries.contains(&at) {
            return Some(Role::Carries);
        }
        self.displaced.contains(&at).then_some(Role::Displaced)
    }
}

/// What is left without these functions.
fn without(found: &[NameId], hits: &[FunctionHits], measure: &Measure) -> Measure {
    let own: Vec<&[Vec<Hits>; 2]> = found.iter().map(|at| &hits[*at].own).collect();
    measure.without(&own)
}

/// The functions of the cause that changed as much as this one in the other direction: one, or as
/// many as together are closest to it. None if what is left of the change is more than a quarter of
/// it, or more than chance explains.
fn moved(at: NameId, found: &[NameId], hits: &[FunctionHits], rest: &Measure) -> Vec<NameId> {
    let difference = |hits: &[Vec<Hits>; 2]| {
        let [base, new] = rest.rates(hits);
        new.rate() - base.rate()
    };
    let own = difference(&hits[at].own);
    let mut together = hits[at].own.clone();
    let mut left = own;
    let mut others = Vec::new();
    for other in found {
        let added = difference(&hits[*other].own);
        if added * own >= 0.0 || (left + added).abs() >= left.abs() {
            continue;
        }
        others.push(*other);
        left += added;
        for side in [0, 1] {
            together[side].extend(&hits[*other].own[side]);
            together[side] = super::merged(std::mem::take(&mut together[side]));
        }
    }
    let [base, new] = rest.rates(&together);
    let is_moved = left.abs() <= own.abs() / 4.0 && statistics::chance(&base, &new) > LEVEL;
    if is_moved { others } else { Vec::new() }
}

/// Whether a function's time with its callees changed, but not what is left of it without functions
/// of the cause.
fn carries(
    at: NameId,
    found: &[NameId],
    sides: &Sides,
    hits: &[FunctionHits],
    measure: &Measure,
) -> bool {
    let differs = |measure: &Measure, hits: &[Vec<Hits>; 2]| {
        let [base, new] = measure.rates(hits);
        statistics::factor(&base, &new).is_some_and(|factor| factor.is_apart())
    };
    if found.is_empty() || !differs(measure, &hits[at].total) {
        return false;
    }
    let is_caused = |stack: &&Stack| stack.path.first().is_some_and(|leaf| found.contains(leaf));
    let through = |at: NameId, side: usize| {
        let stacks = sides.sides[side].stacks.iter();
        stacks.filter(move |stack| stack.path.contains(&at))
    };
    if ![0, 1].iter().any(|side| through(at, *side).any(|stack| is_caused(&stack))) {
        return false;
    }
    let rest = [0, 1].map(|side| {
        let stacks = through(at, side).filter(|stack| !is_caused(stack));
        super::merged(stacks.flat_map(|stack| stack.hits.iter().copied()).collect())
    });
    !differs(&without(found, hits, measure), &rest)
}
