//! The cases that run in the guest on a Xen.

use super::guest::XenGuest;
use super::{shares, steal};
use crate::accuracy::row::{HEADING, Row, Verdict};
use crate::accuracy::{
    blocking, broken_chains, known_shares, leaf_callers, masked_events, short_bursts, slow_down,
    step_lock, without_frame_pointers,
};
use anyhow::Result;

type Case = fn(&mut XenGuest) -> Result<Vec<Row>>;

const SECOND: u64 = 1_000_000_000;

/// 200 Hz: the emulator stops for longer than this period only now and then.
const PERIOD_NS: u64 = 5_000_000;

/// Captured samples of each load: some seconds.
const SAMPLES: usize = 5_000;

const CASES: [(u8, Case); 10] = [
    (1, |guest| {
        let effort =
            known_shares::Effort { runs: 100, run_ns: 5 * SECOND / 2, period_ns: PERIOD_NS };
        shares::rows(guest, &effort)
    }),
    (2, |guest| leaf_callers::rows(guest, SAMPLES)),
    (3, |guest| {
        let effort = step_lock::Effort { runs: 6, run_ns: 4 * SECOND, period_ns: PERIOD_NS };
        step_lock::rows(guest, &effort)
    }),
    (4, |guest| {
        let effort = slow_down::Effort { pairs: 10, run_ns: 4 * SECOND, period_ns: PERIOD_NS };
        slow_down::rows(guest, &effort)
    }),
    (5, |guest| {
        let effort = steal::Effort { run_ns: 20 * SECOND, period_ns: PERIOD_NS };
        steal::rows(guest, &effort)
    }),
    (6, |guest| {
        let effort = masked_events::Effort {
            stretches: 300,
            masked_ns: 25_000_000,
            open_ns: 25_000_000,
            period_ns: PERIOD_NS,
        };
        masked_events::rows(guest, &effort, masked_events::CHARGED_PERCENT_ON_XEN)
    }),
    (7, |guest| {
        let effort = blocking::Effort { waits: 300, timer_ns: 15_000_000, network_ns: 25_000_000 };
        blocking::rows(guest, &effort)
    }),
    // Twenty times as long as the case says, as the emulated upcall takes twenty times as long.
    (8, |guest| {
        let effort = short_bursts::Effort {
            bursts: 1_000,
            burst_ns: 6_000_000,
            every_ns: 20_000_000,
            period_ns: 20_000_000,
        };
        short_bursts::rows(guest, &effort)
    }),
    (9, |guest| {
        let what = "assembly without frame pointers between Rust with them";
        let row = without_frame_pointers::row(guest, what, "frameless", SAMPLES)?;
        Ok(vec![row])
    }),
    (10, |guest| {
        let effort = broken_chains::Effort { run_ns: 4 * SECOND, period_ns: PERIOD_NS };
        broken_chains::rows(guest, &effort)
    }),
];

/// Prints the table; answers how many rows missed their goal.
pub fn run(numbers: &[u8]) -> Result<usize> {
    let is_wanted = |case| numbers.is_empty() || numbers.contains(&case);
    let mut missed = 0;
    let mut print = |rows: Vec<Row>| {
        for row in rows {
            println!("{row}");
            missed += usize::from(matches!(row.verdict, Verdict::Missed(_)));
        }
    };
    println!("{HEADING}");
    let mut guest = XenGuest::with_frame_pointers()?;
    steal::pause(&guest)?;
    for (_, run) in CASES.iter().filter(|(case, _)| is_wanted(*case)) {
        print(run(&mut guest)?);
    }
    // The emulated machine of one ends before that of the next begins.
    drop(guest);
    if is_wanted(9) {
        print(without_any_frame_pointers()?);
    }
    Ok(missed)
}

/// Case 9 for a guest that was built without frame pointers.
fn without_any_frame_pointers() -> Result<Vec<Row>> {
    let mut guest = XenGuest::without_frame_pointers()?;
    ["sorts", "small functions"]
        .into_iter()
        .map(|load| {
            let what = format!("a guest without frame pointers: {load}");
            without_frame_pointers::row(&mut guest, &what, load, SAMPLES)
        })
        .collect()
}
