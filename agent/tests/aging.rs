//! Aging of stacks: a guest with ever new stacks is recorded continuously in one MiB, and everything that clients
//! fetch is compared with an oracle by whole stacks.
#![allow(clippy::unwrap_used)]

#[path = "fake/platform.rs"]
mod platform;
#[path = "fake/stacks.rs"]
#[allow(dead_code, reason = "shared with benches")]
mod stacks;

use std::collections::{HashMap, HashSet};
use std::mem::MaybeUninit;

use platform::FakePlatform;
use stacks::{MAPPING, Random, Stack, stack};
use unikprof_agent::{Access, Agent, Config, Service, SessionId, minimum_bytes, ring_bytes};
use unikprof_proto::code::{message_type, mode, refusal, start_flag, state};
use unikprof_proto::frame::{self, Frame, Message};
use unikprof_proto::message::*;
use unikprof_proto::preamble;
use unikprof_proto::{counts, nodes, ring};
use unikprof_test_kit::frames::encoded;

const SECOND: u64 = 1_000_000_000;
/// The periods of the client's presets.
const DEFAULT_NS: u64 = SECOND / 97;
const PROFILE_NS: u64 = SECOND / 997;

type TestAgent = Agent<'static, FakePlatform>;

/// Guest time of each load in s: an hour if `UNIKPROF_LONG` is set.
fn seconds() -> u64 {
    if std::env::var_os("UNIKPROF_LONG").is_some() {
        3600
    } else {
        90
    }
}

fn leak(bytes: usize) -> &'static mut [MaybeUninit<u8>] {
    Box::leak(vec![MaybeUninit::uninit(); bytes].into_boxed_slice())
}

fn agent(bytes: usize, recordings: u32) -> &'static TestAgent {
    let config = Config {
        vcpus: 1,
        recordings,
        mappings: &[MAPPING],
        guest_name: None,
        guest_id: None,
        platform_name: "fake",
        reachable_when_busy: false,
    };
    let agent = Agent::new(FakePlatform::new(128), config, leak(bytes)).unwrap();
    Box::leak(Box::new(agent.with_ring(leak(ring_bytes(1, 20_000)))))
}

/// One client's conversation with the agent, and the stacks that it has received.
struct Client {
    id: SessionId,
    input: Vec<u8>,
    known: u64,
    stacks: HashMap<u64, Vec<u32>>,
    code_base: u32,
}

/// The result of a fetch.
#[derive(Default)]
struct Share {
    counts: HashMap<Vec<u32>, u64>,
    /// Nodes received, and bytes of the counts.
    nodes: u64,
    end: Option<Snapshot>,
}

type TestService = Service<'static, 'static, FakePlatform>;

impl Client {
    fn new(service: &mut TestService, client_id: u64) -> Self {
        let id = service.open().unwrap();
        let mut client = Self {
            id,
            input: Vec::new(),
            known: 0,
            stacks: HashMap::new(),
            code_base: 0,
        };
        client.send(service, &preamble::encode(preamble::OPEN));
        let mut base = 0;
        client.ask(
            service,
            &Hello {
                client: "test 1",
                client_id,
            },
            |frame| {
                if frame.kind == message_type::MAPPING {
                    base = frame::decode::<Mapping<'_>>(frame).unwrap().code_base;
                    return true;
                }
                false
            },
        );
        client.code_base = base;
        client
    }

