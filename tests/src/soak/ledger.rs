//! The numbers of tries and of their outcomes.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Counts by subject, kind and outcome; shared by all threads.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<Entries>);

/// Subject, kind, outcome.
type Entries = BTreeMap<(&'static str, String, String), u64>;

impl Ledger {
    pub(crate) fn count(
        &self,
        subject: &'static str,
        kind: impl Into<String>,
        outcome: impl Into<String>,
    ) {
        let key = (subject, kind.into(), outcome.into());
        *self.entries().entry(key).or_default() += 1;
    }

    pub fn total(&self, subject: &str) -> u64 {
        let entries = self.entries();
        let own = entries.iter().filter(|((of, ..), _)| *of == subject);
        own.map(|(_, count)| count).sum()
    }

    /// Rows of a Markdown table: kind, tries, outcomes with the most frequent first.
    pub(crate) fn rows(&self, subject: &str) -> Vec<String> {
        let mut kinds: BTreeMap<String, Vec<(String, u64)>> = BTreeMap::new();
        for ((of, kind, outcome), count) in &*self.entries() {
            if *of == subject {
                let outcomes = kinds.entry(kind.clone()).or_default();
                outcomes.push((outcome.clone(), *count));
            }
        }
        let row = |(kind, mut outcomes): (String, Vec<(String, u64)>)| {
            outcomes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
            let tries: u64 = outcomes.iter().map(|(_, count)| count).sum();
            let outcomes: Vec<String> =
                outcomes.iter().map(|(outcome, count)| format!("{outcome} {count}")).collect();
            format!("| {kind} | {tries} | {} |", outcomes.join(", "))
        };
        kinds.into_iter().map(row).collect()
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        // A thread that panicked has counted what it had counted.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
