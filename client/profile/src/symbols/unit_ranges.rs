//! Which units of DWARF hold the code at an address.

use std::ops::Range;

use gimli::{ArangeHeader, Dwarf, Result, UnitRef, UnitType};

use super::section::Reader;
use super::unit_code::{Extent, Lines, check_count};

/// The addresses of all units, from the entry that each begins with.
pub(super) struct UnitRanges(Vec<UnitRange>);

struct UnitRange {
    addresses: Range<u64>,
    /// The unit's offset in `.debug_info`.
    unit: usize,
    /// Where the code of this and all later ones begins.
    lowest: u64,
}

impl UnitRanges {
    /// Units that cannot be read have no addresses.
    ///
    /// # Errors
    ///
    /// If the list of units is damaged, or has more addresses than any program.
    pub(super) fn read(dwarf: &Dwarf<Reader<'_>>) -> Result<UnitRanges> {
        let mut described = Vec::new();
        let mut headers = dwarf.debug_aranges.headers();
        while let Some(header) = headers.next()? {
            described.push((header.debug_info_offset(), header));
        }
        described.sort_by_key(|(unit, _)| unit.0);
        let mut all = Vec::new();
        let mut known = None;
        let mut units = dwarf.units();
        while let Some(header) = units.next()? {
            let (unit, abbreviations) = match (header.type_(), header.debug_info_offset()) {
                (UnitType::Type { .. } | UnitType::SplitType { .. } | UnitType::Partial, _) => {
                    continue;
                }
                (_, Some(unit)) => (unit, header.debug_abbrev_offset()),
                (_, None) => continue,
            };
            // Many units share theirs.
            known = known.filter(|(at, _)| *at == abbreviations);
            if known.is_none() {
                known = dwarf.abbreviations(&header).ok().map(|read| (abbreviations, read));
            }
            let read = known.as_ref().map(|(_, abbreviations)| abbreviations.clone());
            let read = read.and_then(|abbreviations| {
                gimli::Unit::new_with_abbreviations(dwarf, header, abbreviations).ok()
            });
            let Some(read) = read else { continue };
            // There may be several for a unit.
            let first = described.partition_point(|(of, _)| of.0 < unit.0);
            let own = described[first..].iter().take_while(|(of, _)| *of == unit);
            let own = own.map(|(_, header)| header);
            let before = all.len();
            let mut add = |addresses| all.push(UnitRange { addresses, unit: unit.0, lowest: 0 });
            if add_addresses(read.unit_ref(dwarf), own, &mut add).is_err() {
                all.truncate(before);
            }
            check_count(all.len())?;
        }
        all.sort_unstable_by_key(|one| (one.addresses.end, one.unit));
        let mut lowest = u64::MAX;
        for one in all.iter_mut().rev() {
            lowest = lowest.min(one.addresses.start);
            one.lowest = lowest;
        }
        Ok(UnitRanges(all))
    }

    /// The units whose code may be at an address: of those that overlap, one has it.
    pub(super) fn find(&self, address: u64) -> impl Iterator<Item = usize> {
        let after = self.0.partition_point(|one| one.addresses.end <= address);
        let near = self.0[after..].iter().take_while(move |one| one.lowest <= address);
        near.filter(move |one| one.addresses.start <= address).map(|one| one.unit)
    }
}

/// Hands over the addresses of a unit's code, which `described` may tell.
fn add_addresses<'r, 'a: 'r>(
    unit: UnitRef<'_, Reader<'a>>,
    described: impl Iterator<Item = &'r ArangeHeader<Reader<'a>>>,
    mut add: impl FnMut(Range<u64>),
) -> Result<()> {
    let mut extent = Extent::default();
    let mut entries = unit.entries_raw(None)?;
    let Some(root) = entries.read_abbreviation()? else { return Ok(()) };
    for attribute in root.attributes() {
        extent.take(unit, &entries.read_attribute(*attribute)?)?;
    }
    let mut is_known = false;
    for header in described.filter(|_| !extent.is_listed()) {
        let mut ranges = header.entries();
        while let Some(range) = ranges.next().transpose() {
            // Those that were not linked may go beyond the last address.
            let Ok(range) = range else { continue };
            if range.length() != 0 {
                add(range.range().begin..range.range().end);
                is_known = true;
            }
        }
    }
    if !is_known
        && !extent.each(unit, &mut add)?
        && let Ok(Some(lines)) = Lines::read(unit)
    {
        lines.addresses().for_each(add);
    }
    Ok(())
}
