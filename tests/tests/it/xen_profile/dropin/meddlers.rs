//! Kernels in C that use what the drop-in uses, and some for which it does not start.

use unikprof_tests::lab::{Lab, LabConfig};

use super::{BOOT, assert_waits_are_told, client, guest, record};
use crate::xen_profile::harness::{Boot, counters_add_up, on, wait_until, without_lab};
use crate::xen_profile::tracing::traced;

/// It uses the local APIC's timer itself, some time after the start; or changes its interrupt
/// table, or unmaps memory.
const LATER: &str = "c-dropin-later";
const TABLE: &str = "c-dropin-table";
const GATE: &str = "c-dropin-gate";
const MEMORY: &str = "c-dropin-memory";
/// It writes the gates of exceptions anew, and unmaps memory.
const EXCEPTIONS: &str = "c-dropin-exceptions";
/// It registers its area of run states anew.
const RUNSTATE: &str = "c-dropin-runstate";
/// It maps its memory only, not the pages of Xen's tools and of the local APIC.
const TOOLS: &str = "c-dropin-tools";
const MEDDLERS: Boot = Boot {
    name: "C kernels that use what the drop-in uses",
    config: || {
        let guests = [
            (LATER, "timer"),
            (TABLE, "table"),
            (GATE, "gate"),
            (MEMORY, "memory"),
            (RUNSTATE, "runstate"),
            (TOOLS, "tools"),
            (EXCEPTIONS, "exceptions"),
        ];
        let guests = guests.iter().zip(50..).map(|((name, word), host)| {
            // Its ticks make an interrupt pending.
            let record = (*name == LATER).then_some(("record", "flight"));
            let settings = [("access", "open"), ("tracing", "yes")].into_iter().chain(record);
            let settings: Vec<_> = settings.collect();
            let mut guest = guest(name, &format!("10.0.2.{host}"), &settings);
            guest.command_line = format!("meddle={word}");
            guest
        });
        Ok(LabConfig { guests: guests.collect(), ..LabConfig::default() })
    },
};

/// It names no key, and is not open either.
const CLOSED: &str = "c-dropin-closed";
/// It uses the timer before the profiler starts.
const EARLY: &str = "c-dropin-early";

/// Its own ticks continue, and the profiler ends its own. Guards against the profiler's last
/// interrupt, which was pending when the guest took the timer: it must not set the timer again.
#[test]
#[ignore = "full: boots a real Xen"]
fn a_guest_that_uses_the_timer_itself_keeps_it() {
    on(&MEDDLERS, |lab| {
        lab.wait_for_console(LATER, "unikprof: no more ticks", BOOT).unwrap();
        assert_has_ticks_of_its_own(lab, LATER);
    });
}

fn assert_has_ticks_of_its_own(lab: &Lab, name: &str) {
    wait_until("ticks of the guest's own", || {
        let lines = lab.guest_console(name).unwrap();
        let lines = lines.lines();
        let counts = lines.filter_map(|line| line.split_once("own ticks 0x"));
        let counts = counts.map(|(_, count)| u64::from_str_radix(count.trim(), 16).unwrap());
        let counts: Vec<u64> = counts.filter(|count| *count > 0).collect();
        (counts.len() >= 3).then(|| {
            // 250 in 5 s, or a little longer; not as many as at another period.
            assert!(counts.iter().all(|count| *count < 1_000), "{counts:?}");
        })
    });
}

/// It is profiled again when it asks for that, or marks an event of its own.
#[test]
#[ignore = "full: boots a real Xen"]
fn a_guest_that_changes_its_interrupt_table_goes_on() {
    on(&MEDDLERS, |lab| {
        let resumed = [
            "unikprof: the guest has changed the interrupt gate of its events",
            "unikprof: connected again",
        ];
        let marked =
            ["unikprof: follows the guest, which has changed the interrupt gate of its events"];
        for (name, told) in [(TABLE, &resumed[..]), (GATE, &marked)] {
            for line in ["c-xen: has meddled", "c-xen: own ticks"].iter().chain(told) {
                lab.wait_for_console(name, line, BOOT).unwrap();
            }
            let client = client(lab, name);
            client.must(&["start"]);
            client.wait_for_samples(100);
            client.stop("run.unikprof");
        }
    });
}

