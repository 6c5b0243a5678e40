//! Guests in C, compiled with the header and linked with the archive. Their checks are in `c/`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use unikprof_proto::code::{frame_code, mode};
use unikprof_proto::file::{self, BlockHead, FileEnd};
use unikprof_proto::frame::Message as _;
use unikprof_proto::message::{
    Check, Counters, EventName, Fetch, LiveSamples, Nodes, RecordingStatus, RingRun, Start,
    Started, Status, Stop, TraceArm, TraceArmed, TraceBegin, TraceFetch, TraceFunctions,
    TraceProbes, TraceReady, TraceState, TraceTotals, VcpuEpoch,
};
use unikprof_proto::ring::{self, kind};
use unikprof_proto::trace::{Encoder, Function, Probe, decode_totals, probe_kind};
use unikprof_proto::{console, live, nodes, preamble};
use unikprof_test_kit::frames::{encoded, frames};

use crate::build;

/// A client's messages, as C source.
fn client() -> String {
    let start = Start::running_time("from C", 1_000_000);
    let mut source = String::new();
    // The first epoch of the first recording.
    let fetch = |vcpu| encoded(&Fetch { epoch: (1 << 32) + 1, vcpu, known: 0, counted: 0 });
    let first = [&preamble::encode(preamble::OPEN)[..], &encoded(&start)].concat();
    for (name, bytes) in [
        ("start", first),
        ("stop", encoded(&Stop { recording: 0 })),
        ("check", encoded(&Check {})),
        (
            "heap",
            [
                &preamble::encode(preamble::OPEN)[..],
                &encoded(&Start::heap("from C", mode::LIVE, 512)),
            ]
            .concat(),
        ),
        (
            "waits",
            [
                &preamble::encode(preamble::OPEN)[..],
                &encoded(&Start { mode: mode::OFF_CPU, ..start }),
            ]
            .concat(),
        ),
        ("trace", trace()),
        ("trace_fetch", encoded(&TraceFetch { trace: 1 })),
        ("fetch", fetch(0)),
        ("fetch_second", fetch(1)),
    ] {
        let length = bytes.len();
        write!(
            source,
            "extern const unsigned char client_{name}[];\n\
             extern const unsigned client_{name}_length;\n\
             const unsigned char client_{name}[] = {{"
        )
        .unwrap();
        for byte in bytes {
            write!(source, "{byte},").unwrap();
        }
        writeln!(source, "}};\nconst unsigned client_{name}_length = {length};").unwrap();
    }
    source
}

/// The messages that begin a trace of the functions in `c/trace.c`, at the start of the mappings.
fn trace() -> Vec<u8> {
    const CODE: u32 = frame_code::FIRST_ADDRESS;
    // push %rbx at the start, ret behind nine bytes; mov (%rsp), %rax behind 16, ret behind 28.
    let mut functions = [0; 64];
    let mut encoder = Encoder::new(&mut functions);
    for (start, length) in [(CODE, 10), (CODE + 16, 13)] {
        encoder.function(&Function { flags: 0, parts: &[(start, length)] });
    }
    let functions_length = encoder.finish();
    let mut probes = [0; 64];
    let mut encoder = Encoder::new(&mut probes);
    let (entry, exit) = (probe_kind::ENTRY, probe_kind::EXIT);
    let all: [(u32, u8, u32, &[u8]); 4] = [
        (0, entry, 0, &[0x53]),
        (0, exit, 9, &[0xc3]),
        (1, entry, 16, &[0x48, 0x8b, 0x04, 0x24]),
        (1, exit, 28, &[0xc3]),
    ];
    for (function, kind, offset, instruction) in all {
        encoder.probe(&Probe { function, kind, code: CODE + offset, displacement: 0, instruction });
    }
    let probes_length = encoder.finish();
    [
        preamble::encode(preamble::OPEN).to_vec(),
        encoded(&TraceBegin {
            functions: 2,
            probes: 4,
            flags: 0,
            max_cost_permille: 0,
            slow_ns: 0,
        }),
        encoded(&TraceFunctions {
            trace: 1,
            first: 0,
            count: 2,
            payload: &functions[..functions_length],
        }),
        encoded(&TraceProbes { trace: 1, first: 0, count: 4, payload: &probes[..probes_length] }),
        encoded(&TraceArm { trace: 1 }),
    ]
    .concat()
}

