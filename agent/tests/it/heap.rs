//! Recordings of allocations and of what is still held, against exact books: the test notes every
//! allocation and free.

use crate::fake;
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashMap;
use std::mem::MaybeUninit;

use crate::client::{self, Client, Download, read, serve, whole};
use crate::fake::platform::{FakePlatform, TwoVcpus};
use crate::fake::stacks::{MAPPING, Random, Stack, stack};
use unikprof_agent::heap::Sampled;
use unikprof_agent::{Agent, Config, Platform, live_bytes, ring_bytes};
use unikprof_proto::code::{capability, frame_code, mode, refusal, start_flag, state};
use unikprof_proto::message::{Check, Fetch, Hello, Start, Status, Welcome};

const SECOND: u64 = 1_000_000_000;

fn leak(bytes: usize) -> &'static mut [MaybeUninit<u8>] {
    Box::leak(vec![MaybeUninit::uninit(); bytes].into_boxed_slice())
}

/// A guest with this memory for stacks and this room for live samples. One allocation was reported.
fn guest_with(bytes: usize, live: usize) -> &'static Agent<'static, FakePlatform> {
    let config = Config { recordings: 4, ..fake::CONFIG };
    let agent = Agent::new(FakePlatform::new(128), config, leak(bytes)).unwrap();
    let agent =
        agent.with_ring(leak(ring_bytes(1, 10_000))).with_live_memory(leak(live_bytes(live)));
    let agent = Box::leak(Box::new(agent));
    agent.on_alloc(address(0), 1);
    agent
}

fn guest() -> &'static Agent<'static, FakePlatform> {
    guest_with(1 << 20, 8_000)
}

/// A client of its service.
fn connected<'a, 'm, P: Platform>(agent: &'a Agent<'m, P>) -> Client<'a, 'm, P> {
    Client::connect(&serve(agent))
}

fn address(number: u64) -> *const u8 {
    std::ptr::without_provenance((0x1_0000_0000 + number * 48) as usize)
}

/// Distinct stacks that allocate.
fn sites(random: &mut Random, count: usize) -> Vec<Stack> {
    let mut sites = Vec::new();
    while sites.len() < count {
        let site = stack(random, 12);
        if !sites.contains(&site) {
            sites.push(site);
        }
    }
    sites
}

/// A stack as the client has it, without its size.
fn codes(stack: &Stack) -> Vec<u32> {
    let code = |address: &u64| (address - MAPPING.start) as u32;
    stack.0.iter().map(code).collect()
}

/// Splits a stack of a client into the size at its leaf and the rest.
fn size_and_site(stack: &[u32]) -> (u64, Vec<u32>) {
    let (leaf, rest) = stack.split_first().unwrap();
    let size = frame_code::size_of(leaf + frame_code::FIRST_ADDRESS);
    (size.unwrap(), rest.to_vec())
}

/// The agent notices a recording within some bytes; this makes it the next allocation.
fn look_at_the_next<P: Platform>(agent: &Agent<'_, P>) {
    agent.spend(agent.spend(0));
}

fn allocate(agent: &Agent<'_, FakePlatform>, site: &Stack, address: *const u8, size: u64) {
    agent.on_alloc_from(address, size as usize, || agent.platform().stack().lay(site));
}

/// The Horvitz-Thompson estimate of a sum from its samples, with its variance.
#[derive(Clone, Copy, Debug, Default)]
struct Estimate {
    /// The part of allocations that are always sampled.
    exact: f64,
    sum: f64,
    variance: f64,
    /// The greatest contribution of one sample.
    most: f64,
}

impl Estimate {
    fn add(&mut self, value: f64, size: u64, samples: u64, interval: u64) {
        if size >= interval {
            self.exact += samples as f64 * value;
            return;
        }
        let p = -(-(size as f64) / interval as f64).exp_m1();
        let weight = value / p;
        self.sum += samples as f64 * weight;
        self.variance += samples as f64 * weight * weight * (1.0 - p);
        self.most = self.most.max(weight);
    }

    fn total(&self) -> f64 {
        self.exact + self.sum
    }

    /// Whether the 95 % interval contains this sum: the interval of Fay and Feuer (1997) for a
    /// weighted sum of Poisson counts. A symmetric one is too short on the upper side where few
    /// samples have great weights.
    fn contains(&self, truth: u64) -> bool {
        let truth = truth as f64 - self.exact;
        let Self { sum, variance, most, .. } = *self;
        if sum == 0.0 {
            return truth.abs() < 0.5;
        }
        let lower = variance / (2.0 * sum) * chi_squared(2.0 * sum * sum / variance, -1.96);
        let (sum, variance) = (sum + most, variance + most * most);
        let upper = variance / (2.0 * sum) * chi_squared(2.0 * sum * sum / variance, 1.96);
        (lower - 0.5..=upper + 0.5).contains(&truth)
    }
}

