//! `diff`: what changed between two recordings.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use serde::Serialize;

use super::describe::Rows;
use super::failure::Failure;
use super::names::NameArguments;
use super::outputs::{no_input_is_replaced, warn, write_each};
use super::report::open_by_epoch;
use super::time::PartArguments;
use super::{print_local, screen, values};
use unikprof_profile::output::AtomicFile;
use unikprof_profile::printable::{path_word, word};
use unikprof_profile::recording::Recording;
use unikprof_report::diff::{CompareOptions, Comparison, DiffError, Format, Input, TOP};
use unikprof_report::report::trace::{TraceDiff, TraceOptions, TraceView};
use unikprof_report::report::{self, DEFAULT_COLUMNS};

#[derive(Debug, Args)]
#[command(after_help = DIFF_HELP, arg_required_else_help = true)]
pub(super) struct DiffArguments {
    /// The recording to compare with: a file, or a folder of .unikprof files of the same build
    #[arg(value_name = "BASE")]
    base: PathBuf,
    /// The recording that is compared, likewise; it may be of another build
    ///
    /// Omit it to compare spans of one recording: with --in-span and --longer, those that took at
    /// least so long with the others; with --shorter, the other way round.
    #[arg(value_name = "NEW")]
    new: Option<PathBuf>,
    /// Compare the time for each call of this span of the guest, or for each step of a counter that
    /// only grows
    ///
    /// Without it, shares of the time are compared.
    #[arg(long, value_name = "SPAN")]
    per: Option<String>,
    /// A function of BASE that has another name in NEW; can be repeated
    #[arg(long, value_name = "OLD=NEW")]
    rename: Vec<String>,
    /// Compare recordings of guests with different names
    #[arg(long)]
    force: bool,
    /// Exit with code 13 if NEW is slower: `significant`, or by a share of BASE's time such as 5%
    ///
    /// `significant` fails if a function in the cause takes more time than in BASE; 5% if it takes
    /// more by at least 5 % of all time in BASE, or with --per if all time for each call grew by at
    /// least 5 %. Changes within chance and time that moved between functions do not fail. The last
    /// line on standard error is the result as a JSON object.
    #[arg(long, value_name = "CHANGE")]
    fail_on: Option<FailOn>,
    /// Read a damaged or truncated file up to the damage
    #[arg(long)]
    salvage: bool,
    /// Number of functions in the text; 0 lists all [default: 30, or 5 if none changed]
    #[arg(long, value_name = "COUNT", value_parser = values::count)]
    top: Option<usize>,
    /// Do not shorten names in the text to the terminal's width (120 columns if there is none)
    #[arg(long, help_heading = "Output")]
    wide: bool,
    /// Print the comparison as JSON
    #[arg(long, conflicts_with = "output", help_heading = "Output")]
    json: bool,
    /// Write to this file, in the format of its extension: .txt, .json, .html or .svg; can be
    /// repeated
    #[arg(short = 'o', long = "output", value_name = "FILE", help_heading = "Output")]
    output: Vec<PathBuf>,
    #[command(flatten)]
    time: PartArguments,
    #[command(flatten)]
    names: NameArguments,
}

const DIFF_HELP: &str = "\
A change is shown as one if it is more than chance between blocks of time, at
most 5 % of such results being wrong. This needs recordings of an agent that
keeps a ring, or that were fetched in at least 8 parts; from counts without
times, changes are shown as possible only.

`slower`, `faster`, `new`, `gone` and `moved` functions are the cause of the
change; `carries` marks functions whose callees are, and `share` those that
have another share only because others became slower or faster.

Examples:
  unikprof-client diff old.unikprof new.unikprof --image old.elf --image new.elf
  unikprof-client diff old.unikprof new.unikprof --per request --fail-on 5%
  unikprof-client diff old.unikprof new.unikprof --from 10s
  unikprof-client diff run.unikprof --in-span request --longer 50ms
  unikprof-client diff old.unikprof new.unikprof --rename parse=Parser::parse --json";

/// The change from which on NEW is too slow.
#[derive(Debug, Clone, Copy, PartialEq)]
enum FailOn {
    Significant,
    /// A share of all time in BASE.
    Growth(f64),
}

impl FromStr for FailOn {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<FailOn, Self::Err> {
        if text == "significant" {
            return Ok(FailOn::Significant);
        }
        let percent = text.strip_suffix('%').map(|number| number.trim().parse::<f64>());
        match percent {
            Some(Ok(percent)) if percent > 0.0 && percent.is_finite() => {
                Ok(FailOn::Growth(percent / 100.0))
            }
            _ => Err("expected `significant`, or a percentage above 0 such as `5%`"),
        }
    }
}

