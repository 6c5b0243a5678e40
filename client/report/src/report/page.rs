//! One page that holds a recording and the program that shows it: a file that a browser opens
//! without a network.
//!
//! The program is the plain JavaScript in `client/report/page`. The data in the file is a gzip stream in
//! base64 of
//!
//! 1. the length of the head, in bytes, as a `u32` (little endian);
//! 2. the head: JSON, see [`Head`];
//! 3. the columns that the head lists, one after the other: unsigned numbers in LEB128.
//!
//! `client/report/page/decode.js` reads it. The page computes what it shows of a part of the time as
//! [`Timeline::profile`](unikprof_profile::timeline::Timeline::profile) and
//! [`FunctionTable`](super::FunctionTable) do.

mod columns;
mod recordings;
mod stacks;
mod ways;

use std::io::{self, Write};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use base64::write::EncoderWriter;
use flate2::write::GzEncoder;
use indexmap::IndexSet;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::analysis::Analysis;
use super::labels::LabelId;
use super::{COMPRESSION, Report, SortBy, TimelineView, json, text};
pub(crate) use columns::Columns;
use columns::{Column, zigzag};
use recordings::{RecordingHead, Shown, shown};
pub(super) use stacks::Stacks;
use unikprof_profile::timeline::{Nesting, Outcome, Ring, Timeline, What};
use unikprof_profile::units::date;

/// What is around the body of every page.
const SHELL: &str = include_str!("../../page/shell.html");
const BODY: &str = include_str!("../../page/page.html");
const STYLE: &str = include_str!("../../page/page.css");

/// Numbers and times as text.
const FORMAT: &str = include_str!("../../page/format.js");

/// The modules of every page. A module comes after those that it imports from.
const COMMON: [&str; 7] = [
    FORMAT,
    include_str!("../../page/decode.js"),
    include_str!("../../page/state.js"),
    include_str!("../../page/colors.js"),
    include_str!("../../page/canvas.js"),
    include_str!("../../page/tables.js"),
    include_str!("../../page/shell.js"),
];

/// The modules of a report's page beside these.
const MODULES: [&str; 10] = [
    include_str!("../../page/statistics.js"),
    include_str!("../../page/times.js"),
    include_str!("../../page/tree.js"),
    include_str!("../../page/selection.js"),
    include_str!("../../page/axis.js"),
    include_str!("../../page/tracks.js"),
    include_str!("../../page/flame.js"),
    include_str!("../../page/calls.js"),
    include_str!("../../page/analysis.js"),
    include_str!("../../page/main.js"),
];

pub(super) fn write(report: &Report<'_>, out: &mut impl Write) -> io::Result<()> {
    write_page(BODY, &MODULES, out, |out| write_report(report, out))
}

/// Writes a page: its body, the modules of its program beside the common ones, and the data that
/// `write_data` writes, compressed.
pub(crate) fn write_page(
    body: &str,
    modules: &[&str],
    out: &mut impl Write,
    write_data: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let script = script(COMMON.iter().chain(modules));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; base-uri 'none'; \
         form-action 'none'",
        hash(&script),
        hash(STYLE)
    );
    let mut after = SHELL;
    let mut until = |mark| -> io::Result<&str> {
        let parts = after.split_once(mark);
        let (before, rest) =
            parts.ok_or_else(|| io::Error::other(format!("the template lacks {mark}")))?;
        after = rest;
        Ok(before)
    };
    write!(out, "{}{policy}", until("{policy}")?)?;
    write!(out, "{}{STYLE}", until("{style}")?)?;
    write!(out, "{}{body}", until("{body}")?)?;
    out.write_all(until("{data}")?.as_bytes())?;
    let mut base64 = EncoderWriter::new(&mut *out, &BASE64_STANDARD);
    let mut gzip = GzEncoder::new(&mut base64, COMPRESSION);
    write_data(&mut gzip)?;
    gzip.finish()?;
    base64.finish()?;
    drop(base64);
    write!(out, "{}{script}", until("{script}")?)?;
    out.write_all(after.as_bytes())
}

