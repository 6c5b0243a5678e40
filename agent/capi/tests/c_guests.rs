//! Guests in C, compiled with the header and linked with the archive: what they check is in `c/`.

#![allow(clippy::unwrap_used)]

mod build;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use unikprof_proto::frame::{self, Message};
use unikprof_proto::message::{Check, Counters, RecordingStatus, Start, Stop};
use unikprof_proto::{code, preamble};

/// What a client sends, as C source.
fn client() -> String {
    let start = Start {
        name: "from C",
        period_ns: 1_000_000,
        mode: code::mode::CPU,
        depth: 64,
        duration_ns: 0,
        delay_ns: 0,
        flags: 0,
        caller_table: None,
        max_age_ns: 0,
        max_bytes: 0,
    };
    let mut source = String::new();
    let first = [&preamble::encode(preamble::OPEN)[..], &encoded(&start)].concat();
    for (name, bytes) in [
        ("start", first),
        ("stop", encoded(&Stop { recording: 0 })),
        ("check", encoded(&Check {})),
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
        writeln!(
            source,
            "}};\nconst unsigned client_{name}_length = {length};"
        )
        .unwrap();
    }
    source
}

fn encoded<'f, M: Message<'f>>(message: &M) -> Vec<u8> {
    let mut buffer = [0; 512];
    let length = frame::encode(message, &mut buffer).unwrap();
    buffer[..length].to_vec()
}

/// Compiles `name` with the header in `header`, links it with the archive in `archive`, and runs it; answers
/// what it printed.
fn run(name: &str, header: &Path, archive: &Path, flags: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    let (program, messages) = (folder.path().join(name), folder.path().join("client.c"));
    fs::write(&messages, client()).unwrap();
    let output = Command::new("gcc")
        .args([
            "-std=c99",
            "-O2",
            "-g",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pedantic",
            "-pthread",
        ])
        .args(flags)
        .arg("-I")
        .arg(header)
        .arg(sources.join(format!("{name}.c")))
        .args([&messages, &archive.join("libunikprof.a")])
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let output = Command::new(&program).output().unwrap();
    let [said, failed] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    println!("{said}");
    assert!(output.status.success(), "{}: {failed}", output.status);
    assert!(said.ends_with("all as it should be\n"), "{said}");
    said.into_owned()
}

/// A wrong call that crashed would take the guest with it.
#[test]
fn every_misuse_is_an_error_with_a_text() {
    run("misuse", build::streams(), build::streams(), &[]);
}

/// A library that read the fields an older caller does not have would read whatever lies behind.
#[test]
fn a_guest_compiled_with_the_first_header_goes_on_working() {
    let older = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/older");
    run(
        "older_guest",
        &older,
        build::streams(),
        &["-D_DEFAULT_SOURCE"],
    );
}

#[test]
fn upcalls_come_on_any_stack_and_calls_take_as_much_as_they_say() {
    run(
        "any_stack",
        build::streams(),
        build::streams(),
        &["-mgeneral-regs-only"],
    );
}

/// A key that cannot be used must not end as a guest that serves everybody.
#[test]
fn a_guest_with_keys_asks_for_them() {
    run("keyed", build::keyed(), build::keyed(), &[]);
}

#[test]
fn frames_are_taken_and_given() {
    run("frames", build::frames(), build::frames(), &[]);
}

/// A guest that lies, of its stacks above all, and memory that the agent then believed would be read. What comes of
/// each lie is counted: nothing is lost without a trace.
#[test]
fn every_lie_is_an_error_or_a_counted_loss() {
    let said = run("lies", build::streams(), build::streams(), &[]);
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
        assert_eq!(
            grown, expected,
            "{lie}: recorded, broken, masked, ticks: {now:?}"
        );
        before = now;
        lies += 1;
    }
    assert!(lies > 15, "{said}");
}

/// The counters in an agent's answer to a [`Check`], as hexadecimal.
fn counters(answer: &str) -> Counters {
    let bytes: Vec<u8> = (0..answer.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&answer[at..at + 2], 16).unwrap())
        .collect();
    let mut rest = &bytes[..];
    while let Some(frame) = frame::split(rest).unwrap() {
        if let Ok(status) = frame::decode::<RecordingStatus<'_>>(&frame) {
            return status.counters;
        }
        rest = &rest[frame.length()..];
    }
    panic!("no recording in {answer}");
}

/// Two threads in one call would write the same session; an agent that is stopped while an upcall is inside would
/// leave it writing to memory that is the guest's again.
#[test]
fn threads_that_poll_at_once_and_a_stop_in_between_harm_nothing() {
    run(
        "threads",
        build::streams(),
        build::streams(),
        &["-D_DEFAULT_SOURCE"],
    );
}

/// Times, stacks and the build-id that every guest on Xen would have to get right on its own.
#[test]
fn a_guest_on_xen_is_asked_by_the_header_for_it() {
    let c = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    let include = format!("-I{}", c.display());
    run("xen_guest", build::streams(), build::streams(), &[&include]);
}

/// A byte that is lost or sent twice, or a connection that ends while lwIP works on it.
#[test]
fn clients_are_served_over_lwip() {
    let c = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    let include = format!("-I{}", c.display());
    run(
        "lwip_guest",
        build::streams(),
        build::streams(),
        &[&include, "-fsanitize=address,undefined"],
    );
}

/// Ranges that overlap, in a guest without a `memmove` of its own.
#[test]
fn a_guest_without_memmove_gets_one() {
    run(
        "memmove",
        build::streams(),
        build::streams(),
        &["-fno-builtin", "-static"],
    );
}
