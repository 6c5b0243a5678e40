//! `report`: a recording as something to look at.

use std::io;
use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;

use super::arguments::ReportArguments;
use super::failure::Failure;
use super::name_pattern::NamedAfter;
use super::outputs::{ReportOutput, no_input_is_replaced};
use super::time::no_samples;
use super::values;
use crate::progress::{ProgressLine, READING_IMAGES};
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{Measure, Profile};
use unikprof_profile::recording::{Reading, Recording, RecordingError};
use unikprof_report::report::{
    Annotation, Calls, Direction, Format, Report, ReportOptions, without_sampler,
};

pub(super) fn run(arguments: &ReportArguments) -> Result<(), Failure> {
    let symbolizer = arguments.names.symbolizer()?;
    let recording = arguments.input.open()?;
    let option = arguments.needs_samples();
    if let Some(option) = option.filter(|_| recording.trace.is_some()) {
        return Err(no_samples(option));
    }
    let time = i128::from(recording.created_unix_ns);
    let after = NamedAfter {
        guest: recording.agent.guest_name.as_deref(),
        recording: &recording.profile.recording().name,
        time: Timestamp::from_nanosecond(time).unwrap_or(Timestamp::UNIX_EPOCH),
    };
    let format = if arguments.json { Some(Format::Json) } else { arguments.outputs.format };
    let (outputs, opened) = if arguments.open {
        let (outputs, page) = ReportOutput::plan_to_open(&arguments.outputs.output, &after)?;
        (outputs, Some(page))
    } else {
        let outputs = ReportOutput::plan(&arguments.outputs.output, format, &after)?;
        (outputs, None)
    };
    no_input_is_replaced(
        arguments.input.recordings.iter().chain(arguments.names.files()),
        outputs.iter().filter_map(ReportOutput::file),
    )?;
    if super::trace::report(&recording, &arguments.trace, &outputs, arguments.top)? {
        return opened.map_or(Ok(()), open_page);
    }
    let calls = match (&arguments.callers, &arguments.callees) {
        (Some(name), _) => Some((name, Direction::Callers)),
        (None, Some(name)) => Some((name, Direction::Callees)),
        (None, None) => None,
    };
    let is_table_only = calls.is_some() || arguments.annotate.is_some();
    let is_table = |output: &ReportOutput| matches!(output.format, Format::Text | Format::Json);
    if is_table_only && !outputs.iter().all(is_table) {
        return Err(Failure::Usage(
            "--callers, --callees and --annotate make tables: write them as text or JSON (-o \
             FILE.txt, -o FILE.json)"
                .into(),
        ));
    }
    let has_analysis = |output: &ReportOutput| is_table(output) || output.format == Format::Page;
    if arguments.analyze && !outputs.iter().all(has_analysis) {
        return Err(Failure::Usage(
            "--analyze makes text: write it as text, JSON or a page (-o FILE.txt, -o FILE.json, -o \
             FILE.html)".into(),
        ));
    }
    let part = arguments.time.part(&recording)?;
    let cut = part.as_ref().and_then(|part| part.profile.as_ref());
    let measured = measured(&recording.profile, arguments.by)?;
    let profile = measured.as_ref().or(cut).unwrap_or(&recording.profile);
    let mut symbolized = ProgressLine::during(READING_IMAGES, || symbolizer.resolve(profile))?;
    let trimmed = without_sampler(&symbolized);
    if let Some(trimmed) = &trimmed {
        symbolized = symbolized.of_window(trimmed);
    }
    for name in [&arguments.focus, &arguments.ignore].into_iter().flatten() {
        name.check(&symbolized).map_err(Failure::Function)?;
    }
    let mut report = Report::new(
        &symbolized,
        ReportOptions {
            focus: arguments.focus.clone(),
            ignore: arguments.ignore.clone(),
            lines: arguments.lines,
            no_inlines: arguments.no_inlines,
            top: arguments.top,
            sort: arguments.trace.sort_of_functions(),
            accounting: arguments.accounting,
            labels: arguments.labels,
            columns: if arguments.wide { None } else { Some(ReportOutput::columns(&outputs)) },
            ..ReportOptions::default()
        },
    );
    report.check_filters().map_err(Failure::Function)?;
    if let Some((part, timeline)) = part.as_ref().zip(recording.timeline.as_ref()) {
        report = report.with_timeline(arguments.time.view(part, timeline));
    }
    if let Some((name, direction)) = calls {
        let calls = Calls::of(&report, name, direction).map_err(Failure::Function)?;
        report = report.with_calls(calls);
    }
    if outputs.iter().any(|output| output.format == Format::Page) {
        report = report.with_callers(&symbolizer);
    }
    if arguments.analyze {
        report = report.with_analysis();
    }
    if let Some(name) = &arguments.annotate {
        let annotation = Annotation::of(&report, name, &symbolizer, &arguments.source);
        report = report.with_annotation(annotation.map_err(Failure::Annotation)?);
    }
    ReportOutput::write_all(&outputs, &report, false)?;
    opened.map_or(Ok(()), open_page)
}

