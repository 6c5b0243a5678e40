//! The cost of a stack for the guest: xenctx in dom0 pauses it, unikprof samples inside it.

use anyhow::{Result, bail};
use std::fmt::Write as _;
use std::time::Duration;

use super::rig::{Mean, Rig};
use crate::guest_statistics::GuestStatistics;

/// Stacks by frame pointers, which is what both take.
const XENCTX: &str = "xenctx -f $ID 0";

/// The program that takes stacks.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Load {
    Nobody,
    Xenctx,
    Unikprof { rate_hz: f64 },
}

/// The results of one turn of a load.
struct Turn {
    requests_per_s: f64,
    stacks_per_s: f64,
    /// Time the vCPU did not run, a second.
    not_running: f64,
    cycles_per_tick: f64,
}

/// The table: each load takes its turn in each round, in an order that moves.
pub(super) fn measure(rounds: u32, turn: Duration) -> Result<String> {
    let rig = Rig::start("load=100")?;
    let xenctx_hz = xenctx_rate(&rig)?;
    eprintln!("xenctx takes {xenctx_hz:.1} stacks a second");
    let loads = [
        Load::Nobody,
        Load::Xenctx,
        Load::Unikprof { rate_hz: xenctx_hz },
        Load::Unikprof { rate_hz: 99.0 },
        Load::Unikprof { rate_hz: 997.0 },
    ];
    let mut turns: [Vec<Turn>; 5] = Default::default();
    let mut cycles_per_second = 0;
    for round in 0..rounds as usize {
        for place in 0..loads.len() {
            let index = (round * 2 + place) % loads.len();
            let (taken, rate) = take_turn(&rig, loads[index], turn, xenctx_hz)?;
            turns[index].push(taken);
            cycles_per_second = rate.unwrap_or(cycles_per_second);
        }
        eprintln!("round {} of {rounds}", round + 1);
    }
    Ok(table(&loads, &turns, cycles_per_second as f64))
}

/// The number of stacks that xenctx takes a second, one after the other.
fn xenctx_rate(rig: &Rig) -> Result<f64> {
    let text = rig.dom0(XENCTX)?;
    if !text.contains("rip:") && !text.contains("Call Trace") {
        bail!("xenctx said: {text}");
    }
    let calls = 40;
    let start = rig.statistics()?;
    rig.dom0(&repeated(calls))?;
    let elapsed = rig.statistics()?.since(&start, "now_ns");
    Ok(f64::from(calls) * 1e9 / elapsed as f64)
}

fn repeated(calls: u32) -> String {
    format!("i=0; while [ $i -lt {calls} ]; do {XENCTX} >/dev/null || exit 1; i=$((i+1)); done")
}

/// One turn of one load; with it the rate of the cycle counter, where a recording told it.
fn take_turn(rig: &Rig, load: Load, turn: Duration, xenctx_hz: f64) -> Result<(Turn, Option<u64>)> {
    match load {
        Load::Nobody => {
            let (before, after) = rig.watch(turn)?;
            Ok((Turn::between(&before, &after, 0), None))
        }
        Load::Xenctx => {
            let calls = (turn.as_secs_f64() * xenctx_hz).max(1.0) as u32;
            let before = rig.statistics()?;
            rig.dom0(&repeated(calls))?;
            let after = rig.statistics()?;
            Ok((Turn::between(&before, &after, u64::from(calls)), None))
        }
        Load::Unikprof { rate_hz } => {
            rig.start_recording(rate_hz)?;
            let counted = || -> Result<u64> {
                let status = rig.session()?.check(&mut ())?;
                Ok(status.find(None)?.counters.recorded)
            };
            let samples = counted()?;
            let (before, after) = rig.watch(turn)?;
            let samples = counted()?.saturating_sub(samples);
            let recording = rig.stop_recording()?;
            let cost = recording.profile.vcpus().first();
            let rate = cost.and_then(|vcpu| Some(vcpu.cost.as_ref()?.cycles_per_second));
            Ok((Turn::between(&before, &after, samples), rate))
        }
    }
}

