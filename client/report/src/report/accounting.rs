//! The head of the text report: what was recorded, the outcome of every tick, how callers were
//! found, and blocked time.

use std::io::{self, Write};

use super::marks::Marked;
use super::stack_warnings::of_what;
use super::units::{amount, date, duration, grouped, share, size};
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{
    Counters, FromRing, Merged, Mode, Profile, RecordingInfo, TimeSpan, Unit, Unwind,
};

/// The column in which the values of the head begin.
const LABEL_WIDTH: usize = 12;

pub(super) fn write_header(recording: &RecordingInfo, out: &mut impl Write) -> io::Result<()> {
    let or_unnamed = |name: &str| match name {
        "" => "(unnamed)".to_owned(),
        name => Printable(name).to_string(),
    };
    let mut guest = or_unnamed(&recording.guest_name);
    if !recording.guest_id.is_empty() {
        guest.push_str(&format!(" ({})", Printable(&recording.guest_id)));
    }
    row(out, "guest", &guest)?;
    row(out, "recording", &or_unnamed(&recording.name))?;
    row(out, "mode", &mode(recording.mode))?;
    if recording.mode.is_heap() {
        let rate = format!("a sample every {} on average", size(recording.interval_bytes));
        row(out, "rate", &rate)?;
    }
    if recording.mode.samples_time() {
        let mut rate = match recording.rate_hz() {
            Some(hz) => format!("{hz:.1} Hz, mean period {}", duration(recording.period_ns)),
            None => "unknown".to_owned(),
        };
        rate.push_str(if recording.fixed_interval {
            ", fixed interval"
        } else {
            ", random intervals"
        });
        row(out, "rate", &rate)?;
    }
    if let Some(merged) = &recording.merged {
        row(out, "merged", &files(merged))?;
        for line in times_between(merged) {
            row(out, "", &line)?;
        }
    }
    row(out, "callers", &callers(recording))?;
    if let Some(ring) = &recording.ring {
        row(out, "window", &window(ring))?;
    }
    if let Some(vcpus) = &recording.only_vcpus {
        row(out, "vcpus", &only(vcpus))?;
    }
    let started = recording.started_unix_ns.and_then(date);
    row(
        out,
        "time",
        &format!(
            "{} from {}",
            duration(recording.elapsed_ns),
            started.as_deref().unwrap_or("an unknown time")
        ),
    )?;
    let agent = match recording.agent_version.as_str() {
        "" => "unknown version".to_owned(),
        version => Printable(version).to_string(),
    };
    row(
        out,
        "agent",
        &format!("{agent}, {}, {} frames deep", recording.architecture, recording.depth),
    )
}

/// The accounting as short lines, for formats that hold comments.
pub(super) fn lines(c: &Counters, recording: &RecordingInfo) -> Vec<String> {
    let mut lines = vec![
        format!(
            "unikprof: guest {:?}{}, recording {:?}, agent {}, {}",
            recording.guest_name,
            match recording.guest_id.as_str() {
                "" => String::new(),
                id => format!(" {}", Printable(id)),
            },
            recording.name,
            Printable(&recording.agent_version),
            recording.architecture
        ),
        format!("mode {}", mode(recording.mode)),
    ];
    if matches!(recording.unit(), Unit::Bytes | Unit::Objects) {
        // Allocations have no ticks; their own lines follow.
        lines.push(format!("truncated {}, broken {}", c.truncated, c.broken));
    } else {
        lines.push(format!(
            "missing {}",
            c.missing.map_or("none".to_owned(), |missing| missing.to_string())
        ));
        lines.push(format!("ticks {}", c.equation()));
        lines.push(format!(
            "early {}, late {}, truncated {}, broken {}",
            c.early, c.late, c.truncated, c.broken
        ));
    }
    lines.push(match recording.ring {
        Some(_) => format!("callers: {}", callers(recording)),
        None => format!(
            "callers: {}; by table {}, by bytes {}, by frame pointer {}, mixed {}",
            callers(recording),
            c.by_table,
            c.by_bytes,
            c.by_frame_pointer,
            c.mixed
        ),
    });
    if tells_blocked(c, recording.mode) {
        lines.push(format!(
            "waits {}, blocked {} {}, aged {}, overflow {}",
            c.blocks,
            c.blocked,
            recording.unit(),
            c.blocked_aged,
            c.blocked_overflow
        ));
    }
    if let Some(ring) = &recording.ring {
        lines.push(format!("window: {}", window(ring)));
    }
    if let Some(vcpus) = &recording.only_vcpus {
        lines.push(format!("vcpus: {}", only(vcpus)));
    }
    if let Some(merged) = &recording.merged {
        lines.push(format!("merged: {}", files(merged)));
        lines.extend(times_between(merged));
    }
    lines
}

