//! The cause of a change: the smallest set of functions without which the rest is as it was.

use super::side::{NameId, Names, Sides};
use super::statistics::{self, Factor, Hits, LEVEL};
use super::{FunctionHits, Measure};
use unikprof_profile::units::sum;

/// The most functions that a cause has. With more, the recordings are not of the same program.
const MOST: usize = 50;

/// The most functions that are looked at in the place of one.
const MOST_EITHER: usize = 8;

/// The square of 2.576 standard deviations, which a normal distribution exceeds on one side in half
/// a percent.
const APART: f64 = 6.635;

/// The mean difference of squares of which recordings show [`APART`] with 80 % probability.
const TOLD: f64 = 12.6;

/// What a function has to do with a change.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Role {
    /// It is part of the cause. The factor is that of its own time if all functions outside of the
    /// cause are as they were; `None` if there are none.
    Cause(Option<Factor>),
    /// It is part of the cause, or these others are in its place.
    Either(Box<Either>),
    /// It is part of the cause, and what it has more or less, these others have less or more.
    Moved { factor: Option<Factor>, others: Vec<String> },
    /// Its time with its callees changed because of callees in the cause.
    Carries,
    /// Only its share changed, because the time of others did.
    Displaced,
}

/// Functions with the factors by which their own time changed.
type Changed<N> = Vec<(N, Option<Factor>)>;

/// A function that explains a change, by itself or with others, about as well as other functions do.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Either {
    /// By which its own time changed if it is the one.
    pub(super) factor: Option<Factor>,
    /// What explains the change together with it.
    pub(super) with: Changed<String>,
    /// The other explanations.
    pub(super) others: Vec<Changed<String>>,
    /// Whether it is part of the best explanation, and the first of it.
    pub(super) is_best: bool,
    pub(super) is_first: bool,
    /// How many times as long recordings [tell](times_longer) them apart; infinite if they explain
    /// it equally well.
    pub(super) times_longer: f64,
}

/// A function of a cause.
#[derive(Debug, Clone, Default)]
struct Part {
    name: NameId,
    factor: Option<Factor>,
    moved: Vec<NameId>,
}

/// Explanations of a change, the best one first, which is part of the cause.
#[derive(Debug, Clone)]
struct Choice {
    sets: Vec<Changed<NameId>>,
    times_longer: f64,
}

