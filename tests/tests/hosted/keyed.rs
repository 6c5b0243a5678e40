//! Guests with keys: the client's program against the agent itself.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use unikprof_client::exit_code;
use unikprof_client::key::{Key, Role};
use unikprof_client::recording::Completeness;
use unikprof_proto::code::refusal;
use unikprof_proto::frame::{self, HEADER, MAX_BODY};
use unikprof_proto::message::{Handshake, HandshakeReply, Refusal};
use unikprof_proto::preamble;

use crate::harness::{Client, Finished, Guest, Proxy, SOON, Then, wait_until};

/// A guest, its keys' files, and clients of it.
struct Keyed {
    guest: Guest,
    client: Client,
    /// The files of the view key, the control key and one that the guest does not hold.
    files: [PathBuf; 3],
    _folder: tempfile::TempDir,
}

const VIEW: usize = 0;
const CONTROL: usize = 1;
const STRANGER: usize = 2;

impl Keyed {
    fn start(load: &str) -> Keyed {
        let folder = tempfile::tempdir().unwrap();
        let files = ["view", "control", "stranger"].map(|name| folder.path().join(name));
        for file in &files {
            let key = Key::generate().unwrap();
            key.write_new(file, Role::Control).unwrap();
        }
        let guest = Guest::start_with_keys(load, &files[VIEW], &files[CONTROL]);
        let client = guest.client();
        Keyed {
            guest,
            client,
            files,
            _folder: folder,
        }
    }

    fn key(&self, which: usize) -> &str {
        self.files[which].to_str().unwrap()
    }

    /// `connect ADDRESS --key-file FILE WORDS`.
    fn connect(&self, which: usize, words: &[&str]) -> Finished {
        let words = [&["--key-file", self.key(which)], words].concat();
        let finished = self.client.connect(&words);
        for file in &self.files {
            let text = fs::read_to_string(file).unwrap();
            let secret = text.rsplit(':').next().unwrap().trim();
            let said = format!("{}{}", finished.stdout, finished.stderr);
            assert!(!said.contains(secret), "a key was shown");
        }
        finished
    }

    /// `check --json` with the control key, once it says so.
    fn wait_for_peers(&self, name: &str, least: u64) {
        wait_until(name, || {
            let status = self.connect(CONTROL, &["check", "--json"]).expect_json();
            (status["peers"][name].as_u64() >= Some(least)).then_some(())
        });
    }
}

#[test]
fn a_guest_with_keys_is_recorded_under_a_key() {
    let keyed = Keyed::start("shares");
    let info = keyed.connect(CONTROL, &["info", "--json"]).expect_json();
    assert_eq!(info["role"], "control");
    assert_eq!(info["encrypted"], true);
    let id = Key::read(&keyed.files[CONTROL]).unwrap().id().to_string();
    assert_eq!(info["key"], id);
    // With an image, so that a caller table of many records goes up as well.
    let image = Guest::program().to_str().unwrap();
    let words = ["record", "1s", "-o", "run.unikprof", "--image", image];
    let told = keyed.connect(CONTROL, &words).expect_success();
    assert!(!told.stderr.contains("open"), "{}", told.stderr);
    let recording = keyed.client.recording("run.unikprof");
    assert_eq!(recording.completeness, Completeness::Complete);
    assert!(recording.profile.sample_count() > 0);
    assert!(
        recording.profile.counters().by_table > 0,
        "the table arrived"
    );
}

/// The rotation of docs/SECURITY.md: the old key and the new one are both good, then the new one alone, and who
/// comes with the old one is counted.
#[test]
fn a_key_is_replaced_without_a_gap() {
    let folder = tempfile::tempdir().unwrap();
    let [old, new] = ["old", "new"].map(|name| {
        let file = folder.path().join(name);
        let key = Key::generate().unwrap();
        key.write_new(&file, Role::Control).unwrap();
        file
    });
    let connect = |client: &Client, key: &PathBuf, word: &str| {
        client.connect(&["--key-file", key.to_str().unwrap(), word, "--json"])
    };
    let both = Guest::start_with_control_keys("idle", &[&old, &new]);
    let client = both.client();
    for key in [&old, &new] {
        let info = connect(&client, key, "info").expect_json();
        assert_eq!(info["role"], "control");
        assert_eq!(info["key"], Key::read(key).unwrap().id().to_string());
    }
    drop(both);
    let after = Guest::start_with_control_keys("idle", &[&new]);
    let client = after.client();
    connect(&client, &old, "info").expect_code(exit_code::KEY);
    let status = connect(&client, &new, "check").expect_json();
    assert_eq!(status["peers"]["bad_key"], 1, "{status:#}");
}

