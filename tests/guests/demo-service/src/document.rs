//! One stored document, and the walks over its tree of JSON values.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use blake3::Hash;
use serde_json_alloc::{Map, Value};

use crate::failure::Failure;
use crate::hashing;

/// Deeper documents are refused, so that every walk over one has a bounded stack.
const MAX_DEPTH: usize = 32;
/// Words beyond this many characters are not indexed.
const MAX_TERM_LENGTH: usize = 24;
/// Words beyond this many in one document are not indexed.
const MAX_TERMS: usize = 400;
/// What a value costs beside its text: itself and the allocator's share.
const BYTES_PER_VALUE: usize = 48;
/// What a node of an object's tree costs, which has room for 11 members and holds 5 at least.
const BYTES_PER_NODE: usize = 640;

/// A document as the store keeps it.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    pub(crate) id: Arc<str>,
    /// Counts the changes, from 1.
    pub(crate) version: u64,
    pub(crate) value: Value,
    pub(crate) digest: Hash,
    /// About how much memory the value takes.
    pub(crate) bytes: usize,
    /// When it was last used, on the store's own clock.
    pub(crate) used_at: u64,
}

impl Document {
    /// Checks and measures a value. Only objects of at most 32 levels are documents.
    pub(crate) fn new(id: Arc<str>, value: Value) -> Result<Self, Failure> {
        if !value.is_object() {
            return Err(Failure::InvalidDocument("a document is a JSON object"));
        }
        let bytes = measure(&value, 1)?;
        let digest = hashing::digest(&value);
        Ok(Self {
            id,
            version: 1,
            value,
            digest,
            bytes,
            used_at: 0,
        })
    }

    /// The words of all texts with how often each occurs, sorted.
    #[inline(never)]
    pub(crate) fn terms(&self) -> Vec<(String, u32)> {
        let mut words = Vec::new();
        collect_terms(&self.value, &mut words);
        words.truncate(MAX_TERMS);
        words.sort_unstable();
        let mut counted: Vec<(String, u32)> = Vec::with_capacity(words.len());
        for word in words {
            match counted.last_mut() {
                Some((last, count)) if *last == word => *count += 1,
                _ => counted.push((word, 1)),
            }
        }
        counted
    }
}

/// Applies a JSON merge patch (RFC 7396): null removes a member, objects merge, all else replaces.
#[inline(never)]
pub(crate) fn merge_patch(target: &mut Value, patch: Value) {
    let Value::Object(changes) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(members) = target else {
        return;
    };
    for (name, change) in changes {
        if change.is_null() {
            members.remove(&name);
        } else {
            merge_patch(members.entry(name).or_insert(Value::Null), change);
        }
    }
}

/// Splits a text into lower-case words.
pub(crate) fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|character: char| !character.is_alphanumeric())
        .filter(|word| !word.is_empty() && word.chars().count() <= MAX_TERM_LENGTH)
        .map(str::to_lowercase)
}

fn collect_terms(value: &Value, terms: &mut Vec<String>) {
    // Checked at each value: one text is bounded by the request, their sum is bounded here.
    if terms.len() >= MAX_TERMS {
        return;
    }
    match value {
        Value::String(text) => terms.extend(words(text)),
        Value::Array(items) => items.iter().for_each(|item| collect_terms(item, terms)),
        Value::Object(members) => {
            members
                .values()
                .for_each(|member| collect_terms(member, terms));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn measure(value: &Value, depth: usize) -> Result<usize, Failure> {
    if depth > MAX_DEPTH {
        return Err(Failure::InvalidDocument(
            "the document is nested too deeply",
        ));
    }
    let mut bytes = BYTES_PER_VALUE;
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
        Value::String(text) => bytes += text.len(),
        Value::Array(items) => {
            for item in items {
                bytes += measure(item, depth + 1)?;
            }
        }
        Value::Object(members) => {
            bytes += BYTES_PER_NODE * (1 + members.len() / 5);
            for (name, member) in members {
                bytes += name.len() + measure(member, depth + 1)?;
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json_alloc::json;

    #[test]
    fn merges_as_the_rfc_says() {
        // The cases of RFC 7396, appendix A.
        let cases = [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (
                json!({"a": "b"}),
                json!({"b": "c"}),
                json!({"a": "b", "b": "c"}),
            ),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (
                json!({"a": "b", "b": "c"}),
                json!({"a": null}),
                json!({"b": "c"}),
            ),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (
                json!({"a": {"b": "c"}}),
                json!({"a": {"b": "d", "c": null}}),
                json!({"a": {"b": "d"}}),
            ),
            (
                json!({"a": [{"b": "c"}]}),
                json!({"a": [1]}),
                json!({"a": [1]}),
            ),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a": "b"}), json!(["c"]), json!(["c"])),
            (json!({"a": "foo"}), json!(null), json!(null)),
            (json!({"a": "foo"}), json!("bar"), json!("bar")),
            (
                json!({"e": null}),
                json!({"a": 1}),
                json!({"e": null, "a": 1}),
            ),
            (
                json!([1, 2]),
                json!({"a": "b", "c": null}),
                json!({"a": "b"}),
            ),
            (
                json!({}),
                json!({"a": {"bb": {"ccc": null}}}),
                json!({"a": {"bb": {}}}),
            ),
        ];
        for (mut target, patch, expected) in cases {
            merge_patch(&mut target, patch);
            assert_eq!(target, expected);
        }
    }

    #[test]
    fn counts_the_words_of_the_whole_tree() {
        let value = json!({"title": "Über-Fast fast", "parts": [{"text": "fast, slow"}], "n": 7});
        let document = Document::new("a".into(), value).unwrap();
        let terms: Vec<_> = document.terms();
        let expected = [("fast", 3), ("slow", 1), ("über", 1)];
        assert!(
            terms
                .iter()
                .map(|(term, count)| (term.as_str(), *count))
                .eq(expected)
        );
    }

    #[test]
    fn refuses_depth_and_values_that_are_no_objects() {
        let mut value = json!({});
        for _ in 1..MAX_DEPTH {
            value = json!({ "a": value });
        }
        assert!(Document::new("a".into(), value.clone()).is_ok());
        assert!(Document::new("a".into(), json!({ "a": value })).is_err());
        assert!(Document::new("a".into(), json!([])).is_err());
    }
}