/// The quantile of a chi-squared distribution that is `deviations` standard deviations from the
/// mean of a normal one, by Wilson and Hilferty.
fn chi_squared(freedom: f64, deviations: f64) -> f64 {
    let part = 2.0 / (9.0 * freedom);
    freedom * (1.0 - part + deviations * part.sqrt()).powi(3)
}

/// Bytes and objects, of all sites and of the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Books {
    bytes: u64,
    objects: u64,
    first_bytes: u64,
}

/// The number of runs whose exact sum was inside the estimate's interval.
#[derive(Debug, Default)]
struct Hits {
    bytes: u32,
    objects: u32,
    first_bytes: u32,
}

impl Hits {
    fn judge(&mut self, estimates: &[Estimate; 3], books: &Books) {
        self.bytes += u32::from(estimates[0].contains(books.bytes));
        self.objects += u32::from(estimates[1].contains(books.objects));
        self.first_bytes += u32::from(estimates[2].contains(books.first_bytes));
    }

    /// 200 intervals of 95 % contain the truth in 183 runs or more with a probability of 98 %.
    fn assert_of_200(&self) {
        let Self { bytes, objects, first_bytes } = *self;
        assert!(bytes >= 183 && objects >= 183 && first_bytes >= 183, "{self:?}");
    }
}

fn estimates<'s>(
    samples: impl Iterator<Item = (&'s [u32], u64, u64)>,
    first: &[u32],
    interval: u64,
) -> [Estimate; 3] {
    let mut all = [Estimate::default(); 3];
    for (site, size, count) in samples {
        all[0].add(size as f64, size, count, interval);
        all[1].add(1.0, size, count, interval);
        if site == first {
            all[2].add(size as f64, size, count, interval);
        }
    }
    all
}

/// Sizes over four orders of magnitude, most of them small: 64 bytes to 512 KiB. There are not too
/// many: each size at or above the interval makes a stack of its own.
fn any_sizes(random: &mut Random) -> Vec<u64> {
    let size = |_| {
        let least = 64 << random.below(7) << random.below(7);
        least + random.below(least)
    };
    (0..100).map(size).collect()
}

fn any_of(random: &mut Random, sizes: &[u64]) -> u64 {
    sizes[random.below(sizes.len() as u64) as usize]
}

fn count_of_sizes(got: &Download) -> HashMap<(Vec<u32>, u64), u64> {
    let mut counts = HashMap::new();
    for (stack, count) in &got.stacks {
        let (size, site) = size_and_site(stack);
        *counts.entry((site, size)).or_default() += count;
    }
    counts
}

/// Guards the estimator: sums of bytes and of objects, of all and of one site, are in their
/// intervals as often as the intervals say, and the sum of all is that which the agent counts
/// exactly.
#[test]
fn sums_of_allocations_lie_in_their_intervals() {
    const INTERVAL: u64 = 4 << 10;
    let mut random = Random::new(1);
    let mut hits = Hits::default();
    let mut ratios = 0.0;
    for run in 0..200 {
        let agent = guest();
        let service = serve(agent);
        let mut client = Client::connect(&service);
        // Each agent draws the same random numbers: the runs must use others.
        begin(&mut client, Start::heap("before", mode::ALLOC, 64));
        for number in 0..run * 7 {
            agent.on_alloc(address(number), 63);
        }
        client.discard();
        let sites = sites(&mut random, 20);
        let sizes = any_sizes(&mut random);
        begin(&mut client, Start::heap("allocations", mode::ALLOC, INTERVAL));
        let before = agent_bytes(&mut client);
        let mut books = Books::default();
        for number in 0..4_000 {
            let site = random.below(20) as usize;
            let size = any_of(&mut random, &sizes);
            books.bytes += size;
            books.objects += 1;
            books.first_bytes += if site == 0 { size } else { 0 };
            agent.platform().advance(1_000);
            allocate(agent, &sites[site], address(number), size);
        }
        let got = client.collect_stop(0);
        assert_eq!(got.end.allocated_bytes - before, books.bytes, "run {run}");
        assert_eq!(got.counters.ticks, got.counters.recorded, "run {run}");
        let counts = count_of_sizes(&got);
        let samples = counts.iter().map(|((site, size), count)| (&site[..], *size, *count));
        let estimates = estimates(samples, &codes(&sites[0]), INTERVAL);
        ratios += estimates[0].total() / books.bytes as f64;
        hits.judge(&estimates, &books);
    }
    hits.assert_of_200();
    assert!((ratios / 200.0 - 1.0).abs() < 0.01, "{}", ratios / 200.0);
}

/// A size below the mean must not be rounded to one that is always sampled: the client would give
/// it no weight.
#[test]
fn sizes_just_below_a_mean_keep_their_weight() {
    const COUNT: u64 = 2_000;
    let agent = guest();
    let mut client = connected(agent);
    let sites = sites(&mut Random::new(3), 1);
    for (interval, size) in [(4_096, 4_095), (4_100, 4_099), (10_000, 9_985)] {
        begin(&mut client, Start::heap("edge", mode::ALLOC, interval));
        for number in 0..COUNT {
            allocate(agent, &sites[0], address(number), size);
        }
        let got = client.collect_stop(0);
        let counts = count_of_sizes(&got);
        let samples = counts.iter().map(|((site, size), count)| (&site[..], *size, *count));
        let total = estimates(samples, &codes(&sites[0]), interval)[0].total();
        // 63 % of them are sampled: the standard deviation is 1.7 %.
        let ratio = total / (COUNT * size) as f64;
        assert!((ratio - 1.0).abs() < 0.085, "{size} of {interval}: {ratio}");
    }
}

