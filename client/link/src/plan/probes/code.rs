//! The code of an image: its sections, its functions and what the unwind entries say about the
//! rest.

use std::collections::HashMap;
use std::ops::Range;

use gimli::{BaseAddresses, CieOrFde, DebugFrame, EhFrame, LittleEndian, UnwindSection};
use object::{
    Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, RelocationTarget, SymbolKind,
};

use unikprof_profile::symbols::{ElfFile, ImageBytes};

/// The largest function that is analysed, in bytes: its symbol may claim any size.
pub(super) const MAX_FUNCTION: u64 = 1 << 20;

/// The code of an image and its functions, by link address.
pub(super) struct Code<'i> {
    sections: Vec<Section<'i>>,
    /// Read-only and writable data, in which jump tables lie.
    data: Vec<(u64, &'i [u8])>,
    /// Words that the loader writes, with the addresses of the image's own functions among them.
    pointers: HashMap<u64, u64>,
    /// By address, each address once.
    pub(super) functions: Vec<Function>,
    /// Ranges that no function's symbol covers: parts of functions that the compiler has moved
    /// elsewhere, or functions without a symbol. By address.
    pub(super) fragments: Vec<Fragment>,
}

struct Section<'i> {
    range: Range<u64>,
    bytes: &'i [u8],
    is_linkage_table: bool,
}

/// A function that has a symbol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) range: Range<u64>,
    /// As the symbol tables have them; one that is the shortest comes first.
    pub(super) names: Vec<String>,
}

/// A range of code without a function's symbol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fragment {
    pub(super) range: Range<u64>,
    /// The name of the function that it was split from, if a `.cold` symbol has it.
    pub(super) family: Option<String>,
}