/// What was merged: how many files, and from when to when.
fn files(merged: &Merged) -> String {
    let count = |count: u32, one: &str| match count {
        1 => format!("1 {one}"),
        count => format!("{} {one}s", grouped(count)),
    };
    let date = |unix_ns| date(unix_ns).unwrap_or_else(|| "an unknown date".to_owned());
    let mut text =
        format!("{} of {}", count(merged.files, "file"), count(merged.recordings, "recording"));
    if merged.runs > 1 {
        text.push_str(&format!(" in {}", count(merged.runs, "run")));
    }
    text.push_str(&format!(
        ", {} to {}",
        date(merged.time.from_unix_ns),
        date(merged.time.to_unix_ns)
    ));
    if merged.repeated_epochs > 0 {
        let epochs = count(merged.repeated_epochs, "epoch");
        text.push_str(&format!("; {epochs} in several files, counted once"));
    }
    text
}

/// The times that no file holds, and those that several runs hold: their number and length, and the
/// longest.
fn times_between(merged: &Merged) -> Vec<String> {
    const SHOWN: usize = 3;
    let mut lines = Vec::new();
    for (spans, one, many) in
        [(&merged.gaps, "gap", "gaps"), (&merged.overlaps, "overlap of runs", "overlaps of runs")]
    {
        if spans.is_empty() {
            continue;
        }
        let mut longest: Vec<&TimeSpan> = spans.iter().collect();
        longest.sort_by_key(|span| std::cmp::Reverse(span.length_ns()));
        longest.truncate(SHOWN);
        let total = spans.iter().fold(0, |sum: u64, span| sum.saturating_add(span.length_ns()));
        let longest: Vec<String> = longest
            .iter()
            .map(|span| {
                let from = date(span.from_unix_ns);
                let from = from.as_deref().unwrap_or("an unknown date");
                format!("{} from {from}", duration(span.length_ns()))
            })
            .collect();
        lines.push(format!(
            "{} {}, {} in all; {}{}",
            grouped(spans.len() as u64),
            if spans.len() == 1 { one } else { many },
            duration(total),
            if spans.len() > SHOWN { "the longest: " } else { "" },
            longest.join(", ")
        ));
    }
    lines
}

/// The vCPUs that are shown.
fn only(vcpus: &[u32]) -> String {
    let vcpus: Vec<String> = vcpus.iter().map(ToString::to_string).collect();
    format!("{} only; shares are of these", vcpus.join(", "))
}

/// Which part of the recording is shown.
fn window(ring: &FromRing) -> String {
    let inside = match ring.spans() {
        Some(spans) => format!(", inside spans {spans}"),
        None => String::new(),
    };
    format!(
        "{:.3} s to {:.3} s of the recording{inside}; from the ring",
        ring.from_ns as f64 / 1e9,
        ring.to_ns as f64 / 1e9
    )
}

