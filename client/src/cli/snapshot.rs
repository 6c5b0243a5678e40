//! `connect ADDR snapshot`: every vCPU's registers and stack now.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Map, Value, json};

use super::failure::Failure;
use super::names::NameArguments;
use super::outputs::warn;
use super::{print, screen, signals, values};
use crate::charset;
use unikprof_link::interrupt::Interrupt;
use unikprof_link::record::{RecordError, Session, Snapshot, SnapshotError, VcpuSnapshot};
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{Architecture, ProfileBuilder, RecordingInfo};
use unikprof_profile::symbols::{Symbol, Symbolized, Symbolizer};
use unikprof_profile::units::{duration, std_duration};
use unikprof_report::report::shorten;

pub(super) const HELP: &str = "\
Interrupts each vCPU once, which takes microseconds, and prints its registers,
its stack, and how long ago that was. A vCPU that is blocked is printed with the
stack on which it blocks and since when. No recording is needed, and none is
changed. A key with the role view is enough.

A guest that is stuck in a loop can be examined if clients reach it while it is
busy (see info). A vCPU that has events masked, or that does not run, does not
answer; after --wait it is printed as such, and the exit code is still 0.

Examples:
  unikprof-client connect 10.0.0.5 snapshot --image guest.elf
  unikprof-client connect 10.0.0.5 snapshot --vcpu 1 --watch
  unikprof-client connect 10.0.0.5 --json snapshot";

/// The columns that a name has however narrow the terminal is.
const LEAST_NAME: usize = 16;

#[derive(Debug, Args)]
pub(super) struct SnapshotArguments {
    /// Only this vCPU, counted from 0
    #[arg(long, value_name = "VCPU")]
    vcpu: Option<u32>,
    /// How long to wait for vCPUs that do not answer
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = values::duration)]
    wait: Duration,
    /// Keep taking snapshots until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// The time between the snapshots of --watch
    #[arg(
        long, value_name = "TIME", default_value = "1s", value_parser = values::duration,
        requires = "watch"
    )]
    every: Duration,
    #[command(flatten)]
    pub(super) names: NameArguments,
}

pub(super) fn run(
    session: &mut Session,
    interrupt: &Interrupt,
    symbolizer: &Symbolizer,
    arguments: &SnapshotArguments,
    as_json: bool,
) -> Result<(), Failure> {
    let vcpus = session.agent().vcpus;
    let vcpus = match arguments.vcpu {
        Some(vcpu) if vcpu >= vcpus => {
            return Err(Failure::Usage(format!(
                "there is no vCPU {vcpu}: the guest has {vcpus}, counted from 0"
            )));
        }
        Some(vcpu) => vcpu..vcpu + 1,
        None => 0..vcpus,
    };
    if arguments.watch {
        signals::listen(interrupt).map_err(Failure::Signals)?;
    }
    loop {
        let begun = Instant::now();
        let snapshots = match session.snapshots(vcpus.clone(), arguments.wait, &mut ()) {
            Err(error) if arguments.watch && error.is_interrupt() => return Ok(()),
            snapshots => snapshots?,
        };
        print(show(session, symbolizer, &snapshots, arguments.wait, as_json)?)?;
        let next = begun.checked_add(arguments.every);
        let is_over = next.is_none_or(|next| !interrupt.sleep_until(next, Interrupt::stop));
        if !arguments.watch || is_over {
            return Ok(());
        }
    }
}

/// The snapshots as text, or as a line of JSON.
fn show(
    session: &Session,
    symbolizer: &Symbolizer,
    snapshots: &[VcpuSnapshot],
    wait: Duration,
    as_json: bool,
) -> Result<String, Failure> {
    let agent = session.agent();
    let architecture = Architecture::from_name(&agent.architecture);
    let registers = register_names(&architecture);
    let mut builder = ProfileBuilder::new();
    for mapping in agent.mappings.iter() {
        builder.add_mapping(mapping.clone());
    }
    builder.set_recording(RecordingInfo { architecture, ..RecordingInfo::default() });
    for snapshot in snapshots {
        let taken = snapshot.taken.as_ref();
        if let Some(taken) = taken.filter(|taken| !taken.frames.is_empty()) {
            builder
                .add_stack(snapshot.vcpu, 1, &taken.frames)
                .map_err(|error| RecordError::from(SnapshotError::from(error)))?;
        }
    }
    let profile = builder.finish();
    let symbolized = symbolizer.resolve(&profile)?;
    warn(symbolized.warnings(), false);
    let unix_ns = |at_ns: u64| {
        let connected_unix_ns = agent.wall_clock_ns?;
        Some(connected_unix_ns.saturating_add(at_ns.saturating_sub(agent.monotonic_ns)))
    };
    if as_json {
        let vcpus: Vec<Value> = snapshots
            .iter()
            .map(|snapshot| json(snapshot, registers, &symbolized, unix_ns))
            .collect();
        return Ok(format!("{}\n", json!({ "vcpus": vcpus })));
    }
    let mut text = String::new();
    for snapshot in snapshots {
        match &snapshot.taken {
            Some(taken) => {
                text += &paragraph(
                    snapshot.vcpu,
                    taken,
                    registers,
                    &symbolized,
                    screen::known_columns(),
                );
            }
            None => text += &missing(snapshot, wait),
        }
        text.push('\n');
    }
    Ok(charset::local(text))
}

