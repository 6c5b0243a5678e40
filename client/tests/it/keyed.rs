//! Conversations under a key: who gets in, what is refused, and what a hostile line can do.

use crate::peer;
use std::path::Path;
use std::time::Duration;

use crate::peer::keyed::{Keyed, OTHER_SECRET, SECRET, Tamper, key};
use crate::peer::program::{has, is_empty};
use crate::peer::{PATIENT, Peer, Script};
use unikprof_client::exit_code;
use unikprof_link::connection::{Access, ConnectionError};
use unikprof_link::interrupt::Interrupt;
use unikprof_link::record::{self, RecordError, Request, Session, Settings};
use unikprof_profile::recording::{Completeness, Reading, Recording};
use unikprof_proto::code::{refusal, role};
use unikprof_test_kit::assert_is;

/// The bytes that an agent with a key sends in the clear: its preamble and the reply to the
/// handshake.
const CLEAR: usize = 16 + 10 + 64;

fn open(peer: &Peer, access: Access, connect: Duration) -> Result<Session, ConnectionError> {
    peer.open(access, connect, PATIENT, &Interrupt::default())
}

fn session(peer: &Peer) -> Session {
    open(peer, key(SECRET).into(), PATIENT).unwrap()
}

fn refused(keyed: Keyed, access: Access) -> (ConnectionError, Peer) {
    let peer = Peer::start(Script { keyed: Some(keyed), ..Script::default() });
    let error = open(&peer, access, Duration::from_secs(5)).unwrap_err();
    let text = format!("{error} {error:?}");
    for secret in [SECRET, OTHER_SECRET] {
        assert!(!text.contains(secret), "{text}");
    }
    (error, peer)
}

fn keyed(keyed: Keyed) -> Script {
    Script { keyed: Some(keyed), ..Script::default() }
}

fn whole(path: &Path, script: &Script) {
    let recording = Recording::open(path, Reading::Strict).unwrap();
    assert_eq!(recording.completeness, Completeness::Complete);
    assert_eq!(recording.profile.sample_count(), script.samples());
}

#[test]
fn a_recording_is_made_under_a_key_whatever_the_length_of_records() {
    let directory = tempfile::tempdir().unwrap();
    for record in [1, 33, 4096] {
        let script = keyed(Keyed { record, ..Keyed::default() });
        let peer = Peer::start(script.clone());
        let mut session = session(&peer);
        assert_eq!(session.key(), Some(key(SECRET).id()));
        assert_eq!(session.agent().role, role::CONTROL);
        let path = directory.path().join(format!("{record}.unikprof"));
        let outcome = record::record(&mut session, &Settings::default(), &path, &mut ()).unwrap();
        assert!(outcome.incomplete.is_none());
        whole(&path, &script);
        assert_eq!(peer.log()[..2], ["handshake", "hello"]);
        let bytes = std::fs::read(&path).unwrap();
        let secret: Vec<u8> =
            (0..32).map(|at| u8::from_str_radix(&SECRET[2 * at..][..2], 16).unwrap()).collect();
        assert!(!bytes.windows(8).any(|part| part == &secret[..8]));
    }
}

/// The handshake authenticates both preambles: the client's in the first message, the agent's in
/// the second.
#[test]
fn an_altered_preamble_fails_the_handshake() {
    let altered = Keyed { altered_client_preamble: true, ..Keyed::default() };
    let (error, _) = refused(altered, key(SECRET).into());
    assert!(matches!(error, ConnectionError::BadKey { .. }), "{error}");
    assert!(error.to_string().contains("modified on the way"), "{error}");

    let altered = Keyed { altered_preamble: true, ..Keyed::default() };
    let (error, peer) = refused(altered, key(SECRET).into());
    assert_is!(error, ConnectionError::FalseAgent { .. });
    assert!(!peer.log().contains(&"hello".into()));
}

/// Guards clients with a long round trip: an agent that is flooded keeps a stranger for a fifth of
/// a second only, so the handshake must not wait for the agent's preamble.
#[test]
fn preamble_and_handshake_are_sent_before_the_agent_has_sent_anything() {
    let script = keyed(Keyed { is_silent_first: true, ..Keyed::default() });
    let peer = Peer::start(script);
    let opened = open(&peer, key(SECRET).into(), PATIENT).unwrap();
    assert_eq!(opened.key(), Some(key(SECRET).id()));
}

