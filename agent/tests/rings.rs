//! The rings through a conversation: the guest's events, stacks and names as a client is told of them.
#![cfg(not(loom))]
#![allow(unsafe_code, clippy::unwrap_used)]

#[path = "rings/ask.rs"]
mod ask;
#[path = "fake/mod.rs"]
mod fake;

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ask::{Client, nodes_of, records, told};
use fake::platform::FakePlatform;
use fake::stacks::{Random, any_stack};
use unikprof_agent::{
    Agent, Config, EventNameError, MAX_DEPTH, Platform, Runstate, SpanId, minimum_bytes, ring_bytes,
};
use unikprof_proto::code::{message_type, mode, refusal};
use unikprof_proto::frame::Message;
use unikprof_proto::message::{
    EventNames, Nodes, Refusal, Ring, RingEnd, RingHead, RingRun, Stacks, StacksEnd,
};
use unikprof_proto::ring::{MAX_EVENT_NAME, kind, outcome};

/// The fake platform with two vCPUs, of which the test says on which it is.
struct TwoVcpus {
    fake: FakePlatform,
    current: AtomicU32,
    /// What others took; [`UNTOLD`]: the platform does not tell.
    stolen_ns: AtomicU64,
}

impl TwoVcpus {
    fn new() -> Self {
        Self {
            fake: FakePlatform::new(MAX_DEPTH),
            current: AtomicU32::new(0),
            stolen_ns: AtomicU64::new(UNTOLD),
        }
    }

    fn switch_to(&self, vcpu: u32) {
        self.current.store(vcpu, Ordering::Relaxed);
    }
}

/// Not one that is known.
const NOWHERE: u32 = u32::MAX;

const UNTOLD: u64 = u64::MAX;

// SAFETY: the fake platform's own answers.
unsafe impl Platform for TwoVcpus {
    fn now_ns(&self) -> u64 {
        self.fake.now_ns()
    }

    fn wall_clock_ns(&self) -> Option<u64> {
        Some(1_800_000_000_000_000_000)
    }

    fn vcpu(&self) -> Option<u32> {
        let current = self.current.load(Ordering::Relaxed);
        (current != NOWHERE).then_some(current)
    }

    fn running_ns(&self, vcpu: u32) -> u64 {
        self.fake.running_ns(vcpu)
    }

    fn runstate(&self, vcpu: u32) -> Option<Runstate> {
        let runnable_ns = self.stolen_ns.load(Ordering::Relaxed);
        (runnable_ns != UNTOLD).then(|| Runstate {
            running_ns: self.running_ns(vcpu),
            runnable_ns,
            ..Runstate::default()
        })
    }

    fn kick(&self, _: u32) {}

    fn stack_bounds(&self, sp: u64) -> Option<Range<u64>> {
        self.fake.stack_bounds(sp)
    }

    fn random(&self) -> Option<u64> {
        Some(1)
    }
}

const CONFIG: Config<'static> = Config {
    vcpus: 2,
    recordings: 2,
    ..fake::CONFIG
};

type Block = Vec<MaybeUninit<u8>>;

fn blocks(records: usize) -> (Block, Block) {
    (
        vec![MaybeUninit::uninit(); minimum_bytes(2, 2) + 100_000],
        vec![MaybeUninit::uninit(); ring_bytes(2, records)],
    )
}

