//! Counts the instructions of one sample, which are the same in every run, so that changes show at
//! once.
//!
//! ```text
//! cargo bench -p unikprof-agent --features xen --bench instructions
//! ```
//!
//! The program runs itself under valgrind twice for each kind of work, with different numbers of
//! calls; the difference is the cost of the calls. It also measures ticks through the C ABI of the
//! archive that guests link, and with the feature `xen` through `Ticks` and `XenPlatform`.
#![allow(unsafe_code, clippy::unwrap_used)]

mod harness;

use std::env;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::process::Command;

use harness::c_library::{self, CGuest, Extras};
use harness::fake::CONFIG;
use harness::fake::conversation::{Conversation, InProcess};
use harness::fake::platform::FakePlatform;
use harness::fake::stacks::{MAPPING, Random, StackImage, stack};
use harness::sampler::{Sampler, chase};
#[cfg(feature = "xen")]
use harness::xen_guest;
use unikprof_agent::{Agent, Config};

const STACKS: usize = 256;

/// The configurations: the number of recordings, and whether there is a ring.
const TICKS: &[&str] = &[
    "early",
    "early, through C",
    "early, through C, a ring",
    "one recording",
    "one recording, a ring",
    "one recording, through C",
    "one recording, through C, a ring",
    "two recordings",
    "four recordings, a ring",
    #[cfg(feature = "xen")]
    "early, on Xen",
    #[cfg(feature = "xen")]
    "one recording, on Xen",
];

fn main() {
    let arguments: Vec<String> = env::args().collect();
    if let [_, word, work, frames, calls] = &arguments[..]
        && word == "run"
    {
        return run(work, frames.parse().unwrap(), calls.parse().unwrap());
    }
    if !harness::asked_to_measure() {
        return;
    }
    println!("instructions a call, {STACKS} known stacks");
    for frames in [8, 32, 128] {
        let [chase, sample] = ["chase", "sample"].map(|work| {
            let count = |calls| instructions(work, frames, calls);
            Some((count(20 * STACKS)? - count(10 * STACKS)?) as f64 / (10 * STACKS) as f64)
        });
        let (Some(chase), Some(sample)) = (chase, sample) else {
            return println!("valgrind is not here or failed: nothing counted");
        };
        println!("{frames:4} frames   chase {chase:7.1}   sample {sample:7.1}");
    }
    println!("instructions of a whole tick, 32 frames");
    for &work in TICKS {
        let count = |calls| instructions(work, 32, calls);
        let (Some(less), Some(more)) = (count(10 * STACKS), count(20 * STACKS)) else {
            return println!("valgrind is not here or failed: nothing counted");
        };
        let tick = (more - less) as f64 / (10 * STACKS) as f64;
        println!("{work:<40} {tick:7.1}");
    }
}

/// The instructions of this program with `calls` calls, including start and end.
fn instructions(work: &str, frames: usize, calls: usize) -> Option<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(env::current_exe().ok()?)
        .args(["run", work, &frames.to_string(), &calls.to_string()])
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find(|line| line.contains("Collected :"))?;
    line.split_ascii_whitespace().last()?.parse().ok()
}

fn run(work: &str, frames: usize, calls: usize) {
    if work.contains("through C") {
        return c_ticks(work, frames, calls);
    }
    #[cfg(feature = "xen")]
    if work.contains("on Xen") {
        return xen_ticks(work, frames, calls);
    }
    if TICKS.contains(&work) {
        return ticks(work, frames, calls);
    }
    let mut random = Random::new(11);
    let sampler = Sampler::new();
    let stacks: Vec<_> = (0..STACKS)
        .map(|_| {
            let image = StackImage::new(frames);
            let registers = image.lay(&stack(&mut random, frames));
            sampler.sample(&registers, &image);
            (image, registers)
        })
        .collect();
    for call in 0..calls {
        let (image, registers) = &stacks[call % STACKS];
        match work {
            "chase" => {
                black_box(chase(registers));
            }
            _ => sampler.sample(registers, image),
        }
    }
}

/// Ticks of one known stack.
fn ticks(work: &str, frames: usize, calls: usize) {
    let recordings = match work.split_ascii_whitespace().next() {
        Some("two") => 2,
        Some("four") => 4,
        _ => 1,
    };
    let config = Config { recordings, ..CONFIG };
    let mut memory = vec![MaybeUninit::uninit(); 1 << 20];
    let ring = if work.ends_with("ring") { 1 << 20 } else { 0 };
    let mut ring = vec![MaybeUninit::uninit(); ring];
    let agent = Agent::new(FakePlatform::new(frames), config, &mut memory).unwrap();
    let agent = agent.with_ring(&mut ring);
    let mut client = InProcess::connect(&agent).unwrap();
    for number in 0..recordings {
        // All of them are due to every tick.
        client.start_named(&format!("{number}"), 1_000_000 + u64::from(number)).unwrap();
    }
    let platform = agent.platform();
    let registers = platform.stack().lay(&stack(&mut Random::new(11), frames));
    let step_ns = step_ns(work);
    for _ in 0..calls {
        platform.advance(step_ns);
        black_box(agent.on_tick(Some(&registers)));
    }
}

/// The same in a C guest.
fn c_ticks(work: &str, frames: usize, calls: usize) {
    let (clock, memory) = (FakePlatform::new(1), FakePlatform::new(frames));
    let extras = Extras {
        ring_bytes: if work.ends_with("ring") { 1 << 20 } else { 0 },
        ..Extras::default()
    };
    let guest = CGuest::start(&clock, &memory, MAPPING.start..MAPPING.end, extras);
    let mut client = Conversation::new(guest.connect()).unwrap();
    client.start(1_000_000).unwrap();
    let stack = stack(&mut Random::new(11), frames);
    let registers = c_library::registers(&memory.stack().lay(&stack));
    for _ in 0..calls {
        clock.advance(step_ns(work));
        black_box(guest.on_tick(&registers));
    }
}

/// The same in a Xen guest that keeps its timer.
#[cfg(feature = "xen")]
fn xen_ticks(work: &str, frames: usize, calls: usize) {
    let image = Box::leak(Box::new(StackImage::new(frames)));
    let registers = image.lay(&stack(&mut Random::new(11), frames));
    let guest = xen_guest::XenGuest::start(image);
    InProcess::connect(guest.agent()).unwrap().start_named("0", 1_000_000).unwrap();
    for _ in 0..calls {
        guest.advance(step_ns(work));
        black_box(guest.on_timer(&registers));
    }
}

/// The time between two ticks, in ns.
fn step_ns(work: &str) -> u64 {
    if work.starts_with("early") { 0 } else { 1_500_000 }
}