/// The functions of a cause, and what follows for others.
#[derive(Debug, Default)]
pub(super) struct Cause {
    /// In the order of their names, as are the others.
    functions: Vec<Part>,
    choices: Vec<Choice>,
    /// Those whose time with their callees changed, but not what is left of it without functions
    /// of the cause.
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
        let is_in_one = |at: &NameId| hits[*at].own.iter().any(Vec::is_empty);
        let apart = (0..hits.len()).filter(|at| is_changed(*at) && is_in_one(at)).count();
        // With more, nothing but them is looked for.
        let is_searched = apart <= MOST;
        let mut found = Vec::new();
        if is_searched {
            found = searched(0.0, hits, measure, is_changed);
        }
        let mut choices = Vec::new();
        if is_searched && measure.is_share {
            // The greatest change may be that of a function that is as it was: where several became
            // slower, they all took from its share.
            let score = |found: &[NameId]| {
                let misfit = misfit(found, hits, measure).unwrap_or(f64::INFINITY);
                misfit + APART * found.len() as f64
            };
            let ways = [1.0, -1.0].map(|way| searched(way, hits, measure, is_changed));
            let mut sets: Vec<_> =
                [found].into_iter().chain(ways).map(|it| (score(&it), it)).collect();
            sets.sort_by(|a, b| a.0.total_cmp(&b.0));
            found = sets.remove(0).1;
            choices = weighed(&mut found, hits, measure);
            let least = score(&found);
            sets.retain(|(score, _)| score - least < APART);
            choices.extend(chosen(&found, least, sets, hits, measure));
        }
        // What vanished or appeared has not only another share.
        let more = (0..hits.len()).filter(|at| is_changed(*at) && is_in_one(at));
        let more: Vec<NameId> = more.filter(|at| !found.contains(at)).collect();
        found.extend(more);
        let rest = without(&found, hits, measure);
        if rest.is_empty() {
            // Nothing is left that could serve as a reference.
            found = (0..hits.len()).filter(|at| is_changed(*at)).collect();
        }
        let in_choice: Vec<NameId> = choices.iter().flat_map(Choice::functions).collect();
        let is_either = |at: &NameId| in_choice.contains(at);
        let sure: Vec<NameId> = found.iter().copied().filter(|at| !is_either(at)).collect();
        let part = |at: &NameId| Part {
            name: *at,
            factor: factor(*at, hits, &rest),
            moved: if is_searched && !is_either(at) {
                moved(*at, &sure, hits, &rest)
            } else {
                Vec::new()
            },
        };
        let mut functions: Vec<Part> = found.iter().map(part).collect();
        // What moved to several functions came to each of them from one.
        let moves = functions.iter().filter(|part| !part.moved.is_empty());
        for (from, others) in moves.map(|f| (f.name, f.moved.clone())).collect::<Vec<_>>() {
            for part in &mut functions {
                if others.contains(&part.name) && part.moved.is_empty() {
                    part.moved.push(from);
                }
            }
        }
        for (at, of_best) in choices.iter_mut().flat_map(|choice| &mut choice.sets[0]) {
            *of_best = factor(*at, hits, &rest);
        }
        functions.sort_by_key(|part| part.name);
        let is_found = |at: NameId| functions.binary_search_by_key(&at, |part| part.name).is_ok();
        let others = || (0..hits.len()).filter(|at| !is_found(*at) && !is_either(at));
        // Of all functions of the cause, even if that leaves no reference.
        let outside = without(&found, hits, measure);
        let uncaused = super::by_function(sides, &|leaf| !is_found(leaf));
        let carries = |at: &NameId| {
            let [with, without] = [&hits[*at].total, &uncaused[*at].total];
            with != without && differs(measure, with) && !differs(&outside, without)
        };
        Cause {
            carries: others().filter(carries).collect(),
            displaced: others().filter(|at| is_changed(*at)).collect(),
            functions,
            choices,
        }
    }

    pub(super) fn role(&self, at: NameId, names: &Names) -> Option<Role> {
        let name = |at: NameId| names.all[at].clone();
        if let Some(either) = self.choices.iter().find_map(|choice| choice.either(at, &name)) {
            return Some(Role::Either(Box::new(either)));
        }
        if let Ok(place) = self.functions.binary_search_by_key(&at, |part| part.name) {
            let part = &self.functions[place];
            return Some(if part.moved.is_empty() {
                Role::Cause(part.factor)
            } else {
                let others = part.moved.iter().map(|at| name(*at));
                Role::Moved { factor: part.factor, others: others.collect() }
            });
        }
        if self.carries.binary_search(&at).is_ok() {
            return Some(Role::Carries);
        }
        self.displaced.binary_search(&at).ok().map(|_| Role::Displaced)
    }
}

impl Choice {
    /// Between a cause and those with one of its functions swapped.
    fn of(mut swaps: Vec<Swap>, found: &[NameId], hits: &[FunctionHits]) -> Choice {
        let is_place = |at: &&NameId| swaps.iter().any(|swap| swap.from == **at);
        let own: Vec<NameId> = found.iter().filter(is_place).copied().collect();
        swaps.sort_by(|a, b| a.more.total_cmp(&b.more));
        let times = swaps.iter().map(|swap| times_longer(swap.more.max(0.0)));
        let times_longer = times.fold(0.0, f64::max);
        let swapped = swaps.iter().map(|swap| {
            let kept = own.iter().copied().filter(|at| *at != swap.from);
            let set = std::iter::once(swap.to).chain(kept);
            set.map(|at| (at, factor(at, hits, &swap.rest))).collect()
        });
        let best = own.iter().map(|at| (*at, None)).collect();
        Choice { sets: std::iter::once(best).chain(swapped).collect(), times_longer }
    }

