//! An inverted index: for each word, the documents it occurs in and how often.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;

use crate::document::Document;

type Postings = BTreeMap<Arc<str>, u32>;

#[derive(Default)]
pub(crate) struct TermIndex {
    terms: BTreeMap<String, Postings>,
}

impl TermIndex {
    /// Enters the words of a document.
    #[inline(never)]
    pub(crate) fn add(&mut self, document: &Document) {
        for (term, count) in document.terms() {
            self.terms
                .entry(term)
                .or_default()
                .insert(document.id.clone(), count);
        }
    }

    /// Takes out the words of a document; words that occur nowhere else leave with it.
    #[inline(never)]
    pub(crate) fn remove(&mut self, document: &Document) {
        for (term, _) in document.terms() {
            let Some(postings) = self.terms.get_mut(&term) else {
                continue;
            };
            postings.remove(&document.id);
            if postings.is_empty() {
                self.terms.remove(&term);
            }
        }
    }

    /// The documents with this word.
    pub(crate) fn postings(&self, term: &str) -> Option<&Postings> {
        self.terms.get(term)
    }

    /// How many different words there are.
    pub(crate) fn len(&self) -> usize {
        self.terms.len()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json_alloc::json;

    #[test]
    fn forgets_all_of_a_removed_document() {
        let first = Document::new("1".into(), json!({"text": "red red blue"})).unwrap();
        let second = Document::new("2".into(), json!({"text": "blue"})).unwrap();
        let mut index = TermIndex::default();
        index.add(&first);
        index.add(&second);
        assert_eq!(index.postings("red").unwrap().get("1"), Some(&2));
        assert_eq!(index.postings("blue").unwrap().len(), 2);
        index.remove(&first);
        assert!(index.postings("red").is_none());
        assert_eq!(index.len(), 1);
        index.remove(&second);
        assert_eq!(index.len(), 0);
    }
}