impl<'i> Code<'i> {
    /// The code of a file. The symbols are those of `debug`, its separate debug file, if it has
    /// none itself.
    pub(super) fn of(file: &ElfFile<'i>, debug: Option<&ElfFile<'_>>) -> Code<'i> {
        let mut sections = Vec::new();
        let mut data = Vec::new();
        for section in file.sections() {
            let start = section.address();
            let is_code = unikprof_profile::symbols::is_code(&section);
            // What is not loaded has the address 0; the code of a kernel may, too.
            if start == 0 && !is_code {
                continue;
            }
            let Ok(bytes) = section.data() else { continue };
            let Some(end) = start.checked_add(bytes.len() as u64) else {
                continue;
            };
            if bytes.is_empty() {
                continue;
            }
            if is_code {
                sections.push(Section {
                    range: start..end,
                    bytes,
                    is_linkage_table: section.name().is_ok_and(|name| name.starts_with(".plt")),
                });
            } else {
                data.push((start, bytes));
            }
        }
        sections.sort_by_key(|section| section.range.start);
        let mut code = Code {
            sections,
            data,
            pointers: pointers_of(file),
            functions: Vec::new(),
            fragments: Vec::new(),
        };
        let has_functions =
            |file: &&ElfFile<'_>| file.symbols().any(|it| it.kind() == SymbolKind::Text);
        code.find_functions(match debug.filter(|_| !has_functions(&file)) {
            Some(debug) if has_functions(&debug) => symbols_of(debug.symbols()),
            _ if has_functions(&file) => symbols_of(file.symbols()),
            _ => symbols_of(file.dynamic_symbols()),
        });
        code.find_fragments(file);
        code
    }

    /// The bytes of code from an address to the end of its section, and whether that is a procedure
    /// linkage table.
    pub(super) fn section(&self, address: u64) -> Option<(&'i [u8], bool)> {
        let after = self.sections.partition_point(|section| section.range.start <= address);
        let section = &self.sections[after.checked_sub(1)?];
        let at = usize::try_from(address - section.range.start).ok()?;
        let bytes = section.bytes.get(at..)?;
        (!bytes.is_empty()).then_some((bytes, section.is_linkage_table))
    }

    /// The code of a range, as far as its section holds it.
    pub(super) fn bytes(&self, range: &Range<u64>) -> &'i [u8] {
        let Some((bytes, _)) = self.section(range.start) else {
            return &[];
        };
        let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        &bytes[..length.min(bytes.len())]
    }

    /// `N` bytes of code or data.
    pub(super) fn word<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let of_code = self.section(address).map(|(bytes, _)| bytes);
        let of_data = || {
            self.data.iter().find_map(|(start, bytes)| {
                let at = usize::try_from(address.checked_sub(*start)?).ok()?;
                bytes.get(at..)
            })
        };
        of_code.or_else(of_data).and_then(|bytes| bytes.first_chunk().copied())
    }

    /// The function that begins at an address, or at the one that the word there holds once the
    /// image is loaded.
    pub(super) fn function_by(&self, address: u64) -> Option<usize> {
        let starts = |address: u64| {
            let found = self.function_at(address);
            found.filter(|at| self.functions[*at].range.start == address)
        };
        let pointer = || {
            let known = self.pointers.get(&address).copied();
            known.or_else(|| self.word(address).map(u64::from_le_bytes))
        };
        starts(address).or_else(|| starts(pointer()?))
    }

    /// The function that covers an address.
    pub(super) fn function_at(&self, address: u64) -> Option<usize> {
        let after = self.functions.partition_point(|function| function.range.start <= address);
        let at = after.checked_sub(1)?;
        self.functions[at].range.contains(&address).then_some(at)
    }

    /// The fragment that covers an address.
    pub(super) fn fragment_at(&self, address: u64) -> Option<usize> {
        let after = self.fragments.partition_point(|fragment| fragment.range.start <= address);
        let at = after.checked_sub(1)?;
        self.fragments[at].range.contains(&address).then_some(at)
    }

    fn find_functions(&mut self, mut symbols: Vec<Symbol>) {
        symbols.retain(|symbol| self.section(symbol.address).is_some_and(|(_, plt)| !plt));
        // Labels bound functions whose symbols have no size.
        let mut labels: Vec<u64> = symbols.iter().map(|symbol| symbol.address).collect();
        labels.sort_unstable();
        let mut found: Vec<(u64, u64, String)> = Vec::new();
        for symbol in symbols {
            if !symbol.is_function || symbol.name.is_empty() {
                continue;
            }
            let start = symbol.address;
            let left = self.section(start).map_or(0, |(bytes, _)| bytes.len() as u64);
            let section_end = start.saturating_add(left);
            let end = match symbol.size {
                0 => {
                    let next = labels.partition_point(|label| *label <= start);
                    labels.get(next).copied().unwrap_or(section_end)
                }
                size => start.saturating_add(size),
            };
            found.push((start, end.min(section_end), symbol.name));
        }
        // Of several symbols at one address, the longest function counts.
        found.sort_by(|a, b| (a.0, b.1, a.2.len(), &a.2).cmp(&(b.0, a.1, b.2.len(), &b.2)));
        found.dedup();
        for (start, end, name) in found {
            if let Some(family) = family(&name) {
                let is_known = self.fragments.last().is_some_and(|it| it.range.start == start);
                if !is_known && start < end {
                    self.fragments
                        .push(Fragment { range: start..end, family: Some(family.to_owned()) });
                }
                continue;
            }
            match self.functions.last_mut() {
                Some(last) if last.range.start == start => {
                    if !last.names.contains(&name) {
                        last.names.push(name);
                    }
                }
                _ => self.functions.push(Function { range: start..end, names: vec![name] }),
            }
        }
    }

    fn find_fragments(&mut self, file: &ElfFile<'i>) {
        self.fragments.sort_by_key(|fragment| fragment.range.start);
        let mut unnamed = unwind_entries(file);
        unnamed.retain(|range| {
            self.section(range.start).is_some_and(|(_, plt)| !plt)
                && self.function_at(range.start).is_none()
                && self.fragment_at(range.start).is_none()
        });
        let unnamed = unnamed.into_iter().map(|range| Fragment { range, family: None });
        self.fragments.extend(unnamed);
        self.fragments.sort_by_key(|fragment| fragment.range.start);
        self.fragments.dedup_by_key(|fragment| fragment.range.start);
    }
}