pub(super) fn write_accounting(
    profile: &Profile,
    marked: Marked,
    out: &mut impl Write,
) -> io::Result<()> {
    let (c, recording) = (&profile.counters().told(), profile.recording());
    let unit = recording.unit();
    let missing = c.missing.map_or("-".to_owned(), grouped);
    let numbers = [
        grouped(c.ticks),
        grouped(c.early),
        missing.clone(),
        grouped(c.blocks),
        amount(c.blocked, unit),
        amount(c.blocked_overflow, unit),
        amount(c.blocked_aged, unit),
    ];
    let width = numbers.iter().map(|n| n.chars().count()).max();
    let mut table = Table { out, width: width.unwrap_or(0) };
    let of_ticks = |n| share(n, c.ticks);
    let (title, formula) = match recording.mode {
        Mode::Wall => (
            "\nmissing = (running + blocked time) / period - ticks - blocked samples",
            "an independent check; small values are noise",
        ),
        Mode::Alloc | Mode::Live => {
            ("\nmissing", "not applicable: allocations are sampled, not time")
        }
        Mode::OffCpu => ("\nmissing", "not applicable: blocked time is measured, not sampled"),
        Mode::Cpu | Mode::Other(_) => (
            "\nmissing = running time / period - ticks",
            "an independent check; small values are noise",
        ),
    };
    table.title(title)?;
    table.line("missing", &missing, "", formula)?;
    if recording.mode == Mode::OffCpu && c.ticks == 0 {
        return write_blocked(c, unit, &mut table);
    }
    table.title("ticks = recorded + aged + overflow + lost + masked + idle")?;
    table.line("ticks", &numbers[0], "", "sampling timer expirations")?;
    for (name, count, what) in [
        ("recorded", c.recorded, "counted with a stack"),
        ("aged", c.aged, "counted, but dropped before it was fetched"),
        ("overflow", c.overflow, "the stack table was full"),
        ("lost", c.lost, "the stack table was locked"),
        ("masked", c.masked, "delivered without registers"),
        ("idle", c.idle, "due while the vCPU was blocked"),
    ] {
        table.line(name, &grouped(count), &of_ticks(count), what)?;
    }
    let of_sampled = |n| share(n, c.sampled());
    table.title("of recorded and aged")?;
    let late = match recording.late_threshold_ns {
        // A copy of a running recording: `check` does not tell the threshold.
        0 => "after the target by more than the agent's threshold".to_owned(),
        threshold_ns => format!("more than {} after the target", duration(threshold_ns)),
    };
    table.line("late", &grouped(c.late), &of_sampled(c.late), &late)?;
    table.title(&format!("of {}", of_what(recording.mode)))?;
    for (name, count, what) in [
        ("truncated", marked.truncated, "deeper than the depth limit"),
        ("broken", marked.broken, "the frame chain was invalid"),
    ] {
        table.line(name, &grouped(count), &share(count, profile.sample_count()), what)?;
    }
    if recording.ring.is_none() {
        write_callers(c, recording, &mut table)?;
        table.title("other")?;
        table.line("early", &numbers[1], "", "timer deliveries before the target, not ticks")?;
    }
    if tells_blocked(c, recording.mode) {
        write_blocked(c, unit, &mut table)?;
    }
    Ok(())
}

/// How the interrupted function's callers were found, in words.
pub(crate) fn how_callers_were_found(c: &Counters) -> String {
    let of_sampled = |n| share(n, c.sampled());
    format!(
        "by caller table {}, by instructions {}, by frame pointer {}",
        of_sampled(c.by_table),
        of_sampled(c.by_bytes),
        of_sampled(c.by_frame_pointer)
    )
}

