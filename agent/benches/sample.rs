//! The cost of one sample (walk, bounds, find with full comparison, count) compared with a bare
//! chase of the same frame pointers.
//!
//! ```text
//! cargo bench -p unikprof-agent --bench sample
//! ```
//!
//! With the feature `heap` also sampled allocations.
//!
//! Each call is serialised and timed alone. There are two layouts: *live*, where each stack is
//! written to the same memory before its call, which is warm like a thread's stack; and *spread*,
//! where every stack has its own memory, so that the chase itself waits for the second-level cache.
#![allow(unsafe_code, clippy::unwrap_used)]

mod harness;

use std::arch::x86_64::_mm_clflush;
use std::cell::RefCell;
use std::hint::black_box;
use std::mem::MaybeUninit;

use harness::cycles::{Clock, HEADING, REPETITIONS, Timing, drain_stores, fence};
use harness::fake::CONFIG;
use harness::fake::conversation::InProcess;
use harness::fake::platform::FakePlatform;
use harness::fake::stacks::{MAPPING, Random, Stack, StackImage, stack};
use harness::load::Load;
use harness::sampler::{NODES, Sampler, chase};
use unikprof_agent::stack::FRAME_RECORD;
use unikprof_agent::table::SEGMENTS;
use unikprof_agent::walk::Guide;
use unikprof_agent::{Agent, CallerTable, CodeMap, Registers, caller_table_bytes};
use unikprof_proto::caller_table::{Row, Rule};

const CALLS: usize = 20_000;
/// The number of ticks timed together.
const RUN: usize = 64;
/// The number of calls in cold caches.
const COLD_CALLS: usize = 300;
/// The bytes read to empty the caches: twice the second-level cache of the machine whose figures
/// are documented.
const EVICTING: usize = 4 << 20;

fn main() {
    if !harness::asked_to_measure() {
        return;
    }
    let clock = Clock::calibrate();
    println!("{}", clock.describe());
    println!("{HEADING}");
    for (count, frames) in [(1, 32), (256, 8), (256, 32), (256, 128)] {
        known_stacks(&clock, count, frames);
    }
    by_table(&clock);
    whole_ticks(&clock);
    new_stacks(&clock);
    cold_caches(&clock);
    #[cfg(feature = "heap")]
    allocations(&clock);
}

/// Stacks that are in the table already, in random order.
fn known_stacks(clock: &Clock, count: usize, frames: usize) {
    let load = Load::new(count, frames, CALLS);
    let order = &load.order;
    let sampler = Sampler::new();
    let live = StackImage::new(frames);
    let registers = load.registers(&live, |registers| sampler.sample(registers, &live));
    let timings = clock.series(
        CALLS,
        |call| load.lay(&live, call),
        [
            &mut |call| {
                black_box(chase(&registers[order[call]]));
            },
            &mut |call| sampler.sample(&registers[order[call]], &live),
        ],
    );
    report(&format!("live, {count} stacks of {frames}"), timings);

    let sampler = Sampler::new();
    let spread: Vec<(StackImage, Registers)> = load
        .stacks
        .iter()
        .map(|stack| {
            let image = StackImage::new(frames);
            let registers = image.lay(stack);
            sampler.sample(&registers, &image);
            (image, registers)
        })
        .collect();
    let timings = clock.series(
        CALLS,
        |_| (),
        [
            &mut |call| {
                black_box(chase(&spread[order[call]].1));
            },
            &mut |call| {
                let (image, registers) = &spread[order[call]];
                sampler.sample(registers, image);
            },
        ],
    );
    report(&format!("spread, {count} stacks of {frames}"), timings);
}

/// The same stacks with a caller table of about 10,000 rows, as a program of 2 MB has: lookups of
/// the leaf only, and of every frame.
fn by_table(clock: &Clock) {
    const FRAMES: usize = 32;
    let load = Load::new(256, FRAMES, CALLS);
    let order = &load.order;
    let sampler = Sampler::new();
    let rows = caller_rows(&sampler.code);
    let mut block = vec![MaybeUninit::uninit(); caller_table_bytes(rows.len())];
    let table = CallerTable::from_rows(&mut block, &sampler.code, &rows).unwrap();
    let guide = |callers, every_frame| Guide {
        code: &sampler.code,
        callers,
        every_frame,
        instructions: (),
    };
    let (none, leaf, every) =
        (guide(None, false), guide(Some(&table), false), guide(Some(&table), true));
    let live = StackImage::new(FRAMES);
    let registers = load.registers(&live, |registers| {
        sampler.sample_by(&every, registers, &live);
    });
    let timings = clock.series(
        CALLS,
        |call| load.lay(&live, call),
        [
            &mut |call| sampler.sample_by(&none, &registers[order[call]], &live),
            &mut |call| sampler.sample_by(&leaf, &registers[order[call]], &live),
            &mut |call| sampler.sample_by(&every, &registers[order[call]], &live),
        ],
    );
    for (name, timing) in
        ["no table", "the leaf by table", "every frame by table"].iter().zip(timings)
    {
        println!("{:<38} {timing}", format!("live, 256 of 32, {name}"));
    }
}

