//! Bytes that the agent adds to a guest that has a network of its own already.

use anyhow::{Context as _, Result};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SectionKind};

use crate::lab::build_xen_guest;

/// The owners of code, by a part of a symbol's name: the first that the name holds.
const OWNERS: [(&str, &str); 9] = [
    ("unikprof_agent", "agent"),
    ("curve25519_dalek", "curve25519-dalek"),
    ("chacha20", "chacha20, poly1305"),
    ("poly1305", "chacha20, poly1305"),
    ("blake2", "blake2"),
    ("unikprof_proto", "proto"),
    ("xen_sys_lite", "xen-sys-lite"),
    ("smoltcp", "smoltcp"),
    ("xen_guest", "guest"),
];

/// The sizes of an image's parts.
#[derive(Debug, Default)]
pub struct Sizes {
    /// Code, constants and the tables for unwinding.
    pub text: u64,
    pub data: u64,
    /// Memory of zeros: no place in the image.
    pub bss: u64,
    /// Text by owner, from the symbols.
    owners: BTreeMap<&'static str, u64>,
}

pub(super) fn measure() -> Result<String> {
    eprintln!("building the guest without the agent, with it, and with keys as well");
    let guests = [
        sizes(&build_xen_guest(&["demo"])?)?,
        sizes(&build_xen_guest(&["agent", "demo"])?)?,
        sizes(&build_xen_guest(&["keys", "demo"])?)?,
    ];
    let mut table = String::from(
        "\n### Size\n\n| bytes | without the agent | with it | it adds | with keys | they add |\n\
         |---|---|---|---|---|---|\n",
    );
    let mut row = |name: &str, of: &dyn Fn(&Sizes) -> u64| {
        let [without, with, keyed] = guests.each_ref().map(of);
        let adds = |more: u64, less: u64| i128::from(more) - i128::from(less);
        // Writing to a string does not fail.
        let _ = writeln!(
            table,
            "| {name} | {without} | {with} | {:+} | {keyed} | {:+} |",
            adds(with, without),
            adds(keyed, with)
        );
    };
    row("text and read-only data", &|sizes| sizes.text);
    row("data", &|sizes| sizes.data);
    row("bss", &|sizes| sizes.bss);
    let mut owners: Vec<&str> = OWNERS.iter().map(|(_, owner)| *owner).collect();
    owners.dedup();
    for owner in owners {
        row(&format!("code of {owner}"), &|sizes| {
            sizes.owners.get(owner).copied().unwrap_or_default()
        });
    }
    Ok(table)
}

/// The sizes of an image.
pub fn sizes(image: &Path) -> Result<Sizes> {
    let bytes = fs::read(image).with_context(|| image.display().to_string())?;
    let file = object::File::parse(&*bytes).context("the guest's image cannot be read")?;
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
        // A generic's name holds its arguments too: the crate that is named first is its own, as a
        // rule.
        let owner =
            OWNERS.iter().filter_map(|(krate, owner)| Some((name.find(krate)?, *owner))).min();
        if let Some((_, owner)) = owner {
            *sizes.owners.entry(owner).or_default() += symbol.size();
        }
    }
    Ok(sizes)
}
