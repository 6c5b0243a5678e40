//! Reports of a symbolized profile, for people and for other tools.
//!
//! [`Report`] holds a profile as it was asked for: which stacks, with or without inlined
//! functions and lines. [`Report::write`] writes it in one of the [`Format`]s:
//!
//! | format | for |
//! |---|---|
//! | [`Format::Text`] | people: what takes the time, the top functions with their intervals |
//! | [`Format::Folded`] | flame graph tools: `root;...;leaf count` |
//! | [`Format::Page`] | people: time tracks, flame graph and tables in a browser, see `page` |
//! | [`Format::Svg`] | a flame graph in a browser |
//! | [`Format::Pprof`] | `go tool pprof` and other tools that read its format |
//! | [`Format::Firefox`] | the Firefox profiler, see `firefox` |
//! | [`Format::Speedscope`] | speedscope, see `speedscope` |
//! | [`Format::Otlp`] | OpenTelemetry collectors; the signal is in development |
//! | [`Format::Json`] | programs; the schema is in `json` |
//!
//! Counts are samples, or nanoseconds where blocked time was measured
//! ([`Mode::OffCpu`](unikprof_profile::profile::Mode::OffCpu)). Shares refer to everything that was recorded,
//! even if a filter shows only a part; shares of samples have 95 % intervals. A function counts
//! once per stack, however often it recurs in it.
//!
//! ```no_run
//! use unikprof_report::report::{Format, Report, ReportOptions};
//! # fn show(symbolized: &unikprof_profile::symbols::Symbolized<'_>)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! let options = ReportOptions { focus: Some("Server::poll".parse()?), ..Default::default() };
//! let report = Report::new(symbolized, options);
//! report.write(Format::Svg, &mut std::fs::File::create("profile.svg")?)?;
//! # Ok(())
//! # }
//! ```

pub(crate) mod accounting;
mod analysis;
mod annotation;
pub(crate) mod broken;
mod calls;
mod events;
mod filter;
mod firefox;
mod folded;
mod format;
mod functions;
#[cfg(test)]
pub(crate) mod golden_tests;
pub mod heap;
pub(crate) mod json;
mod json_time;
mod labels;
pub(crate) mod marks;
mod merged;
#[cfg(test)]
mod mode_golden_tests;
mod moments;
#[cfg(feature = "otlp")]
mod otlp;
pub(crate) mod page;
#[cfg(feature = "svg")]
mod palette;
mod pprof;
mod pprof_messages;
pub mod running;
mod script;
mod seconds;
pub mod shares;
pub mod shorten;
mod speedscope;
pub(crate) mod stack_warnings;
pub(crate) mod summary;
#[cfg(feature = "svg")]
mod svg;
pub mod text;
mod times;
pub mod trace;
pub(crate) mod uncertainty;
pub mod warnings;

pub use annotation::{Annotation, AnnotationError, decode_of, listing, source_text};
pub use calls::{Calls, Direction, FunctionError, FunctionName};
pub use firefox::library_key as firefox_library;
pub use format::{Format, UnknownFormat};
pub use functions::{FunctionRow, FunctionTable, SortBy};
pub use page::served_page;
pub use pprof::PieceLimits;
pub use script::ScriptFormat;
#[cfg(feature = "svg")]
pub(crate) use svg::LEAST_SHARE;

use std::collections::HashMap;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::sync::OnceLock;

use flate2::Compression;
use thiserror::Error;
use unikprof_proto::caller_table::{Caller, Rule};

use filter::Weights;
pub use filter::without_sampler;
use labels::Labels;
use marks::Marked;
use unikprof_profile::caller_table::rules_of_frames;
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::Sample;
use unikprof_profile::recording::Recording;
use unikprof_profile::symbols::{CodeError, FileId, MappedAddress, Symbolized, Symbolizer};
use unikprof_profile::timeline::{RecordingSpan, Timeline, Window};
use unikprof_profile::units;

/// Of the page and of JSON. Level 6 takes 2 to 8 times as long and saves 2 to 4 percent.
const COMPRESSION: Compression = Compression::new(2);

/// The default width of text reports.
pub const DEFAULT_COLUMNS: usize = 120;

