//! The documents in memory: a digest tree by id, an index by word, and the order of last use.
//!
//! The store never grows beyond its three limits, the number of documents, their bytes and the
//! number of different words: what was used longest ago leaves first.

pub(crate) mod digest_tree;
pub(crate) mod proof;
pub(crate) mod term_index;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::ops::ControlFlow;

use blake3::Hash;
use serde_json_alloc::Value;

use crate::document::Document;
use crate::failure::Failure;
use digest_tree::DigestTree;
use proof::Proof;
use term_index::TermIndex;

/// How many bytes of values the store takes per document it may hold.
const BYTES_PER_DOCUMENT: usize = 16 * 1024;
/// How many different words the index takes: some, and some more per document.
const MIN_TERMS: usize = 512;
const TERMS_PER_DOCUMENT: usize = 16;
/// Longer ids are refused.
const MAX_ID_LENGTH: usize = 40;

pub(crate) struct Store {
    tree: DigestTree,
    index: TermIndex,
    /// Ids by the moment of last use; moments are unique.
    recency: BTreeMap<u64, Arc<str>>,
    clock: u64,
    bytes: usize,
    evictions: u64,
    max_documents: usize,
}

impl Store {
    /// An empty store for at most `max_documents` documents; 0 counts as 1.
    pub(crate) fn new(max_documents: usize) -> Self {
        Self {
            tree: DigestTree::default(),
            index: TermIndex::default(),
            recency: BTreeMap::new(),
            clock: 0,
            bytes: 0,
            evictions: 0,
            max_documents: max_documents.max(1),
        }
    }

    /// Stores a value under an id and returns its version, 1 for a new document.
    #[inline(never)]
    pub(crate) fn put(&mut self, id: &str, value: Value) -> Result<u64, Failure> {
        if id.is_empty() || id.len() > MAX_ID_LENGTH {
            return Err(Failure::InvalidDocument("an id has 1 to 40 bytes"));
        }
        let mut document = Document::new(id.into(), value)?;
        if document.bytes > self.max_bytes() {
            return Err(Failure::TooLarge);
        }
        if let Some(previous) = self.remove(id) {
            document.version = previous.version + 1;
        }
        let version = document.version;
        self.add(document);
        self.evict();
        Ok(version)
    }

    /// Finds a document and counts that as a use.
    #[inline(never)]
    pub(crate) fn get(&mut self, id: &str) -> Option<&Document> {
        let document = self.tree.get_mut(id)?;
        let shared_id = self.recency.remove(&document.used_at)?;
        self.clock += 1;
        document.used_at = self.clock;
        self.recency.insert(self.clock, shared_id);
        Some(document)
    }

    /// Finds a document without counting a use.
    pub(crate) fn peek(&self, id: &str) -> Option<&Document> {
        self.tree.get(id)
    }

    #[inline(never)]
    pub(crate) fn remove(&mut self, id: &str) -> Option<Document> {
        let document = self.tree.remove(id)?;
        self.index.remove(&document);
        self.recency.remove(&document.used_at);
        self.bytes -= document.bytes;
        Some(document)
    }

    /// Visits the documents from the id `from` on, in order of their ids, until told to stop.
    pub(crate) fn visit(&self, from: &str, visitor: &mut dyn FnMut(&Document) -> ControlFlow<()>) {
        // Whether the visitor stopped early is its own business.
        let _ = self.tree.visit(from, visitor);
    }

    /// The way from a document's digest to the root digest.
    pub(crate) fn prove(&self, id: &str) -> Option<Proof> {
        self.tree.prove(id)
    }

    pub(crate) fn root(&self) -> Hash {
        self.tree.root()
    }

    pub(crate) fn index(&self) -> &TermIndex {
        &self.index
    }

    pub(crate) fn len(&self) -> usize {
        self.recency.len()
    }

    /// The bytes of all values, about.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many documents had to leave.
    pub(crate) fn evictions(&self) -> u64 {
        self.evictions
    }

    fn max_bytes(&self) -> usize {
        self.max_documents * BYTES_PER_DOCUMENT
    }

    fn max_terms(&self) -> usize {
        MIN_TERMS + self.max_documents * TERMS_PER_DOCUMENT
    }

    fn add(&mut self, mut document: Document) {
        self.clock += 1;
        document.used_at = self.clock;
        self.bytes += document.bytes;
        self.recency.insert(self.clock, document.id.clone());
        self.index.add(&document);
        self.tree.insert(document);
    }

    fn evict(&mut self) {
        while self.len() > self.max_documents
            || self.bytes > self.max_bytes()
            || self.index.len() > self.max_terms()
        {
            let Some(oldest) = self.recency.values().next().cloned() else {
                return;
            };
            self.remove(&oldest);
            self.evictions += 1;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;
    use alloc::vec::Vec;
    use serde_json_alloc::json;

    fn ids(store: &Store) -> Vec<String> {
        let mut ids = Vec::new();
        store.visit("", &mut |document| {
            ids.push(document.id.as_ref().into());
            ControlFlow::Continue(())
        });
        ids
    }

    #[test]
    fn versions_count_the_changes() {
        let mut store = Store::new(4);
        assert_eq!(store.put("a", json!({"n": 1})), Ok(1));
        assert_eq!(store.put("a", json!({"n": 2})), Ok(2));
        assert_eq!(store.get("a").unwrap().value, json!({"n": 2}));
        assert_eq!(store.remove("a").unwrap().version, 2);
        assert!(store.get("a").is_none());
        assert_eq!((store.len(), store.bytes()), (0, 0));
    }

    #[test]
    fn the_longest_unused_leaves_first() {
        let mut store = Store::new(3);
        for id in ["a", "b", "c"] {
            store.put(id, json!({})).unwrap();
        }
        store.get("a").unwrap();
        store.put("d", json!({})).unwrap();
        assert_eq!(ids(&store), ["a", "c", "d"]);
        assert_eq!(store.evictions(), 1);
    }

    #[test]
    fn bytes_are_limited_too() {
        let mut store = Store::new(4);
        let text = "x".repeat(store.max_bytes() / 2);
        for number in 0..4 {
            store
                .put(&format!("{number}"), json!({ "text": text }))
                .unwrap();
            assert!(store.bytes() <= store.max_bytes());
        }
        assert_eq!(ids(&store), ["3"]);
        let huge = json!({ "text": text.repeat(3) });
        assert_eq!(store.put("huge", huge), Err(Failure::TooLarge));
        assert_eq!(ids(&store), ["3"]);
    }

    #[test]
    fn words_are_limited_too() {
        let mut store = Store::new(10);
        for round in 0..10 {
            let words: Vec<String> = (0..300).map(|word| format!("w{round}x{word}")).collect();
            store
                .put(&format!("{round}"), json!({ "words": words }))
                .unwrap();
        }
        assert_eq!(ids(&store), ["8", "9"]);
        assert_eq!(store.index().len(), 600);
    }

    #[test]
    fn a_visit_starts_and_stops_where_it_should() {
        let mut store = Store::new(100);
        for number in 0..100 {
            store.put(&format!("{number:02}"), json!({})).unwrap();
        }
        let mut seen = Vec::new();
        store.visit("355", &mut |document| {
            seen.push(document.id.clone());
            if seen.len() == 3 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        assert_eq!(
            seen.iter().map(|id| &**id).collect::<Vec<_>>(),
            ["36", "37", "38"]
        );
    }

    #[test]
    fn bad_ids_are_refused() {
        let mut store = Store::new(4);
        assert!(store.put("", json!({})).is_err());
        assert!(store.put(&"i".repeat(41), json!({})).is_err());
    }
}