/// A compiled guest.
struct Program {
    folder: tempfile::TempDir,
    name: String,
}

impl Program {
    /// Compiles `name` with the header and the library in `archive`.
    fn compile(name: &str, archive: &Path, flags: &[&str]) -> Self {
        let program = Self { folder: tempfile::tempdir().unwrap(), name: name.to_owned() };
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
        let messages = program.folder.path().join("client.c");
        fs::write(&messages, client()).unwrap();
        let output = build::gcc()
            .args(["-std=c99", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pedantic"])
            .arg("-pthread")
            .args(flags)
            .arg("-I")
            .arg(archive)
            .arg(sources.join(format!("{name}.c")))
            .args([&messages, &archive.join("libunikprof.a")])
            .arg("-o")
            .arg(program.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join(&self.name)
    }
}

/// Executes a guest, whose checks must pass. Returns what it printed.
fn execute(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let [said, failed] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    println!("{said}");
    assert!(output.status.success(), "{command:?}: {}: {failed}", output.status);
    assert!(said.ends_with("all as it should be\n"), "{command:?}: {said}");
    said.into_owned()
}

/// Compiles a guest and executes it. Returns what it printed.
fn run(name: &str, archive: &Path, flags: &[&str]) -> String {
    let program = Program::compile(name, archive, flags);
    execute(&mut build::execute(&program.path()))
}

/// A wrong call must not crash the guest.
#[test]
fn every_misuse_is_an_error_with_a_text() {
    run("misuse", build::streams(), &[]);
}

/// Processors as the guest sees them: the name, the command that executes it there, and what the C
/// library's `memcpy` changes there of [`STATE`]. The settings are glibc's.
const PROCESSORS: [(&str, &[&str], u32); 4] = [
    ("AVX-512", &["env", "-u", "GLIBC_TUNABLES"], ZMM_16_TO_31),
    ("AVX2", &["env", "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX512F,-AVX512VL"], SSE | AVX),
    (
        "SSE2",
        &["env", "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX_Fast_Unaligned_Load"],
        SSE,
    ),
    ("Nehalem", &["qemu-x86_64", "-cpu", "Nehalem"], SSE),
];

/// Components of the state, as in XCR0.
const SSE: u32 = 1 << 1;
const AVX: u32 = 1 << 2;
const ZMM_16_TO_31: u32 = 1 << 7;
const STATE: u32 = SSE | AVX | ZMM_16_TO_31;

/// On every processor, and however the C library's functions copy there.
#[test]
fn upcalls_come_on_any_stack_and_calls_take_as_much_as_they_say() {
    let wrap = "-Wl,--wrap=memcpy,--wrap=memmove,--wrap=memset,--wrap=memcmp";
    let programs = [build::streams(), build::keyed(), build::recorder()]
        .map(|archive| Program::compile("any_stack", archive, &["-mgeneral-regs-only", wrap]));
    for (processor, words, expected) in PROCESSORS {
        if Command::new(words[0]).arg("--version").output().is_err() {
            say_missing(processor, &format!("there is no `{}`", words[0]));
            continue;
        }
        for program in &programs {
            let said = execute(Command::new(words[0]).args(&words[1..]).arg(program.path()));
            let changed = said.lines().find_map(|line| line.strip_prefix("memcpy changes "));
            let changed = u32::from_str_radix(changed.unwrap(), 16).unwrap() & STATE;
            if changed != expected {
                say_missing(processor, &format!("memcpy changes {changed:#x}, not {expected:#x}"));
            }
        }
    }
}

/// Says that a guest was not executed as on this processor.
fn say_missing(processor: &str, reason: &str) {
    // Not `eprintln!`: the harness hides what a passing test prints.
    let _ = writeln!(std::io::stderr(), "SKIPPED any_stack on {processor}: {reason}");
}

/// A guest whose keys cannot be used must not serve everybody.
#[test]
fn a_guest_with_keys_asks_for_them() {
    run("keyed", build::keyed(), &[]);
}

#[test]
fn frames_are_taken_and_given() {
    run("frames", build::frames(), &[]);
}

/// The guest gives wrong data, above all about its stacks, which the agent must not trust. Every
/// effect is counted: nothing is lost without a trace.
#[test]
fn every_lie_is_an_error_or_a_counted_loss() {
    let said = run("lies", build::streams(), &[]);
    let mut before = Counters::default();
    let mut lies = 0;
    for line in said.lines().filter(|line| line.contains(';')) {
        let [lie, expected, answer] = line.split("; ").collect::<Vec<_>>().try_into().unwrap();
        let mut numbers = expected.split(' ').map(|text| text.parse::<u64>().unwrap());
        let [recorded, broken, masked] = [(); 3].map(|()| numbers.next().unwrap());
        let now = counters(answer);
        assert!(now.add_up(), "{lie}: {now:?}");
        let grown = [
            now.recorded - before.recorded,
            now.broken - before.broken,
            now.masked - before.masked,
            now.ticks - before.ticks,
        ];
        let expected = [recorded, broken, masked, recorded + masked];
        assert_eq!(grown, expected, "{lie}: recorded, broken, masked, ticks: {now:?}");
        before = now;
        lies += 1;
    }
    assert!(lies > 15, "{said}");
}

/// The counters in an agent's hexadecimal answer to a [`Check`].
fn counters(answer: &str) -> Counters {
    let frames = frames(&bytes_of(answer));
    let status = frames.iter().find(|frame| frame.kind == RecordingStatus::TYPE);
    let status = status.unwrap_or_else(|| panic!("no recording in {answer}"));
    status.decode::<RecordingStatus<'_>>().unwrap().counters
}

fn bytes_of(digits: &str) -> Vec<u8> {
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect()
}

/// Allocations are reported in every context, and the stack of a sample begins at the function that
/// called.
#[test]
fn allocations_are_reported_with_their_callers() {
    for vcpus in [1, 2] {
        allocations_are_reported(vcpus);
    }
}

fn allocations_are_reported(vcpus: u64) {
    let define = format!("-DVCPUS={vcpus}");
    let said = run("heap", build::heap(), &["-fno-omit-frame-pointer", &define]);
    let value = |name: &str| {
        let value = said.lines().find_map(|line| line.strip_prefix(name));
        value.unwrap_or_else(|| panic!("no {name} in {said}"))
    };
    let site: u32 = value("site; ").parse().unwrap();
    let (mut ticks, mut allocated, mut held, mut large, mut here) = (0, 0, 0, 0, 0);
    let fetched = said.lines().filter_map(|line| line.strip_prefix("fetched; "));
    for answer in fetched {
        let mut leaves = std::collections::HashMap::new();
        let mut samples = Vec::new();
        for frame in &frames(&bytes_of(answer)) {
            if let Ok(run) = frame.decode::<Nodes<'_>>() {
                nodes::decode(run.first, run.count, run.payload, |number, node| {
                    leaves.insert(number, node.frames[0]);
                })
                .unwrap();
            } else if let Ok(run) = frame.decode::<LiveSamples<'_>>() {
                let decoded = live::decode(run.base_ns, run.count, run.payload, |sample| {
                    samples.push(sample);
                });
                decoded.unwrap();
            } else if let Ok(vcpu) = frame.decode::<VcpuEpoch>() {
                let counters = vcpu.end.counters;
                assert!(counters.add_up(), "{counters:?}");
                assert_eq!((counters.broken, counters.lost), (0, 0), "{counters:?}");
                ticks += counters.ticks;
                allocated += vcpu.end.allocated_bytes;
            }
        }
        held += samples.len();
        large += samples.iter().filter(|it| it.size == 1 << 20).count();
        let is_here = |sample: &&live::Sample| {
            let offset = leaves[&sample.node] - frame_code::FIRST_ADDRESS;
            (site..site + 100).contains(&offset)
        };
        here += samples.iter().filter(is_here).count();
    }
    // The one inside the upcall finds the slot free: its clock is read before the slot is taken.
    assert_eq!(ticks, 1005);
    let before = vcpus * 129 * 64;
    assert_eq!(allocated, before + 1000 * 600 + (5 << 20));
    assert_eq!(held, 501);
    assert_eq!(large, 2, "in place, and drawn by another sampler");
    assert_eq!(here, 499);
}

/// On aarch64 the caller of a leaf function is in the link register, which the guest must give. On
/// x86-64 it is never read.
#[test]
fn callers_of_leaf_functions_are_in_the_link_register() {
    let said = run("link_register", build::streams(), &[]);
    let answer = said.lines().find_map(|line| line.strip_prefix("fetched; "));
    let mut stacks = Vec::new();
    for frame in &frames(&bytes_of(answer.unwrap())) {
        if let Ok(run) = frame.decode::<Nodes<'_>>() {
            nodes::decode(run.first, run.count, run.payload, |_, node| {
                let offsets =
                    node.frames.iter().map(|code| code.wrapping_sub(frame_code::FIRST_ADDRESS));
                stacks.push(offsets.collect::<Vec<u32>>());
            })
            .unwrap();
        }
    }
    let [stack] = &stacks[..] else {
        panic!("{stacks:x?}");
    };
    // The leaf is in the second mapping.
    let leaf: &[u32] = if build::is_aarch64() { &[0x1004, 0x80] } else { &[0x1004] };
    assert_eq!(*stack, [leaf, &[0x100, 0x200, 0x300, 0x400]].concat());
}

