//! `record --guests`: many guests at once.

use std::fs;
use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;
use serde_json::json;
use tempfile::TempDir;
use unikprof_client::cli::shared::{
    CommandError, NamePattern, NamedAfter, ReportOutput, Target, interrupt_recording, nanoseconds,
    no_input_is_replaced, print, print_text, rate,
};
use unikprof_client::exit_code;
use unikprof_link::record::Mode;
use unikprof_profile::output::OutputError;
use unikprof_profile::printable::Printable;
use unikprof_profile::units::percent;
use unikprof_report::report::{Format, Report, ReportOptions};

use crate::differ::{Difference, FunctionShares};
use crate::{Config, FleetRecordError, FleetRecording, FleetRequest, RecordedGuest, record};

#[derive(Debug, Args)]
#[command(after_help = RECORD_HELP, arg_required_else_help = true)]
pub(super) struct RecordArguments {
    /// How long to record, for example 30s or 5m; until Ctrl-C if 0 or omitted
    #[arg(
        value_name = "DURATION", default_value = "0s", hide_default_value = true,
        value_parser = nanoseconds
    )]
    duration_ns: u64,
    /// The fleet.toml that lists the guests, with their keys, images, modes and rates
    #[arg(long, value_name = "FILE")]
    guests: PathBuf,
    /// Only guests with this label; can be repeated, and all must match. `guest` is the name
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Samples per second of running time on each vCPU; default: what the file says
    #[arg(
        short = 'F', long = "rate", value_name = "HZ", value_parser = rate,
        help_heading = "Sampling"
    )]
    period_ns: Option<u64>,
    /// What to sample; default: what the file says
    #[arg(long, value_enum, help_heading = "Sampling")]
    mode: Option<Mode>,
    /// Write to this file, in the format of its extension, or each guest's recording into this
    /// FOLDER/; can be repeated
    ///
    /// .svg is a flame graph, .pb.gz a pprof profile with the label `guest`, .folded are folded
    /// stacks, .txt is a table;
    /// - is standard output. In the name, %t stands for the time. Default: text on standard output.
    #[arg(short = 'o', long = "output", value_name = "FILE", help_heading = "Output")]
    output: Vec<NamePattern>,
    /// Print the guests and what tells them apart as JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

const RECORD_HELP: &str = "\
Records all guests at the same time and shows them as one profile. Functions are
the same if their names are, so guests can be of different builds, each named by
its own image. A guest that is down is named and does not stop the others; the
exit code is then 8. Ctrl-C ends all recordings early and keeps what there is.
A guest whose recording in FOLDER/ is incomplete is not recorded: it may still
hold the rest of that.

A guest's distance from the rest is the share of its own time that it spends in
other functions than all others together. Guests are named whose distance is
more than chance explains (at 1 % for the whole fleet), by 5 % of their time at
least. There must be three guests.

Examples:
  unikprof-fleet record --guests fleet.toml 30s
  unikprof-fleet record --guests fleet.toml --label app=web --label zone=a 30s -o web.svg
  unikprof-fleet record --guests fleet.toml 1m -o run/ -o run.pb.gz";

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("expected NAME=VALUE, for example `app=web`".into()),
    }
}

const SOME_GUESTS: &str = "some guests were not recorded, or not completely";

const OTHER_NAMES: &str = "some recordings have other names: theirs were taken meanwhile";

pub(super) fn run(arguments: &RecordArguments) -> Result<(), CommandError> {
    if arguments.mode.is_some_and(Mode::is_heap) {
        return Err(CommandError::usage(
            "guests are recorded together in modes of time; record the allocations of one with \
             `unikprof-client connect`",
        ));
    }
    let (folders, patterns): (Vec<NamePattern>, Vec<NamePattern>) =
        arguments.output.iter().cloned().partition(|pattern| pattern.as_str().ends_with('/'));
    let after = NamedAfter { guest: Some("fleet"), recording: "fleet", time: Timestamp::now() };
    let reports = match (folders.as_slice(), patterns.as_slice()) {
        ([_, _, ..], _) => return Err(CommandError::usage("only one folder is possible")),
        ([_], []) => Vec::new(),
        (_, []) if arguments.json => Vec::new(),
        (_, patterns) => ReportOutput::plan(patterns, None, &after)?,
    };
    let is_merged = |output: &&ReportOutput| {
        !matches!(output.format, Format::Text | Format::Folded | Format::Svg | Format::Pprof)
    };
    if let Some(output) = reports.iter().find(is_merged) {
        return Err(CommandError::usage(format!(
            "guests together can be written as text, folded, svg and pprof, not as {}: give -o \
             FOLDER/, and make it from \
             a guest's recording with `unikprof-client report`",
            output.format
        )));
    }
    let config = Config::read(&arguments.guests)?;
    let inputs = config.files();
    let outputs = reports.iter().filter_map(|output| match &output.target {
        Target::File(path) => Some(path.as_path()),
        Target::Stdout => None,
    });
    no_input_is_replaced(inputs.iter().chain([&arguments.guests]), outputs)?;
    let (folder, temporary) = match folders.first() {
        Some(pattern) => (pattern.expand(&after), None),
        None => {
            let made = TempDir::with_prefix("unikprof-fleet-");
            let made = made.map_err(OutputError::at(&std::env::temp_dir()))?;
            (made.path().to_owned(), Some(made))
        }
    };
    fs::create_dir_all(&folder).map_err(OutputError::at(&folder))?;
    ReportOutput::expect_writable(&reports)?;
    let interrupt = interrupt_recording()?;
    let request = FleetRequest {
        labels: arguments.labels.clone(),
        duration_ns: arguments.duration_ns,
        period_ns: arguments.period_ns,
        mode: arguments.mode,
    };
    let recorded = record(config, &request, &folder, &interrupt);
    conclude(recorded, &reports, arguments.json, temporary)
}