/// Writes a page's data: the head and the columns that it lists.
pub(crate) fn write_data(
    head: &impl Serialize,
    columns: &Columns,
    mut out: &mut dyn Write,
) -> io::Result<()> {
    let head = serde_json::to_vec(head)?;
    let length = u32::try_from(head.len()).map_err(io::Error::other)?;
    out.write_all(&length.to_le_bytes())?;
    out.write_all(&head)?;
    columns.write(&mut out)
}

/// A page that asks a server for what it shows: its template with the style and the program of
/// these modules, which may import from `format.js`. Answers the page, and its policy: it runs and
/// asks nothing else. Recordings' pages that it opens may run too: what a page makes inherits its
/// policy.
pub fn served_page(template: &str, style: &str, modules: &[&str]) -> (String, String) {
    let (script, style) = (script([FORMAT].iter().chain(modules)), format!("{STYLE}{style}"));
    let page = template.replacen("{style}", &style, 1).replacen("{script}", &script, 1);
    let recordings = self::script(COMMON.iter().chain(&MODULES));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}' 'sha256-{}'; style-src 'sha256-{}' \
         'sha256-{}'; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(&script),
        hash(&recordings),
        hash(&style),
        hash(STYLE)
    );
    (page, policy)
}

/// The modules as one program: names are unique across them, so imports are left out, and exports
/// are declarations. Lines of comments and indentation are left out as well.
fn script<'m>(modules: impl Iterator<Item = &'m &'m str>) -> String {
    let lines = modules.flat_map(|module| module.lines()).map(str::trim_start);
    let is_comment =
        |line: &str| ["//", "/**", "* ", "*/"].iter().any(|mark| line.starts_with(mark));
    let lines = lines.filter(|line| !line.starts_with("import ") && !is_comment(line));
    let mut script = String::from("\"use strict\";\n(() => {\n");
    for line in lines {
        script.push_str(line.strip_prefix("export ").unwrap_or(line));
        script.push('\n');
    }
    script.push_str("})();\n");
    script
}

fn hash(text: &str) -> String {
    BASE64_STANDARD.encode(Sha256::digest(text))
}

/// What the columns are about.
#[derive(Serialize)]
struct Head<'a, R> {
    /// The report as in JSON, but for the functions.
    report: R,
    /// What frames are called; a node's label is an index into it.
    labels: Vec<Label<'a>>,
    images: Vec<&'a str>,
    files: Vec<&'a str>,
    /// What the guest called its spans, marks and counters.
    names: Vec<String>,
    /// Each vCPU of the recording's counts.
    vcpus: Vec<u32>,
    /// The labels of the functions that nearly all samples share, the outermost first.
    shared: Vec<LabelId>,
    started: Option<String>,
    time: Option<Time>,
    /// The columns' names and lengths, in numbers.
    columns: Vec<(&'static str, usize)>,
}

/// Name, kind, and indices of image and file plus one, line; 0 where unknown.
type Label<'a> = (&'a str, &'static str, usize, usize, u32);

/// The time that the rings tell of, in ns since the recording began.
#[derive(Serialize)]
struct Time {
    from_ns: u64,
    to_ns: u64,
    /// The date at the recording's beginning.
    unix_ns: Option<u64>,
    rings: Vec<RingHead>,
    /// The report's own first.
    recordings: Vec<RecordingHead>,
}

#[derive(Serialize)]
struct RingHead {
    vcpu: u32,
    held_since_ns: u64,
    evicted: u64,
    /// Times of which records are missing.
    gaps: Vec<(u64, u64)>,
    /// How many moments of it are in the columns of times.
    told: usize,
    tells_states: bool,
}

