//! Traffic of a server: requests, timers, connections, caches, waves of load, and a leak if one is
//! wanted.
//!
//! A guest that gets too little of its processor allocates less: the time of a round counts as a
//! tenth of a second at most.
//!
//! The guest keeps books: the counters `leaked` and `held` are the bytes that the leak and all of
//! the traffic hold.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::env::var;
use std::error::Error;
use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use unikprof_agent::hosted::Guest;

use crate::HEAP;
use crate::stop::Stop;

/// The variable with the bytes a second of the traffic, those of the leak, and the seconds for
/// which the guest is looked at: long lives and waves are parts of these.
const VARIABLE: &str = "UNIKPROF_TEST_TRAFFIC";

/// Room for what is held, so that the guest's own books do not grow.
const MOST_HELD: usize = 400_000;

/// The lifetime of an allocation, in seconds.
#[derive(Clone, Copy)]
enum Life {
    /// Exponentially distributed, with this mean.
    Mean(f64),
    Fixed(f64),
    Forever,
    Leaked,
}

/// The times at which allocations are made, in seconds.
#[derive(Clone, Copy)]
enum When {
    Always,
    /// More and less, with this period.
    Waves(f64),
    /// So many at a time.
    Batches(f64),
    /// From this time on, for so long.
    Within(f64, f64),
}

/// Allocates so many bytes.
type Make = fn(usize) -> Vec<u8>;

struct Site {
    make: Make,
    bytes_per_second: f64,
    size: usize,
    life: Life,
    when: When,
    /// Bytes that are due and not allocated yet.
    due: f64,
}

/// An allocation, and when it is freed.
struct Object {
    until: Duration,
    bytes: Vec<u8>,
}

impl PartialEq for Object {
    fn eq(&self, other: &Object) -> bool {
        self.until == other.until
    }
}

impl Eq for Object {}

