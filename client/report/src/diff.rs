//! What changed between two recordings, and whether the change is real.
//!
//! A [`Comparison`] has each function's time in both recordings with the change and its 95 %
//! interval, says which changes are more than chance, and names the cause: the functions without
//! which the rest is as it was. Functions are matched by name, so that the recordings may be of
//! different builds.
//!
//! The samples of a running second are always the same number. Without a measure of work,
//! recordings can only be compared by shares, where one function that becomes slower makes all
//! others look faster; the cause is found in spite of that. With one (calls of a span, or a counter
//! that grows) they are compared by the time for each unit of it.

mod cause;
mod json;
mod page;
mod side;
pub(crate) mod statistics;
#[cfg(feature = "svg")]
mod svg;
pub(crate) mod text;
#[cfg(test)]
mod truths;

use std::io;

use thiserror::Error;

use cause::{Cause, Role};
pub use side::Input;
use side::{NameId, Sides};
use statistics::{Factor, Hits, LEVEL, Rate, Sight};
use unikprof_profile::profile::{Mode, Unit};
use unikprof_profile::units::sum;

/// How many functions a text lists if the user does not say.
pub const TOP: usize = 30;

/// How recordings are compared.
#[derive(Debug, Clone, Default)]
pub struct CompareOptions {
    /// The span or counter whose calls or growth are the work that was done.
    pub per: Option<String>,
    /// Functions that have another name in the new recording: `OLD=NEW`.
    pub renames: Vec<String>,
    /// Whether recordings of guests with different names are compared.
    pub force: bool,
}

/// Two recordings, compared.
#[derive(Debug)]
pub struct Comparison<'a> {
    inputs: [Input<'a>; 2],
    per: Option<String>,
    /// How many blocks of time each recording has; `None`: there are counts without times.
    blocks: Option<[usize; 2]>,
    /// What was compared of each recording, in the mode's unit.
    counted: [u64; 2],
    /// The work done in each.
    work: Option<[f64; 2]>,
    /// All time for each unit of work.
    total: Option<Change>,
    /// By the size of the change of their own time, those that changed first.
    functions: Vec<Function>,
    /// How many functions were tested.
    tested: usize,
    sides: Sides,
    warnings: Vec<String>,
}

/// A value in both recordings: a share of the time, or ns for each unit of work.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Change {
    base: f64,
    new: f64,
    /// `None` if it is in neither.
    factor: Option<Factor>,
}

impl Change {
    fn of([base, new]: [Rate; 2]) -> Change {
        Change { base: base.rate(), new: new.rate(), factor: statistics::factor(&base, &new) }
    }

    fn difference(&self) -> f64 {
        self.new - self.base
    }
}

/// A function in both recordings.
#[derive(Debug)]
struct Function {
    name: String,
    own: Change,
    /// With its callees.
    total: Change,
    /// The chance of such a difference of its own time if nothing changed; `None` if it occurs too
    /// seldom to tell.
    chance: Option<f64>,
    /// The least share of wrong ones among the functions shown as changed if this is one of them.
    false_discoveries: Option<f64>,
    role: Option<Role>,
    /// How finely the recordings show it; `None` if one of them has none of it.
    sight: Option<Sight>,
}

impl Function {
    /// Whether its own time changed beyond chance.
    fn is_changed(&self) -> bool {
        self.false_discoveries.is_some_and(|share| share <= LEVEL)
    }

    /// Those of the other explanations.
    fn or(&self) -> Vec<&str> {
        let mut others = Vec::new();
        if let Some(Role::Either(either)) = &self.role {
            for (name, _) in either.others.iter().flatten() {
                if *name != self.name && !others.contains(&name.as_str()) {
                    others.push(name.as_str());
                }
            }
        }
        others
    }
}

