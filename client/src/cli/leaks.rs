//! `leaks` and `connect ADDR leaks`: which code's memory grows.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::failure::Failure;
use super::names::NameArguments;
use super::outputs::warn;
use super::recordings::UnwindArguments;
use super::signals::Kept;
use super::{print, print_local, values};
use crate::progress::{ProgressLine, READING_IMAGES};
use unikprof_link::interrupt::Interrupt;
use unikprof_link::record::{self, Mode, Outcome, Session, Settings, own_name};
use unikprof_profile::output::OutputError;
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{
    Amounts, Frame, Held, LiveSample, Mode as RecordedMode, NodeId, Profile,
};
use unikprof_profile::recording::{Reading, Recording};
use unikprof_profile::symbols::Symbolizer;
use unikprof_profile::units::duration;
use unikprof_report::leaks;
use unikprof_report::report::heap::{is_lower_bound, warnings};
use unikprof_report::report::without_sampler;

pub(super) const HELP: &str = "\
A stack is shown if allocations that were made after A and are older than
--older are still held at B, if more of them came than went, if they came all
the time and not at a few moments, and if they do not thin out with age. What
only fluctuates is not shown: of looks at memory without a leak, one of 1,000
shows something. What lives longer than half the time from A to B may not be
told from a leak: look for longer.

A and B are two dumps of one recording of mode live: start it with
`connect ADDR start --mode live`, and fetch them with `dump`. B can be left out
if A has several epochs, as the file of `connect ADDR leaks -o` does.

Examples:
  unikprof-client leaks before.unikprof after.unikprof --image guest.elf
  unikprof-client leaks before.unikprof after.unikprof --older 5m --json";

pub(super) const CONNECT_HELP: &str = "\
Records which allocations are still held, asks for them nine times, and shows
the stacks that grow. Ctrl-C ends it early and shows what was found until then.

Examples:
  unikprof-client connect 10.0.0.5 leaks 10m --image guest.elf
  unikprof-client connect 10.0.0.5 leaks 2m --every 4KiB -o held.unikprof
  unikprof-client leaks held.unikprof --older 30s --image guest.elf";

#[derive(Debug, Args)]
#[command(after_help = HELP, arg_required_else_help = true)]
pub(super) struct LeaksArguments {
    /// The first recording, of mode live
    #[arg(value_name = "A")]
    first: PathBuf,
    /// A later part of the same recording
    #[arg(value_name = "B")]
    last: Option<PathBuf>,
    /// Read a damaged or truncated file up to the damage
    #[arg(long)]
    salvage: bool,
    #[command(flatten)]
    show: ShowArguments,
    /// Print the result as JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    names: NameArguments,
}

#[derive(Debug, Args)]
pub(super) struct ConnectLeaksArguments {
    /// How long to look, for example 10m
    #[arg(value_name = "DURATION", value_parser = values::duration)]
    length: Duration,
    /// The mean number of bytes between two that are sampled
    #[arg(
        long, value_name = "SIZE", default_value = "512KiB", value_parser = values::interval_bytes,
        help_heading = "Sampling"
    )]
    every: u64,
    #[command(flatten)]
    pub(super) unwinding: UnwindArguments,
    /// Keep the recording in this .unikprof file
    #[arg(short = 'o', long = "output", value_name = "FILE", help_heading = "Output")]
    pub(super) output: Option<PathBuf>,
    #[command(flatten)]
    show: ShowArguments,
    #[command(flatten)]
    pub(super) names: NameArguments,
}

/// What is shown.
#[derive(Debug, Args)]
struct ShowArguments {
    /// The age from which on allocations count, for example 1m; default: a 16th of the time from A
    /// to B
    #[arg(long, value_name = "TIME", value_parser = values::nanoseconds)]
    older: Option<u64>,
    /// Number of stacks in the text; 0 shows all
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = values::count)]
    top: usize,
}

