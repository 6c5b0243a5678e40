//! Recordings of waiting: the guest sleeps nearly all the time.

use serde_json::Value;

use crate::harness::time::{report, sum};
use crate::harness::{Client, Guest};

/// The time in which the vCPU was blocked, by the platform's account.
fn blocked_ns(client: &Client) -> u64 {
    let report = report(client, "run.unikprof", &[]);
    report["vcpus"][0]["runstate"]["blocked_ns"].as_u64().unwrap()
}

/// On the wall's clock an idle guest is blocked, below the code that waits.
#[test]
#[ignore = "full: records a guest"]
fn waiting_has_its_share_of_the_time_on_the_wall() {
    let guest = Guest::start("idle");
    let client = guest.client();
    client.must(&["start", "--mode", "wall", "-F", "997"]);
    // A loaded machine wakes the guest late, and what others take is not blocked.
    client.wait_for_status("blocked time", |status| {
        status["counters"]["blocked"].as_u64() > Some(300)
    });
    let recording = client.stop("run.unikprof");
    let counters = recording.profile.counters();
    let blocked_ns = blocked_ns(&client);
    let periods = blocked_ns / recording.profile.recording().period_ns;
    assert!(counters.blocked.abs_diff(periods) <= periods / 20, "{periods} periods: {counters:?}");
    let blocked: u64 = client
        .folded(&[])
        .iter()
        .filter(|(stack, _)| stack.contains("idle::blocked") && stack.ends_with("[blocked]"))
        .map(|(_, samples)| samples)
        .sum();
    assert!(blocked * 10 > counters.blocked * 9, "{blocked}: {counters:?}");
}

/// Blocked time alone is measured, in ns; nothing is sampled.
#[test]
#[ignore = "full: records a guest"]
fn waits_are_measured_where_the_guest_waits() {
    let guest = Guest::start("idle");
    let client = guest.client();
    client.must(&["start", "--mode", "off-cpu"]);
    client.wait_for_status("blocked time", |status| {
        status["counters"]["blocked"].as_u64() > Some(300_000_000)
    });
    let recording = client.stop("run.unikprof");
    let counters = recording.profile.counters();
    assert_eq!((counters.ticks, counters.recorded), (0, 0));
    assert!(counters.blocks > 1, "{counters:?}");
    let blocked_ns = blocked_ns(&client);
    assert!(
        counters.blocked.abs_diff(blocked_ns) <= blocked_ns / 20,
        "{blocked_ns} ns: {counters:?}"
    );
    let measured: u64 = client
        .folded(&[])
        .iter()
        .filter(|(stack, _)| stack.contains("idle::blocked"))
        .map(|(_, ns)| ns)
        .sum();
    assert!(measured * 10 > counters.blocked * 9, "{measured}: {counters:?}");
}

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