/// Recordings cannot be compared.
#[expect(missing_docs, reason = "each message says it")]
#[derive(Debug, Error)]
pub enum DiffError {
    #[error(
        "the recordings are of guests with different names: `{base}` and `{new}`; compare \
         recordings of one guest, or \
         give --force"
    )]
    OtherGuest { base: String, new: String },
    #[error(
        "the recordings have different modes: {base} and {new}; compare recordings of one mode"
    )]
    OtherMode { base: Mode, new: Mode },
    #[error(
        "diff compares time, and these recordings are of mode {mode}; `leaks` shows what grows \
         between two recordings of \
         mode live, `go tool pprof -base` what differs between two .pb.gz files"
    )]
    Heap { mode: Mode },
    #[error(
        "--fail-on compares functions by name, and {:.0} % of the samples of {file} lie in code \
         without a name; name its image with --image, or a symbol list with --symbols",
        share * 100.0
    )]
    NoNames { file: String, share: f64 },
    #[error("{file} has no samples to compare")]
    Empty { file: String },
    #[error(
        "--per and --fail-on significant need samples with times in both recordings, at least 8 \
         blocks of them; give \
         the agent memory for a ring, or record longer"
    )]
    NoTimes,
    #[error(
        "{file} has no call of a span `{name}` and no counter `{name}` that grows, in the time \
         compared; `report` lists both"
    )]
    NoWork { file: String, name: String },
    #[error(
        "the counter `{name}` falls in {file}: --per needs a counter that only grows, or a span"
    )]
    Falls { file: String, name: String },
    #[error("--rename {rename}: expected OLD=NEW with the whole name of a function of the base")]
    NoSuchFunction { rename: String },
}

/// What a function was counted in the blocks of both recordings.
#[derive(Debug, Clone, Default)]
struct FunctionHits {
    own: [Vec<Hits>; 2],
    total: [Vec<Hits>; 2],
}

/// What the counts of both recordings are compared by.
#[derive(Debug, Clone)]
struct Measure {
    of: [Vec<f64>; 2],
    has_blocks: bool,
    /// Whether it is the samples themselves, and rates are shares of them.
    is_share: bool,
    /// What a sample counts: 1, or its period in ns.
    one: [f64; 2],
    /// What all samples together count.
    whole: [f64; 2],
    /// By what the likeness of blocks [fades](statistics::fading).
    fading: f64,
}

impl Measure {
    fn rates(&self, hits: &[Vec<Hits>; 2]) -> [Rate; 2] {
        if self.has_blocks {
            let rates = Rate::of_both([&hits[0], &hits[1]], &self.of, self.fading);
            return [0, 1].map(|at| rates[at].sampled(self.one[at], self.whole[at]));
        }
        [0, 1].map(|at| {
            let hits = sum(hits[at].iter().map(|(_, hits)| *hits));
            Rate::of_samples(hits, sum(self.of[at].iter().copied()))
        })
    }

    /// Whether too little of a recording is left in it to be a reference: fewer blocks tell no
    /// variance.
    fn is_empty(&self) -> bool {
        let least = if self.has_blocks { statistics::LEAST_BLOCKS } else { 1 };
        self.of.iter().any(|of| of.iter().filter(|of| **of > 0.0).count() < least)
    }

    /// Without what these functions were counted, where rates are shares: shares of the rest.
    fn without(&self, functions: &[&[Vec<Hits>; 2]]) -> Measure {
        let mut rest = self.clone();
        if self.is_share {
            for at in [0, 1] {
                for (block, hits) in functions.iter().flat_map(|hits| &hits[at]) {
                    let of = &mut rest.of[at][*block];
                    *of = (*of - hits).max(0.0);
                }
                rest.whole[at] = sum(rest.of[at].iter().copied());
            }
        }
        rest
    }
}

