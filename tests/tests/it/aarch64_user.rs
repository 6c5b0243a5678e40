//! The tests of the protocol, of `xen-sys-lite` beside its fake of Xen, of the agent's portable
//! parts and of the archive for C, compiled for aarch64 and executed by QEMU's emulation of user
//! programs.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use unikprof_tests::lab::{LabError, aarch64_compiler};
use unikprof_tests::requirement::skip;

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Compiles and links C for aarch64, and has its C library.
const LINKER: &str = "aarch64-linux-gnu-gcc";
const RUNNER: &str = "qemu-aarch64";

/// The modules of the agent's program `it` whose tests take seconds in emulation. `UNIKPROF_LONG`
/// executes all, for minutes. Those of the feature `xen` are not among them: they arm the virtual
/// timer, which a user program cannot.
const MODULES: [&str; 8] = [
    "blocked_time::",
    "boot::",
    "caller_table::",
    "leases::",
    "recordings::",
    "rings::",
    "service::",
    "snapshot::",
];

/// Tests of the archive that are about x86-64: code on a stack that is not aligned, the red zone,
/// single steps by a flag, breakpoints, the drop-in; and one that needs the sanitizers' libraries.
const X86_64: [&str; 9] = [
    "the_dropin_has",
    "the_search_finds_a_red_zone",
    "upcalls_come_on_any_stack",
    "a_stop_that_is_busy",
    "functions_are_traced",
    "clients_are_served_over_lwip",
    "every_x86_64_processor",
    "the_search_finds_instructions_of_x86_64",
    "ticks_of_the_dropin",
];

fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

/// The Rust compiler for aarch64; `None`, and the case is skipped, if something is missing.
fn compiler() -> Option<PathBuf> {
    if !has(LINKER) || !has(RUNNER) {
        skip(format!(
            "{LINKER} and {RUNNER} are needed: install gcc-aarch64-linux-gnu, \
             libc6-dev-arm64-cross and qemu-user"
        ));
        return None;
    }
    match aarch64_compiler() {
        Ok(compiler) => Some(compiler),
        Err(LabError::Unavailable(reason)) => {
            skip(reason);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The command that executes tests, of which all must pass.
fn cargo_test() -> Command {
    let mut command = Command::new(env!("CARGO"));
    command
        .args(["test", "--quiet", "--locked", "--no-fail-fast"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .env_remove("RUSTFLAGS");
    command
}

/// Executes tests, and returns how many of them passed.
fn passed(command: &mut Command) -> usize {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{errors}");
    let results = said.lines().filter_map(|line| line.strip_prefix("test result: ok. "));
    let counts = results.filter_map(|result| result.split(' ').next()?.parse::<usize>().ok());
    counts.sum()
}

/// Executes tests that are compiled for aarch64 themselves.
fn passed_on_aarch64(compiler: &Path, words: &[&str]) -> usize {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("aarch64-user");
    let variable =
        |name| format!("CARGO_TARGET_{}_{name}", TARGET.to_uppercase().replace('-', "_"));
    let runner = format!("{RUNNER} -L /usr/aarch64-linux-gnu");
    passed(
        cargo_test()
            .args(["--target", TARGET])
            .args(words)
            .env("RUSTC", compiler)
            .env("CARGO_TARGET_DIR", target)
            .env(variable("LINKER"), LINKER)
            .env(variable("RUNNER"), runner),
    )
}

#[test]
#[ignore = "full: compiles for aarch64"]
fn the_portable_tests_pass_on_aarch64() {
    let Some(compiler) = compiler() else {
        return;
    };
    let packages = ["unikprof-proto", "xen-sys-lite", "unikprof-agent"];
    let packages = packages.iter().flat_map(|package| ["--package", package]);
    let mut words: Vec<&str> = packages.collect();
    words.extend(["--features", "unikprof-agent/heap"]);
    let passed = |more: &[&str]| passed_on_aarch64(&compiler, &[&words, more].concat());
    let passed = match env::var_os("UNIKPROF_LONG") {
        Some(_) => passed(&["--lib", "--tests"]),
        None => {
            passed(&["--lib", "--test", "golden", "--test", "no_allocation"])
                + passed(&[&["--test", "it", "--"], &MODULES[..]].concat())
        }
    };
    assert!(passed > 340, "{passed} tests were executed");
}

/// The archive for aarch64 has neither vector instructions nor symbols of its own to ask for, and
/// guests in C run with it. What builds and examines it runs on the host.
#[test]
#[ignore = "full: compiles for aarch64"]
fn the_archive_for_aarch64_is_fit_for_kernels() {
    let Some(compiler) = compiler() else {
        return;
    };
    let mut command = cargo_test();
    command
        // With the features of a run over the workspace, which has compiled these tests.
        .args(["--workspace", "--test", "it", "--", "archive::", "c_guests::"])
        .args(X86_64.iter().flat_map(|test| ["--skip", test]))
        .env("UNIKPROF_AARCH64_RUSTC", compiler);
    let passed = passed(&mut command);
    assert!(passed > 18, "{passed} tests were executed");
}
