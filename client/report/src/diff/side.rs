//! One of the two recordings: its samples by stack and block of time, and the work it did.

use std::collections::{HashMap, HashSet};

use super::DiffError;
use super::statistics::{Hits, LEAST_BLOCKS};
use crate::report::TimelineView;
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{NodeId, RecordingInfo, Unit};
use unikprof_profile::recording::{EpochCounts as Piece, Recording};
use unikprof_profile::symbols::{Builds, Function, FunctionKind, Symbolized};
use unikprof_profile::timeline::Window;
use unikprof_profile::units::sum;

/// Into how many blocks the shorter recording is divided.
const BLOCKS: f64 = 40.0;

/// The most blocks of a recording that is longer than the other one.
const MOST_BLOCKS: f64 = 160.0;

/// How finely the time is cut before blocks are made of the pieces.
const PIECES: u64 = 1_000;

/// An index into [`Names::all`].
pub(super) type NameId = usize;

/// The names of the functions in both recordings.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub all: Vec<String>,
    ids: HashMap<String, NameId>,
    /// Rows of code without a name: of addresses, or of all such code of an image.
    unnamed: HashSet<NameId>,
    builds: Builds,
}

impl Names {
    fn of_builds(inputs: [&Input<'_>; 2]) -> Names {
        let mut names = Names::default();
        inputs.iter().for_each(|input| names.builds.add(input.symbolized.functions()));
        names
    }

    fn of(&mut self, function: &Function) -> NameId {
        let name = self.builds.name(function);
        let is_image = function.kind == FunctionKind::Address && name != function.name;
        let id = self.id(&Printable(&name).to_string());
        if is_image || function.is_lone_address() {
            self.unnamed.insert(id);
        }
        id
    }

    fn id(&mut self, name: &str) -> NameId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        self.all.push(name.to_owned());
        self.ids.insert(name.to_owned(), self.all.len() - 1);
        self.all.len() - 1
    }

    pub(super) fn known(&self, name: &str) -> Option<NameId> {
        self.ids.get(name).copied()
    }

    /// Gives a name to what has another one so far.
    pub(super) fn rename(&mut self, id: NameId, name: &str) {
        self.ids.remove(&self.all[id]);
        self.all[id] = name.to_owned();
        self.ids.insert(name.to_owned(), id);
    }
}

/// A recording that is compared.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// How the output names it: the file.
    pub title: &'a str,
    /// The recording.
    pub recording: &'a Recording,
    /// Its names.
    pub symbolized: &'a Symbolized<'a>,
}

impl Input<'_> {
    pub(super) fn info(&self) -> &RecordingInfo {
        self.recording.profile.recording()
    }

    /// The timeline, and the part of it that is compared: what was asked for, else the time of the
    /// epochs. The rings of a dump go back to before the one before it.
    fn view(&self) -> Option<(TimelineView<'_>, Window)> {
        let view = TimelineView::of(self.recording)?;
        let epochs = self.recording.epoch_counts.iter();
        let windows = epochs.map(|epoch| epoch.window);
        let counted = windows.reduce(|all, next| {
            Window::new(all.from_ns.min(next.from_ns), all.to_ns.max(next.to_ns))
        });
        let window = match (self.recording.asked, counted) {
            (None, Some(counted)) => view.window.and(counted),
            _ => view.window,
        };
        Some((view, view.timeline.bounded(&view.of, window)))
    }

    /// The pieces of the recording's time, of which most samples are known: those of the rings,
    /// else the epochs.
    fn pieces(&self) -> Option<Vec<Piece>> {
        self.ring_pieces().or_else(|| self.epochs())
    }

    fn ring_pieces(&self) -> Option<Vec<Piece>> {
        let (view, window) = self.view()?;
        let step_ns = window.length_ns().div_ceil(PIECES).max(1);
        let slices = view.timeline.slices(&view.of, window, self.info().inside(), step_ns);
        let pieces =
            slices.into_iter().map(|slice| Piece { window: slice.window, stacks: slice.stacks });
        self.with_most(pieces.collect())
    }

    fn epochs(&self) -> Option<Vec<Piece>> {
        // A part of the time does not consist of epochs.
        let whole = self.recording.asked.is_none();
        let epochs = self.recording.epoch_counts.iter().cloned();
        whole.then(|| self.with_most(epochs.collect())).flatten()
    }

    fn with_most(&self, pieces: Vec<Piece>) -> Option<Vec<Piece>> {
        let held = pieces.iter().map(counted).fold(0, u64::saturating_add);
        (held >= self.recording.profile.sample_count() / 2).then_some(pieces)
    }
}