    fn functions(&self) -> impl Iterator<Item = NameId> {
        self.sets.iter().flatten().map(|(at, _)| *at)
    }

    /// Which explanation a function is part of.
    fn place(&self, at: NameId) -> Option<usize> {
        self.sets.iter().position(|set| set.iter().any(|(name, _)| *name == at))
    }

    fn either(&self, at: NameId, name: &dyn Fn(NameId) -> String) -> Option<Either> {
        let place = self.place(at)?;
        let named = |set: &Changed<NameId>| -> Changed<String> {
            let others = set.iter().filter(|(other, _)| *other != at);
            others.map(|(other, factor)| (name(*other), *factor)).collect()
        };
        let own = &self.sets[place];
        Some(Either {
            factor: own.iter().find(|(name, _)| *name == at).and_then(|(_, factor)| *factor),
            with: named(own),
            others: self.sets.iter().filter(|set| *set != own).map(named).collect(),
            is_best: place == 0,
            is_first: place == 0 && own[0].0 == at,
            times_longer: self.times_longer,
        })
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
    // What rounding leaves of nothing is no difference.
    let rounded = |misfit: f64| (misfit * 1e6).round() / 1e6;
    (!rest.is_empty()).then(|| rounded(sum(outside.map(square))))
}

/// Leaves out what the others of a cause explain, and puts functions that explain a change better
/// in the place of those that do not. Answers with what explains it about as well, and how many
/// times as long it takes to tell.
///
/// Two explanations of as many functions are told apart if the squares of what they leave differ by
/// more than [`APART`]: the wrong one is better by so much in at most half a percent of all
/// recordings, however far they are apart.
fn weighed(found: &mut Vec<NameId>, hits: &[FunctionHits], measure: &Measure) -> Vec<Choice> {
    for at in found.clone().into_iter().filter(|at| is_in_both(*at, hits)) {
        let fewer = replaced(found, at, &[]);
        let rest = without(&fewer, hits, measure);
        if !fewer.is_empty() && !differing(&fewer, hits, &rest).contains(&true) {
            *found = fewer;
        }
    }
    for place in 0..found.len() {
        // Of those that fit equally, the first.
        let fits = in_place(place, found, hits, measure);
        if let Some((_, best)) = fits.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)) {
            found[place] = best;
        }
    }
    // Places that one function may take are weighed together: it is in one of them.
    let mut groups: Vec<Vec<Swap>> = Vec::new();
    for place in 0..found.len() {
        let swaps = swaps(place, found, hits, measure);
        let is_shared =
            |group: &Vec<Swap>| group.iter().any(|a| swaps.iter().any(|b| a.to == b.to));
        let (shared, others): (Vec<_>, Vec<_>) = groups.into_iter().partition(is_shared);
        groups = others;
        groups.push(shared.into_iter().flatten().chain(swaps).collect());
    }
    groups.retain(|group| !group.is_empty());
    groups.into_iter().map(|group| Choice::of(group, found, hits)).collect()
}

/// A function that may be in the place of one of the cause.
#[derive(Debug)]
struct Swap {
    from: NameId,
    to: NameId,
    /// What is left without the cause in which it is.
    rest: Measure,
    /// By how much it explains the change worse.
    more: f64,
}

