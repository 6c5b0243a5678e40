//! The service: turns the bytes of a request into the bytes of a response.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use blake2::digest::Key;
use blake2::{Blake2s256, Blake2sMac256, Digest as _};
use miniz_oxide::DataFormat;
use miniz_oxide::deflate::CompressionLevel::DefaultLevel;
use miniz_oxide::deflate::core::CompressorOxide;
use serde::Serialize;

use crate::generator;
use crate::http::{Refusal, Request, Response, is_signed, sign};
use crate::note::Note;
use crate::page;
use crate::store::Store;

/// The longest note, as JSON.
const MAX_NOTE_BYTES: usize = 16 << 10;
/// Shorter responses are not worth compressing.
pub(crate) const MIN_DEFLATED_BYTES: usize = 256;
/// The number of notes in an archive.
const ARCHIVE_NOTES: usize = 4;
/// The maximum number of notes found by a search.
const MAX_FOUND: usize = 20;

/// A wiki without clock and I/O: the same seed and requests give the same responses.
pub struct Service {
    key: Key<Blake2sMac256>,
    store: Store,
    compressor: Box<CompressorOxide>,
    /// Hashes all responses.
    responses: Blake2s256,
}

impl Service {
    /// A service with at most `size` notes, initially half as many.
    ///
    /// Clients must sign with the key of the same `seed`, as a
    /// [`RequestGenerator`](crate::RequestGenerator) of that seed does.
    ///
    /// Memory: about 0.5 MB, plus 8 KB for each generated note.
    pub fn new(seed: u64, size: usize) -> Self {
        let mut store = Store::new(size);
        for (id, note) in (0..).zip(generator::notes(seed).take(size / 2)) {
            store.put(id, note);
        }
        let compressor = CompressorOxide::with_format_and_level(DataFormat::Zlib, DefaultLevel);
        Self {
            key: generator::key(seed),
            store,
            compressor: Box::new(compressor),
            responses: Blake2s256::new(),
        }
    }

    /// Answers one request, given as the bytes of a complete HTTP/1.1 message, and returns the
    /// status of the response. The response replaces the contents of `response`.
    ///
    /// Any bytes are answered: if they are not a request, with a 4xx status and a body with the
    /// reason.
    #[inline(never)]
    pub fn handle(&mut self, request: &[u8], response: &mut Vec<u8>) -> u16 {
        let answer = self.answer(request).unwrap_or_else(Response::from);
        answer.write_to(response);
        self.responses.update(&response);
        answer.status
    }

    /// A checksum of all responses so far: equal for equal seeds, sizes and requests.
    pub fn checksum(&self) -> u64 {
        let hash = self.responses.clone().finalize();
        let start = hash.first_chunk();
        start.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    fn answer(&mut self, request: &[u8]) -> Result<Response, Refusal> {
        let request = Request::parse(request)?;
        let signature = sign(&self.key, request.method, request.target, request.body);
        if !is_signed(signature, request.signature) {
            return Err(Refusal(401, "the signature is wrong"));
        }
        let mut response = self.route(&request)?;
        if request.accepts_deflate && response.body.len() >= MIN_DEFLATED_BYTES {
            response.deflate(&mut self.compressor);
        }
        Ok(response)
    }

    fn route(&mut self, request: &Request<'_>) -> Result<Response, Refusal> {
        let path = request.target.trim_start_matches('/');
        let (resource, name) = path.split_once('/').unwrap_or_default();
        match (request.method, resource) {
            ("GET", "search") => Ok(self.search(name)),
            ("GET", "archive") => Ok(self.archive(number(name)?)),
            ("GET", "notes") => Ok(json(200, self.note(name)?)),
            ("GET", "pages") => {
                let page = page::render(self.note(name)?);
                Ok(Response::new(200, "text/html; charset=utf-8", page))
            }
            ("PUT", "notes") => self.put_note(number(name)?, request.body),
            ("DELETE", "notes") => {
                self.note(name)?;
                Ok(json(200, &self.store.remove(number(name)?)))
            }
            ("PUT", _) => Err(Refusal(405, "only notes can be stored")),
            _ => Err(Refusal(404, "no such page")),
        }
    }

    fn note(&self, name: &str) -> Result<&Note, Refusal> {
        let note = self.store.get(number(name)?);
        note.ok_or(Refusal(404, "no such note"))
    }

    #[inline(never)]
    fn put_note(&mut self, id: u32, body: &[u8]) -> Result<Response, Refusal> {
        if body.len() > MAX_NOTE_BYTES {
            return Err(Refusal(413, "too long"));
        }
        let is_new = self.store.put(id, Note::parse(body)?);
        Ok(json(if is_new { 201 } else { 200 }, &id))
    }

    #[inline(never)]
    fn search(&self, words: &str) -> Response {
        let mut ids = self.store.search(words.split('+'));
        ids.truncate(MAX_FOUND);
        json(200, &ids)
    }

    /// Some notes, one per line.
    #[inline(never)]
    fn archive(&self, from: u32) -> Response {
        let mut lines = String::new();
        for note in self.store.from(from).take(ARCHIVE_NOTES) {
            lines += &format!("{}\n", note.to_json());
        }
        Response::new(200, "application/jsonl", lines)
    }
}

fn number(name: &str) -> Result<u32, Refusal> {
    let number = name.parse();
    number.map_err(|_| Refusal(404, "not a number"))
}

fn json(status: u16, value: &impl Serialize) -> Response {
    // All answers can be represented in JSON.
    let body = serde_json_alloc::to_vec(value).unwrap_or_default();
    Response::new(status, "application/json", body)
}
