//! Documents and patches with words, numbers and a tree of sections.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde_json_alloc::{Value, json};

use super::vocabulary::word;
use crate::random::Random;

/// Sections within sections go this deep.
const MAX_SECTION_DEPTH: usize = 6;

/// Writes documents from a seed.
pub(crate) struct DocumentWriter {
    random: Random,
}

impl DocumentWriter {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
        }
    }

    /// The id with this number. Neighbouring numbers are far apart in the order of ids.
    pub(crate) fn id(&self, number: usize) -> String {
        let scrambled = (number as u32).wrapping_mul(2_654_435_761);
        format!("doc-{scrambled:08x}")
    }

    #[inline(never)]
    pub(crate) fn document(&mut self) -> Value {
        let tags = self.random.between(0, 5);
        let mut document = json!({
            "title": self.text(2, 4),
            "summary": self.text(8, 24),
            "tags": (0..tags).map(|_| word(&mut self.random)).collect::<Vec<_>>(),
            "price": self.random.below(100_000) as f64 / 100.0,
            "stock": self.random.below(500),
            "active": self.random.chance(70),
            "sections": self.sections(1),
        });
        if self.random.chance(80) {
            document["author"] = json!({ "name": self.text(2, 2), "team": self.text(1, 1) });
        }
        document
    }

    /// A merge patch that changes, adds or removes a few members.
    pub(crate) fn patch(&mut self) -> Value {
        match self.random.below(5) {
            0 => json!({ "price": self.random.below(100_000) as f64 / 100.0 }),
            1 => json!({ "stock": self.random.below(500), "active": self.random.chance(50) }),
            2 => json!({ "author": { "name": self.text(2, 2), "team": null } }),
            3 => json!({ "title": self.text(2, 4), "summary": self.text(8, 24) }),
            _ => json!({ "sections": self.sections(1), "tags": [word(&mut self.random)] }),
        }
    }

    fn sections(&mut self, depth: usize) -> Vec<Value> {
        // Three on top, then fewer and fewer.
        let most = if depth == 1 { 3 } else { 2 };
        let count = self.random.between(usize::from(depth < 3), most);
        (0..count).map(|_| self.section(depth)).collect()
    }

    fn section(&mut self, depth: usize) -> Value {
        let text = self.text(4, 16);
        let mut section = json!({
            "heading": self.text(1, 4),
            "words": text.split(' ').count(),
            "text": text,
        });
        if depth < MAX_SECTION_DEPTH && self.random.chance(60) {
            section["sections"] = Value::Array(self.sections(depth + 1));
        }
        section
    }

    fn text(&mut self, least: usize, most: usize) -> String {
        let count = self.random.between(least, most);
        let words: Vec<&str> = (0..count).map(|_| word(&mut self.random)).collect();
        words.join(" ")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::document::Document;
    use alloc::collections::BTreeSet;

    #[test]
    fn every_document_is_accepted_and_of_sensible_size() {
        let mut writer = DocumentWriter::new(9);
        let sizes: Vec<usize> = (0..2000)
            .map(|_| Document::new("id".into(), writer.document()).unwrap().bytes)
            .collect();
        let mean = sizes.iter().sum::<usize>() / sizes.len();
        assert!((4000..12_000).contains(&mean), "{mean}");
    }

    #[test]
    fn numbers_have_different_ids() {
        let writer = DocumentWriter::new(9);
        let ids: BTreeSet<_> = (0..10_000).map(|number| writer.id(number)).collect();
        assert_eq!(ids.len(), 10_000);
    }
}
