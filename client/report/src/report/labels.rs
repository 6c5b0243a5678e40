//! The label of a frame in a report: a function, or a line of one.

use std::collections::HashMap;

use unikprof_profile::printable::Printable;
use unikprof_profile::profile::FrameId;
use unikprof_profile::symbols::{FileId, FunctionId, FunctionKind, Symbolized};

use super::ReportOptions;
use super::filter::shown_symbols;

/// A row of the table and a frame of the graph.
#[derive(Debug, Clone)]
pub(super) struct Label {
    pub(super) function: FunctionId,
    /// Only if lines are shown separately.
    pub(super) line: Option<(FileId, u32)>,
    /// The function's name, with `file:line` or the offset in the image if lines are shown
    /// separately.
    pub(super) text: String,
}

/// An index into [`Labels::all`]; labels are numbered in the order of their texts.
pub(super) type LabelId = u32;

/// The labels of a report.
#[derive(Debug)]
pub(super) struct Labels {
    all: Vec<Label>,
    /// `of_frames[first[f]..first[f + 1]]` are the labels of frame `f`, innermost first.
    of_frames: Vec<LabelId>,
    first: Vec<u32>,
}

impl Labels {
    pub(super) fn of(symbolized: &Symbolized<'_>, options: &ReportOptions) -> Labels {
        let mut all: Vec<Label> = Vec::new();
        let mut known = HashMap::new();
        let mut of_frames = Vec::new();
        let mut first = vec![0];
        for frame in symbolized.profile().frame_ids() {
            for symbol in shown_symbols(symbolized.frame(frame), options) {
                let line = options.lines.then(|| symbol.file.zip(symbol.line)).flatten();
                let function = symbolized.function(symbol.function);
                // Code without a name has no lines, but offsets in its image; the first is its name.
                let is_unnamed = options.lines && function.kind == FunctionKind::Address;
                let offset = is_unnamed.then(|| symbolized.offset_of(frame)).flatten();
                let offset = offset.filter(|at| !function.name.ends_with(&format!("+{at:#x}")));
                let id = *known.entry((symbol.function, line, offset)).or_insert_with(|| {
                    let name = Printable(&function.name);
                    let text = match (line, offset) {
                        (Some((file, line)), _) => {
                            format!("{name} {}:{line}", Printable(symbolized.file(file)))
                        }
                        (None, Some(offset)) => format!("{name} at {offset:#x}"),
                        (None, None) => name.to_string(),
                    };
                    all.push(Label { function: symbol.function, line, text });
                    all.len() - 1
                });
                of_frames.push(id);
            }
            first.push(of_frames.len() as u32);
        }
        let mut order: Vec<usize> = (0..all.len()).collect();
        // Equal names of different images keep an order as well.
        order.sort_by(|a, b| {
            (&all[*a].text, all[*a].function).cmp(&(&all[*b].text, all[*b].function))
        });
        let mut rank = vec![0; all.len()];
        for (at, label) in order.iter().enumerate() {
            rank[*label] = at as LabelId;
        }
        let of_frames = of_frames.into_iter().map(|label: usize| rank[label]).collect();
        let mut ranked: Vec<(LabelId, Label)> = rank.into_iter().zip(all).collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        Labels { all: ranked.into_iter().map(|(_, label)| label).collect(), of_frames, first }
    }

    pub(super) fn all(&self) -> &[Label] {
        &self.all
    }

    /// The labels of a frame, innermost first; at least one.
    #[inline]
    pub(super) fn of_frame(&self, frame: FrameId) -> &[LabelId] {
        let [start, end] = [0, 1].map(|after| self.first[frame.index() + after] as usize);
        &self.of_frames[start..end]
    }
}
