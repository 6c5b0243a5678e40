//! Spans of which a few take far longer than most, and what runs in those.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::activity::Tally;
use super::{Finding, Found, Subject, Time, WindowOf, listed, score};
use crate::finding::Figure;
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::NodeId;
use unikprof_profile::timeline::{Nesting, SpanTable, Window, any_contains, union};
use unikprof_profile::units::{duration, grouped, percent};

pub(super) const RULE: &str = "slow span";

/// So many times the p50 is a slow span, and a very slow one.
const TIMES: u64 = 20;
const SEVERE_TIMES: f64 = 100.0;
/// Of fewer spans the p99 is the longest alone.
const LEAST_SPANS: u64 = 100;
/// One or two slow spans may be the host's doing.
const LEAST_SLOW: usize = 3;
/// Shorter ones can be slow because an interrupt, or a sample itself, came in between.
const LEAST_NS: u64 = 100_000;
/// A function is special to slow spans if its share there is higher by so much.
const SPECIAL: f64 = 0.2;
const MOST_WINDOWS: usize = 20;

pub(super) fn rule(subject: &Subject<'_>) -> Found {
    let time = subject.time()?;
    let tables = time.view.timeline.spans(time.window);
    let is_slow = |table: &&SpanTable| {
        let p50 = table.times.percentile(50);
        let p99 = table.times.percentile(99);
        table.times.count() >= LEAST_SPANS && p99 >= LEAST_NS && p99 >= p50.saturating_mul(TIMES)
    };
    let found = tables.iter().filter(is_slow);
    Ok(found.filter_map(|table| tell(subject, &time, table)).collect())
}

/// A span that has ended.
struct Ended {
    name: u64,
    number: u64,
    vcpu: u32,
    window: Window,
    is_nested: bool,
}

fn tell(subject: &Subject<'_>, time: &Time<'_>, table: &SpanTable) -> Option<Finding> {
    let timeline = time.view.timeline;
    let (p50, p99) = (table.times.percentile(50), table.times.percentile(99));
    let all = timeline.guest_spans(time.window).into_iter();
    let all = all.filter(|span| timeline.name_or_id(span.name) == table.name);
    let ended = all.filter_map(|span| {
        let (_, ended_ns) = span.ended.filter(|(_, at)| time.window.contains(*at))?;
        Some(Ended {
            name: span.name,
            number: span.number,
            vcpu: span.vcpu,
            window: Window::new(span.began_ns, ended_ns.max(span.began_ns)),
            is_nested: span.nesting == Nesting::Nested,
        })
    });
    let is_slow = |span: &Ended| span.window.length_ns() >= p50.saturating_mul(TIMES).max(1);
    let (mut slow, fast): (Vec<Ended>, Vec<Ended>) = ended.partition(is_slow);
    if slow.len() < LEAST_SLOW {
        return None;
    }
    slow.sort_by_key(|span| std::cmp::Reverse(span.window.length_ns()));
    let name = Printable(&table.name).to_string();
    let longest = time.of(slow[0].window);
    let times = p99 as f64 / p50.max(1) as f64;
    let mut finding = Finding::new(
        RULE,
        score(times, TIMES as f64, SEVERE_TIMES),
        format!(
            "the p99 of `{name}` is {}, {times:.0} times its p50 of {}",
            duration(p99),
            duration(p50)
        ),
        format!(
            "look at the longest: `report {}{}`; if it waits, record with --mode wall",
            longest.options(),
            in_span(&table.name)
        ),
    )
    .because(format!(
        "{} of {} took at least {TIMES} times the p50, the longest {}",
        grouped(slow.len() as u64),
        grouped(table.times.count()),
        duration(slow[0].window.length_ns())
    ))
    .count("spans", table.times.count())
    .count("slow", slow.len() as u64)
    .count("p50_ns", p50)
    .count("p99_ns", p99);
    let windows: Vec<WindowOf> = slow.iter().map(|span| time.of(span.window)).collect();
    finding = finding.because(format!("the longest: {}", listed(&windows)));
    // Enough for a page's buttons.
    finding.windows = windows.into_iter().take(MOST_WINDOWS).collect();
    what_runs(subject, time, &slow, &fast, &mut finding);
    Some(finding)
}