pub(super) fn run(arguments: &DiffArguments) -> Result<(), Failure> {
    let outputs = outputs(arguments)?;
    let symbolizer = arguments.names.symbolizer()?;
    let files = [&arguments.base, arguments.new.as_ref().unwrap_or(&arguments.base)];
    no_input_is_replaced(
        files.into_iter().chain(arguments.names.files()),
        arguments.output.iter().map(PathBuf::as_path),
    )?;
    let others = match arguments.new {
        Some(_) => None,
        None => Some(arguments.time.with_others().ok_or_else(|| {
            Failure::Usage(
                "expected two recordings, or of one recording the spans that are compared with the \
                 others of their name: --in-span NAME --longer TIME"
                    .into(),
            )
        })?),
    };
    if others.is_some() && arguments.per.is_some() {
        return Err(Failure::Usage(
            "--per counts the work of a whole recording, and spans of one recording are compared: \
             leave it out"
                .into(),
        ));
    }
    let parts = [others.as_ref().unwrap_or(&arguments.time), &arguments.time];
    let read = |at: usize| {
        let mut recording = open_by_epoch(std::slice::from_ref(files[at]), arguments.salvage)?;
        if let Some(part) = parts[at].of(&recording, false)? {
            part.cut(&mut recording);
        }
        Ok::<_, Failure>(recording)
    };
    let [base, new] = [read(0)?, read(1)?];
    match (&base.trace, &new.trace) {
        (Some(traced), Some(new_traced)) => {
            let view = |(trace, recording)| {
                let recording: &Recording = recording;
                TraceView::new(trace, recording.timeline.as_ref(), TraceOptions::default())
            };
            let compared = TraceDiff::of(&[(traced, &base), (new_traced, &new)].map(view));
            return traces(&compared, arguments, outputs);
        }
        (None, None) => {}
        _ => {
            return Err(Failure::Usage(
                "one of the files is a trace and the other is not: expected two recordings, or two \
                 traces".into(),
            ));
        }
    }
    let named = [symbolizer.resolve(&base.profile)?, symbolizer.resolve(&new.profile)?];
    let title = |at: usize| match parts[at].spans() {
        Some(spans) if others.is_some() => format!("{}: {spans}", files[at].display()),
        _ => files[at].display().to_string(),
    };
    let titles = [title(0), title(1)];
    let compared = Comparison::of(
        Input { title: &titles[0], recording: &base, symbolized: &named[0] },
        Input { title: &titles[1], recording: &new, symbolized: &named[1] },
        &CompareOptions {
            per: arguments.per.clone(),
            renames: arguments.rename.clone(),
            force: arguments.force,
        },
    )?;
    if arguments.fail_on == Some(FailOn::Significant) && compared.basis() == "counts" {
        return Err(DiffError::NoTimes.into());
    }
    // All time for each unit of work is compared without names.
    let needs_names =
        arguments.fail_on.is_some_and(|it| it == FailOn::Significant || arguments.per.is_none());
    let checked = if needs_names { compared.check_names() } else { Ok(()) };
    // They say why names are missing, and no text is shown then.
    let is_shown = |output: &(Format, Option<&Path>)| output.1.is_none();
    warn(compared.warnings(), checked.is_ok() && outputs.iter().any(is_shown));
    checked?;
    let shows_text = outputs.contains(&(Format::Text, None));
    write_each(outputs, |(format, path)| write(&compared, format, path, arguments))?;
    if let Some(new) = arguments.new.as_ref().filter(|_| shows_text) {
        let per = arguments.per.iter().map(|per| format!(" --per {}", word(per)));
        let options: String = per.collect::<String>() + &arguments.names.words();
        let [base, new] = [&arguments.base, new].map(|path| path_word(path));
        next(&format!("diff {base} {new}{options} -o diff.html"))?;
    }
    arguments.fail_on.map_or(Ok(()), |fail_on| judge(&compared, fail_on))
}