pub(super) fn run(arguments: &LeaksArguments) -> Result<(), Failure> {
    let symbolizer = arguments.names.symbolizer()?;
    let reading = if arguments.salvage { Reading::Salvage } else { Reading::Strict };
    let first = open(&arguments.first, reading)?;
    let looked = match &arguments.last {
        None => Looked::whole(first),
        Some(path) => join(first, open(path, reading)?, path)?,
    };
    show(&looked, &symbolizer, &arguments.show, arguments.json, None)
}

impl ConnectLeaksArguments {
    pub(super) fn settings(&self) -> Result<Settings, Failure> {
        let length_ns = u64::try_from(self.length.as_nanos()).unwrap_or(u64::MAX);
        if length_ns == 0 {
            return Err(Failure::Usage(
                "say how long to look for leaks, for example `leaks 10m`".into(),
            ));
        }
        Ok(Settings {
            name: own_name("leaks"),
            mode: Mode::Live,
            interval_bytes: self.every,
            // The guest ends it, should this client be gone.
            duration_ns: length_ns.saturating_add(60_000_000_000),
            unwind: self.unwinding.unwind,
            ..Settings::default()
        })
    }
}

/// Records for as long as is wanted, and shows what grows.
pub(super) fn connect(
    session: &mut Session,
    interrupt: &Interrupt,
    arguments: &ConnectLeaksArguments,
    settings: &Settings,
    symbolizer: &Symbolizer,
    json: bool,
) -> Result<(), Failure> {
    let folder = tempfile::tempdir().map_err(OutputError::at(&std::env::temp_dir()))?;
    let path = arguments.output.clone();
    let path = path.unwrap_or_else(|| folder.path().join("held.unikprof"));
    let mut progress = ProgressLine::on_stderr();
    let kept = Kept::default();
    kept.listen(interrupt, progress.stopping("samples")).map_err(Failure::Signals)?;
    let outcome = record::watch(session, settings, arguments.length, &path, &mut progress);
    progress.finish();
    let Outcome { path, displaced, incomplete, .. } = outcome?;
    kept.is_in(&path);
    let shown = open(&path, Reading::Salvage).map(Looked::whole).and_then(|looked| {
        let held = looked.recording.profile.heap.as_ref().map_or(0, |heap| heap.held.len());
        if held < 2 {
            return Err(Failure::OneLook);
        }
        let told = looked.recording.completeness.warning().filter(|_| incomplete.is_some());
        show(&looked, symbolizer, &arguments.show, json, told)
    });
    let ended = Failure::of_recording(path, displaced, shown, false, incomplete);
    ended.inspect_err(|failure| {
        if arguments.output.is_none() && failure.text().is_some() {
            let _ = folder.keep();
        }
    })
}

/// What was held at several times.
struct Looked {
    recording: Recording,
    /// The place of A among the times.
    from: usize,
    /// All that was held at A, if `recording` lacks stacks that hold nothing at B.
    held_at_a: Option<Amounts>,
}

impl Looked {
    /// From the first time of a recording to its last.
    fn whole(recording: Recording) -> Self {
        Self { recording, from: 0, held_at_a: None }
    }
}

fn open(path: &Path, reading: Reading) -> Result<Recording, Failure> {
    let recording = Recording::open(path, reading)?.with_samples(path)?;
    let mode = recording.profile.recording().mode;
    if mode != RecordedMode::Live {
        return Err(Failure::Usage(format!(
            "{} is of mode {mode}; leaks are found in recordings of mode live (`connect ADDR start \
             --mode live`)",
            path.display()
        )));
    }
    Ok(recording)
}