/// Selects what a report shows of a profile.
#[derive(Debug, Clone)]
pub struct ReportOptions {
    /// Only stacks where some function's name matches or is this.
    pub focus: Option<FunctionName>,
    /// No stacks where some function's name matches or is this.
    pub ignore: Option<FunctionName>,
    /// Whether each source line is a row and a frame of its own.
    pub lines: bool,
    /// Whether inlined functions count as the function they were inlined into.
    pub no_inlines: bool,
    /// How many functions the text lists; zero for all.
    pub top: usize,
    /// In which order.
    pub sort: SortBy,
    /// Whether the text has the whole accounting, with all warnings, in place of one line.
    pub accounting: bool,
    /// Whether folded stacks begin with their labels: recording, vCPU and span.
    pub labels: bool,
    /// Labels of each of pprof's samples, in place of the recording's name: what tells guests of a
    /// fleet apart.
    pub guest_labels: Option<Vec<(String, String)>>,
    /// How wide the text's tables are, in columns: longer names are shortened to fit. `None`: as
    /// wide as the names.
    pub columns: Option<usize>,
}

impl Default for ReportOptions {
    /// Everything; the text lists 30 functions in `DEFAULT_COLUMNS`.
    fn default() -> Self {
        ReportOptions {
            focus: None,
            ignore: None,
            lines: false,
            no_inlines: false,
            top: 30,
            sort: SortBy::default(),
            accounting: false,
            labels: false,
            guest_labels: None,
            columns: Some(DEFAULT_COLUMNS),
        }
    }
}

/// The time-related part of a report.
#[derive(Debug, Clone, Copy)]
pub struct TimelineView<'a> {
    /// The contents of the guest's rings.
    pub timeline: &'a Timeline,
    /// The recording that is shown.
    pub of: RecordingSpan,
    /// The window that is shown.
    pub window: Window,
    /// Whether text and JSON show the seconds; the text then in the place of the functions.
    pub seconds: bool,
    /// The length of each, in ns; a second if not given, or longer if there would be too many.
    pub step_ns: Option<u64>,
}

impl<'a> TimelineView<'a> {
    /// A recording file's time data, without the seconds: all of it, or the window that the file
    /// was made for; `None` if it contains only counts.
    pub fn of(recording: &'a Recording) -> Option<TimelineView<'a>> {
        let (timeline, of) = recording.timeline.as_ref().zip(recording.span)?;
        Some(TimelineView {
            timeline,
            of,
            window: recording.asked.or(recording.counted).map_or(of.window, |it| of.window.and(it)),
            seconds: false,
            step_ns: None,
        })
    }
}

/// A symbolized profile with its report options.
#[derive(Debug)]
pub struct Report<'a> {
    symbolized: &'a Symbolized<'a>,
    view: Option<TimelineView<'a>>,
    /// The guest's events beside allocations, whose stacks and sizes are not taken from the rings.
    beside: Option<TimelineView<'a>>,
    options: ReportOptions,
    labels: Labels,
    weights: Weights,
    /// The functions, once they were asked for: every format shows the same.
    functions: OnceLock<FunctionTable>,
    /// What marked stacks hold, likewise.
    marked: OnceLock<Marked>,
    calls: Option<Calls>,
    annotation: Option<Annotation>,
    is_analyzed: bool,
    /// A warning that a text on the terminal leaves out: it is told as an error.
    told: Option<String>,
    /// By the address of a frame, its function's code; empty if it was not looked up.
    ranges: HashMap<u64, Range<u64>>,
    /// By frame, how its image says that its caller is found; empty if it was not looked up.
    callers: Vec<Option<Caller>>,
}