    fn send(&mut self, service: &mut TestService, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let taken = service.receive(self.id, bytes);
            bytes = &bytes[taken..];
            self.take(service);
        }
    }

    fn take(&mut self, service: &mut TestService) {
        let mut buffer = [0; 4096];
        loop {
            let length = service.transmit(self.id, &mut buffer);
            self.input.extend_from_slice(&buffer[..length]);
            if length == 0 {
                break;
            }
        }
    }

    /// Sends a request, and passes the frames of its answer to `visit` until that returns true for the last one.
    fn ask<'f, M: Message<'f>>(
        &mut self,
        service: &mut TestService,
        request: &M,
        mut visit: impl FnMut(&Frame<'_>) -> bool,
    ) {
        self.send(service, &encoded(request));
        for _ in 0..10_000 {
            service.advance();
            self.take(service);
            // The agent's preamble comes first.
            if self
                .input
                .starts_with(&preamble::encode(preamble::OPEN)[..4])
            {
                self.input.drain(..preamble::LENGTH);
            }
            let input = std::mem::take(&mut self.input);
            let mut rest = &input[..];
            let mut is_done = false;
            while let Some(found) = frame::split(rest).unwrap() {
                assert_ne!(
                    found.kind,
                    message_type::REFUSAL,
                    "{:?}",
                    frame::decode::<Refusal<'_>>(&found)
                );
                is_done |= visit(&found);
                rest = &rest[found.length()..];
            }
            self.input = rest.to_vec();
            if is_done {
                return;
            }
        }
        panic!("no end of the answer");
    }

    fn start(&mut self, service: &mut TestService, name: &str, period_ns: u64, flags: u32) -> u64 {
        let start = Start {
            flags,
            ..Start::running_time(name, period_ns)
        };
        self.begin(service, &start)
    }

    fn begin(&mut self, service: &mut TestService, start: &Start<'_>) -> u64 {
        let mut id = 0;
        self.ask(service, start, |frame| {
            let started: Started = frame::decode(frame).unwrap();
            id = started.recording;
            true
        });
        id
    }

    /// Adds nodes; their parents came before.
    fn nodes(&mut self, nodes: &Nodes<'_>) {
        nodes::decode(nodes.first, nodes.count, nodes.payload, |number, node| {
            let mut stack = node.frames.to_vec();
            if node.parent != 0 {
                stack.extend_from_slice(&self.stacks[&node.parent]);
            }
            assert_eq!(
                self.stacks.insert(number, stack),
                None,
                "a node is sent once"
            );
        })
        .unwrap();
    }

    /// Ends the current epoch of a recording, fetches and acknowledges it.
    fn drain(&mut self, service: &mut TestService, recording: u64) -> Share {
        let mut pending = None;
        self.ask(service, &Dump { recording }, |frame| {
            pending = Some(frame::decode::<Pending>(frame).unwrap());
            true
        });
        self.fetch(service, pending.unwrap())
    }

    fn fetch(&mut self, service: &mut TestService, pending: Pending) -> Share {
        assert!(pending.complete && pending.epochs == 1);
        let epoch = pending.first_epoch;
        let fetch = Fetch {
            epoch,
            vcpu: 0,
            known: self.known,
            counted: 0,
        };
        let (mut frames, mut end) = (Vec::new(), None);
        self.ask(service, &fetch, |found| {
            frames.push((found.kind, found.body.to_vec()));
            if found.kind == message_type::VCPU_END {
                end = Some(frame::decode::<VcpuEnd>(found).unwrap());
            }
            end.is_some()
        });
        let mut share = Share::default();
        let mut sum = 0;
        for (kind, body) in &frames {
            let found = Frame { kind: *kind, body };
            match *kind {
                message_type::NODES => {
                    let run: Nodes<'_> = frame::decode(&found).unwrap();
                    share.nodes += u64::from(run.count);
                    self.nodes(&run);
                }
                message_type::COUNTS => {
                    let run: Counts<'_> = frame::decode(&found).unwrap();
                    counts::decode(run.after, run.count, run.payload, |number, count| {
                        sum += count;
                        *share
                            .counts
                            .entry(self.stacks[&number].clone())
                            .or_default() += count;
                    })
                    .unwrap();
                }
                message_type::VCPU_EPOCH => {
                    let vcpu: VcpuEpoch = frame::decode(&found).unwrap();
                    assert!(vcpu.end.counters.add_up(), "{:?}", vcpu.end.counters);
                    share.end = Some(vcpu.end);
                }
                _ => {}
            }
        }
        let end = end.unwrap();
        assert_eq!(end.samples, sum, "the sum of the counts");
        self.known = end.known;
        self.ask(service, &Acknowledge { epoch }, |_| true);
        share
    }

    fn counters(&mut self, service: &mut TestService) -> Vec<Counters> {
        let looked_at = self.check(service).into_iter();
        looked_at.map(|(counters, _)| counters).collect()
    }

    /// The counters of each recording, and whether it wants to be fetched.
    fn check(&mut self, service: &mut TestService) -> Vec<(Counters, bool)> {
        let (mut looked_at, mut left) = (Vec::new(), None);
        self.ask(service, &Check {}, |found| {
            if found.kind == message_type::STATUS {
                left = Some(frame::decode::<Status>(found).unwrap().recordings);
            } else {
                let status: RecordingStatus<'_> = frame::decode(found).unwrap();
                assert_eq!(status.state, state::RECORDING);
                looked_at.push((status.counters, status.wants_fetch));
            }
            left == Some(looked_at.len() as u32)
        });
        looked_at
    }

    fn codes(&self, stack: &Stack) -> Vec<u32> {
        let code = |address: &u64| self.code_base + (address - MAPPING.start) as u32;
        stack.0.iter().map(code).collect()
    }
}

