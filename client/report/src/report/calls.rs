//! The callers or callees of a function, as a tree.
//!
//! Each stack counts once, however often the function recurs in it: its callers are those of the
//! innermost call, its callees those of the outermost.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::convert::Infallible;
use std::io::{self, Write};
use std::str::FromStr;

use regex_lite::Regex;
use serde::Serialize;
use thiserror::Error;

use super::Report;
use super::labels::LabelId;
use super::marks::is_cut;
use super::text::{Figures, NAME, label_name};
use super::uncertainty::{Recorded, Unplaced};
use super::units::{amount_with_unit, grouped};
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{Frame, Interval, NodeId, SpecialFrame, StackTree, Unit};
use unikprof_profile::symbols::{Called, Function, FunctionId, Symbolized};

/// The most names that an error lists.
const LISTED: usize = 10;

/// A function as the user names it: by its whole name, or by a regular expression that only one
/// name matches.
#[derive(Debug, Clone)]
pub struct FunctionName {
    text: String,
    /// `None` where the text is no regular expression, as `operator[](int)`.
    regex: Option<Regex>,
}

impl FromStr for FunctionName {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        // A name as a table has it, which leaves something out.
        let parts: Vec<String> = text.split('…').map(regex_lite::escape).collect();
        let regex = match &parts[..] {
            [_] => Regex::new(text),
            parts => Regex::new(&format!("^{}$", parts.join(".*"))),
        };
        Ok(FunctionName { text: text.to_owned(), regex: regex.ok() })
    }
}

/// A name that is not one function's.
#[expect(missing_docs, reason = "each message says it")]
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FunctionError {
    #[error(
        "no function in the stacks shown is called or matches `{0}`; `report --top 0` lists all"
    )]
    None(String),
    #[error(
        "`{0}` is no regular expression, and no function in the stacks shown is called so; \
         `report --top 0` lists all"
    )]
    NoRegex(String),
    /// The filters drop every stack.
    #[error(
        "--focus and --ignore leave nothing of {}; `report --top 0` without them lists all \
         functions",
        amount_with_unit(*recorded, *unit)
    )]
    NothingLeft {
        /// What was recorded.
        recorded: u64,
        /// In which unit.
        unit: Unit,
    },
    #[error(
        "`{name}` matches {count} functions: {list}; give one's whole name, or a regular \
         expression that matches \
         no other, such as `::name$`"
    )]
    Several { name: String, count: usize, list: String },
}

/// Which calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The functions that call it.
    Callers,
    /// The functions that it calls.
    Callees,
}

/// The calls to or from a function.
#[derive(Debug, Clone)]
pub struct Calls {
    direction: Direction,
    name: String,
    /// The samples of stacks with the function.
    total: u64,
    /// From the function on, each row followed by those of its callers or callees, the most samples
    /// first.
    rows: Vec<Row>,
}

#[derive(Debug, Clone)]
struct Row {
    depth: u32,
    label: LabelId,
    own: u64,
    total: u64,
    own_share: Interval,
    share: Interval,
}

impl FunctionName {
    /// As the user wrote it.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Whether a table calls a function so, or the regular expression matches its name.
    pub(super) fn matches(&self, function: &Function) -> bool {
        let is_match = |name: &str| self.regex.as_ref().is_some_and(|regex| regex.is_match(name));
        let names = [&*function.name, function.bare_name()];
        names.into_iter().any(is_match)
            || Called::ALL.into_iter().any(|manner| function.is_called(&self.text, manner))
    }

    /// Rejects a text that no function matches.
    pub fn check(&self, symbolized: &Symbolized<'_>) -> Result<(), FunctionError> {
        let is_known = symbolized.functions().iter().any(|it| self.matches(it));
        is_known.then_some(()).ok_or_else(|| self.unknown())
    }

    fn unknown(&self) -> FunctionError {
        match self.regex {
            Some(_) => FunctionError::None(self.text.clone()),
            None => FunctionError::NoRegex(self.text.clone()),
        }
    }

    /// What those that were found are called together.
    pub(super) fn heading(&self, report: &Report<'_>, found: &[FunctionId]) -> String {
        match found {
            [one] => Printable(&report.symbolized.function(*one).name).to_string(),
            several => format!("{} ({} functions)", Printable(&self.text), several.len()),
        }
    }