impl PartialOrd for Object {
    fn partial_cmp(&self, other: &Object) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Object {
    fn cmp(&self, other: &Object) -> Ordering {
        self.until.cmp(&other.until)
    }
}

pub(crate) fn run(guest: &Guest, stop: &Stop) -> Result<(), Box<dyn Error>> {
    let numbers = var(VARIABLE).unwrap_or_default();
    let numbers: Vec<f64> = numbers.split(' ').map_while(|it| it.parse().ok()).collect();
    let [traffic, leak, seconds] = numbers[..] else {
        return Err(format!(
            "set {VARIABLE} to three numbers: the bytes a second of the traffic and of the leak, \
             and a time in seconds"
        )
        .into());
    };
    HEAP.attach(guest.agent());
    let agent = guest.agent();
    let _vcpu = guest.register_thread()?;
    let mut sites = sites(traffic, seconds);
    if leak > 0.0 {
        sites.push(site(leaking, leak, 500, Life::Leaked, When::Always));
    }
    let mut random = fastrand::Rng::with_seed(1);
    let mut objects: BinaryHeap<Reverse<Object>> = BinaryHeap::with_capacity(MOST_HELD);
    let mut for_ever: Vec<Vec<u8>> = Vec::with_capacity(MOST_HELD);
    let names = [agent.event_name("leaked")?, agent.event_name("held")?];
    let (mut leaked, mut held) = (0, 0);
    let began = Instant::now();
    let (mut before, mut told) = (Duration::ZERO, Duration::ZERO);
    while !stop.is_set() {
        let now = began.elapsed();
        let passed = (now - before).as_secs_f64().min(0.1);
        before = now;
        for site in &mut sites {
            site.due += site.bytes_per_second * site.when.part(now.as_secs_f64()) * passed;
            let batch = match site.when {
                When::Batches(count) => count * site.size as f64,
                _ => site.size as f64,
            };
            while site.due >= batch {
                for _ in 0..(batch / site.size as f64) as usize {
                    site.due -= site.size as f64;
                    let bytes = (site.make)(site.size);
                    held += site.size;
                    let seconds = match site.life {
                        Life::Mean(mean) => -(1.0 - random.f64()).ln() * mean,
                        Life::Fixed(seconds) => seconds,
                        Life::Leaked => {
                            leaked += site.size;
                            for_ever.push(bytes);
                            continue;
                        }
                        Life::Forever => {
                            for_ever.push(bytes);
                            continue;
                        }
                    };
                    let until = now + Duration::from_secs_f64(seconds);
                    objects.push(Reverse(Object { until, bytes }));
                }
            }
        }
        while objects.peek().is_some_and(|Reverse(object)| object.until <= now) {
            let freed = objects.pop();
            held -= freed.map_or(0, |Reverse(object)| object.bytes.len());
        }
        if now >= told {
            told = now + Duration::from_millis(100);
            for (name, value) in names.into_iter().zip([leaked, held]) {
                agent.counter(name, value as i64);
            }
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

impl When {
    /// The rate at this time, as a part of the mean rate.
    fn part(self, at: f64) -> f64 {
        match self {
            When::Always | When::Batches(_) => 1.0,
            When::Waves(period) => 1.0 + (at / period * std::f64::consts::TAU).sin(),
            When::Within(from, length) => f64::from(at >= from && at < from + length),
        }
    }
}

fn site(make: Make, bytes_per_second: f64, size: usize, life: Life, when: When) -> Site {
    Site { make, bytes_per_second, size, life, when, due: 0.0 }
}

/// The traffic, in parts of its bytes: the same as in the simulation that the client's tests look
/// for leaks in.
fn sites(bytes: f64, seconds: f64) -> Vec<Site> {
    let part = |make, part: f64, size, life, when| site(make, bytes * part, size, life, when);
    let requests: [(Make, usize); 13] = [
        (request::<0>, 24),
        (request::<1>, 48),
        (request::<2>, 64),
        (request::<3>, 100),
        (request::<4>, 160),
        (request::<5>, 256),
        (request::<6>, 300),
        (request::<7>, 512),
        (request::<8>, 800),
        (request::<9>, 1_024),
        (request::<10>, 1_500),
        (request::<11>, 2_048),
        (request::<12>, 3_000),
    ];
    let of_requests = (0..).zip(requests).map(|(at, (make, size))| {
        let life = Life::Mean(0.0005 * 1.8_f64.powi(at));
        part(make, 0.05, size, life, When::Always)
    });
    let mut all: Vec<Site> = of_requests.collect();
    let (always, forever) = (When::Always, Life::Forever);
    all.extend([
        part(request::<13>, 0.1, 16_384, Life::Mean(0.05), always),
        part(request::<14>, 0.05, 600, Life::Fixed(3.0_f64.min(seconds / 10.0)), always),
        part(
            request::<15>,
            0.05,
            2_000,
            Life::Mean(2.0_f64.min(seconds / 10.0)),
            When::Waves(seconds / 4.0),
        ),
        // Connections that live for a while, with their buffers.
        part(connection::<0>, 0.02, 4_000, Life::Mean(seconds / 10.0), When::Batches(10.0)),
        part(connection::<1>, 0.02, 1_000, Life::Mean(seconds / 15.0), When::Waves(seconds / 3.0)),
        // A cache of a fixed size, what a load leaves, and a cache that fills up.
        part(cache::<0>, 0.02, 3_000, Life::Fixed(seconds / 5.0), always),
        part(cache::<1>, 0.05, 5_000, forever, When::Within(seconds / 3.0, seconds / 120.0)),
        part(cache::<2>, 0.01, 700, forever, When::Within(0.0, seconds / 5.0)),
    ]);
    all
}

#[inline(never)]
fn request<const N: usize>(size: usize) -> Vec<u8> {
    black_box(vec![N as u8; size])
}

#[inline(never)]
fn connection<const N: usize>(size: usize) -> Vec<u8> {
    black_box(vec![N as u8; size])
}

#[inline(never)]
fn cache<const N: usize>(size: usize) -> Vec<u8> {
    black_box(vec![N as u8; size])
}

#[inline(never)]
fn leaking(size: usize) -> Vec<u8> {
    black_box(vec![255; size])
}
