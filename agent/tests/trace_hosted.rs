//! A process of its own, because it is the hosted guest whose functions are traced; they are called
//! as often as the tests say.
#![allow(clippy::unwrap_used, unsafe_code)]

#[path = "it/tracing/mod.rs"]
mod tracing;

use std::arch::{asm, global_asm};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tracing::{Client, MANY, Planned, plan};
use unikprof_agent::Access;
use unikprof_agent::Platform;
use unikprof_agent::hosted::Hosted;
use unikprof_agent::hosted::{self, Config, Guest};
use unikprof_proto::code::{capability, trace_flag, trace_refusal, trace_state};
use unikprof_proto::trace::function_flag;

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
    // Reads memory relative to the program counter in its first instruction, and removes its
    // argument.
    "FUNCTION traced_relative",
    "mov traced_one(%rip), %rax; add 8(%rsp), %rax; ret $8",
    "END traced_relative",
    "FUNCTION push_and_call",
    "push %rdi; call traced_relative; ret",
    "END push_and_call",
    // Jumps back to its entry, which is not another call, by way of a register.
    "FUNCTION traced_loop",
    "inc %rdi; test $7, %dil; je 1f; lea traced_loop(%rip), %rax; jmp *%rax; 1: mov %rdi, %rax; \
     ret",
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

global_asm!(include_str!("it/tracing/many_functions.s"), options(att_syntax));

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
    many_functions many_functions_end
}

/// The program's own breakpoints, handled before there was an agent.
static OWN_BREAKPOINTS: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_own_breakpoint(_: libc::c_int) {
    OWN_BREAKPOINTS.fetch_add(1, Ordering::Relaxed);
}

/// The guest of this process, and the turn of a test: there is one trace at a time.
fn guest() -> (Guest, MutexGuard<'static, ()>) {
    static GUEST: OnceLock<Guest> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let guest = GUEST.get_or_init(|| {
        // SAFETY: the handler has the required type.
        unsafe { libc::signal(libc::SIGTRAP, on_own_breakpoint as *const () as usize) };
        hosted::start(Config {
            vcpus: 4,
            trace_functions: 1000,
            cpu_share_permille: 1000,
            ..Config::new(Access::Open)
        })
        .unwrap()
    });
    (*guest, turn)
}

fn connect(guest: &Guest) -> Client<std::net::TcpStream> {
    static ID: AtomicU64 = AtomicU64::new(1);
    let id = ID.fetch_add(1, Ordering::Relaxed);
    Client::connect(guest.address(), id)
}

/// Calls a function; returns its result.
#[inline(never)]
fn call(function: unsafe extern "C" fn(u64) -> u64, number: u64) -> u64 {
    // SAFETY: the functions above take any number, and return.
    unsafe { function(number) }
}

const ROUNDS: u64 = 500;

