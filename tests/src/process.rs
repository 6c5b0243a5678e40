//! The resources that a process takes of its machine, as Linux tells them.

use std::fs;

/// Clock ticks in a second, as Linux tells times in `/proc` on every architecture of this project.
const PROC_HZ: f64 = 100.0;

/// The time of CPUs that a process (an id, or `self`) has taken, in seconds.
pub fn cpu_seconds(process: &str) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program before may contain anything.
    let (_, fields) = text.rsplit_once(") ")?;
    let times = fields.split(' ').skip(11).take(2);
    let times: Result<Vec<u64>, _> = times.map(str::parse).collect();
    Some(times.ok()?.iter().sum::<u64>() as f64 / PROC_HZ)
}

/// The most memory that it ever had, in KiB.
pub fn peak_resident_kib(process: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The bytes that it has written to disks.
pub fn written_bytes(process: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/io")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "))?;
    line.parse().ok()
}
