//! A comparison as a page: both recordings in one graph, in the colours of what became of each
//! function, and the table.
//!
//! The file is made as that of a report's page; `client/report/page/diff.js` shows it. All figures are
//! those of the text, in its words. Graphs count each stack once for each recording; widths are the
//! mean of both shares, so that what vanished or appeared is there.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use serde::Serialize;

use super::Comparison;
use super::text::{cells, lines, verdict};
use crate::report::page::{Columns, write_data, write_page};
use unikprof_profile::printable::Printable;

const BODY: &str = include_str!("../../page/diff.html");

/// The modules beside those that every page has.
const MODULES: [&str; 3] = [
    include_str!("../../page/tree.js"),
    include_str!("../../page/flame.js"),
    include_str!("../../page/diff.js"),
];

/// What the columns are about.
#[derive(Serialize)]
struct Head<'a> {
    /// What the text says above its table, each line with its name.
    lines: Vec<(&'static str, String)>,
    warnings: Vec<String>,
    /// Those that changed most first; a node's label is an index into it.
    functions: Vec<Row<'a>>,
    columns: Vec<(&'static str, usize)>,
}

#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    verdict: &'static str,
    /// The text's columns but the verdict and the name.
    cells: [String; 7],
    /// What the base has, to order rows by.
    own: f64,
    total: f64,
}

pub(super) fn write(of: &Comparison<'_>, out: &mut impl Write) -> io::Result<()> {
    write_page(BODY, &MODULES, out, |out| {
        let columns = columns(of);
        let functions = of.functions.iter().map(|function| Row {
            name: &function.name,
            verdict: verdict(of, function),
            cells: cells(of, function),
            own: function.own.base,
            total: function.total.base,
        });
        let head = Head {
            lines: lines(of),
            warnings: of.warnings().iter().map(|w| Printable(w).to_string()).collect(),
            functions: functions.collect(),
            columns: columns.lengths().collect(),
        };
        write_data(&head, &columns, out)
    })
}

/// The stacks of both recordings as one tree in the order of a walk, and what each node itself was
/// counted.
fn columns(of: &Comparison<'_>) -> Columns {
    let places = of.functions.iter().enumerate();
    let places: HashMap<&str, u64> = places.map(|(at, f)| (f.name.as_str(), at as u64)).collect();
    let mut stacks: BTreeMap<Vec<u64>, [u64; 2]> = BTreeMap::new();
    for (at, side) in of.sides.sides.iter().enumerate() {
        for stack in &side.stacks {
            let names = stack.path.iter().rev().map(|name| of.sides.names.all[*name].as_str());
            // All functions with samples are in the table.
            let path = names.filter_map(|name| places.get(name).copied()).collect();
            let hits: f64 = stack.hits.iter().map(|(_, hits)| hits).sum();
            let sum = &mut stacks.entry(path).or_default()[at];
            *sum = sum.saturating_add(hits as u64);
        }
    }
    let (mut nodes, mut own): (Vec<[u64; 2]>, Vec<[u64; 2]>) = (Vec::new(), Vec::new());
    let mut last: Vec<u64> = Vec::new();
    for (path, counts) in stacks.into_iter().filter(|(path, _)| !path.is_empty()) {
        let shared = path.iter().zip(&last).take_while(|(a, b)| a == b).count();
        for (depth, label) in path.iter().enumerate().skip(shared) {
            nodes.push([depth as u64 + 1, *label]);
            own.push([0; 2]);
        }
        // A path comes before those that go on from it, so its node is the last one.
        if let Some(own) = own.last_mut() {
            *own = counts;
        }
        last = path;
    }
    let mut columns = Columns::default();
    columns.add("node_depth", nodes.iter().map(|[depth, _]| *depth));
    columns.add("node_label", nodes.iter().map(|[_, label]| *label));
    columns.add("base_own", own.iter().map(|[base, _]| *base));
    columns.add("new_own", own.iter().map(|[_, new]| *new));
    columns
}
