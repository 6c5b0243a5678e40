//! Rows of the suite's table.

use std::fmt;

/// The result for one load.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) case: u8,
    pub(crate) load: String,
    /// The truth, which comes from elsewhere than the profile.
    pub(crate) truth: String,
    pub(crate) said: String,
    /// The interval the profile states, or the bound that the figure must keep.
    pub(crate) interval: String,
    /// The result of a walk along frame pointers alone.
    pub(crate) naive: Option<String>,
    /// The result of sampling at fixed intervals.
    pub(crate) fixed: Option<String>,
    pub(crate) verdict: Verdict,
}

/// Whether a goal was met.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Verdict {
    #[default]
    Met,
    /// It was not, and by what.
    Missed(String),
}

impl Verdict {
    /// Met where it holds; else missed, for the reason given.
    pub(crate) fn of(met: bool, reason: impl FnOnce() -> String) -> Verdict {
        if met { Verdict::Met } else { Verdict::Missed(reason()) }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Met => f.write_str("met"),
            Verdict::Missed(reason) => write!(f, "**missed**: {reason}"),
        }
    }
}

pub(crate) const HEADING: &str = "\
| case | load | truth | unikprof | 95 % interval or bound | naive walk | fixed interval | verdict |
|---|---|---|---|---|---|---|---|";

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let beside = |figure: &Option<String>| cell(figure.as_deref().unwrap_or_default());
        write!(
            f,
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            self.case,
            cell(&self.load),
            cell(&self.truth),
            cell(&self.said),
            cell(&self.interval),
            beside(&self.naive),
            beside(&self.fixed),
            cell(&self.verdict.to_string()),
        )
    }
}

/// Text that stays in its cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reason with a bar or a line in it must not add cells to the table.
    #[test]
    fn a_row_has_as_many_cells_as_the_heading() {
        let row = Row {
            case: 2,
            load: "a|b".into(),
            truth: String::new(),
            said: percent(0.125),
            interval: String::new(),
            naive: None,
            fixed: Some("x".into()),
            verdict: Verdict::of(false, || "one\ntwo".into()),
        };
        let text = row.to_string();
        assert_eq!(text, "| 2 | a\\|b |  | 12.50 % |  |  | x | **missed**: one two |");
        let bars = |line: &str| line.replace("\\|", "").matches('|').count();
        assert_eq!(bars(&text), HEADING.lines().next().map_or(0, bars));
    }
}
