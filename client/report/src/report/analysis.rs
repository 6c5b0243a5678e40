//! What a recording says of its guest: rules that find what a reader should look at first.
//!
//! `doctor` judges the profile, these rules judge the guest. Each finding has a score, what was
//! found, the evidence, and the next step. A rule that finds nothing is quiet; one that lacks what
//! it needs says what.
//!
//! | rule | what it finds | from (score 25) | severe (score 75) |
//! |---|---|---|---|
//! | `stolen` | time that others had the processor | 10 % of the wanted time: work takes a ninth longer | 50 %: twice as long |
//! | `masked` | time in which interrupts waited | 1 % of the running time: as seldom as what a p99 shows | 5 %: more than samples may be off |
//! | `lockstep` | load that comes at a fixed period | 75 % of the samples in half of the period: three times the load of the other half | 95 % |
//! | `callers` | truncated, broken or guessed callers | as the report's warnings | 20 % of the stacks, or half of the callers |
//! | `burst` | work far above the usual for a short time, a 240th of what is shown and at least a quarter of a second | a fifth of a vCPU, and twice the usual | a whole vCPU |
//! | `slow span` | a span whose p99 is 20 times its p50 | 20 times | 100 times |
//! | `dominating function` | one function with most of the time, or whose waits take much of it | half: all other work together gains less; waits: a quarter | 80 %; waits: half |
//! | `memory` | memory copies, or allocation | a quarter: without them the guest does a third more | half: twice as much |
//! | `rising counter` | a counter of what is held that only rises, or another that rises at a new rate | it rises in each quarter of the time; twice or half the rate | never |
//! | `live table full` | live samples that were dropped since their table was full | 1 % of these and what is held | 10 % |
//! | `frees not reported` | frees that the agent is never told of | 100 samples, and none was freed | always |
//!
//! The last two judge recordings of mode `live`, and all others those of time.
//!
//! Where a figure is an estimate, the threshold is compared with the lower end of its 95 %
//! interval, so that a guest below it seldom triggers a rule. Rules that search through time are
//! tested at a level of one false finding in a thousand recordings ([`CHANCE`]).

mod activity;
mod bursts;
mod counters;
mod dominating;
mod heap;
mod lockstep;
mod memory;
mod spans;
mod stacks;
#[cfg(test)]
mod tests;
mod text;
mod time;

use std::collections::BTreeMap;

use serde::Serialize;

use super::functions::FunctionTable;
use super::labels::Label;
use super::{Report, TimelineView};
use crate::finding::Figure;
use unikprof_profile::profile::{Counters, Mode, Profile, RecordingInfo};
use unikprof_profile::symbols::FunctionKind;
use unikprof_profile::timeline::{Outcome, Tick, Timeline, Window};
use unikprof_profile::units::grouped;

/// How often a rule that searches through time may find something in a recording in which there is
/// nothing.
const CHANCE: f64 = 0.001;

/// The score from which on something is a finding.
const FOUND: f64 = 25.0;
/// The score of a severe one.
const SEVERE: f64 = 75.0;

/// What the rules found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Analysis {
    /// Where most is, of a profile without a finding about a function.
    pub(crate) most: Option<String>,
    /// Those of functions first, and of these the highest score.
    pub(crate) findings: Vec<Finding>,
    /// The rules that found nothing.
    pub(crate) quiet: Vec<&'static str>,
    /// The rules that lack what they need.
    pub(crate) unchecked: Vec<Unchecked>,
}

/// A rule that could not be checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Unchecked {
    pub(crate) rule: &'static str,
    pub(crate) why: &'static str,
}

/// Something that a reader should look at.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Finding {
    /// The rule's name; stable.
    pub(crate) rule: &'static str,
    /// From 25, where the rule begins to speak, by way of 75, which is severe, to 100.
    pub(crate) score: u32,
    /// A clause, without a capital or a full stop.
    pub(crate) finding: String,
    /// What it comes from, a clause each.
    pub(crate) evidence: Vec<String>,
    /// What to do about it.
    pub(crate) next: String,
    /// The numbers, by stable names.
    pub(crate) figures: BTreeMap<&'static str, Figure>,
    /// When it was, relative to the start of the recording; empty if at no particular time.
    pub(crate) windows: Vec<WindowOf>,
    /// The functions it is about.
    pub(crate) functions: Vec<String>,
}

/// A part of the recording's time, in ns since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct WindowOf {
    pub(crate) from_ns: u64,
    pub(crate) to_ns: u64,
}

