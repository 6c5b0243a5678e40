//! Aging of stacks: a guest with ever new stacks is recorded continuously in one MiB, and
//! everything that clients fetch is compared with an oracle by whole stacks.

use std::collections::{HashMap, HashSet};
use std::mem::MaybeUninit;

use crate::client::{
    self, Download, Frame, Known, RING, Shared, add_nodes, download_to, frame_of, frames, newest,
    nodes_of, read, records, refusal_code, serve, whole,
};
use crate::fake;
use crate::fake::platform::FakePlatform;
use crate::fake::stacks::{MAPPING, Random, Stack, stack};
use unikprof_agent::{Agent, Config, Platform as _, minimum_bytes, ring_bytes};
use unikprof_proto::code::{mode, refusal, start_flag, state};
use unikprof_proto::frame::Message as _;
use unikprof_proto::message::{
    Check, Counters, Fetch, Nodes, Pending, RecordingStatus, RingRun, Stacks, Start, VcpuEpoch,
};
use unikprof_proto::ring;

const SECOND: u64 = 1_000_000_000;
/// The periods of the client's presets.
const DEFAULT_NS: u64 = SECOND / 97;
const PROFILE_NS: u64 = SECOND / 997;

type TestAgent = Agent<'static, FakePlatform>;

/// Guest time of each load in s: an hour if `UNIKPROF_LONG` is set.
fn seconds() -> u64 {
    if std::env::var_os("UNIKPROF_LONG").is_some() { 3600 } else { 90 }
}

fn leak(bytes: usize) -> &'static mut [MaybeUninit<u8>] {
    Box::leak(vec![MaybeUninit::uninit(); bytes].into_boxed_slice())
}

fn agent(bytes: usize, recordings: u32) -> &'static TestAgent {
    let config = Config { recordings, ..fake::CONFIG };
    let agent = Agent::new(FakePlatform::new(128), config, leak(bytes)).unwrap();
    Box::leak(Box::new(agent.with_ring(leak(ring_bytes(1, 20_000)))))
}

type Served = Shared<'static, 'static, FakePlatform>;
type Connection = client::Client<'static, 'static, FakePlatform>;

/// A client, and the stacks that it has received.
struct Client {
    connection: Connection,
    known: Known,
}

impl Client {
    fn new(service: &Served, client_id: u64) -> Self {
        Self {
            connection: Connection::connect_as(service, "test 1", client_id),
            known: Known::new(),
        }
    }

    fn start(&mut self, name: &str, period_ns: u64, flags: u32) -> u64 {
        self.connection.start(Start { flags, ..Start::running_time(name, period_ns) })
    }

    /// Ends the current epoch of a recording, fetches and acknowledges it.
    fn drain(&mut self, recording: u64) -> Download {
        let pending = self.connection.dump(recording);
        self.fetch(pending)
    }

    fn fetch(&mut self, pending: Pending) -> Download {
        assert!(pending.complete && pending.epochs == 1);
        let epoch = pending.first_epoch;
        let frames = self.connection.ask(&Fetch { known: newest(&self.known), ..whole(epoch) });
        let got = download_to(&mut self.known, &frames);
        assert!(got.end.counters.add_up(), "{:?}", got.end.counters);
        assert_eq!(got.samples, got.stacks.values().sum::<u64>());
        self.connection.acknowledge(epoch);
        got
    }

    fn counters(&mut self) -> Vec<Counters> {
        let looked_at = self.check().into_iter();
        looked_at.map(|(counters, _)| counters).collect()
    }

    /// The counters of each recording, and whether it wants to be fetched.
    fn check(&mut self) -> Vec<(Counters, bool)> {
        let answers = self.connection.ask(&Check {});
        let look = |answer: &Frame| {
            let status: RecordingStatus<'_> = read(answer);
            assert_eq!(status.state, state::RECORDING);
            (status.counters, status.wants_fetch)
        };
        answers[1..].iter().map(look).collect()
    }
}