    /// The function, or those of this name in several images.
    pub(super) fn find(&self, report: &Report<'_>) -> Result<Vec<FunctionId>, FunctionError> {
        let name_of = |id: FunctionId| report.symbolized.function(id).name.as_str();
        let bare_name_of = |id: FunctionId| report.symbolized.function(id).bare_name();
        let mut found: Vec<(FunctionId, u64)> = Vec::new();
        for row in &report.functions().rows {
            match found.iter_mut().find(|(id, _)| *id == row.function) {
                // One row for each line.
                Some((_, total)) => *total = row.total.max(*total),
                None => found.push((row.function, row.total)),
            }
        }
        let ids = |found: &[(FunctionId, u64)]| found.iter().map(|(id, _)| *id).collect();
        for manner in Called::ALL {
            let is_meant = |id| report.symbolized.function(id).is_called(&self.text, manner);
            let mut exact = found.clone();
            exact.retain(|(id, _)| is_meant(*id));
            if !exact.is_empty() {
                return Ok(ids(&exact));
            }
        }
        let mut rest = found;
        let last_part = |name: &str| {
            let path = name.strip_suffix(&self.text);
            path.is_some_and(|path| path.ends_with("::"))
        };
        let ends: Vec<_> =
            rest.iter().copied().filter(|(id, _)| last_part(bare_name_of(*id))).collect();
        if let Some((first, _)) = ends.first()
            && ends.iter().all(|(id, _)| bare_name_of(*id) == bare_name_of(*first))
        {
            return Ok(ids(&ends));
        }
        let regex = self.regex.as_ref();
        rest.retain(|(id, _)| regex.is_some_and(|regex| regex.is_match(name_of(*id))));
        rest.sort_by_key(|(id, total)| (Reverse(*total), name_of(*id)));
        let mut names: Vec<&str> = rest.iter().map(|(id, _)| name_of(*id)).collect();
        names.dedup();
        match names.as_slice() {
            [] => Err(self.unknown()),
            [_] => Ok(ids(&rest)),
            several => {
                let shown = several.iter().take(LISTED);
                let mut list: Vec<String> =
                    shown.map(|name| format!("`{}`", Printable(name))).collect();
                if several.len() > LISTED {
                    list.push(format!("and {} more", several.len() - LISTED));
                }
                Err(FunctionError::Several {
                    name: self.text.clone(),
                    count: several.len(),
                    list: list.join(", "),
                })
            }
        }
    }
}

impl Calls {
    /// The calls to or from a function in the stacks that the report shows.
    pub fn of(
        report: &Report<'_>,
        name: &FunctionName,
        direction: Direction,
    ) -> Result<Calls, FunctionError> {
        let functions = name.find(report)?;
        let tree = Tree::of(report, &functions, direction);
        Ok(Calls {
            direction,
            name: name.heading(report, &functions),
            total: tree.totals.first().copied().unwrap_or(0),
            rows: tree.rows(report, direction),
        })
    }

    /// Whether one of the rows is this function's.
    pub(super) fn shows(&self, report: &Report<'_>, function: FunctionId) -> bool {
        let labels = report.labels.all();
        self.rows.iter().any(|row| labels[row.label as usize].function == function)
    }