/// Writes what differs between two traces.
fn traces(
    compared: &TraceDiff,
    arguments: &DiffArguments,
    outputs: Vec<(Format, Option<&Path>)>,
) -> Result<(), Failure> {
    if arguments.fail_on.is_some() || arguments.per.is_some() {
        return Err(Failure::Usage(
            "--fail-on and --per are for recordings, and these are traces".into(),
        ));
    }
    let shows_text = outputs.contains(&(Format::Text, None));
    write_each(outputs, |(format, path)| {
        let mut bytes = Vec::new();
        let written = match format {
            Format::Text => {
                let columns = columns(arguments, path).filter(|_| path.is_none());
                compared.write(arguments.top.unwrap_or(TOP), columns, &mut bytes)
            }
            Format::Json => compared.write_json(&mut bytes),
            _ => {
                return Err(Failure::Usage(
                    "two traces are compared as text or JSON (-o FILE.txt, -o FILE.json)".into(),
                ));
            }
        };
        written.map_err(Failure::Stdout)?;
        match path {
            None => print_local(matches!(format, Format::Text), bytes),
            Some(path) => Ok(AtomicFile::create(path)?.write_whole(|file| file.write_all(&bytes))?),
        }
    })?;
    match arguments.new.as_ref().filter(|_| shows_text) {
        Some(new) => next(&format!("report {} --open", path_word(new))),
        None => Ok(()),
    }
}

/// Prints what to do next.
fn next(command: &str) -> Result<(), Failure> {
    let mut rows = Rows::default();
    rows.add("next", format!("unikprof-client {command}"));
    print_local(true, rows.0)
}

fn outputs(arguments: &DiffArguments) -> Result<Vec<(Format, Option<&Path>)>, Failure> {
    if arguments.output.is_empty() {
        let format = if arguments.json { Format::Json } else { Format::Text };
        return Ok(vec![(format, None)]);
    }
    let output = |path: &'_ PathBuf| match report::Format::from_path(path) {
        Ok(report::Format::Text) => Ok(Format::Text),
        Ok(report::Format::Json) => Ok(Format::Json),
        Ok(report::Format::Page) => Ok(Format::Page),
        #[cfg(feature = "svg")]
        Ok(report::Format::Svg) => Ok(Format::Svg),
        _ => Err(Failure::Usage(format!(
            "cannot tell the format of {}: `diff` writes .txt, .json, .html and .svg",
            path.display()
        ))),
    };
    let outputs = arguments.output.iter();
    outputs.map(|path| Ok((output(path)?, Some(path.as_path())))).collect()
}

fn write(
    compared: &Comparison<'_>,
    format: Format,
    path: Option<&Path>,
    arguments: &DiffArguments,
) -> Result<(), Failure> {
    let (top, columns) = (arguments.top, columns(arguments, path));
    let Some(path) = path else {
        let mut bytes = Vec::new();
        let written = compared.write(format, top, columns, &mut bytes);
        written.map_err(Failure::Stdout)?;
        return print_local(matches!(format, Format::Text), bytes);
    };
    let file = AtomicFile::create(path)?;
    Ok(file.write_whole(|file| compared.write(format, top, columns, file))?)
}

/// How wide the text may be; `None` if names are not shortened.
fn columns(arguments: &DiffArguments, path: Option<&Path>) -> Option<usize> {
    let columns = if path.is_some() { DEFAULT_COLUMNS } else { screen::columns() };
    (!arguments.wide).then_some(columns)
}

/// The result of `--fail-on`, in one line.
#[derive(Serialize)]
struct Judged<'a> {
    diff: &'static str,
    basis: &'static str,
    /// Functions of the cause that take more time, by how much of all time in BASE.
    slower: Vec<Slower<'a>>,
    /// By how much all time for each unit of work grew, beyond chance.
    total: Option<f64>,
}

#[derive(Serialize)]
struct Slower<'a> {
    function: &'a str,
    growth: f64,
    /// Those that may have become faster instead.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    or: Vec<&'a str>,
}

fn judge(compared: &Comparison<'_>, fail_on: FailOn) -> Result<(), Failure> {
    let least = match fail_on {
        FailOn::Significant => 0.0,
        FailOn::Growth(least) => least,
    };
    let total = compared.whole_slower_by().filter(|growth| *growth >= least);
    let slower: Vec<Slower<'_>> = compared
        .slower_by(least)
        .into_iter()
        .map(|(function, growth, or)| Slower { function, growth, or })
        .collect();
    let counts_total = matches!(fail_on, FailOn::Growth(_));
    let fails = !slower.is_empty() || (counts_total && total.is_some());
    let line = Judged {
        diff: if fails { "slower" } else { "passed" },
        basis: compared.basis(),
        slower,
        total,
    };
    let line = serde_json::to_string(&line).unwrap_or_default();
    tell!("{line}");
    if fails { Err(Failure::Slower) } else { Ok(()) }
}