/// 50 stacks that recur, and 200 new ones per second, each of which needs at least two new nodes.
struct Load {
    random: Random,
    hot: Vec<Stack>,
    next_new_ns: u64,
    number: u64,
    /// Every sampled stack, with the time of its tick.
    ticks: Vec<(u64, Stack)>,
    /// After this many ticks the guest waits for a millisecond, on the stack of the last one; 0 = never.
    ticks_between_waits: usize,
    /// How often the service is polled.
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
        // The stack differs at the leaf and at levels 15 and 16, so at least two of its nodes are new.
        for (level, shift) in [(0, 0), (15, 9), (16, 18)] {
            let number = self.number >> shift & 0x1ff;
            stack.0[level] = MAPPING.start + 0x10_0000 + 16 * number + 0x2000 * level as u64;
        }
        stack
    }

    /// Runs until `until_ns` and delivers each tick when it is due.
    fn run(&mut self, agent: &TestAgent, service: &mut TestService, until_ns: u64) {
        let platform = agent.platform();
        let now = || unikprof_agent::Platform::now_ns(platform);
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
                service.advance();
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
    let mut service = Service::new(agent, Access::Open).unwrap();
    let mut client = Client::new(&mut service, 1);
    let profile = client.start(&mut service, "profile", PROFILE_NS, 0);
    let default = client.start(&mut service, "default", DEFAULT_NS, start_flag::KEEP_NEWEST);
    let mut load = Load::new();
    let mut truth: HashMap<Vec<u32>, u64> = HashMap::new();
    let (mut of_profile, mut of_default) = (HashMap::new(), HashMap::new());
    let mut last = Counters::default();
    for second in 1..=seconds() {
        load.run(agent, &mut service, second * SECOND);
        let share = client.drain(&mut service, profile);
        last = share.end.unwrap().counters;
        add(&mut of_profile, share.counts);
        if second % 5 == 0 {
            add(&mut of_default, client.drain(&mut service, default).counts);
        }
        for (_, stack) in load.ticks.drain(..) {
            *truth.entry(client.codes(&stack)).or_default() += 1;
        }
    }
    assert_eq!((last.overflow, last.aged, last.lost), (0, 0, 0));
    let sum: u64 = of_profile.values().sum();
    assert_eq!(sum, last.recorded);
    assert_eq!(last.early, 0, "each delivery was due");
    let wrong = truth
        .iter()
        .find(|(stack, count)| of_profile.get(*stack) != Some(count));
    assert_eq!((wrong, of_profile.len()), (None, truth.len()));
    // The slower recording has a subset of the same ticks.
    assert!(
        of_default
            .iter()
            .all(|(stack, count)| truth[stack] >= *count)
    );
    let counters = client.counters(&mut service);
    assert!(
        counters
            .iter()
            .all(|all| all.overflow == 0 && all.aged == 0),
        "{counters:?}"
    );
    assert!(load.number >= 190 * seconds());
}

/// Fetching a recording when it wants to be fetched is enough: no rate has to be predicted.
#[test]
fn a_recording_that_is_fetched_when_it_wants_to_be_never_overflows() {
    let agent = agent(1 << 20, 1);
    let mut service = Service::new(agent, Access::Open).unwrap();
    let mut client = Client::new(&mut service, 1);
    let recording = client.start(&mut service, "profile", PROFILE_NS, 0);
    let mut load = Load::new();
    let (mut drains, mut samples) = (0, 0);
    let seconds = 300;
    for second in 1..=seconds {
        load.run(agent, &mut service, second * SECOND);
        let wants_fetch =
            |client: &mut Client, service: &mut TestService| client.check(service)[0].1;
        if wants_fetch(&mut client, &mut service) {
            samples += client
                .drain(&mut service, recording)
                .counts
                .values()
                .sum::<u64>();
            drains += 1;
            service.advance();
            assert!(!wants_fetch(&mut client, &mut service), "it was fetched");
        }
    }
    let counters = client.counters(&mut service)[0];
    assert_eq!((counters.overflow, counters.aged), (0, 0), "{counters:?}");
    let last = client.drain(&mut service, recording);
    samples += last.counts.values().sum::<u64>();
    assert_eq!(samples, last.end.unwrap().counters.recorded);
    // Segments were reused, and most of the time nothing had to be fetched.
    assert!((5..seconds / 10).contains(&drains), "{drains} drains");
}

