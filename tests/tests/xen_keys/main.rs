//! A unikernel with keys on a real Xen, met by the client's own program and by strangers.
//!
//! Skipped by name where a machine cannot run a lab; with `UNIKPROF_REQUIRE_ALL=1` that is a failure.
#![allow(clippy::unwrap_used)]

// The client's program and waiting are those of the hosted cases; not all of them are used here.
#[allow(dead_code, reason = "shared with the hosted cases")]
#[path = "../hosted/harness/client.rs"]
mod client;
#[path = "../hosted/harness/wait.rs"]
mod wait;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tempfile::TempDir;
use unikprof_client::exit_code;
use unikprof_client::recording::Completeness;
use unikprof_tests::lab::{LabConfig, run_or_skip};
use unikprof_tests::profiled::{profiled_guest_with_keys, profiler_address, start_profiled};
use unikprof_tests::soak::line::End;
use unikprof_tests::soak::peers::{Overheard, Peer, RecordDamage, Visit};
use unikprof_tests::soak::random::Random;
use unikprof_tests::soak::target::{KeyFiles, Keys, Target};

use client::Client;
use wait::{SOON, wait_until};

/// As the shared client wants it: the image that the guests run. No report is made here.
struct Guest;

impl Guest {
    fn program() -> &'static Path {
        Path::new("")
    }
}

/// The main paths of a keyed guest, in one lab: each role, no key, wrong keys, damaged records, a flood while
/// a recording runs.
#[test]
fn keys_open_a_guest_on_xen_and_nothing_else_does() {
    let mut random = Random::new(6);
    let keys = Keys::draw(&mut random);
    run_or_skip("keys_open_a_guest_on_xen_and_nothing_else_does", || {
        let guest = profiled_guest_with_keys("keyed", &keys, "load=50")?;
        let lab = start_profiled(&LabConfig::with_guest(guest))?;
        let target = Target {
            address: profiler_address(&lab, "keyed")?,
            keys: Some(keys.clone()),
        };
        roles(&target);
        strangers(&target, &mut random);
        flood(&target);
        Ok(())
    });
}

/// Clients of the guest with each of its keys; the folder holds them.
fn clients(target: &Target) -> (TempDir, [Client; 2]) {
    let folder = TempDir::with_prefix("unikprof-keys-").unwrap();
    let files = KeyFiles::write(target.keys.as_ref().unwrap(), folder.path()).unwrap();
    let clients = [files.view, files.control].map(|key| Client::of(target.address).with_key(&key));
    (folder, clients)
}

fn roles(target: &Target) {
    let (_folder, [view, control]) = clients(target);
    let recording = control.record_samples(500, &[]);
    assert_eq!(recording.completeness, Completeness::Complete);
    assert_eq!(recording.profile.recording().warnings, Vec::<String>::new());
    assert!(recording.profile.sample_count() >= 500);

    let status = view.status();
    assert_eq!(status["state"], "idle", "{status:#}");
    let refused = view.connect(&["start"]);
    assert_eq!(refused.code, Some(exit_code::KEY.into()), "{refused:?}");
    let open = Client::of(target.address).connect(&["check"]);
    assert_eq!(open.code, Some(exit_code::KEY.into()), "{open:?}");
    let status = control.status();
    assert_eq!(status["state"], "idle", "{status:#}");
    assert_eq!(status["peers"]["not_allowed"], 1, "{status:#}");
    assert_eq!(status["peers"]["bad_key"], 1, "{status:#}");
}

fn strangers(target: &Target, random: &mut Random) {
    let (_folder, [_, control]) = clients(target);
    let before = control.status()["peers"].clone();
    let stop = AtomicBool::new(false);
    let visit = Visit {
        target,
        overheard: &Overheard::default(),
        stop: &stop,
    };
    let handshakes = [
        Peer::WrongKey,
        Peer::UnknownKey,
        Peer::AlteredHandshake,
        Peer::Downgrade,
    ];
    for peer in handshakes {
        let ends = peer.visit(&visit, random);
        assert!(matches!(ends[..], [End::Refused(_)]), "{peer:?}: {ends:?}");
    }
    let records = [
        Peer::ReplayedHandshake,
        Peer::DamagedRecord(RecordDamage::Altered),
        Peer::DamagedRecord(RecordDamage::Replayed),
        Peer::DamagedRecord(RecordDamage::Reordered),
        Peer::DamagedRecord(RecordDamage::Cut),
    ];
    for peer in records {
        let ends = peer.visit(&visit, random);
        assert!(
            matches!(ends[..], [End::Reset | End::Closed]),
            "{peer:?}: {ends:?}"
        );
    }
    let told = control.wait_for_status("all of them", |status| {
        status["peers"]["bad_record"].as_u64() >= Some(records.len() as u64)
    });
    let more = |kind: &str| told["peers"][kind].as_u64().unwrap() - before[kind].as_u64().unwrap();
    assert_eq!(more("bad_key"), handshakes.len() as u64, "{told:#}");
    assert_eq!(more("bad_record"), records.len() as u64, "{told:#}");
}

/// Tells peers to leave.
struct Leave<'l>(&'l AtomicBool);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn flood(target: &Target) {
    let (_folder, [_, control]) = clients(target);
    let stop = AtomicBool::new(false);
    let overheard = Overheard::default();
    thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let mut random = Random::new(1);
            let mut connections = 0;
            while !stop.load(Ordering::Relaxed) {
                let visit = Visit {
                    target,
                    overheard: &overheard,
                    stop: &stop,
                };
                connections += Peer::Flood.visit(&visit, &mut random).len();
            }
            connections
        });
        // Also where this fails: the flood would be waited for.
        let leave = Leave(&stop);
        let words = ["record", "2s", "-o", "flood.unikprof"];
        wait_until("a recording in the flood", || {
            let finished = control.connect(&words);
            (finished.code == Some(exit_code::SUCCESS.into())).then_some(())
        });
        drop(leave);
        assert!(flood.join().unwrap() > 40, "that was no flood");
    });
    let recording = control.recording("flood.unikprof");
    assert_eq!(recording.completeness, Completeness::Complete);
    assert!(recording.profile.sample_count() > 0);
    let told = control.wait_for_status("the end of the flood", |status| status["sessions"] == 1);
    let count = |kind: &str| told["peers"][kind].as_u64().unwrap();
    assert!(count("turned_away") + count("displaced") > 0, "{told:#}");
}
