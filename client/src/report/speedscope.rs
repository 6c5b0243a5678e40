//! speedscope's own file format: a profile for each vCPU, of stacks with weights.
//!
//! The stacks come in the order of time if the ring holds every sample that was counted. Else they come in the order of
//! their functions' names; the profiles' names say so, because speedscope shows the order as time.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::{Serialize, Serializer};

use super::labels::Label;
use super::moments::moments;
use super::page::Stacks;
use super::script::root_first;
use super::{Report, ReportError, title};
use crate::printable::Printable;
use crate::profile::{NodeId, TooManyStacks, Unit};

const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

pub(super) fn write(report: &Report<'_>, out: &mut impl Write) -> Result<(), ReportError> {
    let file = File {
        schema: SCHEMA,
        exporter: format!("unikprof {}", env!("CARGO_PKG_VERSION")),
        name: title(report),
        shared: Shared {
            frames: frames(report),
        },
        profiles: profiles(report).map_err(io::Error::other)?,
    };
    if file.profiles.is_empty() {
        // speedscope rejects a file without profiles.
        return Err(ReportError::Empty {
            recorded: report.weights.recorded,
        });
    }
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

/// Stacks and what they count, in the mode's unit.
pub(super) type Counted = Vec<(NodeId, u64)>;

fn profiles<'r>(report: &'r Report<'r>) -> Result<Vec<Sampled<'r>>, TooManyStacks> {
    let in_time = in_time(report);
    let order = if in_time.is_some() {
        ""
    } else {
        " (no times: stacks by name)"
    };
    let counted = match in_time {
        Some(counted) => counted,
        None => by_name(report)?,
    };
    let info = report.symbolized.profile().recording();
    // The time that a sample stands for; its number if that is unknown.
    let (unit, each) = match (info.mode.unit(), info.period_ns) {
        (Unit::Nanoseconds, _) => ("nanoseconds", 1),
        (Unit::Samples, 0) => ("none", 1),
        (Unit::Samples, period_ns) => ("nanoseconds", period_ns),
    };
    let profile = |(vcpu, counted): (u32, Counted)| {
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
    Ok(counted.into_iter().map(profile).collect())
}

/// By vCPU, what the ring holds, in the order of time; `None` if that is not all that was counted.
fn in_time(report: &Report<'_>) -> Option<BTreeMap<u32, Counted>> {
    let view = report.view.as_ref()?;
    let mut by_vcpu: BTreeMap<u32, Counted> = BTreeMap::new();
    let mut sum: u64 = 0;
    for moment in moments(report, view).filter(|moment| moment.count != 0) {
        sum = sum.saturating_add(moment.count);
        let stacks = by_vcpu.entry(moment.vcpu).or_default();
        stacks.push((moment.stack, moment.count));
    }
    (sum == report.weights.shown()).then_some(by_vcpu)
}

/// By vCPU, the counted stacks, in the order of their functions' names from the root on.
pub(super) fn by_name(report: &Report<'_>) -> Result<BTreeMap<u32, Counted>, TooManyStacks> {
    let order = Stacks::of(report)?;
    let samples = report.symbolized.profile().samples().iter();
    let mut by_vcpu: BTreeMap<u32, Counted> = BTreeMap::new();
    for sample in samples.filter(|s| s.count != 0 && report.weights.keeps(s.node)) {
        let stacks = by_vcpu.entry(sample.vcpu).or_default();
        // A stack has a count for each span.
        match stacks.last_mut() {
            Some((node, count)) if *node == sample.node => {
                *count = count.saturating_add(sample.count);
            }
            _ => stacks.push((sample.node, sample.count)),
        }
    }
    for stacks in by_vcpu.values_mut() {
        stacks.sort_by_key(|(node, _)| order.node(*node));
    }
    Ok(by_vcpu)
}
