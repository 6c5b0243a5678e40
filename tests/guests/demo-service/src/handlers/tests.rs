//! Every route, through the whole service.

#![allow(clippy::unwrap_used)]

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use blake3::Hash;
use serde_json_alloc::{Value, json};

use crate::compression::Compressor;
use crate::generator::Message;
use crate::hashing::{Keyring, digest};
use crate::http::Method::{self, Delete, Get, Patch, Post, Put};
use crate::http::reply::Reply;
use crate::service::Service;
use crate::store::proof::{Proof, Side, Step};

/// An empty service of 20 documents and its one client.
struct Fixture {
    service: Service,
    keyring: Keyring,
}

struct Answer {
    code: u16,
    etag: Option<String>,
    body: Vec<u8>,
    compressed: bool,
}

impl Fixture {
    fn new() -> Self {
        let mut service = Service::new(8, 20);
        let keyring = Keyring::new(8);
        let mut response = Vec::new();
        let export = Message::new(Get, "/archive".into()).sign(&keyring, "test");
        service.handle(&export, &mut response);
        let mut fixture = Self { service, keyring };
        for line in Reply::parse(&response)
            .unwrap()
            .body
            .split(|&byte| byte == b'\n')
        {
            if let Ok(entry) = serde_json_alloc::from_slice::<Value>(line) {
                let path = format!("/documents/{}", entry["id"].as_str().unwrap());
                assert_eq!(fixture.call(Delete, &path, b"").code, 204);
            }
        }
        assert_eq!(fixture.service.statistics().documents, 0);
        fixture
    }

    fn send(&mut self, message: Message) -> Answer {
        self.send_bytes(&message.sign(&self.keyring, "test"))
    }

    fn send_bytes(&mut self, bytes: &[u8]) -> Answer {
        let mut response = Vec::new();
        let status = self.service.handle(bytes, &mut response);
        let reply = Reply::parse(&response).unwrap();
        assert_eq!(reply.code, status.code());
        Answer {
            code: reply.code,
            etag: reply.etag.map(Into::into),
            compressed: reply.compressed,
            body: reply.body.into_owned(),
        }
    }

    fn call(&mut self, method: Method, target: &str, body: &[u8]) -> Answer {
        self.send(Message::new(method, target.into()).body(body.to_vec()))
    }

    fn put(&mut self, id: &str, value: &Value) -> Answer {
        self.call(
            Put,
            &format!("/documents/{id}"),
            format!("{value}").as_bytes(),
        )
    }
}

impl Answer {
    fn json(&self) -> Value {
        serde_json_alloc::from_slice(&self.body).unwrap()
    }

    fn text(&self) -> &str {
        core::str::from_utf8(&self.body).unwrap()
    }

    fn error(&self) -> String {
        let value = self.json();
        assert_eq!(value["status"], self.code);
        value["error"].as_str().unwrap().into()
    }
}

#[test]
fn documents_live_change_and_die() {
    let mut fixture = Fixture::new();
    let value = json!({"title": "One", "stock": 1, "nested": {"a": 1, "b": 2}});
    let created = fixture.put("one", &value);
    assert_eq!((created.code, &created.json()["version"]), (201, &json!(1)));
    assert_eq!(fixture.call(Get, "/documents/one", b"").json(), value);

    let patch = br#"{"stock": null, "nested": {"b": 3}}"#;
    let patched = fixture.call(Patch, "/documents/one", patch);
    assert_eq!((patched.code, &patched.json()["version"]), (200, &json!(2)));
    let expected = json!({"title": "One", "nested": {"a": 1, "b": 3}});
    assert_eq!(fixture.call(Get, "/documents/one", b"").json(), expected);

    assert_eq!(fixture.put("one", &value).code, 200);
    assert_eq!(fixture.call(Delete, "/documents/one", b"").code, 204);
    for (method, target) in [
        (Get, "/documents/one"),
        (Delete, "/documents/one"),
        (Get, "/documents/one/proof"),
    ] {
        assert_eq!(fixture.call(method, target, b"").code, 404, "{target}");
    }
    assert_eq!(fixture.call(Patch, "/documents/one", b"{}").code, 404);
}

