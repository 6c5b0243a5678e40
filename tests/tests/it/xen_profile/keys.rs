//! A guest with keys, met by the client's own program and by strangers.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tempfile::TempDir;
use unikprof_client::exit_code;
use unikprof_profile::recording::Completeness;
use unikprof_tests::lab::LabConfig;
use unikprof_tests::profiled::profiled_guest_with_keys;
use unikprof_tests::soak::line::End;
use unikprof_tests::soak::peers::{Overheard, Peer, RecordDamage, Visit, among};
use unikprof_tests::soak::random::Random;
use unikprof_tests::soak::target::{KeyFiles, Keys, Target};

use crate::xen_profile::harness::{Boot, Client, Guest, client_at, on, wait_until};

/// A guest that works and has [`keys`].
pub(crate) const KEYED: Boot = Boot {
    name: "keyed",
    config: || {
        let guest = profiled_guest_with_keys("keyed", &keys(), "load=50")?;
        Ok(LabConfig::with_guest(guest))
    },
};

pub(crate) fn keys() -> Keys {
    Keys::draw(&mut Random::new(6))
}

/// The main paths of a keyed guest, in one lab: each role, no key, wrong keys, damaged records, a
/// flood while a recording runs.
#[test]
#[ignore = "full: boots a real Xen"]
fn keys_open_a_guest_on_xen_and_nothing_else_does() {
    on(&KEYED, |lab| {
        assert_guarded(Guest::of_recording(lab, "keyed").address());
    });
}

/// The same of a guest at this address.
pub(crate) fn assert_guarded(address: SocketAddr) {
    let target = Target { address, keys: Some(keys()) };
    roles(&target);
    strangers(&target, &mut Random::new(7));
    flood(&target);
}

/// Clients of the guest with each of its keys; the folder holds them.
fn clients(target: &Target) -> (TempDir, [Client; 2]) {
    let folder = TempDir::with_prefix("unikprof-keys-").unwrap();
    let files = KeyFiles::write(target.keys.as_ref().unwrap(), folder.path()).unwrap();
    let clients = [files.view, files.control].map(|key| client_at(target.address).with_key(&key));
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
    let open = client_at(target.address).connect(&["check"]);
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
    let visit = Visit { target, overheard: &Overheard::default(), stop: &stop };
    let handshakes = [Peer::WrongKey, Peer::UnknownKey, Peer::AlteredHandshake, Peer::Downgrade];
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
        assert!(matches!(ends[..], [End::Reset | End::Closed]), "{peer:?}: {ends:?}");
    }
    let told = control.wait_for_status("all of them", |status| {
        status["peers"]["bad_record"].as_u64() >= Some(records.len() as u64)
    });
    let more = |kind: &str| told["peers"][kind].as_u64().unwrap() - before[kind].as_u64().unwrap();
    assert_eq!(more("bad_key"), handshakes.len() as u64, "{told:#}");
    assert_eq!(more("bad_record"), records.len() as u64, "{told:#}");
}

fn flood(target: &Target) {
    let (_folder, [_, control]) = clients(target);
    let connections = AtomicUsize::new(0);
    let judge = |_, ends: &[End]| _ = connections.fetch_add(ends.len(), Ordering::Relaxed);
    among(
        target,
        1,
        |_| Peer::Flood,
        judge,
        || {
            let words = ["record", "2s", "-o", "flood.unikprof"];
            wait_until("a recording in the flood", || {
                let finished = control.connect(&words);
                (finished.code == Some(exit_code::SUCCESS.into())).then_some(())
            });
        },
    );
    let connections = connections.into_inner();
    assert!(connections > 40, "that was no flood: {connections}");
    let recording = control.recording("flood.unikprof");
    assert_eq!(recording.completeness, Completeness::Complete);
    assert!(recording.profile.sample_count() > 0);
    let told = control.wait_for_status("the end of the flood", |status| status["sessions"] == 1);
    let count = |kind: &str| told["peers"][kind].as_u64().unwrap();
    assert!(count("turned_away") + count("displaced") > 0, "{told:#}");
}