impl<'a> Comparison<'a> {
    /// Compares them.
    pub fn of(
        base: Input<'a>,
        new: Input<'a>,
        options: &CompareOptions,
    ) -> Result<Comparison<'a>, DiffError> {
        check(&base, &new, options.force)?;
        let mut sides = Sides::of([&base, &new], options.per.as_deref())?;
        for (side, input) in sides.sides.iter().zip([&base, &new]) {
            if side.counted == 0 {
                let file = input.title.to_owned();
                return Err(DiffError::Empty { file });
            }
        }
        rename(&mut sides, &options.renames)?;
        let hits = by_function(&sides, &|_| true);
        let one = [&base, &new].map(|input| match options.per {
            Some(_) if input.info().unit() == Unit::Samples => input.info().period_ns as f64,
            _ => 1.0,
        });
        let of = [0, 1].map(|at| sides.sides[at].of.clone());
        let own = hits.iter().map(|hits| hits.own.each_ref().map(Vec::as_slice));
        let measure = Measure {
            fading: statistics::fading(&of, own),
            of,
            has_blocks: sides.has_blocks,
            is_share: options.per.is_none(),
            one,
            whole: [0, 1].map(|at| sides.sides[at].counted as f64 * one[at]),
        };
        let own: Vec<&[Vec<Hits>; 2]> = hits.iter().map(|hits| &hits.own).collect();
        let chances = chances(&measure, &own);
        let false_discoveries = statistics::false_discoveries(&chances);
        let tested = chances.iter().flatten().count();
        let is_changed = |at: NameId| false_discoveries[at].is_some_and(|share| share <= LEVEL);
        let cause = Cause::of(&sides, &hits, &measure, &is_changed);
        let Sides { names, .. } = &sides;
        // A renamed function leaves a name without samples.
        let is_there = |at: &NameId| hits[*at].total.iter().any(|hits| !hits.is_empty());
        let functions = (0..names.all.len()).filter(is_there).map(|at| {
            let rates = measure.rates(&hits[at].own);
            Function {
                name: names.all[at].clone(),
                own: Change::of(rates),
                total: Change::of(measure.rates(&hits[at].total)),
                chance: chances[at],
                false_discoveries: false_discoveries[at],
                role: cause.role(at, names),
                sight: Sight::of(&rates[0], &rates[1], tested, measure.is_share),
            }
        });
        let mut functions: Vec<Function> = functions.collect();
        functions.sort_by(|a, b| {
            let key = |f: &Function| {
                (f.is_changed(), f.own.difference().abs(), f.total.base + f.total.new)
            };
            let (a_key, b_key) = (key(a), key(b));
            let of_size = b_key.1.total_cmp(&a_key.1).then(b_key.2.total_cmp(&a_key.2));
            b_key.0.cmp(&a_key.0).then(of_size).then_with(|| a.name.cmp(&b.name))
        });
        let all = options.per.as_ref().map(|_| {
            let every = [0, 1].map(|at| {
                let stacks = sides.sides[at].stacks.iter();
                merged(stacks.flat_map(|stack| stack.hits.iter().copied()).collect())
            });
            Change::of(measure.rates(&every))
        });
        Ok(Comparison {
            warnings: warnings(&base, &new, &sides),
            inputs: [base, new],
            per: options.per.clone(),
            blocks: sides.has_blocks.then(|| [0, 1].map(|at| sides.sides[at].of.len())),
            counted: [0, 1].map(|at| sides.sides[at].counted),
            work: options
                .per
                .as_ref()
                .map(|_| [0, 1].map(|at| sum(measure.of[at].iter().copied()))),
            total: all,
            functions,
            tested,
            sides,
        })
    }

    /// On what significance is based: `blocks` of time, or `counts` of samples that are taken as
    /// independent.
    pub fn basis(&self) -> &'static str {
        match self.blocks {
            Some(_) => "blocks",
            None => "counts",
        }
    }

    /// Functions of the cause that take more time, beyond what moved to them from others, and by
    /// how much of the base's whole time. At least by this much.
    ///
    /// Of shares, the functions outside of the cause are the reference: a function of one half that
    /// takes twice as long has two thirds of the new time, and one half of the base's time more. Of
    /// explanations of which one holds, those functions are meant that would be slower, with the
    /// others.
    pub fn slower_by(&self, least: f64) -> Vec<(&str, f64, Vec<&str>)> {
        let whole = self.total.map_or(1.0, |total| total.base);
        let scale = self.base_time_of_new();
        let grown = self.functions.iter().filter_map(|function| {
            let Change { base, new, .. } = function.own;
            let growth = match &function.role {
                Some(Role::Cause(_)) => (new * scale - base) / whole,
                Some(Role::Either(either)) => base * (either.factor?.factor - 1.0) / whole,
                _ => return None,
            };
            (growth > 0.0 && growth >= least)
                .then(|| (function.name.as_str(), growth, function.or()))
        });
        grown.collect()
    }

    /// How long the new recording's time is in the base's, by the functions outside of the cause:
    /// they are unchanged. 1 if there are none, and if times are compared by work.
    fn base_time_of_new(&self) -> f64 {
        let is_outside = |function: &&Function| match &function.role {
            Some(Role::Cause(_) | Role::Moved { .. }) => false,
            Some(Role::Either(either)) => !either.is_best,
            _ => true,
        };
        let rest = self.functions.iter().filter(is_outside);
        let [base, new] = rest.fold([0.0, 0.0], |[base, new], function| {
            [base + function.own.base, new + function.own.new]
        });
        match self.per {
            None if base > 0.0 && new > 0.0 => base / new,
            _ => 1.0,
        }
    }

    /// By how much of itself all time for each unit of work grew, if that is more than chance.
    pub fn whole_slower_by(&self) -> Option<f64> {
        let factor = self.total?.factor?;
        (factor.low > 1.0).then_some(factor.factor - 1.0)
    }

    /// Whether functions tell enough of both recordings to judge by: at least half of each.
    pub fn check_names(&self) -> Result<(), DiffError> {
        for (at, input) in self.inputs.iter().enumerate() {
            let share = self.sides.unnamed(at);
            if share > 0.5 {
                return Err(DiffError::NoNames { file: input.title.to_owned(), share });
            }
        }
        Ok(())
    }

    /// What the reader should know about the figures, a sentence each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

