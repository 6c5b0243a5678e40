//! Folded stacks: a line `root;caller;leaf count` for each, sorted by name. The format has no
//! labels; if they are requested, they are the outermost frames, `recording:NAME;vcpu:N;span:NAME`.

use std::collections::BTreeSet;
use std::io::{self, Write};

use super::Report;
use super::labels::{LabelId, Labels};
use super::merged::{Merged, Visitor};
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{Profile, Sample};

pub(super) fn write(report: &Report<'_>, out: &mut impl Write) -> io::Result<()> {
    let mut lines = Lines {
        names: foldable_names(&report.labels),
        path: String::new(),
        lengths: Vec::new(),
        out,
        result: Ok(()),
    };
    if !report.options.labels {
        Merged::of(report).walk(1, &mut lines);
        return lines.result;
    }
    let profile = report.symbolized.profile();
    let named = |sample: &Sample| {
        let name = sample.span.and_then(|span| profile.span_names().get(span as usize));
        (sample.vcpu, name.map(String::as_str))
    };
    let labelled: BTreeSet<(u32, Option<&str>)> = profile.samples().iter().map(named).collect();
    for (vcpu, span) in labelled {
        lines.path = label_frames(profile, vcpu, span);
        let is_meant = |sample: &&Sample| named(sample) == (vcpu, span);
        let samples = report.shown_samples().filter(is_meant);
        Merged::of_samples(report, samples).walk(1, &mut lines);
    }
    lines.result
}

/// The labels of samples, as the outermost frames of their stacks.
fn label_frames(profile: &Profile, vcpu: u32, span: Option<&str>) -> String {
    let named = |what: &str, name: &str| foldable(&format!("{what}:{}", Printable(name)));
    let mut frames = Vec::new();
    let recording = profile.recording().name.as_str();
    if !recording.is_empty() {
        frames.push(named("recording", recording));
    }
    frames.push(format!("vcpu:{vcpu}"));
    frames.extend(span.map(|span| named("span", span)));
    frames.join(";")
}

/// The labels' texts, made safe for a line of the format.
///
/// A `;` separates frames (so `[u8; 4]` becomes `[u8: 4]`); a number in the last place is the
/// count, so a name must not end in one of its own; and a line must not look like a comment.
pub(super) fn foldable_names(labels: &Labels) -> Vec<String> {
    labels.all().iter().map(|label| foldable(&label.text)).collect()
}

fn foldable(text: &str) -> String {
    let mut name = text.trim().replace(';', ":");
    if let Some((start, last)) = name.rsplit_once(char::is_whitespace)
        && last.chars().all(|c| c.is_ascii_digit() || c == '.')
    {
        name = format!("{start}_{last}");
    }
    if name.starts_with('#') {
        name.insert(0, '_');
    }
    if name.is_empty() {
        name.push('_');
    }
    name
}

struct Lines<'w, W> {
    names: Vec<String>,
    path: String,
    /// Of the path, before each function on it was added.
    lengths: Vec<usize>,
    out: &'w mut W,
    result: io::Result<()>,
}

impl<W: Write> Visitor for Lines<'_, W> {
    fn enter(&mut self, label: LabelId, own: u64, _total: u64) {
        self.lengths.push(self.path.len());
        if !self.path.is_empty() {
            self.path.push(';');
        }
        self.path.push_str(&self.names[label as usize]);
        if own != 0 && self.result.is_ok() {
            self.result = writeln!(self.out, "{} {own}", self.path);
        }
    }

    fn leave(&mut self, _label: LabelId) {
        let length = self.lengths.pop().unwrap_or(0);
        self.path.truncate(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_a_line() {
        assert_eq!(foldable("f<[u8; 4]>"), "f<[u8: 4]>");
        assert_eq!(foldable("loop 12"), "loop_12");
        assert_eq!(foldable("# note"), "_# note");
        assert_eq!(foldable("  "), "_");
        assert_eq!(foldable("main src/main.rs:12"), "main src/main.rs:12");
    }
}
