//! `report`: a recording as something to look at.

use std::io;
use std::path::PathBuf;

use jiff::Timestamp;

use super::arguments::ReportArguments;
use super::failure::Failure;
use super::outputs::ReportOutput;
use crate::output::NamedAfter;
use crate::recording::{Reading, Recording, RecordingError};
use crate::report::{Format, Report, ReportOptions};

pub(super) fn run(arguments: &ReportArguments) -> Result<(), Failure> {
    let reading = if arguments.salvage {
        Reading::Salvage
    } else {
        Reading::Strict
    };
    let symbolizer = arguments.names.symbolizer()?;
    let recording = Recording::open_all(&files(&arguments.recordings)?, reading)?;
    let time = i128::from(recording.created_unix_ns);
    let outputs = ReportOutput::plan(
        &arguments.outputs.output,
        if arguments.json {
            Some(Format::Json)
        } else {
            arguments.outputs.format
        },
        &NamedAfter {
            guest: recording.agent.guest_name.as_deref(),
            recording: &recording.profile.recording().name,
            time: Timestamp::from_nanosecond(time).unwrap_or(Timestamp::UNIX_EPOCH),
        },
    )?;
    let part = arguments.time.part(&recording)?;
    let cut = part.as_ref().and_then(|part| part.profile.as_ref());
    let symbolized = symbolizer.resolve(cut.unwrap_or(&recording.profile))?;
    let mut report = Report::new(
        &symbolized,
        ReportOptions {
            focus: arguments.focus.clone(),
            ignore: arguments.ignore.clone(),
            lines: arguments.lines,
            no_inlines: arguments.no_inlines,
            top: arguments.top,
            labels: arguments.labels,
            columns: if arguments.wide {
                None
            } else {
                Some(ReportOutput::columns(&outputs))
            },
        },
    );
    if let Some((part, timeline)) = part.as_ref().zip(recording.timeline.as_ref()) {
        report = report.with_timeline(part.view(timeline, &arguments.time));
    }
    ReportOutput::write_all(&outputs, &report)
}

/// The files themselves, and those in the folders among them.
fn files(named: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for path in named {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let of_folder = |source| RecordingError::Open {
            path: path.clone(),
            source,
        };
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
