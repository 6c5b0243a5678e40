//! A trace in the formats of other programs: the Firefox profiler's, folded stacks, and a drawing
//! of calls over time.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use flate2::Compression;
use flate2::GzBuilder;
use fxprof_processed_profile as fx;
use serde_json::{Value, json};

use super::json::stacks;
use super::text::over_time_title;
use super::view::TraceView;
use unikprof_profile::printable::Printable;
use unikprof_profile::units::{duration, grouped};

/// A moment at which what runs on a stack changes.
#[derive(Debug, Clone, Copy)]
struct Change {
    at_ns: u64,
    /// The call that runs from then on; `None`: no traced one.
    call: Option<usize>,
}

/// By stack: what runs from when on, of the calls that are shown.
fn changes(view: &TraceView<'_>) -> BTreeMap<u64, Vec<Change>> {
    let mut changes: BTreeMap<u64, Vec<Change>> = BTreeMap::new();
    let Some(calls) = &view.calls else {
        return changes;
    };
    let mut open: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    let mut end = |stack: u64, open: &mut Vec<usize>, until: u64| {
        while let Some(&last) = open.last()
            && calls.all[last].end_ns <= until
        {
            open.pop();
            changes
                .entry(stack)
                .or_default()
                .push(Change { at_ns: calls.all[last].end_ns, call: open.last().copied() });
        }
    };
    let mut begun: Vec<(u64, Change)> = Vec::new();
    for (at, call) in calls.all.iter().enumerate() {
        if view.is_left_out(calls, at) {
            continue;
        }
        let open = open.entry(call.stack).or_default();
        end(call.stack, open, call.start_ns);
        open.push(at);
        let at_ns = call.start_ns;
        begun.push((call.stack, Change { at_ns, call: Some(at) }));
    }
    for (stack, open) in &mut open {
        end(*stack, open, u64::MAX);
    }
    for (stack, change) in begun {
        changes.entry(stack).or_default().push(change);
    }
    for list in changes.values_mut() {
        // An end comes before a beginning of the same time.
        list.sort_by_key(|change| change.at_ns);
    }
    changes
}

/// The functions of a call and of those around it that are shown, outermost first.
fn path(view: &TraceView<'_>, call: usize) -> Vec<u16> {
    let Some(calls) = &view.calls else {
        return Vec::new();
    };
    let chain = std::iter::successors(Some(call), |at| calls.all[*at].parent);
    let shown = chain.filter(|at| !view.is_left_out(calls, *at));
    let mut functions: Vec<u16> = shown.map(|at| calls.all[at].function).collect();
    functions.reverse();
    functions
}

/// Self time in ns by stack of functions.
pub(super) fn write_folded(view: &TraceView<'_>, out: &mut dyn Write) -> io::Result<()> {
    let mut folded: BTreeMap<Vec<u16>, u64> = BTreeMap::new();
    for list in changes(view).values() {
        for pair in list.windows(2) {
            let length_ns = pair[1].at_ns.saturating_sub(pair[0].at_ns);
            if let Some(call) = pair[0].call.filter(|_| length_ns > 0) {
                let sum = folded.entry(path(view, call)).or_default();
                *sum = sum.saturating_add(length_ns);
            }
        }
    }
    for (functions, ns) in folded {
        let names = functions.iter().map(|it| view.name((*it).into()).replace(';', ":"));
        writeln!(out, "{} {ns}", names.collect::<Vec<_>>().join(";"))?;
    }
    Ok(())
}