    pub(super) fn write(&self, report: &Report<'_>, out: &mut impl Write) -> io::Result<()> {
        let unit = report.symbolized.profile().recording().unit();
        let (what, column) = match self.direction {
            Direction::Callers => ("callers of", "caller"),
            Direction::Callees => ("callees of", "callee"),
        };
        let mut by_total: Vec<usize> = (0..self.rows.len()).collect();
        // Stable: a caller or callee is shown only below its own row, which has no less.
        by_total.sort_by_key(|at| Reverse(self.rows[*at].total));
        let most = match report.options.top {
            0 => self.rows.len(),
            top => top,
        };
        let mut shown: Vec<usize> = by_total.into_iter().take(most).collect();
        shown.sort_unstable();
        writeln!(
            out,
            "\n{what} {}, {}{}",
            self.name,
            amount_with_unit(self.total, unit),
            match unit {
                Unit::Samples => "; shares are of all samples, intervals hold 95 %",
                Unit::Nanoseconds => " blocked; shares are of all blocked time",
                Unit::Bytes | Unit::Objects => {
                    ", estimated; shares are of all; the table of functions has their intervals"
                }
            }
        )?;
        // What ends in a caller ends at the root of its stack, which is of no interest.
        let has_own = self.direction == Direction::Callees;
        let shares = 1 + usize::from(has_own);
        let figures = Figures::fitting(unit, report.options.columns, shares, NAME);
        let own = if has_own { figures.heading("self") } else { String::new() };
        writeln!(out, "\n{own}{}{column}", figures.heading("total"))?;
        let room = report.options.columns.map(|all| figures.left(all, shares));
        let depths: Vec<u32> = shown.iter().map(|at| self.rows[*at].depth).collect();
        let most = room.map_or(MOST_BRANCHES, |room| room / 2);
        for (row, branch) in shown.iter().map(|at| &self.rows[*at]).zip(branches(&depths, most)) {
            let label = &report.labels.all()[row.label as usize];
            let name = match room {
                None => label.text.as_str().into(),
                Some(room) => {
                    label_name(report, label, room.saturating_sub(branch.chars().count()))
                }
            };
            let own = if has_own { figures.cells(row.own, &row.own_share) } else { String::new() };
            writeln!(out, "{own}{}{branch}{name}", figures.cells(row.total, &row.share))?;
        }
        if shown.len() < self.rows.len() {
            let left_out = grouped((self.rows.len() - shown.len()) as u64);
            writeln!(out, "{left_out} calls with fewer samples are left out; `--top 0` shows all")?;
        }
        Ok(())
    }

    pub(super) fn json(&self, report: &Report<'_>) -> JsonCalls<'_> {
        let unit = report.symbolized.profile().recording().unit();
        let rows = self.rows.iter().map(|row| JsonRow {
            depth: row.depth,
            name: report.labels.all()[row.label as usize].text.clone(),
            own: row.own,
            total: row.total,
            total_share: row.share.share,
            total_interval: row.share.ends(unit),
        });
        JsonCalls {
            direction: match self.direction {
                Direction::Callers => "callers",
                Direction::Callees => "callees",
            },
            function: &self.name,
            total: self.total,
            tree: rows.collect(),
        }
    }
}

/// The columns of branches where the text is as wide as it likes.
const MOST_BRANCHES: usize = 200;

/// What is drawn before the names of a tree's rows, whose depths are given in its order. The only
/// child of a row stands below it without being indented; several are branches. Where the branches
/// would take more than `most` columns, their number stands for the outer ones.
fn branches(depths: &[u32], most: usize) -> Vec<String> {
    let mut followed: Vec<bool> = Vec::new();
    let mut has_next: Vec<bool> = depths
        .iter()
        .rev()
        .map(|depth| {
            followed.resize(*depth as usize + 1, false);
            followed.last_mut().is_some_and(|it| std::mem::replace(it, true))
        })
        .collect();
    has_next.reverse();
    // The levels that are branches, outermost first, and whether another one follows there.
    let mut open: Vec<(u32, bool)> = Vec::new();
    let mut before = None;
    let row = |(&depth, has_next): (&u32, bool)| {
        while open.pop_if(|(at, _)| *at >= depth).is_some() {}
        let is_only = before.is_none_or(|before| before < depth) && !has_next;
        before = Some(depth);
        let own = match (is_only, has_next) {
            (true, _) => "",
            (false, true) => "├ ",
            (false, false) => "└ ",
        };
        let outer = open.len();
        if !is_only {
            open.push((depth, has_next));
        }
        let (levels, mut kept) = (open.len(), open.len());
        let mut text = String::new();
        if 2 * levels > most {
            text = format!("{levels}…");
            let Some(left) = most.checked_sub(text.chars().count()) else {
                return String::new();
            };
            kept = left / 2;
        }
        if kept != 0 {
            for (_, has_next) in &open[levels - kept.min(levels)..outer] {
                text += if *has_next { "│ " } else { "  " };
            }
            text += own;
        }
        text
    };
    depths.iter().zip(has_next).map(row).collect()
}

/// `calls` in the JSON report.
#[derive(Serialize)]
pub(super) struct JsonCalls<'c> {
    direction: &'static str,
    function: &'c str,
    total: u64,
    tree: Vec<JsonRow>,
}