/// Shows what was recorded, and tells what was not. A temporary folder of recordings is kept if not
/// all of them were shown: the guests have them no longer.
fn conclude(
    recorded: Result<FleetRecording, FleetRecordError>,
    reports: &[ReportOutput],
    json: bool,
    temporary: Option<TempDir>,
) -> Result<(), CommandError> {
    let mut shown = 0;
    let ended = recorded.map_err(CommandError::from).and_then(|recorded| {
        let read = recorded.guests.iter().filter(|guest| guest.outcome.is_ok()).count();
        let problem = if recorded.is_displaced() { OTHER_NAMES } else { SOME_GUESTS };
        let exit_code = recorded.exit_code();
        let mut ended = show(recorded, reports, json, temporary.is_none());
        if !ended.as_ref().is_err_and(CommandError::is_failure) {
            shown = read;
        }
        if exit_code != exit_code::SUCCESS {
            CommandError::new(problem, exit_code).note(&mut ended);
        }
        ended
    });
    let Some(folder) = temporary else { return ended };
    ended.map_err(|error| match fs::read_dir(folder.path()).map_or(0, Iterator::count) > shown {
        false => error,
        true => error.adding(&format!(
            "the guests' recordings are in {}; show each with `unikprof-client report`",
            folder.keep().display()
        )),
    })
}

/// Writes all outputs that can be written.
fn show(
    recorded: FleetRecording,
    reports: &[ReportOutput],
    json: bool,
    keeps_files: bool,
) -> Result<(), CommandError> {
    let is_other =
        |output: &ReportOutput| output.target == Target::Stdout && output.format != Format::Text;
    let mut shown = match (json, reports.iter().any(is_other)) {
        (true, _) => print(as_json(&recorded, keeps_files)),
        (false, false) => print_text(as_text(&recorded)),
        (false, true) => Ok(()),
    };
    if !reports.is_empty() && recorded.guests.iter().any(|guest| guest.outcome.is_ok()) {
        let FleetRecording { profile, names, .. } = recorded;
        let symbolized = names.of(&profile);
        let options = ReportOptions {
            columns: Some(ReportOutput::columns(reports)),
            ..ReportOptions::default()
        };
        let report = Report::new(&symbolized, options);
        if let Err(error) = ReportOutput::write_all(reports, &report, false) {
            error.note(&mut shown);
        }
    }
    shown
}

