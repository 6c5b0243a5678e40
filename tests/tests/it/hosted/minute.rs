//! The flight recorder's promise: what went wrong a minute ago is still there.

use std::thread;
use std::time::Duration;

use crate::harness::time::{Span, events, report, share, sum};
use crate::harness::{Client, Guest, SOON, wait_until, wait_within};

const MINUTE_NS: u64 = 60_000_000_000;

/// The guest's monotonic clock.
fn now_ns(client: &Client) -> u64 {
    client.status()["now_ns"].as_u64().unwrap()
}

/// A recording as `--preset default` makes it, from boot; one burst of two seconds; then a minute
/// of nothing but usual work. It takes that minute, beside the other cases.
#[test]
#[ignore = "full: records a guest"]
fn a_burst_a_minute_ago_is_found() {
    let guest = Guest::start_recording("once", "flight");
    let client = guest.client();
    let burst =
        wait_until("the end of the burst", || Span::since_recording(&events(&client), "batch"));
    let most = Duration::from_nanos(MINUTE_NS) + SOON;
    wait_within(most, "a minute after the burst", || {
        thread::sleep(Duration::from_millis(500));
        (now_ns(&client) >= burst.to_ns + MINUTE_NS).then_some(())
    });
    let (from, to) = (burst.date(0), burst.date(burst.length_ns()));
    let is_burst = |name: &str, more: &[&str]| {
        let told = report(&client, name, more);
        assert!(share(&told, "burst::burst") > 0.9, "{told:#}");
        assert!(share(&told, "burst::usual") < 0.05, "{told:#}");
    };

    burst.dump(&client, "then.unikprof");
    is_burst("then.unikprof", &[]);

    // From before the burst's beginning on, however long the client takes to ask: a little more
    // than the last minute.
    const ASKING_NS: u64 = MINUTE_NS;
    let last = format!("{}ns", now_ns(&client) - burst.from_ns + ASKING_NS);
    client.must(&["dump", "--last", &last, "-o", "last.unikprof"]);
    let told = report(&client, "last.unikprof", &[]);
    let length =
        told["window"]["to_ns"].as_u64().unwrap() - told["window"]["from_ns"].as_u64().unwrap();
    assert!(length >= MINUTE_NS, "{length}");
    // The burst and what came after it, however much of the processor the guest got then.
    let samples = ["burst::burst", "burst::usual"].map(|name| sum(&told, name, "self"));
    assert!(samples.iter().all(|sum| *sum > 10), "{samples:?}");
    is_burst("last.unikprof", &["--from", &from, "--to", &to]);
    is_burst("last.unikprof", &["--in-span", "batch"]);

    // The seconds: those of the burst, and none of those after it.
    let seconds = report(&client, "last.unikprof", &["--timeline", "--step", "500ms"]);
    let began_ns = client.recording("last.unikprof").span.unwrap().window.from_ns;
    let (mut inside, mut after) = (0, 0);
    for second in seconds["seconds"].as_array().unwrap() {
        let from_ns = began_ns + second["from_ns"].as_u64().unwrap();
        let to_ns = from_ns + second["length_ns"].as_u64().unwrap();
        let Some(top) = second["top"].as_str() else {
            continue;
        };
        assert_eq!(second["held"], true, "nothing of a minute is evicted");
        if burst.from_ns <= from_ns && to_ns <= burst.to_ns {
            inside += 1;
            assert!(top.ends_with("burst::burst"), "{second}");
        } else if from_ns >= burst.to_ns {
            after += 1;
            assert!(!top.ends_with("burst::burst"), "{second}");
        }
    }
    assert!(inside > 0 && after > 10, "{inside} and {after} seconds");
}