/// Rows as for compiled functions: an entry, a frame record from the fifth byte on, a return.
fn caller_rows(code: &CodeMap) -> Vec<Row> {
    const FUNCTION: u32 = 400;
    let first = code.code(MAPPING.start).unwrap();
    let functions = (code.end() - first) / FUNCTION;
    (0..functions.min(3_400))
        .flat_map(|function| {
            let start = first + function * FUNCTION;
            [
                (start, Rule::ENTRY),
                (start + 4, Rule::FRAME_RECORD),
                (start + FUNCTION - 1, Rule::ENTRY),
            ]
        })
        .map(|(code, rule)| Row { code, rule })
        .collect()
}

/// The whole of `on_tick`, with clocks that cost no time.
fn whole_ticks(clock: &Clock) {
    const PERIOD_NS: u64 = 1_000_000;
    let load = Load::new(256, 32, CALLS);
    let order = &load.order;
    let mut memory = vec![MaybeUninit::uninit(); 1 << 20];
    let agent = Agent::new(FakePlatform::new(32), CONFIG, &mut memory).unwrap();
    let mut client = InProcess::connect(&agent).unwrap();
    client.start(PERIOD_NS).unwrap();
    let platform = agent.platform();
    let registers = load.registers(platform.stack(), |_| ());
    let [timing] = clock.series(
        CALLS,
        |call| {
            platform.advance(2 * PERIOD_NS);
            load.lay(platform.stack(), call);
        },
        [&mut |call| {
            black_box(agent.on_tick(Some(&registers[order[call]])));
        }],
    );
    println!("{:<38} {timing}", "live, on_tick, 256 stacks of 32");
    // Many ticks timed together, because the counter may be coarse.
    let [run] = clock.series(
        CALLS / RUN,
        |call| {
            load.lay(platform.stack(), call);
        },
        [&mut |call| {
            for _ in 0..RUN {
                platform.advance(2 * PERIOD_NS);
                black_box(agent.on_tick(Some(&registers[order[call]])));
                fence();
            }
        }],
    );
    println!(
        "{:<38} {:9.1} {:29.1}",
        "live, on_tick, a run of 64, each",
        run.p50 / RUN as f64,
        run.noise / RUN as f64
    );
    let other = vec![1_u8; EVICTING];
    let evict = |call: usize| {
        platform.advance(2 * PERIOD_NS);
        load.lay(platform.stack(), call);
        read_all(&other);
    };
    let chased = &mut |call: usize| {
        black_box(chase(&registers[order[call]]));
    };
    let ticked = &mut |call: usize| {
        black_box(agent.on_tick(Some(&registers[order[call]])));
    };
    let timings = clock.series(COLD_CALLS, evict, [chased, ticked]);
    report("out of the second level, on_tick", timings);
    let counters = client.stop().unwrap().counters;
    let calls = CALLS + CALLS / RUN * RUN + COLD_CALLS;
    assert_eq!(counters.recorded, (calls * REPETITIONS) as u64);
}

/// Every sample inserts: one node for a new leaf, three for a stack that is new from the root.
fn new_stacks(clock: &Clock) {
    const NEW: usize = NODES / 4;
    let base = stack(&mut Random::new(11), 32);
    let live = StackImage::new(32);
    for (name, changed, nodes) in [("a new leaf", 0, 1), ("new from the root", 31, 3)] {
        let stacks: Vec<Stack> = (0..NEW as u64)
            .map(|call| {
                let mut stack = base.clone();
                stack.0[changed] = MAPPING.end - 1 - call;
                stack
            })
            .collect();
        let registers: Vec<Registers> = stacks.iter().map(|stack| live.lay(stack)).collect();
        let sampler = RefCell::new(Sampler::new());
        let [timing] = clock.series(
            NEW,
            |call| {
                if call == 0 {
                    sampler.replace(Sampler::new());
                    sampler.borrow().sample(&live.lay(&base), &live);
                }
                live.lay(&stacks[call]);
                drain_stores();
            },
            [&mut |call| sampler.borrow().sample(&registers[call], &live)],
        );
        // Each segment has its own copy of the shared callers.
        let used = sampler.borrow().table.used() as usize - nodes * NEW;
        assert!((3..=3 * SEGMENTS).contains(&used), "{used}");
        println!("{:<38} {timing}", format!("live, {name}, 32 frames"));
    }
}