/// Unfetched recordings keep the newest stacks; rings and crash dumps name stacks correctly.
#[test]
fn recordings_that_nobody_fetches_keep_the_newest() {
    let agent = agent(1 << 20, 2);
    let mut service = Service::new(agent, Access::Open).unwrap();
    let mut client = Client::new(&mut service, 0);
    let keep = start_flag::KEEP_NEWEST;
    client.start(&mut service, "profile", PROFILE_NS, keep);
    let default = client.start(&mut service, "default", DEFAULT_NS, keep);
    let mut load = Load::new();
    load.run(agent, &mut service, seconds() * SECOND);
    // The agent has closed the connection on which there were no requests.
    let mut client = Client::new(&mut service, 0);
    let counters = client.counters(&mut service);
    for all in &counters {
        assert!(all.add_up());
        assert_eq!((all.overflow, all.lost), (0, 0), "{all:?}");
        assert!(all.aged > 0, "{all:?}");
    }
    let truth: HashSet<Vec<u32>> = load
        .ticks
        .iter()
        .map(|(_, stack)| client.codes(stack))
        .collect();
    // Every stack of the last seconds is there.
    let fetched = client.drain(&mut service, default);
    assert!(fetched.counts.keys().all(|stack| truth.contains(stack)));
    let sum: u64 = fetched.counts.values().sum();
    assert_eq!(sum, fetched.end.unwrap().counters.recorded);
    let hot: Vec<Vec<u32>> = load.hot.iter().map(|stack| client.codes(stack)).collect();
    assert!(hot.iter().all(|stack| fetched.counts.contains_key(stack)));
    // The ring: all named stacks are right, and the newest are all named.
    let by_time: HashMap<u64, Vec<u32>> = load
        .ticks
        .iter()
        .map(|(at_ns, stack)| (*at_ns, client.codes(stack)))
        .collect();
    let mut records = Vec::new();
    client.ask(
        &mut service,
        &Ring {
            vcpu: 0,
            position: 0,
            since_ns: 0,
        },
        |found| {
            if found.kind == message_type::RING_RUN {
                let run: RingRun<'_> = frame::decode(found).unwrap();
                ring::decode(run.base_ns, run.count, run.payload, |record| {
                    records.push(record);
                })
                .unwrap();
            }
            found.kind == message_type::RING_END
        },
    );
    let known = client.known;
    let mut runs = Vec::new();
    client.ask(&mut service, &Stacks { vcpu: 0, known }, |found| {
        if found.kind == message_type::NODES {
            runs.push(found.body.to_vec());
        }
        found.kind == message_type::STACKS_END
    });
    for body in &runs {
        let kind = message_type::NODES;
        client.nodes(&frame::decode(&Frame { kind, body }).unwrap());
    }
    assert_named(&records, &client.stacks, &by_time);
    // A crash dump contains the same.
    let mut file = Vec::new();
    agent.crash_dump(&mut |piece| file.extend_from_slice(piece));
    let mut rest = &file[unikprof_proto::file::PREAMBLE..];
    let (mut runs, mut stacks) = (
        Vec::new(),
        Client {
            stacks: HashMap::new(),
            ..client
        },
    );
    let mut seen = HashSet::new();
    while let Some(found) = frame::split(rest).unwrap() {
        match found.kind {
            message_type::NODES => {
                let nodes: Nodes<'_> = frame::decode(&found).unwrap();
                assert!(seen.insert(nodes.first), "nodes are written once");
                stacks.nodes_in_any_order(&nodes);
            }
            message_type::RING_RUN => {
                let run: RingRun<'_> = frame::decode(&found).unwrap();
                let mut records = Vec::new();
                ring::decode(run.base_ns, run.count, run.payload, |record| {
                    records.push(record);
                })
                .unwrap();
                runs.push(records);
            }
            _ => {}
        }
        rest = &rest[found.length()..];
    }
    runs.reverse();
    assert_named(&runs.concat(), &stacks.resolved(), &by_time);
}

/// Checks that samples name the stack that was sampled; those of the last five seconds must all do
/// so.
fn assert_named(
    records: &[ring::Record],
    stacks: &HashMap<u64, Vec<u32>>,
    truth: &HashMap<u64, Vec<u32>>,
) {
    let samples: Vec<_> = records
        .iter()
        .filter(|record| record.kind == ring::kind::SAMPLE)
        .collect();
    assert!(samples.len() > 15_000, "{}", samples.len());
    let newest_ns = samples.last().unwrap().at_ns;
    for sample in samples {
        match sample.first {
            0 => assert!(
                sample.at_ns + 5 * SECOND < newest_ns,
                "a new one without a name"
            ),
            number => assert_eq!(stacks[&number], truth[&sample.at_ns]),
        }
    }
}