#[test]
fn a_view_key_looks_and_copies_and_changes_nothing() {
    let keyed = Keyed::start("shares");
    let info = keyed.connect(VIEW, &["info", "--json"]).expect_json();
    assert_eq!(info["role"], "view");
    keyed.connect(CONTROL, &["start"]).expect_success();
    for words in [&["start"][..], &["stop"], &["dump"], &["record", "1s"]] {
        let refused = keyed.connect(VIEW, words).expect_code(exit_code::KEY);
        assert!(refused.stderr.contains("`control`"), "{}", refused.stderr);
        // Not of the caller table, which goes ahead of a start and which nobody asked about.
        assert!(!refused.stderr.contains("table"), "{}", refused.stderr);
    }
    keyed
        .connect(CONTROL, &["stop", "--discard"])
        .expect_success();
    keyed
        .connect(CONTROL, &["start", "--duration", "1s"])
        .expect_success();
    wait_until("the end of the recording", || {
        let status = keyed.connect(VIEW, &["check", "--json"]).expect_status();
        (status["state"] == "finished").then_some(())
    });
    for name in ["one.unikprof", "two.unikprof"] {
        keyed.connect(VIEW, &["copy", "-o", name]).expect_success();
    }
    keyed
        .connect(CONTROL, &["stop", "-o", "all.unikprof"])
        .expect_success();
    let recordings = ["one.unikprof", "two.unikprof", "all.unikprof"]
        .map(|name| keyed.client.recording(name).profile.sample_count());
    assert!(recordings[0] > 0);
    assert_eq!(recordings, [recordings[0]; 3]);
    let nothing = keyed.connect(VIEW, &["copy"]);
    nothing.expect_code(exit_code::NO_SUCH_RECORDING);
    keyed.wait_for_peers("not_allowed", 4);
}

#[test]
fn strangers_and_downgrades_are_refused_and_counted() {
    let mut keyed = Keyed::start("shares");
    let refused = keyed
        .connect(STRANGER, &["info"])
        .expect_code(exit_code::KEY);
    assert!(
        refused.stderr.contains("rejected key"),
        "{}",
        refused.stderr
    );
    let refused = keyed.client.connect(&["info"]).expect_code(exit_code::KEY);
    assert!(refused.stderr.contains("--key-file"), "{}", refused.stderr);
    keyed.wait_for_peers("bad_key", 1);
    keyed.guest.assert_alive();

    // An open guest is not spoken to with a key.
    let open = Guest::start("shares");
    let words = ["--key-file", keyed.key(CONTROL), "info"];
    let refused = open.client().connect(&words).expect_code(exit_code::KEY);
    assert!(
        refused.stderr.contains("requires no key"),
        "{}",
        refused.stderr
    );
    // And refuses it for its part.
    let mut stream = TcpStream::connect(open.address()).unwrap();
    let code = shake_hands(&mut stream, &[0; 8]).unwrap();
    assert_eq!(code, refusal::NOT_KEYED);
}

/// Lines that break in the midst of the handshake and of sealed records: every new one begins with a
/// handshake of its own.
#[test]
fn a_line_that_breaks_is_taken_up_under_the_key() {
    let keyed = Keyed::start("shares");
    let samples = finished_recording(&keyed);
    let proxy = Proxy::to(keyed.guest.address());
    let client = Client::of(proxy.address());
    for cut in [16, 17, 60, 74, 75, 100, 300, 600, 900, 1_300] {
        let before = proxy.connections();
        proxy.limit_next(cut, Then::Cut);
        let words = ["--key-file", keyed.key(VIEW), "copy", "-o", "cut.unikprof"];
        client.connect(&words).expect_success();
        proxy.wait_for_limit();
        assert_eq!(proxy.connections(), before + 2, "cut at {cut}");
        let found = client.recording("cut.unikprof").profile.sample_count();
        assert_eq!(found, samples, "cut at {cut}");
    }
}