/// A stack as [`Known`] has it.
fn codes(stack: &Stack) -> Vec<u32> {
    let code = |address: &u64| (address - MAPPING.start) as u32;
    stack.0.iter().map(code).collect()
}

/// 50 stacks that recur, and 200 new ones per second, each of which needs at least two new nodes.
struct Load {
    random: Random,
    hot: Vec<Stack>,
    next_new_ns: u64,
    number: u64,
    /// Every sampled stack, with the time of its tick.
    ticks: Vec<(u64, Stack)>,
    /// After this many ticks the guest waits for a millisecond, on the stack of the last one; 0 =
    /// never.
    ticks_between_waits: usize,
    /// The interval of the service's polls.
    poll_ns: u64,
}

impl Load {
    fn new() -> Self {
        let mut random = Random::new(42);
        Self {
            hot: (0..50).map(|_| stack(&mut random, 32)).collect(),
            random,
            next_new_ns: 0,
            number: 0,
            ticks: Vec::new(),
            ticks_between_waits: 0,
            poll_ns: SECOND / 10,
        }
    }

    fn next(&mut self, now_ns: u64) -> Stack {
        if now_ns < self.next_new_ns {
            return self.hot[self.random.below(50) as usize].clone();
        }
        self.next_new_ns += SECOND / 200;
        self.number += 1;
        let mut stack = self.hot[self.random.below(50) as usize].clone();
        // The stack differs at the leaf and at levels 15 and 16, so at least two of its nodes are
        // new.
        for (level, shift) in [(0, 0), (15, 9), (16, 18)] {
            let number = self.number >> shift & 0x1ff;
            stack.0[level] = MAPPING.start + 0x10_0000 + 16 * number + 0x2000 * level as u64;
        }
        stack
    }

    /// Runs until `until_ns` and delivers each tick when it is due.
    fn run(&mut self, agent: &TestAgent, service: &Served, until_ns: u64) {
        let platform = agent.platform();
        let now = || platform.now_ns();
        let mut polled_ns = now();
        while now() < until_ns {
            let deadline_ns = agent.deadline().unwrap();
            let now_ns = now();
            platform.advance(deadline_ns.max(now_ns + 1).min(until_ns) - now_ns);
            if now() < deadline_ns {
                break;
            }
            let stack = self.next(now());
            let registers = platform.stack().lay(&stack);
            agent.on_tick(Some(&registers));
            self.ticks.push((now(), stack));
            if self.ticks.len().checked_rem(self.ticks_between_waits) == Some(0) {
                agent.on_block(Some(&registers));
                platform.idle(SECOND / 1000);
                agent.on_wake();
            }
            if now() - polled_ns > self.poll_ns {
                polled_ns = now();
                service.borrow_mut().advance();
            }
        }
    }
}

fn add(sum: &mut HashMap<Vec<u32>, u64>, more: HashMap<Vec<u32>, u64>) {
    for (stack, count) in more {
        *sum.entry(stack).or_default() += count;
    }
}

/// A client that drains both recordings gets every sample with its whole stack, without overflow or
/// aging.
#[test]
fn a_client_that_drains_has_everything() {
    let agent = agent(1 << 20, 2);
    let service = serve(agent);
    let mut client = Client::new(&service, 1);
    let profile = client.start("profile", PROFILE_NS, 0);
    let default = client.start("default", DEFAULT_NS, start_flag::KEEP_NEWEST);
    let mut load = Load::new();
    let mut truth: HashMap<Vec<u32>, u64> = HashMap::new();
    let (mut of_profile, mut of_default) = (HashMap::new(), HashMap::new());
    let mut last = Counters::default();
    for second in 1..=seconds() {
        load.run(agent, &service, second * SECOND);
        let share = client.drain(profile);
        last = share.end.counters;
        add(&mut of_profile, share.stacks);
        if second % 5 == 0 {
            add(&mut of_default, client.drain(default).stacks);
        }
        for (_, stack) in load.ticks.drain(..) {
            *truth.entry(codes(&stack)).or_default() += 1;
        }
    }
    assert_eq!((last.overflow, last.aged, last.lost), (0, 0, 0));
    let sum: u64 = of_profile.values().sum();
    assert_eq!(sum, last.recorded);
    assert_eq!(last.early, 0, "each delivery was due");
    let wrong = truth.iter().find(|(stack, count)| of_profile.get(*stack) != Some(count));
    assert_eq!((wrong, of_profile.len()), (None, truth.len()));
    // The slower recording has a subset of the same ticks.
    assert!(of_default.iter().all(|(stack, count)| truth[stack] >= *count));
    let counters = client.counters();
    assert!(counters.iter().all(|all| all.overflow == 0 && all.aged == 0), "{counters:?}");
    assert!(load.number >= 190 * seconds());
}

