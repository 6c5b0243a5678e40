//! A recording of a working guest: the guest's identity, its ticks and its time.

use std::fs;

use object::Object as _;
use serde_json::Value;
use unikprof_client::exit_code;

use super::WORKING;
use crate::xen_profile::harness::{Guest, counters_add_up, on, wait_until};

#[test]
fn every_tick_is_accounted_for() {
    on(&WORKING, |lab| {
        let client = Guest::of(lab, "working").client();
        client.record_samples(1_000, &[]);
        let report = client.report("run.unikprof", &["--json"]).expect_json();
        assert!(counters_add_up(&report) >= 1_000);
        for reason in ["overflow", "masked", "truncated"] {
            assert_eq!(report["counters"][reason], 0, "{:#}", report["counters"]);
        }
        let count = |name: &str| report["counters"][name].as_u64().unwrap();
        assert!(count("broken") * 100 <= count("recorded"), "{report:#}");
        assert!(report["vcpus"][0]["cost"]["cycles_p50"].as_u64() > Some(0));
    });
}

#[test]
#[ignore = "full: boots a real Xen"]
fn time_is_told_apart() {
    on(&WORKING, |lab| {
        let client = Guest::of(lab, "working").client();
        // It works for half of its time; the emulator adds to that. Again where that stood still.
        wait_until("a recording with both kinds of time", || {
            client.record("3s", &[]);
            let report = client.report("run.unikprof", &["--json"]).expect_json();
            let [running, _, blocked] = times(&report);
            let elapsed = report["vcpus"][0]["elapsed_ns"].as_u64().unwrap();
            println!("{running} ns running, {blocked} blocked of {elapsed}");
            (running > elapsed / 4 && blocked > elapsed / 100).then_some(())
        });
    });
}

/// The time that the only vCPU ran, was runnable and was blocked, in ns, after a check that this is
/// all of its time and agrees with the ticks.
pub(crate) fn times(report: &Value) -> [u64; 3] {
    let vcpu = &report["vcpus"][0];
    let time = |state: &str| vcpu["runstate"][state].as_u64().unwrap();
    let elapsed = vcpu["elapsed_ns"].as_u64().unwrap();
    let times = ["running_ns", "runnable_ns", "blocked_ns"].map(time);
    let sum: u64 = times.iter().sum();
    assert!(sum.abs_diff(elapsed) < elapsed / 50, "{vcpu:#}");
    assert_eq!(time("offline_ns"), 0, "{vcpu:#}");
    // A tick stands for a period of running time: there can be no more than fit into it, and what a
    // busy machine did not deliver is told.
    let ticks = report["counters"]["ticks"].as_i64().unwrap();
    let missing = report["counters"]["missing"].as_i64().unwrap();
    let due = (times[0] / report["recording"]["period_ns"].as_u64().unwrap()) as i64;
    assert!(ticks > 0 && ticks <= due + due / 10 + 20, "{ticks} of {due}");
    assert!(
        (ticks + missing - due).abs() <= 2 + due / 100,
        "{ticks} of {due}, {missing} are missing"
    );
    times
}

#[test]
#[ignore = "full: boots a real Xen"]
fn a_recording_names_its_guest_and_its_image() {
    on(&WORKING, |lab| {
        let guest = Guest::of(lab, "working");
        let client = guest.client();
        client.record("1s", &[]);
        let report = client.report("run.unikprof", &["--json"]).expect_json();
        assert_eq!(report["recording"]["guest_name"], "working");
        let path = guest.dom0("xenstore-read /local/domain/$ID/vm");
        let uuid = path.trim().strip_prefix("/vm/").unwrap();
        assert_eq!(report["recording"]["guest_id"], uuid);

        let image = fs::read(Guest::program()).unwrap();
        let image = object::File::parse(&*image).unwrap();
        let id = image.build_id().unwrap().unwrap();
        let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let info = client.connect(&["info", "--json"]).expect_json();
        assert_eq!(info["mappings"][0]["build_id"], *id);

        let other = client.command();
        let refused = client
            .report_with("run.unikprof", other.get_program().as_ref(), &[])
            .expect_code(exit_code::INPUT);
        assert!(refused.stderr.contains(&id), "{}", refused.stderr);
    });
}