#[test]
fn who_has_taken_the_agents_place_is_found_out() {
    let other = Keyed { is_false: true, ..Keyed::default() };
    let (error, peer) = refused(other, key(SECRET).into());
    assert_is!(error, ConnectionError::FalseAgent { .. });
    assert_eq!(exit_code::of_connection(&error), 10);
    assert!(!peer.log().contains(&"hello".into()));
}

/// Whoever answers `open` gets nothing from a client that has a key.
#[test]
fn a_downgrade_is_refused() {
    for script in [
        Script::default(),
        keyed(Keyed { says: 0, ..Keyed::default() }),
        keyed(Keyed { refuses: Some(refusal::NOT_KEYED), ..Keyed::default() }),
    ] {
        let peer = Peer::start(script);
        let error = open(&peer, key(SECRET).into(), PATIENT).unwrap_err();
        assert_is!(error, ConnectionError::OpenAgent { .. });
        assert!(error.to_string().contains("omit --key-file"), "{error}");
        assert_eq!(exit_code::of_connection(&error), 10);
        assert!(!peer.log().contains(&"hello".into()));
    }
}

#[test]
fn an_unknown_protection_is_refused() {
    let unknown = Keyed { says: 7, ..Keyed::default() };
    for access in [Access::Open, key(SECRET).into()] {
        let (error, _) = refused(unknown.clone(), access);
        assert_is!(error, ConnectionError::UnknownSecurity { found: 7, .. });
        assert_eq!(exit_code::of_connection(&error), 4);
    }
}

#[test]
fn a_view_key_looks_and_takes_a_copy_and_nothing_else() {
    let script = Script { waiting: 1, ..keyed(Keyed { role: role::VIEW, ..Keyed::default() }) };
    let peer = Peer::start(script.clone());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.unikprof");
    let mut session = session(&peer);
    assert_eq!(session.agent().role, role::VIEW);
    session.check(&mut ()).unwrap();
    record::fetch(&mut session, Request::Copy { recording: 0 }, &path, &mut ()).unwrap();
    whole(&path, &script);
    assert_eq!(peer.asked("acknowledge"), 0);

    let path = directory.path().join("none.unikprof");
    let request = Request::Stop { recording: 0 };
    let error = record::fetch(&mut session, request, &path, &mut ()).unwrap_err();
    let text = error.to_string();
    has(&text, &["stopping the recording", "`view`", "`control`", &key(SECRET).id().to_string()]);
    assert_eq!(exit_code::of_record(&error), 10);
    // The conversation goes on.
    session.check(&mut ()).unwrap();
}

#[test]
fn where_nothing_waits_there_is_nothing_to_copy() {
    let directory = tempfile::tempdir().unwrap();
    for ends_by_itself in [true, false] {
        let peer = Peer::start(Script { ends_by_itself, ..keyed(Keyed::default()) });
        let path = directory.path().join("r.unikprof");
        let mut session = session(&peer);
        let error = record::fetch(&mut session, Request::Copy { recording: 0 }, &path, &mut ())
            .unwrap_err();
        assert!(matches!(error, RecordError::NothingWaits { .. }), "{error}");
        is_empty(directory.path());
    }
}

