//! Conversations under a key, and what becomes of those without one.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::panic)]

mod fake_guest;
mod keyed;

use fake_guest::client::{one_ms, read, refusal_code};
use keyed::{CONTROL, Client, VIEW};
use unikprof_proto::code::{refusal, role};
use unikprof_proto::message::{Check, Hello, Started, Status, Welcome};

/// Both implementations understand each other, and each key has its role.
#[test]
fn a_key_opens_a_conversation_with_its_role() {
    let (_, mut service) = keyed::service();
    for (key, expected) in [(VIEW, role::VIEW), (CONTROL, role::CONTROL)] {
        let mut client = Client::new(&mut service, key);
        let frames = client.ask(&mut service, &Hello { client: "test" });
        let welcome: Welcome<'_> = read(&frames[0]);
        assert_eq!(welcome.role, expected);
        let frames = client.ask(&mut service, &one_ms());
        if expected == role::VIEW {
            assert_eq!(refusal_code(&frames).0, refusal::NOT_ALLOWED);
        } else {
            assert_eq!(read::<Started>(&frames[0]).recording, 1);
        }
        let frames = client.ask(&mut service, &Check {});
        let status: Status<'_> = read(&frames[0]);
        assert_eq!(status.peers.not_allowed, 1, "the refused start");
    }
}
