//! Traces of a hosted guest: this process, whose functions are called so often as the tests say.
#![allow(clippy::unwrap_used, unsafe_code)]

mod tracing;

use std::arch::global_asm;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tracing::{Client, Planned, plan};
use unikprof_agent::Access;
use unikprof_agent::hosted::{self, Config, Guest};
use unikprof_proto::code::{capability, trace_flag, trace_state};
use unikprof_proto::ring::{Enter, Leave, how, kind};

global_asm!(
    ".macro FUNCTION name",
    ".globl \\name",
    ".type \\name,@function",
    "\\name:",
    ".endm",
    ".macro END name",
    ".globl \\name\\()_end",
    "\\name\\()_end:",
    ".size \\name, .-\\name",
    ".endm",
    ".text",
    // The number plus one.
    "FUNCTION traced_leaf",
    "push %rbx; mov %rdi, %rbx; lea 1(%rbx), %rax; pop %rbx; ret",
    "END traced_leaf",
    // A tree of calls, so deep as the number: their number.
    "FUNCTION traced_tree",
    "endbr64; push %rbx; push %r12; mov %rdi, %rbx; xor %eax, %eax; test %rdi, %rdi; je 1f",
    "lea -1(%rbx), %rdi; call traced_tree; mov %rax, %r12",
    "lea -1(%rbx), %rdi; call traced_tree; add %r12, %rax",
    "1: add $1, %rax; pop %r12; pop %rbx; ret",
    "END traced_tree",
    // Leaves by a tail call, as its only instruction.
    "FUNCTION traced_tail",
    "jmp traced_leaf",
    "END traced_tail",
    // Leaves by one of three jumps.
    "FUNCTION traced_jumps",
    "test $1, %dil; jne traced_leaf; test $2, %dil; je traced_leaf; jmp *traced_pointer(%rip)",
    "END traced_jumps",
    // Reads memory relative to the program counter in its first instruction, and removes its argument.
    "FUNCTION traced_relative",
    "mov traced_one(%rip), %rax; add 8(%rsp), %rax; ret $8",
    "END traced_relative",
    "FUNCTION push_and_call",
    "push %rdi; call traced_relative; ret",
    "END push_and_call",
    // Jumps back to its entry, which is not another call, by way of a register.
    "FUNCTION traced_loop",
    "inc %rdi; test $7, %dil; je 1f; lea traced_loop(%rip), %rax; jmp *%rax; 1: mov %rdi, %rax; ret",
    "END traced_loop",
    // Its first instruction is a call.
    "FUNCTION traced_caller",
    "call traced_leaf; add $1, %rax; ret",
    "END traced_caller",
    // Only returns.
    "FUNCTION traced_return",
    "rep ret",
    "END traced_return",
    ".data",
    ".balign 8",
    "traced_pointer: .quad traced_leaf",
    "traced_one: .quad 1",
    ".text",
    options(att_syntax)
);

macro_rules! functions {
    ($($name:ident $end:ident)*) => {
        unsafe extern "C" {
            $(fn $name(number: u64) -> u64; static $end: u8;)*
        }

        /// The plan of a function by its name.
        fn planned(name: &str) -> Planned {
            $(if name == stringify!($name) {
                let start = $name as *const () as u64;
                let end = &raw const $end as u64;
                return plan(start, (end - start) as usize);
            })*
            unreachable!("{name}")
        }
    };
}

functions! {
    traced_leaf traced_leaf_end
    traced_tree traced_tree_end
    traced_tail traced_tail_end
    traced_jumps traced_jumps_end
    traced_relative traced_relative_end
    push_and_call push_and_call_end
    traced_loop traced_loop_end
    traced_caller traced_caller_end
    traced_return traced_return_end
}

/// The guest of this process, and the turn of a test: there is one trace at a time.
fn guest() -> (Guest, MutexGuard<'static, ()>) {
    static GUEST: OnceLock<Guest> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let guest = GUEST.get_or_init(|| {
        hosted::start(Config {
            vcpus: 4,
            trace_functions: 1000,
            ring_bytes: 4 << 20,
            cpu_share_permille: 1000,
            ..Config::new(Access::Open)
        })
        .unwrap()
    });
    (*guest, turn)
}

fn connect(guest: &Guest) -> Client<std::net::TcpStream> {
    static ID: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    let id = ID.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    Client::connect(guest.address(), id)
}

/// Calls a function; returns its result.
#[inline(never)]
fn call(function: unsafe extern "C" fn(u64) -> u64, number: u64) -> u64 {
    // SAFETY: the functions above take any number, and return.
    unsafe { function(number) }
}