/// A vCPU that reads the clock, is interrupted, and goes on after the answer to a fetch has begun,
/// inserts a sample of the answer's time with a stack that the answer has not announced.
#[test]
fn a_sample_whose_stack_an_answer_lacks_is_left_for_the_next() {
    let mut random = Random::new(12);
    let sites = sites(&mut random, 2);
    for begun in 0..1_500 {
        let agent = guest();
        let service = serve(agent);
        let mut client = Client::connect(&service);
        begin(&mut client, Start::heap("held", mode::LIVE, 64));
        allocate(agent, &sites[0], address(1), 10_000);
        let epoch = client.dump(0).first_epoch;
        client.send_only(&whole(epoch));
        let taken = client.take(begun);
        allocate(agent, &sites[1], address(2), 10_000);
        client.take(100_000);
        let got = client::download_whole(&client.frames());
        assert!((1..=2).contains(&got.live.len()), "after {begun} bytes");
        if taken < begun {
            return;
        }
    }
    panic!("an answer of a few hundred bytes");
}

/// The agent's exact count of bytes, from an epoch's head.
fn agent_bytes(client: &mut Client<'_, '_, FakePlatform>) -> u64 {
    agent_bytes_of(client, 0)
}

/// Guards against a bias by frees: what is still held after random frees is estimated without one,
/// with the stack, the exact size and the birth of each.
#[test]
fn what_is_held_after_random_frees_lies_in_its_interval() {
    const INTERVAL: u64 = 4 << 10;
    let agent = guest();
    let mut client = connected(agent);
    let mut random = Random::new(2);
    let mut hits = Hits::default();
    let mut ratios = 0.0;
    for _ in 0..200 {
        let sites = sites(&mut random, 20);
        let sizes = any_sizes(&mut random);
        begin(&mut client, Start::heap("held", mode::LIVE, INTERVAL));
        let mut held: HashMap<u64, (usize, u64, u64)> = HashMap::new();
        for _ in 0..9_000 {
            let number = random.below(6_000);
            agent.platform().advance(1_000);
            if held.remove(&number).is_some() {
                agent.on_free(address(number));
                continue;
            }
            let site = random.below(20) as usize;
            let size = any_of(&mut random, &sizes);
            held.insert(number, (site, size, agent.platform().now_ns()));
            allocate(agent, &sites[site], address(number), size);
        }
        let got = client.collect_stop(0);
        let truth: HashMap<(Vec<u32>, u64, u64), ()> = held
            .values()
            .map(|(site, size, born_ns)| ((codes(&sites[*site]), *size, *born_ns), ()))
            .collect();
        for sample in &got.live {
            assert!(truth.contains_key(sample), "{sample:?} is not held");
        }
        let large = held.values().filter(|(_, size, _)| *size >= INTERVAL);
        let kept = got.live.iter().filter(|(_, size, _)| *size >= INTERVAL);
        assert_eq!(kept.count(), large.count(), "large ones are always kept");
        let mut books = Books::default();
        for (site, size, _) in held.values() {
            books.bytes += size;
            books.objects += 1;
            books.first_bytes += if *site == 0 { *size } else { 0 };
        }
        for number in held.into_keys() {
            agent.on_free(address(number));
        }
        let samples = got.live.iter().map(|(site, size, _)| (&site[..], *size, 1));
        let estimates = estimates(samples, &codes(&sites[0]), INTERVAL);
        ratios += estimates[0].total() / books.bytes as f64;
        hits.judge(&estimates, &books);
        assert!(got.counters.add_up());
        let freed = got.end.freed_samples;
        assert!(freed > 0);
        settle(&mut client);
    }
    hits.assert_of_200();
    assert!((ratios / 200.0 - 1.0).abs() < 0.01, "{}", ratios / 200.0);
}

/// Polls until there are no live samples.
fn settle(client: &mut Client<'_, '_, FakePlatform>) {
    for _ in 0..1_000 {
        client.advance();
        if read::<Status>(&client.ask(&Check {})[0]).live_used == 0 {
            return;
        }
    }
    panic!("live samples of removed recordings stay");
}

/// Starts a recording and waits until it records: first the counts of earlier ones are cleared.
fn begin(client: &mut Client<'_, '_, FakePlatform>, start: Start<'_>) {
    client.start(start);
    for _ in 0..1_000 {
        if client.status().0 == state::RECORDING {
            return;
        }
        client.advance();
    }
    panic!("the recording does not begin");
}