/// Fetching a recording when it wants to be fetched is enough: no rate has to be predicted.
#[test]
fn a_recording_that_is_fetched_when_it_wants_to_be_never_overflows() {
    let agent = agent(1 << 20, 1);
    let service = serve(agent);
    let mut client = Client::new(&service, 1);
    let recording = client.start("profile", PROFILE_NS, 0);
    let mut load = Load::new();
    let (mut drains, mut samples) = (0, 0);
    let seconds = 300;
    for second in 1..=seconds {
        load.run(agent, &service, second * SECOND);
        if client.check()[0].1 {
            samples += client.drain(recording).stacks.values().sum::<u64>();
            drains += 1;
            // The counts are cleared in pieces.
            (0..5).for_each(|_| _ = client.connection.advance());
            assert!(!client.check()[0].1, "it was fetched");
        }
    }
    let counters = client.counters()[0];
    assert_eq!((counters.overflow, counters.aged), (0, 0), "{counters:?}");
    let last = client.drain(recording);
    samples += last.stacks.values().sum::<u64>();
    assert_eq!(samples, last.end.counters.recorded);
    // Segments were reused, and most of the time nothing had to be fetched.
    assert!((5..seconds / 10).contains(&drains), "{drains} drains");
}

/// Unfetched recordings keep the newest stacks; rings and crash dumps name stacks correctly.
#[test]
fn recordings_that_nobody_fetches_keep_the_newest() {
    let agent = agent(1 << 20, 2);
    let service = serve(agent);
    let mut client = Client::new(&service, 0);
    let keep = start_flag::KEEP_NEWEST;
    client.start("profile", PROFILE_NS, keep);
    let default = client.start("default", DEFAULT_NS, keep);
    let mut load = Load::new();
    load.run(agent, &service, seconds() * SECOND);
    // The agent has closed the connection on which there were no requests.
    let mut client = Client::new(&service, 0);
    let counters = client.counters();
    for all in &counters {
        assert!(all.add_up());
        assert_eq!((all.overflow, all.lost), (0, 0), "{all:?}");
        assert!(all.aged > 0, "{all:?}");
    }
    let truth: HashSet<Vec<u32>> = load.ticks.iter().map(|(_, stack)| codes(stack)).collect();
    // Every stack of the last seconds is there.
    let fetched = client.drain(default);
    assert!(fetched.stacks.keys().all(|stack| truth.contains(stack)));
    let sum: u64 = fetched.stacks.values().sum();
    assert_eq!(sum, fetched.end.counters.recorded);
    let hot: Vec<Vec<u32>> = load.hot.iter().map(codes).collect();
    assert!(hot.iter().all(|stack| fetched.stacks.contains_key(stack)));
    // The ring: all named stacks are right, and the newest are all named.
    let by_time: HashMap<u64, Vec<u32>> =
        load.ticks.iter().map(|(at_ns, stack)| (*at_ns, codes(stack))).collect();
    let connection = &mut client.connection;
    let (_, sent, _) = connection.ring(&RING);
    let known = newest(&client.known);
    for answer in connection.ask(&Stacks { vcpu: 0, known }) {
        if answer.kind == Nodes::TYPE {
            add_nodes(&mut client.known, &read(&answer));
        }
    }
    assert_named(&sent, &client.known, &by_time);
    // A crash dump contains the same, the newest records first and again.
    let mut file = Vec::new();
    agent.crash_dump(&mut |piece| file.extend_from_slice(piece));
    let dumped = frames(&file[unikprof_proto::file::PREAMBLE..]);
    let runs = dumped.iter().filter(|frame| frame.kind == RingRun::TYPE);
    let mut sent: Vec<_> = runs.flat_map(|run| records(&read(run))).collect();
    sent.sort_by_key(|(position, _)| *position);
    let mut nodes = nodes_of(&dumped);
    nodes.sort();
    nodes.dedup();
    let mut known = Known::from([(0, Vec::new())]);
    for (number, (parent, own)) in nodes {
        // Some nodes are there only because another stack needed their block; their callers may be
        // missing.
        let Some(callers) = known.get(&parent) else {
            continue;
        };
        let stack = own.iter().map(frame_of).chain(callers.iter().copied());
        let before = known.insert(number, stack.collect());
        assert_eq!(before, None, "nodes are written once");
    }
    assert_named(&sent, &known, &by_time);
}