/// A guest in C handles the breakpoints of a trace, also of a function whose stack moves; its code
/// is as before when the agent has stopped.
#[test]
fn functions_are_traced_by_breakpoints() {
    let said = run("trace", build::tracer(), &[]);
    let answers = said.lines().filter_map(|line| line.strip_prefix("answer; "));
    let answers: Vec<Vec<u8>> = answers.map(bytes_of).collect();
    let begun = frames(&answers[0][preamble::LENGTH..]);
    let ready: TraceReady = begun[0].decode().unwrap();
    assert!(ready.probe_cycles > 0, "{ready:?}");
    let armed: TraceArmed = begun[1].decode().unwrap();
    assert_eq!((armed.probes, armed.refused), (4, 0));
    let fetched = frames(&answers[1]);
    let state: TraceState = fetched[0].decode().unwrap();
    assert_eq!((state.traps, state.unplaced, state.mismatched), (2020, 0, 0));
    let totals: TraceTotals<'_> = fetched[1].decode().unwrap();
    let mut calls = Vec::new();
    decode_totals(totals.count, totals.payload, |totals, _| {
        calls.push((totals.calls, totals.orphans, totals.unwound));
    })
    .unwrap();
    assert_eq!(calls, [(1000, 0, 0), (10, 0, 0)]);
}