impl Finding {
    /// Whether it is about what the guest's code does.
    fn is_of_code(&self) -> bool {
        [dominating::RULE, memory::RULE].contains(&self.rule)
    }

    fn new(
        rule: &'static str,
        score: u32,
        finding: impl Into<String>,
        next: impl Into<String>,
    ) -> Finding {
        Finding {
            rule,
            score,
            finding: finding.into(),
            evidence: Vec::new(),
            next: next.into(),
            figures: BTreeMap::new(),
            windows: Vec::new(),
            functions: Vec::new(),
        }
    }

    #[must_use]
    fn because(mut self, evidence: impl Into<String>) -> Finding {
        self.evidence.push(evidence.into());
        self
    }

    #[must_use]
    fn count(mut self, name: &'static str, count: u64) -> Finding {
        self.figures.insert(name, Figure::Count(count));
        self
    }

    #[must_use]
    fn real(mut self, name: &'static str, real: f64) -> Finding {
        self.figures.insert(name, Figure::Real(real));
        self
    }
}

/// The score of a value, of which so much is notable, and so much severe.
fn score(value: f64, notable: f64, severe: f64) -> u32 {
    let score = if value < severe {
        FOUND + (SEVERE - FOUND) * (value - notable) / (severe - notable)
    } else {
        // Towards 100, however large it is.
        100.0 - (100.0 - SEVERE) * severe / value
    };
    score.clamp(FOUND, 100.0).round() as u32
}

/// What a rule finds, or why it cannot tell.
type Found = Result<Vec<Finding>, &'static str>;

type Rule = fn(&Subject<'_>) -> Found;

const RULES: [(&str, Rule); 9] = [
    (time::STOLEN_RULE, time::stolen),
    (time::MASKED_RULE, time::masked),
    (lockstep::RULE, lockstep::rule),
    (stacks::RULE, stacks::rule),
    (bursts::RULE, bursts::rule),
    (spans::RULE, spans::rule),
    (dominating::RULE, dominating::rule),
    (memory::RULE, memory::rule),
    (counters::RULE, counters::rule),
];

impl Analysis {
    pub(super) fn of(report: &Report<'_>) -> Analysis {
        let subject = Subject::of(report);
        let (findings, quiet, unchecked) = (Vec::new(), Vec::new(), Vec::new());
        let mut analysis = Analysis { most: None, findings, quiet, unchecked };
        let is_heap = subject.info().mode.is_heap();
        let of_time = RULES.iter().map(|rule| (rule, is_heap, HEAP));
        let of_heap = heap::RULES.iter().map(|rule| (rule, !is_heap, NO_HEAP));
        for ((name, rule), is_other, why) in of_time.chain(of_heap) {
            let found = if is_other { Err(why) } else { rule(&subject) };
            match found {
                // Of time, nothing is said of rules that are never about it.
                Err(NO_HEAP) => {}
                Ok(found) if found.is_empty() => analysis.quiet.push(name),
                Ok(found) => analysis.findings.extend(found),
                Err(why) => analysis.unchecked.push(Unchecked { rule: name, why }),
            }
        }
        // The answer first. Stable: equal scores stay in the order of the rules.
        let order = |finding: &Finding| (!finding.is_of_code(), std::cmp::Reverse(finding.score));
        analysis.findings.sort_by_key(order);
        if !analysis.findings.iter().any(Finding::is_of_code) {
            analysis.most = text::the_most(report);
        }
        analysis
    }
}

/// Why rules that search through time cannot be checked.
const NO_TIME: &str = "the recording has counts without times; give the agent memory for a ring";
const EMPTY: &str = "the rings hold nothing of the time shown";
const NOT_SAMPLED: &str = "mode off-cpu samples no running time; record with --mode cpu or wall";
const HEAP: &str = "allocations were recorded, and not time; record with --mode cpu or wall";
/// Not told: it holds for most recordings.
const NO_HEAP: &str = "no allocations were recorded";
const GAPS: &str =
    "the recordings have gaps between them; analyze one, or name a time with --from and --to";
const NO_NAMES: &str = "no function has a name; name the image with --image";
const FEW: &str = "there are too few samples; record for longer";

/// What is judged.
struct Subject<'r> {
    report: &'r Report<'r>,
    profile: &'r Profile,
    counters: Counters,
}

/// The part of the time that is judged.
#[derive(Clone, Copy)]
struct Time<'r> {
    view: TimelineView<'r>,
    window: Window,
}