const ROUNDS: u64 = 500;

/// Each function's calls are counted exactly, whatever way it is entered and left; the results stay right.
#[test]
fn calls_of_known_trees_are_exact() {
    let (guest, _turn) = guest();
    let names = [
        "traced_leaf",
        "traced_tree",
        "traced_tail",
        "traced_jumps",
        "traced_relative",
        "push_and_call",
        "traced_loop",
        "traced_caller",
        "traced_return",
    ];
    let plan = names.map(planned);
    let mut client = connect(&guest);
    assert_ne!(client.welcome_capabilities & capability::TRACE, 0);
    let trace = client.trace(&plan, trace_flag::COUNT);
    let vcpu = guest.register_thread().unwrap();
    for number in 0..ROUNDS {
        assert_eq!(call(traced_leaf, number), number + 1);
        assert_eq!(call(traced_tail, number), number + 1);
        assert_eq!(call(traced_jumps, number), number + 1);
        assert_eq!(call(push_and_call, number), number + 1);
        assert_eq!(call(traced_loop, number), (number + 8) & !7);
        assert_eq!(call(traced_caller, number), number + 2);
        call(traced_return, number);
    }
    assert_eq!(call(traced_tree, 6), 127);
    let state = client.stop(trace);
    drop(vcpu);
    let fetched = client.fetch(trace);
    assert_eq!(state.state, trace_state::STOPPED);
    assert_eq!(
        (state.mismatched, state.unplaced, state.too_deep),
        (0, 0, 0)
    );
    let calls = |name: &str| {
        let index = names.iter().position(|one| *one == name).unwrap();
        let totals = fetched.of(index as u32);
        assert_eq!(
            (totals.orphans, totals.unwound, totals.replaced),
            (0, 0, 0),
            "{name}"
        );
        assert!(totals.total_ns >= totals.self_ns, "{name}: {totals:?}");
        let (_, histogram) = fetched.totals[&(index as u32)];
        assert_eq!(histogram.iter().sum::<u64>(), totals.calls, "{name}");
        totals.calls
    };
    assert_eq!(calls("traced_leaf"), 4 * ROUNDS);
    assert_eq!(calls("traced_tree"), 127);
    for name in [
        "traced_tail",
        "traced_jumps",
        "traced_relative",
        "push_and_call",
    ] {
        assert_eq!(calls(name), ROUNDS, "{name}");
    }
    for name in ["traced_loop", "traced_caller", "traced_return"] {
        assert_eq!(calls(name), ROUNDS, "{name}");
    }
    // The tail callers' return addresses are those of their callers: this program's.
    let leaf = fetched.callers.iter().filter(|one| one.function == 0);
    let mut leaf: Vec<u64> = leaf.map(|one| one.calls).collect();
    leaf.sort_unstable();
    assert_eq!(leaf, [ROUNDS, 3 * ROUNDS]);
}

/// The ring has each call, nested as they were.
#[test]
fn calls_are_in_the_ring_in_their_order() {
    let (guest, _turn) = guest();
    let plan = ["traced_leaf", "traced_caller", "traced_tail"].map(planned);
    let mut client = connect(&guest);
    let trace = client.trace(&plan, 0);
    let vcpu = guest.register_thread().unwrap();
    for number in 0..10 {
        call(traced_caller, number);
        call(traced_tail, number);
    }
    client.stop(trace);
    let records = client.ring(vcpu.id());
    let mut stacks = std::collections::HashSet::new();
    let mut seen = Vec::new();
    for record in records {
        match record.kind {
            kind::ENTER => {
                let enter = Enter::from_number(record.first);
                if enter.trace == trace as u16 {
                    seen.push((record.kind, enter.function));
                    stacks.insert(record.second);
                }
            }
            kind::LEAVE => {
                let leave = Leave::from_number(record.first);
                if leave.trace == trace as u16 {
                    assert_eq!(leave.how, how::RETURNED);
                    seen.push((record.kind, leave.function));
                }
            }
            _ => {}
        }
    }
    let (enter, leave) = (kind::ENTER, kind::LEAVE);
    let round = [
        (enter, 1),
        (enter, 0),
        (leave, 0),
        (leave, 1),
        (enter, 2),
        (leave, 2),
        (enter, 0),
        (leave, 0),
    ];
    assert_eq!(seen, round.repeat(10));
    assert_eq!(stacks.len(), 1, "one thread, one stack");
}