fn write_report(report: &Report<'_>, out: &mut dyn Write) -> io::Result<()> {
    let mut columns = Columns::default();
    let mut names = IndexSet::new();
    let [mut depths, mut labels_of, mut ways] = <[Column; 3]>::default();
    let stacks = Stacks::of(report, |depth, label, way| {
        depths.push(depth.into());
        labels_of.push(label.into());
        ways.push(way as u64);
    });
    columns.push("node_depth", depths);
    columns.push("node_label", labels_of);
    columns.push("node_way", ways);
    let profile = report.symbolized.profile();
    let spans = profile.span_names().iter();
    let spans: Vec<u64> = spans.map(|name| index(&mut names, name.clone())).collect();
    let samples = || profile.samples().iter();
    columns.add("count_node", samples().map(|s| stacks.node(s.node).into()));
    columns.add("count_vcpu", samples().map(|s| s.vcpu.into()));
    let span = |at: Option<u32>| at.map_or(0, |at| spans[at as usize] + 1);
    columns.add("count_span", samples().map(|s| span(s.span)));
    columns.add("count_value", samples().map(|s| s.count));
    let view = report.view.as_ref();
    let time = view.map(|view| add_time(report, view, &stacks, &mut names, &mut columns));
    let recording = profile.recording();
    let analysis = Analysis::of(report);
    let (shared, _) = text::in_order(report, report.functions(), &analysis, SortBy::Total);
    let (labels, images, files) = labels(report);
    let head = Head {
        report: json::document(report, &[], Some(&analysis)),
        labels,
        images,
        files,
        names: names.into_iter().collect(),
        vcpus: profile.vcpus().iter().map(|v| v.vcpu).collect(),
        shared: shared.iter().map(|row| row.label).collect(),
        started: recording.started_unix_ns.and_then(date),
        time,
        columns: columns.lengths().collect(),
    };
    write_data(&head, &columns, out)
}

/// The place of a name among all that were given before.
fn index(names: &mut IndexSet<String>, name: String) -> u64 {
    names.insert_full(name).0 as u64
}

fn labels<'a>(report: &'a Report<'_>) -> (Vec<Label<'a>>, Vec<&'a str>, Vec<&'a str>) {
    let symbolized = report.symbolized;
    let (mut images, mut files) = (IndexSet::new(), IndexSet::new());
    let labels = report.labels.all().iter().zip(report.label_lines());
    let labels = labels.map(|(label, line)| {
        let function = symbolized.function(label.function);
        let image = function.image.map(|image| symbolized.image(image));
        (
            label.text.as_str(),
            json::kind(function.kind),
            image.map_or(0, |image| images.insert_full(image).0 + 1),
            line.map_or(0, |(file, _)| files.insert_full(symbolized.file(file)).0 + 1),
            line.map_or(0, |(_, line)| line),
        )
    });
    let labels = labels.collect();
    (labels, images.into_iter().collect(), files.into_iter().collect())
}

