//! Whether a profile says what the guest did: which functions, whose callees, which lines.

use std::collections::HashMap;
use std::fs;

use object::Object as _;
use serde_json::Value;

use crate::harness::time::{counters_add_up, expect_line_of};
use crate::harness::{Client, Guest};

const SOURCE: &str = include_str!("../../../guests/hosted/shares.rs");

/// The functions that work, with their shares.
const SHARES: [(&str, f64); 3] = [("sixty", 0.6), ("thirty", 0.3), ("ten", 0.1)];

/// The largest allowed error of a measured share: six standard deviations of 1,000 samples are
/// 0.093, and the functions' parts are equal in iterations, not in nanoseconds.
const TOLERANCE: f64 = 0.1;

fn record_shares() -> (Guest, Client) {
    let guest = Guest::start("shares");
    let client = guest.client();
    client.record_samples(1_000, &[]);
    (guest, client)
}

/// The last part of a function's path.
fn short(name: &str) -> &str {
    name.rsplit("::").next().unwrap()
}

#[test]
#[ignore = "full: records a guest"]
fn functions_have_their_shares_in_order_on_their_lines() {
    let (_guest, client) = record_shares();
    let report = client.report("run.unikprof", &["--json"]).expect_json();
    let functions = report["functions"].as_array().unwrap();
    for ((name, share), found) in SHARES.iter().zip(functions) {
        assert_eq!(short(found["name"].as_str().unwrap()), *name, "{functions:#?}");
        let measured = found["self_share"].as_f64().unwrap();
        assert!((measured - share).abs() < TOLERANCE, "{name}: {measured}");
        expect_line_of(found, name, "guests/hosted/shares.rs", SOURCE);
    }
    // What lies below is the guest's too: nothing of the profiler's is on top of any stack.
    for function in functions {
        let name = function["name"].as_str().unwrap();
        let is_own = function["kind"] == "agent" || name.contains("unikprof_agent");
        assert!(!is_own || function["self"] == 0, "{function:#}");
    }
}

#[test]
#[ignore = "full: records a guest"]
fn callers_are_the_right_ones() {
    let (_guest, client) = record_shares();
    let folded = client.folded(&[]);
    let mut by_caller: HashMap<(&str, &str), u64> = HashMap::new();
    let mut samples = 0;
    for (stack, count) in &folded {
        let mut frames = stack.rsplit(';').map(short);
        let (leaf, caller) = (frames.next().unwrap(), frames.next().unwrap_or("nobody"));
        // A virtual machine that loses its processor makes samples late; their leaf is a mark.
        samples += if leaf.starts_with('[') { 0 } else { *count };
        if SHARES.iter().any(|(name, _)| *name == leaf) {
            *by_caller.entry((caller, leaf)).or_default() += count;
            let above: Vec<&str> = frames.take(2).collect();
            assert_eq!(above, ["day", "run"], "{stack}");
        }
    }
    let expected = [("morning", "sixty"), ("evening", "thirty"), ("morning", "ten")];
    let right: u64 = expected.iter().filter_map(|pair| by_caller.get(pair)).sum();
    // A sample in a prologue skips its caller; these functions have one prologue in 10,000
    // iterations.
    assert!(right * 100 >= samples * 97, "{right} of {samples}: {by_caller:?}");
}

#[test]
#[ignore = "full: records a guest"]
fn counters_add_up_and_say_what_it_cost() {
    let (_guest, client) = record_shares();
    let report = client.report("run.unikprof", &["--json"]).expect_json();
    let counters = &report["counters"];
    let count = |name: &str| counters[name].as_u64().unwrap();
    counters_add_up(&report);
    // What other programs on this machine can cause is left out: a tick that comes late counts as
    // masked.
    for reason in ["overflow", "idle", "truncated"] {
        assert_eq!(count(reason), 0, "{reason}: {counters:#}");
    }
    assert!(count("broken") * 100 <= count("recorded"), "{counters:#}");

    let vcpu = &report["vcpus"][0];
    let running_ns = vcpu["runstate"]["running_ns"].as_u64().unwrap();
    let due = running_ns / report["recording"]["period_ns"].as_u64().unwrap();
    let missing = counters["missing"].as_i64().unwrap().unsigned_abs();
    assert!(missing <= due / 10 + 50, "{missing} of {due}: {report:#}");
    let cost = vcpu["cost"]["share_of_running"].as_f64().unwrap();
    assert!(cost > 0.0, "sampling is not for nothing");
    assert!(vcpu["cost"]["cycles_p50"].as_u64() > Some(0), "{vcpu:#}");
}

#[test]
fn images_are_told_apart_by_their_build_id() {
    let (_guest, client) = record_shares();
    let image = fs::read(Guest::program()).unwrap();
    let image = object::File::parse(&*image).unwrap();
    let expected = hexadecimal(image.build_id().unwrap().unwrap());
    let info = client.connect(&["info", "--json"]).expect_json();
    let mapping = mapping_of(&info, "hosted-guest");
    assert_eq!(mapping["build_id"], *expected);

    // Another image of a process that looks the same from outside: the client's.
    let command = client.command();
    let other = command.get_program().as_ref();
    let refused = client
        .report_with("run.unikprof", other, &[])
        .expect_code(unikprof_client::exit_code::INPUT);
    assert!(refused.stderr.contains(&expected), "{}", refused.stderr);
}

fn mapping_of<'a>(info: &'a Value, file: &str) -> &'a Value {
    let mappings = info["mappings"].as_array().unwrap();
    let is_it = |mapping: &&Value| mapping["path"].as_str().unwrap().ends_with(file);
    mappings.iter().find(is_it).unwrap()
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The guest neither polls nor calls nor returns: this is when its owner needs the profile.
#[test]
#[ignore = "full: records a guest"]
fn a_guest_stuck_in_a_loop_is_recorded() {
    let guest = Guest::start("stuck");
    let client = guest.client();
    client.record_samples(200, &[]);
    let report = client.report("run.unikprof", &["--json"]).expect_json();
    let first = &report["functions"][0];
    assert_eq!(short(first["name"].as_str().unwrap()), "hang");
    assert!(first["self_share"].as_f64() > Some(0.95), "{first:#}");
}
