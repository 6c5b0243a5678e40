//! Recordings of a guest's allocations beside the guest's own books of them.
//!
//! The guest reports its books as counters in its ring. A recording begins and ends between two
//! values of a counter, so the numbers lie between two bounds, which are close.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::xen_profile::harness::time::{events, rows};
use crate::xen_profile::harness::{Client, wait_until};

/// A function that allocates.
pub(crate) struct Site {
    pub(crate) function: &'static str,
    /// A function that calls it, directly or not.
    pub(crate) below: &'static str,
    /// The sizes of the allocations of each call.
    pub(crate) sizes: &'static [u64],
    /// The counter in the guest's ring, and the calls for each step of it.
    pub(crate) counter: &'static str,
    pub(crate) calls: f64,
    /// The allocations of it that are held.
    pub(crate) held: Held,
}

/// The number of a function's allocations that are held.
#[derive(Clone, Copy)]
pub(crate) enum Held {
    All,
    /// So many, or all if there were fewer.
    Newest(f64),
    /// At most so many, for a short time.
    AtMost(f64),
}

/// The lengths of recordings, the next one where a guest gets too little of a processor, and their
/// mean sampling interval.
const LENGTHS: [&str; 4] = ["12s", "60s", "180s", "540s"];
const EVERY: &str = "8KiB";

/// Bytes of a function of which none is sampled in one of a hundred million recordings.
const ENOUGH: f64 = 20.0 * CHUNK;

/// An estimate is 2.5 times as far from the truth as its 95 % interval reaches in one of a million
/// runs.
const WIDER: f64 = 2.5;

/// A recording begins and ends on a vCPU within this many bytes.
const CHUNK: f64 = 8192.0;

/// Records what is allocated and what is held, and compares both with the books. Only `leak` grows.
pub(crate) fn assert_books(client: &Client, sites: &[Site], leak: &str) {
    let mut lengths = LENGTHS.iter();
    let (leaks, books) = loop {
        let length = lengths.next().expect("enough allocations in some minutes");
        let (leaks, books) = record(client, length, sites);
        let is_enough = |site: &Site| {
            let [least, _] = books.calls_of(client, "held.unikprof", site);
            least * site.sizes.iter().sum::<u64>() as f64 >= ENOUGH
        };
        if sites.iter().all(is_enough) && leaks["growing"] != serde_json::json!([]) {
            break (leaks, books);
        }
    };
    let made = report(client, "run.unikprof");
    assert!(made["heap"]["deviations"].as_f64().unwrap() < 5.0, "{:#}", made["heap"]);
    for site in sites {
        let size = site.sizes.iter().sum::<u64>() as f64;
        let [least, most] = books.calls_of(client, "run.unikprof", site).map(|calls| calls * size);
        assert!(least > 0.0, "{} was not called", site.function);
        expect(&made, site, least - CHUNK, most + CHUNK);
    }
    let stacks = client.folded(&[]);
    for site in sites {
        let place = |stack: &str, name: &str| {
            let mut frames = stack.split(';');
            frames.position(|frame| frame.rsplit("::").next() == Some(name))
        };
        let of_site = stacks.iter().filter_map(|(stack, _)| {
            let at = place(stack, site.function)?;
            Some((stack, at))
        });
        let mut found = of_site.peekable();
        assert!(found.peek().is_some(), "{}: {stacks:#?}", site.function);
        for (stack, at) in found {
            let is_below = place(stack, site.below).is_some_and(|below| below < at);
            assert!(is_below, "{stack}");
        }
    }

    let held = report(client, "held.unikprof");
    for site in sites {
        let size = site.sizes.iter().sum::<u64>() as f64;
        let [least, most] = books.calls_of(client, "held.unikprof", site);
        let [least, most] = match site.held {
            Held::All => [least, most],
            Held::Newest(number) => [least.min(number), most.min(number)],
            Held::AtMost(number) => [0.0, number],
        };
        // The last one may be under way.
        expect(&held, site, (least - 1.0) * size, (most + 1.0) * size);
    }
    // It asks for more than there is; nothing was allocated.
    for report in [&made, &held] {
        let wishes: Vec<&Value> = rows(report, "wish").collect();
        assert!(wishes.is_empty(), "{wishes:#?}");
    }
    let growing = leaks["growing"].as_array().unwrap();
    assert_eq!(growing.len(), 1, "{leaks:#}");
    let mut frames = growing[0]["stack"].as_array().unwrap().iter();
    let is_leak = |frame: &Value| frame["name"].as_str().unwrap().ends_with(leak);
    assert!(frames.any(is_leak), "{leaks:#}");
}

