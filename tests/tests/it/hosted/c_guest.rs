//! The whole way with a guest in C: gcc, the header, the archive, its own sockets and its own
//! timer.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use unikprof_tests::c_xen_guest::build_archive;

use crate::harness::time::{counters_add_up, events, expect_line_of, report, rows};
use crate::harness::{Client, Guest, wait_until};
use crate::hosted::trace::{assert_sums, function};

/// The functions that work.
const SOURCE: &str = include_str!("../../../guests/c-hosted/work.c");

/// The frame pointers of the compiled guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frames {
    Kept,
    Omitted,
    /// Kept in another build: the functions are elsewhere, and [`RENAMED`] has another name.
    KeptElsewhere,
}

/// A function that has the second name in another build.
const RENAMED: [&str; 2] = ["thirty", "half_of_sixty"];

/// Compiles the guest and starts it with these arguments.
fn start(frames: Frames, arguments: &[&str]) -> (Guest, Client) {
    let program = compile(frames);
    let guest = Guest::spawn(Command::new(program).args(arguments));
    let client = guest.client().with_image(program);
    (guest, client)
}

/// Ends the guest, which stops its agent and says whether that went well.
fn end(mut guest: Guest) {
    let ended = guest.stop();
    assert!(ended.success(), "{ended}");
}

fn compile(frames: Frames) -> &'static Path {
    static KEPT: OnceLock<PathBuf> = OnceLock::new();
    static OMITTED: OnceLock<PathBuf> = OnceLock::new();
    static ELSEWHERE: OnceLock<PathBuf> = OnceLock::new();
    let [old, new] = RENAMED;
    let rename = format!("-D{old}={new}");
    let (once, name, flags) = match frames {
        Frames::Kept => (&KEPT, "kept", &["-fno-omit-frame-pointer"][..]),
        Frames::Omitted => (&OMITTED, "omitted", &["-fomit-frame-pointer"][..]),
        Frames::KeptElsewhere => (
            &ELSEWHERE,
            "elsewhere",
            &["-fno-omit-frame-pointer", "-falign-functions=1024", &rename][..],
        ),
    };
    once.get_or_init(|| {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/c-hosted");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("c-hosted-{name}"));
        let mut units: Vec<PathBuf> = fs::read_dir(&sources)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|ending| ending == "c"))
            .collect();
        units.sort();
        let mut gcc = Command::new("gcc");
        gcc.args(["-std=gnu99", "-O2", "-g", "-Wall", "-Wextra", "-Werror"])
            .args(flags)
            .args(["-Wl,--build-id", "-I"])
            .arg(archive())
            .args(units)
            .arg(archive().join("libunikprof.a"))
            .arg("-o")
            .arg(&program);
        run(&mut gcc);
        program
    })
}

/// The folder with the archive and its header, built by the command that an embedder uses.
pub(crate) fn archive() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c-archive");
        run(&mut build_archive(&folder, &["--ring", "--heap", "--trace"]));
        folder
    })
}