/// Xen updates one area of run states for each vCPU. Guards against one of the profiler's that the
/// guest replaces, after which all time would be running time; and against a guest that loses its
/// own to the profiler, for which it would panic.
#[test]
#[ignore = "full: boots a real Xen"]
fn a_guest_that_registers_its_run_states_keeps_them_and_its_waits_are_told() {
    on(&MEDDLERS, |lab| {
        lab.wait_for_console(RUNSTATE, "c-xen: has meddled", BOOT).unwrap();
        assert_waits_are_told(lab, RUNSTATE);
    });
}

/// Guards against a start that fails without a word, as in Mini-OS, where neither xenstore nor the
/// console could be reached.
#[test]
#[ignore = "full: boots a real Xen"]
fn a_guest_that_maps_its_memory_only_is_profiled() {
    on(&MEDDLERS, |lab| {
        for line in [
            "unikprof: profiler on port 7777 of device/vif/1, open to everybody, ticks by x2APIC",
            "c-xen: at work",
        ] {
            lab.wait_for_console(TOOLS, line, BOOT).unwrap();
        }
        let report = record(&client(lab, TOOLS), "cpu", |counters| {
            counters["recorded"].as_u64() >= Some(100)
        });
        counters_add_up(&report);
    });
}

/// Guards against a page fault of the profiler's own, where the chain of frames leads into memory
/// that the guest has unmapped since the start, and against the address of that fault in CR2, where a
/// handler of the guest's would take it for its own.
#[test]
#[ignore = "full: boots a real Xen"]
fn a_wild_frame_pointer_into_unmapped_memory_ends_the_stack() {
    on(&MEDDLERS, |lab| {
        lab.wait_for_console(MEMORY, "c-xen: has worked without frame pointers", BOOT).unwrap();
        let client = client(lab, MEMORY);
        let report = record(&client, "cpu", |counters| counters["broken"].as_u64() >= Some(100));
        counters_add_up(&report);
        let wild = client.folded(&["--no-inlines"]);
        let wild = wild.iter().any(|(stack, _)| stack.ends_with("work_with_wild_frame_pointer"));
        assert!(wild, "{report:#}");
        let console = lab.guest_console(MEMORY).unwrap();
        assert!(!console.contains("CR2 is not what it was"), "{console}");
    });
}

/// Guards against a breakpoint, and a page fault of the profiler's own, that reach a handler of the
/// guest's which was set after the start and knows nothing of them.
#[test]
#[ignore = "full: boots a real Xen"]
fn a_guest_that_writes_the_gates_of_exceptions_later_is_followed() {
    on(&MEDDLERS, |lab| {
        lab.wait_for_console(EXCEPTIONS, "c-xen: has worked without frame pointers", BOOT).unwrap();
        let client = client(lab, EXCEPTIONS);
        let report = record(&client, "cpu", |counters| counters["broken"].as_u64() >= Some(20));
        counters_add_up(&report);
        traced(&client, &["mill"], &[("mill", 2)]);
    });
}

/// Without a key, and without `open`, nobody may connect; and a timer that the guest uses cannot be
/// had. The console says so, and the guest runs.
#[test]
#[ignore = "full: boots a real Xen"]
fn without_access_or_timer_it_says_so_and_the_guest_runs() {
    without_lab(|| {
        let mut early = guest(EARLY, "10.0.2.51", &[("access", "open")]);
        early.command_line = "meddle=early".into();
        let lab = Lab::start(LabConfig {
            guests: vec![guest(CLOSED, "10.0.2.50", &[]), early],
            ..LabConfig::default()
        });
        let lab = lab.unwrap();
        for (name, reason) in [
            (CLOSED, "no client may connect"),
            (EARLY, "the guest uses the local APIC's timer itself"),
        ] {
            let line = format!("unikprof: not started: {reason}");
            for text in [&line, "c-xen: at work"] {
                lab.wait_for_console(name, text, BOOT).unwrap();
            }
        }
        assert_has_ticks_of_its_own(&lab, EARLY);
    });
}