/// What somebody on the way changes is found out by either side.
#[test]
fn altered_bytes_cost_a_connection_and_no_count() {
    let keyed = Keyed::start("shares");
    let samples = finished_recording(&keyed);
    let words = [
        "--key-file",
        keyed.key(VIEW),
        "copy",
        "-o",
        "altered.unikprof",
    ];
    // Beyond both preambles and the handshake: hello's record, and those of the answers. The client
    // hears of its own altered record by the end of the connection.
    for (way, at) in [
        (Way::ToGuest, 110),
        (Way::ToClient, 800),
        (Way::ToClient, 1_100),
    ] {
        let line = Meddler::start(keyed.guest.address(), Some((way, at)));
        let client = Client::of(line.address);
        client.connect(&words).expect_success();
        let found = client.recording("altered.unikprof").profile.sample_count();
        assert_eq!(found, samples, "{way:?} {at}");
        assert!(
            line.connections.load(Ordering::Relaxed) >= 2,
            "{way:?} {at}"
        );
    }
    keyed.wait_for_peers("bad_record", 1);

    // The key's id and the ephemeral key: bound into the handshake. A checksum covers the frame, so the
    // agent takes it for a damaged one before it looks at the key; the preamble has none.
    let line = Meddler::start(keyed.guest.address(), Some((Way::ToGuest, 14)));
    let words = ["--key-file", keyed.key(VIEW), "info"];
    let refused = Client::of(line.address).connect(&words);
    let refused = refused.expect_code(exit_code::KEY);
    assert!(
        refused.stderr.contains("modified on the way"),
        "{}",
        refused.stderr
    );
    keyed.wait_for_peers("bad_key", 1);
}

/// Whoever has listened can say the same again, and gets nothing by it.
#[test]
fn a_replayed_conversation_gets_nothing() {
    let keyed = Keyed::start("shares");
    let line = Meddler::start(keyed.guest.address(), None);
    let words = ["--key-file", keyed.key(CONTROL), "start", "--name", "first"];
    Client::of(line.address).connect(&words).expect_success();
    keyed
        .connect(CONTROL, &["stop", "-o", "first.unikprof"])
        .expect_success();
    let said = line.to_guest.lock().unwrap().clone();
    assert!(said.len() > 200, "{} bytes are no conversation", said.len());

    let mut stream = TcpStream::connect(keyed.guest.address()).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    // A preamble and the handshake, to which there is an answer.
    let (handshake, records) = said.split_at(preamble::LENGTH + HEADER + 8 + 48);
    stream.write_all(handshake).unwrap();
    let mut answer = [0; preamble::LENGTH + HEADER + 48 + preamble::LENGTH];
    stream.read_exact(&mut answer).unwrap();
    assert!(
        frame::decode::<HandshakeReply>(
            &frame::split(&answer[preamble::LENGTH..]).unwrap().unwrap()
        )
        .is_ok()
    );
    stream.write_all(records).unwrap();
    // A reset, or an end: the agent has nothing more to say.
    let mut more = Vec::new();
    let _ = stream.read_to_end(&mut more);
    assert!(more.is_empty(), "{} bytes", more.len());
    keyed.wait_for_peers("bad_record", 1);
    let status = keyed.connect(CONTROL, &["check", "--json"]).expect_status();
    assert_eq!(status["state"], "idle");
}

/// Some strangers at a time take every session they can get, some fifty times a second, and whoever holds
/// a key gets in each time.
#[test]
fn a_key_gets_in_through_a_crowd() {
    let mut keyed = Keyed::start("shares");
    let address = keyed.guest.address();
    let (stop, visits) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for kind in 0..6_u8 {
            let (stop, visits) = (&stop, &visits);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    crowd(address, kind);
                    visits.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let begun = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..5 {
                keyed.connect(CONTROL, &["check"]).expect_success();
            }
            let words = ["record", "1s", "-o", "run.unikprof", "--retry", "20s"];
            keyed.connect(CONTROL, &words).expect_success();
            // Until it was a crowd, however slow they are.
            wait_until("a crowd", || {
                let status = keyed.connect(CONTROL, &["check", "--json"]).expect_json();
                let crowded = ["turned_away", "displaced", "timed_out", "bad_key"]
                    .iter()
                    .filter_map(|name| status["peers"][name].as_u64())
                    .sum::<u64>();
                (crowded > 5 && visits.load(Ordering::Relaxed) > 5).then_some(())
            });
        }));
        stop.store(true, Ordering::Relaxed);
        begun.unwrap();
    });
    let recording = keyed.client.recording("run.unikprof");
    assert_eq!(recording.completeness, Completeness::Complete);
    keyed.guest.assert_alive();
}

