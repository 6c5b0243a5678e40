#![allow(clippy::unwrap_used)]
use fastrand::Rng;

use super::*;
use unikprof_profile::profile::ProfileBuilder;

const SECOND: u64 = 1_000_000_000;
const SEEDS: u64 = 200;

/// Stacks to tell sites apart by.
fn nodes(count: usize) -> Vec<NodeId> {
    let mut builder = ProfileBuilder::new();
    let step = |at| {
        let frame = unikprof_profile::profile::Frame::caller(0x1000 + at as u64);
        builder.step(NodeId::ROOT, frame).unwrap()
    };
    (0..count).map(step).collect()
}

/// How long an allocation is held.
#[derive(Clone, Copy)]
enum Life {
    /// On average so many seconds, exponentially.
    Mean(f64),
    /// So many seconds: the first that came is the first that goes, as in a cache of fixed size.
    Fixed(f64),
    Forever,
}

/// When allocations are made.
#[derive(Debug, Clone, Copy)]
enum When {
    /// All the time alike.
    Steady,
    /// More and less, with this period in seconds.
    Waves(f64),
    /// So many together each time: connections, requests.
    Batches(f64),
    /// Only within so many seconds from this one on.
    Within(f64, f64),
    /// Less and less often, to 1/e after so many seconds.
    Fades(f64),
}

#[derive(Clone, Copy)]
struct Site {
    bytes_per_second: f64,
    size: u64,
    life: Life,
    when: When,
}

/// The sampled allocations of a site that are held at any of these times, in seconds.
///
/// Every byte is sampled independently, so sampled allocations of one size come as every `1/p`-th
/// on average, independently. Only those are made that can be held at one of the times: of what
/// lives for a second, none that was made a minute before.
fn sampled(site: &Site, interval_bytes: u64, times: &[f64], random: &mut Rng) -> Vec<(f64, f64)> {
    let p = unikprof_profile::profile::sampling_probability(site.size, interval_bytes);
    let end = *times.last().unwrap();
    let reach = match site.life {
        Life::Mean(mean) => 25.0 * mean,
        Life::Fixed(length) => length,
        Life::Forever => end,
    };
    let exponential = |random: &mut Rng| -(1.0 - random.f64()).ln();
    let together = match site.when {
        When::Batches(count) => count,
        _ => 1.0,
    };
    // Of events: allocations that may be sampled, or batches.
    let per_second = match site.when {
        When::Batches(count) => site.bytes_per_second / site.size as f64 / count,
        When::Waves(_) => 2.0 * site.bytes_per_second / site.size as f64 * p,
        _ => site.bytes_per_second / site.size as f64 * p,
    };
    let mut found = Vec::new();
    let mut from = 0.0_f64;
    for time in times {
        let (first, time_of_births) = match site.when {
            When::Within(from, length) => (from, from + length),
            _ => (0.0, end),
        };
        let mut at = from.max(time - reach).max(first);
        loop {
            at += exponential(random) / per_second;
            if at > time.min(time_of_births) {
                break;
            }
            let is_made = match site.when {
                When::Waves(period) => {
                    let phase = at / period * std::f64::consts::TAU;
                    random.f64() < f64::midpoint(1.0, phase.sin())
                }
                When::Fades(seconds) => random.f64() < (-at / seconds).exp(),
                _ => true,
            };
            if !is_made {
                continue;
            }
            let length = match site.life {
                Life::Mean(mean) => exponential(random) * mean,
                Life::Fixed(length) => length,
                Life::Forever => f64::INFINITY,
            };
            // What is not held at the next time is held at none.
            if at + length <= *time {
                continue;
            }
            for _ in 0..together as u32 {
                if together == 1.0 || random.f64() < p {
                    found.push((at, at + length));
                }
            }
        }
        from = *time;
    }
    found
}