/// The functions that may be in this place of a cause, the present one first, and the misfits with
/// them. What is in the place of another one moves all others' shares together by as much.
fn in_place(
    place: usize,
    found: &[NameId],
    hits: &[FunctionHits],
    measure: &Measure,
) -> Vec<(f64, NameId)> {
    let at = found[place];
    if !is_in_both(at, hits) {
        return Vec::new();
    }
    let rest = without(&replaced(found, at, &[]), hits, measure);
    let moved = |at: NameId| {
        let [base, new] = rest.rates(&hits[at].own);
        (new.rate() - base.rate()).abs()
    };
    let least = moved(at) / 2.0;
    let others = (0..hits.len()).filter(|it| is_in_both(*it, hits) && !found.contains(it));
    let others = others.map(|it| (moved(it), it)).filter(|(moved, _)| *moved >= least);
    let mut others: Vec<(f64, NameId)> = others.collect();
    others.sort_by(|a, b| b.0.total_cmp(&a.0));
    others.truncate(MOST_EITHER);
    let all = std::iter::once(at).chain(others.into_iter().map(|(_, it)| it));
    all.filter_map(|it| Some((misfit(&replaced(found, at, &[it]), hits, measure)?, it))).collect()
}

/// What explains a change about as well with another function in this place of a cause.
fn swaps(place: usize, found: &[NameId], hits: &[FunctionHits], measure: &Measure) -> Vec<Swap> {
    let fits = in_place(place, found, hits, measure);
    let from = found[place];
    let Some((least, _)) = fits.first().copied().filter(|(_, first)| *first == from) else {
        return Vec::new();
    };
    let close = fits[1..].iter().filter(|(misfit, _)| misfit - least < APART);
    let swap = |(misfit, to): &(f64, NameId)| {
        let rest = without(&replaced(found, from, &[*to]), hits, measure);
        // One that may be as it was explains nothing.
        let is_told = rest.is_empty() || differs(&rest, &hits[*to].own);
        is_told.then(|| Swap { from, to: *to, rest, more: misfit - least })
    };
    close.filter_map(swap).collect()
}

/// A cause with these functions in the place of one.
fn replaced(found: &[NameId], from: NameId, to: &[NameId]) -> Vec<NameId> {
    let kept = found.iter().copied().filter(|at| *at != from);
    kept.chain(to.iter().copied()).collect()
}

/// How many times as long recordings tell two explanations apart whose squares differ by so much.
/// Of explanations that are x standard deviations apart, the difference has the mean x² and the
/// standard deviation 2x: with few samples it is mostly chance, and the likeliest x² is less.
fn times_longer(difference: f64) -> f64 {
    TOLD / ((4.0 + difference * difference).sqrt() - 2.0)
}