/// A line for each guest, and what tells some from the rest.
fn as_text(recorded: &FleetRecording) -> String {
    let names = recorded.guests.iter().map(|guest| shown(guest).chars().count());
    let width = names.max().unwrap_or(0).max("guest".len());
    let rows: Vec<Option<[String; HEADS.len()]>> = recorded.guests.iter().map(cells).collect();
    let mut widths = HEADS.map(|head| head.chars().count());
    for (at, width) in widths.iter_mut().enumerate() {
        let cells = || rows.iter().flatten().map(|row| row[at].as_str());
        // What happened to no guest needs no column.
        *width = match LOSSES.contains(&at) && cells().all(|cell| cell == "0") {
            true => 0,
            false => cells().map(|cell| cell.chars().count()).fold(*width, usize::max),
        };
    }
    let line = |name: &str, cells: [&str; HEADS.len()]| {
        let shown = cells.iter().zip(widths).filter(|(_, width)| *width != 0);
        let cells: String = shown.map(|(cell, width)| format!("  {cell:>width$}")).collect();
        format!("{name:<width$}{cells}\n")
    };
    let mut text = line("guest", HEADS);
    for (guest, cells) in recorded.guests.iter().zip(&rows) {
        let name = shown(guest);
        match &guest.outcome {
            Err(failure) => {
                text +=
                    &format!("{name:<width$}  not recorded: {}\n", Printable(&failure.to_string()));
            }
            Ok(counts) => {
                text += &cells.as_ref().map_or(String::new(), |cells| {
                    line(&name, cells.each_ref().map(String::as_str))
                });
                if let Some(reason) = &counts.displaced {
                    let (reason, file) = (Printable(reason), counts.file.display());
                    text += &format!("{:<width$}  {reason}; the recording is in {file}\n", "");
                }
                if let Some(reason) = &counts.incomplete {
                    text += &format!("{:<width$}  incomplete: {}\n", "", Printable(reason));
                }
            }
        }
    }
    text.push('\n');
    let compared = recorded.guests.iter().filter(|guest| guest.outcome.is_ok());
    if recorded.different.is_empty() && compared.count() < 3 {
        text += "which guest differs cannot be told: that takes three\n";
    } else if recorded.different.is_empty() {
        text += "no guest differs from the rest by more than chance\n";
    }
    for one in &recorded.different {
        text += &format!(
            "{} differs: {} of its time is spent elsewhere than in the rest; chance explains {}\n",
            shown(&recorded.guests[one.guest]),
            percent(one.distance),
            percent(one.chance)
        );
        for shares in &one.functions {
            let [own, rest] = [shares.guest, shares.rest].map(percent);
            let name = recorded.function(shares);
            text += &format!("  {own:>8}, the rest {rest:>8}  {name}\n");
        }
    }
    text.push('\n');
    text
}

const HEADS: [&str; 10] = [
    "ticks",
    "recorded",
    "aged",
    "overflow",
    "lost",
    "masked",
    "idle",
    "missing",
    "distance",
    "by chance",
];
/// Which of them count ticks without a stack.
const LOSSES: std::ops::Range<usize> = 2..7;

/// The cells of a guest's row, below [`HEADS`]; `None` if it was not recorded.
fn cells(guest: &RecordedGuest) -> Option<[String; HEADS.len()]> {
    let counts = guest.outcome.as_ref().ok()?;
    let c = counts.counters.told();
    let [distance, chance] = match counts.distance {
        Some((distance, chance)) => [percent(distance), percent(chance)],
        None => ["-".into(), "-".into()],
    };
    let [recorded, aged, overflow, lost, masked, idle] =
        c.outcomes().map(|(_, count)| count.to_string());
    let missing = c.missing.map_or("-".into(), |missing| missing.to_string());
    let ticks = c.ticks.to_string();
    Some([ticks, recorded, aged, overflow, lost, masked, idle, missing, distance, chance])
}

fn shown(guest: &RecordedGuest) -> String {
    Printable(&guest.name).to_string()
}