/// What was held in a later part of a recording, with what was held in an earlier one before it. A
/// is the last time of the earlier one.
fn join(first: Recording, mut last: Recording, path: &Path) -> Result<Looked, Failure> {
    let id = |recording: &Recording| {
        let span = recording.span.and_then(|span| span.recording);
        (recording.agent.instance, span)
    };
    if id(&first) != id(&last) {
        return Err(Failure::Usage(format!(
            "{} is not of the same recording as the first file: take two dumps of one recording of \
             mode live, which goes on \
             in between",
            path.display()
        )));
    }
    let interval_bytes = last.profile.recording().interval_bytes;
    let first_held = first.profile.heap.iter().flat_map(|heap| &heap.held);
    let held_at_a = first_held.last().map(|held| leaks::amounts(held, interval_bytes));
    let known = stacks(&last.profile);
    let mut times: Vec<Held> = Vec::new();
    if let Some(heap) = &first.profile.heap {
        for held in &heap.held {
            let mut samples = Vec::new();
            for sample in &held.samples {
                let frames: Vec<Frame> = frames(&first.profile, sample.node).collect();
                // A stack that is not in the last file holds nothing there.
                if let Some(node) = known.get(&frames) {
                    samples.push(LiveSample { node: *node, ..*sample });
                }
            }
            let at_ns = held.at_ns;
            times.push(Held { at_ns, samples });
        }
    }
    let from = times.len().saturating_sub(1);
    let until_ns = times.last().map_or(0, |held| held.at_ns);
    if let Some(heap) = &mut last.profile.heap {
        heap.held.retain(|held| held.at_ns > until_ns);
        if heap.held.is_empty() {
            return Err(Failure::Usage(format!(
                "{} is not later than the first file: name the earlier one first",
                path.display()
            )));
        }
        times.append(&mut heap.held);
        heap.held = times;
    }
    Ok(Looked { recording: last, from, held_at_a })
}

fn frames(profile: &Profile, node: NodeId) -> impl Iterator<Item = Frame> + '_ {
    profile.stack(node).map(|frame| profile.frame(frame))
}

/// The stacks of all that was held.
fn stacks(profile: &Profile) -> std::collections::HashMap<Vec<Frame>, NodeId> {
    let held = profile.heap.iter().flat_map(|heap| &heap.held);
    let nodes = held.flat_map(|held| &held.samples).map(|sample| sample.node);
    nodes.map(|node| (frames(profile, node).collect(), node)).collect()
}

/// Shows what grows; the warning that is `told` elsewhere is left out of the text.
fn show(
    looked: &Looked,
    symbolizer: &Symbolizer,
    arguments: &ShowArguments,
    json: bool,
    told: Option<String>,
) -> Result<(), Failure> {
    let mut symbolized =
        ProgressLine::during(READING_IMAGES, || symbolizer.resolve(&looked.recording.profile))?;
    let trimmed = without_sampler(&symbolized);
    if let Some(trimmed) = &trimmed {
        symbolized = symbolized.of_window(trimmed);
    }
    let profile = symbolized.profile();
    let times = profile.heap.as_ref().map_or(&[][..], |heap| &heap.held);
    let interval_bytes = profile.recording().interval_bytes;
    let mut growth =
        leaks::find(times, looked.from, arguments.older, interval_bytes).ok_or_else(|| {
            Failure::Usage(
            "the recording says only once what was held; name a second dump of it, or use `connect \
             ADDR leaks`".into(),
        )
        })?;
    let length_ns = growth.to_ns.saturating_sub(growth.from_ns);
    if growth.older_ns >= length_ns {
        return Err(Failure::Usage(format!(
            "nothing can be older than {} that was allocated in the {} from A to B: give --older a \
             part of that time",
            duration(growth.older_ns),
            duration(length_ns)
        )));
    }
    growth.is_lower_bound = is_lower_bound(profile);
    if let Some(held) = looked.held_at_a {
        growth.held[0] = held;
    }
    let mut warned = profile.recording().warnings.clone();
    warned.retain(|warning| json || Some(warning) != told.as_ref());
    warned.extend(symbolized.warnings().iter().map(ToString::to_string));
    warned.extend(warnings(profile));
    let warned: Vec<String> = warned.iter().map(|text| Printable(text).to_string()).collect();
    if json {
        let all = leaks::json(&growth, &symbolized, &warned);
        return print(format!("{all:#}\n"));
    }
    warn(&warned, false);
    let mut text = Vec::new();
    leaks::write(&growth, &symbolized, arguments.top, super::screen::columns(), &mut text)
        .map_err(Failure::Stdout)?;
    print_local(true, text)
}