impl ReportArguments {
    /// An option among those given that has no meaning for a trace.
    fn needs_samples(&self) -> Option<&'static str> {
        let given = [
            ("--by", self.by.is_some()),
            ("--focus", self.focus.is_some()),
            ("--ignore", self.ignore.is_some()),
            ("--callers", self.callers.is_some()),
            ("--callees", self.callees.is_some()),
            ("--annotate", self.annotate.is_some()),
            ("--analyze", self.analyze),
            ("--lines", self.lines),
            ("--no-inlines", self.no_inlines),
            ("--labels", self.labels),
            ("--vcpu", !self.input.vcpu.is_empty()),
        ];
        let found = given.into_iter().find(|(_, is_given)| *is_given);
        found.map(|(option, _)| option).or(self.time.given())
    }
}

/// Opens a page that was written in a browser.
pub(crate) fn open_page(path: PathBuf) -> Result<(), Failure> {
    ::open::that(&path).map_err(|_| Failure::Browser { path })
}

/// The profile in another measure than bytes.
fn measured(profile: &Profile, by: Option<Measure>) -> Result<Option<Profile>, Failure> {
    match by {
        Some(_) if profile.heap.is_none() => Err(Failure::Usage(format!(
            "--by is for allocations, and the recording is of mode {}",
            profile.recording().mode
        ))),
        Some(Measure::Objects) => Ok(Some(profile.clone().measured_by(Measure::Objects))),
        _ => Ok(None),
    }
}

/// Which recordings are read, for subcommands that take them as `report` does.
#[derive(Debug, Args)]
pub(super) struct InputArguments {
    /// The recording; several, or a folder of .unikprof files, are one profile if they come from
    /// the same build
    ///
    /// Their mode and rate must be the same too. An epoch that several files hold is counted once.
    #[arg(value_name = "FILE|FOLDER", required = true)]
    recordings: Vec<PathBuf>,
    /// Read a damaged or truncated file up to the damage
    #[arg(long)]
    salvage: bool,
    /// Only these vCPUs; shares are of theirs. May be given again, or as in 0,2
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        value_parser = values::vcpu,
        help_heading = "Selection"
    )]
    vcpu: Vec<u32>,
    /// Show another recording, by its name or number: what the ring in the file holds of it, or one
    /// of several files'
    #[arg(long, value_name = "NAME", help_heading = "Selection")]
    recording: Option<String>,
}

impl InputArguments {
    pub(super) fn open(&self) -> Result<Recording, Failure> {
        let mut recording = open(&self.recordings, self.salvage, &self.vcpu)?;
        if let Some(wanted) = &self.recording {
            recording.choose(wanted).map_err(|all| no_recording(wanted, &all))?;
        }
        Ok(recording)
    }

    /// Rejects a trace as well.
    pub(super) fn open_samples(&self) -> Result<Recording, Failure> {
        Ok(self.open()?.with_samples(&self.recordings[0])?)
    }
}

/// Reads recordings as one, of these vCPUs alone if any is named.
pub(super) fn open(paths: &[PathBuf], salvage: bool, vcpus: &[u32]) -> Result<Recording, Failure> {
    let mut recording = Recording::open_all(&files(paths)?, reading(salvage))?;
    if !vcpus.is_empty() {
        recording.keep_vcpus(vcpus).map_err(|all| no_vcpu(vcpus, &all))?;
    }
    Ok(recording)
}

/// Reads recordings as one that has the counts of each epoch.
pub(super) fn open_by_epoch(paths: &[PathBuf], salvage: bool) -> Result<Recording, Failure> {
    Ok(Recording::open_by_epoch(&files(paths)?, reading(salvage))?)
}

fn reading(salvage: bool) -> Reading {
    if salvage { Reading::Salvage } else { Reading::Strict }
}

fn no_recording(wanted: &str, all: &[String]) -> Failure {
    let names = all.iter().map(|name| format!("`{}`", Printable(name)));
    let names: Vec<String> = names.collect();
    Failure::Usage(format!(
        "the file has no recording `{}`; it has {}",
        Printable(wanted),
        names.join(", ")
    ))
}

fn no_vcpu(wanted: &[u32], all: &[u32]) -> Failure {
    let listed = |vcpus: &mut dyn Iterator<Item = &u32>| {
        let vcpus: Vec<String> = vcpus.map(ToString::to_string).collect();
        vcpus.join(", ")
    };
    Failure::Usage(format!(
        "the recording has no vCPU {}; it has {}",
        listed(&mut wanted.iter().filter(|vcpu| !all.contains(vcpu))),
        listed(&mut all.iter())
    ))
}

/// The files themselves, and those in the folders among them.
fn files(named: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for path in named {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let of_folder = |source| RecordingError::Open { path: path.clone(), source };
        let before = files.len();
        for entry in std::fs::read_dir(path).map_err(of_folder)? {
            let file = entry.map_err(of_folder)?.path();
            if file.extension().is_some_and(|ending| ending == "unikprof") {
                files.push(file);
            }
        }
        if files.len() == before {
            let none = "the folder has no .unikprof file";
            return Err(of_folder(io::Error::new(io::ErrorKind::NotFound, none)).into());
        }
        files[before..].sort_unstable();
    }
    Ok(files)
}