/// The names of the program counter, the stack pointer, the frame pointer and the link register, if
/// there is one.
fn register_names(architecture: &Architecture) -> &'static [&'static str] {
    match architecture {
        Architecture::X86_64 => &["rip", "rsp", "rbp"],
        Architecture::Aarch64 => &["pc", "sp", "x29", "x30"],
        Architecture::Other(_) => &["pc", "sp", "fp", "lr"],
    }
}

/// The functions of a vCPU's stack, innermost first.
fn symbols<'s>(
    vcpu: u32,
    symbolized: &'s Symbolized<'_>,
) -> impl Iterator<Item = &'s Symbol> + use<'s> {
    let profile = symbolized.profile();
    let mut samples = profile.samples().iter();
    let sample = samples.find(move |sample| sample.vcpu == vcpu);
    sample
        .into_iter()
        .flat_map(|sample| profile.stack(sample.node))
        .flat_map(|frame| symbolized.frame(frame))
}

/// A function's name.
fn name(symbol: &Symbol, symbolized: &Symbolized<'_>) -> String {
    Printable(&symbolized.function(symbol.function).name).to_string()
}

fn paragraph(
    vcpu: u32,
    taken: &Snapshot,
    registers: &[&str],
    symbolized: &Symbolized<'_>,
    columns: Option<usize>,
) -> String {
    let state = match taken.blocked_ns {
        None => "running".to_owned(),
        Some(ns) => format!("blocked for {}", duration(ns)),
    };
    let mut text = format!("vCPU {vcpu}: {state}, {} ago\n", duration(taken.age_ns));
    // Writing to a string does not fail.
    let values: Vec<String> = registers
        .iter()
        .zip(taken.registers)
        .map(|(name, value)| format!("{name} {value:#018x}"))
        .collect();
    let _ = writeln!(text, "  {}", values.join("  "));
    for symbol in symbols(vcpu, symbolized) {
        let mut place = if symbol.inlined { " (inlined)".to_owned() } else { String::new() };
        if let (Some(file), Some(line)) = (symbol.file, symbol.line) {
            let file = Printable(symbolized.file(file)).to_string();
            let file = if columns.is_some() { shorten::path(&file) } else { &file };
            let _ = write!(place, "  {file}:{line}");
        }
        let room = columns.map_or(usize::MAX, |columns| {
            columns.saturating_sub(4 + place.chars().count()).max(LEAST_NAME)
        });
        let name = name(symbol, symbolized);
        let _ = writeln!(text, "    {}{place}", shorten::name(&name, room));
    }
    text
}

/// What is known of a vCPU that did not answer.
fn missing(snapshot: &VcpuSnapshot, wait: Duration) -> String {
    let reason = match snapshot.ran_ns {
        0 => "and it did not run: it is offline, or the hypervisor gave it no CPU".to_owned(),
        ran_ns => format!("but it ran for {}: it probably has events masked", duration(ran_ns)),
    };
    let vcpu = snapshot.vcpu;
    format!("vCPU {vcpu}: no answer within {}, {reason}\n", std_duration(wait))
}

fn json(
    snapshot: &VcpuSnapshot,
    registers: &[&str],
    symbolized: &Symbolized<'_>,
    unix_ns: impl Fn(u64) -> Option<u64>,
) -> Value {
    let VcpuSnapshot { vcpu, taken, ran_ns } = snapshot;
    let Some(taken) = taken else {
        return json!({ "vcpu": vcpu, "state": "no answer", "ran_ns": ran_ns });
    };
    // As text, because many readers of JSON keep 53 bits of a number.
    let registers: Map<String, Value> = registers
        .iter()
        .zip(taken.registers)
        .map(|(name, value)| ((*name).to_owned(), format!("{value:#x}").into()))
        .collect();
    let frames: Vec<Value> = symbols(*vcpu, symbolized)
        .map(|symbol| {
            json!({
                "function": name(symbol, symbolized),
                "file": symbol.file.map(|file| Printable(symbolized.file(file)).to_string()),
                "line": symbol.line,
                "inlined": symbol.inlined,
            })
        })
        .collect();
    json!({
        "vcpu": vcpu,
        "state": if taken.blocked_ns.is_some() { "blocked" } else { "running" },
        "blocked_ns": taken.blocked_ns,
        "at_ns": taken.at_ns,
        "unix_ns": unix_ns(taken.at_ns),
        "age_ns": taken.age_ns,
        "registers": registers,
        "frames": frames,
    })
}