#[test]
fn a_known_tag_spares_the_body() {
    let mut fixture = Fixture::new();
    fixture.put("one", &json!({"n": 1}));
    let tag = fixture.call(Get, "/documents/one", b"").etag.unwrap();
    let again = || Message::new(Get, "/documents/one".into()).header("if-none-match", &tag);
    let answer = fixture.send(again());
    assert_eq!((answer.code, answer.body.len()), (304, 0));
    fixture.put("one", &json!({"n": 2}));
    assert_eq!(fixture.send(again()).code, 200);
}

#[test]
fn proofs_verify_with_nothing_but_the_answer() {
    let mut fixture = Fixture::new();
    for number in 0..20 {
        fixture.put(&format!("d{number}"), &json!({ "number": number }));
    }
    let hash = |value: &Value| Hash::from_hex(value.as_str().unwrap()).unwrap();
    for number in 0..20 {
        let id = format!("d{number}");
        let answer = fixture
            .call(Get, &format!("/documents/{id}/proof"), b"")
            .json();
        let proof = &answer["proof"];
        let steps = proof["steps"].as_array().unwrap().iter().map(|step| Step {
            side: if step["from"] == "left" {
                Side::Left
            } else {
                Side::Right
            },
            id: step["id"].as_str().unwrap().into(),
            document: hash(&step["document"]),
            sibling: hash(&step["sibling"]),
        });
        let proof = Proof {
            left: hash(&proof["left"]),
            right: hash(&proof["right"]),
            steps: steps.collect(),
        };
        let document = digest(&json!({ "number": number }));
        assert_eq!(hash(&answer["digest"]), document);
        assert_eq!(proof.root(&id, &document), hash(&answer["root"]));
    }
}

#[test]
fn pages_render_the_tree_of_sections() {
    let mut fixture = Fixture::new();
    let value = json!({
        "title": "A <b>", "summary": "s", "tags": ["x"],
        "sections": [{"heading": "1", "text": "t", "sections": [{"heading": "2", "text": "u"}]}],
    });
    fixture.put("one", &value);
    let page = fixture.call(Get, "/documents/one/page", b"");
    assert_eq!(
        page.text(),
        "<!DOCTYPE html>\n<html><head><title>A &lt;b&gt;</title></head><body><article>\
         <h1>A &lt;b&gt;</h1><p>Anonymous</p><ul class=\"tags\"><li>x</li></ul><p>s</p>\
         <section><h2>1</h2><p>t</p><section><h2>2</h2><p>u</p></section></section>\
         </article></body></html>\n"
    );
}

#[test]
fn searches_rank_sort_and_limit() {
    let mut fixture = Fixture::new();
    fixture.put("a", &json!({"title": "zebra", "text": "river river river"}));
    fixture.put("b", &json!({"title": "Apple", "text": "river stone"}));
    fixture.put("c", &json!({"title": "mango", "text": "stone"}));
    let ids = |answer: &Answer| -> Vec<String> {
        let hits = answer.json()["hits"].as_array().unwrap().clone();
        hits.iter()
            .map(|hit| hit["id"].as_str().unwrap().into())
            .collect()
    };
    assert_eq!(ids(&fixture.call(Get, "/search?q=river", b"")), ["a", "b"]);
    assert_eq!(
        ids(&fixture.call(Get, "/search?q=river+stone&order=title", b"")),
        ["b", "c", "a"]
    );
    let limited = fixture.call(Get, "/search?q=river&limit=1", b"");
    assert_eq!(
        (ids(&limited).len(), &limited.json()["matches"]),
        (1, &json!(2))
    );
    fixture.call(Delete, "/documents/a", b"");
    assert_eq!(ids(&fixture.call(Get, "/search?q=RIVER", b"")), ["b"]);
    let catalogue = fixture.call(Get, "/catalogue?q=stone", b"");
    let rows: Vec<_> = catalogue.text().match_indices("<tr>").collect();
    assert_eq!(rows.len(), 2);
    let nothing = fixture.call(Get, "/catalogue?q=%3Cnone%3E", b"");
    assert!(nothing.text().contains("<title>&lt;none&gt;</title>"));
    assert!(nothing.text().contains("Nothing found."));
    for target in [
        "/search",
        "/search?q=a&order=age",
        "/search?q=a&limit=ten",
        "/catalogue",
    ] {
        assert_eq!(fixture.call(Get, target, b"").code, 400, "{target}");
    }
}