/// What explains a change about as well as what was found, in the place of several functions: what
/// two searches do not have in common, if their scores are not [`APART`]. Where several functions
/// became slower, so many others may have become faster instead.
fn chosen(
    found: &[NameId],
    least: f64,
    others: Vec<(f64, Vec<NameId>)>,
    hits: &[FunctionHits],
    measure: &Measure,
) -> Option<Choice> {
    let factors = |set: &[NameId]| -> Changed<NameId> {
        let rest = without(set, hits, measure);
        let own = set.iter().filter(|at| is_in_both(**at, hits));
        own.map(|at| (*at, factor(*at, hits, &rest))).collect()
    };
    // A function that is slower in one and faster in the other is neither for sure.
    let is_slower = |factor: Option<Factor>| factor.is_some_and(|it| it.factor > 1.0);
    let apart = |set: &Changed<NameId>, others: &Changed<NameId>| -> Changed<NameId> {
        let is_in = |(at, factor): &(NameId, Option<Factor>)| {
            let mut same = others.iter().filter(|(other, _)| other == at);
            same.any(|(_, other)| is_slower(*other) == is_slower(*factor))
        };
        set.iter().filter(|it| !is_in(it)).copied().collect()
    };
    let own = factors(found);
    others.into_iter().find_map(|(score, other)| {
        let instead = factors(&other);
        let sets = vec![apart(&own, &instead), apart(&instead, &own)];
        // A longer recording tells more of how they fit, and nothing of how many they are.
        let less = other.len() as f64 - found.len() as f64;
        let fits_better = (score - least - APART * less).max(0.0);
        // What one function explains as well as another is weighed already.
        let is_choice =
            sets.iter().all(|set| !set.is_empty()) && sets.iter().any(|set| set.len() > 1);
        is_choice.then(|| Choice { sets, times_longer: times_longer(fits_better) })
    })
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
    if measure.is_share {
        // Beside what is new or gone, the others may be as they were.
        found.extend((0..hits.len()).filter(|at| is_changed(*at) && !is_in_both(*at, hits)));
    }
    let mut rest = without(&found, hits, measure);
    while found.len() < MOST && !rest.is_empty() {
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

/// Whether a rate changed beyond chance.
fn differs(measure: &Measure, hits: &[Vec<Hits>; 2]) -> bool {
    let [base, new] = measure.rates(hits);
    statistics::factor(&base, &new).is_some_and(|factor| factor.is_apart())
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::super::side::Side;
    use super::*;

    /// Blocks of a recording.
    const BLOCKS: usize = 40;

    /// With the first functions 15 % slower.
    fn slower(base: &[f64], functions: usize) -> Vec<f64> {
        let slower = base.iter().enumerate();
        slower.map(|(at, time)| if at < functions { 1.15 * time } else { *time }).collect()
    }

    /// Who is named as the cause, of two recordings of so many samples each, in which the functions
    /// take these times.
    fn cause(random: &mut Rng, samples: usize, times: [&[f64]; 2]) -> Vec<Option<Role>> {
        let functions = times[0].len();
        let mut hits = vec![FunctionHits::default(); functions];
        for side in [0, 1] {
            let time = |at: usize| times[side][at];
            let whole: f64 = (0..functions).map(time).sum();
            let mut counts = vec![vec![0.0; functions]; BLOCKS];
            for sample in 0..samples {
                let mut left = random.f64() * whole;
                let at = (0..functions).find(|at| {
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
        names.all = (0..functions).map(|at| format!("function {at}")).collect();
        let measure = Measure {
            of: [vec![(samples / BLOCKS) as f64; BLOCKS], vec![(samples / BLOCKS) as f64; BLOCKS]],
            has_blocks: true,
            is_share: true,
            one: [1.0; 2],
            whole: [samples as f64; 2],
            fading: 0.0,
        };
        let sides = [Side::default(), Side::default()];
        let own: Vec<&[Vec<Hits>; 2]> = hits.iter().map(|hits| &hits.own).collect();
        let wrong = statistics::false_discoveries(&super::super::chances(&measure, &own));
        let is_changed = |at: NameId| wrong[at].is_some_and(|share| share <= LEVEL);
        let sides = Sides { sides, names, has_blocks: true };
        let cause = Cause::of(&sides, &hits, &measure, &is_changed);
        (0..functions).map(|at| cause.role(at, &sides.names)).collect()
    }

    fn is_cause(role: &Option<Role>) -> bool {
        matches!(role, Some(Role::Cause(_)))
    }

    /// Guards that the function that did not change is called faster: where nothing else has much
    /// time, its share falls as much as the other one's rises.
    #[test]
    fn the_wrong_one_of_two_functions_is_never_named_alone() {
        let mut random = Rng::with_seed(31);
        let base = |rest: f64| {
            let half = (1.0 - rest) / 2.0;
            [[half; 2].as_slice(), &[rest / 5.0; 5]].concat()
        };
        for rest in [0.0, 0.02, 0.1, 0.3] {
            let mut right = 0;
            for draw in 0..24 {
                let roles = cause(&mut random, 6_000, [&base(rest), &slower(&base(rest), 1)]);
                let (slower, same) = (&roles[0], &roles[1]);
                assert!(!is_cause(same), "{rest}, draw {draw}: {slower:?} {same:?}");
                right += u32::from(is_cause(slower));
            }
            assert!(if rest == 0.3 { right >= 6 } else { right <= 12 }, "{rest}: {right}");
        }
        // What takes longer to tell is told by a recording of the stated length.
        let (mut told, mut either) = (0, 0);
        for _ in 0..24 {
            let roles = cause(&mut random, 6_000, [&base(0.1), &slower(&base(0.1), 1)]);
            let Some(Role::Either(found)) = &roles[0] else { continue };
            if found.times_longer < 20.0 {
                let samples = (150.0 * found.times_longer) as usize * BLOCKS;
                let roles = cause(&mut random, samples, [&base(0.1), &slower(&base(0.1), 1)]);
                assert!(!is_cause(&roles[1]), "{roles:?}");
                told += u32::from(is_cause(&roles[0]));
                either += 1;
            }
        }
        assert!(either >= 8 && told * 4 >= either * 3, "{told} of {either}");
    }

    /// Of four functions of equal size, two became slower as the other two might have become
    /// faster: shares do not tell which.
    #[test]
    fn two_of_four_functions_are_seldom_named_alone() {
        let mut random = Rng::with_seed(2);
        let (mut alone, mut both) = (0, 0);
        for _ in 0..60 {
            let roles = cause(&mut random, 20_000, [&[0.25; 4], &slower(&[0.25; 4], 2)]);
            alone += u32::from(roles.iter().any(is_cause));
            let is_pair = |role: &Option<Role>| match role {
                Some(Role::Either(either)) => {
                    either.with.len() == 1 && either.others.iter().all(|it| it.len() == 2)
                }
                _ => false,
            };
            both += u32::from(roles.iter().all(is_pair));
        }
        assert!(alone <= 5 && both >= 45, "{alone} alone, {both} pairs");
    }

    /// Of three functions any two explain a change of two: the third is the reference.
    #[test]
    fn of_three_functions_none_is_named_for_sure() {
        let mut random = Rng::with_seed(3);
        let times: [[&[f64]; 2]; 3] = [
            [&[2.0, 6.0, 2.0], &[6.0, 2.0, 2.0]],
            [&[3.0, 3.0, 4.0], &[4.5, 1.5, 4.0]],
            [&[1.0, 2.0, 3.0], &[4.0, 2.0, 1.0]],
        ];
        for times in times {
            for _ in 0..6 {
                let roles = cause(&mut random, 8_000, times);
                let is_either = |role: &Option<Role>| match role {
                    Some(Role::Either(it)) => it.times_longer.is_infinite() && it.with.len() == 1,
                    _ => false,
                };
                assert!(roles.iter().all(is_either), "{times:?}: {roles:?}");
            }
        }
        // Two pairs swap their times: the fifth is slower in one explanation, faster in the other.
        let times: [&[f64]; 2] = [&[3.0, 1.0, 3.0, 1.0, 4.0], &[1.0, 3.0, 1.0, 3.0, 4.0]];
        for _ in 0..6 {
            let roles = cause(&mut random, 8_000, times);
            assert!(!is_cause(&roles[4]), "{roles:?}");
        }
        // Beside what is new or gone, one that is left over did not change.
        let times: [&[f64]; 2] = [&[1.0, 0.0, 1.0, 1.0], &[1.0, 1.0, 0.0, 0.0]];
        let roles = cause(&mut random, 8_000, times);
        let is_displaced = matches!(roles[0], Some(Role::Carries | Role::Displaced));
        assert!(is_displaced, "{roles:?}");
        // Where more agree, these did not change.
        let mut times = [[2.0; 6]; 2];
        [times[0][1], times[1][0]] = [6.0; 2];
        let roles = cause(&mut random, 8_000, times.each_ref().map(<[f64; 6]>::as_slice));
        assert!(matches!(roles[..2], [Some(Role::Moved { .. }), Some(Role::Moved { .. })]));
        assert!(roles[2..].iter().all(Option::is_none), "{roles:?}");
    }
}