/// Checks that samples name the stack that was sampled; those of the last five seconds must all do
/// so.
fn assert_named(records: &[(u64, ring::Record)], stacks: &Known, truth: &HashMap<u64, Vec<u32>>) {
    let samples: Vec<_> = records
        .iter()
        .map(|(_, record)| record)
        .filter(|record| record.kind == ring::kind::SAMPLE)
        .collect();
    assert!(samples.len() > 15_000, "{}", samples.len());
    let newest_ns = samples.last().unwrap().at_ns;
    for sample in samples {
        match sample.first {
            0 => assert!(sample.at_ns + 5 * SECOND < newest_ns, "a new one without a name"),
            number => assert_eq!(stacks[&number], truth[&sample.at_ns]),
        }
    }
}

/// Memory runs short while an epoch is sent, and some of its counts are given up. The answer, which
/// would mix two states, is refused; the repeated fetch has each sample once, in a stack or as
/// aged.
#[test]
fn an_epoch_that_ages_while_it_is_fetched_is_fetched_anew() {
    let agent = agent(1 << 20, 1);
    let service = serve(agent);
    let mut client = Client::new(&service, 1);
    let id = client.start("newest", PROFILE_NS, start_flag::KEEP_NEWEST);
    let mut load = Load::new();
    let mut run = || {
        let until_ns = agent.platform().now_ns() + SECOND / 2;
        load.run(agent, &service, until_ns);
    };
    // Segments are given up about every 12 s. A client that does not read its answer for 10 s is
    // disconnected.
    while client.counters()[0].aged == 0 {
        run();
    }
    (0..16).for_each(|_| run());
    let pending = client.connection.dump(id);
    // The client takes some of the answer, and the rest later.
    client
        .connection
        .send_only(&Fetch { known: newest(&client.known), ..whole(pending.first_epoch) });
    assert_eq!(client.connection.take(1000), 1000);
    let mut other = Client::new(&service, 2);
    let aged = other.counters()[0].aged;
    while other.counters()[0].aged == aged {
        run();
    }
    client.connection.take(usize::MAX);
    let answer = client.connection.frames();
    let head = answer.iter().find(|frame| frame.kind == VcpuEpoch::TYPE);
    let first = read::<VcpuEpoch>(head.unwrap()).end.counters;
    let (code, text) = refusal_code(&answer[answer.len() - 1..]);
    assert_eq!(code, refusal::EPOCH_CHANGED, "{text}");

    let share = client.fetch(pending);
    // These counters also reveal it to a client that has lost its connection meanwhile.
    let second = share.end.counters;
    assert!(second.aged > first.aged);
    assert_eq!(first.recorded + first.aged, second.recorded + second.aged);
    // Together with the later counts, each tick is counted once.
    let later = client.drain(id);
    let counters = later.end.counters;
    assert_eq!((counters.overflow, counters.lost, counters.early), (0, 0, 0));
    let mut fetched = share.stacks;
    add(&mut fetched, later.stacks);
    let sum: u64 = fetched.values().sum();
    assert_eq!(sum + counters.aged, load.ticks.len() as u64);
    let mut truth: HashMap<Vec<u32>, u64> = HashMap::new();
    for (_, stack) in &load.ticks {
        *truth.entry(codes(stack)).or_default() += 1;
    }
    let wrong = fetched.iter().find(|(stack, count)| truth.get(*stack) < Some(count));
    assert_eq!(wrong, None);
}

