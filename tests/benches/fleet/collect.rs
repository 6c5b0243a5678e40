//! `collect`: the time it takes to start with very many guests, how often each is asked, and what
//! that costs.

use std::collections::HashMap;
use std::error::Error;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Done;
use super::processes::Guests;

const GUESTS: usize = 1000;
const LASTS: Duration = Duration::from_secs(150);
const FOLDER: &str =
    "[collect]\nspool-bytes = 4_000_000_000\n[[push]]\nkind = \"folder\"\npath = \"recordings\"\n";

pub(super) fn measure() -> Done {
    let guests = Guests::start(GUESTS)?;
    let start = Instant::now();
    let (collector, _) = guests.run("collect", FOLDER)?;
    let mut ends: HashMap<String, u64> = HashMap::new();
    let mut between = Vec::new();
    // When each guest had its first epoch in the spool, and what was spent until then.
    let mut started = None;
    let spent =
        || (start.elapsed().as_secs_f64(), collector.cpu_seconds(), collector.written_bytes());
    while start.elapsed() < LASTS {
        thread::sleep(Duration::from_secs(4));
        for (name, end) in last_epochs(&guests)? {
            match ends.insert(name, end) {
                Some(before) if before != end => between.push((end - before) as f64 / 1e9),
                _ => {}
            }
        }
        if started.is_none() && ends.len() == GUESTS {
            started = Some(spent());
        }
    }
    let (first, cpu, written) = started.ok_or("not every guest had an epoch")?;
    let now = spent();
    let seconds = now.0 - first;
    let cores = (now.1 - cpu) / seconds;
    let each = seconds * GUESTS as f64 * 1000.0;
    between.sort_by(f64::total_cmp);
    let quantile = |share: f64| between[((between.len() - 1) as f64 * share) as usize];
    println!(
        "collect: {GUESTS} guests at 97 Hz, 50 ms away, into a folder\n  \
         every guest has an epoch in the spool after: {first:.0} s\n  \
         from an epoch's end to the next one's: median {:.1} s, p99 {:.1} s, most {:.1} s ({} of \
         them)\n  \
         CPU: {cores:.2} cores, {:.2} ms for a guest and second\n  \
         to the disk: {:.1} KB/s for a guest\n  \
         memory: {:.2} MiB for a guest at most",
        quantile(0.5),
        quantile(0.99),
        quantile(1.0),
        between.len(),
        1000.0 * cores / GUESTS as f64,
        (now.2 - written) as f64 / each,
        collector.peak_resident_kib() as f64 / 1024.0 / GUESTS as f64,
    );
    Ok(())
}

/// The end of the last epoch of each guest that has one in the spool, by the audit.
fn last_epochs(guests: &Guests) -> Result<Vec<(String, u64)>, Box<dyn Error + Send + Sync>> {
    let audit = audit(guests)?;
    let guests = audit["guests"].as_array().ok_or("no guests")?;
    let last = |guest: &Value| {
        let end = guest["last_unix_ns"].as_u64().filter(|end| *end > 0)?;
        Some((guest["name"].as_str()?.to_owned(), end))
    };
    Ok(guests.iter().filter_map(last).collect())
}

/// The answer of `collect --audit --json`.
pub(super) fn audit(guests: &Guests) -> Result<Value, Box<dyn Error + Send + Sync>> {
    let output = Command::new(env!("CARGO_BIN_EXE_hosted-fleet"))
        .args(["collect", "--config", "fleet.toml", "--audit", "--json"])
        .current_dir(guests.folder.path())
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
