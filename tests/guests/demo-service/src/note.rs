//! The wiki's notes, and the recursion over their comments.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use regex::Regex;
use serde::{Deserialize, Serialize};

use crate::http::Refusal;

/// Text that no comment may contain.
const SPAM: &str = r"(?i)\b(cheap|free)\s+(pills|money)\b";

#[derive(Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) title: String,
    /// In the markup of [`Renderer`](crate::page::Renderer), like all texts.
    pub(crate) text: String,
    pub(crate) comments: Vec<Comment>,
}

/// A comment with its replies, which nest up to the limit of serde_json: 62 levels.
#[derive(Serialize, Deserialize)]
pub(crate) struct Comment {
    pub(crate) author: String,
    pub(crate) text: String,
    pub(crate) replies: Vec<Comment>,
}

impl Note {
    /// Parses a note; refuses it if one of its comments is spam.
    #[inline(never)]
    pub(crate) fn parse(json: &[u8]) -> Result<Self, Refusal> {
        let note: Result<Note, _> = serde_json_alloc::from_slice(json);
        let note = note.map_err(|_| Refusal(422, "not a note"))?;
        moderate(&note.comments)?;
        Ok(note)
    }

    #[inline(never)]
    pub(crate) fn to_json(&self) -> String {
        // Strings can always be represented in JSON.
        serde_json_alloc::to_string(self).unwrap_or_default()
    }

    /// The words of all texts in lower case, with their numbers of occurrences.
    #[inline(never)]
    pub(crate) fn words(&self) -> BTreeMap<String, u32> {
        let mut counts = BTreeMap::new();
        count_words(&self.title, &mut counts);
        count_words(&self.text, &mut counts);
        count_comment_words(&self.comments, &mut counts);
        counts
    }
}

#[inline(never)]
fn moderate(comments: &[Comment]) -> Result<(), Refusal> {
    for comment in comments {
        if is_spam(&comment.text) {
            return Err(Refusal(422, "spam"));
        }
        moderate(&comment.replies)?;
    }
    Ok(())
}

/// Compiles its pattern in every call. This is deliberate: it is the mistake that the demo's
/// profile shows.
#[inline(never)]
fn is_spam(text: &str) -> bool {
    Regex::new(SPAM).is_ok_and(|spam| spam.is_match(text))
}

fn count_comment_words(comments: &[Comment], counts: &mut BTreeMap<String, u32>) {
    for comment in comments {
        count_words(&comment.text, counts);
        count_comment_words(&comment.replies, counts);
    }
}

fn count_words(text: &str, counts: &mut BTreeMap<String, u32>) {
    let words = text.split(|character: char| !character.is_alphanumeric());
    for word in words.filter(|word| !word.is_empty()) {
        *counts.entry(word.to_lowercase()).or_default() += 1;
    }
}
