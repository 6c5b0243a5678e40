//! Guests with keys: the client's program against the agent itself.

use std::io::{Read, Write};
use std::net::TcpStream;

use tempfile::TempDir;
use unikprof_client::exit_code;
use unikprof_client::key::Key;
use unikprof_client::recording::Completeness;
use unikprof_proto::code::refusal;
use unikprof_proto::frame::{self, HEADER};
use unikprof_proto::message::HandshakeReply;
use unikprof_proto::preamble;
use unikprof_tests::soak::keyed::open;
use unikprof_tests::soak::line::End;
use unikprof_tests::soak::target::{Target, TestKey};

use crate::harness::{Client, Guest, Keyed, Proxy, SOON, Then, Way, new_key};

/// Waits until the agent tells of so many peers of a kind.
fn wait_for_peers(client: &Client, kind: &str, least: u64) {
    client.wait_for_status(kind, |status| status["peers"][kind].as_u64() >= Some(least));
}

#[test]
fn a_guest_with_keys_is_recorded_under_a_key() {
    let keyed = Keyed::start("shares");
    let owner = keyed.owner();
    let info = owner.connect(&["info", "--json"]).expect_json();
    assert_eq!(info["role"], "control");
    assert_eq!(info["encrypted"], true);
    let id = Key::read(&keyed.control).unwrap().id().to_string();
    assert_eq!(info["key"], id);
    // With an image, so that a caller table of many records goes up as well.
    let image = Guest::program().to_str().unwrap();
    let told = owner.record_until(100, &["-F", "997", "--image", image]);
    assert!(!told.stderr.contains("open"), "{}", told.stderr);
    let recording = owner.recording("run.unikprof");
    assert_eq!(recording.completeness, Completeness::Complete);
    let by_table = recording.profile.counters().by_table;
    assert!(by_table > 0, "the table arrived");
}

/// The rotation of docs/guide/keys.md: the old key and the new one are both good, then the new one
/// alone, and who comes with the old one is counted.
#[test]
#[ignore = "full: records a guest"]
fn a_key_is_replaced_without_a_gap() {
    let folder = TempDir::new().unwrap();
    let [old, new] = ["old", "new"].map(|name| new_key(&folder, name));
    let option = |file| ["--control-key-file".as_ref(), file];
    let both =
        Guest::start_with("idle", &[option(old.as_os_str()), option(new.as_os_str())].concat());
    for key in [&old, &new] {
        let client = both.client().with_key(key);
        let info = client.connect(&["info", "--json"]).expect_json();
        assert_eq!(info["role"], "control");
        assert_eq!(info["key"], Key::read(key).unwrap().id().to_string());
    }
    drop(both);
    let after = Guest::start_with("idle", &option(new.as_os_str()));
    let refused = after.client().with_key(&old).connect(&["info"]);
    refused.expect_code(exit_code::KEY);
    let status = after.client().with_key(&new).status();
    assert_eq!(status["peers"]["bad_key"], 1, "{status:#}");
}

/// Starts a recording of a second, and waits for its end; a longer one if the guest had no
/// processor in that time.
fn finish_recording(owner: &Client) {
    for duration in ["1s", "4s", "16s", "64s"] {
        owner.must(&["start", "--duration", duration, "-F", "997"]);
        let status = owner
            .wait_for_status("the end of the recording", |status| status["state"] == "finished");
        if status["counters"]["recorded"].as_u64() >= Some(50) {
            return;
        }
        owner.must(&["stop", "--discard"]);
    }
    panic!("the guest has no samples");
}

/// The samples of the recording that has ended and waits.
fn copied(viewer: &Client) -> u64 {
    viewer.must(&["copy", "-o", "copy.unikprof"]);
    let samples = viewer.recording("copy.unikprof").profile.sample_count();
    assert!(samples > 0);
    samples
}

#[test]
fn a_view_key_looks_and_copies_and_changes_nothing() {
    let keyed = Keyed::start("shares");
    let (viewer, owner) = (keyed.viewer(), keyed.owner());
    let info = viewer.connect(&["info", "--json"]).expect_json();
    assert_eq!(info["role"], "view");
    owner.must(&["start"]);
    for words in [&["start"][..], &["stop"], &["dump"], &["record", "1s"]] {
        let refused = viewer.connect(words).expect_code(exit_code::KEY);
        assert!(refused.stderr.contains("`control`"), "{}", refused.stderr);
        // Not of the caller table, which goes ahead of a start and which nobody asked about.
        assert!(!refused.stderr.contains("table"), "{}", refused.stderr);
    }
    owner.must(&["stop", "--discard"]);
    finish_recording(&owner);
    let copies = [copied(&viewer), copied(&viewer)];
    let samples = owner.stop("all.unikprof").profile.sample_count();
    assert_eq!(copies, [samples; 2]);
    let nothing = viewer.connect(&["copy"]);
    nothing.expect_code(exit_code::NO_SUCH_RECORDING);
    wait_for_peers(&owner, "not_allowed", 4);
}