/// Samples in cold caches, as if the guest had used the caches itself.
fn cold_caches(clock: &Clock) {
    let load = Load::new(256, 32, COLD_CALLS);
    let order = &load.order;
    let sampler = Sampler::new();
    let live = StackImage::new(32);
    let registers = load.registers(&live, |registers| sampler.sample(registers, &live));
    let chased = &mut |call: usize| {
        black_box(chase(&registers[order[call]]));
    };
    let sampled = &mut |call: usize| sampler.sample(&registers[order[call]], &live);

    let other = vec![1_u8; EVICTING];
    let evict = |call: usize| {
        load.lay(&live, call);
        read_all(&other);
    };
    let timings = clock.series(COLD_CALLS, evict, [chased, sampled]);
    report("out of the second level, 256 of 32", timings);

    let chased = &mut |call: usize| {
        black_box(chase(&registers[order[call]]));
    };
    let sampled = &mut |call: usize| sampler.sample(&registers[order[call]], &live);
    let flush_all = |call: usize| {
        load.lay(&live, call);
        flush_all_of(&sampler);
        let bounds = live.bounds();
        let mut record = bounds.start;
        while record < bounds.end {
            flush_line(std::ptr::with_exposed_provenance(record as usize));
            record += FRAME_RECORD;
        }
        drain_stores();
    };
    let timings = clock.series(COLD_CALLS, flush_all, [chased, sampled]);
    report("flushed to memory, 256 of 32", timings);
}

/// Sampled allocations and their frees, in mode live, beside the chase of the same stacks: in warm
/// caches and in cold ones.
#[cfg(feature = "heap")]
fn allocations(clock: &Clock) {
    use unikprof_proto::code::mode;
    use unikprof_proto::message::Start;

    let load = Load::new(256, 32, CALLS);
    let order = &load.order;
    let mut memory = vec![MaybeUninit::uninit(); 4 << 20];
    let mut live = vec![MaybeUninit::uninit(); unikprof_agent::live_bytes(30_000)];
    let agent = Agent::new(FakePlatform::new(32), CONFIG, &mut memory).unwrap();
    let agent = agent.with_live_memory(&mut live);
    let platform = agent.platform();
    let registers = load.registers(platform.stack(), |_| ());
    let address = |call: usize| std::ptr::without_provenance(0x1000 + 48 * call);
    agent.on_alloc(address(0), 1);
    let mut client = InProcess::connect(&agent).unwrap();
    client.start_as(&Start::heap("held", mode::LIVE, 64)).unwrap();
    // Samples of other allocations fill a third of the table.
    let held = 10_000;
    for call in 0..held {
        agent.on_alloc_from(address(call), 4096, || registers[order[call]]);
    }
    let other = vec![1_u8; EVICTING];
    let measure = |name: &str, calls: usize, is_cold: bool| {
        let prepare = |call: usize| {
            load.lay(platform.stack(), call);
            if is_cold {
                read_all(&other);
            }
        };
        let [chased, allocated] = clock.series(
            calls,
            prepare,
            [
                &mut |call| {
                    black_box(chase(&registers[order[call]]));
                },
                &mut |call| {
                    // Freed at the next call.
                    agent.on_free(address(held));
                    agent.on_alloc_from(address(held), 4096, || registers[order[call]]);
                },
            ],
        );
        println!("{:<38} {chased}", format!("{name}: chase"));
        println!(
            "{:<38} {allocated}  {:.2} × the chase",
            format!("{name}: alloc and free"),
            allocated.p50 / chased.p50
        );
    };
    measure("sampled, warm, 256 of 32", CALLS, false);
    measure("sampled, out of the second level", COLD_CALLS, true);
    let counters = client.stop().unwrap().counters;
    assert_eq!(counters.recorded, (held + (CALLS + COLD_CALLS) * REPETITIONS) as u64);
}

/// Reads all cache lines of `bytes`.
fn read_all(bytes: &[u8]) {
    let lines = bytes.iter().step_by(64);
    black_box(lines.map(|byte| u64::from(*byte)).sum::<u64>());
}

fn report(name: &str, [chase, sample]: [Timing; 2]) {
    println!("{:<38} {chase}", format!("{name}: chase"));
    println!(
        "{:<38} {sample}  {:.2} × the chase",
        format!("{name}: sample"),
        sample.p50 / chase.p50
    );
}

/// Flushes all memory that a sample may use from every cache.
fn flush_all_of(sampler: &Sampler) {
    flush(&sampler.nodes[..sampler.table.used() as usize]);
    flush(sampler.index);
    flush(std::slice::from_ref(&sampler.cells));
    flush(std::slice::from_ref(&sampler.code));
}

fn flush<T>(values: &[T]) {
    let bytes = std::mem::size_of_val(values);
    for offset in (0..bytes).step_by(64) {
        flush_line(values.as_ptr().cast::<u8>().wrapping_add(offset));
    }
}

fn flush_line(place: *const u8) {
    // SAFETY: the address is in this program's memory, and flushing does not change its contents.
    unsafe { _mm_clflush(place) };
}
