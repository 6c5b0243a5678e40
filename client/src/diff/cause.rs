//! The cause of a change: the smallest set of functions without which the rest is as it was.

use super::side::{NameId, Names, Sides, Stack};
use super::statistics::{self, Factor, Hits, LEVEL};
use super::{FunctionHits, Measure};
use crate::units::sum;

/// The most functions that a cause has. With more, the recordings are not of the same program.
const MOST: usize = 50;

/// The most functions that are looked at in the place of one.
const MOST_EITHER: usize = 8;

/// The square of 2.576 standard deviations, which a normal distribution exceeds on one side in half
/// a percent.
const APART: f64 = 6.635;

/// What a function has to do with a change.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Role {
    /// It is part of the cause. The factor is that of its own time if all functions outside of the
    /// cause are as they were; `None` if there are none.
    Cause(Option<Factor>),
    /// It is part of the cause, or one of these others is in its place.
    Either(Box<Either>),
    /// It is part of the cause, and what it has more or less, these others have less or more.
    Moved { factor: Option<Factor>, others: Vec<String> },
    /// Its time with its callees changed because of callees in the cause.
    Carries,
    /// Only its share changed, because the time of others did.
    Displaced,
}

/// A function that explains a change about as well as others do, each by itself.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Either {
    /// By which its own time changed if it is the one.
    pub(super) factor: Option<Factor>,
    /// The same of the others.
    pub(super) others: Vec<(String, Option<Factor>)>,
    /// Whether no other one explains the change better.
    pub(super) is_first: bool,
    /// How many times as long recordings would tell them apart, at this difference; infinite if
    /// they explain it equally well.
    pub(super) times_longer: f64,
}

/// A function of a cause.
#[derive(Debug, Clone, Default)]
struct Part {
    name: NameId,
    factor: Option<Factor>,
    moved: Vec<NameId>,
    /// Those of which one may be in its place.
    either: Vec<(NameId, Option<Factor>)>,
    times_longer: f64,
}

/// The functions of a cause, and what follows for others.
#[derive(Debug, Default)]
pub(super) struct Cause {
    /// In the order in which they explain most.
    functions: Vec<Part>,
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
        let mut found = searched(0.0, hits, measure, is_changed);
        if measure.is_share {
            // The greatest change may be that of a function that is as it was: where several became
            // slower, they all took from its share.
            let score = |found: &[NameId]| {
                let misfit = misfit(found, hits, measure).unwrap_or(f64::INFINITY);
                misfit + APART * found.len() as f64
            };
            for way in [1.0, -1.0] {
                let other = searched(way, hits, measure, is_changed);
                if score(&other) < score(&found) {
                    found = other;
                }
            }
        }
        let replaced = if measure.is_share { weighed(&mut found, hits, measure) } else { vec![] };
        // What vanished or appeared has not only another share.
        let is_in_one = |at: &NameId| hits[*at].own.iter().any(Vec::is_empty);
        let more = (0..hits.len()).filter(|at| is_changed(*at) && is_in_one(at));
        let more: Vec<NameId> = more.filter(|at| !found.contains(at)).collect();
        found.extend(more);
        let rest = without(&found, hits, measure);
        if rest.is_empty() {
            // Nothing is left that could serve as a reference.
            found = (0..hits.len()).filter(|at| is_changed(*at)).collect();
        }
        let part = |at: &NameId| {
            let either = replaced.iter().find(|part| part.name == *at).cloned();
            let part = either.unwrap_or_else(|| Part {
                name: *at,
                moved: moved(*at, &found, hits, &rest),
                ..Part::default()
            });
            Part { factor: factor(*at, hits, &rest), ..part }
        };
        let mut functions: Vec<Part> = found.iter().map(part).collect();
        // What moved to several functions came to each of them from one.
        for (from, others) in
            functions.iter().map(|f| (f.name, f.moved.clone())).collect::<Vec<_>>()
        {
            for part in &mut functions {
                if others.contains(&part.name) && part.moved.is_empty() {
                    part.moved.push(from);
                }
            }
        }
        let either = |at: &NameId| functions.iter().any(|part| part.has_either(*at));
        let others = || (0..hits.len()).filter(|at| !found.contains(at) && !either(at));
        Cause {
            carries: others().filter(|at| carries(*at, &found, sides, hits, measure)).collect(),
            displaced: others().filter(|at| is_changed(*at)).collect(),
            functions,
        }
    }

    pub(super) fn role(&self, at: NameId, names: &Names) -> Option<Role> {
        let name = |at: NameId| names.all[at].clone();
        if let Some(part) = self.functions.iter().find(|part| part.name == at) {
            return Some(if !part.either.is_empty() {
                part.either_of(at, &name)
            } else if part.moved.is_empty() {
                Role::Cause(part.factor)
            } else {
                let others = part.moved.iter().map(|at| name(*at));
                Role::Moved { factor: part.factor, others: others.collect() }
            });
        }
        let replacing = self.functions.iter().find(|part| part.has_either(at));
        if let Some(part) = replacing {
            return Some(part.either_of(at, &name));
        }
        if self.carries.contains(&at) {
            return Some(Role::Carries);
        }
        self.displaced.contains(&at).then_some(Role::Displaced)
    }
}