impl Turn {
    fn between(before: &GuestStatistics, after: &GuestStatistics, stacks: u64) -> Turn {
        let since = |name: &str| after.since(before, name) as f64;
        let elapsed_s = since("now_ns") / 1e9;
        Turn {
            requests_per_s: since("vcpu0.requests") / elapsed_s,
            stacks_per_s: stacks as f64 / elapsed_s,
            not_running: 1.0 - since("vcpu0.running_ns") / since("now_ns"),
            cycles_per_tick: since("vcpu0.tick.upcall.cycles")
                / since("vcpu0.tick.upcall.count").max(1.0),
        }
    }
}

fn table(loads: &[Load], turns: &[Vec<Turn>], cycles_per_second: f64) -> String {
    let mean = |index: usize, value: &dyn Fn(&Turn) -> f64| {
        Mean::of(&turns[index].iter().map(value).collect::<Vec<_>>())
    };
    let idle_not_running = mean(0, &|turn| turn.not_running).mean;
    let mut table = String::from(
        "\n### Beside xenctx\n\n\
         | who takes stacks | stacks/s | requests/s | against nobody | lost a stack | stall a \
         stack |\n\
         |---|---|---|---|---|---|\n",
    );
    let mut stalls = Vec::new();
    let mut losses = Vec::new();
    for (index, load) in loads.iter().enumerate() {
        let stacks = mean(index, &|turn| turn.stacks_per_s).mean;
        let requests = mean(index, &|turn| turn.requests_per_s).mean;
        // Round by round: what else the host does changes more slowly than that.
        let against: Vec<f64> = turns[index]
            .iter()
            .zip(&turns[0])
            .map(|(turn, nobody)| (turn.requests_per_s / nobody.requests_per_s - 1.0) * 100.0)
            .collect();
        let against = Mean::of(&against);
        let stall_s = match load {
            Load::Nobody => None,
            // Paused, the vCPU does not run.
            Load::Xenctx => {
                let paused = mean(index, &|turn| turn.not_running).mean - idle_not_running;
                Some(paused / stacks)
            }
            // Inside an upcall it runs, but not its own work.
            Load::Unikprof { .. } => {
                Some(mean(index, &|turn| turn.cycles_per_tick).mean / cycles_per_second)
            }
        };
        stalls.push(stall_s);
        // All of what a stack costs, also what the hypervisor and the emulator make of an
        // interrupt.
        let lost_s = -against.mean / 100.0 / stacks;
        losses.push(lost_s);
        let name = match load {
            Load::Nobody => "nobody".to_owned(),
            Load::Xenctx => "xenctx, as fast as it can".to_owned(),
            Load::Unikprof { rate_hz } => format!("unikprof at {rate_hz:.0} Hz"),
        };
        let stall = stall_s.map_or_else(String::new, |s| format!("{:.3} ms", s * 1e3));
        let lost = stall_s.map_or_else(String::new, |_| format!("{:.2} ms", lost_s * 1e3));
        let against = match load {
            Load::Nobody => String::new(),
            _ => format!("{:+.1} % ± {:.1}", against.mean, against.half),
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            table,
            "| {name} | {stacks:.1} | {requests:.0} | {against} | {lost} | {stall} |"
        );
    }
    if let (Some(Some(xenctx)), Some(Some(same)), Some(Some(fast))) =
        (stalls.get(1), stalls.get(2), stalls.get(4))
    {
        let _ = writeln!(
            table,
            "\nxenctx ÷ unikprof: stall a stack {:.0} at the same rate, {:.0} at 997 Hz; lost a \
             stack {:.0} at 997 Hz.",
            xenctx / same,
            xenctx / fast,
            losses[1] / losses[4]
        );
    }
    table
}
