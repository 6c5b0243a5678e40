//! Incremental fetching: neither nodes that the client has nor counts of zero are sent again.

use std::collections::HashMap;

use crate::client::{
    Download, Frame, Known, counts_of, download_to, encoded, newest, one_ms, read, whole,
};
use crate::fake_guest::{Client, FakeAgent, VCPU, connected, tick};
use unikprof_proto::code::refusal;
use unikprof_proto::frame::{self, Message as _};
use unikprof_proto::message::{Counts, Fetch, Histogram, Nodes, Refusal, VcpuEnd};
use unikprof_proto::varint::take_varint;

/// A client that keeps everything it has fetched of one vCPU.
struct Collector {
    client: Client,
    vcpu: u32,
    known: Known,
}

impl Collector {
    fn new(client: Client, vcpu: u32) -> Self {
        Self { client, vcpu, known: Known::new() }
    }

    fn request(&self, epoch: u64) -> Fetch {
        Fetch { vcpu: self.vcpu, known: newest(&self.known), ..whole(epoch) }
    }

    /// Fetches its vCPU's part; returns it with the frames of the answer.
    fn fetch(&mut self, epoch: u64) -> (Download, Vec<Frame>) {
        let request = self.request(epoch);
        let frames = self.client.ask(&request);
        (download_to(&mut self.known, &frames), frames)
    }

    /// Ends the current epoch, fetches and acknowledges it.
    fn collect(&mut self) -> (Download, Vec<Frame>) {
        let epoch = self.client.end_epoch();
        let fetched = self.fetch(epoch);
        self.client.acknowledge(epoch);
        fetched
    }
}

fn is_nodes(frame: &&Frame) -> bool {
    frame.kind == Nodes::TYPE
}

/// The number of counts in an answer, and the bytes of their payloads and of their frames.
fn counts_in(frames: &[Frame]) -> (usize, usize, usize) {
    let runs = frames.iter().filter(|frame| frame.kind == Counts::TYPE);
    runs.fold((0, 0, 0), |(counts, payload, bytes), frame| {
        let run: Counts<'_> = read(frame);
        (
            counts + counts_of(&run).len(),
            payload + run.payload.len(),
            bytes + frame::HEADER + frame.body.len(),
        )
    })
}

/// Samples stacks by their numbers; returns the expected counts.
fn sample(agent: &FakeAgent, numbers: impl Iterator<Item = u64>) -> HashMap<Vec<u32>, u64> {
    let mut truth = HashMap::new();
    for number in numbers {
        // Stacks that share their outer callers.
        let frames = [number, number % 251, number % 17, 77];
        assert!(tick(agent, &frames));
        let stack = frames.iter().map(|frame| *frame as u32).collect();
        *truth.entry(stack).or_default() += 1;
    }
    truth
}

fn recording(memory: usize) -> (&'static FakeAgent, Collector) {
    let (agent, _, client) = connected(1, memory);
    let mut collector = Collector::new(client, 0);
    collector.client.start(one_ms());
    (agent, collector)
}

#[test]
fn nodes_are_sent_once_and_counts_only_where_something_was_counted() {
    let (agent, mut collector) = recording(1 << 20);
    let truth = sample(agent, 0..1000);
    let (got, frames) = collector.collect();
    assert_eq!((got.stacks, got.samples), (truth, 1000));
    assert!(frames.iter().any(|frame| frame.kind == Nodes::TYPE));

    // The same stacks: no node is sent again.
    let truth = sample(agent, (0..1000).chain(0..500));
    let (got, frames) = collector.collect();
    assert_eq!((got.stacks, got.samples), (truth, 1500));
    assert_eq!(frames.iter().find(is_nodes), None);

    // An old stack, and a new one.
    let truth = sample(agent, [400, 400, 5000].into_iter());
    let before = collector.known.len();
    let (got, frames) = collector.collect();
    assert_eq!(got.stacks, truth);
    assert_eq!(collector.known.len(), before + 1);
    assert_eq!(counts_in(&frames).0, 2);

    // Nothing at all.
    let (got, frames) = collector.collect();
    assert_eq!((got.samples, got.stacks.len()), (0, 0));
    assert_eq!(frames.iter().find(is_nodes), None);
    assert_eq!(counts_in(&frames), (0, 0, 0));

    // A client that comes later has no nodes, and its first fetch returns all that it needs.
    let truth = sample(agent, 300..600);
    let mut later = Collector::new(collector.client.another(), 0);
    assert_eq!(later.collect().0.stacks, truth);
    assert_eq!(later.known, collector.known);
}

