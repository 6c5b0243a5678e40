//! The kernel in C with keys from xenstore, a linked caller table, the flight recorder and a crash
//! dump on its console.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use unikprof_client::exit_code;
use unikprof_profile::recording::Completeness;
use unikprof_tests::c_xen_guest::{Agent, build_c_xen_guest, stripped};
use unikprof_tests::lab::{GuestConfig, GuestEnd, Lab, LabConfig};
use unikprof_tests::profiled::{PROFILER_PORT, with_keys};
use unikprof_tests::soak::random::Random;
use unikprof_tests::soak::target::{KeyFiles, Keys};

use crate::xen_profile::harness::{Boot, Guest, on, wait_until};
use crate::xen_profile::memory::{Books, Held, Site, assert_books};
use crate::xen_profile::tracing::{assert_ratios, calls_of, traced};

const KEYED: &str = "c-keyed";
const WITHOUT_KEYS: &str = "c-no-keys";
/// Guests that fail, by their names and the words of their command lines.
const FAILING: [(&str, &str); 2] =
    [("c-page-fault", "fault=page"), ("c-protection-fault", "fault=protection")];

/// The time for a boot and five seconds of work beside other guests, on a busy machine.
const END: Duration = Duration::from_secs(600);

const FULL: Boot = Boot {
    name: "full C kernels",
    config: || {
        let image = stripped(image());
        let guest = |name| {
            let mut guest = GuestConfig::new(name, image.clone());
            guest.ports = vec![PROFILER_PORT];
            guest
        };
        let keyed = |name| with_keys(guest(name), &keys());
        let mut guests = vec![keyed(KEYED), guest(WITHOUT_KEYS)];
        guests[0].command_line = "allocations=yes".into();
        guests.extend(FAILING.map(|(name, word)| {
            let mut guest = keyed(name);
            guest.command_line = word.into();
            guest
        }));
        Ok(LabConfig { guests, ..LabConfig::default() })
    },
};

fn image() -> &'static Path {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    IMAGE.get_or_init(|| build_c_xen_guest(Agent::Full).unwrap())
}

fn keys() -> Keys {
    Keys::draw(&mut Random::new(8))
}

#[test]
#[ignore = "full: boots a real Xen"]
fn keys_from_xenstore_open_the_kernel() {
    on(&FULL, |lab| {
        let guest = Guest::of_recording(lab, KEYED);
        let refused = guest.client().connect(&["info"]);
        refused.expect_code(exit_code::KEY);
        let folder = TempDir::with_prefix("unikprof-keys-").unwrap();
        let KeyFiles { view, control, .. } = KeyFiles::write(&keys(), folder.path()).unwrap();
        let [view, control] = [view, control].map(|key| guest.client().with_key(&key));
        let refused = view.connect(&["start", "--name", "second"]);
        refused.expect_code(exit_code::KEY);
        let recording = control.record("2s", &["--name", "second"]);
        assert_eq!(recording.completeness, Completeness::Complete);
    });
}

/// The recording from boot has the linked table, and others beside it have the same: the client's
/// is not another one.
#[test]
#[ignore = "full: boots a real Xen"]
fn a_linked_table_serves_the_recording_from_boot_and_those_beside_it() {
    on(&FULL, |lab| {
        let client = Guest::of_recording(lab, KEYED).client();
        let client = client.with_image(image());
        let folder = TempDir::with_prefix("unikprof-keys-").unwrap();
        let client = client.with_key(&KeyFiles::write(&keys(), folder.path()).unwrap().control);
        let held = || client.connect(&["info", "--json"]).expect_json()["caller_table"].clone();
        let linked = held();
        assert!(linked.is_u64(), "{linked}");
        let named = ["--image", image().to_str().unwrap()];
        for unwind in ["fp", "table"] {
            let words = ["--name", "beside", "--unwind", unwind];
            let words = [&words[..], &named].concat();
            wait_until("samples by the table", || {
                let recording = client.record("2s", &words);
                (recording.profile.counters().by_table != 0).then_some(())
            });
        }
        assert_eq!(held(), linked, "nothing was sent in its place");
        wait_until("samples by the table since the boot", || {
            client.must(&["dump", "--name", "always-on", "-o", "boot.unikprof"]);
            let counters = client.recording("boot.unikprof").profile.counters();
            (counters.by_table != 0).then_some(())
        });
    });
}

/// The functions of the kernel's `stock.c`.
const SITES: [Site; 4] = [
    Site { function: "order", sizes: &[600], calls: 8.0, held: Held::AtMost(0.0), ..JAR },
    Site { function: "list", sizes: &[256, 512, 1_024], held: Held::AtMost(0.0), ..JAR },
    JAR,
    Site { function: "crumb", sizes: &[1_000], calls: 0.125, held: Held::All, ..JAR },
];

