//! The ring: the cost of an event, the additional cost of a tick, and the size of a record.
//!
//! ```text
//! cargo bench -p unikprof-agent --bench ring
//! ```
//!
//! Calls are serialised by fences and timed in runs, because the cycle counter of some machines is
//! coarse. The clocks cost no time.
#![allow(unsafe_code, clippy::unwrap_used)]

#[path = "../tests/it/client/mod.rs"]
mod client;
mod harness;

use std::hint::black_box;
use std::mem::MaybeUninit;

use client::{Client, RING, fields, serve};
use harness::cycles::{Clock, HEADING, fence};
use harness::fake::CONFIG;
use harness::fake::platform::FakePlatform;
use harness::fake::stacks::{Random, Stack, stack};
use unikprof_agent::{Agent, EventName, Platform, Registers, SpanId};
use unikprof_proto::frame::HEADER;
use unikprof_proto::message::Start;
use unikprof_proto::ring::kind;

/// The number of events timed together.
const RUN: usize = 64;
const CALLS: usize = 5_000;
const MEBIBYTE: usize = 1 << 20;

fn main() {
    if !harness::asked_to_measure() {
        return;
    }
    let clock = Clock::calibrate();
    println!("{}", clock.describe());
    println!("{HEADING}");
    events(&clock);
    ticks(&clock);
    room();
}

/// An agent with a ring of 1 MiB, or without one.
fn with_agent<T>(ring: bool, work: impl FnOnce(&Agent<'_, FakePlatform>) -> T) -> T {
    let mut memory = vec![MaybeUninit::uninit(); MEBIBYTE];
    let mut block = vec![MaybeUninit::uninit(); if ring { MEBIBYTE } else { 0 }];
    let agent = Agent::new(FakePlatform::new(32), CONFIG, &mut memory).unwrap();
    work(&agent.with_ring(&mut block))
}

/// One event each of 256 names, with a fence after each; the fences' cost is subtracted.
fn events(clock: &Clock) {
    with_agent(true, |agent| {
        let names: Vec<EventName> =
            (0..256).map(|id| agent.event_name(&format!("event {id}")).unwrap()).collect();
        let mut random = Random::new(3);
        let order: Vec<EventName> = (0..4096).map(|_| names[random.below(256) as usize]).collect();
        let of = |call: usize, index: usize| order[(call * RUN + index) % order.len()];
        let each = |call: usize, work: &dyn Fn(EventName, usize)| {
            for index in 0..RUN {
                work(of(call, index), index);
                fence();
            }
        };
        let timings = clock.series(
            CALLS,
            |_| agent.platform().advance(1000),
            [
                &mut |call| {
                    each(call, &|name, _| {
                        black_box(name);
                    });
                },
                &mut |call| {
                    each(call, &|_, index| {
                        black_box(agent.enter(SpanId::from_number(index as u64)));
                    });
                },
                &mut |call| each(call, &|name, index| agent.mark(name, index as u64)),
                &mut |call| each(call, &|name, index| agent.counter(name, index as i64)),
                &mut |call| each(call, &|name, _| drop(agent.span(name))),
            ],
        );
        let [fences, enter, mark, counter, span] = timings;
        for (name, timing) in [
            ("enter, a span of 64", enter),
            ("mark, 256 names", mark),
            ("counter, 256 names", counter),
            ("span, its begin and its end", span),
        ] {
            println!("{name:<38} {}", timing.of_one(fences, RUN));
        }
    });
}

/// The whole of `on_tick` on a known stack of 32 frames, in turns with and without a ring. Many
/// ticks are timed together, because the counter may be coarse.
fn ticks(clock: &Clock) {
    const PERIOD_NS: u64 = 1_000_000;
    let stack = stack(&mut Random::new(11), 32);
    with_agent(false, |without| {
        with_agent(true, |with| {
            let [first, second] = [without, with].map(|agent| {
                let mut client = Client::connect(&serve(agent));
                client.start(Start::running_time("test", PERIOD_NS));
                (agent.platform().stack().lay(&stack), client)
            });
            let many = |agent: &Agent<'_, FakePlatform>, registers: &Registers| {
                for _ in 0..RUN {
                    agent.platform().advance(2 * PERIOD_NS);
                    black_box(agent.on_tick(Some(registers)));
                    fence();
                }
            };
            let [without_ns, with_ns] = clock.in_turns(
                CALLS,
                [&mut |_| many(without, &first.0), &mut |_| {
                    many(with, &second.0);
                }],
            );
            let added = (with_ns.p50 - without_ns.p50) / RUN as f64;
            let noise = with_ns.noise.max(without_ns.noise) / RUN as f64;
            println!("a ring adds to a tick, in runs of {RUN}: {added:.1} ns, spread {noise:.1}");
        });
    });
}

/// The time span of a recording at 97 Hz in one MiB, and the size of its records on the wire.
fn room() {
    const PERIOD_NS: u64 = 1_000_000_000 / 97;
    with_agent(true, |agent| {
        let mut random = Random::new(11);
        let stacks: Vec<Stack> = (0..2000).map(|_| stack(&mut random, 26)).collect();
        let mut client = Client::connect(&serve(agent));
        client.start(Start::running_time("test", PERIOD_NS));
        // Longer than that span.
        for sample in 0..97 * 60 * 20 {
            let left_ns = agent.deadline().map_or(0, |at_ns| at_ns - agent.platform().now_ns());
            agent.platform().advance(left_ns + random.below(50_000));
            let registers = agent.platform().stack().lay(&stacks[random.below(2000) as usize]);
            agent.on_tick(Some(&registers));
            client.advance();
            if sample % 1000 == 0 {
                // A request, because an idle client would be disconnected.
                client.event_names();
            }
        }
        let bytes: usize = client.ask(&RING).iter().map(|frame| HEADER + frame.body.len()).sum();
        let (head, records, _) = client.ring(&RING);
        let sent = fields(&records);
        let samples = sent.iter().filter(|one| one.0 == kind::SAMPLE).count();
        let span_ns = sent[sent.len() - 1].1 - sent[0].1;
        println!(
            "1 MiB: {} records, of them {samples} samples, over {:.1} minutes at {:.0} Hz; {:.1} \
             bytes of memory and \
             {:.1} on the wire a record",
            head.capacity,
            span_ns as f64 / 60e9,
            samples as f64 / (span_ns as f64 / 1e9),
            MEBIBYTE as f64 / head.capacity as f64,
            bytes as f64 / sent.len() as f64,
        );
    });
}
