//! Guests that panic: their last seconds are in the log of their console.

use std::fs;
use std::io::Read as _;
use std::time::Duration;

use flate2::read::MultiGzDecoder;
use unikprof_profile::recording::Completeness;
use unikprof_tests::lab::{GuestEnd, Lab};

use super::{CRASHING, CRASHING_IN_UPCALL, RECORDERS, under};
use crate::xen_profile::harness::time::report;
use crate::xen_profile::harness::{Client, Guest, SOON, on, wait_until};

/// Seconds of work, beside other guests, where a machine is slow.
const END: Duration = Duration::from_secs(600);

/// Waits for the guest's end and its last words; answers a client with its log in `console.log`.
pub(crate) fn crashed(lab: &Lab, name: &str, words: &str) -> Client {
    let end = lab.wait_for_end(name, END).unwrap();
    assert_eq!(end, GuestEnd::Crash("crash".to_owned()));
    let log = wait_until("the last of the guest's words", || {
        let log = lab.guest_console(name).unwrap();
        log.contains("that is all").then_some(log)
    });
    assert!(log.contains(words), "{log}");
    let client = Guest::of_recording(lab, name).client_with_image();
    fs::write(client.path("console.log"), log).unwrap();
    client
}

/// Asserts that the file tells what the guest did last.
fn assert_tells(client: &Client, file: &str) {
    let recording = client.recording(file);
    assert_eq!(recording.completeness, Completeness::Complete);
    assert_eq!(recording.agent.platform, "xen");

    // While the work went on that ended in the panic: a span that has no end.
    let last = report(client, file, &["--in-span", "settling"]);
    for function in ["failing::post_entries", "failing::settle_accounts"] {
        let (found, of) = under(&last, function);
        assert!(found > 5 && found * 10 >= of * 9, "{function}: {last:#}");
    }
    // All of it, with the usual work before.
    let all = report(client, file, &["--timeline", "--step", "100ms"]);
    assert!(under(&all, "hotspots::year").0 > 0, "{all:#}");
    assert_eq!(all["spans"][0]["unfinished"], 1, "{all:#}");
    // Where a machine is busy most samples come late, and have a leaf of their own; not all do.
    let seconds = all["seconds"].as_array().unwrap();
    let mut tops = seconds.iter().filter_map(|second| second["top"].as_str());
    assert!(tops.any(|top| top.ends_with("post_entries")), "{all:#}");
    assert_eq!(all["marks"][0]["name"], "panic", "{all:#}");
}

#[test]
#[ignore = "full: boots a real Xen"]
fn a_panic_leaves_the_last_seconds_on_the_console() {
    on(&RECORDERS, |lab| assert_on_console(lab, CRASHING));
}

/// Asserts that the guest panics, and has told its last seconds.
pub(crate) fn assert_on_console(lab: &Lab, name: &str) {
    let client = crashed(lab, name, "is wrong");
    let told = client.run(&["recover", "console.log"]).expect_success();
    assert!(told.stdout.contains("console.log.unikprof"), "{told:?}");
    assert_tells(&client, "console.log.unikprof");

    // Half of it, as a log that was cut.
    let log = fs::read_to_string(client.path("console.log")).unwrap();
    let (begin, end) = (log.find("unikprof:").unwrap(), log.rfind("unikprof:").unwrap());
    fs::write(client.path("cut.log"), &log[..(begin + end) / 2]).unwrap();
    let cut = client.run(&["recover", "cut.log"]);
    let cut = cut.expect_code(unikprof_client::exit_code::INCOMPLETE);
    assert!(cut.stderr.contains("not in the log"), "{cut:?}");
    let part = client.report("cut.log.unikprof", &["--json"]).expect_json();
    let mut told = part["warnings"].as_array().unwrap().iter().filter_map(|told| told.as_str());
    assert!(told.any(|told| told.contains("is incomplete")), "{part:#}");
}

#[test]
#[ignore = "full: boots a real Xen"]
fn a_panic_in_an_upcall_leaves_them_as_well() {
    on(&RECORDERS, |lab| {
        let client = crashed(lab, CRASHING_IN_UPCALL, "asked to panic in an upcall");
        let words = ["recover", "console.log", "-o", "crash.unikprof"];
        client.run(&words).expect_success();
        assert_tells(&client, "crash.unikprof");
    });
}

/// Prints the first 8 MiB of a core dump, in gzip: `xl dump-core` writes 16 MiB at once, in which
/// the guest's image lies with its block. The rest takes minutes here: it looks at each of a
/// million pages that a PVH guest does not have, below its special ones.
const DUMP: &str = "
    cd /tmp
    xl dump-core crash core >said 2>&1 &
    until [ $(stat -c %s core 2>/dev/null || echo 0) -gt 16777216 ]; do
        kill -0 $! 2>/dev/null || { cat said; exit 1; }
        usleep 50000
    done
    kill $!
    head -c 8388608 core | gzip -1 -c";

/// The same out of the guest's memory, for a host that keeps a crashed guest.
#[test]
#[ignore = "full: boots a real Xen"]
fn a_panic_leaves_them_in_memory() {
    on(&RECORDERS, |lab| {
        let client = crashed(lab, CRASHING, "is wrong");
        let dump = lab.dom0_bytes(DUMP, SOON).unwrap();
        let mut core = Vec::new();
        MultiGzDecoder::new(&dump[..]).read_to_end(&mut core).unwrap();
        fs::write(client.path("core"), core).unwrap();
        let found = client.run(&["recover", "core", "--json"]).expect_json();
        assert_eq!(found["crashes"][0]["whole"], true, "{found}");
        assert_tells(&client, "core.unikprof");
    });
}