/// The number of values in each distribution of an answer.
fn distributions(frames: &[Frame]) -> Vec<u64> {
    let found = frames.iter().filter(|frame| frame.kind == Histogram::TYPE);
    let count = |frame| {
        let mut pairs = read::<Histogram<'_>>(frame).buckets;
        let mut count = 0;
        while !pairs.is_empty() {
            take_varint(&mut pairs).unwrap();
            count += take_varint(&mut pairs).unwrap();
        }
        count
    };
    found.map(count).collect()
}

/// Distributions must contain the ticks of their epoch only, like its counts.
#[test]
fn distributions_are_of_their_epoch_alone() {
    let (agent, mut collector) = recording(1 << 20);
    sample(agent, 0..50);
    let epoch = collector.client.end_epoch();
    // Before it is fetched, and between two fetches of it.
    sample(agent, 0..7);
    for _ in 0..2 {
        let frames = collector.client.ask(&whole(epoch));
        assert_eq!(distributions(&frames), [50, 50]);
        sample(agent, 0..4);
    }
    collector.client.acknowledge(epoch);
    for expected in [7 + 4 + 4, 0] {
        let (got, frames) = collector.collect();
        assert_eq!(got.samples, expected);
        assert_eq!(distributions(&frames), [expected, expected]);
    }

    // The recording ends while an epoch waits: then there are two.
    sample(agent, 0..20);
    let first = collector.client.end_epoch();
    sample(agent, 0..3);
    let pending = collector.client.stop(0);
    assert_eq!((pending.first_epoch, pending.epochs), (first, 2));
    for (epoch, expected) in [(first, 20), (first + 1, 3)] {
        let frames = collector.client.ask(&whole(epoch));
        assert_eq!(distributions(&frames), [expected, expected]);
        collector.client.acknowledge(epoch);
    }
}

/// Nodes received on one connection need not be received on another.
#[test]
fn nodes_are_known_across_connections() {
    let (agent, mut collector) = recording(1 << 20);
    sample(agent, 0..700);
    collector.collect();
    let next = collector.client.another();
    std::mem::replace(&mut collector.client, next).close();
    let truth = sample(agent, 350..800);
    let before = collector.known.len();
    assert_eq!(collector.collect().0.stacks, truth);
    assert!(collector.known.len() - before < 200);
}

/// Guards the size of a collector's downloads: counts of ticks, in epochs that count all stacks and
/// in epochs that count few.
#[test]
fn counts_of_ticks_take_at_most_four_bytes_each() {
    const STACKS: u64 = 4000;
    let (agent, mut collector) = recording(4 << 20);
    // Each stack many times, some of them very often.
    let often = (0..STACKS).flat_map(|number| {
        let times = if number % 100 == 0 { 1000 } else { 40 };
        std::iter::repeat_n(number, times)
    });
    let truth = sample(agent, often);
    let (got, frames) = collector.collect();
    assert_eq!(got.stacks, truth);
    let check = |frames: &[Frame], expected: usize| {
        let (counts, payload, bytes) = counts_in(frames);
        assert_eq!(counts, expected);
        assert!(payload <= 4 * counts, "{payload} bytes of {counts} counts");
        // A frame's header matters little among many counts.
        let limit = if counts < 1000 { 5 } else { 4 };
        assert!(bytes <= limit * counts, "{bytes} bytes of {counts} counts");
        println!("{counts} counts: {payload} bytes, {bytes} with their frames");
    };
    check(&frames, STACKS as usize);
    for every in [2, 7, 50] {
        let some = (0..STACKS).step_by(every);
        let truth = sample(agent, some.flat_map(|number| [number; 30]));
        let (got, frames) = collector.collect();
        assert_eq!(got.stacks, truth);
        assert_eq!(frames.iter().find(is_nodes), None);
        check(&frames, truth.len());
    }
}

/// There are many nodes without counts in between: an answer must end even if several frames
/// contain none.
#[test]
fn few_counts_among_many_nodes_are_found() {
    let (agent, mut collector) = recording(4 << 20);
    sample(agent, 0..20_000);
    collector.collect();
    assert!(collector.known.len() >= 20_000);
    for number in [0, 19_999, 10_000] {
        let truth = sample(agent, [number].into_iter());
        let (got, frames) = collector.collect();
        assert_eq!(got.stacks, truth, "{:?}", got.counters);
        assert_eq!(counts_in(&frames).0, 1);
    }
}