impl<'a> Report<'a> {
    /// Applies the filters; takes time and memory in proportion to the distinct stacks.
    pub fn new(symbolized: &'a Symbolized<'a>, options: ReportOptions) -> Report<'a> {
        let labels = Labels::of(symbolized, &options);
        let weights = Weights::of(symbolized, &options);
        Report {
            symbolized,
            view: None,
            beside: None,
            options,
            labels,
            weights,
            functions: OnceLock::new(),
            marked: OnceLock::new(),
            calls: None,
            annotation: None,
            is_analyzed: false,
            told: None,
            ranges: HashMap::new(),
            callers: Vec::new(),
        }
    }

    /// Shows the calls to or from a function: in text instead of the functions, in JSON in addition
    /// to them.
    #[must_use]
    pub fn with_calls(mut self, calls: Calls) -> Report<'a> {
        self.calls = Some(calls);
        self
    }

    /// Shows a function's lines and instructions: in text instead of the functions, in JSON in
    /// addition to them.
    #[must_use]
    pub fn with_annotation(mut self, annotation: Annotation) -> Report<'a> {
        self.annotation = Some(annotation);
        self
    }

    /// Leaves out a warning in a text, but for [files](Report::write_in_full).
    pub fn without_warning(mut self, told: Option<String>) -> Report<'a> {
        self.told = told;
        self
    }

    /// Text is this wide.
    pub fn in_columns(mut self, columns: usize) -> Report<'a> {
        self.options.columns = Some(columns);
        self
    }

    /// Shows all that rules find about the guest, above the functions. Pages have it in any case.
    #[must_use]
    pub fn with_analysis(mut self) -> Report<'a> {
        self.is_analyzed = true;
        self
    }

    /// Says in the Firefox profile which code is whose, so that the front end can ask for a
    /// function's instructions. `symbolizer` is the one that named the report's functions.
    pub fn with_function_ranges(
        mut self,
        symbolizer: &Symbolizer,
    ) -> Result<Report<'a>, CodeError> {
        let profile = self.symbolized.profile();
        let located = |frame| {
            let address = profile.frame(frame).lookup_address()?;
            let mapping = self.symbolized.mapping_of(frame);
            Some(MappedAddress { address, mapping })
        };
        let addresses: Vec<_> = profile.frame_ids().filter_map(located).collect();
        self.ranges = symbolizer.function_ranges(profile, &addresses)?;
        Ok(self)
    }

    /// Adds how each frame's caller was found, which the page can show. `symbolizer` must be the
    /// one that named the report's functions.
    #[must_use]
    pub fn with_callers(mut self, symbolizer: &Symbolizer) -> Report<'a> {
        let rules = rules_of_frames(self.symbolized, symbolizer, |_| true);
        self.callers = rules.into_iter().map(|rule| rule.map(Rule::caller)).collect();
        self
    }

    /// Shows time data as well, if there is any: the guest's own events, and the seconds if
    /// requested.
    #[must_use]
    pub fn with_timeline(mut self, view: impl Into<Option<TimelineView<'a>>>) -> Report<'a> {
        let view = view.into();
        if self.symbolized.profile().recording().mode.is_heap() {
            // The rings tell when allocations were sampled, but not what they stand for.
            self.beside = view;
            return self;
        }
        self.view = view;
        self.functions = OnceLock::new();
        self
    }

    /// Rejects filters that leave nothing of what was recorded.
    pub fn check_filters(&self) -> Result<(), FunctionError> {
        match self.weights {
            Weights { shown: 0, recorded: 1.., .. } => Err(FunctionError::NothingLeft {
                recorded: self.weights.recorded,
                unit: self.symbolized.profile().recording().unit(),
            }),
            _ => Ok(()),
        }
    }

    /// Whether a format is built in, suits the recording, and has something to show.
    pub fn suits(&self, format: Format) -> Result<(), ReportError> {
        let profile = self.symbolized.profile();
        let is_empty = match format {
            // The front end rejects a profile without threads.
            Format::Firefox => profile.vcpus().is_empty() && profile.samples().is_empty(),
            // speedscope rejects a file without profiles.
            Format::Svg | Format::Speedscope => self.weights.shown == 0,
            _ => false,
        };
        match format {
            Format::Chrome => Err(ReportError::OnlyTraces { format }),
            Format::Svg if cfg!(not(feature = "svg")) => Err(ReportError::NotBuiltIn { format }),
            Format::Otlp if cfg!(not(feature = "otlp")) => Err(ReportError::NotBuiltIn { format }),
            _ if is_empty => Err(ReportError::Empty { recorded: self.weights.recorded }),
            _ => Ok(()),
        }
    }

    /// Writes the report. The writer is given large pieces and flushed.
    pub fn write(&self, format: Format, out: &mut dyn Write) -> Result<(), ReportError> {
        self.write_telling(format, self.options.accounting, out)
    }

    /// The same for a file that is kept: a text has the whole accounting.
    pub fn write_in_full(&self, format: Format, out: &mut dyn Write) -> Result<(), ReportError> {
        self.write_telling(format, true, out)
    }

    fn write_telling(
        &self,
        format: Format,
        accounting: bool,
        out: &mut dyn Write,
    ) -> Result<(), ReportError> {
        self.suits(format)?;
        let mut out = BufWriter::with_capacity(1 << 16, out);
        match format {
            Format::Text => text::write(self, accounting, &mut out)?,
            Format::Folded => folded::write(self, &mut out)?,
            #[cfg(feature = "svg")]
            Format::Svg => svg::write(self, &mut out)?,
            #[cfg(not(feature = "svg"))]
            Format::Svg => {}
            Format::Page => page::write(self, &mut out)?,
            Format::Pprof => pprof::write(self, &mut out)?,
            Format::Firefox => firefox::write(self, &mut out)?,
            #[cfg(feature = "otlp")]
            Format::Otlp => otlp::write(self, &mut out)?,
            #[cfg(not(feature = "otlp"))]
            Format::Otlp => {}
            Format::Speedscope => speedscope::write(self, &mut out)?,
            Format::Chrome => {}
            Format::Json => json::write(self, &mut out)?,
        }
        out.flush()?;
        Ok(())
    }

    /// pprof files that keep within the limits and have all samples together, none if there is no
    /// sample. Each begins 1 ms after the one before, so that engines do not take one for another's
    /// copy. Unlike [`Format::Pprof`], without the accounting in comments.
    pub fn pprof_pieces(
        &self,
        unix_ns: Range<u64>,
        limits: PieceLimits,
    ) -> io::Result<Vec<Vec<u8>>> {
        pprof::pieces(self, unix_ns, limits)
    }

    /// An OTLP request for the counts of this time, with these attributes of the guest.
    #[cfg(feature = "otlp")]
    pub fn otlp_request(
        &self,
        attributes: impl IntoIterator<Item = (String, String)>,
        unix_ns: Range<u64>,
    ) -> io::Result<Vec<u8>> {
        otlp::request(self, attributes, unix_ns)
    }

    /// Writes a line for each tick and wait of the [time shown](Report::with_timeline), in
    /// chronological order; nothing if none is shown. In [columns](ScriptFormat::Columns),
    /// separated by tabs and named by the first line: the time, the vCPU, the outcome, how long a
    /// wait took in ns, the innermost span, and the stack, root first.
    pub fn write_script(&self, format: ScriptFormat, out: &mut impl Write) -> io::Result<()> {
        match &self.view {
            Some(view) => script::write(self, view, format, out),
            None => Ok(()),
        }
    }

    /// The samples that the filters keep.
    fn shown_samples(&self) -> impl Iterator<Item = &Sample> {
        let samples = self.symbolized.profile().samples().iter();
        samples.filter(|sample| self.weights.keeps(sample.node))
    }

    /// Functions (or lines) by their own samples, most first.
    pub fn functions(&self) -> &FunctionTable {
        self.functions.get_or_init(|| FunctionTable::of(self))
    }

    fn marked(&self) -> Marked {
        *self.marked.get_or_init(|| Marked::of(self.symbolized.profile()))
    }

    /// For each of the labels its source line: a function's is the one with the most samples.
    fn label_lines(&self) -> impl Iterator<Item = Option<(FileId, u32)>> + '_ {
        let rows = self.functions().rows.iter();
        let lines: HashMap<_, _> = rows.map(|row| (row.function, row.line)).collect();
        let labels = self.labels.all().iter();
        labels.map(move |label| label.line.or(lines.get(&label.function).copied().flatten()))
    }

    /// Warnings about the figures; each is one sentence.
    pub fn warnings(&self) -> Vec<String> {
        warnings::of(self)
    }
}