const JAR: Site = Site {
    function: "jar",
    below: "stock",
    sizes: &[2_000],
    counter: "rounds",
    calls: 1.0,
    held: Held::Newest(100.0),
};

#[test]
#[ignore = "full: boots a real Xen"]
fn allocations_are_those_of_the_kernels_books() {
    on(&FULL, |lab| {
        let folder = TempDir::with_prefix("unikprof-keys-").unwrap();
        let key = KeyFiles::write(&keys(), folder.path()).unwrap().control;
        let client = Guest::of_recording(lab, KEYED).client().with_key(&key);
        assert_books(&client.with_image(image()), &SITES, "crumb");
    });
}

/// Functions of the kernel's `stock.c` and `work.c`, and how often each is called for each call of
/// another one.
const TRACED: [(&str, &str, u64); 6] = [
    ("order", "jar", 8),
    ("list", "jar", 1),
    ("grind", "mill", 5),
    ("bake", "mill", 1),
    ("knead", "bake", 3),
    ("prove", "bake", 2),
];

/// The kernel's threads are switched inside of `mill` and `bake`, and `prove` runs with events
/// masked. A key of the role control does not open it.
#[test]
#[ignore = "full: boots a real Xen"]
fn traced_calls_are_those_of_the_kernels_books() {
    on(&FULL, |lab| {
        let folder = TempDir::with_prefix("unikprof-keys-").unwrap();
        let files = KeyFiles::write(&keys(), folder.path()).unwrap();
        let client = |key: &Path| {
            let client = Guest::of_recording(lab, KEYED).client().with_key(key);
            client.with_image(image())
        };
        let image = image().to_str().unwrap();
        let functions = ["jar", "mill"].into_iter();
        let functions: Vec<&str> = functions.chain(TRACED.map(|(name, ..)| name)).collect();
        let words = [&["trace"], &functions[..], &["--image", image]].concat();
        let refused = client(&files.control).connect(&[&words[..], &["--for", "5s"]].concat());
        refused.expect_code(exit_code::KEY);

        let client = client(&files.trace);
        let before = Books::before(&client, &[JAR]);
        let trace = traced(&client, &functions, &[("jar", 2), ("mill", 2)]);
        let books = Books::read(&client, before, &[JAR]);
        let [from_ns, to_ns] = ["started_ns", "ended_ns"].map(|it| trace[it].as_u64().unwrap());
        let [least, most] = books.calls(from_ns, to_ns, &JAR);
        let calls = |name: &str| calls_of(&trace, name);
        assert!((least..=most).contains(&(calls("jar") as f64)), "{least} to {most}: {trace:#}");
        assert_ratios(&trace, &TRACED);
    });
}

/// A failed start of the agent leaves the kernel running.
#[test]
#[ignore = "full: boots a real Xen"]
fn the_kernel_runs_on_without_keys() {
    on(&FULL, |lab| {
        let wait = END;
        let line = lab.wait_for_console(WITHOUT_KEYS, "no profiler", wait);
        assert!(line.unwrap().contains("a key cannot be used"));
        lab.wait_for_console(WITHOUT_KEYS, "at work", wait).unwrap();
    });
}

/// The dump shows what the kernel worked on before the exception.
#[test]
#[ignore = "full: boots a real Xen"]
fn an_exception_leaves_the_recording_on_the_console() {
    on(&FULL, |lab| {
        for (name, _) in FAILING {
            assert_dump_tells(lab, name, image(), &["miller", "baker"]);
        }
    });
}

/// The guest ends as crashed, and its console has what it worked on before: functions whose names
/// end so.
pub(crate) fn assert_dump_tells(lab: &Lab, name: &str, image: &Path, workers: &[&str]) {
    let end = lab.wait_for_end(name, END).unwrap();
    assert_eq!(end, GuestEnd::Crash("crash".to_owned()));
    let log = wait_until("the end of the dump", || {
        let log = lab.guest_console(name).unwrap();
        log.contains("the dump ends here").then_some(log)
    });
    let client = Guest::of_recording(lab, name).client();
    fs::write(client.path("console.log"), log).unwrap();
    let words = ["recover", "console.log", "-o", "crash.unikprof"];
    client.run(&words).expect_success();
    let recording = client.recording("crash.unikprof");
    assert_eq!(recording.completeness, Completeness::Complete);
    let report = client.report_with("crash.unikprof", image, &["--json"]);
    let report = report.expect_json();
    let functions = report["functions"].as_array().unwrap();
    for worker in workers {
        let name = |function: &Value| function["name"].as_str().unwrap().to_owned();
        let is_there = functions.iter().any(|it| name(it).ends_with(worker));
        assert!(is_there, "{worker}: {functions:#?}");
    }
}
