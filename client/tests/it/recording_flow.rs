//! Recording over a line that breaks: what arrives is whole, in order and acknowledged when safe.

use std::path::Path;
use std::time::Duration;

use crate::peer::{self, Fold, PATIENT, Peer, Script, program};
use unikprof_client::exit_code;
use unikprof_link::connection::{Access, ConnectionError};
use unikprof_link::interrupt::Interrupt;
use unikprof_link::record::{self, Event, Observer, Outcome, RecordError, Request, Settings};
use unikprof_profile::recording::{Completeness, Reading, Recording};
use unikprof_proto::code::{message_type as types, refusal};
use unikprof_test_kit::assert_is;

fn fetch(peer: &Peer, request: Request, path: &Path) -> Result<Outcome, RecordError> {
    record::fetch(&mut peer.session(PATIENT), request, path, &mut ())
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

/// The greeting's length in bytes, preamble and all.
fn greeting(script: &Script) -> usize {
    16 + peer::welcome(script, 1_000).concat().len()
}

/// The length of an epoch's answers in bytes.
fn epoch_bytes(script: &Script) -> usize {
    let vcpus = 0..script.vcpus.len() as u32;
    vcpus.map(|vcpu| peer::share(script, 7, vcpu, 0, 0).concat().len()).sum()
}

#[test]
fn a_recording_is_made_in_the_order_that_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.unikprof");
    let script = Script::default();
    let peer = Peer::start(script.clone());
    let outcome = peer.record(&path, PATIENT).unwrap();
    assert!(outcome.incomplete.is_none() && outcome.unacknowledged.is_none());
    assert_eq!(
        peer.log(),
        ["hello", "start", "check", "check", "stop", "fetch 7 0", "fetch 7 1", "acknowledge 7"]
    );
    let recording = Recording::open(&path, Reading::Strict).unwrap();
    assert_eq!(recording.completeness, Completeness::Complete);
    assert_eq!(recording.profile.sample_count(), script.samples());
    assert_eq!(names(directory.path()), ["r.unikprof"]);
}

/// The line breaks after every possible number of bytes of the epoch.
#[test]
fn a_fetch_broken_anywhere_is_taken_up_where_it_broke() {
    let script = Script::default();
    let greeting = greeting(&script);
    let epoch = epoch_bytes(&script);
    let directory = tempfile::tempdir().unwrap();
    let whole_path = directory.path().join("whole.unikprof");
    let peer = Peer::start(script.clone());
    record::fetch(&mut peer.session(PATIENT), Request::Dump { recording: 0 }, &whole_path, &mut ())
        .unwrap();
    let whole = Recording::open(&whole_path, Reading::Strict).unwrap();
    // Every seventh byte meets each frame, and the pauses before a new connection add up.
    for cut in (0..epoch).step_by(7) {
        let peer = Peer::start(Script { cuts: vec![greeting + 16 + cut], ..script.clone() });
        let path = directory.path().join(format!("{cut}.unikprof"));
        let request = Request::Dump { recording: 0 };
        let outcome = fetch(&peer, request, &path).unwrap();
        assert!(outcome.incomplete.is_none(), "cut at {cut}");
        let recording = Recording::open(&path, Reading::Strict).unwrap();
        assert_eq!(recording.profile, whole.profile, "cut at {cut}");
    }
}

/// The agent gives up some of an epoch's counts while the epoch is sent: what the file holds of it
/// must be of one moment, with nothing lost or counted twice.
#[test]
fn an_epoch_that_changes_while_it_is_fetched_is_fetched_anew() {
    let script = Script::default();
    let directory = tempfile::tempdir().unwrap();
    let fetch = |script: Script, name: &str| {
        let peer = Peer::start(script);
        let path = directory.path().join(name);
        let request = Request::Dump { recording: 0 };
        let outcome = fetch(&peer, request, &path).unwrap();
        assert!(outcome.incomplete.is_none(), "{name}: {outcome:?}");
        Recording::open(&path, Reading::Strict).unwrap()
    };
    let folded = fetch(script.clone().folded(), "folded");
    assert_ne!(folded.profile, fetch(script.clone(), "whole").profile);
    for after_frames in 0..peer::share(&script, 7, 0, 0, 0).len() {
        for is_told in [true, false] {
            let fold = Fold { after_frames, is_told };
            let broken = Script { fold: Some(fold), ..script.clone() };
            let name = format!("{after_frames} {is_told}");
            let recording = fetch(broken, &name);
            assert_eq!(recording.profile, folded.profile, "{name}");
        }
    }
}