/// The guest's and the recording's name.
fn title(report: &Report<'_>) -> String {
    let recording = report.symbolized.profile().recording();
    let guest = match recording.guest_name.as_str() {
        "" => "guest",
        name => name,
    };
    let title = match recording.name.as_str() {
        "" => guest.to_owned(),
        name => format!("{guest}: {name}"),
    };
    Printable(&title).to_string()
}

/// A report could not be written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The writer failed.
    #[error("cannot write the report: {0}")]
    Write(#[from] io::Error),
    /// There is nothing to draw.
    #[error("no samples to draw: {}; see `-o report.txt` for what was \
             counted", why_empty(*recorded))]
    Empty {
        /// The samples in the recording.
        recorded: u64,
    },
    /// The format has no place for samples.
    #[error("{format} is for traces (`connect ADDR trace`), and this recording has samples")]
    OnlyTraces {
        /// The format that was asked for.
        format: Format,
    },
    /// The client was built without this format.
    #[error("this client was built without {format}: build it with `--features {format}`")]
    NotBuiltIn {
        /// The format that was asked for.
        format: Format,
    },
}

fn why_empty(recorded: u64) -> String {
    match recorded {
        0 => "the recording has none".to_owned(),
        _ => format!("the recording has {recorded}, and the filters remove all of them"),
    }
}