impl Part {
    fn has_either(&self, at: NameId) -> bool {
        self.either.iter().any(|(name, _)| *name == at)
    }

    fn either_of(&self, at: NameId, name: &dyn Fn(NameId) -> String) -> Role {
        let all = || std::iter::once((self.name, self.factor)).chain(self.either.iter().copied());
        let others = all().filter(|(other, _)| *other != at);
        Role::Either(Box::new(Either {
            factor: all().find(|(name, _)| *name == at).and_then(|(_, factor)| factor),
            others: others.map(|(other, factor)| (name(other), factor)).collect(),
            is_first: at == self.name,
            times_longer: self.times_longer,
        }))
    }
}

fn factor(at: NameId, hits: &[FunctionHits], rest: &Measure) -> Option<Factor> {
    if rest.is_empty() {
        return None;
    }
    let [base, new] = rest.rates(&hits[at].own);
    statistics::factor(&base, &new)
}

fn is_in_both(at: NameId, hits: &[FunctionHits]) -> bool {
    hits[at].own.iter().all(|hits| !hits.is_empty())
}

/// Which functions differ in the rest by more than chance.
fn differing(found: &[NameId], hits: &[FunctionHits], rest: &Measure) -> Vec<bool> {
    let chances: Vec<Option<f64>> = (0..hits.len())
        .map(|at| {
            let [base, new] = rest.rates(&hits[at].own);
            (!found.contains(&at)).then(|| statistics::chance(&base, &new))
        })
        .collect();
    let shares = statistics::false_discoveries(&chances);
    shares.iter().map(|share| share.is_some_and(|share| share <= LEVEL)).collect()
}

/// How far the functions outside of a cause differ in their shares of the rest: Pearson's sum of
/// squares, with the variances of blocks. `None` if nothing is left.
fn misfit(found: &[NameId], hits: &[FunctionHits], measure: &Measure) -> Option<f64> {
    let rest = without(found, hits, measure);
    let outside = (0..hits.len()).filter(|at| !found.contains(at));
    let square = |at: NameId| statistics::square(&rest.rates(&hits[at].own));
    (!rest.is_empty()).then(|| sum(outside.map(square)))
}

