//! Compares `on_tick` through the C ABI with the same call in Rust, on the same stacks, in turns,
//! in one run. Also measured: saving and restoring the SSE state, which the archive avoids, ticks
//! with a flight recorder, its events, and the calls of an allocator.
//!
//! ```text
//! cargo bench -p unikprof-agent --features heap --bench c_abi
//! ```
//!
//! The archive is the one that guests link, built by its own command and loaded here as a library.
//! Both agents read the same clock, which costs no time, through their guests' interfaces: C
//! functions and a platform. Both read the processor's cycle counter twice per tick, as every guest
//! does.
#![allow(unsafe_code, clippy::unwrap_used)]

mod harness;

use std::arch::x86_64::{_fxrstor64, _fxsave64};
use std::ffi::CString;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ops::Range;

use harness::c_library::{self, CGuest, Extras};
use harness::cycles::{Clock, HEADING, REPETITIONS, cycles, fence};
use harness::fake::CONFIG;
use harness::fake::conversation::{Conversation, InProcess};
use harness::fake::platform::FakePlatform;
use harness::fake::stacks::{MAPPING, Random, stack};
use harness::load::Load;
use harness::{abi, asked_to_measure};
use unikprof_agent::{Agent, Platform, Registers, Runstate, live_bytes};
use unikprof_proto::code::mode;
use unikprof_proto::message::Start;

const CALLS: usize = 20_000;
const PERIOD_NS: u64 = 1_000_000;
const RING: usize = 1 << 20;
const WITH_RING: Extras = Extras { ring_bytes: RING, live_bytes: 0, more_vcpus: 0 };
/// Room for live samples.
const LIVE: usize = live_bytes(30_000);
/// The number of events or ticks timed together.
const RUN: usize = 64;

/// The platform of the Rust guests. Its cycle counter is the processor's, like the archive's.
struct Counting(FakePlatform);

// SAFETY: returns what the inner platform returns, except for the counter.
unsafe impl Platform for Counting {
    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }

    fn wall_clock_ns(&self) -> Option<u64> {
        self.0.wall_clock_ns()
    }

    fn vcpu(&self) -> Option<u32> {
        self.0.vcpu()
    }

    fn running_ns(&self, vcpu: u32) -> u64 {
        self.0.running_ns(vcpu)
    }

    fn runstate(&self, vcpu: u32) -> Option<Runstate> {
        self.0.runstate(vcpu)
    }

    fn kick(&self, vcpu: u32) {
        self.0.kick(vcpu);
    }

    fn stack_bounds(&self, sp: u64) -> Option<Range<u64>> {
        self.0.stack_bounds(sp)
    }

    fn random(&self) -> Option<u64> {
        self.0.random()
    }

    fn cycles(&self) -> u64 {
        cycles()
    }
}

/// Memory for the processor's vector and floating point state.
#[repr(C, align(16))]
struct State([u8; 512]);

fn main() {
    if !asked_to_measure() {
        return;
    }
    let clock = Clock::calibrate();
    println!("{}", clock.describe());
    println!("{HEADING}");
    allocations(&clock);
    for (count, frames) in [(1, 8), (256, 8), (256, 32)] {
        beside_rust(&clock, count, frames);
    }
    for frames in [8, 32] {
        in_runs(&clock, frames);
    }
    events(&clock);
}

fn beside_rust(clock: &Clock, count: usize, frames: usize) {
    let load = Load::new(count, frames, CALLS);
    let order = &load.order;
    let mut memory = vec![MaybeUninit::uninit(); 1 << 20];
    let agent = Agent::new(Counting(FakePlatform::new(frames)), CONFIG, &mut memory).unwrap();
    let mut client = InProcess::connect(&agent).unwrap();
    client.start(PERIOD_NS).unwrap();
    let Counting(platform) = agent.platform();

    // Separate clocks, which stand still while the others are measured; the stack is the same.
    let (c_clock, ring_clock) = (FakePlatform::new(1), FakePlatform::new(1));
    let code = MAPPING.start..MAPPING.end;
    let guest = CGuest::start(&c_clock, platform, code.clone(), Extras::default());
    let with_ring = CGuest::start(&ring_clock, platform, code, WITH_RING);
    let mut c_client = Conversation::new(guest.connect()).unwrap();
    c_client.start(PERIOD_NS).unwrap();
    let mut ring_client = Conversation::new(with_ring.connect()).unwrap();
    ring_client.start(PERIOD_NS).unwrap();

    let registers = load.registers(platform.stack(), |_| ());
    let c_registers: Vec<abi::Registers> = registers.iter().map(c_library::registers).collect();
    let mut state = State([0; 512]);
    let timings = clock.series(
        CALLS,
        |call| load.lay(platform.stack(), call),
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
            // SAFETY: aligned and as large as the instructions require; the restored state was
            // saved just before.
            &mut |_| unsafe {
                _fxsave64(state.0.as_mut_ptr());
                _fxrstor64(state.0.as_ptr());
            },
        ],
    );
    let name = format!("{count} stacks of {frames}");
    let [rust, c, ring, save] = timings;
    println!("{:<38} {rust}", format!("{name}: Rust"));
    println!("{:<38} {c}  {:.2} × Rust", format!("{name}: C ABI"), c.p50 / rust.p50);
    println!("{:<38} {ring}  {:.2} × Rust", format!("{name}: C ABI, --ring"), ring.p50 / rust.p50);
    println!("{:<38} {save}", "fxsave and fxrstor, which it needs not");

    let expected = (CALLS * REPETITIONS) as u64;
    assert_eq!(client.stop().unwrap().counters.recorded, expected);
    assert_eq!(c_client.stop().unwrap().counters.recorded, expected);
    assert_eq!(ring_client.stop().unwrap().counters.recorded, expected);
    drop((c_client, ring_client));
}