/// The words that the loader writes into an image that can be loaded anywhere.
fn pointers_of(file: &ElfFile<'_>) -> HashMap<u64, u64> {
    let relocations = file.dynamic_relocations().into_iter().flatten();
    let pointer = |relocation: &object::Relocation| match relocation.target() {
        RelocationTarget::Absolute => u64::try_from(relocation.addend()).ok(),
        RelocationTarget::Symbol(symbol) => {
            let symbol = file.dynamic_symbol_table()?.symbol_by_index(symbol).ok()?;
            Some(symbol.address().wrapping_add_signed(relocation.addend()))
        }
        _ => None,
    };
    relocations.filter_map(|(address, relocation)| Some((address, pointer(&relocation)?))).collect()
}

/// A symbol of code or of a label in it.
struct Symbol {
    address: u64,
    size: u64,
    name: String,
    is_function: bool,
}

fn symbols_of<'a, 's>(
    symbols: impl Iterator<Item = object::Symbol<'a, 's, &'a ImageBytes>>,
) -> Vec<Symbol>
where
    'a: 's,
{
    let defined = symbols.filter(ObjectSymbol::is_definition);
    defined
        .filter_map(|symbol| {
            Some(Symbol {
                address: symbol.address(),
                size: symbol.size(),
                name: String::from_utf8_lossy(symbol.name_bytes().ok()?).into_owned(),
                is_function: symbol.kind() == SymbolKind::Text,
            })
        })
        .collect()
}

/// The function that a part was split from, by the part's name.
fn family(name: &str) -> Option<&str> {
    let at = name.find(".cold")?;
    let rest = &name[at + ".cold".len()..];
    let is_suffix = rest.chars().all(|character| character == '.' || character.is_ascii_digit());
    (at > 0 && is_suffix).then_some(&name[..at])
}

/// The ranges of code that unwind entries describe.
fn unwind_entries(file: &ElfFile<'_>) -> Vec<Range<u64>> {
    let address = |name| file.section_by_name(name).map_or(0, |it| it.address());
    let bases = BaseAddresses::default()
        .set_eh_frame(address(".eh_frame"))
        .set_eh_frame_hdr(address(".eh_frame_hdr"))
        .set_text(address(".text"))
        .set_got(address(".got"));
    let data = |name: &str| {
        let section = file.section_by_name(name)?;
        // A compressed section is one for debuggers; what it says of code is in the other one, too.
        section.data().ok().filter(|data| !data.is_empty())
    };
    let mut ranges = Vec::new();
    if let Some(data) = data(".eh_frame") {
        let mut section = EhFrame::new(data, LittleEndian);
        section.set_address_size(8);
        ranges_of(&section, &bases, &mut ranges);
    } else if let Some(data) = data(".debug_frame") {
        let mut section = DebugFrame::new(data, LittleEndian);
        section.set_address_size(8);
        ranges_of(&section, &bases, &mut ranges);
    }
    ranges.sort_by_key(|range| (range.start, range.end));
    ranges
}

fn ranges_of<R, S>(section: &S, bases: &BaseAddresses, ranges: &mut Vec<Range<u64>>)
where
    R: gimli::Reader,
    S: UnwindSection<R>,
{
    let mut entries = section.entries(bases);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let Ok(entry) = partial.parse(UnwindSection::cie_from_offset) else {
            continue;
        };
        let (start, length) = (entry.initial_address(), entry.len());
        if let Some(end) = start.checked_add(length)
            && start < end
        {
            ranges.push(start..end);
        }
    }
}