#[derive(Serialize)]
struct JsonRow {
    depth: u32,
    name: String,
    #[serde(rename = "self")]
    own: u64,
    total: u64,
    total_share: f64,
    total_interval: Option<[f64; 2]>,
}

/// The stacks with a function, from it on towards their roots or their leaves. Items are labels.
struct Tree {
    tree: StackTree,
    /// By node.
    owns: Vec<u64>,
    totals: Vec<u64>,
    /// Of the totals, late samples.
    late: Vec<u64>,
    /// Samples of broken and truncated stacks: those that end with the mark at the node, and those
    /// that a row below the node may have too.
    marked: Vec<u64>,
    cuts: Vec<u64>,
}

impl Tree {
    fn of(report: &Report<'_>, functions: &[FunctionId], direction: Direction) -> Tree {
        let profile = report.symbolized.profile();
        let mut tree = StackTree::new();
        let mut counts: Vec<(NodeId, u64, bool)> = Vec::new();
        let mut cut: Vec<(NodeId, u64)> = Vec::new();
        let lacks_callers =
            |stack| profile.stack(stack).last().is_some_and(|root| is_cut(profile.frame(root)));
        let mut labels = Vec::new();
        for sample in report.shown_samples() {
            labels.clear();
            let frames = profile.stack(sample.node);
            labels.extend(frames.flat_map(|frame| report.labels.of_frame(frame)));
            let is_meant = |label: &LabelId| {
                functions.contains(&report.labels.all()[*label as usize].function)
            };
            let path: Vec<LabelId> = match direction {
                Direction::Callers => match labels.iter().position(is_meant) {
                    Some(at) => labels[at..].to_vec(),
                    None => continue,
                },
                Direction::Callees => match labels.iter().rposition(is_meant) {
                    Some(at) => labels[..=at].iter().rev().copied().collect(),
                    None => continue,
                },
            };
            // A tree of stacks has no more nodes than the profile's, which could be numbered.
            let end = path.iter().try_fold(NodeId::ROOT, |node, label| tree.child(node, *label));
            let Ok(end) = end else { continue };
            let leaf = profile.stack(sample.node).next();
            let is_late =
                leaf.map(|leaf| profile.frame(leaf)) == Some(Frame::Special(SpecialFrame::Late));
            counts.push((end, sample.count, is_late));
            if direction == Direction::Callers && lacks_callers(sample.node) {
                cut.push((end, sample.count));
            }
        }
        let mut found = Tree {
            owns: vec![0; tree.node_count()],
            totals: vec![0; tree.node_count()],
            late: vec![0; tree.node_count()],
            marked: vec![0; tree.node_count()],
            cuts: vec![0; tree.node_count()],
            tree,
        };
        for (end, count) in cut {
            let caller = found.tree.parent(end).unwrap_or(NodeId::ROOT);
            for sum in [&mut found.marked[end.index()], &mut found.cuts[caller.index()]] {
                *sum = sum.saturating_add(count);
            }
        }
        for (end, count, is_late) in counts {
            let at = end.index();
            found.owns[at] = found.owns[at].saturating_add(count);
            if is_late {
                found.late[at] = found.late[at].saturating_add(count);
            }
        }
        found.totals.clone_from(&found.owns);
        for (node, parent, _) in found.tree.iter() {
            found.cuts[node.index()] =
                found.cuts[node.index()].saturating_add(found.cuts[parent.index()]);
        }
        for (node, parent, _) in found.tree.iter().rev() {
            for sums in [&mut found.totals, &mut found.late] {
                sums[parent.index()] = sums[parent.index()].saturating_add(sums[node.index()]);
            }
        }
        found
    }

