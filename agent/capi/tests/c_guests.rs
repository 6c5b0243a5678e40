//! Guests in C, compiled with the header and linked with the archive: what they check is in `c/`.

#![allow(clippy::unwrap_used)]

mod build;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use unikprof_proto::frame::{self, Message};
use unikprof_proto::message::{Start, Stop};
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
    };
    let mut source = "extern const unsigned char client_start[], client_stop[];\n\
                      extern const unsigned client_start_length, client_stop_length;\n"
        .to_owned();
    let first = [&preamble::encode(preamble::OPEN)[..], &encoded(&start)].concat();
    for (name, bytes) in [("start", first), ("stop", encoded(&Stop { recording: 0 }))] {
        let length = bytes.len();
        write!(source, "const unsigned char client_{name}[] = {{").unwrap();
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

/// Compiles `name` with the header in `header`, links it with the archive in `archive`, and runs it.
fn run(name: &str, header: &Path, archive: &Path, flags: &[&str]) {
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

#[test]
fn frames_are_taken_and_given() {
    run("frames", build::frames(), build::frames(), &[]);
}