/// Ticks of one stack, [`RUN`] timed together with a fence after each, because the counter may be
/// coarse; in Rust also with a ring. The cost of the fences and of preparing a tick is subtracted.
fn in_runs(clock: &Clock, frames: usize) {
    let mut memory = [(); 2].map(|()| vec![MaybeUninit::uninit(); 1 << 20]);
    let mut ring = vec![MaybeUninit::uninit(); RING];
    let [first, second] = &mut memory;
    let agent = Agent::new(Counting(FakePlatform::new(frames)), CONFIG, first).unwrap();
    let with_ring = Agent::new(Counting(FakePlatform::new(frames)), CONFIG, second).unwrap();
    let with_ring = with_ring.with_ring(&mut ring);
    let image = stack(&mut Random::new(11), frames);
    let registers = [&agent, &with_ring].map(|agent| {
        let mut client = InProcess::connect(agent).unwrap();
        client.start(PERIOD_NS).unwrap();
        agent.platform().0.stack().lay(&image)
    });
    let clocks = [FakePlatform::new(1), FakePlatform::new(1)];
    let code = MAPPING.start..MAPPING.end;
    let guests = [(&clocks[0], Extras::default()), (&clocks[1], WITH_RING)]
        .map(|(clock, extras)| CGuest::start(clock, &agent.platform().0, code.clone(), extras));
    for guest in &guests {
        let mut client = Conversation::new(guest.connect()).unwrap();
        client.start(PERIOD_NS).unwrap();
    }
    let c_registers = c_library::registers(&registers[0]);
    let in_rust = |agent: &Agent<'_, Counting>, registers: &Registers| {
        for _ in 0..RUN {
            agent.platform().0.advance(2 * PERIOD_NS);
            black_box(agent.on_tick(Some(registers)));
            fence();
        }
    };
    let through_c = |clock: &FakePlatform, guest: &CGuest<'_>| {
        for _ in 0..RUN {
            clock.advance(2 * PERIOD_NS);
            black_box(guest.on_tick(&c_registers));
            fence();
        }
    };
    let timings = clock.in_turns(
        CALLS / 8,
        [
            &mut |_| {
                for _ in 0..RUN {
                    clocks[0].advance(0);
                    fence();
                }
            },
            &mut |_| in_rust(&agent, &registers[0]),
            &mut |_| in_rust(&with_ring, &registers[1]),
            &mut |_| through_c(&clocks[0], &guests[0]),
            &mut |_| through_c(&clocks[1], &guests[1]),
        ],
    );
    let around = timings[0];
    let [rust, rust_ring, c, c_ring] =
        [1, 2, 3, 4].map(|at: usize| timings[at].of_one(around, RUN));
    for (name, timing, beside) in [
        ("Rust", rust, rust),
        ("Rust, a ring", rust_ring, rust),
        ("C ABI", c, rust),
        ("C ABI, --ring", c_ring, rust_ring),
    ] {
        println!(
            "{:<38} {timing}  {:.2} × Rust",
            format!("{frames} frames, runs of {RUN}: {name}"),
            timing.p50 / beside.p50
        );
    }
}