fn check(base: &Input<'_>, new: &Input<'_>, force: bool) -> Result<(), DiffError> {
    let [base, new] = [base.info(), new.info()];
    let are_named = !base.guest_name.is_empty() && !new.guest_name.is_empty();
    if are_named && base.guest_name != new.guest_name && !force {
        let name = |name: &str| unikprof_profile::printable::Printable(name).to_string();
        return Err(DiffError::OtherGuest {
            base: name(&base.guest_name),
            new: name(&new.guest_name),
        });
    }
    if base.mode.is_heap() && base.mode == new.mode {
        return Err(DiffError::Heap { mode: base.mode });
    }
    if base.mode != new.mode {
        return Err(DiffError::OtherMode { base: base.mode, new: new.mode });
    }
    Ok(())
}

/// Gives functions of the base the names that they have in the new recording. A name may contain
/// `=`.
fn rename(sides: &mut Sides, renames: &[String]) -> Result<(), DiffError> {
    for rename in renames {
        let mut splits = rename.match_indices('=').map(|(at, _)| rename.split_at(at));
        let found = splits.find_map(|(old, new)| Some((sides.names.known(old)?, &new[1..])));
        let Some((old, new)) = found.filter(|(_, new)| !new.is_empty()) else {
            let rename = rename.clone();
            return Err(DiffError::NoSuchFunction { rename });
        };
        match sides.names.known(new) {
            None => sides.names.rename(old, new),
            Some(new) => {
                let stacks = sides.sides[0].stacks.iter_mut();
                for name in stacks.flat_map(|stack| &mut stack.path) {
                    if *name == old {
                        *name = new;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Of the stacks whose innermost function is meant.
fn by_function(sides: &Sides, is_meant: &dyn Fn(NameId) -> bool) -> Vec<FunctionHits> {
    let add = |hits: &mut Vec<Hits>, more: &[Hits]| {
        hits.extend(more);
        // Many stacks share few blocks.
        if hits.len() > 1_000 {
            *hits = merged(std::mem::take(hits));
        }
    };
    let mut all = vec![FunctionHits::default(); sides.names.all.len()];
    for at in [0, 1] {
        let stacks = sides.sides[at].stacks.iter();
        for stack in stacks.filter(|stack| stack.path.first().is_none_or(|leaf| is_meant(*leaf))) {
            if let Some(leaf) = stack.path.first() {
                add(&mut all[*leaf].own[at], &stack.hits);
            }
            // A function counts once a stack.
            let mut names = stack.path.clone();
            names.sort_unstable();
            names.dedup();
            for name in names {
                add(&mut all[name].total[at], &stack.hits);
            }
        }
    }
    for hits in &mut all {
        for hits in hits.own.iter_mut().chain(&mut hits.total) {
            *hits = merged(std::mem::take(hits));
        }
    }
    all
}

/// With one entry for each block, in order.
fn merged(mut hits: Vec<Hits>) -> Vec<Hits> {
    hits.sort_by_key(|(block, _)| *block);
    hits.dedup_by(|next, kept| {
        let is_same = next.0 == kept.0;
        if is_same {
            kept.1 += next.1;
        }
        is_same
    });
    hits
}

/// For each function the chance of such a difference if nothing changed: by blocks, or if there are
/// none as if each sample were independent.
fn chances(measure: &Measure, functions: &[&[Vec<Hits>; 2]]) -> Vec<Option<f64>> {
    if measure.has_blocks {
        let pairs: Vec<[&[Hits]; 2]> =
            functions.iter().map(|[base, new]| [base.as_slice(), new.as_slice()]).collect();
        return statistics::permuted(&measure.of, &pairs, measure.fading);
    }
    let chance = |hits: &&[Vec<Hits>; 2]| {
        let [base, new] = measure.rates(hits);
        let is_there = hits.iter().any(|hits| !hits.is_empty());
        is_there.then(|| statistics::chance(&base, &new))
    };
    functions.iter().map(chance).collect()
}

fn warnings(base: &Input<'_>, new: &Input<'_>, sides: &Sides) -> Vec<String> {
    let mut all = Vec::new();
    for ((title, input), side) in [("base", base), ("new", new)].into_iter().zip(&sides.sides) {
        let profile = &input.recording.profile;
        let compared = side.counted as f64 / profile.sample_count().max(1) as f64;
        if sides.has_blocks && input.recording.asked.is_none() && compared < 0.95 {
            all.push(format!(
                "{title}: the times of {:.0} % of the samples are known; only these are compared",
                compared * 100.0
            ));
        }
        if let Some(unplaced) = crate::report::uncertainty::Unplaced::of(profile) {
            all.push(format!(
                "{title}: {} samples have no known function ({}); the intervals leave out their \
                 effect",
                unikprof_profile::units::grouped(unplaced.count()),
                unplaced.kinds()
            ));
        }
        let info = &profile.recording().warnings;
        all.extend(info.iter().map(|warning| format!("{title}: {warning}")));
        // An image that only the other recording uses is no mistake.
        let is_used = |warning: &&unikprof_profile::symbols::SymbolWarning| {
            !matches!(warning, unikprof_profile::symbols::SymbolWarning::NotUsed { .. })
        };
        let symbols = input.symbolized.warnings().iter().filter(is_used);
        all.extend(symbols.map(|warning| format!("{title}: {warning}")));
    }
    if !sides.has_blocks {
        all.push(
            "there are not 8 blocks of time to compare, so changes may be chance; give the agent \
             memory for a ring, or record longer"
                .to_owned(),
        );
    }
    all
}

impl Comparison<'_> {
    /// Writes it. Text lists `top` functions (0: all; `None`: few if none changed) in so many
    /// columns; `None`: with whole names.
    pub fn write(
        &self,
        format: Format,
        top: Option<usize>,
        columns: Option<usize>,
        out: &mut impl io::Write,
    ) -> io::Result<()> {
        match format {
            Format::Text => text::write(self, top, columns, out),
            Format::Json => json::write(self, out),
            Format::Page => page::write(self, out),
            #[cfg(feature = "svg")]
            Format::Svg => svg::write(self, out),
        }
    }
}

/// A format of comparisons.
#[expect(missing_docs, reason = "the names are the words of reports")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Text,
    Json,
    Page,
    #[cfg(feature = "svg")]
    Svg,
}