/// Guards against recordings that disturb each other: both modes and running time, each with its
/// own interval.
#[test]
fn recordings_of_several_modes_and_intervals_run_at_once() {
    let agent = guest();
    let mut client = connected(agent);
    let mut random = Random::new(3);
    let sites = sites(&mut random, 5);
    let sizes = any_sizes(&mut random);
    let fine = client.start(Start::heap("fine", mode::ALLOC, 1 << 10));
    let coarse = client.start(Start::heap("coarse", mode::ALLOC, 64 << 10));
    let held = client.start(Start::heap("held", mode::LIVE, 8 << 10));
    let running = client.start(Start::running_time("time", 1_000_000));
    let mut books = Books::default();
    for number in 0..20_000 {
        let size = any_of(&mut random, &sizes);
        books.bytes += size;
        agent.platform().advance(20_000);
        allocate(agent, &sites[0], address(number), size);
        agent.on_free(address(number));
        if agent.deadline().is_some_and(|at| at <= agent.platform().now_ns()) {
            agent.on_tick(Some(&agent.platform().stack().lay(&sites[1])));
        }
    }
    for (recording, interval) in [(fine, 1 << 10), (coarse, 64 << 10)] {
        let got = client.collect_stop(recording);
        let counts = count_of_sizes(&got);
        let mut estimate = Estimate::default();
        for ((site, size), count) in counts {
            assert_eq!(site, codes(&sites[0]));
            estimate.add(size as f64, size, count, interval);
        }
        let error = (estimate.total() - books.bytes as f64).abs();
        assert!(error <= 4.0 * estimate.variance.sqrt(), "{estimate:?} {books:?}");
    }
    let got = client.collect_stop(held);
    assert_eq!(got.live, [], "everything was freed");
    assert!(got.end.freed_samples > 1_000 && got.counters.recorded > 1_000);
    let got = client.collect_stop(running);
    assert!(got.stacks.keys().all(|stack| *stack == codes(&sites[1])));
    assert!(got.samples > 300, "{}", got.samples);
}

/// A runtime draws its own samples, of blocks that it moves; a recording beside it also has the
/// allocations of the guest.
#[test]
fn what_a_runtime_draws_is_estimated_like_the_rest() {
    const INTERVAL: u64 = 32 << 10;
    const OWN: u64 = 2 << 10;
    let agent = guest();
    let mut client = connected(agent);
    let mut random = Random::new(31);
    let sites = sites(&mut random, 2);
    let made = client.start(Start::heap("made", mode::ALLOC, INTERVAL));
    let held = client.start(Start::heap("held", mode::LIVE, INTERVAL));
    let before = agent_bytes_of(&mut client, made);
    let (mut bytes, mut kept) = (0, 0);
    for number in 0..60_000_u64 {
        let size = 16 << random.below(6) << random.below(5);
        agent.platform().advance(1_000);
        bytes += 2 * size;
        allocate(agent, &sites[0], address(number), size);
        let p = -(-(size as f64) / OWN as f64).exp_m1();
        let is_drawn = (random.below(1 << 32) as f64) < p * (1_u64 << 32) as f64;
        let key = 2 * number + 1;
        if is_drawn {
            let registers = agent.platform().stack().lay(&sites[1]);
            agent.on_sampled_alloc(key, size, OWN, &registers);
        }
        if number % 3 == 0 {
            kept += size;
        } else {
            agent.on_free(address(number));
            if is_drawn {
                agent.on_free(std::ptr::without_provenance(key as usize));
            }
        }
    }
    for key in [1, 3] {
        let registers = agent.platform().stack().lay(&sites[1]);
        agent.on_sampled_alloc(0, 1 << 20, OWN, &registers);
        agent.on_sampled_alloc(key, 0, OWN, &registers);
        agent.on_sampled_alloc(key, 1 << 20, 0, &registers);
    }
    let got = client.collect_stop(made);
    let counted = got.end.allocated_bytes - before;
    // What the runtime allocates is known from its samples.
    let deviation = (bytes as f64 / 2.0 * OWN as f64).sqrt();
    assert!((counted as f64 - bytes as f64).abs() < 5.0 * deviation, "{counted} of {bytes}");
    let mut estimates = [Estimate::default(); 2];
    for ((site, size), count) in count_of_sizes(&got) {
        let at = usize::from(site == codes(&sites[1]));
        estimates[at].add(size as f64, size, count, INTERVAL);
    }
    let epoch = client.stop(held).first_epoch;
    let mut of_held = [Estimate::default(); 2];
    for (site, size, _) in client.fetch(epoch).live {
        let at = usize::from(site == codes(&sites[1]));
        of_held[at].add(size as f64, size, 1, INTERVAL);
    }
    for (estimates, truth) in [(estimates, bytes / 2), (of_held, kept)] {
        for estimate in estimates {
            let apart = (estimate.total() - truth as f64).abs();
            assert!(apart < 4.5 * estimate.variance.sqrt(), "{estimate:?} of {truth}");
        }
    }
}