/// What is held at each of the times.
fn held(
    sites: &[Site],
    nodes: &[NodeId],
    interval_bytes: u64,
    seconds: f64,
    seed: u64,
) -> Vec<Held> {
    let mut random = Rng::with_seed(seed);
    let times = dump_times(seconds);
    let mut held: Vec<Held> = times
        .iter()
        .map(|time| Held { at_ns: (time * SECOND as f64) as u64, samples: Vec::new() })
        .collect();
    for (site, node) in sites.iter().zip(nodes) {
        for (born, dies) in sampled(site, interval_bytes, &times, &mut random) {
            for (time, held) in times.iter().zip(&mut held) {
                if born <= *time && *time < dies {
                    held.samples.push(LiveSample {
                        node: *node,
                        vcpu: 0,
                        size: site.size,
                        born_ns: (born * SECOND as f64) as u64,
                    });
                }
            }
        }
    }
    held
}

/// When `connect leaks` asks.
fn dump_times(seconds: f64) -> Vec<f64> {
    let length = std::time::Duration::from_secs_f64(seconds);
    let times = unikprof_link::record::dump_times(length);
    times.iter().map(std::time::Duration::as_secs_f64).collect()
}

/// Traffic of so many bytes a second: requests, timers, connections, caches of fixed size, waves.
fn honest(bytes_per_second: f64, minutes: f64) -> Vec<Site> {
    let mut sites = Vec::new();
    let mut add = |part: f64, size, life, when| {
        sites.push(Site { bytes_per_second: bytes_per_second * part, size, life, when });
    };
    for (at, size) in [24, 48, 64, 100, 160, 256, 300, 512, 800, 1_024, 1_500, 2_048, 3_000]
        .into_iter()
        .enumerate()
    {
        let mean = 0.0005 * 1.8_f64.powi(at as i32);
        add(0.05, size, Life::Mean(mean), When::Steady);
    }
    add(0.1, 16_384, Life::Mean(0.05), When::Steady);
    add(0.05, 600, Life::Fixed(3.0), When::Steady);
    add(0.05, 2_000, Life::Mean(2.0), When::Waves(30.0));
    // Connections that live for a while, with their buffers.
    add(0.02, 4_000, Life::Mean(minutes * 6.0), When::Batches(10.0));
    add(0.02, 1_000, Life::Mean(minutes * 4.0), When::Waves(minutes * 20.0));
    // A cache of a fixed size, and what a start or a load leaves.
    add(0.02, 3_000, Life::Fixed(minutes * 12.0), When::Steady);
    add(0.05, 5_000, Life::Forever, When::Within(minutes * 20.0, minutes * 0.5));
    add(0.01, 700, Life::Forever, When::Within(0.0, minutes * 12.0));
    sites
}

/// How many of the seeds show the leak, of its true growth in how many the interval holds, and what
/// else is shown.
fn look(leak: Option<Site>, bytes_per_second: f64, interval_bytes: u64, seconds: f64) -> [u64; 3] {
    let mut sites = honest(bytes_per_second, seconds / 60.0);
    sites.extend(leak);
    let nodes = nodes(sites.len());
    let of_leak = leak.map(|_| *nodes.last().unwrap());
    let mut sums = [0; 3];
    for seed in 0..SEEDS {
        let held = held(&sites, &nodes, interval_bytes, seconds, seed);
        let found = find(&held, 0, None, interval_bytes).unwrap();
        for growing in found.growing {
            if Some(growing.node) == of_leak {
                sums[0] += 1;
                let truth = leak.unwrap().bytes_per_second * 60.0;
                let per_minute = growing.per_minute;
                sums[1] += u64::from((per_minute.low..=per_minute.high).contains(&truth));
            } else {
                sums[2] += 1;
            }
        }
    }
    sums
}

const KIB: f64 = 1024.0;
const MIB: f64 = 1024.0 * 1024.0;

