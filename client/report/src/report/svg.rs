//! A flame graph, drawn by `inferno`, with the root at the top, where a browser's view starts.
//!
//! A function narrower than three pixels cannot be read or pointed at. Such callees of one function
//! are drawn as one cell that says how many they are, if that cell is wide enough itself. The graph
//! ends at a depth that hardly any stack reaches, so that a few deep, thin stacks do not make it
//! tall. Samples of what is not drawn count in the function above, and the subtitle gives their
//! share.

use std::collections::BTreeSet;
use std::io::Write;

use inferno::flamegraph::color::{BackgroundColor, Color, PaletteMap};
use inferno::flamegraph::{self, Direction, Options, TextTruncateDirection};

use super::folded::foldable_names;
use super::labels::LabelId;
use super::merged::{Merged, Visitor};
use super::palette::Palette;
use super::units::{amount, amount_with_unit, duration, grouped, share, size};
use super::{Report, ReportError, title};
use unikprof_profile::profile::Unit;

/// The width of the graph on most screens, in pixels.
const WIDTH: f64 = 1_200.0;

/// The least width that is drawn, in pixels of those.
const LEAST_PIXELS: f64 = 3.0;

/// The same as a part of the whole. A diff has it too.
pub(crate) const LEAST_SHARE: f64 = LEAST_PIXELS / WIDTH;

/// A row is drawn if at least this part of the samples reaches it.
const LEAST_ROW_SHARE: f64 = 0.02;

pub(super) fn write(report: &Report<'_>, out: &mut impl Write) -> Result<(), ReportError> {
    let shown = report.weights.shown;
    let least = (shown as f64 * LEAST_SHARE).ceil() as u64;
    let merged = Merged::of(report);
    let mut rows = Rows::default();
    merged.walk(least, &mut rows);
    let mut lines = Lines {
        names: foldable_names(&report.labels),
        drawn: vec![false; report.labels.all().len()],
        rows: rows.reached_by((shown as f64 * LEAST_ROW_SHARE) as u64),
        path: String::new(),
        steps: Vec::new(),
        least,
        root: Narrow::default(),
        below: 0,
        deeper: 0,
        merged: BTreeSet::new(),
        lines: Vec::new(),
    };
    merged.walk(least, &mut lines);
    lines.end();
    lines.lines.sort_unstable();

    let mut colors = PaletteMap::default();
    let palette = Palette::new(report.symbolized);
    let drawn = report.labels.all().iter().zip(&lines.names).zip(&lines.drawn);
    for ((label, name), _) in drawn.filter(|(_, drawn)| **drawn) {
        colors.insert(name, rgb(palette.color(label.function)));
    }
    // The bar below all others has no name here.
    colors.insert("", rgb(Palette::ROOT));
    for merged in &lines.merged {
        colors.insert(merged, rgb(Palette::MARK));
    }

    let unit = report.symbolized.profile().recording().unit();
    let mut options = Options::default();
    options.title = title(report);
    options.subtitle = Some(subtitle(report, lines.deeper));
    if unit == Unit::Nanoseconds {
        // Thousandths keep the widths as exact as anyone sees.
        options.count_name = "µs".to_owned();
        options.factor = 1e-3;
    }
    if unit == Unit::Bytes || unit == Unit::Objects {
        options.count_name = unit.to_string();
    }
    options.direction = Direction::Inverted;
    // All that is left is to be drawn.
    options.min_width = 0.0;
    options.font_type = "sans-serif".to_owned();
    options.frame_height = 18;
    options.bgcolors = Some(BackgroundColor::Flat(rgb(Palette::BACKGROUND)));
    options.uicolor = rgb(Palette::CONTROLS);
    options.deterministic = true;
    options.no_sort = true;
    // The end of a path is the function.
    options.text_truncate_direction = TextTruncateDirection::Left;
    options.palette_map = Some(&mut colors);
    flamegraph::from_lines(&mut options, lines.lines.iter().map(String::as_str), out)?;
    Ok(())
}

