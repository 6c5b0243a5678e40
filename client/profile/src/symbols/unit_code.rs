//! The code of one unit of DWARF: its functions, what is inlined into them, and their lines.

use std::ops::Range;

use gimli::{
    Abbreviation, Attribute, AttributeValue, EntriesRaw, RangeListsOffset, Result, UnitOffset,
    UnitRef, constants,
};

use super::section::Reader;

type Unit<'u, 'a> = UnitRef<'u, Reader<'a>>;

/// The addresses that an entry's attributes tell.
#[derive(Default)]
pub(super) struct Extent {
    low: Option<u64>,
    high: Option<u64>,
    size: Option<u64>,
    list: Option<RangeListsOffset>,
}

impl Extent {
    pub(super) fn take<'a>(
        &mut self,
        unit: Unit<'_, 'a>,
        attribute: &Attribute<Reader<'a>>,
    ) -> Result<()> {
        let address = |value| match value {
            AttributeValue::Addr(address) => Ok(Some(address)),
            AttributeValue::DebugAddrIndex(index) => unit.address(index).map(Some),
            _ => Ok(None),
        };
        match (attribute.name(), attribute.value()) {
            (constants::DW_AT_low_pc, value) => self.low = address(value)?.or(self.low),
            (constants::DW_AT_high_pc, AttributeValue::Udata(size)) => self.size = Some(size),
            (constants::DW_AT_high_pc, value) => self.high = address(value)?.or(self.high),
            (constants::DW_AT_ranges, value) => self.list = unit.attr_ranges_offset(value)?,
            _ => {}
        }
        Ok(())
    }

    /// Whether the addresses are in a list of their own.
    pub(super) fn is_listed(&self) -> bool {
        self.list.is_some()
    }

    /// Answers whether there are any.
    pub(super) fn each(&self, unit: Unit<'_, '_>, mut add: impl FnMut(Range<u64>)) -> Result<bool> {
        let mut any = false;
        let mut add = |range: Range<u64>| {
            if !range.is_empty() {
                any = true;
                add(range);
            }
        };
        if let Some(list) = self.list {
            let mut ranges = unit.ranges(list)?;
            while let Some(range) = ranges.next()? {
                add(range.begin..range.end);
            }
        } else if let (Some(low), Some(high)) = (self.low, self.high) {
            add(low..high);
        } else if let (Some(low), Some(size)) = (self.low, self.size) {
            // What was not linked begins at the last address.
            add(low..low.wrapping_add(size));
        }
        Ok(any)
    }
}

/// Refuses more ranges than any program has: many entries may name one long list.
pub(super) fn check_count(ranges: usize) -> Result<()> {
    const MOST: usize = 1 << 22;
    if ranges > MOST { Err(gimli::Error::AddressOverflow) } else { Ok(()) }
}

/// The functions of a unit by their addresses.
pub(super) struct Functions(Vec<(Range<u64>, UnitOffset)>);

impl Functions {
    pub(super) fn read(unit: Unit<'_, '_>) -> Result<Functions> {
        let mut functions = Vec::new();
        let mut entries = unit.entries_raw(None)?;
        while !entries.is_empty() {
            let at = entries.next_offset();
            let Some(abbreviation) = entries.read_abbreviation()? else { continue };
            if abbreviation.tag() != constants::DW_TAG_subprogram {
                entries.skip_attributes(abbreviation.attributes())?;
                continue;
            }
            let mut extent = Extent::default();
            for attribute in abbreviation.attributes() {
                extent.take(unit, &entries.read_attribute(*attribute)?)?;
            }
            extent.each(unit, |range| functions.push((range, at)))?;
            check_count(functions.len())?;
        }
        functions.sort_by_key(|(range, _)| range.start);
        Ok(Functions(functions))
    }

    /// The entry of the function that holds an address.
    pub(super) fn find(&self, address: u64) -> Option<UnitOffset> {
        find(&self.0, address, |(range, _)| range).map(|(_, at)| *at)
    }
}

/// The one of some ranges in rising order that holds an address.
fn find<T>(all: &[T], address: u64, range: impl Fn(&T) -> &Range<u64>) -> Option<&T> {
    let found = all.binary_search_by(|one| {
        let Range { start, end } = range(one);
        match (address < *start, address >= *end) {
            (true, _) => std::cmp::Ordering::Greater,
            (_, true) => std::cmp::Ordering::Less,
            _ => std::cmp::Ordering::Equal,
        }
    });
    found.ok().map(|at| &all[at])
}

/// A function, or one that is inlined into another.
#[derive(Debug, Clone)]
pub(super) struct Callee<'a> {
    pub(super) entry: UnitOffset,
    /// Mangled where the language mangles.
    pub(super) name: Option<Reader<'a>>,
    /// Where it was called if it is inlined: the file's number, and the line, 0 if it is unknown.
    pub(super) call_file: Option<u64>,
    pub(super) call_line: u32,
}