/// The ticks, waits and events of the time shown.
fn add_time(
    report: &Report<'_>,
    view: &TimelineView<'_>,
    stacks: &Stacks,
    names: &mut IndexSet<String>,
    columns: &mut Columns,
) -> Time {
    let timeline = view.timeline;
    let began_ns = view.of.window.from_ns;
    let since = |at_ns: u64| at_ns.saturating_sub(began_ns);
    let all: Vec<_> = shown(report, view).collect();
    let ticks = || all.iter().flat_map(Shown::ticks);
    columns.add_changes("tick_at", ticks().map(|tick| since(tick.at_ns)));
    columns.add("tick_vcpu", ticks().map(|tick| tick.vcpu.into()));
    columns.add("tick_outcome", ticks().map(|tick| code(tick.outcome)));
    let node = |stack| u64::from(stacks.node(stack));
    // 0 is a stack that the report leaves out, or none.
    columns.add("tick_node", ticks().map(|tick| tick.stack.map_or(0, node)));
    // The name, plus one, of the span that code ran for; 0 if the guest told of none.
    let mut entered = |name| index(names, timeline.name_or_id(name)) + 1;
    let entered: Vec<u64> =
        ticks().map(|tick| tick.entered.map_or(0, |span| entered(span.name))).collect();
    columns.add("tick_entered", entered.into_iter());
    let waits = || {
        ticks().filter_map(|tick| match tick.outcome {
            Outcome::Blocked { length_ns, count, is_first, is_aged } => {
                let flags = [tick.stack.is_some(), is_first, is_aged].map(u64::from);
                Some((length_ns, count, flags[0] | flags[1] << 1 | flags[2] << 2))
            }
            _ => None,
        })
    };
    columns.add("wait_ns", waits().map(|(length_ns, ..)| length_ns));
    columns.add("wait_count", waits().map(|(_, count, _)| count));
    // Whether the wait is counted in a stack, whether it began there, and whether the stack has aged.
    columns.add("wait_flags", waits().map(|(.., flags)| flags));

    let window = timeline.bounded(&view.of, view.window);
    let spans = timeline.guest_spans(window);
    let ids: Vec<u64> =
        spans.iter().map(|span| index(names, timeline.name_or_id(span.name))).collect();
    columns.add("span_name", ids.into_iter());
    columns.add("span_vcpu", spans.iter().map(|span| span.vcpu.into()));
    // Some began before the recording.
    let from = spans.iter().map(|span| span.began_ns.wrapping_sub(began_ns));
    columns.add_changes("span_from", from);
    // Plus one; 0 if it has not ended.
    let length = |ended: u64, began: u64| ended.saturating_sub(began).saturating_add(1);
    let lengths =
        spans.iter().map(|span| span.ended.map_or(0, |(_, at_ns)| length(at_ns, span.began_ns)));
    columns.add("span_length", lengths);
    // Whether samples are in it by time.
    let nested = spans.iter().map(|span| span.nesting == Nesting::Nested);
    columns.add("span_nested", nested.map(u64::from));

    // Moment, kind, vCPU, name and value of each.
    let mut events: Vec<[u64; 5]> = Vec::new();
    for (name, (_, value)) in timeline.counters_at(window.from_ns) {
        let name = index(names, timeline.name_or_id(name));
        events.push([since(window.from_ns), 1, 0, name, zigzag(value)]);
    }
    for event in timeline.events(window) {
        let (kind, name, value) = match event.what {
            What::Mark { name, value } => (0, index(names, name), value),
            What::Counter { name, value } => (1, index(names, name), zigzag(value)),
            What::Began { recording } => (2, recording, 0),
            What::Ended { recording } => (3, recording, 0),
            What::Resumed => (4, 0, 0),
            _ => continue,
        };
        events.push([since(event.at_ns), kind, u64::from(event.vcpu), name, value]);
    }
    columns.add_changes("event_at", events.iter().map(|event| event[0]));
    for (name, at) in ["event_kind", "event_vcpu", "event_name", "event_value"].into_iter().zip(1..)
    {
        columns.add(name, events.iter().map(|event| event[at]));
    }
    add_times(timeline, began_ns, columns);
    Time {
        from_ns: since(window.from_ns),
        to_ns: since(window.to_ns),
        unix_ns: timeline.wall_clock().unix_ns(began_ns),
        rings: timeline.rings().iter().map(|ring| ring_head(ring, &since)).collect(),
        recordings: all.iter().map(|of| of.head(began_ns)).collect(),
    }
}

fn ring_head(ring: &Ring, since: &impl Fn(u64) -> u64) -> RingHead {
    let (told, tells_states) = ring.times_told();
    let gaps = ring.all_gaps().into_iter();
    RingHead {
        vcpu: ring.vcpu,
        held_since_ns: since(ring.held_since_ns),
        evicted: ring.evicted,
        gaps: gaps.map(|gap| (since(gap.from_ns), since(gap.to_ns))).collect(),
        told: told.len(),
        tells_states,
    }
}

/// Moments, and each vCPU's time so far, ring by ring.
fn add_times(timeline: &Timeline, began_ns: u64, columns: &mut Columns) {
    let told: Vec<(u64, [u64; 4])> =
        timeline.rings().iter().flat_map(|ring| ring.times_told().0).collect();
    // Some lie before the recording began.
    columns.add_changes("told_at", told.iter().map(|(at_ns, _)| at_ns.wrapping_sub(began_ns)));
    for (name, at) in
        ["told_running", "told_runnable", "told_blocked", "told_offline"].into_iter().zip(0..)
    {
        columns.add_changes(name, told.iter().map(|(_, sums)| sums[at]));
    }
}

