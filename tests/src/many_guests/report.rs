//! The report at the end: the truth about the ticks, and what the program itself took.

use serde_json::{Value, json};

use super::Arguments;
use crate::process::{cpu_seconds, peak_resident_kib};

pub(super) fn report(arguments: &Arguments, mut guests: Vec<Value>) -> Value {
    guests.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
    let lives = guests.iter().filter_map(|guest| guest["lives"].as_array());
    let ticks = lives.flatten().filter_map(|life| life["ticks"].as_u64());
    json!({
        "ticks": ticks.sum::<u64>(),
        "stacks": arguments.stacks,
        "round_trip_ms": arguments.round_trip,
        "cpu_seconds": cpu_seconds("self"),
        "peak_resident_kib": peak_resident_kib("self"),
        "guests": guests,
    })
}
