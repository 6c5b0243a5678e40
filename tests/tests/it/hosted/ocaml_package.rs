//! The OCaml package, built by dune: events from OCaml, and clients over the guest's own TCP in
//! Lwt.

use std::fs;
use std::io::Read as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use unikprof_tests::requirement::skip;

use crate::harness::time::{events, report};
use crate::harness::{Guest, wait_until};
use crate::hosted::c_guest::{archive, run};

/// UNIKPROF_SESSIONS of unikprof.h.
const SESSIONS: usize = 4;

/// The folder with the programs of tests/guests/ocaml-lwt; without dune the case is skipped.
fn build() -> Option<&'static Path> {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    if Command::new("dune").arg("--version").output().is_err() {
        skip("there is no `dune`");
        return None;
    }
    Some(FOLDER.get_or_init(build_workspace))
}

fn build_workspace() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let workspace = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ocaml-package");
    let _ = fs::remove_dir_all(&workspace);
    let package = tests.join("../agent/capi/ocaml");
    for folder in ["", "src", "lwt"] {
        copy_files(&package.join(folder), &workspace.join("unikprof").join(folder));
    }
    let guest = workspace.join("guest");
    copy_files(&tests.join("guests/ocaml-lwt"), &guest);
    for name in ["profiler.c", "profiler.h", "coroutine.c", "coroutine.h"] {
        fs::copy(tests.join("guests/c-hosted").join(name), guest.join(name)).unwrap();
    }
    fs::write(workspace.join("dune-project"), "(lang dune 2.7)\n").unwrap();
    let mut dune = Command::new("dune");
    dune.args(["build", "--root", ".", "guest/guest.exe", "guest/without.exe"]);
    run(dune.current_dir(&workspace).env("UNIKPROF", archive()));
    workspace.join("_build/default/guest")
}