impl Client {
    /// Adds nodes whose parents may come later; each is stored with its parent's number first.
    fn nodes_in_any_order(&mut self, nodes: &Nodes<'_>) {
        nodes::decode(nodes.first, nodes.count, nodes.payload, |number, node| {
            let mut words = vec![node.parent as u32, (node.parent >> 32) as u32];
            words.extend_from_slice(node.frames);
            self.stacks.insert(number, words);
        })
        .unwrap();
    }

    /// The whole stacks of nodes that came in any order.
    fn resolved(&self) -> HashMap<u64, Vec<u32>> {
        let whole = |number: &u64| {
            let mut stack = Vec::new();
            let mut number = *number;
            while number != 0 {
                // An omitted node: its children are in a block that another stack needed.
                let Some(words) = self.stacks.get(&number) else {
                    return (number, Vec::new());
                };
                stack.extend_from_slice(&words[2..]);
                number = u64::from(words[0]) | u64::from(words[1]) << 32;
            }
            (number, stack)
        };
        self.stacks
            .keys()
            .map(|number| (*number, whole(number).1))
            .collect()
    }
}

/// Memory runs short while an epoch is sent, and some of its counts are given up. The answer, which would mix two
/// states, is refused; the repeated fetch has each sample once, in a stack or as aged.
#[test]
fn an_epoch_that_ages_while_it_is_fetched_is_fetched_anew() {
    let agent = agent(1 << 20, 1);
    let mut service = Service::new(agent, Access::Open).unwrap();
    let mut client = Client::new(&mut service, 1);
    let id = client.start(&mut service, "newest", PROFILE_NS, start_flag::KEEP_NEWEST);
    let mut load = Load::new();
    let mut run = |service: &mut TestService| {
        let now_ns = unikprof_agent::Platform::now_ns(agent.platform());
        load.run(agent, service, now_ns + SECOND / 2);
    };
    // Segments are given up about every 12 s. A client that does not read its answer for 10 s is disconnected.
    while client.counters(&mut service)[0].aged == 0 {
        run(&mut service);
    }
    (0..16).for_each(|_| run(&mut service));
    let mut pending = None;
    client.ask(&mut service, &Dump { recording: id }, |found| {
        pending = Some(frame::decode::<Pending>(found).unwrap());
        true
    });
    let pending = pending.unwrap();
    let fetch = Fetch {
        epoch: pending.first_epoch,
        vcpu: 0,
        known: client.known,
        counted: 0,
    };
    // The client takes some of the answer, and the rest later.
    let request = encoded(&fetch);
    assert_eq!(service.receive(client.id, &request), request.len());
    let mut begun = vec![0; 1000];
    assert_eq!(service.transmit(client.id, &mut begun), begun.len());
    let mut other = Client::new(&mut service, 2);
    let aged = other.counters(&mut service)[0].aged;
    while other.counters(&mut service)[0].aged == aged {
        run(&mut service);
    }
    client.input = begun;
    client.take(&mut service);
    let answer = std::mem::take(&mut client.input);
    let (mut rest, mut first, mut last) = (&answer[..], None, None);
    while let Some(found) = frame::split(rest).unwrap() {
        if let Ok(vcpu) = frame::decode::<VcpuEpoch>(&found) {
            first = Some(vcpu.end.counters);
        }
        last = Some((found.kind, found.body));
        rest = &rest[found.length()..];
    }
    let (kind, body) = last.unwrap();
    let refused: Refusal<'_> = frame::decode(&Frame { kind, body }).unwrap();
    assert_eq!(refused.code, refusal::EPOCH_CHANGED, "{}", refused.text);
    assert!(rest.is_empty(), "nothing follows the refusal");

    let share = client.fetch(&mut service, pending);
    // These counters also reveal it to a client that has lost its connection meanwhile.
    let (first, second) = (first.unwrap(), share.end.unwrap().counters);
    assert!(second.aged > first.aged);
    assert_eq!(first.recorded + first.aged, second.recorded + second.aged);
    // Together with the later counts, each tick is counted once.
    let later = client.drain(&mut service, id);
    let counters = later.end.unwrap().counters;
    assert_eq!(
        (counters.overflow, counters.lost, counters.early),
        (0, 0, 0)
    );
    let mut fetched = share.counts;
    add(&mut fetched, later.counts);
    let sum: u64 = fetched.values().sum();
    assert_eq!(sum + counters.aged, load.ticks.len() as u64);
    let mut truth: HashMap<Vec<u32>, u64> = HashMap::new();
    for (_, stack) in &load.ticks {
        *truth.entry(client.codes(stack)).or_default() += 1;
    }
    let wrong = fetched
        .iter()
        .find(|(stack, count)| truth.get(*stack) < Some(count));
    assert_eq!(wrong, None);
}

