//! The rings in a conversation: the guest's events, stacks and names as a client receives them.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;

use crate::client::{Client, Frame, RING, fields, nodes_of, one_ms, read, records, serve};
use crate::fake;
use crate::fake::platform::{NOWHERE, TwoVcpus};
use crate::fake::stacks::{MAPPING, Random, any_stack};
use unikprof_agent::{
    Agent, Config, EventNameError, MAX_DEPTH, Platform, SpanId, minimum_bytes, ring_bytes,
};
use unikprof_proto::code::{frame_code, mode, refusal};
use unikprof_proto::frame::Message;
use unikprof_proto::message::{EventNames, Ring, RingRun, Stacks, StacksEnd, Start};
use unikprof_proto::ring::{MAX_EVENT_NAME, Record, Wait, kind, outcome};

const CONFIG: Config<'static> = Config { vcpus: 2, recordings: 2, ..fake::CONFIG };

type Block = Vec<MaybeUninit<u8>>;

fn blocks(records: usize) -> (Block, Block) {
    (
        vec![MaybeUninit::uninit(); minimum_bytes(2, 2) + 100_000],
        vec![MaybeUninit::uninit(); ring_bytes(2, records)],
    )
}

fn with_rings(records: usize, test: impl FnOnce(&Agent<'_, TwoVcpus>)) {
    let (mut memory, mut ring) = blocks(records);
    let agent = Agent::new(TwoVcpus::new(MAX_DEPTH), CONFIG, &mut memory).unwrap();
    test(&agent.with_ring(&mut ring));
}

fn ring_of(vcpu: u32) -> Ring {
    Ring { vcpu, ..RING }
}

#[test]
fn events_are_sent_with_their_names_each_from_its_vcpu() {
    with_rings(1000, |agent| {
        let (request, depth) =
            (agent.event_name("request").unwrap(), agent.event_name("queue depth").unwrap());
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

        let mut client = Client::connect(&serve(agent));
        let names = client.event_names().0;
        assert_eq!(names, ["request", "queue depth"]);
        let (head, records, end) = client.ring(&ring_of(0));
        assert_eq!((head.oldest, head.next), (0, records.last().unwrap().0 + 1));
        assert_eq!((end.next, end.lost), (head.next, 0));
        assert!(head.capacity >= 1000);
        assert_eq!(head.now_ns, 3000);
        assert!(head.wall_clock_ns.is_some());
        let all: Vec<_> = fields(&records);
        let (outer, inner) = (all[2].3, all[3].3);
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
        assert_eq!(fields(&records), [(kind::SPAN_END, 3000, 0, outer)]);
    });
}

/// Guards ids that clients cannot find in their traces.
#[test]
fn a_span_has_its_ids_in_a_distributed_trace() {
    with_rings(1000, |agent| {
        let request = agent.event_name("request").unwrap();
        let trace_id: [u8; 16] = std::array::from_fn(|at| at as u8 + 1);
        let span_id: [u8; 8] = std::array::from_fn(|at| at as u8 + 0xa1);
        let span = agent.async_span_begin(request);
        agent.span_trace(span, trace_id, span_id);
        agent.span_trace(span, [0; 16], span_id);
        agent.span_trace(SpanId::NONE, trace_id, span_id);
        agent.span_end(request, span);
        let mut client = Client::connect(&serve(agent));
        let (_, records, _) = client.ring(&ring_of(0));
        let found: Vec<_> = fields(&records).into_iter().filter(|one| one.0 != 0).collect();
        let at_ns = found[0].1;
        let number = found[0].3;
        let expected = [
            (kind::ASYNC_SPAN_BEGIN, at_ns, 0, number),
            (kind::TRACE_HIGH, at_ns, number, 0x0102_0304_0506_0708),
            (kind::TRACE_LOW, at_ns, number, 0x090a_0b0c_0d0e_0f10),
            (kind::TRACE_SPAN, at_ns, number, 0xa1a2_a3a4_a5a6_a7a8),
            (kind::SPAN_END, at_ns, 0, number),
        ];
        assert_eq!(found, expected);
    });
}

/// Guards that samples and waits of a span that others run beside cannot be told from theirs: while
/// code of an asynchronous span runs, each tick and each wait has a record of it.
#[test]
fn ticks_and_waits_tell_of_the_span_that_is_entered() {
    with_rings(1000, |agent| {
        let request = agent.event_name("request").unwrap();
        agent.platform().stolen_ns.store(0, Ordering::Relaxed);
        let mut client = Client::connect(&serve(agent));
        client.start(Start { mode: mode::WALL, ..one_ms() });
        let [older, younger] = [(); 2].map(|()| agent.async_span_begin(request));
        let mut random = Random::new(7);
        let mut tick = || {
            tick(agent, &mut random);
        };
        tick();
        assert_eq!(agent.enter(older), SpanId::NONE);
        tick();
        // An upcall that works for another span.
        let before = agent.enter(younger);
        tick();
        agent.leave(before);
        agent.on_tick(None);
        agent.on_block(None);
        agent.platform().fake.advance(2_000_000);
        agent.on_wake();
        agent.leave(SpanId::NONE);
        tick();
        agent.platform().switch_to(1);
        assert_eq!(agent.enter(younger), SpanId::NONE, "each vCPU has its own");

        let (_, records, _) = client.ring(&ring_of(0));
        let told = fields(&records);
        let spans: Vec<u64> =
            told.iter().filter(|one| one.0 == kind::ASYNC_SPAN_BEGIN).map(|one| one.3).collect();
        assert_eq!(spans.len(), 2);
        // The span that the record before each names, if that is one of the same time.
        let entered = |at: usize| match told[at - 1] {
            (kind::ENTERED, at_ns, name, span) => {
                assert_eq!((at_ns, name), (told[at].1, request.number().into()));
                Some(span)
            }
            _ => None,
        };
        let found: Vec<(u8, Option<u64>)> = (0..told.len())
            .filter(|at| matches!(told[*at].0, kind::SAMPLE | kind::NO_SAMPLE | kind::WAIT))
            .map(|at| (told[at].0, entered(at)))
            .collect();
        let [older, younger] = [Some(spans[0]), Some(spans[1])];
        let expected = [
            (kind::SAMPLE, None),
            (kind::SAMPLE, older),
            (kind::SAMPLE, younger),
            (kind::WAIT, older),
            (kind::SAMPLE, None),
        ];
        assert_eq!(found, expected);
    });
}

/// A client that follows continues from the position that the agent sent: it must see each record
/// once.
#[test]
fn a_client_that_follows_sees_each_record_once() {
    with_rings(300, |agent| {
        let name = agent.event_name("x").unwrap();
        let mut client = Client::connect(&serve(agent));
        let (mut position, mut seen) = (0, Vec::new());
        for round in 0..40 {
            for number in 0..97 {
                agent.platform().fake.advance(1);
                agent.mark(name, round * 97 + number);
            }
            let (_, records, end) = client.ring(&Ring { position, ..ring_of(0) });
            assert_eq!(end.lost, 0);
            position = end.next;
            seen.extend(fields(&records).iter().map(|record| record.3));
        }
        assert!(seen.iter().copied().eq(0..40 * 97));
    });
}

/// Dropped records must be reported: nothing is silently lost.
#[test]
fn what_a_full_ring_dropped_is_reported() {
    with_rings(300, |agent| {
        let name = agent.event_name("x").unwrap();
        for number in 0..10_000 {
            agent.platform().fake.advance(10);
            agent.mark(name, number);
        }
        let mut client = Client::connect(&serve(agent));
        let (head, records, _) = client.ring(&ring_of(0));
        assert_eq!(head.next - head.oldest, head.capacity);
        let numbers: Vec<_> = fields(&records).iter().map(|record| record.3).collect();
        assert!(numbers.iter().copied().eq(numbers[0]..10_000));
        assert!(numbers.len() as u64 + 3 >= head.capacity);
        // Those of the last second.
        let since_ns = head.now_ns - 1000;
        let (_, records, _) = client.ring(&Ring { since_ns, ..ring_of(0) });
        let seen = fields(&records);
        assert!(seen.iter().all(|record| record.1 >= since_ns));
        assert_eq!(seen.len(), 101);
    });
}

#[test]
fn events_without_a_vcpu_are_counted_as_lost() {
    with_rings(300, |agent| {
        let name = agent.event_name("x").unwrap();
        let mut client = Client::connect(&serve(agent));
        for nowhere in [NOWHERE, 2] {
            agent.platform().switch_to(nowhere);
            agent.mark(name, 1);
            // One lost record: the end of a span that did not begin is not counted.
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
        assert_eq!(agent.event_name(&long), Err(EventNameError::TooLong(MAX_EVENT_NAME + 1)));
        assert_eq!(agent.event_name(""), Err(EventNameError::Empty));
        for id in 0..256 {
            assert!(agent.event_name(&format!("{id}")).is_ok());
        }
        assert_eq!(agent.event_name("more"), Err(EventNameError::TooMany));
        let mut client = Client::connect(&serve(agent));
        assert_eq!(client.event_names().0.len(), 256);
        assert_eq!(client.event_names().1, 3);
        let from = client.ask(&EventNames { first: 254 });
        assert_eq!(from.len(), 3);
        let beyond = client.ask(&EventNames { first: u32::MAX });
        assert_eq!(beyond.len(), 1);
    });
}

/// Records refer to stacks by their numbers: a client receives the nodes of one vCPU that it does
/// not have, and no others.
#[test]
fn a_client_receives_the_nodes_that_it_lacks() {
    with_rings(300, |agent| {
        let mut random = Random::new(5);
        let mut client = Client::connect(&serve(agent));
        client.start(one_ms());
        (0..300).for_each(|_| _ = tick(agent, &mut random));
        let all = client.stacks(&Stacks { vcpu: 0, known: 0 });
        assert!(all.len() > 300);
        assert!(all.is_sorted_by(|one, next| one.0 < next.0));
        assert!(all.iter().all(|(number, (parent, _))| parent < number));
        let rest = client.stacks(&Stacks { vcpu: 0, known: all[249].0 });
        assert_eq!(rest, all[250..]);
        assert!(client.stacks(&Stacks { vcpu: 1, known: 0 }).is_empty());
        for known in [all.last().unwrap().0, u64::MAX - 1, u64::MAX] {
            assert!(client.stacks(&Stacks { vcpu: 0, known }).is_empty());
        }
    });
}

#[test]
fn without_rings_there_are_no_events_and_requests_are_refused() {
    let (mut memory, mut ring) = blocks(300);
    let agent = Agent::new(TwoVcpus::new(MAX_DEPTH), CONFIG, &mut memory).unwrap();
    // Too small: the same as no rings.
    let agent = agent.with_ring(&mut ring[..100]);
    assert_eq!(agent.event_name("x"), Err(EventNameError::NoRing));
    let mut client = Client::connect(&serve(&agent));
    let stacks = Stacks { vcpu: 0, known: 0 };
    for (refused, _) in [
        client.refusal(&ring_of(0)),
        client.refusal(&stacks),
        client.refusal(&EventNames { first: 0 }),
    ] {
        assert_eq!(refused, refusal::NO_RING);
    }
}

#[test]
fn a_ring_of_an_unknown_vcpu_is_refused() {
    with_rings(300, |agent| {
        let mut client = Client::connect(&serve(agent));
        for vcpu in [2, u32::MAX] {
            assert_eq!(client.refusal(&ring_of(vcpu)).0, refusal::NO_RING);
        }
        client.ring(&ring_of(1));
    });
}

/// There is a record for each tick, and for the begin and end of recordings, and the counters
/// agree.
#[test]
fn the_agent_records_its_recordings_ticks_and_times() {
    with_rings(1000, |agent| {
        let mut client = Client::connect(&serve(agent));
        let mut random = Random::new(5);
        let id = client.start(one_ms());
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
        client.discard();
        let (_, records, end) = client.ring(&ring_of(0));
        assert_eq!(end.lost, 0);
        let seen = fields(&records);
        let of = |kind: u8| seen.iter().filter(move |record| record.0 == kind);
        let numbers = |kind: u8| of(kind).map(|one| (one.2, one.3)).collect::<Vec<_>>();
        assert_eq!(numbers(kind::BEGAN), [(id, 0)]);
        assert_eq!(numbers(kind::ENDED), [(id, 0)]);
        let samples: Vec<_> = of(kind::SAMPLE).collect();
        assert_eq!(samples.len(), 50);
        let nodes = client.stacks(&Stacks { vcpu: 0, known: 0 });
        let held: Vec<_> = nodes.iter().map(|(number, _)| *number).collect();
        for (index, sample) in samples.iter().enumerate() {
            assert!(held.contains(&sample.2), "the stack is there");
            assert_eq!(sample.3 & 0xff, 1, "the first recording's");
            let after = samples.get(index + 1);
            assert!(after.is_none_or(|after| after.1 == sample.1 + 2_000_000));
        }
        let none = [(outcome::MASKED, 1), (outcome::IDLE, 1)];
        assert_eq!(numbers(kind::NO_SAMPLE), none);
        assert_eq!(of(kind::RESUMED).count(), 1);
        let ran: Vec<_> = of(kind::RAN).map(|one| one.2).collect();
        assert_eq!(ran.last(), Some(&agent.platform().fake.now_ns()));
        assert_eq!(of(kind::WAITED).count(), 0, "the platform has no run states");
        assert_eq!(of(kind::CLOCK).count(), 1);
        // The other vCPU has none of these ticks, but the records that concern both.
        let (_, records, _) = client.ring(&ring_of(1));
        let kinds: Vec<u8> = records.iter().map(|(_, record)| record.kind).collect();
        assert!(kinds.contains(&kind::BEGAN) && kinds.contains(&kind::RESUMED));
        assert!(!kinds.contains(&kind::SAMPLE));
    });
}

/// Delivers a tick in a new stack; returns the codes of its frames, leaf first.
fn tick(agent: &Agent<'_, TwoVcpus>, random: &mut Random) -> Vec<u32> {
    let stack = any_stack(random);
    let platform = agent.platform();
    platform.fake.advance(2_000_000);
    agent.on_tick(Some(&platform.fake.stack().lay(&stack)));
    let code = |address: &u64| frame_code::FIRST_ADDRESS + (address - MAPPING.start) as u32;
    stack.0.iter().map(code).collect()
}

/// Records and their stacks as a client keeps them, and the samples that were made.
#[derive(Default)]
struct Samples {
    /// The sampled stacks, by time.
    truth: HashMap<u64, Vec<u32>>,
    /// Stacks by their numbers.
    known: HashMap<u64, Vec<u32>>,
    newest: u64,
}

impl Samples {
    /// Makes a recording with this many samples.
    fn record(
        &mut self,
        client: &mut Client<'_, '_, TwoVcpus>,
        agent: &Agent<'_, TwoVcpus>,
        (random, samples): (&mut Random, u32),
    ) {
        client.start(one_ms());
        for _ in 0..samples {
            let stack = tick(agent, random);
            self.truth.insert(agent.platform().now_ns(), stack);
        }
        client.discard();
    }

    fn request(&self) -> Stacks {
        Stacks { vcpu: 0, known: self.newest }
    }

    /// Adds the nodes of an answer; returns the number of the oldest node that the agent held.
    fn add(&mut self, answers: &[Frame]) -> u64 {
        for (number, (parent, mut stack)) in nodes_of(answers) {
            // A mark in front means that the sample was late.
            stack.retain(|code| *code >= frame_code::FIRST_ADDRESS);
            if parent != 0 {
                stack.extend_from_slice(&self.known[&parent]);
            }
            assert_eq!(self.known.insert(number, stack), None, "a number twice");
        }
        let end: StacksEnd = read(answers.last().unwrap());
        self.newest = end.known;
        end.oldest
    }

    /// Checks that no record refers to a stack that was not sampled then. Returns for each sample
    /// whether its stack is known; all others were discarded.
    fn check(&self, records: &[(u64, Record)], oldest: u64) -> Vec<bool> {
        let samples = records.iter().map(|(_, record)| record);
        let samples = samples.filter(|record| record.kind == kind::SAMPLE);
        let check = |sample: &Record| match self.known.get(&sample.first) {
            Some(stack) => {
                assert_eq!(*stack, self.truth[&sample.at_ns]);
                true
            }
            None => {
                assert!(sample.first < oldest, "{} of {oldest}", sample.first);
                false
            }
        };
        samples.map(check).collect()
    }
}

/// A new recording must keep the stacks of older samples until memory runs short: then the oldest
/// are discarded.
#[test]
fn older_samples_keep_their_stacks_until_these_are_given_up() {
    with_rings(2000, |agent| {
        let mut client = Client::connect(&serve(agent));
        let mut random = Random::new(5);
        let mut samples = Samples::default();
        let mut first_oldest = 0;
        for round in 0..100 {
            samples.record(&mut client, agent, (&mut random, 20));
            let (_, records, _) = client.ring(&ring_of(0));
            // A client that connects now, and one that has followed.
            let answers = client.ask(&Stacks { vcpu: 0, known: 0 });
            let mut fresh = Samples { truth: samples.truth.clone(), ..Samples::default() };
            let oldest = fresh.add(&answers);
            let is_named = fresh.check(&records, oldest);
            assert!(is_named.len() >= 20 && is_named[is_named.len() - 20..].iter().all(|is| *is));
            if round < 3 {
                assert!(is_named.iter().all(|is| *is));
                first_oldest = oldest;
            }
            let answers = client.ask(&samples.request());
            assert_eq!(samples.add(&answers), oldest);
            if round == 99 {
                assert!(oldest > first_oldest && !is_named[0], "stacks have aged");
            }
        }
    });
}

/// Samples must not be attributed to wrong stacks: other clients record, and stacks are discarded,
/// while this client reads a ring and its stacks.
#[test]
fn stacks_that_age_while_a_client_reads_are_not_taken_for_others() {
    for moment in ["the records", "what lies between", "the stacks"] {
        with_rings(2000, |agent| {
            let mut other = Client::connect(&serve(agent));
            let mut reader = other.another();
            let mut random = Random::new(5);
            let mut samples = Samples::default();
            let mut given_up = 0;
            for _ in 0..20 {
                // Another client goes on in the middle of this one's requests.
                let mut goes_on = |here: &str| {
                    if here == moment {
                        for _ in 0..4 {
                            samples.record(&mut other, agent, (&mut random, 20));
                        }
                    }
                };
                reader.send_only(&ring_of(0));
                reader.take(8);
                goes_on("the records");
                reader.take(usize::MAX);
                let answers = reader.frames();
                goes_on("what lies between");
                let runs = answers.iter().filter(|one| one.kind == RingRun::TYPE);
                let all: Vec<_> = runs.flat_map(|run| records(&read(run))).collect();
                reader.send_only(&Stacks { vcpu: 0, known: 0 });
                reader.take(8);
                goes_on("the stacks");
                reader.take(usize::MAX);
                let answers = reader.frames();
                samples.known.clear();
                let oldest = samples.add(&answers);
                let is_named = samples.check(&all, oldest);
                let was_named = all.iter().filter(|(_, record)| record.first != 0);
                let was_named = was_named.filter(|(_, record)| record.kind == kind::SAMPLE);
                let named = is_named.iter().filter(|is| **is).count();
                given_up += was_named.count() - named;
            }
            let is_between = moment == "what lies between";
            assert!(given_up > 0 || !is_between, "{moment}: some are given up");
        });
    }
}

/// In a recording of blocked time, records show where the vCPU blocked, when it woke, and how long
/// the wait was.
#[test]
fn waits_are_sent_while_blocked_time_is_recorded() {
    with_rings(300, |agent| {
        let mut client = Client::connect(&serve(agent));
        client.start(Start { mode: mode::OFF_CPU, ..one_ms() });
        let stack = any_stack(&mut Random::new(5));
        let registers = agent.platform().fake.stack().lay(&stack);
        for _ in 0..3 {
            agent.on_block(Some(&registers));
            agent.platform().fake.advance(500);
            agent.on_wake();
        }
        let (_, records, _) = client.ring(&ring_of(0));
        let waits = records.iter().map(|(_, record)| record);
        let waits: Vec<_> = waits.filter(|record| record.kind == kind::WAIT).collect();
        assert_eq!(waits.len(), 3);
        for wait in waits {
            assert_eq!(Wait::from_number(wait.third).length_ns, 500);
            assert_ne!(wait.first, 0);
        }
    });
}

/// Guards against stolen time that counts as blocked: a platform without run states cannot tell them
/// apart. Waits are measured all the same.
#[test]
fn wall_time_needs_run_states() {
    with_rings(300, |agent| {
        let mut client = Client::connect(&serve(agent));
        let wall = Start { mode: mode::WALL, ..one_ms() };
        let (code, text) = client.refusal(&wall);
        assert_eq!(code, refusal::UNSUPPORTED_MODE);
        assert!(text.contains("stolen"), "{text}");
        client.start(Start { mode: mode::OFF_CPU, ..one_ms() });
        client.discard();
        agent.platform().stolen_ns.store(0, Ordering::Relaxed);
        client.start(wall);
    });
}

/// In a recording of running time, only long waits have records, however many short ones there are.
#[test]
fn long_waits_are_sent_in_a_recording_of_running_time() {
    with_rings(300, |agent| {
        let wait = |ns| {
            agent.on_block(None);
            agent.platform().fake.advance(ns);
            agent.on_wake();
        };
        let mut client = Client::connect(&serve(agent));
        wait(50_000_000);
        // The request arrives in the middle of a wait.
        agent.on_block(None);
        client.start(Start::running_time("test", 1_000_000_000));
        agent.platform().fake.advance(40_000_000);
        agent.on_wake();
        for ns in [19_999_999, 20_000_000, 5, 3_600_000_000_000] {
            wait(ns);
        }
        let (_, records, _) = client.ring(&ring_of(0));
        let waits = records.iter().map(|(_, record)| record);
        let waits = waits.filter(|record| record.kind == kind::WAIT);
        let waits: Vec<_> = waits.map(|wait| Wait::from_number(wait.third)).collect();
        assert!(waits.iter().all(|wait| wait.ring_bits == 0), "no recording counts them");
        let lengths: Vec<_> = waits.iter().map(|wait| wait.length_ns).collect();
        assert_eq!(lengths[..2], [40_000_000, 20_000_000]);
        assert!(lengths[2].abs_diff(3_600_000_000_000) < 1_000_000, "{lengths:?}");
    });
}

/// Guards more time in a second than a second: a hosted vCPU's times are read once it had its turn.
#[test]
fn times_are_noted_when_they_were_read() {
    const SECOND: u64 = 1_000_000_000;
    with_rings(300, |agent| {
        let mut client = Client::connect(&serve(agent));
        client.start(Start::running_time("test", SECOND));
        agent.platform().stolen_ns.store(0, Ordering::Relaxed);
        agent.platform().reading_ns.store(SECOND / 20, Ordering::Relaxed);
        for _ in 0..3 {
            agent.platform().fake.advance(SECOND);
            client.advance();
        }
        agent.platform().reading_ns.store(0, Ordering::Relaxed);
        for vcpu in [0, 1] {
            let (_, records, _) = client.ring(&ring_of(vcpu));
            let ran = fields(&records).into_iter().filter(|record| record.0 == kind::RAN);
            // The fake vCPU always runs.
            let ran: Vec<_> = ran.map(|(_, at_ns, running_ns, _)| (at_ns, running_ns)).collect();
            assert!(ran.len() >= 3 && ran.iter().all(|(at, running)| at == running), "{ran:?}");
        }
    });
}

/// Much stolen time of a second has a record of its own, from the first second on.
#[test]
fn steal_is_sent_beyond_a_threshold() {
    const SECOND: u64 = 1_000_000_000;
    const MS: u64 = 1_000_000;
    with_rings(300, |agent| {
        let mut client = Client::connect(&serve(agent));
        client.start(Start::running_time("test", 1_000_000_000));
        for stolen_ns in [0, 0, 9 * MS, 30 * MS, 30 * MS] {
            agent.platform().stolen_ns.store(stolen_ns, Ordering::Relaxed);
            agent.platform().fake.advance(SECOND);
            client.advance();
        }
        let (_, records, _) = client.ring(&ring_of(0));
        let seen = fields(&records);
        let of = |kind: u8| seen.iter().filter(move |record| record.0 == kind);
        let stolen: Vec<_> = of(kind::STOLEN).map(|record| record.2).collect();
        assert_eq!(stolen, [21 * MS]);
        let ran: Vec<_> = of(kind::RAN).map(|record| record.3).collect();
        assert!(ran.ends_with(&[0, 9 * MS, 30 * MS, 30 * MS]), "{ran:?}");
        assert_eq!(of(kind::WAITED).count(), ran.len());
    });
}