/// Each vCPU has its own numbers; requests may be sent without waiting for answers.
#[test]
fn each_vcpu_is_fetched_on_its_own() {
    let (agent, _, client) = connected(2, 1 << 18);
    let mut collectors = [0, 1].map(|vcpu| Collector::new(client.another(), vcpu));
    collectors[0].client.start(one_ms());
    for round in 1..4 {
        let truth = [0_u64, 1].map(|vcpu| {
            VCPU.set(Some(vcpu as u32));
            sample(agent, (1000 * vcpu)..(1000 * vcpu + 100 * round))
        });
        VCPU.set(Some(0));
        let epoch = collectors[0].client.end_epoch();
        let requests = collectors.each_ref().map(|one| one.request(epoch));
        let [first, _] = &mut collectors;
        let mut bytes = Vec::new();
        for request in &requests {
            bytes.extend(encoded(request));
        }
        first.client.send_bytes(&bytes);
        let frames = first.client.frames();
        let shares: Vec<_> = frames.split_inclusive(|frame| frame.kind == VcpuEnd::TYPE).collect();
        assert_eq!(shares.len(), 2);
        for ((collector, frames), truth) in collectors.iter_mut().zip(shares).zip(truth) {
            assert_eq!(read::<VcpuEnd>(frames.last().unwrap()).vcpu, collector.vcpu);
            let got = download_to(&mut collector.known, frames);
            assert_eq!(got.samples, 100 * round);
            // The vCPUs share a clock: a mark in front of the stack means that the sample was late.
            let unmarked = |stack: &[u32]| stack[stack.len() - 4..].to_vec();
            let stacks = got.stacks.iter();
            let stacks: HashMap<_, _> =
                stacks.map(|(one, count)| (unmarked(one), *count)).collect();
            assert_eq!(stacks, truth);
        }
        collectors[0].client.acknowledge(epoch);
    }
}

/// Whatever numbers a request contains, its answer must end, contain only real counts, and disturb
/// no other client.
#[test]
fn absurd_requests_are_answered_or_refused() {
    let (agent, mut collector) = recording(1 << 19);
    let truth = sample(agent, (0..1500).chain(0..700));
    let epoch = collector.client.end_epoch();
    let mut hostile = collector.client.another();
    for vcpu in [1, 2, 63, 64, u32::MAX - 1, u32::MAX] {
        let request = Fetch { vcpu, ..whole(epoch) };
        let (code, text) = hostile.refusal(&request);
        assert_eq!(code, refusal::NO_VCPU);
        assert!(text.contains(&format!("no vCPU {vcpu}")), "{text}");
    }
    for other in [0, 1, epoch - 1, epoch + 1, epoch << 1, u64::MAX] {
        let refused = hostile.refusal(&whole(other));
        assert_eq!(refused.0, refusal::NO_EPOCH, "{}", refused.1);
    }
    let (whole_share, _) = Collector::new(collector.client.another(), 0).fetch(epoch);
    assert_eq!(whole_share.stacks, truth);
    let edges = [0, 1, 2, 1 << 31, 1 << 32, 1 << 63, u64::MAX - 1, u64::MAX];
    let mut numbers = edges.to_vec();
    let (mut state, mut shift) = (1_u64, 0);
    numbers.resize_with(40, || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        shift = (shift + 7) % 64;
        state >> shift
    });
    for known in &numbers {
        for counted in &numbers {
            let request = Fetch { known: *known, counted: *counted, ..whole(epoch) };
            let frames = hostile.ask(&request);
            let end: VcpuEnd = read(frames.last().unwrap());
            assert_eq!(end.samples, 2200);
            let nodes = frames.iter().filter(is_nodes);
            let mut after = *known;
            for run in nodes.map(read::<Nodes<'_>>) {
                assert!(run.first > after);
                after = run.first + u64::from(run.count) - 1;
            }
            let mut after = *counted;
            let mut samples = 0;
            let runs = frames.iter().filter(|frame| frame.kind == Counts::TYPE);
            for (number, count) in runs.flat_map(|frame| counts_of(&read(frame))) {
                assert!(number > after);
                after = number;
                samples += count;
            }
            assert!(samples <= 2200);
            assert!(*counted > 0 || samples == 2200);
        }
    }
    assert!(hostile.frames().iter().all(|frame| frame.kind != Refusal::TYPE));
    assert_eq!(collector.fetch(epoch).0, whole_share);
    collector.client.acknowledge(epoch);
}