fn as_json(recorded: &FleetRecording, keeps_files: bool) -> String {
    let guest = |guest: &RecordedGuest| match &guest.outcome {
        Err(failure) => json!({
            "name": guest.name,
            "address": guest.address,
            "error": failure.to_string(),
        }),
        Ok(counts) => json!({
            "name": guest.name,
            "address": guest.address,
            "file": (keeps_files || counts.displaced.is_some()).then_some(&counts.file),
            "displaced": counts.displaced,
            "counters": counts.counters,
            "incomplete": counts.incomplete,
            "distance": counts.distance.map(|(distance, _)| distance),
            "distance_by_chance": counts.distance.map(|(_, chance)| chance),
        }),
    };
    let function = |shares: &FunctionShares| {
        json!({
            "name": recorded.function(shares),
            "share": shares.guest,
            "share_of_rest": shares.rest,
        })
    };
    let different = |one: &Difference| {
        json!({
            "name": recorded.guests[one.guest].name,
            "distance": one.distance,
            "distance_by_chance": one.chance,
            "functions": one.functions.iter().map(function).collect::<Vec<_>>(),
        })
    };
    let all = json!({
        "guests": recorded.guests.iter().map(guest).collect::<Vec<_>>(),
        "different": recorded.different.iter().map(different).collect::<Vec<_>>(),
    });
    format!("{all:#}\n")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser as _;
    use unikprof_profile::profile::Counters;
    use unikprof_profile::symbols::GuestMerger;

    use super::*;
    use crate::record::GuestCounts;

    #[derive(clap::Parser)]
    struct Words {
        #[command(flatten)]
        record: RecordArguments,
    }

    /// Guards a list of guests, a key or names that are lost because an output has their name.
    #[test]
    fn what_is_written_replaces_nothing_that_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let [guests, key, symbols] =
            ["fleet.txt", "g.txt", "names.txt"].map(|name| folder.path().join(name));
        let text = "[[guests]]\nname = \"web\"\naddress = \"127.0.0.1:1\"\n\
                    key-file = \"g.txt\"\nsymbols = \"names.txt\"\n";
        fs::write(&guests, text).unwrap();
        for path in [&key, &symbols] {
            fs::write(path, "x").unwrap();
        }
        for path in [&guests, &key, &symbols] {
            let words = ["record", "1s", "--guests", guests.to_str().unwrap(), "-o"];
            let words = words.into_iter().chain(path.to_str());
            let refused = run(&Words::parse_from(words).record).unwrap_err();
            assert!(format!("{refused:?}").contains("it would be replaced"), "{refused:?}");
        }
    }

    /// Nobody would notice before the time has passed.
    #[test]
    fn a_report_that_cannot_be_written_is_refused_first() {
        let folder = tempfile::tempdir().unwrap();
        let guests = folder.path().join("fleet.toml");
        fs::write(&guests, "[[guests]]\nname = \"web\"\naddress = \"127.0.0.1:1\"\n").unwrap();
        let report = folder.path().join("none/x.svg");
        let words = ["record", "1s", "--guests", guests.to_str().unwrap(), "-o"];
        let words = words.into_iter().chain(report.to_str());
        let refused = format!("{:?}", run(&Words::parse_from(words).record).unwrap_err());
        assert!(refused.contains("x.svg") && refused.contains("NotFound"), "{refused}");
    }

    /// Guards rows that wrap in a terminal of 80 columns.
    #[test]
    fn the_table_of_guests_has_no_columns_of_zeros() {
        let (profile, names, _) = GuestMerger::default().finish();
        let counts = |lost| GuestCounts {
            file: "web.unikprof".into(),
            displaced: None,
            counters: Counters { ticks: 9, recorded: 9 - lost, lost, ..Counters::default() },
            incomplete: None,
            distance: Some((0.1, 0.2)),
        };
        let guest = |name: &str, lost| RecordedGuest {
            name: name.into(),
            address: "127.0.0.1:1".into(),
            outcome: Ok(counts(lost)),
        };
        let guests = vec![guest("web", 0), guest("database-1", 2)];
        let recorded = FleetRecording { guests, profile, names, different: Vec::new() };
        let text = as_text(&recorded);
        assert!(
            text.starts_with(
                "guest       ticks  recorded  lost  missing  distance  by chance\n\
             web             9         9     0        -    10.0 %     20.0 %\n\
             database-1      9         7     2        -    10.0 %     20.0 %\n"
            ),
            "{text}"
        );
    }

    /// Guards recordings that are thrown away although the guests have them no longer.
    #[cfg(target_os = "linux")]
    #[test]
    fn recordings_that_could_not_be_shown_are_kept() {
        let recorded = || {
            let (profile, names, _) = GuestMerger::default().finish();
            let counts = GuestCounts {
                file: "web.unikprof".into(),
                displaced: None,
                counters: Counters::default(),
                incomplete: None,
                distance: None,
            };
            let (name, address) = ("web".to_owned(), "127.0.0.1:1".to_owned());
            let guests = vec![RecordedGuest { name, address, outcome: Ok(counts) }];
            FleetRecording { guests, profile, names, different: Vec::new() }
        };
        let to = |format, target: &str| ReportOutput {
            format,
            target: match target {
                "-" => Target::Stdout,
                path => Target::File(path.into()),
            },
        };
        let reports = |text| [to(Format::Folded, "-"), to(Format::Text, text)];
        let full = "cannot write /dev/full";
        let stacks = "too many stacks";
        for (recorded, text, told) in [
            (Ok(recorded()), "/dev/full", Some(full)),
            (Err(FleetRecordError::TooManyStacks), "/dev/null", Some(stacks)),
            (Ok(recorded()), "/dev/null", None),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let path: PathBuf = folder.path().into();
            fs::write(path.join("web.unikprof"), "x").unwrap();
            let ended = conclude(recorded, &reports(text), false, Some(folder));
            let Some(told) = told else {
                ended.unwrap();
                assert!(!path.exists());
                continue;
            };
            let error = format!("{:?}", ended.unwrap_err());
            assert!(error.contains(told) && error.contains(path.to_str().unwrap()), "{error}");
            fs::remove_dir_all(path).unwrap();
        }
    }
}
