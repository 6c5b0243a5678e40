//! Traces of a guest's functions, whose tree of calls is known.

use std::collections::BTreeMap;
use std::net::TcpStream;

use object::{File, Object as _, ObjectSection as _, ObjectSymbol as _};
use serde_json::Value;
use unikprof_proto::code::{capability, refusal, trace_flag, trace_state};
use unikprof_proto::message::{Refusal, TraceBegin};
use unikprof_proto::ring::{Enter, Leave, Record, how, kind};

use unikprof_profile::recording::Completeness;
use unikprof_tests::lab::LabConfig;
use unikprof_tests::profiled::{STATISTICS_PORT, profiled_guest_with_vcpus};

use crate::xen_profile::flight::crash::crashed;
use crate::xen_profile::harness::{Boot, Guest, on, wait_until};

#[path = "../../../../agent/tests/it/tracing/mod.rs"]
mod agent_client;

use agent_client::{Client, Fetched, MANY, Planned, plan_of, plan_of_many};

/// The functions of the guest's `allocations`, as its symbols name them.
const FUNCTIONS: [&str; 7] = [
    "11Allocations14round_of_first",
    "11allocations7request",
    "11allocations4list",
    "11allocations5entry",
    "11allocations8checksum",
    "11Allocations15round_of_others",
    "11allocations5reply",
];

/// The calls made by each call of a function, in this order, without those in a variable number.
const CALLS: [&[u16]; 7] = [&[1, 1, 1, 1, 2, 3], &[], &[], &[4], &[], &[], &[]];

const CHECKSUM: u16 = 4;
/// A call of `checksum` calls itself twice, twice.
const CHECKSUMS: usize = 7;
const ROUND_OF_OTHERS: u16 = 5;
const REPLY: u16 = 6;

/// The least number of rounds of the first vCPU that are traced.
const ROUNDS: u64 = 300;

/// A trace of [`FUNCTIONS`] that outlives its connections.
pub(crate) struct Tracing {
    plan: Vec<Planned>,
    flags: u32,
    trace: u64,
    /// The cost of a breakpoint without the agent's part.
    probe_cycles: u64,
}

/// The ids of clients: only the one that began a trace may begin another instead.
const OWN: u64 = 1;
const OTHER: u64 = 2;

impl Tracing {
    /// `flags` are those of `trace_flag`.
    pub(crate) fn begin(guest: &Guest<'_>, flags: u32) -> Tracing {
        let plan = planned(&std::fs::read(Guest::program()).unwrap(), &FUNCTIONS);
        let mut client = Client::connect(guest.address(), OWN);
        let ready = client.begin(&plan, flags, 0, 0);
        client.send_plan(ready.trace, &plan);
        let (armed, refused) = client.arm(ready.trace);
        assert_eq!(refused, [], "{armed:?}");
        Tracing { plan, flags, trace: ready.trace, probe_cycles: ready.probe_cycles }
    }

    /// Asserts that calls are still counted, and ends the trace. Afterwards the guest's code is as
    /// before, for then the same trace can begin again. That one is left behind, and the agent ends
    /// it.
    pub(crate) fn assert_goes_on(self, guest: &Guest<'_>) {
        let mut client = Client::connect(guest.address(), OWN);
        let before = client.fetch(self.trace);
        assert_eq!(before.state.state, trace_state::ARMED);
        wait_until("more traced rounds", || {
            (client.fetch(self.trace).of(0).calls >= before.of(0).calls + ROUNDS).then_some(())
        });
        client.stop(self.trace);
        assert_counted(&client.fetch(self.trace));
        let left_behind = client.trace(&self.plan, self.flags);
        drop(client);

        let mut client = Client::connect(guest.address(), OTHER);
        wait_until("the end of a trace without a client", || {
            client.send(&TraceBegin {
                functions: 1,
                probes: 1,
                flags: 0,
                max_cost_permille: 0,
                slow_ns: 0,
            });
            let answer = client.answer();
            let refused = answer.decode::<Refusal<'_>>().map(|refusal| refusal.code);
            match refused {
                Ok(code) => assert_eq!(code, refusal::TRACING),
                Err(_) => return Some(()),
            }
            None
        });
        let trace = client.trace(&self.plan, self.flags);
        assert!(trace > left_behind);
        client.stop(trace);
    }
}