fn code(outcome: Outcome) -> u64 {
    match outcome {
        Outcome::Recorded => 0,
        Outcome::Late => 1,
        Outcome::Aged => 2,
        Outcome::Overflow => 3,
        Outcome::Lost => 4,
        Outcome::Masked => 5,
        Outcome::Idle => 6,
        Outcome::Blocked { .. } => 7,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashMap;
    use std::io::Read as _;

    use flate2::read::GzDecoder;
    use serde_json::Value;

    use super::*;
    use crate::report::golden_tests::with_report;
    use crate::report::{Format, ReportOptions};

    fn page(report: &Report<'_>) -> String {
        let mut page = Vec::new();
        report.write(Format::Page, &mut page).unwrap();
        String::from_utf8(page).unwrap()
    }

    /// The page without its data, and the data inflated.
    pub(crate) fn parts(page: &str) -> (String, Vec<u8>) {
        let (before, rest) = page.split_once("octet-stream\">").unwrap();
        let (data, after) = rest.split_once('<').unwrap();
        let mut bytes = Vec::new();
        let packed = BASE64_STANDARD.decode(data).unwrap();
        GzDecoder::new(&*packed).read_to_end(&mut bytes).unwrap();
        (format!("{before}{after}"), bytes)
    }

    /// The head, and the columns by their names.
    pub(crate) fn read(data: &[u8]) -> (Value, HashMap<String, Vec<u64>>) {
        let length = u32::from_le_bytes(data[..4].try_into().unwrap()) as usize;
        let head: Value = serde_json::from_slice(&data[4..4 + length]).unwrap();
        let mut bytes = data[4 + length..].iter();
        let mut number = || {
            let (mut value, mut shift) = (0, 0);
            loop {
                let byte = bytes.next().unwrap();
                value |= u64::from(byte & 0x7f) << shift;
                shift += 7;
                if byte & 0x80 == 0 {
                    return value;
                }
            }
        };
        let columns = head["columns"].as_array().unwrap().iter();
        let columns = columns.map(|column| {
            let count = column[1].as_u64().unwrap();
            let numbers = (0..count).map(|_| number()).collect();
            (column[0].as_str().unwrap().to_owned(), numbers)
        });
        let columns = columns.collect();
        assert_eq!(bytes.len(), 0, "all of it is read");
        (head, columns)
    }

    /// A page's program asks for nothing and makes neither programs nor markup of text.
    pub(crate) fn assert_offline(program: &str) {
        for word in
            ["eval(", "Function(", "import", "fetch(", "XMLHttp", "http:", "https:", "innerHTML"]
        {
            let is_allowed = |line: &&str| !line.contains("!important");
            let lines: Vec<&str> =
                program.lines().filter(is_allowed).filter(|line| line.contains(word)).collect();
            assert_eq!(lines, [""; 0], "{word}");
        }
    }

    #[test]
    fn the_program_is_small_and_uses_neither_the_network_nor_eval() {
        with_report(ReportOptions::default(), |report| {
            let (program, _) = parts(&page(report));
            assert!(program.len() <= 135_000, "{} bytes", program.len());
            assert_offline(&program);
        });
    }

    /// Whatever a guest calls itself is in the data alone, which is base64.
    #[test]
    fn no_name_of_the_guest_is_markup() {
        with_report(ReportOptions::default(), |report| {
            let page = page(report);
            let (program, data) = parts(&page);
            let (head, _) = read(&data);
            assert_eq!(head["report"]["recording"]["guest_name"], "web <1>");
            assert!(!program.contains("web <1>") && !program.contains("Server::poll"));
        });
    }

    #[test]
    fn the_data_has_every_stack_with_its_samples() {
        with_report(ReportOptions::default(), |report| {
            let (head, columns) = read(&parts(&page(report)).1);
            assert_eq!(columns["count_value"].iter().sum::<u64>(), 840);
            let label = |node: u64| {
                let label = columns["node_label"][node as usize - 1];
                head["labels"][label as usize][0].as_str().unwrap()
            };
            let leaves = columns["count_node"].iter().zip(&columns["count_value"]);
            let fib = leaves.filter(|(node, _)| label(**node) == "fib");
            assert_eq!(fib.map(|(_, count)| count).sum::<u64>(), 40 + 35 + 30);
            assert!(head["time"].is_null());
        });
    }

    #[test]
    fn what_a_filter_leaves_out_counts_in_no_stack() {
        let options =
            ReportOptions { focus: Some("^fib$".parse().unwrap()), ..ReportOptions::default() };
        with_report(options, |report| {
            let (_, columns) = read(&parts(&page(report)).1);
            let counts = columns["count_node"].iter().zip(&columns["count_value"]);
            let (shown, left_out): (Vec<_>, Vec<_>) = counts.partition(|(node, _)| **node != 0);
            let sum = |of: Vec<(&u64, &u64)>| of.iter().map(|(_, count)| **count).sum::<u64>();
            assert_eq!((sum(shown), sum(left_out)), (105, 735));
        });
    }
}