fn subtitle(report: &Report<'_>, deeper: u64) -> String {
    let profile = report.symbolized.profile();
    let recording = profile.recording();
    let counters = profile.counters();
    let unit = recording.unit();
    let mut parts = vec![match report.weights.shown {
        shown if shown == report.weights.recorded => amount_with_unit(shown, unit),
        shown => format!(
            "{} of {} ({})",
            amount(shown, unit),
            amount_with_unit(report.weights.recorded, unit),
            share(shown, report.weights.recorded)
        ),
    }];
    match (unit, recording.rate_hz()) {
        (Unit::Samples, Some(rate)) => parts.push(format!("{rate:.0} Hz {}", recording.mode)),
        (Unit::Samples, None) => {}
        (Unit::Bytes | Unit::Objects, _) => parts.push(format!(
            "{}, a sample every {}",
            recording.mode,
            size(recording.interval_bytes)
        )),
        (Unit::Nanoseconds, _) => {
            parts.push(format!("{}, measured: {} waits", recording.mode, grouped(counters.blocks)));
        }
    }
    if recording.elapsed_ns != 0 {
        let from = recording.ring.as_ref().map_or_else(String::new, |ring| {
            format!(" from {:.3} s on", ring.from_ns as f64 / 1e9)
        });
        parts.push(duration(recording.elapsed_ns) + &from);
    }
    if let Some(spans) = recording.inside() {
        parts.push(format!("inside {spans}"));
    }
    for (count, name) in [
        (counters.lost, "lost"),
        (counters.aged, "aged"),
        (counters.overflow, "overflow"),
        (counters.masked, "masked"),
        (counters.late, "late"),
        (counters.truncated, "truncated"),
        (counters.broken, "broken"),
    ] {
        if count != 0 {
            parts.push(format!("{} {name}", grouped(count)));
        }
    }
    if deeper != 0 {
        let part = share(deeper, report.weights.shown);
        parts.push(format!("{part} end in functions too narrow to draw"));
    }
    parts.join(" · ")
}

fn rgb((r, g, b): (u8, u8, u8)) -> Color {
    Color { r, g, b }
}

/// How many samples reach each row.
#[derive(Default)]
struct Rows {
    samples: Vec<u64>,
    row: usize,
}

impl Rows {
    /// How many rows from the top have so many samples.
    fn reached_by(&self, least: u64) -> usize {
        self.samples.partition_point(|samples| *samples >= least)
    }
}

impl Visitor for Rows {
    fn enter(&mut self, _label: LabelId, _own: u64, total: u64) {
        if self.row == self.samples.len() {
            self.samples.push(0);
        }
        let samples = &mut self.samples[self.row];
        *samples = samples.saturating_add(total);
        self.row += 1;
    }

    fn leave(&mut self, _label: LabelId) {
        self.row -= 1;
    }
}

/// The callees of a function that are too narrow to draw.
#[derive(Default)]
struct Narrow {
    functions: u64,
    samples: u64,
}

/// One function on the way from the root.
struct Step {
    /// The length of the path before it.
    length: usize,
    /// Its own samples and those of callees that are not drawn.
    weight: u64,
    narrow: Narrow,
}

struct Lines {
    names: Vec<String>,
    drawn: Vec<bool>,
    /// How many rows are drawn.
    rows: usize,
    path: String,
    steps: Vec<Step>,
    /// The least number of samples that is drawn.
    least: u64,
    /// The narrow ones among the functions that nothing calls.
    root: Narrow,
    /// How many functions below the last row the walk is in.
    below: usize,
    /// Samples whose innermost functions are not drawn.
    deeper: u64,
    /// What the cells that stand for several functions are called.
    merged: BTreeSet<String>,
    lines: Vec<String>,
}

impl Lines {
    /// Draws narrow callees of the function at the end of the path as one cell. Whole stacks are
    /// drawn in any case, so that the widths add up. Returns the samples that were not drawn.
    fn merge(&mut self, narrow: &Narrow) -> u64 {
        let is_root = self.path.is_empty();
        if narrow.samples == 0 || (narrow.samples < self.least && !is_root) {
            return narrow.samples;
        }
        let name = match narrow.functions {
            1 => "[1 function too narrow]".to_owned(),
            many => format!("[{} functions too narrow]", grouped(many)),
        };
        let separator = if is_root { "" } else { ";" };
        let line = format!("{}{separator}{name} {}", self.path, narrow.samples);
        self.lines.push(line);
        self.merged.insert(name);
        0
    }

    /// Draws what is left when the walk is over.
    fn end(&mut self) {
        let root = std::mem::take(&mut self.root);
        self.merge(&root);
    }
}

impl Visitor for Lines {
    fn enter(&mut self, label: LabelId, own: u64, _total: u64) {
        if self.steps.len() == self.rows {
            self.below += 1;
            if let Some(step) = self.steps.last_mut() {
                step.weight = step.weight.saturating_add(own);
            }
            self.deeper = self.deeper.saturating_add(own);
            return;
        }
        self.steps.push(Step { length: self.path.len(), weight: own, narrow: Narrow::default() });
        if !self.path.is_empty() {
            self.path.push(';');
        }
        self.path.push_str(&self.names[label as usize]);
        self.drawn[label as usize] = true;
    }