/// The line breaks after every possible number of bytes of sealed records.
#[test]
fn records_cut_anywhere_are_taken_up_under_a_new_handshake() {
    let directory = tempfile::tempdir().unwrap();
    let script = keyed(Keyed { record: 64, ..Keyed::default() });
    let sealed = |frames: &[Vec<u8>]| -> usize {
        let records: usize = frames.iter().map(|frame| frame.len().div_ceil(64)).sum();
        frames.concat().len() + 18 * records
    };
    let greeting = CLEAR + sealed(&peer::welcome(&script, 1_000));
    let vcpus = 0..script.vcpus.len() as u32;
    let epoch = vcpus.map(|vcpu| sealed(&peer::share(&script, 7, vcpu, 0, 0)));
    let epoch: usize = epoch.sum();
    for cut in (0..epoch).step_by(11) {
        // The list of pending epochs is a record of a frame of its own.
        let peer = Peer::start(Script { cuts: vec![greeting + 34 + cut], ..script.clone() });
        let path = directory.path().join(format!("{cut}.unikprof"));
        let request = Request::Dump { recording: 0 };
        let outcome = record::fetch(&mut session(&peer), request, &path, &mut ()).unwrap();
        assert!(outcome.incomplete.is_none(), "cut at {cut}");
        whole(&path, &script);
        assert_eq!(peer.asked("handshake"), 2, "cut at {cut}");
    }
}

/// Of a record that somebody has touched nothing is taken, and nothing is taken twice.
#[test]
fn touched_records_cost_a_connection_and_no_count() {
    let directory = tempfile::tempdir().unwrap();
    let script = keyed(Keyed { record: 64, ..Keyed::default() });
    for tamper in
        [Tamper::Alter, Tamper::Repeat, Tamper::Drop, Tamper::Lengthen, Tamper::InTheClear]
    {
        // Beyond the greeting, in the midst of the epoch.
        for at in [7, 9, 12] {
            let peer = Peer::start(keyed(Keyed {
                record: 64,
                tampers: Some((at, tamper)),
                ..Keyed::default()
            }));
            let path = directory.path().join(format!("{tamper:?}{at}.unikprof"));
            let request = Request::Dump { recording: 0 };
            let outcome = record::fetch(&mut session(&peer), request, &path, &mut ()).unwrap();
            assert!(outcome.incomplete.is_none(), "{tamper:?} at {at}");
            whole(&path, &script);
            assert_eq!(peer.asked("handshake"), 2, "{tamper:?} at {at}");
        }
    }
}

/// A line that alters everything ends in an error that says so.
#[test]
fn a_record_altered_in_the_greeting_is_told() {
    let (error, _) = refused(
        Keyed { tampers: Some((0, Tamper::Alter)), ..Keyed::default() },
        key(SECRET).into(),
    );
    assert!(matches!(error, ConnectionError::Record { .. }), "{error}");
    assert!(error.to_string().contains("modified on the way"), "{error}");
    assert_eq!(exit_code::of_connection(&error), 4);
}

#[test]
fn who_is_turned_away_or_displaced_tries_again_and_gets_in() {
    for keyed in [None, Some(Keyed::default())] {
        let access = match keyed {
            None => Access::Open,
            Some(_) => key(SECRET).into(),
        };
        let peer = Peer::start(Script { keyed, turned_away: 3, displaced: 3, ..Script::default() });
        let session = open(&peer, access, PATIENT).unwrap();
        assert_eq!(session.agent().guest_name.as_deref(), Some("web-1"));
        assert_eq!(peer.log()[..6], [["turned away"; 3], ["displaced"; 3]].concat());
    }
}

#[test]
fn who_is_always_turned_away_hears_so_in_time() {
    let peer = Peer::start(Script { turned_away: usize::MAX, ..keyed(Keyed::default()) });
    // Time enough for more than one try on a busy machine.
    let connect = Duration::from_secs(3);
    let error = open(&peer, key(SECRET).into(), connect).unwrap_err();
    assert_is!(error, ConnectionError::Refused { code: refusal::BUSY, .. });
    assert!(peer.log().len() >= 2);
}

/// A recording goes on over a line that is cut, and every connection shows the key again.
#[test]
fn a_connection_that_comes_back_without_the_key_is_not_taken() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.unikprof");
    let script = keyed(Keyed::default());
    let greeting =
        CLEAR + peer::welcome(&script, 1_000).iter().map(|frame| frame.len() + 18).sum::<usize>();
    let peer = Peer::start(Script { cuts: vec![greeting], second_is_open: true, ..script });
    let request = Request::Stop { recording: 0 };
    let error = record::fetch(&mut session(&peer), request, &path, &mut ()).unwrap_err();
    assert_is!(error, RecordError::Connection(ConnectionError::OpenAgent { .. }));
}