/// A function with what is inlined into it.
pub(super) struct Inlining<'a> {
    pub(super) function: Callee<'a>,
    inlined: Vec<Callee<'a>>,
    /// How deep, where and which, in this order.
    places: Vec<(usize, Range<u64>, usize)>,
}

/// Finds the name of the entry that an attribute refers to.
pub(super) type Refer<'r, 'a> =
    &'r dyn Fn(Unit<'_, 'a>, AttributeValue<Reader<'a>>) -> Result<Option<Reader<'a>>>;

impl<'a> Inlining<'a> {
    /// Reads the function at an entry.
    pub(super) fn read(
        unit: Unit<'_, 'a>,
        at: UnitOffset,
        refer: Refer<'_, 'a>,
    ) -> Result<Inlining<'a>> {
        let mut entries = unit.entries_raw(Some(at))?;
        let depth = entries.next_depth();
        let missing = || gimli::Error::NoEntryAtGivenOffset(at.0 as u64);
        let abbreviation = entries.read_abbreviation()?.ok_or_else(missing)?;
        let (function, _) = callee(unit, &mut entries, abbreviation, at, refer)?;
        let (mut inlined, mut places) = (Vec::new(), Vec::new());
        // The depths of the inlined functions around the next entry.
        let mut around: Vec<isize> = Vec::new();
        while entries.next_depth() > depth {
            let (at, here) = (entries.next_offset(), entries.next_depth());
            let Some(abbreviation) = entries.read_abbreviation()? else { continue };
            while around.last().is_some_and(|outer| *outer >= here) {
                around.pop();
            }
            match abbreviation.tag() {
                constants::DW_TAG_inlined_subroutine => {
                    let (callee, extent) = callee(unit, &mut entries, abbreviation, at, refer)?;
                    let add = |range| places.push((around.len(), range, inlined.len()));
                    extent.each(unit, add)?;
                    check_count(places.len())?;
                    inlined.push(callee);
                    around.push(here);
                }
                constants::DW_TAG_subprogram => {
                    entries.skip_attributes(abbreviation.attributes())?;
                    while entries.next_depth() > here {
                        if let Some(inner) = entries.read_abbreviation()? {
                            entries.skip_attributes(inner.attributes())?;
                        }
                    }
                }
                _ => entries.skip_attributes(abbreviation.attributes())?,
            }
        }
        places.sort_by_key(|(depth, range, _)| (*depth, range.start));
        Ok(Inlining { function, inlined, places })
    }

    /// The inlined functions that hold an address, outermost first.
    pub(super) fn at(&self, address: u64) -> Vec<&Callee<'a>> {
        let mut found = Vec::new();
        let by_depth = self.places.chunk_by(|(one, ..), (next, ..)| one == next);
        for places in by_depth {
            let is_next = places.first().is_some_and(|(depth, ..)| *depth == found.len());
            let here = find(places, address, |(_, range, _)| range);
            let Some((.., inlined)) = here.filter(|_| is_next) else { break };
            found.push(&self.inlined[*inlined]);
        }
        found
    }
}

fn callee<'a>(
    unit: Unit<'_, 'a>,
    entries: &mut EntriesRaw<'_, Reader<'a>>,
    abbreviation: &Abbreviation,
    entry: UnitOffset,
    refer: Refer<'_, 'a>,
) -> Result<(Callee<'a>, Extent)> {
    let mut callee = Callee { entry, name: None, call_file: None, call_line: 0 };
    let mut extent = Extent::default();
    for attribute in abbreviation.attributes() {
        let attribute = entries.read_attribute(*attribute)?;
        let value = attribute.value();
        match attribute.name() {
            constants::DW_AT_linkage_name | constants::DW_AT_MIPS_linkage_name => {
                callee.name = unit.attr_string(value).ok().or(callee.name);
            }
            constants::DW_AT_name if callee.name.is_none() => {
                callee.name = unit.attr_string(value).ok();
            }
            constants::DW_AT_abstract_origin | constants::DW_AT_specification
                if callee.name.is_none() =>
            {
                callee.name = refer(unit, value)?;
            }
            constants::DW_AT_call_file => match value {
                // Up to version 4 it says that there is no file.
                AttributeValue::FileIndex(0) if unit.header.version() < 5 => {}
                AttributeValue::FileIndex(file) => callee.call_file = Some(file),
                _ => {}
            },
            constants::DW_AT_call_line => {
                callee.call_line = attribute.udata_value().unwrap_or(0) as u32;
            }
            _ => extent.take(unit, &attribute)?,
        }
    }
    Ok((callee, extent))
}