/// The exact count of bytes, from the head of an epoch of this recording.
fn agent_bytes_of(client: &mut Client<'_, '_, FakePlatform>, recording: u64) -> u64 {
    let got = client.collect_dump(recording);
    got.end.allocated_bytes
}

/// A guest without any of it must be told what is missing.
#[test]
fn what_cannot_be_recorded_is_refused() {
    let config = fake::CONFIG;
    let agent = Agent::new(FakePlatform::new(128), config, leak(1 << 18)).unwrap();
    let mut client = connected(&agent);
    let has = |client: &mut Client<'_, '_, FakePlatform>| {
        let answers = client.ask(&Hello { client: "test", client_id: 0 });
        read::<Welcome<'_>>(&answers[0]).capabilities & (capability::HEAP | capability::LIVE)
    };
    assert_eq!(has(&mut client), 0);
    let (code, text) = client.refusal(&Start::heap("a", mode::ALLOC, 4096));
    assert_eq!(code, refusal::UNSUPPORTED_MODE);
    assert!(text.contains("has not reported any allocation"), "{text}");
    agent.on_alloc(address(1), 8);
    assert_eq!(has(&mut client), capability::HEAP);
    let (code, text) = client.refusal(&Start::heap("a", mode::LIVE, 4096));
    assert_eq!(code, refusal::UNSUPPORTED_MODE);
    assert!(text.contains("no memory for live allocations"), "{text}");
    for interval in [0, 63, (1 << 40) + 1, u64::MAX] {
        let (code, _) = client.refusal(&Start::heap("a", mode::ALLOC, interval));
        assert_eq!(code, refusal::BAD_INTERVAL);
    }
    let (code, _) = client.refusal(&Start { mode: 5, ..Start::running_time("a", 1_000_000) });
    assert_eq!(code, refusal::UNSUPPORTED_MODE);
    client.start(Start::heap("a", mode::ALLOC, 1 << 40));
}

/// Every odd call is defined: NULL, sizes 0 and 2^60, frees of what was never allocated, a free
/// twice.
#[test]
fn odd_calls_change_nothing_else() {
    let agent = guest();
    let mut client = connected(agent);
    client.start(Start::heap("held", mode::LIVE, 64));
    let before = agent_bytes(&mut client);
    let null = std::ptr::null();
    agent.on_alloc(null, 1 << 20);
    agent.on_alloc(null, 0);
    agent.on_free(null);
    agent.on_realloc(null, null, 0);
    agent.on_realloc(null, null, 1 << 20);
    for number in 1..1_000 {
        agent.on_free(address(number));
    }
    assert_eq!(agent_bytes(&mut client), before, "nothing was allocated");
    agent.on_alloc(address(1), 0);
    agent.on_alloc(address(2), 1 << 60);
    agent.on_free(address(2));
    agent.on_free(address(2));
    // realloc(NULL, 100), then in place, elsewhere, without success, and to nothing.
    agent.on_realloc(null, address(3), 100);
    agent.on_realloc(address(3), address(3), 200);
    agent.on_realloc(address(3), address(4), 300);
    agent.on_realloc(address(4), null, usize::MAX);
    let got = client.collect_dump(0);
    let sizes: Vec<u64> = got.live.iter().map(|(_, size, _)| *size).collect();
    assert_eq!(sizes, [300]);
    assert_eq!(got.end.allocated_bytes - before, (1 << 60) + 600);
    assert_eq!(got.end.freed_samples, 3);
    agent.on_realloc(address(4), null, 0);
    assert_eq!(client.collect_stop(0).live, []);
}

/// The address is used again before the client fetches: only the new allocation is there.
#[test]
fn an_address_that_is_reused_at_once_is_the_new_allocation() {
    let agent = guest();
    let mut client = connected(agent);
    let sites = sites(&mut Random::new(4), 2);
    client.start(Start::heap("held", mode::LIVE, 64));
    for round in 0..1_000 {
        agent.platform().advance(1);
        allocate(agent, &sites[0], address(5), 64 + round);
        agent.on_free(address(5));
        allocate(agent, &sites[1], address(5), 64 + round);
        agent.on_free(address(5));
    }
    allocate(agent, &sites[1], address(5), 77);
    let live = client.collect_stop(0).live;
    assert_eq!(live, [(codes(&sites[1]), 77, agent.platform().now_ns())]);
}

