//! A guest's own account of a load that it ran.

use anyhow::{Context as _, Result};
use std::collections::BTreeMap;

/// Numbers by name, as a guest's answer `total=NS NAME=VALUE ...` holds them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Truth(BTreeMap<String, u64>);

impl Truth {
    pub(crate) fn parse(line: &str) -> Result<Truth> {
        let number = |word: &str| {
            let (name, value) = word.split_once('=')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        let numbers: Option<BTreeMap<_, _>> = line.split_ascii_whitespace().map(number).collect();
        numbers
            .filter(|numbers| numbers.contains_key("total"))
            .map(Truth)
            .with_context(|| format!("the guest said {line:?}; expected `total=NS NAME=VALUE ...`"))
    }

    /// The number of this name; 0 where there is none.
    pub(crate) fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    pub(crate) fn total_ns(&self) -> u64 {
        self.get("total")
    }

    /// The part of the running time that is this function's.
    pub(crate) fn share(&self, name: &str) -> f64 {
        self.get(name) as f64 / self.total_ns().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn shares_are_of_the_total() {
        let truth = Truth::parse("total=200 oak=50\n").unwrap();
        assert!((truth.share("oak") - 0.25).abs() < 1e-12);
        assert_eq!(truth.get("pine"), 0);
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        for text in ["", "oak=50", "total", "total=many", "total=1 oak"] {
            assert!(Truth::parse(text).is_err(), "{text:?}");
        }
    }
}
