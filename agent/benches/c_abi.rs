//! `on_tick` through the C ABI beside the same call in Rust: the same stacks, in turns, in one run; and
//! what saving and restoring the SSE state would cost, which the archive does without. The same with a flight
//! recorder, and its events.
//!
//! ```text
//! cargo bench -p unikprof-agent --bench c_abi
//! ```
//!
//! The archive is the one that guests link, built by its own command, and loaded here as a library. Both
//! agents ask the same clock, which takes no time, through what their guests give: C functions for one, a
//! platform for the other.
#![allow(unsafe_code, clippy::unwrap_used)]

#[path = "../capi/src/abi.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the bench uses a part of another package's file"
)]
mod abi;
#[path = "harness/cycles.rs"]
mod cycles;
#[path = "../tests/fake/mod.rs"]
mod fake;
#[path = "harness/c_library.rs"]
mod library;
#[path = "harness/run.rs"]
mod run;

use std::arch::x86_64::{_fxrstor64, _fxsave64, _mm_lfence, _mm_mfence};
use std::ffi::CString;
use std::hint::black_box;
use std::mem::MaybeUninit;

use cycles::{Clock, HEADING, Timing};
use fake::conversation::{Conversation, InProcess};
use fake::platform::FakePlatform;
use fake::stacks::{MAPPING, Random, Stack, stack};
use library::CGuest;
use unikprof_agent::{Agent, Config, Registers};

const CALLS: usize = 20_000;
const PERIOD_NS: u64 = 1_000_000;
const RING: usize = 1 << 20;
/// Events timed at once.
const RUN: usize = 64;

/// Where the processor's vector and floating point state is put.
#[repr(C, align(16))]
struct State([u8; 512]);

fn main() {
    if !run::asked_to_measure() {
        return;
    }
    let clock = Clock::calibrate();
    println!("{}", clock.describe());
    println!("{HEADING}");
    for (count, frames) in [(1, 8), (256, 8), (256, 32)] {
        beside_rust(&clock, count, frames);
    }
    events(&clock);
}

fn beside_rust(clock: &Clock, count: usize, frames: usize) {
    let mut random = Random::new(11);
    let stacks: Vec<Stack> = (0..count).map(|_| stack(&mut random, frames)).collect();
    let order: Vec<usize> = (0..CALLS)
        .map(|_| random.below(count as u64) as usize)
        .collect();

    let mut memory = vec![MaybeUninit::uninit(); 1 << 20];
    let config = Config {
        vcpus: 1,
        recordings: 1,
        mappings: &[MAPPING],
        guest_name: None,
        guest_id: None,
        platform_name: "bench",
        reachable_when_busy: false,
    };
    let agent = Agent::new(FakePlatform::new(frames), config, &mut memory).unwrap();
    let mut client = InProcess::connect(&agent).unwrap();
    client.start(PERIOD_NS).unwrap();
    let platform = agent.platform();

    // Clocks of their own, which stand still while the others are measured; the stack is the same.
    let (c_clock, ring_clock) = (FakePlatform::new(1), FakePlatform::new(1));
    let code = MAPPING.start..MAPPING.end;
    let guest = CGuest::start(&c_clock, platform, code.clone(), 0);
    let with_ring = CGuest::start(&ring_clock, platform, code, RING);
    let mut c_client = Conversation::new(guest.connect()).unwrap();
    c_client.start(PERIOD_NS).unwrap();
    let mut ring_client = Conversation::new(with_ring.connect()).unwrap();
    ring_client.start(PERIOD_NS).unwrap();

    let registers: Vec<Registers> = stacks
        .iter()
        .map(|stack| platform.stack().lay(stack))
        .collect();
    let c_registers: Vec<abi::Registers> = registers.iter().map(library::registers).collect();
    let mut state = State([0; 512]);
    let timings = clock.series(
        CALLS,
        |call| {
            platform.stack().lay(&stacks[order[call]]);
            // SAFETY: a fence touches nothing.
            unsafe { _mm_mfence() };
        },
        [
            &mut |call| {
                platform.advance(2 * PERIOD_NS);
                black_box(agent.on_tick(Some(&registers[order[call]])));
            },
            &mut |call| {
                c_clock.advance(2 * PERIOD_NS);
                black_box(guest.on_tick(&c_registers[order[call]]));
            },
            &mut |call| {
                ring_clock.advance(2 * PERIOD_NS);
                black_box(with_ring.on_tick(&c_registers[order[call]]));
            },
            // SAFETY: aligned, and as large as the instructions ask; what is restored was saved just now.
            &mut |_| unsafe {
                _fxsave64(state.0.as_mut_ptr());
                _fxrstor64(state.0.as_ptr());
            },
        ],
    );
    let name = format!("{count} stacks of {frames}");
    let [rust, c, ring, save] = timings;
    println!("{:<38} {rust}", format!("{name}: Rust"));
    println!(
        "{:<38} {c}  {:.2} × Rust",
        format!("{name}: C ABI"),
        c.p50 / rust.p50
    );
    println!(
        "{:<38} {ring}  {:.2} × Rust",
        format!("{name}: C ABI, --ring"),
        ring.p50 / rust.p50
    );
    println!("{:<38} {save}", "fxsave and fxrstor, which it needs not");

    let expected = (CALLS * cycles::REPETITIONS) as u64;
    assert_eq!(client.stop().unwrap().counters.recorded, expected);
    assert_eq!(c_client.stop().unwrap().counters.recorded, expected);
    assert_eq!(ring_client.stop().unwrap().counters.recorded, expected);
    drop((c_client, ring_client));
}

fn fence() {
    // SAFETY: every x86-64 has it, and it touches no memory.
    unsafe { _mm_lfence() };
}

/// One event each of 256 names, with a fence after each; the fences alone are taken off.
fn events(clock: &Clock) {
    let (platform, stack) = (FakePlatform::new(1), FakePlatform::new(1));
    let guest = CGuest::start(&platform, &stack, MAPPING.start..MAPPING.end, RING);
    let names: Vec<i32> = (0..256)
        .map(|id| guest.event_name(&CString::new(format!("event {id}")).unwrap()))
        .collect();
    assert!(names.iter().all(|name| *name >= 0));
    let mut random = Random::new(3);
    let order: Vec<i32> = (0..4096)
        .map(|_| names[random.below(256) as usize])
        .collect();
    let each = |call: usize, work: &dyn Fn(i32)| {
        for index in 0..RUN {
            work(order[(call * RUN + index) % order.len()]);
            fence();
        }
    };
    let [fences, mark, span] = clock.series(
        CALLS / 4,
        |_| platform.advance(1000),
        [
            &mut |call| {
                each(call, &|name| {
                    black_box(name);
                });
            },
            &mut |call| each(call, &|name| guest.mark(name, 5)),
            &mut |call| each(call, &|name| guest.span(name)),
        ],
    );
    let a_call = |timing: Timing| Timing {
        p50: (timing.p50 - fences.p50) / RUN as f64,
        p99: (timing.p99 - fences.p50) / RUN as f64,
        max: (timing.max - fences.p50) / RUN as f64,
        noise: timing.noise / RUN as f64,
    };
    println!("{:<38} {}", "C ABI: mark, 256 names", a_call(mark));
    println!(
        "{:<38} {}",
        "C ABI: span, its begin and its end",
        a_call(span)
    );
}