/// A recording that has ended and waits; answers its samples.
fn finished_recording(keyed: &Keyed) -> u64 {
    keyed
        .connect(CONTROL, &["start", "--duration", "1s"])
        .expect_success();
    wait_until("the end of the recording", || {
        let status = keyed.connect(VIEW, &["check", "--json"]).expect_status();
        (status["state"] == "finished").then_some(())
    });
    keyed
        .connect(VIEW, &["copy", "-o", "whole.unikprof"])
        .expect_success();
    let samples = keyed
        .client
        .recording("whole.unikprof")
        .profile
        .sample_count();
    assert!(samples > 0);
    samples
}

/// A stranger's visit: silent, foreign, a handshake that fails or one that is left hanging.
fn crowd(agent: SocketAddr, kind: u8) {
    let Ok(mut stream) = TcpStream::connect(agent) else {
        return;
    };
    let _ = stream.set_read_timeout(Some(Duration::from_millis(700)));
    let _ = match kind % 3 {
        0 => Ok(()),
        1 => stream.write_all(&preamble::encode(preamble::KEYED)),
        _ => {
            let _ = shake_hands(&mut stream, &[kind; 8]);
            return;
        }
    };
    let _ = stream.read_to_end(&mut Vec::new());
}

/// Begins a handshake without a key; answers the code of the refusal.
fn shake_hands(stream: &mut TcpStream, key: &[u8; 8]) -> Option<u32> {
    let mut frame = [0; HEADER + MAX_BODY];
    let message = Handshake {
        key: *key,
        ephemeral: [1; 32],
        tag: [0; 16],
    };
    let length = frame::encode(&message, &mut frame).unwrap();
    stream.write_all(&preamble::encode(preamble::KEYED)).ok()?;
    stream.write_all(&frame[..length]).ok()?;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let frame = frame::split(answer.get(preamble::LENGTH..)?).ok()??;
    let refusal: Refusal<'_> = frame::decode(&frame).ok()?;
    Some(refusal.code)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    ToGuest,
    ToClient,
}

/// Somebody on the way, who listens and may alter a byte of the first connection.
struct Meddler {
    address: SocketAddr,
    connections: Arc<AtomicU64>,
    to_guest: Arc<Mutex<Vec<u8>>>,
}

impl Meddler {
    fn start(guest: SocketAddr, alters: Option<(Way, usize)>) -> Meddler {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let meddler = Meddler {
            address: listener.local_addr().unwrap(),
            connections: Arc::default(),
            to_guest: Arc::default(),
        };
        let connections = Arc::clone(&meddler.connections);
        let heard = Arc::clone(&meddler.to_guest);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(guest)) = (client, TcpStream::connect(guest)) else {
                    continue;
                };
                let alters = alters.filter(|_| connections.fetch_add(1, Ordering::Relaxed) == 0);
                let at = |wanted| alters.filter(|(way, _)| *way == wanted).map(|(_, at)| at);
                let halves = [
                    (
                        client.try_clone(),
                        guest.try_clone(),
                        at(Way::ToGuest),
                        true,
                    ),
                    (Ok(guest), Ok(client), at(Way::ToClient), false),
                ];
                for (from, to, at, is_heard) in halves {
                    let (mut from, mut to, heard) =
                        (from.unwrap(), to.unwrap(), Arc::clone(&heard));
                    thread::spawn(move || {
                        let mut passed = 0;
                        let mut buffer = [0; 4096];
                        while let Ok(read @ 1..) = from.read(&mut buffer) {
                            if let Some(at) = at
                                && (passed..passed + read).contains(&at)
                            {
                                buffer[at - passed] ^= 4;
                            }
                            passed += read;
                            if is_heard {
                                heard.lock().unwrap().extend_from_slice(&buffer[..read]);
                            }
                            if to.write_all(&buffer[..read]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        meddler
    }
}