/// The plan of functions of an image.
fn planned(image: &[u8], names: &[&str]) -> Vec<Planned> {
    let file = File::parse(image).unwrap();
    let plan = |name: &&str| {
        let (start, code) = code_of(&file, name);
        plan_of(start, code)
    };
    names.iter().map(plan).collect()
}

/// The address and the code of a function of an image.
fn code_of<'f>(file: &File<'f>, name: &str) -> (u64, &'f [u8]) {
    let found = file.symbols().find(|symbol| {
        let is_named = symbol.name().is_ok_and(|it| it.contains(name));
        is_named && symbol.size() != 0
    });
    let symbol = found.unwrap_or_else(|| panic!("no {name}"));
    let text = file.section_by_name(".text").unwrap();
    let code = text.data_range(symbol.address(), symbol.size());
    (symbol.address(), code.unwrap().unwrap())
}

/// A call, with those that it made.
#[derive(Debug)]
struct Call {
    function: u16,
    calls: Vec<Call>,
}

/// The calls in a ring of which entry and exit are there, by stack.
fn calls(records: &[Record], trace: u64) -> Vec<Call> {
    let mut open: BTreeMap<u64, Vec<Call>> = BTreeMap::new();
    let mut ended = Vec::new();
    for record in records {
        let stack = open.entry(record.second).or_default();
        match record.kind {
            kind::ENTER => {
                let enter = Enter::from_number(record.first);
                if u64::from(enter.trace) == trace {
                    stack.push(Call { function: enter.function, calls: Vec::new() });
                }
            }
            kind::LEAVE => {
                let leave = Leave::from_number(record.first);
                if u64::from(leave.trace) != trace {
                    continue;
                }
                assert_eq!(leave.how, how::RETURNED, "{leave:?}");
                // The entry may be older than the ring, or than the trace.
                let Some(call) = stack.pop() else { continue };
                assert_eq!(call.function, leave.function, "{call:?}");
                match stack.last_mut() {
                    Some(caller) => caller.calls.push(call),
                    None => ended.push(call),
                }
            }
            _ => {}
        }
    }
    ended
}

/// The calls that begin in a ring.
fn entries(records: &[Record], trace: u64) -> usize {
    let entries = records.iter().filter(|it| it.kind == kind::ENTER);
    let of = entries.filter(|it| u64::from(Enter::from_number(it.first).trace) == trace);
    of.count()
}

fn count(call: &Call) -> usize {
    1 + call.calls.iter().map(count).sum::<usize>()
}

/// Traces the rounds of both vCPUs, while both are sampled, and compares all calls with the known
/// tree.
pub(crate) fn assert_rounds(guest: &Guest<'_>) {
    let sampling = guest.client();
    sampling.must(&["start", "--name", "beside", "-F", "499"]);
    // Again if samples have displaced the calls from the rings before they were fetched.
    wait_until("traced rounds in the rings", || {
        let [rounds, replies] = traced_rounds(guest);
        (rounds > 10 && replies > 0).then_some(())
    });

    // The samples lie in the guest's functions, also those whose instruction ran in a slot.
    wait_until("samples of a traced function", || {
        sampling.must(&["dump", "--name", "beside", "-o", "run.unikprof"]);
        let stacks = sampling.folded(&["--no-inlines"]);
        let mut strange = stacks.iter();
        let strange = strange.find(|(stack, _)| stack.contains("trace_slots"));
        assert_eq!(strange, None);
        let mut stacks = stacks.iter();
        let is_traced = stacks.any(|(stack, _)| stack.ends_with("allocations::checksum"));
        is_traced.then_some(())
    });
    sampling.must(&["stop", "--discard", "--name", "beside"]);
}