fn counted(piece: &Piece) -> u64 {
    let counts = piece.stacks.iter().map(|(_, count)| *count);
    counts.fold(0, u64::saturating_add)
}

/// A stack's functions, innermost first, and what it was counted in each block that it occurs in.
#[derive(Debug)]
pub(super) struct Stack {
    pub(super) path: Vec<NameId>,
    pub(super) hits: Vec<Hits>,
}

/// A recording in blocks.
#[derive(Debug, Default)]
pub(super) struct Side {
    pub(super) stacks: Vec<Stack>,
    /// What each block is compared by: its samples, or the work done in it.
    pub(super) of: Vec<f64>,
    /// What was counted, in the mode's unit.
    pub(super) counted: u64,
}

/// Both recordings, base first, in blocks of about the same size.
#[derive(Debug)]
pub(super) struct Sides {
    pub(super) sides: [Side; 2],
    pub(super) names: Names,
    /// Whether the blocks are of time. If not, each recording is one block of counts without times.
    pub(super) has_blocks: bool,
}

impl Sides {
    /// The share of a recording's own time that lies in code without a name.
    pub(super) fn unnamed(&self, side: usize) -> f64 {
        let is_unnamed = |stack: &&Stack| {
            stack.path.first().is_some_and(|leaf| self.names.unnamed.contains(leaf))
        };
        let hits = |stack: &Stack| sum(stack.hits.iter().map(|(_, hits)| *hits));
        let stacks = &self.sides[side].stacks;
        let all = sum(stacks.iter().map(hits));
        sum(stacks.iter().filter(is_unnamed).map(hits)) / all
    }

    /// With `per`, blocks are compared by the calls of this span or the growth of this counter, and
    /// counts are in ns.
    pub(super) fn of(inputs: [&Input<'_>; 2], per: Option<&str>) -> Result<Sides, DiffError> {
        let mut names = Names::of_builds(inputs);
        let pieces = inputs.map(|input| match per {
            None => input.pieces(),
            // When work was done is known from the rings alone.
            Some(_) => input.ring_pieces(),
        });
        if let [Some(base), Some(new)] = &pieces {
            let total = |pieces: &[Piece]| sum(pieces.iter().map(|piece| counted(piece) as f64));
            let totals = [total(base), total(new)];
            let size = totals[0].min(totals[1]) / BLOCKS;
            let cut = |at: usize, pieces| {
                let blocks = (totals[at] / size).round().clamp(BLOCKS, MOST_BLOCKS);
                blocks_of(pieces, totals[at] / blocks)
            };
            let blocks = [cut(0, base), cut(1, new)];
            if blocks.iter().all(|blocks| blocks.len() >= LEAST_BLOCKS) {
                let sides = [0, 1].map(|at| Side::timed(inputs[at], &blocks[at], per, &mut names));
                let [base, new] = sides;
                return Ok(Sides { sides: [base?, new?], names, has_blocks: true });
            }
        }
        if per.is_some() {
            return Err(DiffError::NoTimes);
        }
        Ok(Sides {
            sides: inputs.map(|input| Side::counted(input, &mut names)),
            names,
            has_blocks: false,
        })
    }
}

/// Joins neighbours until each block has at least this many samples. The last one may have fewer.
fn blocks_of(pieces: &[Piece], size: f64) -> Vec<&[Piece]> {
    let mut blocks = Vec::new();
    let (mut from, mut sum, mut due) = (0, 0.0, size);
    for (at, piece) in pieces.iter().enumerate() {
        sum += counted(piece) as f64;
        // Rounding must not leave a crumb behind the last block.
        if sum >= due * (1.0 - 1e-9) {
            blocks.push(&pieces[from..=at]);
            from = at + 1;
            due = size * ((sum / size).floor() + 1.0);
        }
    }
    blocks
}

impl Side {
    fn timed(
        input: &Input<'_>,
        blocks: &[&[Piece]],
        per: Option<&str>,
        names: &mut Names,
    ) -> Result<Side, DiffError> {
        let windows = blocks.iter().filter_map(|pieces| {
            let (first, last) = (pieces.first()?, pieces.last()?);
            Some(Window::new(first.window.from_ns, last.window.to_ns))
        });
        let windows: Vec<Window> = windows.collect();
        let done = per.map(|name| Ok(done(&work(input, name)?, &windows))).transpose()?;
        let mut known: HashMap<NodeId, usize> = HashMap::new();
        let mut side = Side::default();
        for (at, pieces) in blocks.iter().enumerate() {
            let mut sum = 0_u64;
            for (node, count) in pieces.iter().flat_map(|piece| &piece.stacks) {
                sum = sum.saturating_add(*count);
                let stack = *known.entry(*node).or_insert_with(|| {
                    side.stacks.push(Stack { path: path(input, *node, names), hits: Vec::new() });
                    side.stacks.len() - 1
                });
                side.stacks[stack].hits.push((at, *count as f64));
            }
            side.counted = side.counted.saturating_add(sum);
            side.of.push(match &done {
                Some(done) => done[at],
                None => sum as f64,
            });
        }
        if sum(side.of.iter().copied()) <= 0.0 {
            return Err(DiffError::NoWork {
                file: input.title.to_owned(),
                name: per.unwrap_or_default().to_owned(),
            });
        }
        if per.is_some() && input.info().unit() == Unit::Samples {
            let period_ns = input.info().period_ns as f64;
            let hits = side.stacks.iter_mut().flat_map(|stack| &mut stack.hits);
            hits.for_each(|(_, hits)| *hits *= period_ns);
        }
        Ok(side)
    }

