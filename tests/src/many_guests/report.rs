//! What is printed at the end: the truth about the ticks, and what the program itself took.

use std::fs;

use serde_json::{Value, json};

use super::Arguments;

/// Clock ticks in a second, as Linux tells times in `/proc` on every architecture of this project.
const PROC_HZ: f64 = 100.0;

pub(super) fn report(arguments: &Arguments, mut guests: Vec<Value>) -> Value {
    guests.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
    let lives = guests.iter().filter_map(|guest| guest["lives"].as_array());
    let ticks = lives.flatten().filter_map(|life| life["ticks"].as_u64());
    json!({
        "ticks": ticks.sum::<u64>(),
        "stacks": arguments.stacks,
        "round_trip_ms": arguments.round_trip,
        "cpu_seconds": cpu_seconds(),
        "peak_resident_kib": peak_resident_kib(),
        "guests": guests,
    })
}

/// The time of a CPU that this process has taken.
fn cpu_seconds() -> Option<f64> {
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program before may contain anything.
    let (_, fields) = text.rsplit_once(") ")?;
    let times = fields.split(' ').skip(11).take(2);
    let times: Result<Vec<u64>, _> = times.map(str::parse).collect();
    Some(times.ok()?.iter().sum::<u64>() as f64 / PROC_HZ)
}

fn peak_resident_kib() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}