/// A client gets the allocations held when a recording ends, however long it takes to fetch it:
/// frees after the end would thin out what lives shortly. A recording that goes on sees them.
#[test]
fn what_is_held_at_the_end_of_a_recording_stays_until_it_is_fetched() {
    let agent = guest();
    let mut client = connected(agent);
    let site = stack(&mut Random::new(21), 12);
    let timed = Start { duration_ns: SECOND, ..Start::heap("timed", mode::LIVE, 64) };
    let timed = client.start(timed);
    let stopped = client.start(Start::heap("stopped", mode::LIVE, 64));
    let goes_on = client.start(Start::heap("goes on", mode::LIVE, 64));
    look_at_the_next(agent);
    let allocate = |number: u64| {
        agent.platform().advance(1);
        allocate(agent, &site, address(number), 1_000 + number);
    };
    (0..300).for_each(allocate);
    (0..100).for_each(|number| agent.on_free(address(number)));
    client.stop(stopped);
    (100..150).for_each(|number| agent.on_free(address(number)));
    agent.platform().advance(2 * SECOND);
    // Freed, and used again at once.
    for number in 150..200 {
        agent.on_free(address(number));
        allocate(number);
        if number >= 160 {
            agent.on_free(address(number));
        }
    }
    let mut held = |recording: u64| {
        let got = client.collect_stop(recording);
        assert!(got.counters.add_up());
        let mut sizes: Vec<u64> = got.live.iter().map(|(_, size, _)| *size).collect();
        sizes.sort_unstable();
        sizes
    };
    let numbers = |numbers: &mut dyn Iterator<Item = u64>| -> Vec<u64> {
        numbers.map(|number| 1_000 + number).collect()
    };
    assert_eq!(held(stopped), numbers(&mut (100..300)));
    assert_eq!(held(timed), numbers(&mut (150..300)));
    assert_eq!(held(goes_on), numbers(&mut (150..160).chain(200..300)));
    settle(&mut client);
}

/// An answer takes its time; what is allocated meanwhile stands for what is freed meanwhile.
#[test]
fn an_answer_shows_what_is_held_while_it_is_sent() {
    let agent = guest();
    let mut client = connected(agent);
    let site = stack(&mut Random::new(22), 12);
    client.start(Start::heap("held", mode::LIVE, 64));
    look_at_the_next(agent);
    let again = |number: u64| {
        agent.platform().advance(1);
        agent.on_free(address(number));
        allocate(agent, &site, address(number), 1_000);
    };
    (0..100).for_each(again);
    let epoch = client.dump(0).first_epoch;
    (0..100).for_each(again);
    assert_eq!(client.fetch(epoch).live.len(), 100);
}

/// Guards the account of a full table: what has no room is counted, and the guest goes on.
#[test]
fn a_full_table_drops_new_samples_and_counts_them() {
    let agent = guest_with(1 << 20, 100);
    let mut client = connected(agent);
    let site = stack(&mut Random::new(5), 12);
    client.start(Start::heap("held", mode::LIVE, 64));
    look_at_the_next(agent);
    for number in 0..1_000 {
        allocate(agent, &site, address(number), 100);
    }
    let got = client.collect_dump(0);
    assert_eq!(got.counters.ticks, 1_000);
    assert_eq!(got.counters.recorded + got.counters.overflow, 1_000);
    assert_eq!(got.counters.recorded, got.live.len() as u64);
    assert!((95..=105).contains(&got.live.len()), "{}", got.live.len());
    let status: Status = read(&client.ask(&Check {})[0]);
    assert_eq!((status.live_used, status.live_capacity), (got.live.len() as u64, 105));
    for number in 0..1_000 {
        agent.on_free(address(number));
    }
    allocate(agent, &site, address(7), 100);
    assert_eq!(client.collect_stop(0).live.len(), 1);
}

/// Samples of a recording that is gone must not fill the table, nor appear in the next one.
#[test]
fn samples_of_a_removed_recording_are_removed() {
    let agent = guest();
    let mut client = connected(agent);
    let site = stack(&mut Random::new(6), 12);
    client.start(Start::heap("first", mode::LIVE, 64));
    for number in 0..500 {
        agent.platform().advance(1);
        allocate(agent, &site, address(number), 100);
    }
    let epoch = client.stop(0).first_epoch;
    client.acknowledge(epoch);
    settle(&mut client);
    agent.platform().advance(1);
    client.start(Start::heap("second", mode::LIVE, 64));
    allocate(agent, &site, address(1_000), 100);
    assert_eq!(client.collect_stop(0).live.len(), 1);
}

/// Guards against samples that are held for ever: until the samples of a removed recording are
/// removed, they seem to be of the next one, which has the same index.
#[test]
fn a_free_passes_by_samples_of_a_removed_recording() {
    // So many that polls take a while to remove them.
    let agent = guest_with(1 << 20, 80_000);
    let service = serve(agent);
    let mut client = Client::connect(&service);
    let site = stack(&mut Random::new(6), 12);
    for name in ["first", "second"] {
        agent.platform().advance(1);
        client.start(Start::heap(name, mode::LIVE, 64));
        look_at_the_next(agent);
        for number in 0..500 {
            allocate(agent, &site, address(number), 100);
        }
        if name == "first" {
            let epoch = client.stop(0).first_epoch;
            client.acknowledge(epoch);
        }
        for number in 0..500 {
            agent.on_free(address(number));
        }
    }
    let epoch = client.stop(0).first_epoch;
    let got = client.fetch(epoch);
    assert_eq!((got.counters.recorded, got.live.len()), (500, 0));
}