    fn rows(&self, report: &Report<'_>, direction: Direction) -> Vec<Row> {
        let profile = report.symbolized.profile();
        let all = Recorded {
            count: report.weights.recorded,
            unit: profile.recording().unit(),
            unplaced: Unplaced::of(profile),
        };
        let table = report.functions();
        let function = |label: LabelId| report.labels.all()[label as usize].function;
        let in_cut = table.rows.iter().map(|row| (row.label, row.total - row.in_whole));
        let in_cut: HashMap<LabelId, u64> = in_cut.collect();
        let share = |node: NodeId, depth, label| {
            let total = self.totals[node.index()];
            let is_root = depth == 1;
            let of_root = is_root.then(|| table.total_share(&[function(label)], total)).flatten();
            of_root.unwrap_or_else(|| {
                let caller = self.tree.parent(node).unwrap_or(NodeId::ROOT);
                let cut = match direction {
                    Direction::Callers => self.cuts[caller.index()],
                    // That they are calls from the function is not seen.
                    Direction::Callees => in_cut.get(&label).copied().unwrap_or(0),
                };
                let in_whole = total.saturating_sub(self.marked[node.index()]);
                all.with_cut(all.share(total, self.late[node.index()]), total, in_whole, cut)
            })
        };
        let children = unikprof_profile::profile::ChildLists::of(&self.tree, |_| true);
        let mut open = vec![(NodeId::ROOT, 0)];
        let mut rows = Vec::new();
        while let Some((node, depth)) = open.pop() {
            if let Some(label) = self.tree.item(node) {
                rows.push(Row {
                    depth: depth - 1,
                    label,
                    own: self.owns[node.index()],
                    total: self.totals[node.index()],
                    own_share: all.share(self.owns[node.index()], 0),
                    share: share(node, depth, label),
                });
            }
            let mut below: Vec<NodeId> = children.of_node(node).to_vec();
            // The one with the most comes last, and is taken next.
            below
                .sort_by_key(|child| (self.totals[child.index()], Reverse(self.tree.item(*child))));
            open.extend(below.into_iter().map(|child| (child, depth + 1)));
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::report::ReportOptions;
    use unikprof_profile::profile::{Frame, FrameId, ProfileBuilder};
    use unikprof_profile::symbols::{Names, Symbol};

    /// Guards deep calls that seem to be siblings.
    #[test]
    fn each_depth_of_a_tree_is_told() {
        let drawn = |depths: &[u32], most| branches(depths, most).join("|");
        assert_eq!(drawn(&[], 9), "");
        assert_eq!(drawn(&[0, 1, 2, 3, 4], 9), "||||");
        assert_eq!(drawn(&[0, 1, 2, 2, 1, 2, 3], 9), "|├ |│ ├ |│ └ |└ |  |  ");
        // 0 to 7, each with a sibling.
        let deep: Vec<u32> = (0..8).chain((1..8).rev()).collect();
        let drawn = branches(&deep, 6);
        assert_eq!(drawn[2..8], ["│ ├ ", "│ │ ├ ", "4…│ ├ ", "5…│ ├ ", "6…│ ├ ", "7…│ ├ "]);
        assert_eq!(drawn[8], "7…│ └ ");
        // Nothing fits, and nothing is cut in two.
        for most in 0..6 {
            let drawn = branches(&deep, most);
            assert!(drawn.iter().all(|it| it.chars().count() <= most), "{most}: {drawn:?}");
        }
        let many: Vec<u32> = (0..10_000).chain((1..10_000).rev()).collect();
        assert!(branches(&many, 40).iter().all(|it| it.chars().count() <= 40));
    }

    /// Guards intervals of callers that leave out what broken stacks lack, and a filter that makes
    /// intervals narrow by leaving those stacks out.
    #[test]
    fn callers_may_be_among_those_that_broken_stacks_lack() {
        const BROKEN: Frame = Frame::Special(SpecialFrame::Broken);
        let mut builder = ProfileBuilder::new();
        let (leaf, main) = (Frame::leaf(0x1000), Frame::caller(0x2000));
        builder.add_stack(0, 700, &[leaf, main]).unwrap();
        builder.add_stack(0, 100, &[Frame::leaf(0x3000), main]).unwrap();
        builder.add_stack(0, 200, &[leaf, BROKEN]).unwrap();
        let profile = builder.finish();
        let symbolized = unikprof_profile::symbols::Symbolizer::default().resolve(&profile);
        let symbolized = symbolized.unwrap();
        let report = Report::new(&symbolized, ReportOptions::default());
        let name = |total| {
            let row = report.functions().rows.iter().find(|row| row.total == total);
            row.unwrap().text.clone()
        };
        let of = |total| format!("^{}$", name(total)).parse::<FunctionName>().unwrap();
        let calls = Calls::of(&report, &of(900), Direction::Callers).unwrap();
        let ends = |row: &Row| {
            let plain = Interval::wilson(row.total, 1_000);
            let more = |end: f64| (end * 1_000.0).round();
            (row.total, more(row.share.low - plain.low), more(row.share.high - plain.high))
        };
        let found: Vec<_> = calls.rows.iter().map(ends).collect();
        assert_eq!(found, [(900, 0.0, 0.0), (700, 0.0, 200.0), (200, 0.0, 0.0)]);

        let options = ReportOptions { focus: Some(of(800)), ..ReportOptions::default() };
        let focused = Report::new(&symbolized, options);
        let share = |report: &Report<'_>| {
            let rows = &report.functions().rows;
            rows.iter().find(|row| row.total == 800).unwrap().total_share
        };
        assert_eq!(share(&focused), share(&report));

        for columns in 1..100 {
            let options = ReportOptions { columns: Some(columns), ..ReportOptions::default() };
            let narrow = Report::new(&symbolized, options);
            calls.write(&narrow, &mut Vec::new()).unwrap();
        }
    }

    /// A report of a stack with each of these functions, at the line of its number.
    fn with_functions(functions: &[&str], test: impl Fn(&Report<'_>)) {
        let mut builder = ProfileBuilder::new();
        for at in 0..functions.len() as u64 {
            builder.add_stack(0, 1, &[Frame::caller(0x1000 * (at + 1))]).unwrap();
        }
        let profile = builder.finish();
        let mut names = Names::new(profile.frames().len(), 0);
        for (at, name) in functions.iter().enumerate() {
            let begin = names.begin();
            let (name, file) = name.split_once(" in ").unwrap_or((name, ""));
            let place = match name {
                "helper" => Some(names.place_in(file)),
                name => name.starts_with("caml").then(|| names.place_at(at as u64)),
            };
            let name = unikprof_profile::symbols::demangle(name).unwrap_or_else(|| name.to_owned());
            let function = names.function_in(None, Some(&name), functions[at], place);
            names.push(Symbol { function, file: None, line: None, inlined: false });
            names.assign(FrameId(at as u32), begin);
        }
        let symbolized = names.finish(&profile, vec![None; functions.len()]);
        test(&Report::new(&symbolized, ReportOptions::default()));
    }

    /// The functions that a name means, in their order.
    fn found(report: &Report<'_>, text: &str) -> Result<Vec<usize>, FunctionError> {
        let name: FunctionName = text.parse().unwrap();
        let mut found: Vec<usize> = name.find(report)?.iter().map(|id| id.index()).collect();
        found.sort_unstable();
        let functions = report.symbolized.functions().iter().enumerate();
        let matching = functions.filter(|(_, function)| name.matches(function));
        let matching: Vec<usize> = matching.map(|(at, _)| at).collect();
        assert!(found.iter().all(|id| matching.contains(id)), "{text}: {found:?} {matching:?}");
        Ok(found)
    }

    /// Guards that a function whose closures have samples too can be named only by its whole path.
    #[test]
    fn the_last_part_of_a_path_names_its_function() {
        let functions = ["note::is_spam", "note::is_spam::{{closure}}", "rule::is_spam_word"];
        with_functions(&functions, |report| {
            assert_eq!(found(report, "note::is_spam"), Ok(vec![0]));
            let name: FunctionName = "is_spam".parse().unwrap();
            assert_eq!(name.find(report), Ok(vec![FunctionId(0)]));
            let several = found(report, "spam").unwrap_err().to_string();
            assert!(several.contains("matches 3 functions"), "{several}");
        });
    }

    /// Also those of `diff`, which are no regular expressions.
    #[test]
    fn a_function_is_found_by_each_name_that_a_table_has_for_it() {
        let functions = [
            "camlWork__f_1",
            "camlWork__f_2",
            "poll.constprop.0",
            "web::poll::{closure#0}",
            "web::poll::{closure#1}",
            "helper",
            "helper in b.c",
        ];
        with_functions(&functions, |report| {
            for (text, expected) in [
                ("Work.f (#2)", vec![1]),
                ("Work.f", vec![0, 1]),
                ("poll", vec![2]),
                ("web::poll::{closure#1}", vec![4]),
                ("web::poll::{closure}", vec![3, 4]),
                ("helper", vec![5]),
                ("helper (b.c)", vec![6]),
                // As a table shortens it.
                ("w…ll::{closure#1}", vec![4]),
            ] {
                assert_eq!(found(report, text), Ok(expected), "{text}");
            }
        });
    }
}