/// Traces rounds and compares them with the known tree; answers how many rounds and replies are in
/// the rings.
fn traced_rounds(guest: &Guest<'_>) -> [usize; 2] {
    let Tracing { trace, probe_cycles, .. } = Tracing::begin(guest, 0);
    let mut client = Client::connect(guest.address(), OWN);
    assert_ne!(client.welcome_capabilities & capability::TRACE, 0);
    wait_until("traced rounds", || (client.fetch(trace).of(0).calls >= ROUNDS).then_some(()));
    let state = client.stop(trace);
    assert_eq!(state.state, trace_state::STOPPED);
    let rings = [0, 1].map(|vcpu| client.ring(vcpu));
    let fetched = client.fetch(trace);
    drop(client);
    assert_counted(&fetched);
    println!(
        "cycles of a breakpoint: {probe_cycles}, and {} of the agent",
        state.cycles / state.traps.max(1)
    );

    // The numbers of traces in the ring are their ids, for the first 65,535.
    let [first, other] = rings.map(|ring| calls(&ring, trace));
    let rounds = first.iter().filter(|call| call.function == 0);
    let mut rounds_seen = 0;
    for round in rounds {
        rounds_seen += 1;
        for (call, expected) in round.calls.iter().zip(CALLS[0]) {
            assert_eq!(call.function, *expected, "{round:?}");
            let inner: Vec<u16> = call.calls.iter().map(|call| call.function).collect();
            assert_eq!(inner, CALLS[usize::from(call.function)], "{round:?}");
            if let [checksum] = &call.calls[..] {
                assert_eq!(count(checksum), CHECKSUMS, "{round:?}");
            }
        }
        assert_eq!(round.calls.len(), CALLS[0].len(), "{round:?}");
    }
    let mut replies = 0;
    for round in other.iter().filter(|call| call.function == ROUND_OF_OTHERS) {
        assert!(round.calls.iter().all(|call| call.function == REPLY), "{round:?}");
        replies += round.calls.len();
    }
    [rounds_seen, replies]
}

/// Counts of complete rounds are multiples of each other; the trace begins and ends within one.
fn assert_counted(fetched: &Fetched) {
    assert_eq!((fetched.state.mismatched, fetched.state.too_deep), (0, 0));
    assert_eq!(fetched.state.unplaced, 0);
    let calls = |function: u16| fetched.of(function.into()).calls;
    let rounds = calls(0);
    for (function, each) in [(1, 4), (2, 1), (3, 1), (CHECKSUM, CHECKSUMS as u64)] {
        let calls = calls(function);
        assert!(calls.abs_diff(rounds * each) <= each, "{function}: {calls} of {rounds} rounds");
    }
    for function in 0..FUNCTIONS.len() as u32 {
        let totals = fetched.of(function);
        assert_eq!((totals.unwound, totals.replaced), (0, 0), "{function}");
        // Those that were open when the trace began.
        assert!(totals.orphans <= 7, "{function}: {totals:?}");
        assert!(totals.total_ns >= totals.self_ns, "{function}: {totals:?}");
    }
}

/// Traces functions of a client's image until these have been called so often: for longer again
/// where the guest gets little of a processor.
pub(crate) fn traced(
    client: &crate::xen_profile::harness::Client,
    functions: &[&str],
    least: &[(&str, u64)],
) -> Value {
    let image = client.image().to_str().unwrap();
    let words = [&["trace"], functions, &["--image", image]].concat();
    let mut lengths = ["5s", "30s", "180s"].into_iter().map(|length| {
        let limits = ["--for", length, "--max-cost", "0", "-o", "trace.json"];
        client.must(&[&words[..], &limits].concat());
        let trace = std::fs::read(client.path("trace.json")).unwrap();
        serde_json::from_slice(&trace).unwrap()
    });
    let is_enough = |trace: &Value| {
        let functions = trace["functions"].as_array().unwrap();
        least.iter().all(|(name, calls)| {
            let mut rows = functions.iter().filter(|row| row["function"] == *name);
            rows.any(|row| row["calls"].as_u64() >= Some(*calls))
        })
    };
    let trace = lengths.find(is_enough);
    trace.unwrap_or_else(|| panic!("expected calls: {least:?}"))
}

/// The calls of a function in a trace that the client has written as JSON.
pub(crate) fn calls_of(trace: &Value, name: &str) -> u64 {
    row(trace, name)["calls"].as_u64().unwrap()
}

fn row<'t>(trace: &'t Value, name: &str) -> &'t Value {
    let mut functions = trace["functions"].as_array().unwrap().iter();
    let found = functions.find(|one| one["function"] == name);
    found.unwrap_or_else(|| panic!("no {name}: {trace:#}"))
}

