//! Case 12: the cost that a recording states, beside the slow-down of the guest.
//!
//! The guest counts its own steps by the thread's CPU clock, in short stretches with and without a
//! recording that alternate. The slow-down is the median over the pairs, so that a stretch that
//! another program disturbs has no weight.

use anyhow::{Context as _, Result};
use unikprof_accuracy_loads::orders::STEPS;

use super::guest::{Guest as _, settings};
use super::hosted::HostedGuest;
use super::row::{Row, Verdict, percent};
use super::truth::Truth;

/// The factor by which the stated cost may be off.
const FACTOR: f64 = 2.0;

/// The parameters of the case.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Stretches with and without a recording, each.
    pub pairs: u32,
    /// The length of a stretch in ns.
    pub run_ns: u64,
    pub rate_hz: u64,
}

/// The result of the case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Overhead {
    /// The additional time of a step with a recording, as a part of that without.
    pub slow_down: f64,
    /// The same by the recordings' account.
    pub stated: f64,
    /// The part of the account that is measured: sampling without delivery and arming.
    pub sampling: f64,
}

impl Overhead {
    /// Whether the account is right within a factor of two.
    pub fn is_true(&self) -> bool {
        let ratio = self.stated / self.slow_down;
        (1.0 / FACTOR..=FACTOR).contains(&ratio)
    }
}

pub fn measure(guest: &mut HostedGuest, effort: &Effort) -> Result<Overhead> {
    let order = format!("steps ns={}", effort.run_ns);
    let settings = settings(1_000_000_000 / effort.rate_hz);
    let (mut slow_downs, mut stated, mut sampling) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..effort.pairs {
        let alone = guest.tell(&order)?;
        let recorded = guest.record(&settings, &order)?;
        let step_ns = |truth: &Truth| truth.total_ns() as f64 / truth.get(STEPS) as f64;
        slow_downs.push(step_ns(&recorded.truth) / step_ns(&alone) - 1.0);
        let (cost, running_ns) = recorded.cost.context("expected a recording with its cost")?;
        let added = |ns: u64| ns as f64 / running_ns.saturating_sub(ns) as f64;
        stated.push(added(cost.total_ns()));
        sampling.push(added(cost.sampling_ns));
    }
    let [slow_down, stated, sampling] = [slow_downs, stated, sampling].map(median);
    Ok(Overhead { slow_down, stated, sampling })
}

pub(crate) fn row(guest: &mut HostedGuest, effort: &Effort) -> Result<Row> {
    let found = measure(guest, effort)?;
    Ok(Row {
        case: 12,
        load: format!("a loop of steps, sampled at {} Hz", effort.rate_hz),
        truth: format!("{} slower, by thread CPU clock", percent(found.slow_down)),
        said: format!("{}, of which sampling {}", percent(found.stated), percent(found.sampling)),
        interval: format!("within a factor of {FACTOR}"),
        verdict: Verdict::of(found.is_true(), || {
            format!("a factor of {:.2}", found.stated / found.slow_down)
        }),
        ..Row::default()
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
