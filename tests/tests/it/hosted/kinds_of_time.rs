//! vCPUs that do not run: offline, or waiting for a processor.

use serde_json::Value;

use crate::harness::Guest;
use crate::harness::time::{report, sum};

/// A vCPU without a thread is offline: on the wall's clock it lacks no samples. And no clock of a
/// thread that others keep from running goes back.
#[test]
#[ignore = "full: records a guest"]
fn what_is_offline_lacks_no_samples() {
    let guest = Guest::start("states");
    let client = guest.client();
    for _ in 0..5 {
        client.must(&["start", "--mode", "wall", "-F", "997"]);
        client.wait_for_status("samples", |status| {
            status["counters"]["recorded"].as_u64() > Some(100)
        });
        let recording = client.stop("run.unikprof");
        let vcpus = recording.profile.vcpus();
        let nobody = vcpus.iter().find(|vcpu| vcpu.vcpu == 3).unwrap();
        assert_eq!(nobody.counters.missing, Some(0), "{nobody:?}");
        assert_eq!(nobody.runstate.blocked_ns, Some(0), "{nobody:?}");
        let warnings = &recording.profile.recording().warnings;
        assert!(warnings.iter().all(|warning| !warning.contains("backwards")), "{warnings:?}");
    }
}

/// On a contended CPU a thread that is woken waits for its turn. Guards against targets that are
/// locked to wakes: code that runs after them would hardly be sampled, and the time that the
/// sampler's own wakes took from the waits would be missing from the vCPU's blocked time; against
/// windows that have other waits than were counted; and against requests side by side that have each
/// other's samples.
#[test]
#[ignore = "full: records a guest beside busy loops"]
fn what_runs_after_a_wake_has_its_share_on_a_contended_cpu() {
    const LINES: usize = 100;
    let guest = Guest::start("contended");
    let client = guest.client();
    let worked_ns = || {
        let line = guest.told("worked ");
        let numbers = line.split(' ').map(|number| number.parse::<u64>().unwrap());
        <[u64; 6]>::try_from(numbers.collect::<Vec<_>>()).unwrap()
    };
    worked_ns();
    client.must(&["start", "--mode", "wall", "-F", "997"]);
    guest.forget_lines();
    let before = worked_ns();
    for _ in 1..LINES {
        worked_ns();
    }
    let after = worked_ns();
    client.must(&["stop", "-o", "run.unikprof"]);
    let report_of = |words: &[&str]| report(&client, "run.unikprof", words);
    let report = report_of(&[]);
    let period_ns = report["recording"]["period_ns"].as_u64().unwrap() as f64;
    let names = ["contended::first", "contended::second", "contended::third", "contended::fourth"];
    let of_work = |report: &Value| names.map(|name| sum(report, name, "total"));
    let requests = ["rare", "common"].map(|name| report_of(&["--in-span", name]));
    let shown = [&of_work(&report)[..], &requests.each_ref().map(|of| of_work(of).iter().sum())];
    let shown = shown.concat();
    let ratios: Vec<f64> =
        (0..6).map(|at| shown[at] as f64 * period_ns / (after[at] - before[at]) as f64).collect();
    println!("shown / true: {ratios:.3?}; {}", report["vcpus"][0]["runstate"]);
    // Six standard deviations of 1,000 samples are 0.19; the recording is a little longer than the
    // time between the two lines.
    assert!(ratios.iter().all(|ratio| (0.8..1.22).contains(ratio)), "shown / true: {ratios:.3?}");

    let of_samples = |report: &Value| {
        ["recorded", "blocked"].map(|kind| report["counters"][kind].as_u64().unwrap())
    };
    let windows = [&["--from", "0s"][..], &["--to", "10s"], &["--from", "10s"]].map(report_of);
    let [whole, head, tail] = windows.each_ref().map(of_samples);
    println!("all {:?}, windows {whole:?} = {head:?} + {tail:?}", of_samples(&report));
    assert_eq!(whole, of_samples(&report));
    assert_eq!(whole, [0, 1].map(|kind| head[kind] + tail[kind]));
    let waits = requests.each_ref().map(|of| of_samples(of)[1]);
    println!("of {} blocked samples {waits:?} are the requests'", whole[1]);
    // A request of every fourth wait. All waits are within requests, but for those at both ends.
    let share = waits[0] as f64 / (waits[0] + waits[1]) as f64;
    assert!((0.23..0.27).contains(&share), "{share}");
}
