//! Case 5: two guests on one processor.
//!
//! The shares of functions are to be as without the neighbour, and the stolen time as dom0 sees it:
//! what is left of the wall's time when the guest's CPU time is taken off, for a guest that never
//! blocks.

use anyhow::{Context as _, Result};
use std::path::Path;

use unikprof_accuracy_loads::shares::FUNCTIONS;
use unikprof_profile::profile::Interval;

use super::guest::{GUEST, XenGuest};
use super::shares::among_themselves;
use crate::accuracy::guest::settings;
use crate::accuracy::row::{Row, Verdict, percent};
use crate::lab::GuestConfig;

/// The guest that takes time.
const NEIGHBOUR: &str = "neighbour";

/// `xl` tells tenths of seconds, and looks some hundredths before and after the recording.
pub(crate) const STEAL_BOUND: f64 = 0.03;

/// The neighbour, which never blocks, on the same processor.
pub(crate) fn neighbour(image: &Path) -> GuestConfig {
    let mut guest = GuestConfig::new(NEIGHBOUR, image);
    guest.command_line = "hotspots=100".into();
    guest.processor = Some(1);
    guest
}

/// The parameters of the case.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    pub run_ns: u64,
    pub period_ns: u64,
}

/// The result of the case.
#[derive(Debug, Clone, PartialEq)]
pub struct Beside {
    /// Each function's share without the neighbour, and beside it.
    pub(crate) shares: Vec<(&'static str, Interval, Interval)>,
    /// The part of the time that was stolen, as the recording says.
    pub stolen: f64,
    /// The same, as dom0 says.
    pub stolen_by_dom0: f64,
}

impl Beside {
    /// The number of functions whose intervals do not overlap.
    pub fn apart(&self) -> usize {
        let apart = |(_, alone, beside): &&(_, Interval, Interval)| !alone.overlaps(beside);
        self.shares.iter().filter(apart).count()
    }
}

/// Pauses the neighbour: it is to run only while [`measure`] lets it.
pub fn pause(guest: &XenGuest) -> Result<()> {
    // Pauses are counted: as many unpauses would be due.
    guest.dom0(&format!("xl pause {NEIGHBOUR}")).map(drop)
}

/// Records without the neighbour, which must be [paused](pause), then beside it.
pub fn measure(guest: &mut XenGuest, effort: &Effort) -> Result<Beside> {
    let settings = settings(effort.period_ns);
    let order = format!("shares ns={}", effort.run_ns);
    let (alone, _) = guest.record_whole(&settings, &order)?;
    guest.dom0(&format!("xl unpause {NEIGHBOUR}"))?;
    let before = seen_by_dom0(guest)?;
    let (beside, recording) = guest.record_whole(&settings, &order)?;
    let after = seen_by_dom0(guest)?;
    pause(guest)?;

    let vcpu = recording.profile.vcpus().first();
    let stolen = vcpu.and_then(|vcpu| {
        let stolen_ns = vcpu.runstate.runnable_ns? as f64;
        Some(stolen_ns / vcpu.elapsed_ns as f64)
    });
    let pairs = among_themselves(&alone).into_iter().zip(among_themselves(&beside));
    Ok(Beside {
        shares: FUNCTIONS
            .iter()
            .zip(pairs)
            .map(|((name, _), (alone, beside))| (*name, alone, beside))
            .collect(),
        stolen: stolen.context("expected a recording with the vCPU's stolen time")?,
        stolen_by_dom0: 1.0 - (after.cpu_s - before.cpu_s) / (after.at_s - before.at_s),
    })
}

/// The case's rows: the shares, and the stolen time.
pub(crate) fn rows(guest: &mut XenGuest, effort: &Effort) -> Result<Vec<Row>> {
    let found = measure(guest, effort)?;
    let load = format!(
        "{:.0} s beside a guest that never blocks, on one processor",
        effort.run_ns as f64 / 1e9
    );
    let apart = found.apart();
    let furthest = found.shares.iter().max_by(|(_, a, b), (_, c, d)| {
        let off = |a: &Interval, b: &Interval| (a.share - b.share).abs();
        off(a, b).total_cmp(&off(c, d))
    });
    let (name, alone, beside) = furthest
        .map_or_else(|| ("", Interval::wilson(0, 0), Interval::wilson(0, 0)), |furthest| *furthest);
    let row = |load, truth, said, interval: String, verdict| Row {
        case: 5,
        load,
        truth,
        said,
        interval,
        verdict,
        ..Row::default()
    };
    Ok(vec![
        row(
            format!("shares of {} functions, {load}", found.shares.len()),
            format!("without it: furthest off is `{name}` at {}", percent(alone.share)),
            percent(beside.share),
            "all intervals overlap".into(),
            Verdict::of(apart == 0, || format!("{apart} do not overlap")),
        ),
        row(
            format!("stolen time, {load}"),
            format!("{}: the wall's less `xl vcpu-list`", percent(found.stolen_by_dom0)),
            percent(found.stolen),
            format!("within {}", percent(STEAL_BOUND)),
            Verdict::of((found.stolen - found.stolen_by_dom0).abs() <= STEAL_BOUND, || {
                percent(found.stolen - found.stolen_by_dom0)
            }),
        ),
    ])
}

/// The guest's CPU time and dom0's clock, both as dom0 shows them and in seconds.
#[derive(Debug, Clone, Copy)]
struct SeenByDom0 {
    cpu_s: f64,
    at_s: f64,
}

fn seen_by_dom0(guest: &XenGuest) -> Result<SeenByDom0> {
    let text = guest.dom0(&format!("xl vcpu-list {GUEST}; cat /proc/uptime"))?;
    parse(&text).with_context(|| format!("expected `xl vcpu-list` and the uptime: {text:?}"))
}

/// `Name ID VCPU CPU State Time(s) Affinity…`, then the uptime.
fn parse(text: &str) -> Option<SeenByDom0> {
    let line = text.lines().find(|line| line.starts_with(GUEST))?;
    let cpu_s = line.split_whitespace().nth(5)?.parse().ok()?;
    let uptime = text.lines().rfind(|line| !line.trim().is_empty())?;
    let at_s = uptime.split_whitespace().next()?.parse().ok()?;
    Some(SeenByDom0 { cpu_s, at_s })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_xl_prints_is_read() {
        let text = "Name ID VCPU CPU State Time(s) Affinity (Hard / Soft)\n\
                    accuracy 1 0 1 r-- 12.5 1 / all\n30.25 11.0\n";
        let seen = parse(text).unwrap();
        assert!((seen.cpu_s - 12.5).abs() < 1e-9 && (seen.at_s - 30.25).abs() < 1e-9);
        assert!(parse("accuracy 1 0\n30.25 11.0\n").is_none());
    }
}