#[test]
fn expressions_are_evaluated_over_one_document() {
    let mut fixture = Fixture::new();
    fixture.put("one", &json!({"price": 2.5, "stock": 4}));
    let answer = fixture.call(
        Post,
        "/documents/one/evaluate",
        b"price * stock > 9 ? stock : 0",
    );
    assert_eq!(answer.json(), json!({"id": "one", "value": 4}));
    let answer = fixture.call(Post, "/documents/one/evaluate", b"1 / (stock - 4)");
    assert_eq!(
        (answer.code, answer.error().as_str()),
        (422, "division by zero")
    );
    assert_eq!(
        fixture.call(Post, "/documents/one/evaluate", b"\xFF").code,
        400
    );
    assert_eq!(
        fixture.call(Post, "/documents/none/evaluate", b"1").code,
        404
    );
}

#[test]
fn queries_filter_compute_and_sort() {
    let mut fixture = Fixture::new();
    for (id, price) in [("a", 5), ("b", 20), ("c", 10), ("d", 20)] {
        fixture.put(id, &json!({ "price": price }));
    }
    let query = json!({
        "where": "price > 5", "select": "price * 2", "order": "descending", "limit": 2,
    });
    let answer = fixture.call(Post, "/query", format!("{query}").as_bytes());
    let rows = json!([{"id": "b", "value": 40}, {"id": "d", "value": 40}]);
    assert_eq!(answer.json(), json!({"matches": 3, "rows": rows}));
    let ascending = br#"{"where": "true", "select": "price"}"#;
    let answer = fixture.call(Post, "/query", ascending).json();
    let values: Vec<_> = answer["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| &r["value"])
        .collect();
    assert_eq!(values, [5, 10, 20, 20]);
    assert_eq!(
        fixture.call(Post, "/query", br#"{"where": "true"}"#).code,
        400
    );
    assert_eq!(
        fixture
            .call(Post, "/query", br#"{"where": "(", "select": "1"}"#)
            .code,
        422
    );
}

#[test]
fn an_exported_archive_can_be_imported_compressed() {
    let mut fixture = Fixture::new();
    for number in 0..10 {
        let value = json!({ "number": number, "text": "the same again ".repeat(10) });
        fixture.put(&format!("d{number}"), &value);
    }
    let root = fixture.call(Get, "/statistics", b"").json()["root"].clone();
    let archive = fixture.send(Message::new(Get, "/archive?limit=50".into()).accepting_deflate());
    assert!(archive.compressed);
    let part = fixture.call(Get, "/archive?from=d7&limit=2", b"");
    assert_eq!(part.body.split(|&byte| byte == b'\n').count(), 3);
    for number in 0..10 {
        fixture.call(Delete, &format!("/documents/d{number}"), b"");
    }
    let body = Compressor::new().deflate(&archive.body).unwrap();
    let answer = fixture
        .send(Message::new(Post, "/archive".into()).deflated_body(body))
        .json();
    assert_eq!((&answer["stored"], &answer["root"]), (&json!(10), &root));

    let mixed = b"{\"id\": \"x\", \"value\": {}}\n{\"id\": \"y\"}\n[]\n";
    let answer = fixture.call(Post, "/archive", mixed).json();
    assert_eq!(
        (&answer["stored"], &answer["refused"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(fixture.call(Post, "/archive", b"{}\n{").code, 400);
}

#[test]
fn short_answers_and_unwilling_clients_get_plain_bodies() {
    let mut fixture = Fixture::new();
    fixture.put("long", &json!({ "text": "again ".repeat(200) }));
    fixture.put("short", &json!({ "text": "again" }));
    let get = |id: &str| Message::new(Get, format!("/documents/{id}"));
    assert!(fixture.send(get("long").accepting_deflate()).compressed);
    assert!(!fixture.send(get("long")).compressed);
    assert!(!fixture.send(get("short").accepting_deflate()).compressed);
}

#[test]
fn every_refusal_has_its_status_and_its_reason() {
    let mut fixture = Fixture::new();
    let deep = format!("{}{}", "{\"a\":".repeat(40), "1").into_bytes();
    let deep = [deep, "}".repeat(40).into_bytes()].concat();
    let bomb = Compressor::new().deflate(&[b' '; 70_000]).unwrap();
    let cases = [
        (Message::new(Get, "/".into()), 404),
        (Message::new(Get, "/documents".into()), 404),
        (Message::new(Get, "/documents/a/b/c".into()), 404),
        (Message::new(Put, "/search".into()), 405),
        (
            Message::new(Put, "/documents/a".into()).body(b"{".to_vec()),
            400,
        ),
        (
            Message::new(Put, "/documents/a".into()).body(b"[]".to_vec()),
            422,
        ),
        (Message::new(Put, "/documents/a".into()).body(deep), 422),
        (
            Message::new(Put, format!("/documents/{}", "a".repeat(41))).body(b"{}".to_vec()),
            422,
        ),
        (
            Message::new(Put, "/documents/a".into()).body("x".repeat(16_385).into_bytes()),
            413,
        ),
        (Message::new(Get, format!("/{}", "a".repeat(512))), 413),
        (
            Message::new(Post, "/archive".into()).deflated_body(bomb),
            413,
        ),
        (
            Message::new(Post, "/archive".into()).deflated_body(b"noise".to_vec()),
            400,
        ),
        (
            Message::new(Get, "/statistics".into()).header("content-encoding", "br"),
            400,
        ),
    ];
    for (position, (message, code)) in cases.into_iter().enumerate() {
        let answer = fixture.send(message);
        assert_eq!(answer.code, code, "case {position}: {}", answer.text());
        assert!(!answer.error().is_empty());
    }
    assert_eq!(fixture.service.statistics().documents, 0);
}

#[test]
fn only_signed_requests_are_served() {
    let mut fixture = Fixture::new();
    let unsigned = b"GET /statistics HTTP/1.1\r\nx-client: test\r\n\r\n";
    assert_eq!(fixture.send_bytes(unsigned).code, 401);
    let message = Message::new(Get, "/statistics".into());
    let foreign = message.sign(&Keyring::new(9), "test");
    assert_eq!(fixture.send_bytes(&foreign).code, 401);
    let mut changed = Message::new(Put, "/documents/a".into())
        .body(b"{\"n\":1}".to_vec())
        .sign(&fixture.keyring, "test");
    let digit = changed.len() - 2;
    changed[digit] = b'2';
    assert_eq!(fixture.send_bytes(&changed).code, 401);
}

#[test]
fn a_greedy_client_is_slowed_and_others_are_not() {
    let mut fixture = Fixture::new();
    let statistics = || Message::new(Get, "/statistics".into());
    let codes: Vec<u16> = (0..300).map(|_| fixture.send(statistics()).code).collect();
    assert_eq!(codes.last(), Some(&429));
    let other = statistics().sign(&fixture.keyring, "other");
    assert_eq!(fixture.send_bytes(&other).code, 200);
}
