//! The wiki's notes, and the recursion over their comments.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::http::Refusal;

/// Phrases that no comment may contain, each with the number of comments that had it.
const SPAM: &str = include_str!("spam.json");

#[derive(Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) title: String,
    /// The text in the markup of [`Renderer`](crate::page::Renderer), like all texts.
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

/// Parses the list in every call. This is deliberate: it is the mistake that the demo's profile
/// shows.
#[inline(never)]
pub(crate) fn is_spam(text: &str) -> bool {
    let phrases: BTreeMap<String, u32> = serde_json_alloc::from_str(SPAM).unwrap_or_default();
    let words: Vec<String> = words(text).collect();
    words.windows(2).any(|phrase| phrases.contains_key(&phrase.join(" ")))
}

/// The words of a text in lower case.
fn words(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|character: char| !character.is_alphanumeric());
    words.filter(|word| !word.is_empty()).map(str::to_lowercase)
}

fn count_comment_words(comments: &[Comment], counts: &mut BTreeMap<String, u32>) {
    for comment in comments {
        count_words(&comment.text, counts);
        count_comment_words(&comment.replies, counts);
    }
}

fn count_words(text: &str, counts: &mut BTreeMap<String, u32>) {
    for word in words(text) {
        *counts.entry(word).or_default() += 1;
    }
}
