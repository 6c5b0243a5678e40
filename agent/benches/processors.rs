//! Counts the instructions of a whole tick on the processor that this program is compiled for:
//! x86_64 or aarch64.
//!
//! The program runs itself in QEMU's emulation of user programs, which logs every instruction,
//! twice for each kind of tick; the runs differ only in their number of ticks. The commands are in
//! docs/evidence/benchmarks.md.
#![allow(unsafe_code, clippy::unwrap_used)]

#[path = "../tests/it/fake/mod.rs"]
mod fake;

use std::env;
use std::hint::black_box;
use std::io::{BufRead as _, BufReader};
use std::mem::MaybeUninit;
use std::process::{Command, Stdio};

use fake::CONFIG;
use fake::conversation::InProcess;
use fake::platform::FakePlatform;
use fake::stacks::{MAPPING, Random, stack};
use unikprof_agent::{Agent, Config, Mapping, caller_table_bytes};
use unikprof_proto::caller_table::{Row, Rule, checksum, file_head, machine};
use unikprof_proto::code::{frame_code, start_flag};
use unikprof_proto::message::Start;

/// The architecture, and the rule for code with a frame record.
const NATIVE: (u16, Rule) = if cfg!(target_arch = "aarch64") {
    (machine::AARCH64, Rule::FRAME_RECORD.with_return_address(1))
} else {
    (machine::X86_64, Rule::FRAME_RECORD)
};

/// The ticks of the shorter run, and the ticks by which the other one is longer.
const TICKS: u64 = 64;

fn main() {
    let arguments: Vec<String> = env::args().collect();
    if let [_, word, way, frames, ticks] = &arguments[..]
        && word == "run"
    {
        return run(way, frames.parse().unwrap(), ticks.parse().unwrap());
    }
    if !arguments.iter().any(|argument| argument == "--bench") {
        return println!("nothing measured: run it with cargo bench");
    }
    if Command::new(emulator()).arg("--version").output().is_err() {
        return println!("{} is not here: nothing counted", emulator());
    }
    println!("instructions of a whole tick, {}", env::consts::ARCH);
    for way in ["chain", "leaf by table", "every frame by table"] {
        for frames in [8, 32] {
            let [less, more] = [TICKS, 2 * TICKS].map(|ticks| instructions(way, frames, ticks));
            let tick = (more - less) as f64 / TICKS as f64;
            println!("{way:<20} {frames:3} frames   {tick:7.1}");
        }
    }
}

/// The emulation of user programs for this program's processor.
fn emulator() -> String {
    format!("qemu-{}", env::consts::ARCH)
}

/// The instructions of this program with so many ticks, including start and end.
fn instructions(way: &str, frames: usize, ticks: u64) -> usize {
    let mut child = Command::new(emulator())
        // The first is the name up to QEMU 8.0, the second the name since then.
        .env("QEMU_SINGLESTEP", "1")
        .env("QEMU_ONE_INSN_PER_TB", "1")
        .args(["-d", "nochain,exec"])
        .arg(env::current_exe().unwrap())
        .args(["run", way, &frames.to_string(), &ticks.to_string()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = BufReader::new(child.stderr.take().unwrap());
    let executed =
        log.split(b'\n').filter(|line| line.as_ref().unwrap().starts_with(b"Trace ")).count();
    assert!(child.wait().unwrap().success(), "{way}, {frames} frames");
    executed
}

/// Ticks of one known stack.
fn run(way: &str, frames: usize, ticks: u64) {
    let mapping = Mapping { build_id: &[1], ..MAPPING };
    let config = Config { mappings: &[mapping], ..CONFIG };
    let (machine, rule) = NATIVE;
    // By file offset. Functions of 512 bytes, whose last instruction has no rule.
    let rows: Vec<Row> = (0..(MAPPING.end - MAPPING.start) as u32)
        .step_by(512)
        .flat_map(|code| {
            [(code, rule), (code + 508, Rule::UNKNOWN)].map(|(code, rule)| Row { code, rule })
        })
        .collect();
    let mut file = file_head(machine, mapping.build_id, &rows).unwrap().to_vec();
    file.extend(rows.iter().flat_map(|row| row.to_bytes()));
    let installed = rows.iter().fold(0, |sum, row| {
        let code = row.code + frame_code::FIRST_ADDRESS;
        checksum(sum, Row { code, ..*row })
    });

    let mut memory = vec![MaybeUninit::uninit(); 1 << 20];
    let mut callers = vec![MaybeUninit::uninit(); caller_table_bytes(rows.len())];
    let agent = Agent::new(FakePlatform::new(frames), config, &mut memory).unwrap();
    let agent = agent.with_caller_memory(&mut callers);
    agent.install_caller_table(&file).unwrap();
    let mut client = InProcess::connect(&agent).unwrap();
    let start = Start {
        caller_table: (way != "chain").then_some(installed),
        flags: if way == "every frame by table" { start_flag::UNWIND_TABLE } else { 0 },
        ..Start::running_time("counted", 1_000_000)
    };
    client.start_as(&start).unwrap();
    let platform = agent.platform();
    let registers = platform.stack().lay(&stack(&mut Random::new(11), frames));
    for _ in 0..ticks {
        platform.advance(1_500_000);
        black_box(agent.on_tick(Some(&registers)));
    }
    let got = client.stop().unwrap();
    let by_table = if way == "chain" { 0 } else { ticks };
    assert_eq!([got.samples, got.counters.by_table], [ticks, by_table]);
    assert_eq!(got.counters.mixed, 0);
    for (stack, _) in &got.counts {
        let known = stack.iter().filter(|code| **code >= frame_code::FIRST_ADDRESS);
        assert_eq!(known.count(), frames);
    }
}