/// A recording that keeps everything and is not fetched must not starve one that a client drains.
#[test]
fn a_recording_that_keeps_everything_leaves_room_for_another() {
    let agent = agent(1 << 20, 3);
    let mut service = Service::new(agent, Access::Open).unwrap();
    let mut other = Client::new(&mut service, 0);
    other.start(&mut service, "all", PROFILE_NS, 0);
    let mut load = Load::new();
    load.run(agent, &mut service, 60 * SECOND);
    let mut client = Client::new(&mut service, 1);
    let mut other = Client::new(&mut service, 0);
    let before = other.counters(&mut service)[0];
    assert!(before.overflow > 0, "it is full by now: {before:?}");
    assert_eq!(before.aged, 0);
    let drained = client.start(&mut service, "drained", PROFILE_NS, 0);
    other.start(&mut service, "newest", PROFILE_NS, start_flag::KEEP_NEWEST);
    for second in 61..=60 + seconds() {
        load.run(agent, &mut service, second * SECOND);
        let counters = client.drain(&mut service, drained).end.unwrap().counters;
        assert_eq!(
            (counters.overflow, counters.aged),
            (0, 0),
            "second {second}"
        );
    }
    let all = client.drain(&mut service, 1);
    let counters = all.end.unwrap().counters;
    assert_eq!(counters.aged, 0);
    assert_eq!(all.counts.values().sum::<u64>(), counters.recorded);
}

/// Recordings that keep everything, each fetched from time to time by a client that does not stay, lose nothing as
/// long as the stacks of one round fit: recurring stacks move from old segments to new ones.
#[test]
fn recordings_that_keep_everything_are_fetched_in_turns() {
    let agent = agent(4 << 20, 4);
    let mut service = Service::new(agent, Access::Open).unwrap();
    let mut starter = Client::new(&mut service, 0);
    let modes = [
        ("cpu", mode::CPU),
        ("wall", mode::WALL),
        ("again", mode::CPU),
        ("off", mode::OFF_CPU),
    ];
    let recordings = modes.map(|(name, mode)| {
        let start = Start {
            mode,
            ..Start::running_time(name, PROFILE_NS)
        };
        starter.begin(&mut service, &start)
    });
    service.close(starter.id);
    let mut load = Load::new();
    load.ticks_between_waits = 3;
    // Between two polls a segment may be begun that was freed in the first of them.
    load.poll_ns = 4 * SECOND;
    for (round, recording) in (1..=24).zip(recordings.iter().cycle()) {
        // Each is fetched every 40 s, in which a new segment is begun once or twice.
        load.run(agent, &mut service, round * 10 * SECOND);
        let mut client = Client::new(&mut service, round);
        let counters = client.drain(&mut service, *recording).end.unwrap().counters;
        let overflow = (counters.overflow, counters.blocked_overflow);
        assert_eq!(overflow, (0, 0), "round {round}");
        assert_eq!((counters.aged, counters.blocked_aged), (0, 0));
        let has_blocked = recording == &recordings[1] || recording == &recordings[3];
        assert_eq!(counters.blocked > 0, has_blocked, "round {round}");
        service.close(client.id);
    }
}

/// It must work with the minimum memory too.
#[test]
fn the_least_memory_keeps_the_newest() {
    let agent = agent(minimum_bytes(1, 2), 2);
    let mut service = Service::new(agent, Access::Open).unwrap();
    let mut client = Client::new(&mut service, 0);
    let id = client.start(&mut service, "least", PROFILE_NS, start_flag::KEEP_NEWEST);
    let mut load = Load::new();
    load.run(agent, &mut service, 5 * SECOND);
    let share = client.drain(&mut service, id);
    let counters = share.end.unwrap().counters;
    assert!(counters.add_up() && counters.recorded + counters.aged + counters.overflow > 4000);
    assert_eq!(share.counts.values().sum::<u64>(), counters.recorded);
}