pub(crate) fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// The output of `doctor` on the recording, whatever it thinks of it.
fn doctor(client: &Client) -> String {
    // Lines are broken to fit.
    let text = client.run(&["doctor", "--all", "run.unikprof"]).stdout;
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The functions that work, with their shares and callers.
const SHARES: [(&str, f64, &str); 3] =
    [("sixty", 0.6, "morning"), ("thirty", 0.3, "evening"), ("ten", 0.1, "morning")];

/// The largest error of a measured share: six standard deviations of 1,000 samples are 0.093.
const TOLERANCE: f64 = 0.1;

const SAMPLES: u64 = 1_000;

/// A process in C that handles breakpoints by SIGTRAP: each day has one morning, and that one call
/// of `sixty`.
#[test]
#[ignore = "full: records a guest"]
fn functions_of_a_process_in_c_are_traced() {
    let (guest, client) = start(Frames::Kept, &[]);
    let words = ["--json", "trace", "day", "morning", "sixty", "--for", "2s"];
    let words = [&words[..], &["--max-cost", "0"]].concat();
    let image = client.image().to_str().unwrap().to_owned();
    let calls = |trace: &Value, name| function(trace, name)["calls"].as_u64().unwrap();
    // Again if the guest had no processor in that time.
    let trace = wait_until("a traced day", || {
        let traced = client.connect(&[&words[..], &["--image", &image]].concat());
        Some(traced.expect_json()).filter(|trace| calls(trace, "day") > 0)
    });
    assert_sums(&trace);
    let days = calls(&trace, "day");
    for name in ["morning", "sixty"] {
        // A day may be under way at the beginning and at the end.
        assert!(calls(&trace, name).abs_diff(days) <= 1, "{name}: {trace:#}");
        assert_eq!(function(&trace, name)["unwound"], 0, "{name}: {trace:#}");
    }
    end(guest);
}

#[test]
#[ignore = "full: records a guest"]
fn c_functions_have_their_names_shares_and_lines() {
    let (guest, client) = start(Frames::Kept, &[]);
    client.record_samples(SAMPLES, &[]);
    let report = report(&client, "run.unikprof", &[]);
    let functions = report["functions"].as_array().unwrap();
    for (name, share, _) in SHARES {
        let found = functions.iter().find(|function| function["name"] == name);
        let found = found.unwrap_or_else(|| panic!("no `{name}`: {functions:#?}"));
        let measured = found["self_share"].as_f64().unwrap();
        assert!((measured - share).abs() < TOLERANCE, "{name}: {measured}");
        expect_line_of(found, name, "work.c", SOURCE);
    }
    counters_add_up(&report);
    end(guest);
}

/// The build-ids and addresses differ; functions are matched by their names.
#[test]
#[ignore = "full: records a guest"]
fn two_builds_are_compared_by_the_names_of_functions() {
    let (guest, client) = start(Frames::Kept, &[]);
    client.record_samples(SAMPLES, &[]);
    end(guest);
    let (guest, newer) = start(Frames::KeptElsewhere, &[]);
    newer.record_samples(SAMPLES, &[]);
    end(guest);
    let new = newer.path("run.unikprof");
    let images = [&client, &newer].map(|client| client.image().to_str().unwrap());
    let json = |more: &[&str]| -> Value {
        let words = ["diff", "run.unikprof", new.to_str().unwrap(), "--json"];
        let images = ["--image", images[0], "--image", images[1]];
        let finished = client.run(&[&words, &images[..], more].concat());
        assert_eq!(finished.code, Some(0), "{finished:?}");
        serde_json::from_str(&finished.stdout).unwrap()
    };
    let own = |json: &Value, name: &str| {
        let functions = json["functions"].as_array().unwrap();
        let found: Vec<&Value> = functions.iter().filter(|f| f["name"] == name).collect();
        let [found] = found[..] else {
            panic!("{name}: {found:#?}");
        };
        ["base", "new"].map(|side| found["self"][side].as_f64().unwrap())
    };
    let is_both = |[base, new]: [f64; 2], share: f64| {
        let is_near = |found: f64| (found - share).abs() < 1.5 * TOLERANCE;
        assert!(is_near(base) && is_near(new), "{base} and {new}, not {share}");
    };
    let [old_name, new_name] = RENAMED;
    let found = json(&[]);
    for (name, share, _) in SHARES {
        if name != old_name {
            is_both(own(&found, name), share);
        }
    }
    assert_eq!(own(&found, old_name)[1], 0.0);
    assert_eq!(own(&found, new_name)[0], 0.0);
    let rename = format!("{old_name}={new_name}");
    let renamed = json(&["--rename", &rename]);
    is_both(own(&renamed, new_name), 0.3);
    let functions = renamed["functions"].as_array().unwrap();
    assert!(functions.iter().all(|f| f["name"] != old_name));
    // The other build's addresses are not looked up in this one.
    let [old_image, _] = images;
    let words = ["diff", "run.unikprof", new.to_str().unwrap(), "--image", old_image];
    let finished = client.run(&words);
    assert_eq!(finished.code, Some(6), "{finished:?}");
    assert!(finished.stderr.contains("build-id"), "{finished:?}");
}

#[test]
#[ignore = "full: records a guest"]
fn callers_in_c_are_the_right_ones() {
    let (guest, client) = start(Frames::Kept, &[]);
    client.record_samples(SAMPLES, &[]);
    let folded = client.folded(&[]);
    let mut by_caller: HashMap<(&str, &str), u64> = HashMap::new();
    let mut worked = 0;
    for (stack, count) in &folded {
        let frames: Vec<&str> = stack.rsplit(';').collect();
        let [leaf, caller, above @ ..] = &frames[..] else {
            continue;
        };
        if SHARES.iter().any(|(name, ..)| name == leaf) {
            worked += count;
            *by_caller.entry((caller, leaf)).or_default() += count;
            assert_eq!(above[..2.min(above.len())], ["day", "main"], "{stack}");
        }
    }
    let right: u64 =
        SHARES.iter().filter_map(|(name, _, caller)| by_caller.get(&(*caller, *name))).sum();
    assert!(worked >= SAMPLES / 2, "{folded:#?}");
    // A sample in a prologue skips its caller; these functions have one prologue in 50,000
    // iterations.
    assert!(right * 100 >= worked * 97, "{right} of {worked}: {by_caller:?}");
    end(guest);
}

/// A coroutine's stack has its callers on the stack that resumed it, and the guest says that the
/// frame pointer leads there.
#[test]
#[ignore = "full: records a guest"]
fn a_coroutines_callers_are_those_that_resumed_it() {
    let (guest, client) = start(Frames::Kept, &["coroutine"]);
    client.record_samples(SAMPLES, &[]);
    let folded = client.folded(&[]);
    for (name, _, caller) in SHARES {
        let whole = format!("main;coroutine_resume;coroutine_switch;day;{caller};{name}");
        let found = folded.iter().any(|(stack, _)| stack.ends_with(&whole));
        assert!(found, "{whole}: {folded:#?}");
    }
    for (stack, _) in &folded {
        // Interrupted before it has saved the frame pointer, a function's caller is missing.
        let is_whole = stack.contains("main;coroutine_resume;") || !stack.contains("day;");
        assert!(is_whole, "{stack}");
    }
    end(guest);
}

/// Without frame pointers, and without a caller table in their place, the leaf is right all the
/// same; the rest is not, and the profile and `doctor` say so, with the flag to set. Unwound by the
/// table all of it is right.
#[test]
#[ignore = "full: records a guest"]
fn a_guest_without_frame_pointers_is_told_as_broken() {
    let (guest, client) = start(Frames::Omitted, &[]);
    client.record_samples(SAMPLES, &["--no-caller-table"]);
    let report = report(&client, "run.unikprof", &[]);
    let counters = &report["counters"];
    let count = |name: &str| counters[name].as_u64().unwrap();
    assert!(count("broken") * 2 >= count("recorded"), "{counters:#}");
    let sixty = rows(&report, "sixty").next().unwrap();
    let measured = sixty["self_share"].as_f64().unwrap();
    assert!((measured - 0.6).abs() < TOLERANCE, "{measured}");
    let said = doctor(&client);
    assert!(said.contains("-fno-omit-frame-pointer"), "{said}");

    // With the table the leaf's caller is right, and the chain goes on past others without a mark.
    client.record_samples(SAMPLES, &[]);
    let said = doctor(&client);
    assert!(said.contains("missing callers"), "{said}");
    assert!(said.contains("-fno-omit-frame-pointer"), "{said}");

    client.record_samples(SAMPLES, &["--unwind", "table"]);
    let said = doctor(&client);
    assert!(!said.contains("-fno-omit-frame-pointer"), "{said}");
    end(guest);
}

/// Spans, counters and marks of a guest in C come home beside its samples, and say what ran inside.
#[test]
#[ignore = "full: records a guest"]
fn a_guest_tells_of_its_days() {
    let (guest, client) = start(Frames::Kept, &[]);
    client.record_samples(SAMPLES, &[]);
    let whole = report(&client, "run.unikprof", &[]);
    let find = |kind: &str, name: &str| {
        let all = whole[kind].as_array().unwrap();
        let found = all.iter().find(|one| one["name"] == name);
        found.unwrap_or_else(|| panic!("no `{name}`: {all:?}")).clone()
    };
    let day = find("spans", "day");
    let count = day["count"].as_u64().unwrap();
    assert!(count > 10, "{day}");
    assert!(day["p50_ns"].as_u64() <= day["p99_ns"].as_u64(), "{day}");
    // A day has a hundred parts.
    let parts = find("values", "parts done");
    let [min, max] = ["min", "max"].map(|key| parts[key].as_u64().unwrap());
    assert!(max >= min + 1_000 && max % 100 == 0, "{parts}");
    assert!(find("marks", "client")["count"].as_u64() >= Some(1));

    let inside = report(&client, "run.unikprof", &["--in-span", "day"]);
    let sixty = rows(&inside, "sixty").next().unwrap();
    let share = sixty["self_share"].as_f64().unwrap();
    assert!((share - 0.6).abs() < TOLERANCE, "{share}");
    let shown = |report: &Value| report["samples"]["shown"].as_u64().unwrap();
    assert!(shown(&inside) > 0 && shown(&inside) <= shown(&whole));

    let events = events(&client);
    let of = |kind: &str, name: &str| {
        let it = events.iter().filter(|one| one["kind"] == kind && one["name"] == name);
        it.cloned().collect::<Vec<_>>()
    };
    // A fast guest is at the end of its ring while it is read: what is overwritten meanwhile is
    // missing.
    let (begins, ends) = (of("span_begin", "day"), of("span_end", "day"));
    let at = |event: &Value| event["at_ns"].as_u64().unwrap();
    let mut whole = 0;
    for begin in &begins {
        for end in ends.iter().filter(|end| end["number"] == begin["number"]) {
            assert_eq!(end["length_ns"].as_u64(), Some(at(end) - at(begin)));
            whole += 1;
        }
    }
    assert!(whole > 10, "{whole} days");
    assert!(!of("counter", "parts done").is_empty() && !of("mark", "client").is_empty());
    end(guest);
}

/// A recording from before the first client is there, under the name that the guest gave it.
#[test]
#[ignore = "full: records a guest"]
fn a_recording_begins_with_the_guest() {
    let (guest, client) = start(Frames::Kept, &["flight"]);
    client.wait_for_samples(SAMPLES);
    assert_eq!(client.status()["name"], "flight");
    let info = client.connect(&["info", "--json"]).expect_json();
    assert_eq!(info["server_share_permille"], 250, "as profiler.c configures it");
    client.must(&["dump", "--name", "flight", "-o", "run.unikprof"]);
    let report = report(&client, "run.unikprof", &[]);
    assert_eq!(report["recording"]["name"], "flight");
    assert!(report["samples"]["recorded"].as_u64() >= Some(SAMPLES));
    end(guest);
}

/// Without kick: the guest calls `unikprof_deadline` after each poll, and its next tick takes the
/// snapshot.
#[test]
#[ignore = "full: records a guest"]
fn a_snapshot_shows_where_a_c_guest_is() {
    let (guest, client) = start(Frames::Kept, &[]);
    let image = client.image().to_str().unwrap();
    let words = ["--json", "snapshot", "--wait", "60s", "--image", image];
    let shown = client.connect(&words).expect_json();
    let vcpu = &shown["vcpus"][0];
    assert_ne!(vcpu["state"], "no answer", "{shown:#}");
    let functions = vcpu["frames"].as_array().unwrap();
    let has_main = functions.iter().any(|one| one["function"] == "main");
    assert!(has_main, "{shown:#}");
    end(guest);
}