/// Leaves out what the others of a cause explain, and puts functions that explain a change better
/// in the place of those that do not. Answers for those of the cause that others explain about as
/// well: these, with their factors, and how many times as long it takes to tell them apart.
///
/// Two explanations of as many functions are told apart if the squares of what they leave differ by
/// more than [`APART`]: the wrong one is better by so much in at most half a percent of all
/// recordings, however far they are apart.
fn weighed(found: &mut Vec<NameId>, hits: &[FunctionHits], measure: &Measure) -> Vec<Part> {
    for at in found.clone() {
        let fewer: Vec<NameId> = found.iter().copied().filter(|it| *it != at).collect();
        let rest = without(&fewer, hits, measure);
        if !fewer.is_empty() && !differing(&fewer, hits, &rest).contains(&true) {
            *found = fewer;
        }
    }
    let mut replaced: Vec<Part> = Vec::new();
    for place in 0..found.len() {
        let at = found[place];
        if !is_in_both(at, hits) {
            continue;
        }
        let fewer: Vec<NameId> = found.iter().copied().filter(|it| *it != at).collect();
        let rest = without(&fewer, hits, measure);
        let moved = |at: NameId| {
            let [base, new] = rest.rates(&hits[at].own);
            (new.rate() - base.rate()).abs()
        };
        // What is in the place of another one moves all others' shares together by as much.
        let is_taken =
            |at: &NameId| found.contains(at) || replaced.iter().any(|part| part.has_either(*at));
        let others = (0..hits.len()).filter(|it| is_in_both(*it, hits) && !is_taken(it));
        let mut others: Vec<NameId> = others.filter(|it| moved(*it) >= moved(at) / 2.0).collect();
        others.sort_by(|a, b| moved(*b).total_cmp(&moved(*a)));
        others.truncate(MOST_EITHER);
        let with = |at: NameId| [&fewer[..], &[at]].concat();
        let fits = std::iter::once(at).chain(others);
        let fits = fits.filter_map(|it| Some((it, misfit(&with(it), hits, measure)?)));
        let mut fits: Vec<(NameId, f64)> = fits.collect();
        fits.sort_by(|a, b| a.1.total_cmp(&b.1));
        let Some((best, least)) = fits.first().copied() else { continue };
        found[place] = best;
        let factor = |at: NameId| factor(at, hits, &without(&with(at), hits, measure));
        let close = fits[1..].iter().filter(|(_, misfit)| misfit - least < APART);
        let close = close.map(|(at, misfit)| ((*at, factor(*at)), misfit));
        // One that may be as it was explains nothing.
        let close = close.filter(|((_, factor), _)| factor.is_none_or(|it| it.is_apart()));
        let times = close.clone().map(|(_, misfit)| APART / (misfit - least));
        let times = times.fold(0.0, f64::max);
        let either: Vec<_> = close.map(|(either, _)| either).collect();
        if !either.is_empty() {
            replaced.push(Part { name: best, either, times_longer: times, ..Part::default() });
        }
    }
    replaced
}