#[test]
fn strangers_and_downgrades_are_refused_and_counted() {
    let mut keyed = Keyed::start("shares");
    let refused = |client: Client, why: &str| {
        let refused = client.connect(&["info"]).expect_code(exit_code::KEY);
        assert!(refused.stderr.contains(why), "{}", refused.stderr);
    };
    let client = || keyed.client();
    refused(client().with_key(&keyed.stranger), "rejected key");
    refused(client(), "--key-file");
    wait_for_peers(&keyed.owner(), "bad_key", 1);
    keyed.guest.assert_alive();

    // An open guest is not spoken to with a key.
    let open_guest = Guest::start("shares");
    refused(open_guest.client().with_key(&keyed.control), "requires no key");
    // And refuses it for its part.
    let target = Target { address: open_guest.address(), keys: None };
    let refused = open(&target, &TestKey([1; 32])).err();
    assert_eq!(refused, Some(End::Refused(refusal::NOT_KEYED)));
}

/// Lines that break in the midst of the handshake and of sealed records: every new one begins with
/// a handshake of its own.
#[test]
#[ignore = "full: records a guest"]
fn a_line_that_breaks_is_taken_up_under_the_key() {
    let keyed = Keyed::start("shares");
    finish_recording(&keyed.owner());
    let samples = copied(&keyed.viewer());
    let proxy = Proxy::to(keyed.guest.address());
    let client = Client::of(proxy.address()).with_key(&keyed.view);
    for cut in [16, 17, 60, 74, 75, 100, 300, 600, 900, 1_300] {
        let before = proxy.connections();
        proxy.limit_next(cut, Then::Cut);
        assert_eq!(copied(&client), samples, "cut at {cut}");
        proxy.wait_for_limit();
        assert_eq!(proxy.connections(), before + 2, "cut at {cut}");
    }
}

/// What somebody on the way changes is found out by either side.
#[test]
#[ignore = "full: records a guest"]
fn altered_bytes_cost_a_connection_and_no_count() {
    let keyed = Keyed::start("shares");
    finish_recording(&keyed.owner());
    let samples = copied(&keyed.viewer());
    let proxy = Proxy::to(keyed.guest.address());
    let client = Client::of(proxy.address()).with_key(&keyed.view);
    // How long the greeting is depends on the names of the guest's mappings, and a little on the
    // time and on how many records it comes in.
    client.must(&["info"]);
    let greeting = proxy.answered();
    // Beyond both preambles and the handshake: hello's record; and those of the answers behind the
    // greeting. The client hears of its own altered record by the end of the connection.
    for (way, at) in
        [(Way::ToGuest, 110), (Way::ToClient, greeting + 200), (Way::ToClient, greeting + 400)]
    {
        let before = proxy.connections();
        proxy.alter_next(way, at);
        assert_eq!(copied(&client), samples, "{way:?} {at}");
        assert!(proxy.connections() >= before + 2, "{way:?} {at}");
    }
    wait_for_peers(&keyed.owner(), "bad_record", 1);

    // The key's id and the ephemeral key: bound into the handshake. A checksum covers the frame, so
    // the agent takes it for a damaged one before it looks at the key; the preamble has none.
    proxy.alter_next(Way::ToGuest, 14);
    let refused = client.connect(&["info"]).expect_code(exit_code::KEY);
    assert!(refused.stderr.contains("modified on the way"), "{}", refused.stderr);
    wait_for_peers(&keyed.owner(), "bad_key", 1);
}

/// Whoever has listened can say the same again, and gets nothing by it.
#[test]
#[ignore = "full: records a guest"]
fn a_replayed_conversation_gets_nothing() {
    let keyed = Keyed::start("shares");
    let owner = keyed.owner();
    let proxy = Proxy::to(keyed.guest.address());
    let words = ["start", "--name", "first"];
    Client::of(proxy.address()).with_key(&keyed.control).must(&words);
    owner.stop("first.unikprof");
    let said = proxy.sent().concat();
    assert!(said.len() > 200, "{} bytes are no conversation", said.len());

    let mut stream = TcpStream::connect(keyed.guest.address()).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    // A preamble and the handshake, to which there is an answer.
    let (handshake, records) = said.split_at(preamble::LENGTH + HEADER + 8 + 48);
    stream.write_all(handshake).unwrap();
    let mut answer = [0; preamble::LENGTH + HEADER + 48 + preamble::LENGTH];
    stream.read_exact(&mut answer).unwrap();
    let reply = frame::split(&answer[preamble::LENGTH..]).unwrap().unwrap();
    assert!(frame::decode::<HandshakeReply>(&reply).is_ok());
    stream.write_all(records).unwrap();
    // A reset, or an end: the agent has nothing more to say.
    let mut more = Vec::new();
    let _ = stream.read_to_end(&mut more);
    assert!(more.is_empty(), "{} bytes", more.len());
    wait_for_peers(&owner, "bad_record", 1);
    assert_eq!(owner.status()["state"], "idle");
}