/// The option for a span of this name; nothing if a shell could take the name for something else.
fn in_span(name: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || " _-.:/".contains(c);
    if name.chars().all(is_plain) && !name.is_empty() {
        format!(" --in-span '{name}'")
    } else {
        String::new()
    }
}

/// Adds what runs in slow spans, and what in the others.
fn what_runs(
    subject: &Subject<'_>,
    time: &Time<'_>,
    slow: &[Ended],
    fast: &[Ended],
    finding: &mut Finding,
) {
    let [in_slow, in_fast] = [slow, fast].map(|spans| stacks_inside(subject, time, spans));
    let (inside, others) = (Tally::of(subject, &in_slow), Tally::of(subject, &in_fast));
    if inside.samples < 1.0 && !slow.iter().any(|span| span.is_nested) {
        finding.evidence.push(
            "what runs in the slow ones is not known: others ran beside them, and the guest \
             entered none of them"
                .into(),
        );
        return;
    }
    let open = open_on(slow, time.window);
    let open = open.values().flatten().map(Window::length_ns);
    let length_ns = open.fold(0_u64, u64::saturating_add);
    if subject.is_sampled().is_ok() && length_ns > 0 {
        let ran = inside.samples * subject.info().period_ns as f64 / length_ns as f64;
        finding.evidence.push(format!(
            "code of theirs ran for about {} of the time in which slow ones were open; the rest \
             they waited, or others had the processor",
            percent(ran.min(1.0))
        ));
        finding.figures.insert("running_share", Figure::Real(ran.min(1.0)));
    }
    if inside.samples < 1.0 {
        return;
    }
    let mut own: HashMap<u32, u64> = HashMap::new();
    for (stack, count) in &in_slow {
        let leaf = subject.profile.stack(*stack).next();
        let label = leaf.and_then(|leaf| subject.report.labels.of_frame(leaf).first().copied());
        if let Some(label) = label {
            *own.entry(label).or_default() += count;
        }
    }
    let mut own: Vec<(u32, u64)> = own.into_iter().collect();
    own.sort_by_key(|(label, count)| (std::cmp::Reverse(*count), *label));
    let most: Vec<String> = own
        .iter()
        .take(3)
        .map(|(label, count)| {
            format!("`{}` {}", subject.text(*label), percent(*count as f64 / inside.samples))
        })
        .collect();
    finding.evidence.push(format!("what runs in the slow ones: {}", most.join(", ")));
    let first = own.first().map(|(label, _)| *label);
    let special = inside.special(&others, SPECIAL).filter(|_| others.samples >= 1.0);
    if let Some(label) = special {
        finding.evidence.push(format!(
            "`{}` has {} of their samples, and {} of the others'",
            subject.text(label),
            percent(inside.share(label)),
            percent(others.share(label))
        ));
    }
    let label = special.or(first);
    finding.functions.extend(label.map(|label| subject.text(label).to_owned()));
}

/// By vCPU, when at least one of these spans was open within a window; in order and apart.
fn open_on<'s>(
    spans: impl IntoIterator<Item = &'s Ended>,
    within: Window,
) -> BTreeMap<u32, Vec<Window>> {
    let mut open: BTreeMap<u32, Vec<Window>> = BTreeMap::new();
    for span in spans {
        let windows = open.entry(span.vcpu).or_default();
        windows.push(span.window.and(within));
    }
    let open = open.into_iter();
    open.map(|(vcpu, windows)| (vcpu, union(windows))).collect()
}

/// The stacks sampled in these spans: while nested ones were open, and in code that ran for others.
fn stacks_inside(subject: &Subject<'_>, time: &Time<'_>, spans: &[Ended]) -> HashMap<NodeId, u64> {
    let nested = open_on(spans.iter().filter(|span| span.is_nested), time.window);
    let numbers: HashSet<(u64, u64)> = spans.iter().map(|span| (span.name, span.number)).collect();
    let mut stacks = HashMap::new();
    for tick in subject.ticks(time) {
        let windows = nested.get(&tick.vcpu).map_or(&[][..], Vec::as_slice);
        let entered = tick.entered.map(|span| (span.name, span.number));
        let is_in = any_contains(windows, tick.at_ns)
            || entered.is_some_and(|entered| numbers.contains(&entered));
        if let Some(stack) = tick.stack.filter(|_| is_in) {
            *stacks.entry(stack).or_default() += 1;
        }
    }
    stacks
}
