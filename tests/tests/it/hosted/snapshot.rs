//! `snapshot`: every vCPU's registers and stack now.

use serde_json::Value;
use unikprof_client::exit_code;

use crate::harness::time::lines;
use crate::harness::{Client, Guest, wait_until};

/// A time longer than any vCPU takes on a busy machine.
const LONG: &str = "60s";

fn image() -> &'static str {
    Guest::program().to_str().unwrap()
}

/// The vCPUs of a snapshot.
fn snapshot(client: &Client, more: &[&str]) -> Vec<Value> {
    let words = [&["--json", "snapshot", "--wait", LONG, "--image", image()], more];
    let shown = client.connect(&words.concat()).expect_json();
    shown["vcpus"].as_array().unwrap().clone()
}

/// Guards against one vCPU that does not answer keeping back the others, and says why it does not.
#[test]
#[ignore = "full: records a guest"]
fn each_vcpu_shows_its_state() {
    let guest = Guest::start("states");
    guest.told("registered");
    let client = guest.client();
    let words = ["snapshot", "--wait", "2s", "--image", image()];
    // Again if the first and the third vCPU had no processor in that time.
    let text = wait_until("two vCPUs that run", || {
        let text = client.must(&words).stdout;
        let ran = text.contains("vCPU 0: running") && text.contains("but it ran for");
        ran.then_some(text)
    });
    let paragraphs: Vec<&str> = text.split("\n\n").collect();
    let [runs, blocked, masked, missing, ""] = paragraphs[..] else {
        panic!("four vCPUs: {text}");
    };
    assert!(runs.starts_with("vCPU 0: running, "), "{runs}");
    assert!(runs.contains("\n  rip 0x"), "{runs}");
    assert!(runs.contains("states::runs"), "{runs}");
    assert!(blocked.starts_with("vCPU 1: blocked for "), "{blocked}");
    assert!(blocked.contains("states::is_blocked"), "{blocked}");
    assert!(masked.starts_with("vCPU 2: no answer within 2 s, but it ran for "), "{masked}");
    assert_eq!(
        missing,
        "vCPU 3: no answer within 2 s, and it did not run: it is offline, or the hypervisor gave \
         it no CPU"
    );

    let one = |vcpu: &str| snapshot(&client, &["--vcpu", vcpu]).remove(0);
    let earlier = one("1");
    let later = one("1");
    assert_eq!(earlier["state"], "blocked");
    assert!(
        later["blocked_ns"].as_u64() > earlier["blocked_ns"].as_u64(),
        "the same block, later: {earlier:#} {later:#}"
    );
    let words = ["--json", "snapshot", "--vcpu", "2", "--wait", "10ms"];
    let masked = client.connect(&words).expect_json();
    assert_eq!(masked["vcpus"][0]["state"], "no answer");
    let finished = client.connect(&["snapshot", "--vcpu", "4"]).expect_code(exit_code::USAGE);
    assert!(finished.stderr.contains("there is no vCPU 4: the guest has 4"), "{}", finished.stderr);
}

/// Watching ends with Ctrl-C, and disturbs no recording.
#[test]
#[ignore = "full: records a guest"]
fn a_recording_continues_beside_watched_snapshots() {
    let guest = Guest::start("shares");
    let client = guest.client();
    client.must(&["start", "--name", "a", "--no-caller-table"]);
    let words = ["--json", "snapshot", "--watch", "--every", "50ms"];
    let watching = client.begin(&words);
    watching.wait_for_lines(2);
    client.wait_for_samples(300);
    watching.interrupt();
    let shown = lines(&watching.finish().expect_success().stdout);
    assert!(shown.len() > 1, "{shown:?}");
    for line in &shown {
        assert_eq!(line["vcpus"][0]["vcpu"], 0, "{line}");
    }
    let counters = client.stop("run.unikprof").profile.counters();
    assert_eq!(counters.check(), Ok(()), "{counters:?}");
    assert!(counters.recorded >= 300, "{counters:?}");
}