/// What an entry says of its name: its own, or the attribute that refers to the entry which has it.
pub(super) fn name_at<'a>(
    unit: Unit<'_, 'a>,
    at: UnitOffset,
) -> Result<(Option<Reader<'a>>, Option<AttributeValue<Reader<'a>>>)> {
    let mut entries = unit.entries_raw(Some(at))?;
    let missing = || gimli::Error::NoEntryAtGivenOffset(at.0 as u64);
    let abbreviation = entries.read_abbreviation()?.ok_or_else(missing)?;
    let (mut name, mut refers) = (None, None);
    for attribute in abbreviation.attributes() {
        let attribute = entries.read_attribute(*attribute)?;
        match attribute.name() {
            constants::DW_AT_linkage_name | constants::DW_AT_MIPS_linkage_name => {
                if let Ok(found) = unit.attr_string(attribute.value()) {
                    return Ok((Some(found), None));
                }
            }
            constants::DW_AT_name => name = unit.attr_string(attribute.value()).ok().or(name),
            constants::DW_AT_abstract_origin | constants::DW_AT_specification => {
                refers = Some(attribute.value());
            }
            _ => {}
        }
    }
    Ok((name, refers))
}

/// A unit's line table.
pub(super) struct Lines {
    /// By their numbers.
    files: Vec<String>,
    rows: Vec<Row>,
    /// Addresses of code that lies together, and its rows.
    sequences: Vec<(Range<u64>, Range<usize>)>,
}

struct Row {
    address: u64,
    file: u32,
    line: u32,
}

impl Lines {
    /// `None` if the unit has no line table.
    pub(super) fn read(unit: Unit<'_, '_>) -> Result<Option<Lines>> {
        let Some(program) = unit.line_program.clone() else { return Ok(None) };
        let mut lines = Lines { files: Vec::new(), rows: Vec::new(), sequences: Vec::new() };
        let mut first = 0;
        let mut rows = program.rows();
        while let Some((_, row)) = rows.next_row()? {
            let address = row.address();
            if row.end_sequence() {
                let start = lines.rows.get(first).map(|row| row.address);
                match start.filter(|start| *start < address) {
                    Some(start) => {
                        lines.sequences.push((start..address, first..lines.rows.len()));
                    }
                    None => lines.rows.truncate(first),
                }
                first = lines.rows.len();
                continue;
            }
            let line = row.line().map_or(0, |line| line.get() as u32);
            let file = u32::try_from(row.file_index()).unwrap_or(u32::MAX);
            let row = Row { address, file, line };
            match lines.rows[first..].last_mut().filter(|last| last.address == address) {
                Some(last) => *last = row,
                None => lines.rows.push(row),
            }
        }
        lines.rows.shrink_to_fit();
        lines.sequences.sort_by_key(|(addresses, _)| addresses.start);
        let header = rows.header();
        lines.files.push(match header.file(0) {
            Some(file) => path(unit, file, header)?,
            None => String::new(),
        });
        for number in 1.. {
            let Some(file) = header.file(number) else { break };
            lines.files.push(path(unit, file, header)?);
        }
        Ok(Some(lines))
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = Range<u64>> {
        self.sequences.iter().map(|(addresses, _)| addresses.clone())
    }

    pub(super) fn file(&self, number: u64) -> Option<&str> {
        self.files.get(usize::try_from(number).ok()?).map(String::as_str)
    }

    /// The file and the line of the code at an address, each if it is known.
    pub(super) fn find(&self, address: u64) -> Option<(Option<&str>, Option<u32>)> {
        let (_, rows) = find(&self.sequences, address, |(addresses, _)| addresses)?;
        let rows = &self.rows[rows.clone()];
        let at = match rows.binary_search_by_key(&address, |row| row.address) {
            Ok(at) => at,
            Err(after) => after.checked_sub(1)?,
        };
        Some((self.file(rows[at].file.into()), Some(rows[at].line).filter(|line| *line != 0)))
    }
}

/// The path of a file of a unit's line table.
pub(super) fn path<'a>(
    unit: Unit<'_, 'a>,
    file: &gimli::FileEntry<Reader<'a>>,
    header: &gimli::LineProgramHeader<Reader<'a>>,
) -> Result<String> {
    let mut path = unit.comp_dir.map_or_else(String::new, |folder| folder.text());
    let mut push = |part: AttributeValue<Reader<'a>>| -> Result<()> {
        let part = unit.attr_string(part)?.text();
        let is_drive = part.get(1..3).is_some_and(|drive| drive == ":/" || drive == ":\\");
        if is_drive || part.starts_with(['/', '\\']) {
            path = part;
            return Ok(());
        }
        let is_windows = path.starts_with('\\') || path.get(1..3) == Some(":\\");
        let separator = if is_windows { '\\' } else { '/' };
        if !path.is_empty() && !path.ends_with(separator) {
            path.push(separator);
        }
        path += &part;
        Ok(())
    };
    // Folder 0 is the unit's own.
    let folder = Some(file.directory_index()).filter(|folder| *folder != 0);
    if let Some(folder) = folder.and_then(|_| file.directory(header)) {
        push(folder)?;
    }
    push(file.path_name())?;
    Ok(path)
}