/// Events must be safe in every context of a guest, and a crash dump must contain those before the
/// panic.
#[test]
fn events_are_kept_and_what_a_panic_leaves_holds_them() {
    let said = run("events", build::recorder(), &[]);
    let bytes = |name: &str| {
        let digits = said.lines().find_map(|line| line.strip_prefix(name));
        bytes_of(digits.unwrap())
    };
    let (dump, block) = (bytes("dump; "), bytes("block; "));
    let lines = said.lines().filter_map(|line| line.strip_prefix("line "));
    let letters = lines.map(|line| line.strip_prefix(console::MARK).unwrap().as_bytes());
    let pieces: BTreeMap<u32, [u8; console::BYTES]> = letters
        .map(|letters| console::Piece::decode(letters).unwrap())
        .map(|piece| (piece.number, piece.bytes))
        .collect();
    let reassembled: Vec<u8> = pieces.into_values().flatten().collect();
    assert_eq!(reassembled[..block.len()], block, "the console's lines carry all of the block");
    let before = left(&dump);
    let after = left(BlockHead::file(&block).unwrap());

    let [(_, _, span), .., ended] = before.events[..] else {
        panic!("{:?}", before.events);
    };
    let upcall = before.events[2].2;
    assert_ne!(span, upcall);
    let expected = [
        (kind::SPAN_BEGIN, 0, span),
        (kind::COUNTER, 1, -7_i64 as u64),
        (kind::SPAN_BEGIN, 2, upcall),
        (kind::MARK, 2, 2),
        (kind::SPAN_END, 2, upcall),
        (kind::MARK, 0, u64::MAX),
        (kind::SPAN_END, 0, span),
    ];
    assert_eq!(before.events, expected);
    assert_eq!(before.names, ["request", "queue depth", "upcall"]);
    assert_eq!((before.samples, ended), (5, (kind::SPAN_END, 0, span)));
    // The panic came before this one was written.
    assert_eq!(after.events[..7], expected);
    assert_eq!(after.events[7..], [(kind::MARK, 0, 4)]);
    // One recording counts running time, the other blocked time.
    assert_eq!(before.recorded, [5, 0]);
    assert_eq!(after.recorded, [5, 0]);
}

/// Contents of a crash dump.
#[derive(Default)]
struct Left {
    names: Vec<String>,
    /// Kind, name and value.
    events: Vec<(u8, u64, u64)>,
    samples: usize,
    /// Recorded samples of each recording.
    recorded: Vec<u64>,
}

