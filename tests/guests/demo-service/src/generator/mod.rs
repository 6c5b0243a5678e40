//! The clients: requests of every kind, for ever, from one seed.

mod documents;
mod expressions;
mod kinds;
mod message;
mod vocabulary;

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde_json_alloc::{Value, json};

use crate::compression::Compressor;
use crate::hashing::Keyring;
use crate::http::Method;
use crate::random::Random;
pub(crate) use documents::DocumentWriter;
pub use kinds::RequestKind;
pub(crate) use message::Message;

/// The first client sends a quarter of all requests and now and then passes its quota.
const CLIENTS: usize = 12;
const GREEDY_PERCENT: usize = 18;

/// An endless iterator of request texts for a [`Service`](crate::Service) made with the same seed
/// and size.
///
/// The kinds come with the weights of [`RequestKind::weight`]. The ids are those of twice as many
/// documents as the service holds, some far more often than others, so some reads miss and the
/// service must evict.
pub struct RequestGenerator {
    random: Random,
    writer: DocumentWriter,
    keyring: Keyring,
    compressor: Compressor,
    size: usize,
}

impl RequestGenerator {
    /// Requests for a service with this seed and size.
    pub fn new(seed: u64, size: usize) -> Self {
        Self {
            random: Random::new(seed),
            writer: DocumentWriter::new(seed ^ 0xD0C5),
            keyring: Keyring::new(seed),
            compressor: Compressor::new(),
            size: size.max(1),
        }
    }

    /// The text of one request of this kind.
    #[inline(never)]
    pub fn request(&mut self, kind: RequestKind) -> Vec<u8> {
        match kind {
            RequestKind::Read => self.read(),
            RequestKind::Replace => self.replace(),
            RequestKind::Patch => self.patch(),
            RequestKind::Delete => self.delete(),
            RequestKind::Prove => self.get_document("/proof"),
            RequestKind::Page => self.get_document("/page"),
            RequestKind::Evaluate => self.evaluate(),
            RequestKind::Search => self.search(),
            RequestKind::Catalogue => self.catalogue(),
            RequestKind::Query => self.query(),
            RequestKind::Export => self.export(),
            RequestKind::Import => self.import(),
            RequestKind::Statistics => self.send(Message::new(Method::Get, "/statistics".into())),
            RequestKind::Malformed => self.malformed(),
        }
    }

    fn read(&mut self) -> Vec<u8> {
        let message = Message::new(Method::Get, self.document_path(""));
        let message = if self.random.chance(25) {
            message.accepting_deflate()
        } else {
            message
        };
        self.send(message)
    }

    fn replace(&mut self) -> Vec<u8> {
        let path = self.document_path("");
        let document = self.writer.document();
        self.send_json(Method::Put, path, &document)
    }

    fn patch(&mut self) -> Vec<u8> {
        let path = self.document_path("");
        let patch = self.writer.patch();
        self.send_json(Method::Patch, path, &patch)
    }

    fn delete(&mut self) -> Vec<u8> {
        let path = self.document_path("");
        self.send(Message::new(Method::Delete, path))
    }

    fn get_document(&mut self, part: &str) -> Vec<u8> {
        let message = Message::new(Method::Get, self.document_path(part));
        let message = if self.random.chance(30) {
            message.accepting_deflate()
        } else {
            message
        };
        self.send(message)
    }

    fn evaluate(&mut self) -> Vec<u8> {
        let path = self.document_path("/evaluate");
        let expression = expressions::number(&mut self.random, 4);
        self.send(Message::new(Method::Post, path).body(expression.into_bytes()))
    }

    fn search(&mut self) -> Vec<u8> {
        let order = self.random.pick(&["", "&order=title", "&limit=50"]);
        let target = format!("/search?q={}{order}", self.search_words());
        self.send(Message::new(Method::Get, target))
    }

    fn catalogue(&mut self) -> Vec<u8> {
        let target = format!("/catalogue?q={}", self.search_words());
        self.send(Message::new(Method::Get, target).accepting_deflate())
    }

    fn query(&mut self) -> Vec<u8> {
        let query = json!({
            "where": expressions::condition(&mut self.random, 2),
            "select": expressions::number(&mut self.random, 2),
            "order": self.random.pick(&["ascending", "descending"]),
            "limit": self.random.between(5, 50),
        });
        self.send_json(Method::Post, "/query".into(), &query)
    }

    fn export(&mut self) -> Vec<u8> {
        let limit = self.random.between(3, 15);
        let target = format!("/archive?from={}&limit={limit}", self.id());
        self.send(Message::new(Method::Get, target).accepting_deflate())
    }

    fn import(&mut self) -> Vec<u8> {
        let mut lines = String::new();
        for _ in 0..self.random.between(2, 6) {
            let entry = json!({ "id": self.id(), "value": self.writer.document() });
            lines.push_str(&format!("{entry}\n"));
        }
        let message = Message::new(Method::Post, "/archive".into());
        let message = match self.compressor.deflate(lines.as_bytes()) {
            Some(compressed) => message.deflated_body(compressed),
            None => message.body(lines.into_bytes()),
        };
        self.send(message)
    }

    /// A request that was right before it was damaged, or that asks for what cannot be.
    fn malformed(&mut self) -> Vec<u8> {
        match self.random.below(7) {
            0 => {
                let mut request = self.replace();
                let position = self.random.below(request.len());
                request[position] ^= 1 << self.random.below(8);
                request
            }
            1 => {
                let mut request = self.read();
                request.truncate(self.random.below(request.len()));
                request
            }
            2 => {
                let mut body = self.writer.document().to_string().into_bytes();
                body.truncate(self.random.below(body.len()));
                let path = self.document_path("");
                self.send(Message::new(Method::Put, path).body(body))
            }
            3 => self.send(Message::new(Method::Get, "/nowhere".into())),
            4 => {
                let path = self.document_path("/evaluate");
                let expression = expressions::broken(&mut self.random);
                self.send(Message::new(Method::Post, path).body(expression.into_bytes()))
            }
            5 => self.send(Message::new(Method::Put, "/search".into())),
            _ => (0..self.random.below(200))
                .map(|_| self.random.next() as u8)
                .collect(),
        }
    }

    fn send_json(&mut self, method: Method, target: String, value: &Value) -> Vec<u8> {
        self.send(Message::new(method, target).body(value.to_string().into_bytes()))
    }

    fn send(&mut self, message: Message) -> Vec<u8> {
        let greedy = self.random.chance(GREEDY_PERCENT);
        let number = if greedy {
            0
        } else {
            self.random.below(CLIENTS)
        };
        message.sign(&self.keyring, &format!("client-{number:02}"))
    }

    fn document_path(&mut self, part: &str) -> String {
        format!("/documents/{}{part}", self.id())
    }

    /// Small numbers far more often than large ones.
    fn id(&mut self) -> String {
        let mut bound = 2 * self.size;
        for _ in 0..2 {
            bound = 1 + self.random.below(bound);
        }
        let number = self.random.below(bound);
        self.writer.id(number)
    }

    fn search_words(&mut self) -> String {
        let count = self.random.between(1, 3);
        let words: Vec<&str> = (0..count)
            .map(|_| vocabulary::word(&mut self.random))
            .collect();
        words.join("+")
    }
}

impl Iterator for RequestGenerator {
    type Item = Vec<u8>;

    /// Always a request.
    fn next(&mut self) -> Option<Vec<u8>> {
        let kind = RequestKind::at_weight(self.random.below(RequestKind::TOTAL_WEIGHT as usize));
        Some(self.request(kind))
    }
}
