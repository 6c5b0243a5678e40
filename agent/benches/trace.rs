//! The cost of a traced call beside two breakpoints whose handler returns at once, and calls per
//! second.
//!
//! ```text
//! cargo bench -p unikprof-agent --features hosted,trace --bench trace
//! ```
//!
//! *Pair.* A function is called with a probe at its entry and one at its only return. Beside it,
//! two breakpoints are executed whose handler is an empty function of the same type and with the
//! same flags: what Linux takes for the signals. Batches of both take turns, so that other work on
//! the machine meets both; the medians of the batches are compared.
//!
//! *Per second.* The function is called in a loop for a second, and a client reads the ring
//! meanwhile: how many calls there were, and how many records were overwritten before they were
//! read.
#![allow(unsafe_code, clippy::unwrap_used)]

#[path = "../tests/it/tracing/mod.rs"]
mod tracing;

use std::arch::{asm, global_asm};
use std::hint::black_box;
use std::time::{Duration, Instant};

use tracing::{Client, plan};
use unikprof_agent::Access;
use unikprof_agent::hosted::{self, Config};
use unikprof_proto::code::trace_flag;

global_asm!(
    ".text",
    ".globl bench_traced",
    "bench_traced: push %rbx; mov %rdi, %rbx; lea 1(%rbx), %rax; pop %rbx; ret",
    ".globl bench_traced_end",
    "bench_traced_end:",
    options(att_syntax)
);

unsafe extern "C" {
    fn bench_traced(number: u64) -> u64;
    static bench_traced_end: u8;
}

const CALLS: u64 = 2_000;
const BATCHES: usize = 101;

/// Executes a call; with the probes set, two breakpoints.
fn call(number: u64) -> u64 {
    // SAFETY: the function above takes any number.
    unsafe { bench_traced(number) }
}

extern "C" fn on_bare(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}

/// Replaces the handler of SIGTRAP; returns the one before.
fn set_handler(action: &libc::sigaction) -> libc::sigaction {
    // SAFETY: both structures have the required type.
    unsafe {
        let mut before = core::mem::zeroed();
        assert_eq!(libc::sigaction(libc::SIGTRAP, action, &raw mut before), 0);
        before
    }
}

/// The time of a batch in ns per call.
fn timed(work: impl Fn(u64)) -> f64 {
    let begun = Instant::now();
    for number in 0..CALLS {
        work(black_box(number));
    }
    begun.elapsed().as_nanos() as f64 / CALLS as f64
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let guest = hosted::start(Config {
        trace_functions: 10,
        ring_bytes: 16 << 20,
        cpu_share_permille: 1000,
        ..Config::new(Access::Open)
    })
    .unwrap();
    let vcpu = guest.register_thread().unwrap();
    let start = bench_traced as *const () as u64;
    let length = (&raw const bench_traced_end) as u64 - start;
    let plan = [plan(start, length as usize)];
    let mut client = Client::connect(guest.address(), 1);
    for (name, flags) in [("count only", trace_flag::COUNT), ("with the ring", 0)] {
        let ready = client.begin(&plan, flags, 0, 0);
        client.send_plan(ready.trace, &plan);
        client.arm(ready.trace);
        // SAFETY: zeros are a valid action; the handler has the type that SA_SIGINFO requires.
        let bare = unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = on_bare as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
            libc::sigfillset(&raw mut action.sa_mask);
            action
        };
        let (mut traced, mut empty) = (Vec::new(), Vec::new());
        for _ in 0..BATCHES {
            traced.push(timed(|number| {
                black_box(call(number));
            }));
            let agents = set_handler(&bare);
            empty.push(timed(|_| {
                // SAFETY: the handler returns behind the breakpoint.
                unsafe { asm!("int3", "int3") };
            }));
            set_handler(&agents);
        }
        let state = client.stop(ready.trace);
        let (traced, empty) = (median(&mut traced), median(&mut empty));
        println!(
            "{name}: {traced:.0} ns a call, {empty:.0} ns two bare breakpoints, {:.3} times; \
             handler {:.0} cycles",
            traced / empty,
            state.cycles as f64 / state.traps as f64
        );
    }
    let trace = client.trace(&plan, 0);
    let begun = Instant::now();
    let mut calls = 0_u64;
    while begun.elapsed() < Duration::from_secs(2) {
        for number in 0..1_000 {
            black_box(call(number));
        }
        calls += 1_000;
    }
    let seconds = begun.elapsed().as_secs_f64();
    client.stop(trace);
    let kept = client.ring(vcpu.id()).len();
    println!(
        "{:.0} calls a second; {} records written, {kept} in a ring of 16 MiB afterwards",
        calls as f64 / seconds,
        2 * calls
    );
}
