//! Several recordings in one guest, found by their names.

use unikprof_client::exit_code;
use unikprof_profile::profile::Mode;

use crate::harness::time::sum;
use crate::harness::{Guest, RunningClient};

/// One is stopped, one dumped and goes on, one thrown away; none of it touches the others. Each by
/// another client: a name is all that one needs.
#[test]
fn three_at_once_each_by_its_name() {
    let guest = Guest::start("shares");
    let client = guest.client();
    for words in [
        &["start", "--name", "fast", "-F", "997"][..],
        &["start", "--name", "waits", "--mode", "wall", "-F", "331"],
        &["start", "--name", "flight", "--preset", "default"],
    ] {
        client.must(words);
    }
    client.wait_for_samples_of(&["fast", "waits", "flight"], 40);
    assert_eq!(client.recording_names(), ["fast", "waits", "flight"]);

    let unclear = client.connect(&["stop"]).expect_code(exit_code::NO_SUCH_RECORDING);
    for name in ["`fast`", "`waits`", "`flight`"] {
        assert!(unclear.stderr.contains(name), "{}", unclear.stderr);
    }

    let other = guest.client();
    other.must(&["stop", "--name", "fast", "-o", "fast.unikprof"]);
    let fast = other.recording("fast.unikprof");
    assert_eq!(fast.profile.recording().name, "fast");
    assert_eq!(fast.profile.recording().period_ns, 1_003_009);

    let another = guest.client();
    another.must(&["dump", "--name", "waits", "-o", "waits.unikprof"]);
    let waits = another.recording("waits.unikprof");
    assert_eq!(waits.profile.recording().name, "waits");
    assert_eq!(waits.profile.recording().mode, Mode::Wall);

    client.must(&["stop", "--name", "flight", "--discard"]);
    assert_eq!(client.recording_names(), ["waits"]);

    // 100 parts: 60, 30 and 10. Six standard deviations, less likely than 1e-8.
    for (client, file) in [(&other, "fast.unikprof"), (&another, "waits.unikprof")] {
        let report = client.report(file, &["--json"]).expect_json();
        // Each has its own rate, in the time that the guest ran while it was recorded; one is begun
        // later.
        let running_ns = report["vcpus"][0]["runstate"]["running_ns"].as_u64();
        let period_ns = report["recording"]["period_ns"].as_u64();
        let due = running_ns.unwrap() as f64 / period_ns.unwrap() as f64;
        let kept = report["counters"]["recorded"].as_u64().unwrap() as f64 / due;
        assert!((0.5..2.0).contains(&kept), "{file}: {kept} of {due} came");
        let own = |name| sum(&report, name, "self");
        let parts = [("sixty", 0.6), ("thirty", 0.3), ("ten", 0.1)];
        let all: u64 = parts.iter().map(|(name, _)| own(name)).sum();
        for (name, truth) in parts {
            let deviation = (truth * (1.0 - truth) / all as f64).sqrt();
            let share = own(name) as f64 / all as f64;
            assert!((share - truth).abs() < 6.0 * deviation, "{file}: {name} {share} of {all}");
        }
    }
    client.wait_for_samples_of(&["waits"], 50);
    client.must(&["stop", "-o", "rest.unikprof"]);
    assert_eq!(client.recording_names(), Vec::<String>::new());
}

/// Two that record at once into one file have a recording each, both of which are kept, and leave a
/// third one alone.
#[test]
#[ignore = "full: records a guest"]
fn record_goes_on_beside_others() {
    let guest = Guest::start("shares");
    let client = guest.client();
    client.must(&["start", "--name", "nightly"]);
    let record = |name| client.begin(&["record", "1h", "-o", "run.unikprof", "--name", name]);
    let running = [record("a"), record("b")];
    client.wait_for_samples_of(&["a", "b"], 20);
    running.iter().for_each(RunningClient::interrupt);
    let mut ended = running.map(RunningClient::finish);
    ended.sort_by_key(|one| one.code);
    let codes = [exit_code::SUCCESS, exit_code::OUTPUT].map(|code| Some(i32::from(code)));
    assert_eq!(ended.each_ref().map(|one| one.code), codes, "{ended:?}");
    let kept = ended[1].stderr.split("the recording itself is in ").nth(1).unwrap();
    let names = ["run.unikprof", kept.split(';').next().unwrap()].map(|file| {
        let profile = client.recording(file).profile;
        assert!(profile.sample_count() >= 20);
        profile.recording().name.clone()
    });
    assert_ne!(names[0], names[1]);
    assert_eq!(client.recording_names(), ["nightly"]);
}

#[test]
#[ignore = "full: records a guest"]
fn a_recording_from_boot_is_there_for_the_first_client() {
    let guest = Guest::start_recording("shares", "flight");
    let client = guest.client();
    let status = client.wait_for_samples_of(&["flight"], 20);
    let flight = &status["recordings"][0];
    assert_eq!(flight["max_age_ns"], 300_000_000_000_u64);
    assert_eq!(flight["max_bytes"], 512 << 10);
    client.must(&["dump", "--name", "flight", "-o", "so-far.unikprof"]);
    assert!(client.recording("so-far.unikprof").profile.sample_count() >= 20);
    assert_eq!(client.recording_names(), ["flight"]);
}
