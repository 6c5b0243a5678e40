//! Sort: which documents answer a search best.
//!
//! The score is tf-idf in whole numbers: there is no logarithm without a mathematics library, and
//! whole numbers are the same everywhere.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::document::words;
use crate::store::Store;

/// A document found, with its score.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    pub(crate) id: Arc<str>,
    pub(crate) title: String,
    pub(crate) score: u64,
}

/// The order of the hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The best first, then by id.
    Score,
    /// By title regardless of case, then by id.
    Title,
}

/// All documents with at least one word of the query, in order.
#[inline(never)]
pub(crate) fn search(store: &Store, query: &str, order: Order) -> Vec<Hit> {
    let mut hits: Vec<Hit> = scores(store, query)
        .into_iter()
        .map(|(id, score)| {
            let title = store
                .peek(&id)
                .and_then(|document| document.value.get("title")?.as_str());
            Hit {
                title: title.unwrap_or_default().into(),
                id,
                score,
            }
        })
        .collect();
    sort(&mut hits, order);
    hits
}

#[inline(never)]
fn scores(store: &Store, query: &str) -> BTreeMap<Arc<str>, u64> {
    let mut scores: BTreeMap<Arc<str>, u64> = BTreeMap::new();
    for word in words(query) {
        let Some(postings) = store.index().postings(&word) else {
            continue;
        };
        let rarity = binary_logarithm(store.len() as u64 * 16 / postings.len() as u64);
        for (id, &count) in postings {
            let frequency = binary_logarithm(u64::from(count) * 2);
            *scores.entry(id.clone()).or_default() += rarity * frequency;
        }
    }
    scores
}

#[inline(never)]
fn sort(hits: &mut [Hit], order: Order) {
    match order {
        Order::Score => {
            hits.sort_by(|one, other| other.score.cmp(&one.score).then(one.id.cmp(&other.id)));
        }
        Order::Title => hits.sort_by(|one, other| {
            let letters = |hit: &Hit| hit.title.to_lowercase();
            letters(one)
                .cmp(&letters(other))
                .then(one.id.cmp(&other.id))
        }),
    }
}

/// The logarithm in eighths; 0 for 0. The fraction is linear between powers of two.
fn binary_logarithm(number: u64) -> u64 {
    let Some(whole) = number.checked_ilog2() else {
        return 0;
    };
    let fraction = ((u128::from(number) * 8) >> whole) as u64 - 8;
    u64::from(whole) * 8 + fraction
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json_alloc::json;

    fn store() -> Store {
        let mut store = Store::new(10);
        for (id, title, body) in [
            ("1", "beta", "common rare rare rare"),
            ("2", "Alpha", "common rare"),
            ("3", "gamma", "common"),
            ("4", "delta", "nothing"),
        ] {
            store
                .put(id, json!({ "title": title, "body": body }))
                .unwrap();
        }
        store
    }

    fn ids(hits: &[Hit]) -> Vec<&str> {
        hits.iter().map(|hit| &*hit.id).collect()
    }

    #[test]
    fn rare_words_and_frequent_use_score_more() {
        let store = store();
        assert_eq!(ids(&search(&store, "rare", Order::Score)), ["1", "2"]);
        assert_eq!(
            ids(&search(&store, "Common, RARE!", Order::Score)),
            ["1", "2", "3"]
        );
        assert!(search(&store, "absent", Order::Score).is_empty());
        assert!(search(&store, "", Order::Score).is_empty());
    }

    #[test]
    fn titles_sort_without_case() {
        assert_eq!(
            ids(&search(&store(), "common", Order::Title)),
            ["2", "1", "3"]
        );
    }

    #[test]
    fn logarithm_is_exact_at_powers_and_grows() {
        assert_eq!(binary_logarithm(0), 0);
        for power in 0..64 {
            assert_eq!(binary_logarithm(1 << power), power * 8);
        }
        assert!((1..5000).all(|n| binary_logarithm(n) <= binary_logarithm(n + 1)));
    }
}