/// A thread for each stack of the guest. Each time between two events is a sample, weighted with
/// its length, so that the stack chart shows each call from its beginning to its end.
pub(super) fn write_firefox(view: &TraceView<'_>, out: &mut dyn Write) -> io::Result<()> {
    let (from_ns, to_ns) = view.trace.extent();
    let began_ms = view.began_unix_ns.unwrap_or(0) as f64 / 1e6;
    let title = format!("trace of {}", Printable(&view.trace.order.patterns));
    let mut profile = fx::Profile::new(
        &title,
        fx::ReferenceTimestamp::from_millis_since_unix_epoch(began_ms),
        fx::SamplingInterval::from_nanos(1000),
    );
    profile.set_symbolicated(true);
    let category = profile.add_category("Running", fx::CategoryColor::Blue);
    let time = |ns: u64| fx::Timestamp::from_nanos_since_reference(ns.saturating_sub(from_ns));
    let process = profile.add_process(&title, 1, time(from_ns));
    profile.set_process_end_time(process, time(to_ns));
    let mut weights: Vec<Vec<f64>> = Vec::new();
    let mut changes = changes(view);
    for (stack, name) in stacks(view) {
        let Some(list) = changes.remove(&stack) else {
            continue;
        };
        let thread = profile.add_thread(process, stack as u32, time(from_ns), weights.is_empty());
        profile.set_thread_name(thread, &name);
        profile.set_thread_samples_weight_type(thread, fx::WeightType::TracingMs);
        let mut known: HashMap<Vec<u16>, Option<fx::StackHandle>> = HashMap::new();
        let mut thread_weights = Vec::new();
        for (at, change) in list.iter().enumerate() {
            let functions = change.call.map_or_else(Vec::new, |call| path(view, call));
            let stack = *known.entry(functions.clone()).or_insert_with(|| {
                let mut stack = None;
                for function in functions {
                    let name = profile.intern_string(&view.name(function.into()));
                    let frame = profile.intern_frame(
                        thread,
                        fx::FrameInfo {
                            frame: fx::Frame::Label(name),
                            category_pair: category.into(),
                            flags: fx::FrameFlags::empty(),
                        },
                    );
                    stack = Some(profile.intern_stack(thread, stack, frame));
                }
                stack
            });
            let end_ns = list.get(at + 1).map_or(change.at_ns, |next| next.at_ns);
            let length_ns = match stack {
                Some(_) => end_ns.saturating_sub(change.at_ns),
                None => 0,
            };
            profile.add_sample(
                thread,
                time(change.at_ns),
                stack,
                fx::CpuDelta::from_nanos(length_ns),
                1,
            );
            thread_weights.push(length_ns as f64 / 1e6);
        }
        weights.push(thread_weights);
    }
    let mut value = serde_json::to_value(&profile)?;
    // The library takes whole weights only; these are parts of a millisecond.
    let threads = value["threads"].as_array_mut();
    for (thread, weights) in threads.into_iter().flatten().zip(weights) {
        thread["samples"]["weight"] = json!(weights);
    }
    write_gzip(&value, out)
}

fn write_gzip(value: &Value, out: &mut dyn Write) -> io::Result<()> {
    // No time and no name in the header: equal profiles are equal files.
    let mut gzip = GzBuilder::new().write(out, Compression::default());
    serde_json::to_writer(&mut gzip, value)?;
    gzip.finish()?.flush()
}

/// The functions that a drawing has, those with most time first.
const LANES: usize = 20;
const WIDTH: usize = 1200;
const LANE: usize = 60;
const LEFT: usize = 20;
const TOP: usize = 40;

/// Calls over time: a lane for each function.
pub(super) fn write_svg(view: &TraceView<'_>, out: &mut dyn Write) -> io::Result<()> {
    const BINS: usize = 400;
    let (from_ns, to_ns) = view.trace.extent();
    let length_ns = to_ns.saturating_sub(from_ns);
    let rows = view.rows();
    let over_time = view.over_time(BINS);
    let Some(over_time) = over_time else {
        return Ok(());
    };
    let shown = &rows[..rows.len().min(LANES)];
    let height = TOP + shown.len() * LANE + 40;
    let plot = WIDTH - 2 * LEFT;
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" \
         fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"16\">{}: {}, {}</text>",
        over_time_title(view),
        escaped(&view.trace.order.patterns),
        duration(length_ns)
    )?;
    for (lane, row) in shown.iter().enumerate() {
        let counts = &over_time[row.function];
        let most = counts.iter().copied().max().unwrap_or(0).max(1);
        let bottom = TOP + (lane + 1) * LANE - 6;
        writeln!(
            out,
            "<text x=\"{LEFT}\" y=\"{}\">{}: {} calls, {}; at most {} in {}</text>",
            bottom - LANE + 18,
            escaped(&view.name(row.function)),
            grouped(row.calls),
            duration(row.total_ns),
            grouped(most),
            duration(length_ns / BINS as u64)
        )?;
        let mut path = String::new();
        for (bin, count) in counts.iter().enumerate() {
            if *count == 0 {
                continue;
            }
            let x = LEFT as f64 + plot as f64 * bin as f64 / BINS as f64;
            let high = (LANE - 24) as f64 * *count as f64 / most as f64;
            let wide = plot as f64 / BINS as f64;
            path.push_str(&format!("M{x:.1} {bottom}v-{high:.1}h{wide:.1}v{high:.1}z"));
        }
        writeln!(out, "<path d=\"{path}\" fill=\"#3d7ea6\"/>")?;
        writeln!(
            out,
            "<path d=\"M{LEFT} {bottom}h{plot}\" stroke=\"#999\" stroke-width=\"0.5\"/>"
        )?;
    }
    for tick in 0..=10_u64 {
        let x = LEFT + plot * tick as usize / 10;
        let anchor = match tick {
            0 => "start",
            10 => "end",
            _ => "middle",
        };
        writeln!(
            out,
            "<text x=\"{x}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
            height - 14,
            duration(length_ns / 10 * tick)
        )?;
    }
    writeln!(out, "</svg>")
}

fn escaped(text: &str) -> String {
    let text = Printable(text).to_string();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