/// Each function's calls are counted exactly, whatever way it is entered and left; the results stay
/// right.
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
    let mut plan = names.map(planned);
    let looping = names.iter().position(|name| *name == "traced_loop");
    plan[looping.unwrap()].flags = function_flag::LOOPS;
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
    assert_eq!((state.mismatched, state.unplaced, state.too_deep), (0, 0, 0));
    let calls = |name: &str| {
        let index = names.iter().position(|one| *one == name).unwrap();
        let totals = fetched.of(index as u32);
        assert_eq!((totals.orphans, totals.unwound, totals.replaced), (0, 0, 0), "{name}");
        assert!(totals.total_ns >= totals.self_ns, "{name}: {totals:?}");
        let (_, histogram) = fetched.totals[&(index as u32)];
        assert_eq!(histogram.iter().sum::<u64>(), totals.calls, "{name}");
        totals.calls
    };
    assert_eq!(calls("traced_leaf"), 4 * ROUNDS);
    assert_eq!(calls("traced_tree"), 127);
    for name in ["traced_tail", "traced_jumps", "traced_relative", "push_and_call"] {
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

/// The program's own breakpoints reach its own handler, and the agent's probes go on.
#[test]
fn a_breakpoint_of_the_program_reaches_its_handler() {
    let (guest, _turn) = guest();
    let mut client = connect(&guest);
    let trace = client.trace(&[planned("traced_leaf")], trace_flag::COUNT);
    let _vcpu = guest.register_thread().unwrap();
    let before = OWN_BREAKPOINTS.load(Ordering::Relaxed);
    for number in 0..3 {
        // SAFETY: the handler above returns behind the breakpoint.
        unsafe { asm!("int3") };
        assert_eq!(call(traced_leaf, number), number + 1);
    }
    // SAFETY: likewise, without a breakpoint.
    unsafe { libc::raise(libc::SIGTRAP) };
    assert_eq!(OWN_BREAKPOINTS.load(Ordering::Relaxed), before + 4);
    client.stop(trace);
    assert_eq!(client.fetch(trace).of(0).calls, 3);
}

/// A function that the handler itself calls would trap in its own handler without end: it is found
/// and refused.
#[test]
fn what_the_handler_calls_is_refused() {
    let (guest, _turn) = guest();
    let clock = <Hosted as Platform>::now_ns as fn(&Hosted) -> u64;
    let start = clock as *const () as u64;
    // Only its first instruction: where it ends is not known here.
    let mut clock = plan(start, 64);
    clock.probes.truncate(1);
    let functions = [planned("traced_leaf"), clock];
    let mut client = connect(&guest);
    let ready = client.begin(&functions, trace_flag::COUNT, 0, 0);
    client.send_plan(ready.trace, &functions);
    let (armed, refused) = client.arm(ready.trace);
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert_eq!((refused[0].function, refused[0].reason), (1, trace_refusal::AGENT));
    assert_eq!(armed.probes as usize, functions[0].probes.len());
    let _vcpu = guest.register_thread().unwrap();
    assert_eq!(call(traced_leaf, 1), 2);
    client.stop(ready.trace);
    assert_eq!(client.fetch(ready.trace).of(0).calls, 1);
}

/// Whatever the handler calls once in a while would trap in its own handler, too.
#[test]
fn what_the_handler_calls_seldom_is_refused() {
    use object::{Object as _, ObjectSymbol as _};

    const NAMES: [&str; 6] = [
        "$GT$5judge",
        "14remove_hottest",
        "12begin_window",
        "5Trace6remove17h",
        "9keep_slow",
        "10breakpoint4late",
    ];
    let (guest, _turn) = guest();
    let program = std::fs::read("/proc/self/exe").unwrap();
    let file = object::File::parse(&*program).unwrap();
    // The program is relocated: the distance of a function whose address is known.
    let known = file.symbol_by_name("traced_leaf").unwrap().address();
    let moved = (traced_leaf as *const () as u64).wrapping_sub(known);
    let plans: Vec<Planned> = NAMES
        .iter()
        .map(|name| {
            let mut symbols = file.symbols();
            let found = symbols.find(|symbol| symbol.name().is_ok_and(|it| it.contains(name)));
            let symbol = found.unwrap_or_else(|| panic!("no {name}"));
            let start = symbol.address().wrapping_add(moved);
            let mut planned = plan(start, symbol.size() as usize);
            planned.probes.truncate(1);
            planned
        })
        .collect();
    let mut client = connect(&guest);
    let ready = client.begin(&plans, 0, 0, 0);
    client.send_plan(ready.trace, &plans);
    let (armed, refused) = client.arm(ready.trace);
    client.stop(ready.trace);
    let reasons: Vec<_> = refused.iter().map(|one| (one.function, one.reason)).collect();
    let expected: Vec<_> =
        (0..plans.len() as u32).map(|number| (number, trace_refusal::AGENT)).collect();
    assert_eq!(reasons, expected, "{armed:?}");
}

fn many(number: usize) -> unsafe extern "C" fn(u64) -> u64 {
    let address = many_functions as *const () as usize + 64 * number;
    let function = core::ptr::with_exposed_provenance::<()>(address);
    // SAFETY: one of the functions above, all of this type.
    unsafe { std::mem::transmute(function) }
}

/// Ends the threads of a test when it is dropped.
struct End<'d>(&'d AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A thousand probes are set and removed again and again, while two threads run through them: no
/// result is wrong, and the code is as before. `UNIKPROF_LONG=1` does so a thousand times, which
/// takes some minutes.
#[test]
fn a_thousand_probes_come_and_go_under_load() {
    let is_long = std::env::var_os("UNIKPROF_LONG").is_some();
    let (guest, _turn) = guest();
    let start = many_functions as *const () as u64;
    let length = (&raw const many_functions_end) as u64 - start;
    let code = || {
        let code = core::ptr::with_exposed_provenance::<u8>(start as usize);
        // SAFETY: the functions' code, which nobody writes while this is called.
        unsafe { std::slice::from_raw_parts(code, length as usize) }.to_vec()
    };
    let before = code();
    let plan = tracing::plan_of_many(start, &before);
    let done = AtomicBool::new(false);
    let called = AtomicU64::new(0);
    let mut traps = 0;
    std::thread::scope(|scope| {
        for thread in 0..2_u64 {
            let (done, called) = (&done, &called);
            scope.spawn(move || {
                let _vcpu = guest.register_thread().unwrap();
                let mut number = thread;
                while !done.load(Ordering::Relaxed) {
                    number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let index = (number >> 33) as usize % MANY;
                    assert_eq!(call(many(index), number), number.wrapping_add(1));
                    called.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // Also if an assertion below fails.
        let _end = End(&done);
        let mut client = connect(&guest);
        // Until the threads have met enough of them, however little of the processors they get.
        let rounds = if is_long { 1_000 } else { 20 };
        let end = std::time::Instant::now() + std::time::Duration::from_secs(180);
        for round in 0.. {
            let is_enough = called.load(Ordering::Relaxed) > 1_000 && traps > 1_000;
            if round >= rounds && (is_enough || std::time::Instant::now() > end) {
                break;
            }
            let trace = client.trace(&plan, trace_flag::COUNT);
            let state = client.stop(trace);
            assert_eq!((state.unplaced, state.mismatched), (0, 0));
            // A call that was counted has ended by its exit, or is open at the end.
            let fetched = client.fetch(trace);
            for (number, (totals, histogram)) in &fetched.totals {
                assert_eq!((totals.unwound, totals.replaced), (0, 0), "{number}");
                let returned: u64 = histogram.iter().sum();
                assert!(totals.calls - returned <= 2, "{number}: {totals:?}, {returned} returned");
            }
            traps += state.traps + state.stale;
        }
    });
    assert_eq!(code(), before);
    let called = called.into_inner();
    assert!(called > 1_000 && traps > 1_000, "{called} calls, {traps} breakpoints");
}