/// Stacks that are given up move with the allocations that they hold: none is lost while there is
/// room.
#[test]
fn held_allocations_keep_their_stacks_while_stacks_age() {
    // Memory for about a thousand nodes.
    let agent = guest_with(256 << 10, 700);
    let mut client = connected(agent);
    let mut random = Random::new(8);
    let sites = sites(&mut random, 10);
    let held = client.start(Start::heap("held", mode::LIVE, 64));
    look_at_the_next(agent);
    client.start(Start {
        flags: start_flag::KEEP_NEWEST,
        ..Start::running_time("time", SECOND / 997)
    });
    let mut books = HashMap::new();
    for number in 0..400 {
        agent.platform().advance(1_000);
        let site = &sites[number as usize % 10];
        books.insert((codes(site), 100 + number, agent.platform().now_ns()), number);
        allocate(agent, site, address(number), 100 + number);
    }
    for round in 0..20_000 {
        let other = stack(&mut random, 30);
        agent.platform().advance(SECOND / 900);
        agent.on_tick(Some(&agent.platform().stack().lay(&other)));
        client.advance();
        if round % 5_000 == 0 {
            let number = round / 100;
            agent.on_free(address(number));
            books.retain(|_, it| *it != number);
        }
    }
    let got = client.collect_stop(held);
    assert_eq!(got.counters.aged, 0, "{:?}", got.counters);
    let live: HashMap<_, _> = got.live.into_iter().map(|it| (it, ())).collect();
    assert_eq!(live.len(), books.len());
    assert!(live.keys().all(|sample| books.contains_key(sample)));
}

/// Two vCPUs: each frees what the other allocated, and each sees its own stacks.
#[test]
fn a_vcpu_may_free_what_another_one_allocated() {
    let config = Config { vcpus: 2, ..fake::CONFIG };
    let agent = Agent::new(TwoVcpus::new(128), config, leak(1 << 20))
        .unwrap()
        .with_live_memory(leak(live_bytes(1_000)));
    let sites = sites(&mut Random::new(9), 2);
    let on = |vcpu: u32, number: u64| {
        agent.platform().switch_to(vcpu);
        agent.on_alloc_from(address(number), 100, || {
            agent.platform().fake.stack().lay(&sites[vcpu as usize])
        });
    };
    on(0, 0);
    let mut client = connected(&agent);
    client.start(Start::heap("held", mode::LIVE, 64));
    for vcpu in 0..2 {
        agent.platform().switch_to(vcpu);
        look_at_the_next(&agent);
    }
    for number in 0..200 {
        on(number as u32 % 2, number);
    }
    for number in 0..200 {
        // Freed by the other vCPU, except for every tenth.
        agent.platform().switch_to(1 - number as u32 % 2);
        if number % 10 > 1 {
            agent.on_free(address(number));
        }
    }
    let epoch = client.stop(0).first_epoch;
    for vcpu in 0..2 {
        let fetch = Fetch { vcpu, ..whole(epoch) };
        let got = client::download_whole(&client.ask(&fetch));
        let expected = codes(&sites[vcpu as usize]);
        assert_eq!(got.live.len(), 20);
        assert!(got.live.iter().all(|(site, ..)| *site == expected));
        assert_eq!(got.end.freed_samples, 80);
        assert_eq!(got.counters.recorded, 100);
    }
}

/// The guest's arenas are counters in the ring.
#[test]
fn arenas_become_counters() {
    let agent = guest();
    let mut client = connected(agent);
    agent.arena("heap", 5_000, 64 << 20).unwrap();
    agent.arena("heap", 6_000, 64 << 20).unwrap();
    assert!(agent.arena("", 1, 2).is_err());
    assert!(agent.arena(&"x".repeat(44), 1, 2).is_err());
    let (names, _) = client.event_names();
    assert_eq!(names, ["heap.used", "heap.size"]);
    let (_, records, _) = client.ring(&client::RING);
    let values: Vec<u64> = records.iter().map(|(_, record)| record.second).collect();
    assert_eq!(values, [5_000, 64 << 20, 6_000, 64 << 20]);
}

/// An allocator whose memory is used up after a number of calls.
struct Scarce(std::cell::Cell<u32>);

// SAFETY: forwards to the system's allocator, or returns NULL.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Scarce {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.0.get().checked_sub(1) {
            None => std::ptr::null_mut(),
            Some(left) => {
                self.0.set(left);
                // SAFETY: the caller upholds the contract.
                unsafe { System.alloc(layout) }
            }
        }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(address, layout) }
    }
}

/// An allocator that lets time pass before each realloc, which fails.
struct Slow<F>(F);

// SAFETY: forwards to the system's allocator, or returns NULL.
#[allow(unsafe_code)]
unsafe impl<F: Fn()> GlobalAlloc for Slow<F> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(address, layout) }
    }

    unsafe fn realloc(&self, _: *mut u8, _: Layout, _: usize) -> *mut u8 {
        (self.0)();
        std::ptr::null_mut()
    }
}

