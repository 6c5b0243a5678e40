//! A guest that never polls again: when its owner needs the profile.

use object::{Object as _, ObjectSymbol as _};
use serde_json::Value;
use unikprof_tests::lab::LabConfig;
use unikprof_tests::profiled::profiled_guest;

use crate::xen_profile::harness::{Boot, Client, Guest, SOON, counters_add_up, on};

const STUCK: Boot = Boot {
    name: "stuck",
    config: || Ok(LabConfig::with_guest(profiled_guest("stuck", "stuck=loop")?)),
};

#[test]
#[ignore = "full: boots a real Xen"]
fn a_guest_stuck_in_a_loop_is_reached_and_recorded() {
    on(&STUCK, |lab| {
        lab.wait_for_console("stuck", "stuck in a loop", SOON).unwrap();
        let guest = Guest::of(lab, "stuck");
        assert_recorded(&guest, &guest.client());
    });
}

/// Asserts that a guest with `stuck=loop` on its command line is recorded from its upcall.
pub(crate) fn assert_recorded(guest: &Guest<'_>, client: &Client) {
    let before = guest.statistics();
    client.must(&["start"]);
    client.wait_for_status("samples in time", |status| {
        let count = |name: &str| status["counters"][name].as_u64().unwrap();
        count("recorded") >= count("late") + 200
    });
    client.stop("run.unikprof");
    let after = guest.statistics();
    assert_eq!(after.since(&before, "vcpu0.blocks"), 0, "its loop never sleeps");
    assert!(after.since(&before, "rescues") > 0, "the upcall has served");
    let report = client.report("run.unikprof", &["--json"]).expect_json();
    counters_add_up(&report);
    // Of what came in time: a sample that the emulator held up has a leaf of its own, which may be
    // the most frequent.
    let mut functions = report["functions"].as_array().unwrap().iter();
    let first = functions.find(|f| f["kind"] != "special").unwrap();
    let name = first["name"].as_str().unwrap();
    assert!(name.ends_with("stuck_in_a_loop"), "{first:#}");
    let count = |name: &str| report["counters"][name].as_u64().unwrap();
    let in_time = count("recorded") - count("late");
    let in_loop = first["self"].as_u64().unwrap();
    assert!(in_loop * 2 > in_time, "{in_time} in time: {first:#}");
    // In time as in samples: next to nothing but the loop and the agent's own work.
    let own = report["functions"].as_array().unwrap().iter();
    let own: u64 = own
        .filter(|f| f["name"] != *name && f["name"] != "[unikprof agent]")
        .map(|f| f["self"].as_u64().unwrap())
        .sum();
    let elsewhere = own.saturating_sub(count("late"));
    assert!(elsewhere * 5 <= in_time, "{elsewhere} of {in_time} elsewhere: {report:#}");
}

/// A snapshot of a guest that does not poll shows the function that `xenctx` shows from dom0.
/// Prints for how long the vCPU did not run in either, for docs/evidence/benchmarks.md.
#[test]
#[ignore = "full: boots a real Xen"]
fn a_snapshot_of_a_stuck_guest_shows_what_xenctx_shows() {
    const CALLS: u32 = 20;
    on(&STUCK, |lab| {
        lab.wait_for_console("stuck", "stuck in a loop", SOON).unwrap();
        let guest = Guest::of(lab, "stuck");
        let client = guest.client();
        let shown = snapshot(&client);
        let vcpu = &shown["vcpus"][0];
        assert_eq!(vcpu["state"], "running", "{shown:#}");
        let function = vcpu["frames"][0]["function"].as_str().unwrap();
        assert!(function.ends_with("stuck_in_a_loop"), "{shown:#}");
        let ours = vcpu["registers"]["rip"].as_str().unwrap();
        let text = guest.dom0("xenctx -f $ID 0");
        println!("xenctx:\n{text}\nsnapshot:\n{shown:#}");
        let theirs = text.split("rip: ").nth(1).unwrap();
        let theirs = theirs.split_whitespace().next().unwrap();
        let [theirs, ours] = [theirs, ours.trim_start_matches("0x")]
            .map(|digits| symbol_at(u64::from_str_radix(digits, 16).unwrap()));
        assert_eq!(theirs, ours);
        assert!(theirs.contains("stuck_in_a_loop"), "{theirs}");

        let not_running_ns = |calls: &dyn Fn()| {
            let before = guest.statistics();
            calls();
            let after = guest.statistics();
            let passed_ns = after.since(&before, "now_ns");
            let ran_ns = after.since(&before, "vcpu0.running_ns");
            passed_ns.saturating_sub(ran_ns) / u64::from(CALLS)
        };
        let xenctx = not_running_ns(&|| {
            guest.dom0(&format!(
                "i=0; while [ $i -lt {CALLS} ]; do xenctx -f $ID 0 >/dev/null || exit 1; \
                     i=$((i+1)); done"
            ));
        });
        let snapshots = not_running_ns(&|| (0..CALLS).for_each(|_| _ = snapshot(&client)));
        println!(
            "for each, the vCPU did not run for {xenctx} ns with xenctx, {snapshots} ns with \
             snapshot"
        );
    });
}

fn snapshot(client: &Client) -> Value {
    let image = Guest::program().to_str().unwrap();
    let words = ["--json", "snapshot", "--wait", "60s", "--image", image];
    client.connect(&words).expect_json()
}

/// The symbol that contains an address of the guest's image.
fn symbol_at(address: u64) -> String {
    let image = std::fs::read(Guest::program()).unwrap();
    let image = object::File::parse(&*image).unwrap();
    let mut symbols = image.symbols();
    let symbol = symbols.find(|symbol| {
        let start = symbol.address();
        (start..start + symbol.size()).contains(&address)
    });
    symbol.unwrap().name().unwrap().to_owned()
}