/// Guards a refusal that is final against being taken for a change, and an agent that says so
/// without end.
#[test]
fn an_epoch_is_not_asked_for_without_end() {
    for (code, connections, told) in [
        (refusal::NO_EPOCH, 1, "another client fetched or discarded it"),
        (refusal::EPOCH_CHANGED, 17, "not now"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r.unikprof");
        let peer = Peer::start(Script {
            refuses: Some((types::FETCH, code, "not now")),
            ..Script::default()
        });
        let request = Request::Dump { recording: 0 };
        let failed = fetch(&peer, request, &path);
        assert!(failed.unwrap_err().to_string().contains(told));
        let hellos = peer.asked("hello");
        assert_eq!(hellos, connections, "{:?}", peer.log());
    }
}

#[test]
fn the_recording_goes_on_while_the_line_is_down() {
    struct Told(Vec<&'static str>);
    impl Observer for Told {
        fn event(&mut self, event: Event<'_>) {
            match event {
                Event::ConnectionLost(_) => self.0.push("lost"),
                Event::Reconnected => self.0.push("again"),
                _ => {}
            }
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.unikprof");
    let script = Script::default();
    // The start's answer still arrives; the first check's does not.
    let started =
        peer::encode(&unikprof_proto::message::Started { recording: 3, started_ns: 1_000 });
    let peer =
        Peer::start(Script { cuts: vec![greeting(&script) + started.len()], ..script.clone() });
    let mut told = Told(Vec::new());
    let settings = Settings::default();
    let outcome = record::record(&mut peer.session(PATIENT), &settings, &path, &mut told).unwrap();
    assert!(outcome.incomplete.is_none());
    assert_eq!(told.0, ["lost", "again"]);
    assert_eq!(peer.asked("start"), 1);
    let recording = Recording::open(&path, Reading::Strict).unwrap();
    assert_eq!(recording.profile.sample_count(), script.samples());
}

#[test]
fn nothing_is_written_where_nothing_arrived() {
    let script = Script::default();
    let peer =
        Peer::start(Script { cuts: [vec![greeting(&script)], vec![20; 1000]].concat(), ..script });
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.unikprof");
    std::fs::write(&path, "an older recording").unwrap();
    let error = record::fetch(
        &mut peer.session(Duration::from_millis(300)),
        Request::Stop { recording: 0 },
        &path,
        &mut (),
    )
    .unwrap_err();
    assert_eq!(exit_code::of_record(&error), 3, "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"an older recording");
    assert_eq!(names(directory.path()), ["r.unikprof"]);
}

/// The time that was given counts, not how often the connection breaks.
#[test]
fn a_line_that_breaks_again_and_again_is_tried_for_the_whole_time() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.unikprof");
    let script = Script::default();
    let peer = Peer::start(Script { cuts: vec![greeting(&script) + 2; 12], ..script });
    let outcome = fetch(&peer, Request::Stop { recording: 0 }, &path).unwrap();
    assert!(outcome.incomplete.is_none(), "{outcome:?}");
}

/// The agent answers a start that is repeated the same, or discards a recording whose start is
/// never confirmed.
#[test]
fn a_start_whose_answer_is_lost_is_repeated() {
    let directory = tempfile::tempdir().unwrap();
    let script = Script::default();
    let cut = greeting(&script) + 3;
    for words in [&["record", "-o", "r.unikprof"][..], &["start"]] {
        let peer = Peer::start(Script { cuts: vec![cut], ..script.clone() });
        program::connect(0, &peer, words, directory.path());
        assert_eq!(peer.asked("start"), 2);
        assert!(peer.asked("check") > 0, "{words:?} confirms");
        // For good.
        let cuts = [vec![cut], vec![20; 1000]].concat();
        let peer = Peer::start(Script { cuts, ..script.clone() });
        let _ = std::fs::remove_file(directory.path().join("r.unikprof"));
        let words = [words, &["--name", "n m", "--retry", "300ms"]].concat();
        let (_, stderr) = program::connect(3, &peer, &words, directory.path());
        assert!(stderr.contains("stop --name 'n m'` ends it"), "{stderr}");
    }
}

/// The line was down for longer than the agent waits for the confirmation.
#[test]
fn a_recording_that_was_not_confirmed_in_time_is_started_again() {
    let directory = tempfile::tempdir().unwrap();
    for words in [&["record", "-o", "r.unikprof"][..], &["start"]] {
        let script = Script { looked_at_ns: 40_000_000_000, ..Script::default() };
        let peer = Peer::start(Script { unconfirmed: 2, ..script.clone() });
        program::connect(0, &peer, words, directory.path());
        assert_eq!(peer.starts().len(), 3);
        let never = Peer::start(Script { unconfirmed: usize::MAX, ..script.clone() });
        // Before its time, another client has ended it.
        let ended = Peer::start(Script { looked_at_ns: 12_000_000_000, unconfirmed: 2, ..script });
        for peer in [&never, &ended] {
            let _ = std::fs::remove_file(directory.path().join("r.unikprof"));
            let (_, told) = program::connect(3, peer, words, directory.path());
            program::has(&told, &["no longer in the guest"]);
        }
        assert_eq!(ended.starts().len(), 1);
    }
}

/// A recording that ends before its time is not the user's doing.
#[test]
fn the_end_by_another_client_is_told_by_the_time_of_the_last_epoch() {
    let directory = tempfile::tempdir().unwrap();
    let seconds = |epoch_ns| Script { epoch_ns, ..Script::default() };
    for (script, is_told) in [(seconds(2_900_000_000), true), (seconds(3_000_000_000), false)] {
        let peer = Peer::start(script);
        let words = ["record", "3s", "-o", "r.unikprof"];
        let (_, stderr) = program::connect(0, &peer, &words, directory.path());
        let told = "another client has ended the recording, after 2.90 s";
        assert_eq!(stderr.contains(told), is_told, "{stderr}");
        assert_eq!(stderr.contains("another client"), is_told, "{stderr}");
    }
}

/// What a stop or dump has ended or set apart in the guest is fetched by the same command.
#[test]
fn a_fetch_of_which_nothing_arrives_says_what_fetches_it() {
    let directory = tempfile::tempdir().unwrap();
    let script = Script { ends_by_itself: false, ..Script::default() };
    // The status arrives.
    let status = [peer::encode(&peer::status()), peer::encode(&peer::recording_status(false))];
    let cut = greeting(&script) + status.concat().len() + 6;
    for (word, told) in [
        ("stop", "stop --name default` ends it"),
        ("dump", "dump --name default` fetches the rest"),
        ("copy", "has changed"),
    ] {
        let cuts = [vec![cut], vec![20; 1000]].concat();
        let peer = Peer::start(Script { cuts, ..script.clone() });
        let (_, stderr) = program::connect(3, &peer, &[word, "--retry", "300ms"], directory.path());
        program::has(&stderr, &[told]);
    }
}

#[test]
fn an_older_epoch_in_the_way_is_fetched_first() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.unikprof");
    let script = Script { older_epoch: true, ..Script::default() };
    let peer = Peer::start(script.clone());
    let request = Request::Stop { recording: 0 };
    fetch(&peer, request, &path).unwrap();
    assert_eq!(
        peer.log(),
        [
            "hello",
            "stop",
            "fetch 6 0",
            "fetch 6 1",
            "acknowledge 6",
            "stop",
            "fetch 7 0",
            "fetch 7 1",
            "acknowledge 7"
        ]
    );
    let recording = Recording::open(&path, Reading::Strict).unwrap();
    assert_eq!(recording.epochs, 2);
    assert_eq!(recording.profile.sample_count(), script.samples());
}

#[test]
fn an_acknowledgement_whose_answer_is_lost_is_given_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.unikprof");
    let script = Script::default();
    let pending = peer::encode(&unikprof_proto::message::Pending {
        recording: 3,
        first_epoch: 7,
        epochs: 1,
        complete: true,
    });
    let epoch = epoch_bytes(&script);
    let peer =
        Peer::start(Script { cuts: vec![greeting(&script) + pending.len() + epoch], ..script });
    let request = Request::Dump { recording: 0 };
    let outcome = fetch(&peer, request, &path).unwrap();
    assert!(outcome.unacknowledged.is_none());
    let acknowledged = peer.asked("acknowledge 7");
    assert_eq!(acknowledged, 2);
}

#[test]
fn a_guest_that_restarted_is_not_taken_for_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.unikprof");
    let script = Script::default();
    let peer = Peer::start(Script {
        cuts: vec![greeting(&script)],
        clock_ns: |connection| if connection == 0 { 1_000 } else { 10 },
        ..script
    });
    let request = Request::Stop { recording: 0 };
    let error = fetch(&peer, request, &path).unwrap_err();
    assert!(matches!(error, RecordError::GuestChanged), "{error}");
}

#[test]
fn two_interrupts_give_up() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.unikprof");
    let silent = Peer::foreign(|stream| {
        use std::io::Write as _;
        let mut stream = stream;
        let _ = stream.write_all(&unikprof_proto::preamble::encode(unikprof_proto::preamble::OPEN));
        let _ = stream.write_all(&peer::welcome(&Script::default(), 1_000).concat());
        // Never answers the stop.
        std::thread::sleep(Duration::from_secs(60));
    });
    let interrupt = Interrupt::default();
    let mut session = silent.open(Access::Open, PATIENT, PATIENT, &interrupt).unwrap();
    interrupt.raise();
    interrupt.raise();
    let request = Request::Stop { recording: 0 };
    let error = record::fetch(&mut session, request, &path, &mut ()).unwrap_err();
    assert_is!(error, RecordError::Connection(ConnectionError::Interrupted));
    assert_eq!(exit_code::of_record(&error), 130);
    assert!(names(directory.path()).is_empty());
}
