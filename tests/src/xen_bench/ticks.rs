//! Cycles of a tick, from the upcall's entry to its return, beside a handler that does nothing.

use anyhow::{Context as _, Result, bail};
use std::fmt::Write as _;
use std::time::Duration;

use super::rig::Rig;
use crate::guest_statistics::GuestStatistics;

const RATE_HZ: u32 = 997;

/// The mean cycles of a tick's parts.
struct Parts {
    ticks: u64,
    upcall: f64,
    sampler: f64,
    calls: f64,
}

impl Parts {
    fn between(before: &GuestStatistics, after: &GuestStatistics) -> Result<Parts> {
        Ok(Parts {
            ticks: after.since(before, "vcpu0.tick.upcall.count"),
            upcall: mean(before, after, "upcall")?,
            sampler: mean(before, after, "sampler")?,
            calls: mean(before, after, "calls")?,
        })
    }

    /// The cycles that are neither the sampler's nor a hypercall's: the entry, the demultiplexing,
    /// the guest's own.
    fn rest(&self) -> f64 {
        self.upcall - self.sampler - self.calls
    }
}

/// The mean cycles of one part.
fn mean(before: &GuestStatistics, after: &GuestStatistics, part: &str) -> Result<f64> {
    let since = |figure: &str| after.since(before, &format!("vcpu0.tick.{part}.{figure}"));
    match since("count") {
        0 => bail!("the guest timed no {part}"),
        count => Ok(since("cycles") as f64 / count as f64),
    }
}

pub(super) fn measure(turn: Duration) -> Result<String> {
    // The lab of one ends before that of the other begins: two would share the processors.
    let bare = {
        let rig = Rig::start_without_profiler(&format!("load=100 bare={RATE_HZ}"))?;
        let (before, after) = rig.watch(turn * 2)?;
        Parts::between(&before, &after)?
    };
    let rig = Rig::start("load=100")?;
    rig.start_recording(f64::from(RATE_HZ))?;
    let (before, after) = rig.watch(turn * 2)?;
    let sampled = Parts::between(&before, &after)?;
    let recording = rig.stop_recording()?;
    let cost = recording
        .profile
        .vcpus()
        .first()
        .and_then(|vcpu| vcpu.cost)
        .context("the recording tells no cost")?;

    let mut table = format!(
        "\n### A tick\n\nMean cycles of the emulated counter ({:.2} GHz), ticks at {RATE_HZ} Hz \
         during the demo load.\n\n\
         | part | bare handler | unikprof | difference |\n|---|---|---|---|\n",
        cost.cycles_per_second as f64 / 1e9
    );
    let rows: [(&str, f64, f64); 4] = [
        ("entry, demultiplexing, book-keeping", bare.rest(), sampled.rest()),
        ("handler: clock, walk, count, next target", bare.sampler, sampled.sampler),
        ("hypercall that arms the timer again", bare.calls, sampled.calls),
        ("**upcall, entry to return**", bare.upcall, sampled.upcall),
    ];
    for (part, bare, sampled) in rows {
        // Writing to a string does not fail.
        let _ = writeln!(table, "| {part} | {bare:.0} | {sampled:.0} | {:+.0} |", sampled - bare);
    }
    let _ = writeln!(
        table,
        "\n{} and {} ticks. By the agent's own account p50 {}, p99 {} cycles a sample.",
        bare.ticks, sampled.ticks, cost.cycles_p50, cost.cycles_p99
    );
    Ok(table)
}
