//! The stack that the crate's documentation asks for is enough, also for the worst requests.

#![allow(clippy::unwrap_used)]

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use std::thread;

use crate::generator::{Message, RequestGenerator};
use crate::hashing::Keyring;
use crate::http::Method::{Get, Patch, Post, Put};
use crate::service::Service;

const STACK_BYTES: usize = if cfg!(debug_assertions) {
    512 * 1024
} else {
    128 * 1024
};

/// Requests that recurse as deeply as the limits allow.
fn deep_requests(keyring: &Keyring) -> Vec<Vec<u8>> {
    let nested = |levels: usize| {
        format!(
            "{}1{}",
            "{\"sections\":[".repeat(levels),
            "]}".repeat(levels)
        )
    };
    // 15 levels of object and list, with room for the tree function to walk.
    let tree = format!("{}{}", "{\"sections\":[".repeat(15), "{}") + &"]}".repeat(15);
    let expression = |text: String| {
        Message::new(Post, "/documents/tree/evaluate".into()).body(text.into_bytes())
    };
    let put = |body: String| Message::new(Put, "/documents/tree".into()).body(body.into_bytes());
    let calls = format!("{}1{}", "tree(sections,".repeat(30), ")".repeat(30));
    let brackets = format!("{}1{}", "(".repeat(31), "+1)".repeat(31));
    let messages = [
        put("[".repeat(16_000)),
        put(nested(62)),
        Message::new(Patch, "/documents/tree".into()).body(nested(62).into_bytes()),
        put(tree),
        Message::new(Get, "/documents/tree/page".into()),
        expression(brackets.clone()),
        expression("(".repeat(2000)),
        expression("-".repeat(2000)),
        expression("abs(".repeat(500)),
        expression(calls),
        expression(format!("tree(sections, {brackets})")),
    ];
    messages
        .into_iter()
        .map(|message| message.sign(keyring, "test"))
        .collect()
}

#[test]
fn the_documented_stack_is_enough() {
    let run = || {
        let mut service = Service::new(1, 64);
        let mut response = Vec::new();
        for request in RequestGenerator::new(1, 64).take(2000) {
            service.handle(&request, &mut response);
        }
        let mut codes = Vec::new();
        for request in deep_requests(&Keyring::new(1)) {
            codes.push(service.handle(&request, &mut response).code());
        }
        codes
    };
    // An overflow ends the whole test process.
    let codes = thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(run)
        .unwrap()
        .join()
        .unwrap();
    assert_eq!(codes[..2], [400, 422]);
    assert!(
        codes[3] < 300 && codes[4] == 200 && codes[5] == 200,
        "{codes:?}"
    );
}