fn with_rings(records: usize, test: impl FnOnce(&Agent<'_, TwoVcpus>)) {
    let (mut memory, mut ring) = blocks(records);
    let agent = Agent::new(TwoVcpus::new(), CONFIG, &mut memory).unwrap();
    test(&agent.with_ring(&mut ring));
}

fn ring_of(vcpu: u32) -> Ring {
    Ring {
        vcpu,
        position: 0,
        since_ns: 0,
    }
}

#[test]
fn events_are_told_with_their_names_each_from_its_vcpu() {
    with_rings(1000, |agent| {
        let (request, depth) = (
            agent.event_name("request").unwrap(),
            agent.event_name("queue depth").unwrap(),
        );
        assert_eq!(agent.event_name("request"), Ok(request));
        let at = |ns| agent.platform().fake.advance(ns);
        at(999);
        agent.mark(request, 42);
        at(1000);
        agent.counter(depth, -3);
        let outer = agent.span_begin(request);
        {
            let _inner = agent.span(depth);
            at(500);
        }
        agent.platform().switch_to(1);
        at(500);
        agent.span_end(request, SpanId::from_number(outer.number()));

        let mut client = Client::connect(agent);
        let names = client.names();
        assert_eq!(names, ["request", "queue depth"]);
        let (head, records, end) = client.ring(&ring_of(0));
        assert_eq!((head.oldest, head.next), (0, records.last().unwrap().0 + 1));
        assert_eq!((end.next, end.lost), (head.next, 0));
        assert!(head.capacity >= 1000);
        assert_eq!(head.now_ns, 3000);
        assert!(head.wall_clock_ns.is_some());
        let outer = outer.number();
        let all: Vec<_> = told(&records);
        let inner = all[3].3;
        assert_ne!(inner, outer);
        assert_eq!(
            all,
            [
                (kind::MARK, 1000, 0, 42),
                (kind::COUNTER, 2000, 1, -3_i64 as u64),
                (kind::SPAN_BEGIN, 2000, 0, outer),
                (kind::SPAN_BEGIN, 2000, 1, inner),
                (kind::SPAN_END, 2500, 1, inner),
            ]
        );
        let (_, records, _) = client.ring(&ring_of(1));
        assert_eq!(told(&records), [(kind::SPAN_END, 3000, 0, outer)]);
    });
}

/// A client that follows asks from where it was told to go on: it must see each record once.
#[test]
fn who_follows_sees_each_record_once() {
    with_rings(300, |agent| {
        let name = agent.event_name("x").unwrap();
        let mut client = Client::connect(agent);
        let (mut position, mut seen) = (0, Vec::new());
        for round in 0..40 {
            for number in 0..97 {
                agent.platform().fake.advance(1);
                agent.mark(name, round * 97 + number);
            }
            let (_, records, end) = client.ring(&Ring {
                position,
                ..ring_of(0)
            });
            assert_eq!(end.lost, 0);
            position = end.next;
            seen.extend(told(&records).iter().map(|record| record.3));
        }
        assert!(seen.iter().copied().eq(0..40 * 97));
    });
}

/// What was dropped must be told: nothing is silently lost.
#[test]
fn what_a_full_ring_dropped_is_told() {
    with_rings(300, |agent| {
        let name = agent.event_name("x").unwrap();
        for number in 0..10_000 {
            agent.platform().fake.advance(10);
            agent.mark(name, number);
        }
        let mut client = Client::connect(agent);
        let (head, records, _) = client.ring(&ring_of(0));
        assert_eq!(head.next - head.oldest, head.capacity);
        let numbers: Vec<_> = told(&records).iter().map(|record| record.3).collect();
        assert!(numbers.iter().copied().eq(numbers[0]..10_000));
        assert!(numbers.len() as u64 + 3 >= head.capacity);
        // The last second's.
        let since_ns = head.now_ns - 1000;
        let (_, records, _) = client.ring(&Ring {
            since_ns,
            ..ring_of(0)
        });
        let told = told(&records);
        assert!(told.iter().all(|record| record.1 >= since_ns));
        assert_eq!(told.len(), 101);
    });
}

#[test]
fn events_without_a_vcpu_are_counted_as_lost() {
    with_rings(300, |agent| {
        let name = agent.event_name("x").unwrap();
        let mut client = Client::connect(agent);
        for nowhere in [NOWHERE, 2] {
            agent.platform().switch_to(nowhere);
            agent.mark(name, 1);
            // One lost record: the end of a span that did not begin is none.
            drop(agent.span(name));
        }
        agent.platform().switch_to(0);
        let (head, records, end) = client.ring(&ring_of(0));
        assert_eq!((head.next, records.len(), end.lost), (0, 0, 4));
        assert_eq!(client.ring(&ring_of(1)).2.lost, 0);
    });
}

#[test]
fn names_that_are_refused_are_counted() {
    with_rings(300, |agent| {
        let long = "x".repeat(MAX_EVENT_NAME + 1);
        assert_eq!(
            agent.event_name(&long),
            Err(EventNameError::TooLong(MAX_EVENT_NAME + 1))
        );
        assert_eq!(agent.event_name(""), Err(EventNameError::Empty));
        for id in 0..256 {
            assert!(agent.event_name(&format!("{id}")).is_ok());
        }
        assert_eq!(agent.event_name("more"), Err(EventNameError::TooMany));
        let mut client = Client::connect(agent);
        assert_eq!(client.names().len(), 256);
        assert_eq!(client.names_refused(), 3);
        let from = client.ask(&EventNames { first: 254 }, message_type::EVENT_NAMES_END);
        assert_eq!(from.len(), 3);
        let beyond = client.ask(
            &EventNames { first: u32::MAX },
            message_type::EVENT_NAMES_END,
        );
        assert_eq!(beyond.len(), 1);
    });
}

/// Records name stacks by their ids: these must be told, those of one vCPU, from any node on.
#[test]
fn stacks_are_told_without_counts() {
    with_rings(300, |agent| {
        let mut random = Random::new(5);
        let mut client = Client::connect(agent);
        client.start(1_000_000);
        for _ in 0..300 {
            agent.platform().fake.advance(2_000_000);
            let registers = agent.platform().fake.stack().lay(&any_stack(&mut random));
            agent.on_tick(Some(&registers));
        }
        let all = client.stacks(&Stacks { vcpu: 0, node: 0 });
        assert!(all.len() > 300);
        assert!(all.iter().all(|(_, node)| node.1 == 0));
        let ids: Vec<u32> = all.iter().map(|(id, _)| *id).collect();
        assert!(ids.iter().copied().eq(1..=ids.len() as u32));
        let rest = client.stacks(&Stacks { vcpu: 0, node: 250 });
        assert_eq!(rest, all[249..]);
        assert!(client.stacks(&Stacks { vcpu: 1, node: 1 }).is_empty());
        let none = client.stacks(&Stacks {
            vcpu: 0,
            node: u32::MAX,
        });
        assert!(none.is_empty());
    });
}

#[test]
fn without_rings_there_are_no_events_and_requests_are_refused() {
    let (mut memory, mut ring) = blocks(300);
    let agent = Agent::new(TwoVcpus::new(), CONFIG, &mut memory).unwrap();
    // Too small: as if there were none.
    let agent = agent.with_ring(&mut ring[..100]);
    assert_eq!(agent.event_name("x"), Err(EventNameError::NoRing));
    let mut client = Client::connect(&agent);
    for refused in [
        client.ask(&ring_of(0), RingEnd::TYPE),
        client.ask(&Stacks { vcpu: 0, node: 1 }, Nodes::TYPE),
        client.ask(&EventNames { first: 0 }, 0),
    ] {
        let [answer] = &refused[..] else {
            panic!("one refusal");
        };
        assert_eq!(answer.decode::<Refusal<'_>>().code, refusal::NO_RING);
    }
}

#[test]
fn a_ring_of_an_unknown_vcpu_is_refused() {
    with_rings(300, |agent| {
        let mut client = Client::connect(agent);
        for vcpu in [2, u32::MAX] {
            let refused = client.ask(&ring_of(vcpu), RingEnd::TYPE);
            let code = refused[0].decode::<Refusal<'_>>().code;
            assert_eq!((refused.len(), code), (1, refusal::NO_RING));
        }
        let answers = client.ask(&ring_of(1), RingEnd::TYPE);
        assert_eq!(answers[0].kind, RingHead::TYPE);
    });
}

/// What became of each tick, and when recordings began and ended, is told; the counters agree.
#[test]
fn the_agent_tells_of_its_recordings_ticks_and_times() {
    with_rings(1000, |agent| {
        let mut client = Client::connect(agent);
        let mut random = Random::new(5);
        let id = client.start(1_000_000);
        let mut tick = |with_registers: bool| {
            agent.platform().fake.advance(2_000_000);
            let registers = agent.platform().fake.stack().lay(&any_stack(&mut random));
            agent.on_tick(with_registers.then_some(&registers));
        };
        (0..50).for_each(|_| tick(true));
        tick(false);
        agent.on_block(None);
        tick(true);
        agent.on_wake();
        agent.platform().fake.advance(1_000_000_000);
        client.advance();
        agent.resume();
        client.stop();
        let (_, records, end) = client.ring(&ring_of(0));
        assert_eq!(end.lost, 0);
        let told = told(&records);
        let of = |kind: u8| told.iter().filter(move |record| record.0 == kind);
        let numbers = |kind: u8| of(kind).map(|one| (one.2, one.3)).collect::<Vec<_>>();
        assert_eq!(numbers(kind::BEGAN), [(id, 0)]);
        assert_eq!(numbers(kind::ENDED), [(id, 0)]);
        let samples: Vec<_> = of(kind::SAMPLE).collect();
        assert_eq!(samples.len(), 50);
        let nodes = client.stacks(&Stacks { vcpu: 0, node: 1 }).len() as u64;
        for (index, sample) in samples.iter().enumerate() {
            assert!((1..=nodes).contains(&sample.2), "the stack is there");
            assert_eq!(sample.3 & 0xff, 1, "the first lane's");
            let after = samples.get(index + 1);
            assert!(after.is_none_or(|after| after.1 == sample.1 + 2_000_000));
        }
        let none = [(outcome::MASKED, 1), (outcome::IDLE, 1)];
        assert_eq!(numbers(kind::NO_SAMPLE), none);
        assert_eq!(of(kind::RESUMED).count(), 1);
        let ran: Vec<_> = of(kind::RAN).map(|one| one.2).collect();
        assert_eq!(ran.last(), Some(&agent.platform().fake.now_ns()));
        assert_eq!(of(kind::WAITED).count(), ran.len());
        assert_eq!(of(kind::CLOCK).count(), 1);
        // The other vCPU has none of these ticks, but what concerns both.
        let (_, records, _) = client.ring(&ring_of(1));
        let kinds: Vec<u8> = records.iter().map(|(_, record)| record.kind).collect();
        assert!(kinds.contains(&kind::BEGAN) && kinds.contains(&kind::RESUMED));
        assert!(!kinds.contains(&kind::SAMPLE));
    });
}

/// Samples name stacks of the table: a new recording must not give their ids to others.
#[test]
fn a_new_recording_leaves_the_stacks_of_older_samples() {
    with_rings(1000, |agent| {
        let mut client = Client::connect(agent);
        let mut random = Random::new(5);
        let mut record = |client: &mut Client<'_, '_, TwoVcpus>| {
            client.start(1_000_000);
            for _ in 0..20 {
                agent.platform().fake.advance(2_000_000);
                let registers = agent.platform().fake.stack().lay(&any_stack(&mut random));
                agent.on_tick(Some(&registers));
            }
            client.stop();
            client.stacks(&Stacks { vcpu: 0, node: 1 })
        };
        let first = record(&mut client);
        let second = record(&mut client);
        assert_eq!(second[..first.len()], first);
        assert!(second.len() > first.len());
        // Until little room is left: then what named them goes too.
        let mut before = second.len();
        let after = loop {
            let after = record(&mut client).len();
            if after < before {
                break after;
            }
            before = after;
        };
        let (head, records, _) = client.ring(&ring_of(0));
        assert!(head.oldest > 0 && records[0].0 >= head.oldest);
        let stacks = told(&records);
        let stacks = stacks.iter().filter(|one| one.0 == kind::SAMPLE);
        let stacks: Vec<_> = stacks.map(|one| one.2).collect();
        assert_eq!(stacks.len(), 20);
        assert!(stacks.iter().all(|id| *id <= after as u64));
    });
}

/// Guards samples that are named by stacks of another recording: one may begin, and the stacks be cleared for it,
/// wherever another client is in reading a ring and its stacks. It must be able to see that.
#[test]
fn who_reads_while_stacks_are_cleared_is_told() {
    for moment in ["the records", "what lies between", "the stacks"] {
        with_rings(1000, |agent| {
            let mut client = Client::connect(agent);
            let mut random = Random::new(5);
            let reader = client.open_another();
            let (mut told_so, mut misled) = (0, 0);
            while told_so < 3 {
                let other = client.switch_to(reader);
                let truth = client.stacks(&Stacks { vcpu: 0, node: 1 });
                // As another client does, in the middle of what this one asks.
                let mut begins = |client: &mut Client<'_, '_, TwoVcpus>, here: &str| {
                    if here == moment {
                        let reader = client.switch_to(other);
                        client.start(1_000_000);
                        for _ in 0..20 {
                            agent.platform().fake.advance(2_000_000);
                            let registers =
                                agent.platform().fake.stack().lay(&any_stack(&mut random));
                            agent.on_tick(Some(&registers));
                        }
                        client.switch_to(reader);
                    }
                };
                let first = client.begin_to_ask(&ring_of(0));
                begins(&mut client, "the records");
                let answers = client.end_asking(first);
                begins(&mut client, "what lies between");
                let head: RingHead = answers[0].decode();
                let runs = answers.iter().filter(|one| one.kind == RingRun::TYPE);
                let all: Vec<_> = runs.flat_map(|run| records(&run.decode())).collect();
                let first = client.begin_to_ask(&Stacks { vcpu: 0, node: 1 });
                begins(&mut client, "the stacks");
                let answers = client.end_asking(first);
                let end: StacksEnd = answers.last().unwrap().decode();
                let got = nodes_of(&answers);
                let named = told(&all).into_iter().filter(|one| one.0 == kind::SAMPLE);
                let is_right = named.map(|one| one.2 as usize - 1).all(|index| {
                    truth
                        .get(index)
                        .is_none_or(|truth| got.get(index) == Some(truth))
                });
                assert!(is_right || head.cleared != end.cleared);
                told_so += u32::from(head.cleared != end.cleared);
                misled += u32::from(!is_right);
                client.switch_to(other);
                client.stop();
            }
            assert!(misled > 0, "{moment}: it is seen in what was read");
        });
    }
}

/// A recording of blocked time tells where the vCPU blocked, and when it woke.
#[test]
fn blocks_are_told_while_blocked_time_is_recorded() {
    with_rings(300, |agent| {
        let mut client = Client::connect(agent);
        client.start_mode(1_000_000, mode::OFF_CPU);
        let stack = any_stack(&mut Random::new(5));
        let registers = agent.platform().fake.stack().lay(&stack);
        for _ in 0..3 {
            agent.on_block(Some(&registers));
            agent.platform().fake.advance(500);
            agent.on_wake();
        }
        let (_, records, _) = client.ring(&ring_of(0));
        let told = told(&records);
        let blocks: Vec<_> = told.iter().filter(|one| one.0 == kind::BLOCK).collect();
        let wakes: Vec<_> = told.iter().filter(|one| one.0 == kind::WAKE).collect();
        assert_eq!((blocks.len(), wakes.len()), (3, 3));
        for (block, wake) in blocks.iter().zip(wakes) {
            assert_eq!(wake.1 - block.1, 500);
            assert_ne!(block.2, 0);
        }
    });
}

/// A recording of running time tells of long waits alone, however many short ones there are.
#[test]
fn long_waits_are_told_in_a_recording_of_running_time() {
    with_rings(300, |agent| {
        let wait = |ns| {
            agent.on_block(None);
            agent.platform().fake.advance(ns);
            agent.on_wake();
        };
        let mut client = Client::connect(agent);
        wait(50_000_000);
        // Who asks comes in the middle of a wait.
        agent.on_block(None);
        client.start(1_000_000_000);
        agent.platform().fake.advance(40_000_000);
        agent.on_wake();
        for ns in [19_999_999, 20_000_000, 5, 3_600_000_000_000] {
            wait(ns);
        }
        let (_, records, _) = client.ring(&ring_of(0));
        let told = told(&records);
        let waits = told.iter().filter(|one| one.0 == kind::WAKE);
        let waits: Vec<_> = waits.map(|one| one.2).collect();
        assert_eq!(waits, [20_000_000, 3_600_000_000_000]);
        assert!(told.iter().all(|one| one.0 != kind::BLOCK));
    });
}

/// What others took of a second is told on its own where it is much, from the first second on.
#[test]
fn steal_is_told_beyond_a_threshold() {
    const SECOND: u64 = 1_000_000_000;
    const MS: u64 = 1_000_000;
    with_rings(300, |agent| {
        let mut client = Client::connect(agent);
        client.start(1_000_000_000);
        for stolen_ns in [0, 0, 9 * MS, 30 * MS, 30 * MS] {
            agent
                .platform()
                .stolen_ns
                .store(stolen_ns, Ordering::Relaxed);
            agent.platform().fake.advance(SECOND);
            client.advance();
        }
        let (_, records, _) = client.ring(&ring_of(0));
        let told = told(&records);
        let of = |kind: u8| told.iter().filter(move |record| record.0 == kind);
        let stolen: Vec<_> = of(kind::STOLEN).map(|record| record.2).collect();
        assert_eq!(stolen, [21 * MS]);
        let ran: Vec<_> = of(kind::RAN).map(|record| record.3).collect();
        assert!(ran.ends_with(&[0, 9 * MS, 30 * MS, 30 * MS]), "{ran:?}");
    });
}
