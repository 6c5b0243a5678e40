//! speedscope's own file format: a profile for each vCPU, of stacks with weights.
//!
//! What was counted and the ring holds comes in the order of time. The rest is a profile of its own
//! for each vCPU, in the order of the functions' names; the profile's name says so, because
//! speedscope shows the order as time.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::{Serialize, Serializer};

use super::labels::Label;
use super::moments::{Counted, Moments, UNTIMED};
use super::script::root_first;
use super::{Report, ReportError, title};
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{NodeId, Unit};

const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

pub(super) fn write(report: &Report<'_>, out: &mut impl Write) -> Result<(), ReportError> {
    let file = File {
        schema: SCHEMA,
        exporter: format!("unikprof {}", env!("CARGO_PKG_VERSION")),
        name: title(report),
        shared: Shared { frames: frames(report) },
        profiles: profiles(report),
    };
    serde_json::to_writer(out, &file).map_err(io::Error::from)?;
    Ok(())
}

#[derive(Serialize)]
struct File<'r> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: String,
    name: String,
    shared: Shared<'r>,
    profiles: Vec<Sampled<'r>>,
}

#[derive(Serialize)]
struct Shared<'r> {
    frames: Vec<SharedFrame<'r>>,
}

/// A function, or a line of one.
#[derive(Serialize)]
struct SharedFrame<'r> {
    name: &'r str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

fn frames<'r>(report: &'r Report<'_>) -> Vec<SharedFrame<'r>> {
    let lines = report.label_lines();
    let file = |file| Printable(report.symbolized.file(file)).to_string();
    let frame = |(label, line): (&'r Label, Option<_>)| SharedFrame {
        name: &label.text,
        file: line.map(|(path, _)| file(path)),
        line: line.map(|(_, line)| line),
    };
    report.labels.all().iter().zip(lines).map(frame).collect()
}

/// One vCPU.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Sampled<'r> {
    r#type: &'static str,
    name: String,
    unit: &'static str,
    start_value: u64,
    /// The sum of the weights.
    end_value: u64,
    samples: Paths<'r>,
    weights: Vec<u64>,
}

/// Stacks, each as the labels from the root to the leaf.
struct Paths<'r> {
    report: &'r Report<'r>,
    stacks: Vec<NodeId>,
}

impl Serialize for Paths<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let stacks = self.stacks.iter();
        serializer.collect_seq(stacks.map(|stack| root_first(self.report, *stack)))
    }
}

fn profiles<'r>(report: &'r Report<'r>) -> Vec<Sampled<'r>> {
    let moments = Moments::of(report);
    // By vCPU, what has times first.
    let mut counted: BTreeMap<(u32, bool), Counted> = BTreeMap::new();
    for moment in moments.timed.iter().filter(|moment| moment.count != 0) {
        let stacks = counted.entry((moment.vcpu, false)).or_default();
        stacks.push((moment.stack, moment.count));
    }
    for (vcpu, stacks) in moments.untimed {
        counted.insert((vcpu, true), stacks);
    }
    let info = report.symbolized.profile().recording();
    // The time that a sample stands for; its number if that is unknown.
    let (unit, each) = match (info.unit(), info.period_ns) {
        (Unit::Nanoseconds, _) => ("nanoseconds", 1),
        (Unit::Bytes, _) => ("bytes", 1),
        (Unit::Objects, _) | (Unit::Samples, 0) => ("none", 1),
        (Unit::Samples, period_ns) => ("nanoseconds", period_ns),
    };
    let profile = |((vcpu, is_untimed), counted): ((u32, bool), Counted)| {
        let order = if is_untimed { UNTIMED } else { "" };
        let weights = counted.iter().map(|(_, count)| count.saturating_mul(each));
        let weights: Vec<u64> = weights.collect();
        Sampled {
            r#type: "sampled",
            name: format!("vCPU {vcpu}{order}"),
            unit,
            start_value: 0,
            end_value: weights.iter().fold(0, |sum, w| sum.saturating_add(*w)),
            samples: Paths {
                report,
                stacks: counted.into_iter().map(|(stack, _)| stack).collect(),
            },
            weights,
        }
    };
    counted.into_iter().map(profile).collect()
}