fn left(bytes: &[u8]) -> Left {
    assert_eq!(bytes[..file::MAGIC.len()], file::MAGIC);
    let mut left = Left::default();
    let mut is_complete = false;
    // The newest come first, some of them again.
    let mut records = BTreeMap::new();
    for frame in frames(&bytes[file::PREAMBLE..]) {
        if let Ok(EventName { id, name }) = frame.decode() {
            assert_eq!(id as usize, left.names.len());
            left.names.push(name.to_owned());
        } else if let Ok(run) = frame.decode::<RingRun<'_>>() {
            let mut positions = run.first..;
            ring::decode(run.base_ns, run.count, run.payload, |record| {
                records.insert(positions.next(), record);
            })
            .unwrap();
        } else if let Ok(epoch) = frame.decode::<VcpuEpoch>() {
            left.recorded.push(epoch.end.counters.recorded);
        } else if let Ok(end) = frame.decode::<FileEnd<'_>>() {
            is_complete = end.complete;
        }
    }
    assert!(is_complete);
    for record in records.into_values() {
        if record.kind >= kind::MARK {
            left.events.push((record.kind, record.first, record.second));
        }
        left.samples += usize::from(record.kind == kind::SAMPLE);
    }
    left
}

/// A client that waits for its part of the CPU share must get its answers although the guest
/// sleeps, and bytes that the agent does not accept yet must not wake the guest.
#[test]
fn a_guest_that_sleeps_between_polls_forgets_no_answer() {
    let said = run("waiting", build::streams(), &[]);
    let digits = said.lines().find_map(|line| line.strip_prefix("answers; "));
    let bytes = bytes_of(digits.unwrap());
    let frames = frames(&bytes[preamble::LENGTH..]);
    let kinds: Vec<u16> = frames.iter().map(|frame| frame.kind).collect();
    let [started, checks @ ..] = &kinds[..] else {
        panic!("nothing is answered");
    };
    assert_eq!(*started, Started::TYPE);
    let expected = [Status::TYPE, RecordingStatus::TYPE].repeat(200);
    assert_eq!(checks, expected);
}

/// Two threads in one call would write to the same session.
#[test]
fn threads_that_poll_at_once_beside_upcalls_harm_nothing() {
    for archive in [build::streams(), build::recorder()] {
        run("threads", archive, &["-D_DEFAULT_SOURCE"]);
    }
}

/// Guards against a clock that was set back an hour: handshakes, silent clients, deadlines and all
/// else that waits for a time would stall as long.
#[test]
fn a_clock_that_is_set_back_stalls_nothing() {
    run("clock_back", build::streams(), &[]);
}

/// Guards against waits in the statement behind the call that blocks: a return address is not the
/// address of the code that waits.
#[test]
fn a_wait_without_registers_is_in_the_line_of_its_call() {
    let said = run("block_line", build::streams(), &["-fno-omit-frame-pointer"]);
    let value = |name: &str| said.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let behind: u32 = value("behind; ").parse().unwrap();
    let mut leaves = Vec::new();
    for frame in &frames(&bytes_of(value("fetched; "))) {
        if let Ok(run) = frame.decode::<Nodes<'_>>() {
            let add = |_, node: nodes::Node<'_>| leaves.push(node.frames[0]);
            nodes::decode(run.first, run.count, run.payload, add).unwrap();
        }
    }
    let call = if build::is_aarch64() { 4 } else { 1 };
    assert_eq!(leaves, [frame_code::FIRST_ADDRESS + behind - call]);
}

/// Times, stacks and the build-id, which every guest on Xen would otherwise have to implement.
#[test]
fn a_guest_on_xen_is_asked_by_the_header_for_it() {
    let c = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    let include = format!("-I{}", c.display());
    run("xen_guest", build::streams(), &[&include]);
}

/// A byte may be lost or sent twice, or a connection may end while lwIP works on it.
#[test]
fn clients_are_served_over_lwip() {
    let c = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    let include = format!("-I{}", c.display());
    run("lwip_guest", build::streams(), &[&include, "-fsanitize=address,undefined"]);
}

/// Ranges that overlap, in a guest without its own `memmove`.
#[test]
fn a_guest_without_memmove_gets_one() {
    run("memmove", build::streams(), &["-fno-builtin", "-static"]);
}