impl<'r> Subject<'r> {
    fn of(report: &'r Report<'r>) -> Subject<'r> {
        let profile = report.symbolized.profile();
        Subject { report, profile, counters: profile.counters() }
    }

    fn info(&self) -> &'r RecordingInfo {
        self.profile.recording()
    }

    fn table(&self) -> &'r FunctionTable {
        self.report.functions()
    }

    /// The text of a label, safe for a terminal.
    fn text(&self, label: u32) -> &'r str {
        &self.report.labels.all()[label as usize].text
    }

    fn time(&self) -> Result<Time<'r>, &'static str> {
        let view = self.report.view.ok_or(NO_TIME)?;
        let mut window = view.timeline.bounded(&view.of, view.window);
        // Before that some vCPU would seem to be idle, and in a gap all of them.
        window.from_ns = window.from_ns.max(view.timeline.held_since());
        match window.length_ns() {
            0 => Err(EMPTY),
            _ if !view.timeline.covers(window) => Err(GAPS),
            _ => Ok(Time { view, window }),
        }
    }

    /// The time, for rules that need samples of running time.
    fn sampled_time(&self) -> Result<Time<'r>, &'static str> {
        self.is_sampled()?;
        self.time()
    }

    fn is_sampled(&self) -> Result<(), &'static str> {
        match self.info().mode {
            Mode::OffCpu => Err(NOT_SAMPLED),
            _ => Ok(()),
        }
    }

    /// Needed by rules that judge functions.
    fn has_names(&self) -> Result<(), &'static str> {
        let mut labels = self.report.labels.all().iter();
        let kind_of = |label: &Label| self.report.symbolized.function(label.function).kind;
        if labels.any(|label| kind_of(label) == FunctionKind::Named) {
            Ok(())
        } else {
            Err(NO_NAMES)
        }
    }

    /// The ticks of running time that have a stack.
    fn ticks(&self, time: &Time<'r>) -> impl Iterator<Item = Tick> + use<'r> {
        let info = self.info();
        let timeline: &'r Timeline = time.view.timeline;
        // The view lives as long as the report.
        let report: &'r Report<'r> = self.report;
        report.view.iter().flat_map(move |view| {
            let ticks = timeline.ticks(&view.of, view.window, info.inside());
            ticks.filter(move |tick| {
                let is_kept = tick.stack.is_none_or(|stack| report.weights.keeps(stack));
                is_kept && matches!(tick.outcome, Outcome::Recorded | Outcome::Late | Outcome::Aged)
            })
        })
    }

    fn vcpus(&self) -> f64 {
        self.profile.vcpus().len().max(1) as f64
    }
}

impl Time<'_> {
    fn of(&self, window: Window) -> WindowOf {
        let began_ns = self.view.of.window.from_ns;
        WindowOf {
            from_ns: window.from_ns.saturating_sub(began_ns),
            to_ns: window.to_ns.saturating_sub(began_ns),
        }
    }

    /// Equal parts of at least `least_ns`, at most `most` of them.
    fn parts(&self, least_ns: u64, most: u64) -> Vec<Window> {
        let step_ns = least_ns.max(self.window.length_ns().div_ceil(most)).max(1);
        let count = self.window.length_ns() / step_ns;
        let part = |at: u64| {
            let from_ns = self.window.from_ns + at * step_ns;
            Window::new(from_ns, from_ns + step_ns)
        };
        (0..count).map(part).collect()
    }
}

impl WindowOf {
    fn seconds(&self) -> String {
        let seconds = |ns: u64| ns as f64 / 1e9;
        format!("{:.2} s to {:.2} s", seconds(self.from_ns), seconds(self.to_ns))
    }

    /// The options that show this time alone, to the millisecond around it.
    fn options(&self) -> String {
        const MS: u64 = 1_000_000;
        let seconds = |ms: u64| format!("{}.{:03}s", ms / 1_000, ms % 1_000);
        let (from, to) = (self.from_ns / MS, self.to_ns.div_ceil(MS));
        format!("--from {} --to {}", seconds(from), seconds(to))
    }
}

/// The first windows in words.
fn listed(windows: &[WindowOf]) -> String {
    const SHOWN: usize = 4;
    let shown: Vec<String> = windows.iter().take(SHOWN).map(WindowOf::seconds).collect();
    let more = windows.len().saturating_sub(SHOWN);
    match more {
        0 => shown.join(", "),
        more => format!("{} and {} more", shown.join(", "), grouped(more as u64)),
    }
}