/// The functions that must be taken out, the one with the greatest change first, until nothing in the
/// rest differs more than chance explains. First those whose share rose if `way` is positive, or
/// fell if it is negative.
fn searched(
    way: f64,
    hits: &[FunctionHits],
    measure: &Measure,
    is_changed: &dyn Fn(NameId) -> bool,
) -> Vec<NameId> {
    let mut found: Vec<NameId> = Vec::new();
    let mut rest = measure.clone();
    while found.len() < MOST {
        // In the whole, what differs is known.
        let is_rest = !found.is_empty() && measure.is_share;
        let differing = if is_rest { differing(&found, hits, &rest) } else { Vec::new() };
        let differs = |at: &NameId| match is_rest {
            true => differing[*at],
            false => is_changed(*at) && !found.contains(at),
        };
        let size = |at: &NameId| {
            let [base, new] = rest.rates(&hits[*at].own);
            let (base, new) = (base.rate(), new.rate());
            ((new - base) * way > 0.0, (new - base).abs(), base.max(new) / base.min(new))
        };
        let next = (0..hits.len()).filter(differs).max_by(|a, b| {
            let (a, b) = (size(a), size(b));
            // Of two functions that make up everything, the one with the greater factor, whatever
            // rounding does.
            let is_tie = (a.1 - b.1).abs() <= 1e-9 * a.1;
            let (c, d) = if is_tie { (a.2, b.2) } else { (a.1, b.1) };
            a.0.cmp(&b.0).then(c.total_cmp(&d))
        });
        let Some(next) = next else { break };
        found.push(next);
        rest = without(&found, hits, measure);
        if rest.is_empty() {
            break;
        }
    }
    found
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

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::super::side::Side;
    use super::*;

    /// Blocks of a recording.
    const BLOCKS: usize = 40;

    /// Who is named as the cause, of two recordings of so many samples each. The first of two
    /// functions takes 15 % longer in the new one; both have the same time before, and five others
    /// `rest` of all time.
    fn cause(random: &mut Rng, samples: usize, rest: f64) -> [Option<Role>; 2] {
        let mut hits = vec![FunctionHits::default(); 7];
        let base = |at: usize| if at < 2 { (1.0 - rest) / 2.0 } else { rest / 5.0 };
        for side in [0, 1] {
            let time = |at: usize| base(at) * if at == 0 && side == 1 { 1.15 } else { 1.0 };
            let whole: f64 = (0..7).map(time).sum();
            let mut counts = vec![[0.0; 7]; BLOCKS];
            for sample in 0..samples {
                let mut left = random.f64() * whole;
                let at = (0..7).find(|at| {
                    left -= time(*at);
                    left < 0.0
                });
                counts[sample * BLOCKS / samples][at.unwrap_or(0)] += 1.0;
            }
            for (at, hits) in hits.iter_mut().enumerate() {
                let counts = counts.iter().map(|counts| counts[at]).enumerate();
                hits.own[side] = counts.filter(|(_, count)| *count > 0.0).collect();
                hits.total[side].clone_from(&hits.own[side]);
            }
        }
        let mut names = Names::default();
        names.all = (0..7).map(|at| format!("function {at}")).collect();
        let measure = Measure {
            of: [vec![(samples / BLOCKS) as f64; BLOCKS], vec![(samples / BLOCKS) as f64; BLOCKS]],
            has_blocks: true,
            is_share: true,
            one: [1.0; 2],
            whole: [samples as f64; 2],
        };
        let sides = [Side::default(), Side::default()];
        let own: Vec<&[Vec<Hits>; 2]> = hits.iter().map(|hits| &hits.own).collect();
        let wrong = statistics::false_discoveries(&super::super::chances(&measure, &own));
        let is_changed = |at: NameId| wrong[at].is_some_and(|share| share <= LEVEL);
        let sides = Sides { sides, names, has_blocks: true };
        let cause = Cause::of(&sides, &hits, &measure, &is_changed);
        [0, 1].map(|at| cause.role(at, &sides.names))
    }

    /// Guards that the function that did not change is called faster: where nothing else has much
    /// time, its share falls as much as the other one's rises.
    #[test]
    fn the_wrong_one_of_two_functions_is_never_named_alone() {
        let mut random = Rng::with_seed(31);
        let is_cause = |role: &Option<Role>| matches!(role, Some(Role::Cause(_)));
        for rest in [0.0, 0.02, 0.1, 0.3] {
            let mut right = 0;
            for draw in 0..24 {
                let [slower, same] = cause(&mut random, 6_000, rest);
                assert!(!is_cause(&same), "{rest}, draw {draw}: {slower:?} {same:?}");
                right += u32::from(is_cause(&slower));
            }
            assert!(if rest == 0.3 { right >= 6 } else { right <= 12 }, "{rest}: {right}");
        }
        // What takes longer to tell is told by a longer recording.
        for draw in 0..8 {
            let [slower, same] = cause(&mut random, 60_000, 0.1);
            assert!(is_cause(&slower) && !is_cause(&same), "{draw}: {slower:?} {same:?}");
        }
    }
}