/// Asserts that the first of two functions is called so often for each call of the second, and that
/// no function was refused.
pub(crate) fn assert_ratios(trace: &Value, ratios: &[(&str, &str, u64)]) {
    assert_eq!(trace["refused"], serde_json::json!([]), "{trace:#}");
    for &(name, caller, each) in ratios {
        let (calls, expected) = (calls_of(trace, name), calls_of(trace, caller) * each);
        // The trace begins and ends within a call, and two threads take turns.
        let apart = calls.abs_diff(expected);
        assert!(apart <= 2 * each, "{name}: {calls}, not {expected}: {trace:#}");
        for wrong in ["unwound", "replaced"] {
            assert_eq!(row(trace, name)[wrong], 0, "{name}: {trace:#}");
        }
    }
}

const PROBED: Boot = Boot {
    name: "probed",
    config: || {
        Ok(LabConfig::with_guest(profiled_guest_with_vcpus(
            "probed",
            2,
            "probed=50 trace=yes record-at-boot=recorder",
        )?))
    },
};

/// A thousand probes are set and removed while two vCPUs run through them: each result is right, or
/// the guest panics. Then it does panic, in the middle of a trace: its dump has the newest calls.
/// Its code is as before each time. `UNIKPROF_LONG=1` does so a thousand times, which takes half an
/// hour.
///
/// How calls ended is not compared. With all breakpoints in memory, the emulator's other processor
/// was seen to execute a return as it was before, for as long as the trace lasted: QEMU probably
/// translates code again just before a byte of it changes.
#[test]
#[ignore = "full: boots a real Xen"]
fn a_thousand_probes_come_and_go_and_a_panic_removes_them() {
    let is_long = std::env::var_os("UNIKPROF_LONG").is_some();
    let times = if is_long { 1_000 } else { 30 };
    on(&PROBED, |lab| {
        let guest = Guest::of_recording(lab, "probed");
        let changed = || guest.statistics().get("text.changed").unwrap();
        let image = std::fs::read(Guest::program()).unwrap();
        let file = File::parse(&*image).unwrap();
        let (start, code) = code_of(&file, "many_functions");
        let mut plan = plan_of_many(start, code);

        let mut client = Client::connect(guest.address(), OWN);
        let mut traps = 0;
        let begun = std::time::Instant::now();
        for time in 0..times {
            // Counts are of all vCPUs together, and records are not.
            let flags = if time == 0 { 0 } else { trace_flag::COUNT };
            let trace = client.trace(&plan, flags);
            assert_eq!(changed(), 4 * MANY as u64);
            if time == 0 {
                wait_until("calls of each vCPU's load", || {
                    let calls = [0, 1].map(|vcpu| entries(&client.ring(vcpu), trace));
                    calls.iter().all(|calls| *calls > 100).then_some(())
                });
            }
            let state = client.stop(trace);
            assert_eq!((state.unplaced, state.too_deep), (0, 0), "{state:?}");
            traps += state.traps + state.stale;
            assert_eq!(changed(), 0);
        }
        println!("{times} times 1,000 probes in {:?}, {traps} breakpoints", begun.elapsed());

        let (start, code) = code_of(&file, "6probed6doomed");
        plan.push(plan_of(start, code));
        client.trace(&plan, 0);
        // Its answer may not get through before the panic that it leads to.
        let asking = TcpStream::connect(guest.port(STATISTICS_PORT)).unwrap();
        let client = crashed(lab, "probed", "traced to its end");
        drop(asking);
        let log = std::fs::read_to_string(client.path("console.log")).unwrap();
        assert!(log.contains(": 0 bytes of the code are changed"), "{log}");
        client.run(&["recover", "console.log"]).expect_success();
        let dump = client.recording("console.log.unikprof");
        // The calls take more room than the block has: the newest are kept.
        let reason = "the block was too small for the older records";
        assert_eq!(dump.completeness, Completeness::Incomplete(reason.to_owned()));
        let told = client.report("console.log.unikprof", &["--timeline", "--json"]);
        let told: Value = serde_json::from_str(&told.stdout).unwrap();
        assert_eq!(told["marks"][0]["name"], "panic", "{told:#}");
    });
}