/// Stacks are given up while a realloc is under way that fails: the allocation must not return with
/// another one's stack.
#[allow(unsafe_code)]
#[test]
fn a_failed_realloc_does_not_return_to_a_stack_that_was_given_up() {
    let agent = guest_with(256 << 10, 700);
    let service = serve(agent);
    let client = std::cell::RefCell::new(Client::connect(&service));
    let random = std::cell::RefCell::new(Random::new(9));
    let held = client.borrow_mut().start(Start::heap("held", mode::LIVE, 64));
    client.borrow_mut().start(Start {
        flags: start_flag::KEEP_NEWEST,
        ..Start::running_time("time", SECOND / 997)
    });
    let heap = Sampled::new(Slow(|| {
        for _ in 0..20_000 {
            let other = stack(&mut random.borrow_mut(), 30);
            agent.platform().advance(SECOND / 900);
            agent.on_tick(Some(&agent.platform().stack().lay(&other)));
            client.borrow_mut().advance();
        }
    }));
    heap.attach(agent);
    let fetch = || client.borrow_mut().collect_dump(held);
    let layout = Layout::from_size_align(1_000, 8).unwrap();
    // SAFETY: the address is used as the allocator's contract says, and freed once.
    unsafe {
        let address = heap.alloc(layout);
        let before = fetch();
        assert_eq!(before.live.len(), 1);
        assert!(heap.realloc(address, layout, 2_000).is_null());
        let after = fetch();
        assert!(
            after.live.is_empty() || after.live == before.live,
            "{:?}, before {:?}",
            after.live,
            before.live
        );
        heap.dealloc(address, layout);
    }
}

/// Two live samples have one address: one of a recording that has ended, and that of the allocation
/// which got the address then. A realloc of the latter that fails must compare it with its own
/// stack, in whatever order the table has them.
#[allow(unsafe_code)]
#[test]
fn samples_that_share_an_address_keep_their_own_stacks() {
    let agent = guest_with(1 << 20, 700);
    let heap = Sampled::new(Slow(|| {}));
    heap.attach(agent);
    let mut client = connected(agent);
    let sites = sites(&mut Random::new(23), 2);
    let all = 0..100;
    let allocate = |site: &Stack, number: u64, size: u64| {
        agent.platform().advance(1);
        allocate(agent, site, address(number), size);
    };
    let start = |client: &mut Client<'_, '_, FakePlatform>, name| {
        let id = client.start(Start::heap(name, mode::LIVE, 64));
        look_at_the_next(agent);
        id
    };
    let third = start(&mut client, "third");
    let first = start(&mut client, "first");
    // Others that are gone later leave room before the first sample of an address.
    (100..400).for_each(|number| allocate(&sites[0], number, 900));
    all.clone().for_each(|number| allocate(&sites[0], number, 1_000));
    (100..400).for_each(|number| agent.on_free(address(number)));
    client.stop(first);
    agent.platform().advance(SECOND);
    all.clone().for_each(|number| agent.on_free(address(number)));
    let second = start(&mut client, "second");
    all.clone().for_each(|number| allocate(&sites[1], number, 1_000));
    client.stop(second);
    agent.platform().advance(SECOND);
    let layout = Layout::from_size_align(1_000, 8).unwrap();
    for number in all.clone() {
        // SAFETY: the allocator does not use the address.
        let moved = unsafe { heap.realloc(address(number).cast_mut(), layout, 2_000) };
        assert!(moved.is_null());
    }
    for (recording, site) in [(first, &sites[0]), (second, &sites[1]), (third, &sites[1])] {
        let got = client.collect_stop(recording);
        let expected = codes(site);
        let is_expected =
            |(stack, size, _): &&(Vec<u32>, u64, u64)| *stack == expected && *size == 1_000;
        let found = got.live.iter().filter(is_expected).count();
        assert_eq!((found, got.live.len()), (100, 100), "recording {recording}");
    }
    all.for_each(|number| agent.on_free(address(number)));
    settle(&mut client);
}

/// Out of memory inside a sampled allocation: nothing is counted, and a failed realloc keeps its
/// sample.
#[allow(unsafe_code)]
#[test]
fn allocations_that_fail_are_not_counted() {
    let agent = guest();
    let heap = Sampled::new(Scarce(std::cell::Cell::new(2)));
    heap.attach(agent);
    let mut client = connected(agent);
    client.start(Start::heap("held", mode::LIVE, 64));
    let before = agent_bytes(&mut client);
    let layout = Layout::from_size_align(1_000, 8).unwrap();
    // SAFETY: each address is used as the allocator's contract says, and freed once.
    unsafe {
        let first = heap.alloc(layout);
        let second = heap.alloc_zeroed(layout);
        assert!(heap.alloc(layout).is_null() && heap.alloc_zeroed(layout).is_null());
        assert!(heap.realloc(first, layout, 2_000).is_null());
        let got = client.collect_dump(0);
        assert_eq!(got.end.allocated_bytes - before, 2_000);
        assert_eq!((got.live.len(), got.end.freed_samples), (2, 0));
        heap.dealloc(first, layout);
        heap.dealloc(second, layout);
    }
    let got = client.collect_stop(0);
    assert_eq!((got.live.len(), got.end.freed_samples), (0, 2));
}