    fn counted(input: &Input<'_>, names: &mut Names) -> Side {
        let mut side = Side::default();
        for sample in input.symbolized.profile().samples() {
            side.counted = side.counted.saturating_add(sample.count);
            side.stacks.push(Stack {
                path: path(input, sample.node, names),
                hits: vec![(0, sample.count as f64)],
            });
        }
        side.of.push(side.counted as f64);
        side
    }
}

fn path(input: &Input<'_>, node: NodeId, names: &mut Names) -> Vec<NameId> {
    let frames = input.symbolized.profile().stack(node);
    let symbols = frames.flat_map(|frame| input.symbolized.frame(frame));
    symbols.map(|symbol| names.of(input.symbolized.function(symbol.function))).collect()
}

/// When how much of a unit of work was done. What takes time is done evenly: a span, and what a
/// counter grows by between two of its values.
fn work(input: &Input<'_>, name: &str) -> Result<Vec<(Window, f64)>, DiffError> {
    let unknown = || DiffError::NoWork { file: input.title.to_owned(), name: name.to_owned() };
    let (view, window) = input.view().ok_or(DiffError::NoTimes)?;
    let spans = view.timeline.ended_spans(name, window);
    if !spans.is_empty() {
        return Ok(spans.into_iter().map(|span| (span, 1.0)).collect());
    }
    let counters = view.timeline.counters(window);
    let counter = counters.iter().find(|counter| counter.name == name);
    let growth = counter.ok_or_else(unknown)?.growth(&view.timeline.uncovered());
    growth.ok_or_else(|| DiffError::Falls { file: input.title.to_owned(), name: name.to_owned() })
}

/// How much of it was done in each of these blocks, which follow each other.
fn done(work: &[(Window, f64)], blocks: &[Window]) -> Vec<f64> {
    let mut all = vec![0.0; blocks.len()];
    for (window, amount) in work {
        let first = blocks.partition_point(|block| block.to_ns <= window.from_ns);
        for (block, done) in blocks[first..].iter().zip(&mut all[first..]) {
            if block.from_ns > window.to_ns {
                break;
            }
            *done += match window.length_ns() {
                0 if block.contains(window.from_ns) => *amount,
                0 => 0.0,
                length_ns => amount * block.and(*window).length_ns() as f64 / length_ns as f64,
            };
        }
    }
    all
}