/// 1 KiB a second among 5 MiB, and 64 KiB among 50 MiB.
#[test]
fn a_leak_is_found_within_two_minutes() {
    for (rate, size, traffic, interval_bytes) in
        [(KIB, 256, 5.0 * MIB, 4 << 10), (64.0 * KIB, 1_000, 50.0 * MIB, 128 << 10)]
    {
        let leak = Site { size, ..kept(rate, When::Steady) };
        let [found, right, others] = look(Some(leak), traffic, interval_bytes, 120.0);
        assert!(found >= 195, "{size}: found in {found} of {SEEDS}");
        assert!(right >= found - 17, "{size}: its growth is right in {right}");
        assert_eq!(others, 0, "{size}: shown although they do not leak");
    }
}

#[test]
fn nothing_is_shown_in_ten_minutes_of_honest_traffic() {
    for (traffic, interval_bytes) in [(5.0 * MIB, 4 << 10), (50.0 * MIB, 128 << 10)] {
        let [.., others] = look(None, traffic, interval_bytes, 600.0);
        assert_eq!(others, 0, "shown although nothing leaks, at {interval_bytes}");
    }
}

/// Loads that rise while they are looked at, lives as long as a good part of the time, and large
/// batches.
#[test]
fn what_lives_for_a_while_or_rises_is_not_shown() {
    const LENGTH: f64 = 600.0;
    const RUNS: u64 = 50;
    let loads = [
        ("a life of a tenth", Life::Mean(0.1), When::Steady),
        ("a life of a third", Life::Mean(0.3), When::Steady),
        ("a wave of twice the time", Life::Mean(0.1), When::Waves(2.0 * LENGTH)),
        ("a wave of four times the time", Life::Mean(0.05), When::Waves(4.0 * LENGTH)),
        ("a wave of the time", Life::Mean(0.2), When::Waves(LENGTH)),
        ("batches of 100", Life::Mean(0.1), When::Batches(100.0)),
        ("batches of 1,000", Life::Mean(0.1), When::Batches(1_000.0)),
        ("a cache", Life::Fixed(0.4), When::Steady),
    ];
    for bytes_per_second in [2.0 * KIB, 50.0 * KIB] {
        for (name, life, when) in loads {
            let life = match life {
                Life::Mean(part) => Life::Mean(part * LENGTH),
                Life::Fixed(part) => Life::Fixed(part * LENGTH),
                Life::Forever => life,
            };
            let site = Site { bytes_per_second, size: 1_000, life, when };
            let nodes = nodes(1);
            let shown: usize = (0..RUNS)
                .map(|seed| {
                    let held = held(&[site], &nodes, 4 << 10, LENGTH, seed);
                    find(&held, 0, None, 4 << 10).unwrap().growing.len()
                })
                .sum();
            assert_eq!(shown, 0, "{name} at {bytes_per_second}: of {RUNS}");
        }
    }
}

/// What a stack never frees.
fn kept(bytes_per_second: f64, when: When) -> Site {
    Site { bytes_per_second, size: 256, life: Life::Forever, when }
}

/// How many of the seeds show a stack that allocates in these ways, and the rules that rejected it
/// with others.
fn look_at(sites: [Site; 2], seconds: f64, seeds: u64) -> (usize, Vec<Rule>) {
    let [node] = nodes(1)[..] else {
        unreachable!("one was asked for");
    };
    let (mut found, mut rules) = (0, Vec::new());
    for seed in 0..seeds {
        let held = held(&sites, &[node; 2], 4 << 10, seconds, seed);
        let growth = find(&held, 0, None, 4 << 10).unwrap();
        found += growth.growing.len();
        rules.extend(growth.rejected.iter().map(|rejected| rejected.rule));
    }
    (found, rules)
}