/// A recording that keeps everything and is not fetched must not starve one that a client drains.
#[test]
fn a_recording_that_keeps_everything_leaves_room_for_another() {
    let agent = agent(1 << 20, 3);
    let service = serve(agent);
    let mut other = Client::new(&service, 0);
    other.start("all", PROFILE_NS, 0);
    let mut load = Load::new();
    load.run(agent, &service, 60 * SECOND);
    let mut client = Client::new(&service, 1);
    let mut other = Client::new(&service, 0);
    let before = other.counters()[0];
    assert!(before.overflow > 0, "it is full by now: {before:?}");
    assert_eq!(before.aged, 0);
    let drained = client.start("drained", PROFILE_NS, 0);
    other.start("newest", PROFILE_NS, start_flag::KEEP_NEWEST);
    for second in 61..=60 + seconds() {
        load.run(agent, &service, second * SECOND);
        let counters = client.drain(drained).end.counters;
        assert_eq!((counters.overflow, counters.aged), (0, 0), "second {second}");
    }
    let all = client.drain(1);
    let counters = all.end.counters;
    assert_eq!(counters.aged, 0);
    assert_eq!(all.stacks.values().sum::<u64>(), counters.recorded);
}

/// Recordings that keep everything, each fetched from time to time by a client that does not stay,
/// lose nothing as long as the stacks of one round fit: recurring stacks move from old segments to
/// new ones.
#[test]
fn recordings_that_keep_everything_are_fetched_in_turns() {
    let agent = agent(4 << 20, 4);
    let service = serve(agent);
    let mut starter = Client::new(&service, 0);
    let modes =
        [("cpu", mode::CPU), ("wall", mode::WALL), ("again", mode::CPU), ("off", mode::OFF_CPU)];
    let recordings = modes.map(|(name, mode)| {
        let start = Start { mode, ..Start::running_time(name, PROFILE_NS) };
        starter.connection.start(start)
    });
    starter.connection.close();
    let mut load = Load::new();
    load.ticks_between_waits = 3;
    // Between two polls a segment may be begun that was freed in the first of them.
    load.poll_ns = 4 * SECOND;
    for (round, recording) in (1..=24).zip(recordings.iter().cycle()) {
        // Each is fetched every 40 s, in which a new segment is begun once or twice.
        load.run(agent, &service, round * 10 * SECOND);
        let mut client = Client::new(&service, round);
        let counters = client.drain(*recording).end.counters;
        let overflow = (counters.overflow, counters.blocked_overflow);
        assert_eq!(overflow, (0, 0), "round {round}");
        assert_eq!((counters.aged, counters.blocked_aged), (0, 0));
        let has_blocked = recording == &recordings[1] || recording == &recordings[3];
        assert_eq!(counters.blocked > 0, has_blocked, "round {round}");
        client.connection.close();
    }
}

/// It must work with the minimum memory too.
#[test]
fn the_least_memory_keeps_the_newest() {
    let agent = agent(minimum_bytes(1, 2), 2);
    let service = serve(agent);
    let mut client = Client::new(&service, 0);
    let id = client.start("least", PROFILE_NS, start_flag::KEEP_NEWEST);
    let mut load = Load::new();
    load.run(agent, &service, 5 * SECOND);
    let share = client.drain(id);
    let counters = share.end.counters;
    assert!(counters.add_up() && counters.recorded + counters.aged + counters.overflow > 4000);
    assert_eq!(share.stacks.values().sum::<u64>(), counters.recorded);
}
