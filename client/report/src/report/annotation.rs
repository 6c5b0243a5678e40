//! A function's source lines and instructions, with the samples of each.
//!
//! A sample belongs to the instruction at its address, which is the one that was to run next. It
//! also counts, once each, for the calls that its stack is in. The code of a function includes that
//! of functions inlined into it.

mod instructions;
mod samples;
mod source;
mod write;

pub use instructions::{decode_of, listing};
pub use source::source_text;
pub(super) use write::JsonAnnotation;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::PathBuf;

use thiserror::Error;

use self::instructions::{Instruction, Origin};
use self::source::Sources;
use super::Report;
use super::calls::{FunctionError, FunctionName};
use super::filter::shown_symbols;
use super::shares::Shares;
use unikprof_profile::profile::{Architecture, FrameId};
use unikprof_profile::symbols::{CodeError, FunctionId, MappedAddress, Symbolizer};

/// The source lines and instructions of a function, and their samples.
#[derive(Debug, Clone)]
pub struct Annotation {
    function: String,
    /// The samples at the function's code, functions inlined into it included.
    code: Shares,
    /// Of their own samples, those of the function itself.
    own: u64,
    /// Those with the most samples first.
    lines: Vec<Line>,
    /// In the order of their addresses; each with an index into the lines.
    instructions: Vec<(Instruction, usize, Shares)>,
}

#[derive(Debug, Clone)]
struct Line {
    origin: Origin,
    /// The line itself, if the file could be read.
    text: Option<String>,
    counts: Shares,
}

/// Why a function cannot be annotated.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AnnotationError {
    /// The name is not one function's.
    #[error(transparent)]
    Function(#[from] FunctionError),
    /// A mark in the stacks, such as `[blocked]`.
    #[error(
        "`{0}` is a mark in the stacks and not a function: it has no code; `--callers` shows where \
         it occurs"
    )]
    NotCode(String),
    /// The code is not known.
    #[error("cannot annotate `{function}`: {source}")]
    Code {
        /// The function.
        function: String,
        /// What is missing.
        source: CodeError,
    },
    /// The processor's instructions are not known.
    #[error(
        "cannot annotate a function: instructions are shown for x86_64 and aarch64 only, and the \
         recording is of {0}"
    )]
    Processor(Architecture),
}

impl Annotation {
    /// The lines and instructions of a function, with the samples that the report shows.
    /// `symbolizer` is the one that named the report's functions. Source files are read at the
    /// paths in the debug information, or below one of `source_folders`.
    ///
    /// # Errors
    /// [`AnnotationError`].
    pub fn of(
        report: &Report<'_>,
        name: &FunctionName,
        symbolizer: &Symbolizer,
        source_folders: &[PathBuf],
    ) -> Result<Annotation, AnnotationError> {
        let functions = name.find(report)?;
        let symbolized = report.symbolized;
        let function = name.heading(report, &functions);
        let frames = frames_of(report, &functions);
        if frames.is_empty() {
            return Err(AnnotationError::NotCode(function));
        }
        let architecture = &symbolized.profile().recording().architecture;
        let decode = decode_of(architecture);
        let decode = decode.ok_or_else(|| AnnotationError::Processor(architecture.clone()))?;
        let instructions = instructions::of(report, &functions, &frames, symbolizer, decode);
        let instructions = instructions
            .map_err(|source| AnnotationError::Code { function: function.clone(), source })?;

        let mut lines: Vec<Line> = Vec::new();
        let mut known: HashMap<Origin, usize> = HashMap::new();
        let mut sources = Sources::new(source_folders);
        let line_of: Vec<usize> = instructions
            .iter()
            .map(|at| {
                *known.entry(at.origin.clone()).or_insert_with(|| {
                    let source = at.origin.source.as_ref();
                    lines.push(Line {
                        origin: at.origin.clone(),
                        text: source.and_then(|(file, line)| sources.line(file, *line)),
                        counts: Shares::default(),
                    });
                    lines.len() - 1
                })
            })
            .collect();
        let counted = samples::count(report, &frames, &instructions, &line_of, lines.len());
        for (line, counts) in lines.iter_mut().zip(&counted.lines) {
            line.counts = *counts;
        }
        let rows = instructions.into_iter().zip(line_of).zip(counted.instructions);
        let instructions = rows.map(|((instruction, line), counts)| (instruction, line, counts));
        let mut code = counted.code;
        if let Some(share) = report.functions().total_share(&functions, code.total) {
            code.total_share = share;
        }
        let mut annotation = Annotation {
            function,
            code,
            own: own_samples(report, &functions),
            lines,
            instructions: instructions.collect(),
        };
        annotation.sort_lines();
        Ok(annotation)
    }

    /// Brings the lines with the most samples to the top.
    fn sort_lines(&mut self) {
        let mut order: Vec<usize> = (0..self.lines.len()).collect();
        order.sort_by_key(|at| {
            let Line { origin, counts, .. } = &self.lines[*at];
            (Reverse(counts.own), Reverse(counts.total), origin)
        });
        let mut rank = vec![0; order.len()];
        for (at, line) in order.iter().enumerate() {
            rank[*line] = at;
        }
        for (_, line, _) in &mut self.instructions {
            *line = rank[*line];
        }
        self.lines = order.into_iter().map(|at| self.lines[at].clone()).collect();
    }
}

/// The frames at whose addresses one of the functions runs, itself or inlined into another.
fn frames_of(report: &Report<'_>, functions: &[FunctionId]) -> Vec<(FrameId, MappedAddress)> {
    let symbolized = report.symbolized;
    let profile = symbolized.profile();
    let is_meant = |frame: &FrameId| {
        let symbols = shown_symbols(symbolized.frame(*frame), &report.options);
        symbols.iter().any(|symbol| functions.contains(&symbol.function))
    };
    let located = |frame: FrameId| {
        let address = profile.frame(frame).lookup_address()?;
        let mapping = symbolized.mapping_of(frame);
        Some((frame, MappedAddress { address, mapping }))
    };
    profile.frame_ids().filter(is_meant).filter_map(located).collect()
}

/// The functions' own samples, as the report's table counts them.
fn own_samples(report: &Report<'_>, functions: &[FunctionId]) -> u64 {
    let rows = report.functions().rows.iter();
    let rows = rows.filter(|row| functions.contains(&row.function));
    rows.fold(0, |sum: u64, row| sum.saturating_add(row.own))
}
