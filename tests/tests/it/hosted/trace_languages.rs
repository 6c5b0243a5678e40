//! `trace` of programs in C++ and OCaml, built without any flag for it and linked with a hosted
//! agent.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::harness::Guest;
use crate::hosted::c_guest::run;
use crate::hosted::trace::{assert_sums, calls_in, function, traced};

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/linked")
}

fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("linked");
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// The archive with the agent.
fn archive() -> &'static Path {
    static ARCHIVE: OnceLock<PathBuf> = OnceLock::new();
    ARCHIVE.get_or_init(|| {
        let target = folder().join("target");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(sources()).args(["build", "--quiet", "--target-dir"]).arg(&target);
        run(&mut cargo);
        target.join("debug/libunikprof_linked_guest.a")
    })
}

/// The options that link the archive, of a program in C.
const LINK: [&str; 2] = ["-Wl,--build-id", "-lpthread"];

/// Whether a compiler is there; says so if not.
fn has(compiler: &str, test: &str) -> bool {
    if Command::new(compiler).arg("-v").output().is_ok() {
        return true;
    }
    const REQUIRE: &str = "UNIKPROF_REQUIRE_ALL";
    let is_required = std::env::var_os(REQUIRE).is_some_and(|value| value == "1");
    assert!(!is_required, "{REQUIRE} is set, but there is no `{compiler}`");
    // The line is no matter of the test's own output, which may be captured.
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: there is no `{compiler}`");
    false
}

/// Traces a program from before its `main` to its end, and compares each function's calls with its
/// own count.
fn calls_are_exact(program: &Path, pattern: &str, functions: &[(&str, &str)]) -> serde_json::Value {
    let mut guest = Guest::spawn(&mut Command::new(program));
    let client = guest.client().with_image(program);
    let image = program.to_str().unwrap();
    let words = ["trace", pattern, "--max-cost", "0", "--image", image, "-o", "run.unikprof"];
    let (counted, _) = traced(&mut guest, &client, &words);
    let trace = client.run(&["report", "run.unikprof", "--json"]).expect_json();
    assert_sums(&trace);
    for (name, count) in functions {
        let found = function(&trace, name);
        assert_eq!(found["calls"], counted[*count], "{name}: {found:#} {}", trace["warnings"]);
        assert_eq!(found["orphans"], 0, "{name}: {found:#}");
        assert_eq!(found["open"], 0, "{name}: {found:#}");
        assert_eq!(calls_in(&trace["calls"], name), counted[*count], "{name} one by one");
    }
    assert_eq!(trace["lost_records"], 0);
    assert!(guest.stop().success());
    trace
}

/// Several threads, exceptions through frames with destructors, tail calls, a switch and virtual
/// calls.
#[test]
#[ignore = "full: records a guest"]
fn calls_in_a_cpp_program_with_threads_and_exceptions_are_exact() {
    if !has("g++", "calls_in_a_cpp_program_with_threads_and_exceptions_are_exact") {
        return;
    }
    let program = folder().join("cpp");
    let mut compile = Command::new("g++");
    compile
        .args(["-O2", "-g"])
        .arg(sources().join("load.cpp"))
        .arg(archive())
        .args(LINK)
        .args(["-ldl", "-lm", "-o"])
        .arg(&program);
    run(&mut compile);
    let trace = calls_are_exact(
        &program,
        "load::*",
        &[
            ("load::fibonacci(unsigned long)", "fibonacci"),
            ("load::raises(unsigned long)", "raises"),
            ("load::catches(unsigned long)", "catches"),
            ("load::leaf(unsigned long)", "leaf"),
            ("load::tail(unsigned long)", "tail"),
            ("load::jumps(unsigned long)", "jumps"),
        ],
    );
    let raises = function(&trace, "load::raises(unsigned long)");
    assert_eq!(raises["unwound"], raises["calls"], "each ends by an exception");
    let catches = function(&trace, "load::catches(unsigned long)");
    assert_eq!(catches["returned"], catches["calls"]);
    let callers = catches["callers"].as_array().unwrap();
    // `jumps` leaves by a jump, so the return address is its caller's.
    let is_work = |it: &serde_json::Value| it["function"].as_str().unwrap().contains("work");
    assert!(!callers.is_empty() && callers.iter().all(is_work), "{callers:?}");
}

/// Garbage collections move what the frames refer to, and both kinds of exceptions end calls.
#[test]
#[ignore = "full: records a guest"]
fn calls_in_an_ocaml_program_are_exact() {
    if !has("ocamlopt", "calls_in_an_ocaml_program_are_exact") {
        return;
    }
    let folder = folder();
    // `ocamlopt` writes beside the source.
    fs::copy(sources().join("load.ml"), folder.join("load.ml")).unwrap();
    let program = folder.join("ocaml");
    let mut compile = Command::new("ocamlopt");
    compile.current_dir(&folder).args(["-g", "-o"]).arg(&program).arg("load.ml");
    for option in LINK {
        compile.args(["-ccopt", option]);
    }
    compile.args(["-cclib", archive().to_str().unwrap(), "-cclib", "-lpthread"]);
    run(&mut compile);
    calls_are_exact(
        &program,
        "/^Load\\./",
        &[
            ("Load.fibonacci", "fibonacci"),
            ("Load.raises", "raises"),
            ("Load.raises_without_trace", "raises_without_trace"),
            ("Load.catches", "catches"),
            ("Load.builds", "builds"),
            ("Load.tail", "tail"),
            ("Load.leaf", "leaf"),
        ],
    );
}
