//! What was recorded, and its accounting, in a line each.

use super::units::{amount_with_unit, duration, grouped, percent, share, size};
use super::warnings::Costs;
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{Mode, Profile, Unit};

/// What was recorded.
pub(crate) fn recorded(profile: &Profile) -> String {
    let info = profile.recording();
    let guest = match info.guest_name.as_str() {
        "" => "the guest".to_owned(),
        name => Printable(name).to_string(),
    };
    let count = profile.sample_count();
    let what = match info.unit() {
        Unit::Nanoseconds => format!("{} of blocked time of {guest}", duration(count)),
        unit if info.mode == Mode::Live => {
            format!("{} still held by {guest}", amount_with_unit(count, unit))
        }
        unit if info.mode.is_heap() && unit != Unit::Samples => {
            format!("{} allocated by {guest}", amount_with_unit(count, unit))
        }
        unit => format!("{} of {guest}", amount_with_unit(count, unit)),
    };
    let how = match info.mode {
        Mode::OffCpu => "measured".to_owned(),
        Mode::Alloc | Mode::Live => {
            let every = size(info.interval_bytes);
            format!("{}, one every {every}", super::heap::estimated_from(profile))
        }
        Mode::Wall => format!("at {} of running and blocked time", rate(info.rate_hz())),
        Mode::Cpu | Mode::Other(_) => format!("at {} of running time", rate(info.rate_hz())),
    };
    let mut line = format!("{what} in {}, {how}", duration(info.elapsed_ns));
    if let Some(merged) = &info.merged {
        line += &format!(", from {} files", merged.files);
    }
    if let Some(ring) = &info.ring {
        let seconds = |ns: u64| ns as f64 / 1e9;
        line += &format!(", {:.3} s to {:.3} s", seconds(ring.from_ns), seconds(ring.to_ns));
        if let Some(spans) = ring.spans() {
            line += &format!(", inside spans {spans}");
        }
    }
    if let Some(vcpus) = &info.only_vcpus {
        let vcpus: Vec<String> = vcpus.iter().map(ToString::to_string).collect();
        line += &format!(", vCPU {} only", vcpus.join(", "));
    }
    line
}

fn rate(hz: Option<f64>) -> String {
    match hz {
        Some(hz) if hz >= 99.95 => format!("{hz:.0} Hz"),
        Some(hz) => format!("{hz:.1} Hz"),
        None => "an unknown rate".to_owned(),
    }
}

/// The outcome of every tick or wait, and what the profiler cost.
pub(crate) fn accounting(profile: &Profile) -> String {
    let (info, c) = (profile.recording(), profile.counters());
    let mut parts = outcome(profile);
    let costs = Costs::of(profile);
    parts.extend(costs.map(|costs| format!("overhead {}", percent(costs.sampling))));
    let has_table = info.caller_table.is_some() && info.ring.is_none();
    if has_table && c.by_table < c.sampled() {
        parts.push(format!("callers by table {}", share(c.by_table, c.sampled())));
    }
    parts.join("; ")
}

/// The outcome of every tick or wait, and stolen time.
pub(crate) fn outcome(profile: &Profile) -> Vec<String> {
    let (info, c) = (profile.recording(), profile.counters().told());
    let mut parts = Vec::new();
    let one = if info.mode.is_heap() { "sampled allocations" } else { "ticks" };
    if c.ticks != 0 || info.mode.samples_time() {
        let lost: Vec<String> = c
            .outcomes()
            .into_iter()
            .filter(|(outcome, count)| !matches!(*outcome, "recorded" | "idle") && *count != 0)
            .map(|(outcome, count)| format!("{} {outcome}", grouped(count)))
            .collect();
        let rest = match lost.is_empty() {
            true if info.is_incomplete => "as far as they arrived".to_owned(),
            true => "all accounted for".to_owned(),
            false => lost.join(", "),
        };
        parts.push(format!("{} {one}, {rest}", grouped(c.ticks)));
    }
    if info.mode == Mode::Wall && c.blocked != 0 {
        parts.push(format!("{} samples of waits", grouped(c.blocked)));
    }
    parts.extend(c.missing.map(|missing| format!("{} missing", grouped(missing))));
    if info.mode == Mode::OffCpu {
        let whole = c.blocked_in_all();
        let with_stack = share(c.blocked, whole);
        parts.push(format!("{} waits, {with_stack} of their time with a stack", grouped(c.blocks)));
    }
    let stolen = profile.runstate().stolen_share().filter(|stolen| *stolen > 0.0);
    parts.extend(stolen.map(|stolen| format!("{} stolen", percent(stolen))));
    parts
}