/// A leak that slows down or speeds up is a leak, and the more samples there are, the better it is
/// told.
#[test]
fn a_leak_whose_rate_falls_to_three_quarters_or_rises_is_found() {
    const LENGTH: f64 = 120.0;
    const RUNS: u64 = 50;
    for bytes_per_second in [KIB, 16.0 * KIB, 256.0 * KIB] {
        for part in [0.25, 0.5, 0.75] {
            let at = part * LENGTH;
            for more in [When::Within(0.0, at), When::Within(at, LENGTH)] {
                let steady = kept(0.75 * bytes_per_second, When::Steady);
                let more = kept(0.25 * bytes_per_second, more);
                let (found, rules) = look_at([steady, more], LENGTH, RUNS);
                let when = more.when;
                assert!(found >= 45, "{when:?} at {bytes_per_second}: {found}, {rules:?}");
            }
        }
    }
}

/// With enough samples any change of the rate is more than chance: the growth is that of the whole
/// time all the same.
#[test]
fn growth_is_that_of_the_whole_time_though_the_guest_runs_faster_later() {
    const LENGTH: f64 = 60.0;
    const RATE: f64 = 256.0 * KIB;
    let nodes = [nodes(1)[0]; 2];
    for later in [0.05, 0.2] {
        let sites = [
            kept(RATE, When::Steady),
            kept(later * RATE, When::Within(0.5 * LENGTH, 0.5 * LENGTH)),
        ];
        for seed in 0..20 {
            let held = held(&sites, &nodes, 4 << 10, LENGTH, seed);
            let growth = find(&held, 0, None, 4 << 10).unwrap();
            let growing = growth.growing[0];
            assert_eq!(growing.older_ns, growth.older_ns, "{later}, {seed}");
            let truth = (1.0 + later / 2.0) * RATE * 60.0;
            let error = growing.per_minute.value / truth - 1.0;
            assert!(error.abs() < 0.1, "{later}, {seed}: {error}");
        }
    }
}

/// Guards against a leak that is hidden by what the same stack frees: it thins out too little to be
/// cut at first.
#[test]
fn a_leak_on_a_stack_that_frees_most_is_found() {
    const LENGTH: f64 = 60.0;
    const RATE: f64 = 64.0 * KIB;
    let nodes = [nodes(1)[0]; 2];
    let sites = [
        kept(RATE, When::Steady),
        Site { life: Life::Mean(LENGTH / 8.0), ..kept(3.0 * RATE, When::Steady) },
    ];
    let found = |seed: &u64| {
        let held = held(&sites, &nodes, 4 << 10, LENGTH, *seed);
        !find(&held, 0, None, 4 << 10).unwrap().growing.is_empty()
    };
    let found = (0..40).filter(found).count();
    assert!(found > 35, "{found} of 40");
}

/// What has filled up, or soon will have, is not shown, and the rule that rejected it is named.
#[test]
fn what_fills_up_is_not_shown() {
    const LENGTH: f64 = 120.0;
    const RATE: f64 = 256.0 * KIB;
    let until = |part: f64| When::Within(0.0, part * LENGTH);
    for (steady, when, rule) in [
        (0.0, until(0.3), Rule::Moments),
        (0.0, until(0.7), Rule::Moments),
        (0.0, until(0.85), Rule::Stopped),
        (0.25 * RATE, until(0.5), Rule::Stopped),
        (0.0, When::Fades(0.3 * LENGTH), Rule::Stopped),
    ] {
        let sites = [kept(steady, When::Steady), kept(RATE, when)];
        let found = look_at(sites, LENGTH, 20);
        assert_eq!(found, (0, vec![rule; 20]), "{when:?}");
    }
}

/// Guards a stack with few samples: the absence of births in a whole half tells that it has
/// stopped.
#[test]
fn what_stopped_at_half_the_time_is_not_shown_with_few_samples() {
    let node = nodes(1)[0];
    for births in LEAST as u64..=30 {
        // Up to half of the time without the age, which is 112.5 s.
        let born = (1..=births).map(|number| number * 56 * SECOND / births);
        let samples = born.map(|born_ns| LiveSample { node, vcpu: 0, size: 16 << 10, born_ns });
        let samples: Vec<LiveSample> = samples.collect();
        let held = dump_times(120.0).into_iter().map(|time| {
            let at_ns = (time * SECOND as f64) as u64;
            let is_held = |sample: &&LiveSample| sample.born_ns <= at_ns;
            let samples = samples.iter().filter(is_held).copied().collect();
            Held { at_ns, samples }
        });
        let growth = find(&held.collect::<Vec<_>>(), 0, None, 4 << 10).unwrap();
        assert_eq!(growth.growing, [], "{births} samples");
    }
}

