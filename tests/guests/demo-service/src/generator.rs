//! Generates an endless sequence of requests for the service.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::iter;
use core::ops::Range;

use blake2::digest::{Key, Mac as _};
use blake2::{Blake2s256, Blake2sMac256, Digest as _};
use fastrand::Rng;

use crate::http::sign;
use crate::note::{Comment, Note};

const WORDS: [&str; 24] = [
    "anchor", "boat", "bridge", "captain", "chart", "coast", "compass", "deck", "ferry", "fog",
    "free", "harbour", "island", "keel", "lantern", "mast", "money", "pilot", "quay", "rudder",
    "sail", "storm", "tide", "weather",
];

/// Generates requests for a [`Service`](crate::Service) of the same seed and size.
///
/// Most of them read notes; some write, search, archive or delete; one in a hundred is truncated.
pub struct RequestGenerator {
    random: Rng,
    key: Key<Blake2sMac256>,
    size: usize,
}

impl RequestGenerator {
    /// A generator whose requests concern up to twice as many notes as a service of `size` has.
    pub fn new(seed: u64, size: usize) -> Self {
        Self { random: Rng::with_seed(seed), key: key(seed), size: size.max(1) }
    }
}

impl Iterator for RequestGenerator {
    type Item = Vec<u8>;

    /// Always returns a request.
    fn next(&mut self) -> Option<Vec<u8>> {
        let random = &mut self.random;
        // Small numbers more often than large ones.
        let bound = random.usize(..2 * self.size) + 1;
        let id = random.usize(..bound);
        let kind = random.u32(..100);
        let (method, target) = match kind {
            0..20 => ("PUT", format!("/notes/{id}")),
            20..35 => ("GET", format!("/notes/{id}")),
            35..80 => ("GET", format!("/pages/{id}")),
            80..90 => ("GET", format!("/search/{}", words(random, 1..3, "+"))),
            90..95 => ("GET", format!("/archive/{id}")),
            _ => ("DELETE", format!("/notes/{id}")),
        };
        let body = (method == "PUT").then(|| note(random).to_json());
        let mut request = signed(&self.key, method, &target, &body.unwrap_or_default());
        if kind == 99 {
            request.truncate(random.usize(..request.len()));
        }
        Some(request)
    }
}

/// The key shared by a service and its clients.
pub(crate) fn key(seed: u64) -> Key<Blake2sMac256> {
    let context = Blake2s256::new_with_prefix("unikprof demo service 2026 key");
    context.chain_update(seed.to_le_bytes()).finalize()
}

/// A request with its signature.
pub(crate) fn signed(key: &Key<Blake2sMac256>, method: &str, target: &str, body: &str) -> Vec<u8> {
    let signature = sign(key, method, target, body.as_bytes()).finalize().into_bytes();
    let length = body.len();
    let request = format!(
        "{method} {target} HTTP/1.1\r\nHost: wiki\r\nSignature: {signature:x}\r\n\
         Accept-Encoding: deflate\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    request.into_bytes()
}

/// A service's initial notes.
pub(crate) fn notes(seed: u64) -> impl Iterator<Item = Note> {
    let mut random = Rng::with_seed(!seed);
    iter::repeat_with(move || note(&mut random))
}

fn note(random: &mut Rng) -> Note {
    let count = random.u32(1..4);
    Note {
        title: words(random, 2..5, " "),
        text: (0..count).map(|_| paragraph(random)).collect(),
        comments: comments(random, 4),
    }
}

/// Comments whose replies nest no deeper than `depth`.
fn comments(random: &mut Rng, depth: u32) -> Vec<Comment> {
    let count = random.u32(..=depth) * random.u32(..2);
    let comment = |_| Comment {
        author: words(random, 1..2, ""),
        text: sentence(random),
        replies: comments(random, depth - 1),
    };
    (0..count).map(comment).collect()
}

/// A paragraph or a list.
fn paragraph(random: &mut Rng) -> String {
    let before = random.choice(["", "", "- "]).unwrap_or_default();
    let count = random.u32(1..5);
    let line = |_| format!("{before}{}\n", sentence(random));
    (0..count).map(line).collect::<String>() + "\n"
}

/// A sentence; about one in a hundred is spam.
fn sentence(random: &mut Rng) -> String {
    let count = random.u32(4..12);
    let word = |_| {
        let word = words(random, 1..2, "");
        match random.u32(..16) {
            0 => format!("*{word}* "),
            1 => format!("`{word}` "),
            2 => format!("[{word}]({}) ", random.u32(..100)),
            3 => format!("{word} & "),
            _ => format!("{word} "),
        }
    };
    (0..count).map(word).collect()
}

fn words(random: &mut Rng, count: Range<usize>, separator: &str) -> String {
    let count = random.usize(count);
    let word = |_| random.choice(WORDS).unwrap_or_default();
    let words: Vec<_> = (0..count).map(word).collect();
    words.join(separator)
}
