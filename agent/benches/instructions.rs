//! How many instructions one sample takes: the same on every run, so that a change is seen at once.
//!
//! ```text
//! cargo bench -p unikprof-agent --bench instructions
//! ```
//!
//! The program runs itself under valgrind, twice for each kind of work, with different numbers of
//! calls; the difference is the calls' own.
#![allow(unsafe_code, clippy::unwrap_used)]

#[path = "../tests/fake/mod.rs"]
mod fake;
#[path = "harness/run.rs"]
mod run;
#[path = "harness/sampler.rs"]
mod sampler;

use std::env;
use std::hint::black_box;
use std::process::Command;

use fake::stacks::{Random, StackImage, stack};
use sampler::{Sampler, chase};

const STACKS: usize = 256;

fn main() {
    let arguments: Vec<String> = env::args().collect();
    if let [_, word, work, frames, calls] = &arguments[..]
        && word == "run"
    {
        return run(work, frames.parse().unwrap(), calls.parse().unwrap());
    }
    if !run::asked_to_measure() {
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
}

/// The instructions of this program doing `calls` calls, start and end included.
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
