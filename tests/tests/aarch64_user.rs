//! The tests of the protocol and of the agent's portable parts, compiled for aarch64 and executed by QEMU's emulation of
//! user programs.
#![allow(clippy::unwrap_used)]

use std::env;
use std::path::Path;
use std::process::Command;

use unikprof_tests::lab::aarch64_compiler;
use unikprof_tests::requirement::skip;

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Compiles and links C for aarch64, and has its C library.
const LINKER: &str = "aarch64-linux-gnu-gcc";
const RUNNER: &str = "qemu-aarch64";

/// The agent's tests that take seconds in emulation. `UNIKPROF_LONG` executes all, for minutes. Those of the feature `xen` are
/// not among them: they arm the virtual timer, which a user program cannot.
const TESTS: [&str; 10] = [
    "blocked_time",
    "boot",
    "caller_table",
    "crash",
    "leases",
    "no_allocation",
    "recordings",
    "rings",
    "service",
    "snapshot",
];

fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

/// Executes tests, and returns how many of them passed.
fn passed(words: &[&str]) -> usize {
    let compiler = aarch64_compiler().unwrap();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("aarch64-user");
    let variable = |name| {
        format!(
            "CARGO_TARGET_{}_{name}",
            TARGET.to_uppercase().replace('-', "_")
        )
    };
    let output = Command::new(env!("CARGO"))
        .args([
            "test",
            "--quiet",
            "--locked",
            "--no-fail-fast",
            "--target",
            TARGET,
        ])
        .args(words)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .env_remove("RUSTFLAGS")
        .env("RUSTC", compiler)
        .env("CARGO_TARGET_DIR", target)
        .env(variable("LINKER"), LINKER)
        .env(
            variable("RUNNER"),
            format!("{RUNNER} -L /usr/aarch64-linux-gnu"),
        )
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{errors}");
    let results = said
        .lines()
        .filter_map(|line| line.strip_prefix("test result: ok. "));
    let counts = results.filter_map(|result| result.split(' ').next()?.parse::<usize>().ok());
    counts.sum()
}

#[test]
fn the_portable_tests_pass_on_aarch64() {
    if !has(LINKER) || !has(RUNNER) {
        return skip(format!(
            "{LINKER} and {RUNNER} are needed: install gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user"
        ));
    }
    let proto = passed(&["--package", "unikprof-proto", "--lib", "--test", "golden"]);
    let agent = ["--package", "unikprof-agent", "--features", "heap", "--lib"];
    let agent = if env::var_os("UNIKPROF_LONG").is_some() {
        passed(&[&agent[..4], &["--tests"]].concat())
    } else {
        let tests = TESTS.iter().flat_map(|test| ["--test", test]);
        passed(&agent.into_iter().chain(tests).collect::<Vec<_>>())
    };
    assert!(
        proto > 40 && agent > 200,
        "{proto} and {agent} tests were executed"
    );
}
