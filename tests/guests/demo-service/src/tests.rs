//! Tests of the service through its requests.

#![allow(clippy::unwrap_used)]

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use std::thread;

use miniz_oxide::inflate::decompress_to_vec_zlib;

use crate::generator::{key, signed};
use crate::service::MIN_DEFLATED_BYTES;
use crate::{RequestGenerator, Service};

const SEED: u64 = 4;

/// The answer to a signed request: the status and the inflated body.
fn ask(service: &mut Service, line: &str, body: &str) -> (u16, String) {
    let (method, target) = line.split_once(' ').unwrap();
    let (status, body) = answer(service, &signed(&key(SEED), method, target, body));
    let inflated = decompress_to_vec_zlib(&body);
    let is_inflated = inflated.is_ok();
    let body = inflated.unwrap_or(body);
    assert_eq!(is_inflated, body.len() >= MIN_DEFLATED_BYTES);
    (status, String::from_utf8(body).unwrap())
}

/// The answer to any bytes, which must be a complete response.
fn answer(service: &mut Service, request: &[u8]) -> (u16, Vec<u8>) {
    let mut response = Vec::new();
    let status = service.handle(request, &mut response);
    let mut headers = [httparse::EMPTY_HEADER; 8];
    let mut head = httparse::Response::new(&mut headers);
    let head_bytes = head.parse(&response).unwrap().unwrap();
    assert_eq!(head.code, Some(status));
    let body = response[head_bytes..].to_vec();
    let length = format!("{}", body.len()).into_bytes();
    assert!(head.headers.iter().any(|header| header.value == length));
    (status, body)
}

fn note(title: &str, text: &str, comments: &str) -> String {
    format!(r#"{{"title":"{title}","text":"{text}","comments":[{comments}]}}"#)
}

fn comment(author: &str, text: &str, replies: &str) -> String {
    format!(r#"{{"author":"{author}","text":"{text}","replies":[{replies}]}}"#)
}

#[test]
fn requests_get_their_answers() {
    let comments = comment("ann", "hm", &comment("bob", "*why?* `a`", ""));
    let text = r"one *1 2*\n\n- two <script>, [tides](12)\n- `\n\n";
    let note_7 = note("T & <b>", text, &comments);
    let page = "<!doctype html>\n<title>T &amp; &lt;b&gt;</title>\n<h1>T &amp; &lt;b&gt;</h1>\n\
        <p>one <b>1 2</b>\n<ul><li>two &lt;script&gt;, <a href=\"/pages/12\">tides</a>\n\
        <li>`</ul>\n\
        <blockquote><b>ann</b>\n<p>hm\n<blockquote><b>bob</b>\n<p><b>why?</b> <code>a</code>\n\
        </blockquote>\n</blockquote>\n";
    let spam = |text| note("", "", &comment("eve", "hm", &comment("eve", text, "")));
    let empty = note("", "", "");
    // A store for three notes, with one at first.
    let mut service = Service::new(SEED, 3);
    for (line, body, expected) in [
        ("PUT /notes/7", &*note_7, "201 7"),
        ("PUT /notes/7", &note_7, "200 7"),
        ("GET /notes/7", "", &*format!("200 {note_7}")),
        ("GET /archive/7", "", &*format!("200 {note_7}\n")),
        ("GET /pages/7", "", &*format!("200 {page}")),
        ("DELETE /notes/7", "", "200 true"),
        ("DELETE /notes/7", "", "404 no such note"),
        ("PUT /notes/1", &spam("FREE  money"), "422 spam"),
        ("PUT /notes/1", &spam("freedom; money"), "201 1"),
        ("PUT /notes/1", "{}", "422 not a note"),
        ("PUT /notes/1", &"x".repeat(16385), "413 too long"),
        ("PUT /notes/one", &empty, "404 not a number"),
        ("PUT /search/word", "", "405 only notes can be stored"),
        ("GET /", "", "404 no such page"),
        // Rare words come first, then titles regardless of case.
        ("PUT /notes/1", &note("beta", "zinc", ""), "200 1"),
        ("PUT /notes/2", &note("Alpha", "Zinc", ""), "201 2"),
        ("PUT /notes/3", &note("gamma", "zinc, tin, tin", ""), "201 3"),
        ("GET /search/none+zinc", "", "200 [2,1,3]"),
        ("GET /search/ZINC+tin", "", "200 [3,2,1]"),
        // The oldest note is evicted, and words of removed notes are not found.
        ("PUT /notes/2", &empty, "200 2"),
        ("PUT /notes/4", &empty, "201 4"),
        ("GET /search/zinc", "", "200 [3]"),
    ] {
        let (status, answer) = ask(&mut service, line, body);
        assert_eq!(format!("{status} {answer}"), expected, "{line} {body}");
    }
}

/// No bytes make the service panic, and the signature detects every changed body or target.
#[test]
fn damaged_requests_are_refused() {
    let mut service = Service::new(SEED, 16);
    let mut random = fastrand::Rng::with_seed(99);
    let mut refused = 0;
    for mut request in RequestGenerator::new(SEED, 16).take(200) {
        let position = random.usize(..request.len());
        match random.u8(..4) {
            0 => request[position] ^= random.u8(1..),
            1 => request.truncate(position),
            2 => drop(request.remove(position)),
            _ => request.extend_from_within(position..),
        }
        refused += usize::from([400, 401].contains(&answer(&mut service, &request).0));
    }
    // The other requests have changed in a header that the service ignores.
    assert!(refused > 150, "{refused}");
}

#[test]
fn a_seed_decides_everything() {
    let checksum = |seed, requests| {
        let mut service = Service::new(seed, 32);
        let mut served = 0;
        for request in RequestGenerator::new(seed, 32).take(requests) {
            served += usize::from(answer(&mut service, &request).0 < 400);
        }
        // Some notes are missing, some comments are spam, some requests are damaged.
        assert!((requests / 2..requests).contains(&served), "{served}");
        service.checksum()
    };
    assert_eq!(checksum(5, 200), checksum(5, 200));
    assert_ne!(checksum(5, 200), checksum(6, 200));
    assert_ne!(checksum(5, 200), checksum(5, 199));
}

/// Guards the documented stack size with the deepest notes.
#[test]
fn the_documented_stack_is_enough() {
    const STACK_BYTES: usize = (if cfg!(debug_assertions) { 512 } else { 128 }) << 10;
    let nested = |levels| {
        let nest = |replies: String, _| comment("ann", "*deep*", &replies);
        let comments = (0..levels).fold(String::new(), nest);
        note("deep", &"*[`".repeat(1000), &comments)
    };
    let run = move || {
        let mut service = Service::new(SEED, 3);
        for (status, line, body) in [
            (422, "PUT /notes/1", nested(63)),
            (201, "PUT /notes/1", nested(62)),
            (200, "GET /notes/1", String::new()),
            (200, "GET /pages/1", String::new()),
        ] {
            assert_eq!(ask(&mut service, line, &body).0, status, "{line}");
        }
    };
    // An overflow ends the whole test process.
    let thread = thread::Builder::new().stack_size(STACK_BYTES);
    thread.spawn(run).unwrap().join().unwrap();
}
