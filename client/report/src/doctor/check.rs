//! One check of a diagnosis.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::finding::Figure;

/// The result of a check. The worst is the greatest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// No problem.
    Good,
    /// A caveat: the profile is usable by somebody who knows about it.
    Look,
    /// The profile may be wrong in a way that it does not show.
    Bad,
}

impl Verdict {
    /// By a share between 0 and 1, and from where on it is worth a look or bad.
    pub(super) fn of_share(share: f64, look: f64, bad: f64) -> Verdict {
        match share {
            share if share >= bad => Verdict::Bad,
            share if share >= look => Verdict::Look,
            _ => Verdict::Good,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Good => "good",
            Verdict::Look => "look",
            Verdict::Bad => "bad",
        })
    }
}

/// One check of a diagnosis.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    /// Its name; stable.
    pub(crate) name: &'static str,
    /// Its result.
    pub(crate) verdict: Verdict,
    /// What was found: a clause, without a capital or a full stop.
    pub(crate) finding: String,
    /// What to do about it; `None` if the verdict is good.
    pub(crate) advice: Option<String>,
    /// The numbers it comes from, by stable names.
    pub(crate) figures: BTreeMap<&'static str, Figure>,
    /// For a diagnosis of an agent: the recording that the check is about, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) recording: Option<String>,
}

impl Check {
    pub(super) fn new(name: &'static str, verdict: Verdict, finding: impl Into<String>) -> Check {
        Check {
            name,
            verdict,
            finding: finding.into(),
            advice: None,
            figures: BTreeMap::new(),
            recording: None,
        }
    }

    /// Says which of an agent's recordings it is about.
    #[must_use]
    pub(super) fn of_recording(mut self, name: &str) -> Check {
        self.recording = Some(name.to_owned());
        self
    }

    /// Adds what to do, unless nothing is to be done.
    #[must_use]
    pub(super) fn advise(mut self, advice: impl Into<String>) -> Check {
        if self.verdict != Verdict::Good {
            self.advice = Some(advice.into());
        }
        self
    }

    #[must_use]
    pub(super) fn count(mut self, name: &'static str, count: u64) -> Check {
        self.figures.insert(name, Figure::Count(count));
        self
    }

    #[must_use]
    pub(super) fn real(mut self, name: &'static str, real: f64) -> Check {
        self.figures.insert(name, Figure::Real(real));
        self
    }

    #[must_use]
    pub(super) fn signed(mut self, name: &'static str, signed: i64) -> Check {
        self.figures.insert(name, Figure::Signed(signed));
        self
    }
}

/// `part` of `whole`; nothing of nothing is nothing.
pub(super) fn part_of(part: u64, whole: u64) -> f64 {
    match whole {
        0 if part != 0 => 1.0,
        0 => 0.0,
        _ => part as f64 / whole as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_verdict_is_the_greatest() {
        assert!(Verdict::Bad > Verdict::Look && Verdict::Look > Verdict::Good);
        assert_eq!(Verdict::of_share(0.009, 0.01, 0.05), Verdict::Good);
        assert_eq!(Verdict::of_share(0.01, 0.01, 0.05), Verdict::Look);
        assert_eq!(Verdict::of_share(0.05, 0.01, 0.05), Verdict::Bad);
    }

    /// Counters come from a file; a part of nothing must not pass as nothing.
    #[test]
    fn a_part_of_nothing_is_all() {
        assert_eq!(part_of(0, 0).to_bits(), 0.0_f64.to_bits());
        assert_eq!(part_of(3, 0).to_bits(), 1.0_f64.to_bits());
    }
}
