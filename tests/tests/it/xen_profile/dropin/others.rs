//! Kernels in C that sleep, are stuck, wait in other ways or crash, and a guest in Rust that is
//! stuck.

use std::time::Duration;

use serde_json::Value;
use unikprof_tests::lab::{Lab, LabConfig};
use unikprof_tests::profiled::with_keys;

use super::{
    BOOT, assert_keys_are_required, assert_mostly_blocked, assert_waits_are_told, client, guest,
    image, keys, record, rust_image,
};
use crate::xen_profile::c_kernel::with_keys::assert_dump_tells;
use crate::xen_profile::harness::{Boot, Client, counters_add_up, on};

const ASLEEP: &str = "c-dropin-asleep";
/// Its upcall stays pending: it looks for events in its threads.
const LAZY: &str = "c-dropin-lazy";
/// The same at work, with waits.
const LAZY_WAITS: &str = "c-dropin-lazy-waits";
/// It waits by a hypercall.
const BLOCKS: &str = "c-dropin-blocks";
const BLOCKS_ASLEEP: &str = "c-dropin-blocks-asleep";
/// It ends by a page fault, after twenty seconds.
const CRASHING: &str = "c-dropin-crashing";
/// A guest in Rust; it requires keys.
const RUST_STUCK: &str = "rust-dropin-stuck";
const OTHERS: Boot = Boot {
    name: "guests with the drop-in and other work",
    config: || {
        let guests = [
            (ASLEEP, "work=sleep"),
            (LAZY, "work=stuck events=lazy"),
            (LAZY_WAITS, "events=lazy"),
            (BLOCKS, "wait=block"),
            (BLOCKS_ASLEEP, "work=sleep wait=block"),
            (CRASHING, "fault=page"),
        ];
        let guests = guests.iter().zip(50..).map(|((name, words), host)| {
            let settings = [("access", "open"), ("record", "flight")];
            let settings = &settings[..1 + usize::from(*name == CRASHING)];
            let mut guest = guest(name, &format!("10.0.2.{host}"), settings);
            guest.command_line = (*words).into();
            guest
        });
        // The lab forwards to this address for the seventh guest.
        let stuck = guest(RUST_STUCK, "10.0.2.56", &[]);
        let mut stuck = with_keys(stuck, &keys());
        stuck.kernel = rust_image().into();
        stuck.command_line = "stuck=loop ip=10.0.2.96/24".into();
        Ok(LabConfig { guests: guests.chain([stuck]).collect(), ..LabConfig::default() })
    },
};

/// With upcalls left pending meanwhile, and by a hypercall.
#[test]
#[ignore = "full: boots a real Xen"]
fn other_kinds_of_waits_are_blocked_time() {
    on(&OTHERS, |lab| {
        assert_waits_are_told(lab, LAZY_WAITS);
        assert_waits_are_told(lab, BLOCKS);
    });
}

/// The guest's own count of wake-ups in the quietest of some naps of ten seconds: a busy machine
/// shows the end of a nap late, so that the next one may have had a client.
fn wakes_in_a_nap(lab: &Lab, name: &str) -> u64 {
    const NAPS: usize = 3;
    const ENOUGH: u64 = 20;
    let mut least = u64::MAX;
    for _ in 0..NAPS {
        least = least.min(wakes_in_the_next_nap(lab, name));
        if least < ENOUGH {
            break;
        }
    }
    least
}

/// The same of the next nap; the first that is not over is not the one.
fn wakes_in_the_next_nap(lab: &Lab, name: &str) -> u64 {
    const SOON: Duration = Duration::from_millis(200);
    let line =
        |nap: u64, within| lab.wait_for_console(name, &format!("c-xen: nap 0x{nap:016x},"), within);
    let under_way = (1..).find(|nap| line(*nap, SOON).is_err()).unwrap();
    let line = line(under_way + 1, BOOT).unwrap();
    let (_, wakes) = line.rsplit_once("0x").unwrap();
    u64::from_str_radix(wakes.trim(), 16).unwrap()
}

/// By the guest's own count: neither ticks nor clients wake it, and the network's broadcasts are
/// few.
#[test]
#[ignore = "full: boots a real Xen"]
fn a_guest_that_sleeps_is_not_woken() {
    on(&OTHERS, |lab| {
        for name in [ASLEEP, BLOCKS_ASLEEP] {
            assert_not_woken(lab, name);
        }
    });
}

fn assert_not_woken(lab: &Lab, name: &str) {
    let client = client(lab, name);
    let before = wakes_in_a_nap(lab, name);
    client.must(&["start", "-F", "1997", "--mode", "wall"]);
    let recorded = wakes_in_a_nap(lab, name);
    for wakes in [before, recorded] {
        assert!((1..20).contains(&wakes), "{before}, recorded {recorded}");
    }
    // The guest's own events.
    let told = client.must(&["events", "--json"]).stdout;
    assert!(told.contains("\"nap\""), "{told}");
    client.stop("run.unikprof");
    let report = client.report("run.unikprof", &["--json"]).expect_json();
    assert_mostly_blocked(&report, 0);
}

/// One in C with an upcall pending, and one in Rust by a client with a key.
#[test]
#[ignore = "full: boots a real Xen"]
fn a_guest_that_is_stuck_is_reached_and_recorded() {
    on(&OTHERS, |lab| {
        for name in [LAZY, RUST_STUCK] {
            lab.wait_for_console(name, "stuck in a loop", BOOT).unwrap();
        }
        assert_stuck(&client(lab, LAZY), "stuck;spin");
        let [_, client] = assert_keys_are_required(lab, RUST_STUCK);
        assert_stuck(&client, "stuck_in_a_loop");
    });
}

/// A recording shows the loop, by its frames, and little beside it.
fn assert_stuck(client: &Client, frames: &str) {
    let report = record(client, "cpu", |counters| counters["recorded"].as_u64() >= Some(500));
    counters_add_up(&report);
    let stacks = client.folded(&["--no-inlines"]);
    // The profiler's network work has a tenth of a CPU, of which the guest may have less: of the
    // guest's own time it is more.
    let (agent, stacks): (Vec<_>, Vec<_>) =
        stacks.into_iter().partition(|(stack, _)| stack.starts_with("[unikprof agent]"));
    let agent: u64 = agent.iter().map(|(_, count)| count).sum();
    let ns = |value: &Value| value.as_u64().unwrap();
    let agent_ns = agent * ns(&report["recording"]["period_ns"]);
    let elapsed_ns = ns(&report["vcpus"][0]["elapsed_ns"]);
    assert!(agent_ns < elapsed_ns / 5 + 200_000_000, "{agent_ns} of {elapsed_ns}");
    let all: u64 = stacks.iter().map(|(_, count)| count).sum();
    let stuck = stacks.iter().filter(|(stack, _)| stack.contains(frames));
    let stuck: u64 = stuck.map(|(_, count)| count).sum();
    assert!(stuck > 100 && stuck * 10 >= all * 9, "{frames}: {stuck} of {all}: {stacks:#?}");
}

/// By its own `panic`, which knows nothing of the profiler.
#[test]
#[ignore = "full: boots a real Xen"]
fn a_guest_that_ends_by_its_own_panic_leaves_its_recording() {
    let workers = ["miller", "baker"];
    on(&OTHERS, |lab| {
        assert_dump_tells(lab, CRASHING, image(), &workers);
    });
}