/// Where a stack both leaks and serves, the leak is what is left when the rest has died.
#[test]
fn a_leak_in_a_stack_that_also_serves_is_found() {
    let node = nodes(1)[0];
    let serves = |life| Site { bytes_per_second: 64.0 * KIB, size: 256, life, when: When::Steady };
    let mut found = 0;
    for seed in 0..SEEDS {
        let sites = [serves(Life::Mean(0.5)), serves(Life::Mean(8.0)), serves(Life::Forever)];
        let held = held(&sites, &[node; 3], 16 << 10, 120.0, seed);
        found += find(&held, 0, None, 16 << 10).unwrap().growing.len();
    }
    assert!(found as u64 >= 195, "found in {found} of {SEEDS}");
}

#[test]
fn chances_are_those_of_coins_and_boxes() {
    assert!((at_most(0, 10) - 2.0_f64.powi(-10)).abs() < 1e-12);
    assert!((at_most(2, 5) - 0.5).abs() < 1e-12);
    assert_eq!(at_most(5, 5), 1.0);
    assert_eq!(at_most(0, 0), 1.0);
    assert!((so_few(0, 3.0) - (-3.0_f64).exp()).abs() < 1e-12);
    assert!((so_few(1, 2.0) - 3.0 * (-2.0_f64).exp()).abs() < 1e-12);
    assert_eq!((so_few(0, 0.0), so_few(5, 0.0)), (1.0, 1.0));
    // Two births share one of eight boxes with a chance of one in eight.
    assert!((occupied_at_most(1, 2) - 0.125).abs() < 1e-12);
    assert!((occupied_at_most(8, 100_000) - 1.0).abs() < 1e-9);
}

#[test]
fn hostile_times_show_nothing_and_do_not_panic() {
    let node = nodes(1)[0];
    let sample = |size, born_ns| LiveSample { node, vcpu: 0, size, born_ns };
    let held = |at_ns, samples| Held { at_ns, samples };
    assert_eq!(find(&[], 0, None, 1), None);
    assert_eq!(find(&[held(5, vec![])], 0, None, 1), None);
    assert_eq!(find(&[held(5, vec![]), held(5, vec![])], 0, None, 1), None);
    assert_eq!(find(&[held(6, vec![]), held(5, vec![])], 0, None, 1), None);
    let all: Vec<LiveSample> = (0..100).map(|_| sample(u64::MAX, u64::MAX)).collect();
    let found = find(&[held(0, all.clone()), held(u64::MAX, all)], 0, Some(u64::MAX), 0).unwrap();
    assert_eq!((found.stacks, found.growing), (0, vec![]));
}

/// Equal allocations have no names: two of which one went are one that stays and one that went.
#[test]
fn equal_allocations_are_counted() {
    let node = nodes(1)[0];
    let sample = LiveSample { node, vcpu: 0, size: 8, born_ns: 1 };
    let held = |at_ns, count| Held { at_ns, samples: vec![sample; count] };
    let gone = gone_by_stack(&[held(10, 2), held(20, 3), held(30, 1)]);
    let seen_at = |seen_ns| Gone { born_ns: 1, seen_ns };
    assert_eq!(gone[&node], [seen_at(20), seen_at(20)]);
    let gone = gone_by_stack(&[held(10, 3), held(20, 2), held(30, 1)]);
    assert_eq!(gone[&node], [seen_at(20), seen_at(10)]);
}