    fn skipped(&mut self, total: u64) {
        let is_last_row = self.steps.len() == self.rows;
        let narrow = match self.steps.last_mut() {
            Some(step) if is_last_row => {
                step.weight = step.weight.saturating_add(total);
                self.deeper = self.deeper.saturating_add(total);
                return;
            }
            Some(step) => &mut step.narrow,
            None => &mut self.root,
        };
        narrow.functions += 1;
        narrow.samples = narrow.samples.saturating_add(total);
    }

    fn leave(&mut self, _label: LabelId) {
        if self.below != 0 {
            self.below -= 1;
            return;
        }
        let Some(step) = self.steps.pop() else { return };
        let not_drawn = self.merge(&step.narrow);
        self.deeper = self.deeper.saturating_add(not_drawn);
        let weight = step.weight.saturating_add(not_drawn);
        if weight != 0 {
            self.lines.push(format!("{} {weight}", self.path));
        }
        self.path.truncate(step.length);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::report::{Format, ReportOptions};
    use unikprof_profile::profile::{Frame, Profile, ProfileBuilder};
    use unikprof_profile::symbols::{Images, Symbolizer};

    /// A stack of so many frames for each pair; all begin alike.
    fn profile(stacks: &[(u64, u64)]) -> Profile {
        let mut builder = ProfileBuilder::new();
        for &(depth, count) in stacks {
            let frames: Vec<Frame> = (0..depth).rev().map(|at| Frame::leaf(at * 16)).collect();
            builder.add_stack(0, count, &frames).unwrap();
        }
        builder.finish()
    }

    fn drawn(profile: &Profile) -> String {
        let symbolized = Symbolizer::new(Images::default()).resolve(profile).unwrap();
        let report = Report::new(&symbolized, ReportOptions::default());
        let mut svg = Vec::new();
        report.write(Format::Svg, &mut svg).unwrap();
        String::from_utf8(svg).unwrap()
    }

    /// Rectangles of functions, without that for all.
    fn rectangles(svg: &str) -> usize {
        svg.matches("<title>").count() - 1
    }

    #[test]
    fn a_thin_tower_does_not_make_the_graph_tall() {
        let svg = drawn(&profile(&[(10, 990), (140, 10)]));
        assert_eq!(rectangles(&svg), 10);
        assert!(svg.contains("1,000 samples · 1.0 % end in functions too narrow to draw"));
    }

    /// Hairlines: of 300 callees of one function, three have a width that can be pointed at.
    #[test]
    fn narrow_callees_of_a_function_are_one_cell() {
        let mut builder = ProfileBuilder::new();
        for at in 0..300_u64 {
            let count = if at < 3 { 100 } else { 1 };
            let stack = [Frame::leaf(16 + at * 16), Frame::caller(8)];
            builder.add_stack(0, count, &stack).unwrap();
        }
        let svg = drawn(&builder.finish());
        assert_eq!(rectangles(&svg), 1 + 3 + 1);
        assert!(
            svg.contains("<title>[297 functions too narrow] (297 samples, 49.75%)</title>"),
            "{svg}"
        );
        assert!(!svg.contains("end in functions too narrow"), "{svg}");
    }

    #[test]
    fn narrow_callees_that_are_narrow_together_count_above() {
        let mut builder = ProfileBuilder::new();
        builder.add_stack(0, 997, &[Frame::leaf(8)]).unwrap();
        let stack = |leaf| [Frame::leaf(leaf), Frame::caller(101)];
        builder.add_stack(0, 1, &stack(16)).unwrap();
        builder.add_stack(0, 1, &stack(32)).unwrap();
        let svg = drawn(&builder.finish());
        // The caller itself is narrow: whole stacks are never left out.
        assert_eq!(rectangles(&svg), 2);
        assert!(svg.contains("<title>[1 function too narrow] (2 samples, 0.20%)</title>"));
        let mut builder = ProfileBuilder::new();
        builder.add_stack(0, 997, &[Frame::leaf(8)]).unwrap();
        builder.add_stack(0, 2, &[Frame::leaf(16), Frame::leaf(8)]).unwrap();
        let svg = drawn(&builder.finish());
        assert_eq!(rectangles(&svg), 1);
        assert!(svg.contains("999 samples · 0.2 % end in functions too narrow to draw"));
    }

    #[test]
    fn what_all_stacks_share_is_drawn_however_deep() {
        let svg = drawn(&profile(&[(140, 990), (150, 10)]));
        assert_eq!(rectangles(&svg), 140);
    }

    #[test]
    fn all_that_is_wide_enough_is_drawn_and_nothing_is_said() {
        let svg = drawn(&profile(&[(10, 50), (12, 50)]));
        assert_eq!(rectangles(&svg), 12);
        assert!(!svg.contains("too narrow"));
    }

    #[test]
    fn one_sample_is_drawn_whole() {
        assert_eq!(rectangles(&drawn(&profile(&[(200, 1)]))), 200);
    }
}
