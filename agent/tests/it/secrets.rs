//! Nothing that an agent with keys sends unencrypted or logs may contain a key.

use std::sync::atomic::Ordering;

use crate::client::encoded;
use crate::fake_guest::FakeService;
use crate::keyed::{self, CONTROL, Client, OTHER, VIEW, connect, exchange};
use unikprof_agent::{Access, Key, Keys, Role, Service, SessionId};
use unikprof_proto::message::{Check, Stop};
use unikprof_proto::preamble;

/// Fails if a text or bytes contain four bytes of a key, in any notation.
fn assert_reveals_no_key(sent: &[u8], what: &str) {
    let text = String::from_utf8_lossy(sent).to_lowercase();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    for key in [VIEW, CONTROL, OTHER] {
        let byte = key[0];
        assert!(!sent.windows(4).any(|four| four == [byte; 4]), "{what}");
        let hex = format!("{byte:02x}").repeat(4);
        assert!(!digits.contains(&hex), "{what}: {text}");
        assert!(!text.contains(&format!("{byte}, {byte}, {byte}")), "{what}");
    }
}

#[test]
fn the_search_finds_keys() {
    let written = [
        CONTROL.to_vec(),
        format!("{VIEW:?}").into_bytes(),
        format!("{OTHER:x?}").into_bytes(),
        format!("unikprof-key-1:{}", "a7".repeat(32)).into_bytes(),
    ];
    for sent in written {
        let found = std::panic::catch_unwind(|| assert_reveals_no_key(&sent, "here"));
        assert!(found.is_err(), "{}", String::from_utf8_lossy(&sent));
    }
}

/// Every error with keys: none, an old one, and a truncated one.
#[test]
fn neither_logs_nor_refusals_nor_debug_texts_hold_a_key() {
    let (agent, mut service) = keyed::service();
    let open = |service: &mut FakeService, said: [u8; 16]| -> (SessionId, Vec<u8>) {
        let session = service.open().unwrap();
        let answer = exchange(service, session, &said);
        (session, answer)
    };
    let (session, sent) = open(&mut service, preamble::encode(preamble::OPEN));
    assert_reveals_no_key(&sent, "key needed");
    service.close(session);
    let stranger = connect(&mut service, OTHER);
    assert_reveals_no_key(&stranger.send(&mut service), "bad key");
    service.close(stranger.session);
    let mut viewer = Client::new(&mut service, VIEW);
    let refused = viewer.ask(&mut service, &Stop { recording: 0 });
    assert_reveals_no_key(&refused[0].body, "not allowed");
    let mut control = Client::new(&mut service, CONTROL);
    let sent = control.ask(&mut service, &Check {});
    assert_reveals_no_key(&sent[0].body, "status");
    // During conversations, while it contains their keys.
    assert_reveals_no_key(format!("{service:?}").as_bytes(), "the service");
    let mut altered = control.seal(&encoded(&Check {}));
    altered[3] ^= 1;
    let sent = exchange(&mut service, control.session, &altered);
    assert_reveals_no_key(&sent, "bad record");
    drop(service);

    let platform = agent.platform();
    platform.has_no_random.store(true, Ordering::Relaxed);
    let mut keys = Keys::new();
    keys.add(Role::Control, Key::from_bytes(CONTROL)).unwrap();
    let twice = keys.add(Role::View, Key::from_bytes(CONTROL)).unwrap_err();
    assert_reveals_no_key(format!("{twice} {twice:?} {keys:?}").as_bytes(), "keys");
    let keys: &'static Keys = Box::leak(Box::new(keys));
    let refused = Service::new(agent, Access::Keys(keys)).unwrap_err();
    assert_reveals_no_key(format!("{refused} {refused:?}").as_bytes(), "serving");
    for digits in ["a7".repeat(31), "a7".repeat(33), "aG".repeat(32)] {
        let error = Key::parse(&format!("unikprof-key-1:{digits}")).unwrap_err();
        assert_reveals_no_key(format!("{error} {error:?}").as_bytes(), "a key's text");
    }
    let logged = platform.logged.lock().unwrap();
    assert!(!logged.is_empty(), "there was something to log");
    for line in logged.iter() {
        assert_reveals_no_key(line.as_bytes(), "log");
    }
}
