//! Bytes that the agent adds to a guest that has a network of its own already.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SectionKind};

use super::BenchError;
use crate::lab::build_xen_guest;

/// Whose code a symbol is: the first of these that its name holds.
const OWNERS: [(&str, &str); 5] = [
    ("unikprof_agent", "agent"),
    ("unikprof_proto", "proto"),
    ("xen_sys_lite", "xen-sys-lite"),
    ("smoltcp", "smoltcp"),
    ("xen_guest", "guest"),
];

#[derive(Debug, Default)]
struct Sizes {
    text: u64,
    data: u64,
    bss: u64,
    /// Text by owner, from the symbols.
    owners: BTreeMap<&'static str, u64>,
}

/// The table.
pub(super) fn measure() -> Result<String, BenchError> {
    eprintln!("building the guest with and without the agent");
    let without = sizes(&build_xen_guest(&["demo"])?)?;
    let with = sizes(&build_xen_guest(&["agent", "demo"])?)?;
    let mut table = String::from(
        "\n### Size\n\n| bytes | without the agent | with it | it adds |\n|---|---|---|---|\n",
    );
    let mut row = |name: &str, without: u64, with: u64| {
        // Writing to a string does not fail.
        let _ = writeln!(
            table,
            "| {name} | {without} | {with} | {:+} |",
            i128::from(with) - i128::from(without)
        );
    };
    row("text and read-only data", without.text, with.text);
    row("data", without.data, with.data);
    row("bss", without.bss, with.bss);
    for (_, owner) in OWNERS {
        let of = |sizes: &Sizes| sizes.owners.get(owner).copied().unwrap_or_default();
        row(&format!("code of {owner}"), of(&without), of(&with));
    }
    Ok(table)
}

fn sizes(image: &Path) -> Result<Sizes, BenchError> {
    let bytes = fs::read(image).map_err(|source| BenchError::File {
        what: image.display().to_string(),
        source,
    })?;
    let file = object::File::parse(&*bytes).map_err(BenchError::Image)?;
    let mut sizes = Sizes::default();
    for section in file.sections() {
        match section.kind() {
            SectionKind::Text | SectionKind::ReadOnlyData | SectionKind::ReadOnlyString => {
                sizes.text += section.size();
            }
            SectionKind::Data => sizes.data += section.size(),
            SectionKind::UninitializedData => sizes.bss += section.size(),
            _ => {}
        }
    }
    for symbol in file.symbols().filter(object::ObjectSymbol::is_definition) {
        let in_text = symbol
            .section_index()
            .and_then(|index| file.section_by_index(index).ok())
            .is_some_and(|section| section.kind() == SectionKind::Text);
        let Some(name) = symbol.name().ok().filter(|_| in_text) else {
            continue;
        };
        // A generic's name holds its arguments too: the crate that is named first is its own, as a rule.
        let owner = OWNERS
            .iter()
            .filter_map(|(krate, owner)| Some((name.find(krate)?, *owner)))
            .min();
        if let Some((_, owner)) = owner {
            *sizes.owners.entry(owner).or_default() += symbol.size();
        }
    }
    Ok(sizes)
}