fn write_callers(
    c: &Counters,
    recording: &RecordingInfo,
    table: &mut Table<'_, impl Write>,
) -> io::Result<()> {
    let of_sampled = |n| share(n, c.sampled());
    table.title("how the interrupted function's caller was found")?;
    for (name, count, what) in [
        ("by table", c.by_table, "in the caller table"),
        ("by bytes", c.by_bytes, "by the instructions at the interrupted address"),
        ("by pointer", c.by_frame_pointer, "by the frame pointer alone, which may be wrong"),
    ] {
        table.line(name, &grouped(count), &of_sampled(count), what)?;
    }
    if recording.unwind == Unwind::Table {
        table.line(
            "mixed",
            &grouped(c.mixed),
            &of_sampled(c.mixed),
            "outer frames by frame pointer, where the table has no row",
        )?;
    }
    Ok(())
}

fn write_blocked(c: &Counters, unit: Unit, table: &mut Table<'_, impl Write>) -> io::Result<()> {
    let whole = c.blocked_in_all();
    let (mean, blocked) = match (unit, whole.checked_div(c.blocks)) {
        (Unit::Nanoseconds, Some(mean)) => {
            (format!(", {} on average", duration(mean)), "with a stack")
        }
        (Unit::Nanoseconds, None) => (String::new(), "with a stack"),
        _ => (String::new(), "samples with a stack, one per blocked period"),
    };
    table.title("blocked time")?;
    let waits = format!("times that a vCPU blocked{mean}");
    table.line("waits", &grouped(c.blocks), "", &waits)?;
    table.line("blocked", &amount(c.blocked, unit), &share(c.blocked, whole), blocked)?;
    table.line(
        "aged",
        &amount(c.blocked_aged, unit),
        &share(c.blocked_aged, whole),
        "counted, but dropped before it was fetched",
    )?;
    table.line(
        "overflow",
        &amount(c.blocked_overflow, unit),
        &share(c.blocked_overflow, whole),
        "without a stack: the stack table was full, or no registers",
    )
}

fn tells_blocked(c: &Counters, mode: Mode) -> bool {
    matches!(mode, Mode::Wall | Mode::OffCpu) || c.blocks != 0 || c.blocked != 0
}

fn mode(mode: Mode) -> String {
    let what = match mode {
        Mode::Cpu => "running time, in samples",
        Mode::Wall => "running and blocked time, in samples",
        Mode::OffCpu => "blocked time, measured in nanoseconds",
        Mode::Alloc => "what was allocated, sampled by bytes",
        Mode::Live => {
            "what was allocated during the recording and still held at its end, sampled by bytes"
        }
        Mode::Other(_) => "unknown to this client, shown as samples",
    };
    format!("{mode}: {what}")
}

fn callers(recording: &RecordingInfo) -> String {
    if recording.is_unknown() {
        return "how they were found is unknown".to_owned();
    }
    match (recording.unwind, recording.caller_table) {
        (Unwind::Table, Some(checksum)) => {
            format!("every frame by caller table {checksum:08x}")
        }
        (Unwind::Table, None) => "every frame by caller table, but there was none".to_owned(),
        (Unwind::FramePointers, Some(checksum)) => {
            format!("the first by caller table {checksum:08x}, the others by frame pointers")
        }
        // The rings do not record it.
        (Unwind::FramePointers, None) if recording.late_threshold_ns == 0 => {
            "by frame pointers; whether with a caller table is unknown".to_owned()
        }
        (Unwind::FramePointers, None) => "by frame pointers, without a caller table".to_owned(),
    }
}

/// Lines of a name, a number, a share and what they mean.
struct Table<'o, W> {
    out: &'o mut W,
    width: usize,
}

impl<W: Write> Table<'_, W> {
    fn title(&mut self, title: &str) -> io::Result<()> {
        writeln!(self.out, "{title}")
    }

    fn line(&mut self, name: &str, number: &str, part: &str, what: &str) -> io::Result<()> {
        let width = self.width;
        writeln!(self.out, "  {name:<10}  {number:>width$}  {part:>7}  {what}")
    }
}

fn row(out: &mut impl Write, label: &str, text: &str) -> io::Result<()> {
    writeln!(out, "{label:<LABEL_WIDTH$}{text}")
}