/// Records what is made and, a little shorter, what is held and grows; answers what grows, and the
/// books.
fn record(client: &Client, length: &str, sites: &[Site]) -> (Value, Books) {
    let image = client.image().to_str().unwrap();
    let before = Books::before(client, sites);
    client.must(&["start", "--name", "made", "--mode", "alloc", "--every", EVERY]);
    let words = ["--json", "leaks", length, "--every", EVERY];
    let words = [&words[..], &["-o", "held.unikprof", "--image", image]].concat();
    let leaks = client.must(&words);
    client.must(&["stop", "--name", "made", "-o", "run.unikprof"]);
    let leaks = serde_json::from_str(&leaks.stdout).unwrap();
    (leaks, Books::read(client, before, sites))
}

fn report(client: &Client, name: &str) -> Value {
    client.report(name, &["--json"]).expect_json()
}

/// Asserts that the interval of a function's bytes has something in common with these bounds.
#[track_caller]
fn expect(report: &Value, site: &Site, least: f64, most: f64) {
    let all = report["heap"]["bytes"]["value"].as_f64().unwrap();
    let row = rows(report, site.function).find(|row| {
        let name = row["name"].as_str().unwrap();
        name.split("::").last() == Some(site.function)
    });
    let Some(row) = row else {
        assert!(least <= 0.0, "{} is missing: {report:#}", site.function);
        return;
    };
    let share = row["total_share"].as_f64().unwrap();
    let ends = row["total_interval"].as_array().unwrap();
    let [low, high] = [0, 1].map(|end| {
        let end = ends[end].as_f64().unwrap();
        (share + WIDER * (end - share)) * all
    });
    let function = site.function;
    assert!(
        low <= most && least <= high,
        "{function}: {low} to {high}, not {least} to {most}: {row:#}"
    );
}

/// The values of the guest's counters, by name and time.
pub(crate) struct Books(BTreeMap<(String, u64), u64>);

impl Books {
    /// The values that the ring holds now and held `before`, when it may have held older ones; at
    /// least one of each counter is newer than now.
    pub(crate) fn read(client: &Client, before: Vec<Value>, sites: &[Site]) -> Books {
        let now_ns = before.iter().chain(&events(client)).filter_map(at_ns).max();
        let after = wait_until("books after the recordings", || {
            let events = events(client);
            let is_after = |site: &Site| {
                let mut of_site = events.iter().filter(|event| event["name"] == site.counter);
                of_site.any(|event| at_ns(event) > now_ns)
            };
            sites.iter().all(is_after).then_some(events)
        });
        let all = before.iter().chain(&after);
        let values = all.filter(|event| event["kind"] == "counter");
        let value = |event: &Value| {
            let name = event["name"].as_str()?.to_owned();
            Some(((name, at_ns(event)?), event["value"].as_u64()?))
        };
        Books(values.map(|event| value(event).unwrap()).collect())
    }

    /// The values in the ring before something is recorded, at least one of each counter: a trace's
    /// calls displace them.
    pub(crate) fn before(client: &Client, sites: &[Site]) -> Vec<Value> {
        wait_until("books before the recordings", || {
            let events = events(client);
            let is_there = |site: &Site| events.iter().any(|it| it["name"] == site.counter);
            sites.iter().all(is_there).then_some(events)
        })
    }

    /// The least and the greatest number of calls of a function during the recording in a file.
    fn calls_of(&self, client: &Client, file: &str, site: &Site) -> [f64; 2] {
        let window = client.recording(file).span.unwrap().window;
        self.calls(window.from_ns, window.to_ns, site)
    }

    /// The same between two times of the guest's clock.
    pub(crate) fn calls(&self, from_ns: u64, to_ns: u64, site: &Site) -> [f64; 2] {
        let counter = |ns: u64| (site.counter.to_owned(), ns);
        let of_counter = |range| self.0.range(range).map(|(_, value)| *value);
        let until = |ns: u64| of_counter(counter(0)..counter(ns)).next_back().unwrap();
        let from = |ns: u64| of_counter(counter(ns)..counter(u64::MAX)).next().unwrap();
        let least = until(to_ns).saturating_sub(from(from_ns));
        let most = from(to_ns) - until(from_ns);
        // A step begins or ends a little beside its value.
        [least.saturating_sub(1), most + 1].map(|steps| steps as f64 * site.calls)
    }
}

fn at_ns(event: &Value) -> Option<u64> {
    event["at_ns"].as_u64()
}