fn copy_files(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

/// The declarations in the stubs are those of the header.
#[test]
#[ignore = "full: records an OCaml guest"]
fn the_stubs_agree_with_the_header() {
    if build().is_none() {
        return;
    }
    let headers = Command::new("ocamlopt").arg("-where").output().unwrap();
    let headers = String::from_utf8(headers.stdout).unwrap();
    let stubs =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../agent/capi/ocaml/src/unikprof_stubs.c");
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-include"]);
    gcc.arg(archive().join("unikprof.h"));
    run(gcc.args(["-isystem", headers.trim()]).arg(stubs));
}

#[test]
#[ignore = "full: records an OCaml guest"]
fn without_the_profiler_the_calls_do_nothing() {
    let Some(folder) = build() else { return };
    let output = Command::new(folder.join("without.exe")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, b"ran\n");
}

#[test]
#[ignore = "full: records an OCaml guest"]
fn spans_marks_and_counters_come_from_ocaml() {
    let Some(folder) = build() else { return };
    let program = folder.join("guest.exe");
    let mut guest = Guest::spawn(&mut Command::new(&program));
    let client = guest.client().with_image(&program);
    client.record_samples(500, &[]);
    let whole = report(&client, "run.unikprof", &[]);
    let find = |kind: &str, name: &str| -> Value {
        let all = whole[kind].as_array().unwrap();
        let found = all.iter().find(|one| one["name"] == name);
        found.unwrap_or_else(|| panic!("no `{name}`: {all:?}")).clone()
    };
    for name in ["turn", "fails", "waits", "rejected"] {
        let span = find("spans", name);
        assert!(span["count"].as_u64() > Some(10), "{span}");
    }
    assert!(find("spans", "waits")["p50_ns"].as_u64() >= Some(1_000_000));
    let values = find("values", "below zero");
    assert!(values["max"].as_i64() < Some(0), "{values}");
    assert!(find("marks", "number")["count"].as_u64() > Some(10));
    assert!(whole["refused_names"].as_u64() >= Some(3), "{}", whole["refused_names"]);

    // What the guest itself calls is in the profile, inside of its span.
    let inside = report(&client, "run.unikprof", &["--in-span", "turn"]);
    let functions = inside["functions"].as_array().unwrap();
    let is_there =
        functions.iter().any(|one| one["name"].as_str().unwrap().ends_with("Guest.spin"));
    assert!(is_there, "{functions:#?}");

    // Again if the guest overwrote records while the client was kept from reading on.
    wait_until("numbers without a gap", || {
        let events = events(&client);
        let numbers = events.iter().filter(|one| one["kind"] == "mark" && one["name"] == "number");
        let numbers: Vec<u64> = numbers.map(|one| one["value"].as_u64().unwrap()).collect();
        let is_whole = numbers.windows(2).all(|pair| pair[1] == pair[0] + 1);
        (numbers.len() > 10 && is_whole).then_some(())
    });
    assert!(guest.stop().success());
}

/// OCaml's own values by the functions that make them: what is dropped, and what is kept, which the
/// guest counts.
#[test]
#[ignore = "full: records an OCaml guest"]
fn values_are_sampled_by_the_runtime() {
    let Some(folder) = build() else { return };
    let program = folder.join("guest.exe");
    let mut guest = Guest::spawn(&mut Command::new(&program));
    let client = guest.allocating_client().with_image(&program);
    let record = |mode: &str| {
        client.must(&["start", "--mode", mode, "--every", "32KiB", "--unwind", "table"]);
        client.wait_for_samples(600);
        client.must(&["stop", "-o", "run.unikprof"]);
        report(&client, "run.unikprof", &[])
    };
    let row = |report: &Value, name: &str| -> Value {
        let all = report["functions"].as_array().unwrap();
        let mut all = all.iter();
        let found = all.find(|one| one["name"].as_str().unwrap().ends_with(name));
        found.cloned().unwrap_or_default()
    };
    let made = record("alloc");
    let deviations = made["heap"]["deviations"].as_f64().unwrap();
    assert!(deviations < 5.0, "{}", made["heap"]);
    for name in ["Guest.drop", "Guest.keep"] {
        assert!(row(&made, name)["total_share"].as_f64() > Some(0.3), "{made:#}");
    }
    // What Gc.Memprof calls is left out.
    let cells = row(&made, "Guest.cells");
    assert!(cells["self_share"].as_f64() > Some(0.7), "{made:#}");
    let mean = cells["mean_size"].as_f64().unwrap();
    assert!((mean - 24.0).abs() < 0.1, "{mean}");

    // The guest's own count is told by the ring: again if that lost the beginning while the client
    // was kept from its end.
    let held = wait_until("a recording that the ring holds", || {
        let held = record("live");
        let mut events = events(&client).into_iter();
        let is_held = events.any(|event| event["kind"] == "recording_began");
        is_held.then_some(held)
    });
    let kept = row(&held, "Guest.keep")["total"].as_f64().unwrap();
    let counters = held["values"].as_array().unwrap();
    let counter = counters.iter().find(|one| one["name"] == "kept").unwrap();
    let truth = counter["last"].as_f64().unwrap() - counter["min"].as_f64().unwrap();
    // Of 300 samples the deviation is 6 %.
    assert!((kept / truth - 1.0).abs() < 0.35, "{kept} of {truth}: {held:#}");
    // Until the next collection it is there.
    let dropped = row(&held, "Guest.drop")["total"].as_f64().unwrap_or(0.0);
    assert!(dropped < 8e6, "{held:#}");
    assert!(guest.stop().success());
}

/// Every session has a client, one more is refused; when they leave, there is room again.
#[test]
#[ignore = "full: records an OCaml guest"]
fn clients_come_and_go() {
    let Some(folder) = build() else { return };
    let mut guest = Guest::spawn(&mut Command::new(folder.join("guest.exe")));
    let client = guest.client();
    client.must(&["start", "--name", "a"]);
    let all: Vec<TcpStream> =
        (0..SESSIONS).map(|_| TcpStream::connect(guest.address()).unwrap()).collect();
    let mut refusal = String::new();
    wait_until("a client is refused", || {
        let mut one_more = TcpStream::connect(guest.address()).unwrap();
        refusal.clear();
        one_more.read_to_string(&mut refusal).ok().filter(|length| *length > 0)
    });
    drop(all);
    client.wait_for_samples(100);
    client.must(&["stop", "--name", "a", "-o", "a.unikprof"]);
    assert!(guest.stop().success());
}