/// One event each of 256 names, with a fence after each; the fences' cost is subtracted.
fn events(clock: &Clock) {
    let (platform, stack) = (FakePlatform::new(1), FakePlatform::new(1));
    let guest = CGuest::start(&platform, &stack, MAPPING.start..MAPPING.end, WITH_RING);
    let names: Vec<i32> = (0..256)
        .map(|id| guest.event_name(&CString::new(format!("event {id}")).unwrap()))
        .collect();
    assert!(names.iter().all(|name| *name >= 0));
    let mut random = Random::new(3);
    let order: Vec<i32> = (0..4096).map(|_| names[random.below(256) as usize]).collect();
    let each = |call: usize, work: &dyn Fn(i32)| {
        for index in 0..RUN {
            work(order[(call * RUN + index) % order.len()]);
            fence();
        }
    };
    let [fences, enter, mark, span] = clock.series(
        CALLS / 4,
        |_| platform.advance(1000),
        [
            &mut |call| {
                each(call, &|name| {
                    black_box(name);
                });
            },
            &mut |call| each(call, &|name| guest.enter(name as u64)),
            &mut |call| each(call, &|name| guest.mark(name, 5)),
            &mut |call| each(call, &|name| guest.span(name)),
        ],
    );
    println!("{:<38} {}", "C ABI: a span is entered", enter.of_one(fences, RUN));
    println!("{:<38} {}", "C ABI: mark, 256 names", mark.of_one(fences, RUN));
    println!("{:<38} {}", "C ABI: span, its begin and its end", span.of_one(fences, RUN));
}

/// Calls of an allocator, without the walk: the stack is not the guest's. [`RUN`] are timed
/// together.
fn allocations(clock: &Clock) {
    let mut memory = vec![MaybeUninit::uninit(); 1 << 20];
    let mut live = vec![MaybeUninit::uninit(); LIVE];
    let agent = Agent::new(Counting(FakePlatform::new(1)), CONFIG, &mut memory).unwrap();
    let agent = agent.with_live_memory(&mut live);
    let platforms = [(); 2].map(|()| FakePlatform::new(1));
    let code = MAPPING.start..MAPPING.end;
    let guest = |more_vcpus| {
        let extras = Extras { live_bytes: LIVE, more_vcpus, ..Extras::default() };
        CGuest::start(&platforms[more_vcpus as usize], &platforms[0], code.clone(), extras)
    };
    let [one, two] = [guest(0), guest(1)];
    // A recording can only be of guests whose allocators call.
    let first = std::ptr::without_provenance(16);
    agent.on_alloc(first, 1);
    one.on_alloc(first, 1);
    two.on_alloc(first, 1);
    let address = |call: usize, index: usize| {
        std::ptr::without_provenance::<u8>(0x1000 + 48 * (call * RUN + index))
    };
    let measure = |name: &str, work: [&dyn Fn(*const u8); 3]| {
        let run = |call: usize, work: &dyn Fn(*const u8)| {
            for index in 0..RUN {
                work(address(call, index));
                fence();
            }
        };
        let [around, rust, one, two] = clock.in_turns(
            CALLS / 8,
            [
                &mut |call| {
                    run(call, &|address| {
                        black_box(address);
                    });
                },
                &mut |call| run(call, work[0]),
                &mut |call| run(call, work[1]),
                &mut |call| run(call, work[2]),
            ],
        );
        let [rust, one, two] = [rust, one, two].map(|timing| timing.of_one(around, RUN));
        println!("{:<38} {rust}", format!("{name}: Rust"));
        for (vcpus, timing) in [("one vCPU", one), ("two vCPUs", two)] {
            println!(
                "{:<38} {timing}  {:.2} × Rust",
                format!("{name}: C, {vcpus}"),
                timing.p50 / rust.p50
            );
        }
    };
    measure(
        "64 bytes, not recorded",
        [
            &|address| agent.on_alloc(address, 64),
            &|address| one.on_alloc(address, 64),
            &|address| two.on_alloc(address, 64),
        ],
    );
    measure(
        "free, not recorded",
        [&|address| agent.on_free(address), &|address| one.on_free(address), &|address| {
            two.on_free(address);
        }],
    );
    let start = Start::heap("held", mode::LIVE, 64);
    InProcess::connect(&agent).unwrap().start_as(&start).unwrap();
    for guest in [&one, &two] {
        let mut client = Conversation::new(guest.connect()).unwrap();
        client.start_as(&start).unwrap();
    }
    measure(
        "sampled, and freed",
        [
            &|address| {
                agent.on_alloc(address, 4096);
                agent.on_free(address);
            },
            &|address| {
                one.on_alloc(address, 4096);
                one.on_free(address);
            },
            &|address| {
                two.on_alloc(address, 4096);
                two.on_free(address);
            },
        ],
    );
}
