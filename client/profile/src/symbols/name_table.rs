//! Functions by address, from a symbol table or a list.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use object::elf::SHF_EXECINSTR;
use object::{Object, ObjectSection, ObjectSymbol, SectionFlags, SectionIndex, SymbolKind};

use super::demangle::is_mangled;
use super::identity::without_copies;
use super::image_bytes::{ElfFile, ImageBytes};
use super::linkage_table;
use crate::caller_table::functions_described;

/// Functions in the order of their addresses; each address has at most one name.
#[derive(Debug, Default)]
pub(super) struct NameTable<'a> {
    entries: Vec<Entry<'a>>,
    /// Where the function that holds an address changes, by address: the innermost one from there
    /// on, by its place in `entries`.
    changes: Vec<(u64, Option<usize>)>,
    is_stripped: bool,
    /// By the start of a local part or copy of a function: the function, by its place in `entries`.
    wholes: HashMap<u64, usize>,
    /// The functions of the call frame information: their addresses, sorted.
    described: Vec<Range<u64>>,
    /// The sections that hold code.
    code: Vec<Range<u64>>,
}

/// One symbol, as a table is made from it.
#[derive(Debug, Clone)]
pub(super) struct Entry<'a> {
    pub(super) start: u64,
    /// Zero where the symbol does not say: it then ends at the next one.
    pub(super) size: u64,
    /// Where a symbol without a size ends at the latest.
    pub(super) limit: u64,
    /// Among symbols of one address, the smallest is kept.
    pub(super) rank: u8,
    pub(super) name: Cow<'a, str>,
    /// The source file, which the table has for local symbols: its name, and the number of its own
    /// symbol, as files of several folders may be called the same.
    pub(super) file: Option<(&'a str, usize)>,
}

impl Entry<'_> {
    /// Whether other files may have a function of this name.
    pub(super) fn is_local(&self) -> bool {
        matches!(self.rank, 1 | 3)
    }

    /// The address behind the function; `None` if it goes on to the end of all addresses.
    fn end(&self) -> Option<u64> {
        match self.size {
            0 => Some(self.limit),
            size => self.start.checked_add(size),
        }
    }
}

impl<'a> NameTable<'a> {
    pub(super) fn new(mut entries: Vec<Entry<'a>>) -> NameTable<'a> {
        entries.sort_by(|a, b| {
            let sized = |e: &Entry| e.size == 0;
            (a.start, sized(a), a.rank, b.size, &a.name).cmp(&(
                b.start,
                sized(b),
                b.rank,
                a.size,
                &b.name,
            ))
        });
        entries.dedup_by_key(|e| e.start);
        // A label inside a function is not a function of its own.
        let mut covered_to = 0;
        entries.retain(|e| {
            covered_to = covered_to.max(e.start.saturating_add(e.size));
            e.size != 0 || e.start >= covered_to
        });
        let starts: Vec<u64> = entries.iter().map(|e| e.start).collect();
        for (entry, next) in entries.iter_mut().zip(starts.iter().skip(1)) {
            entry.limit = entry.limit.min(*next);
        }
        let changes = changes_of(&entries);
        NameTable { entries, changes, ..NameTable::default() }
    }

    /// From `.symtab` of an image's separate debug file or of the image, or else its `.dynsym`; and
    /// its linkage tables. The image's call frame information tells where functions without a size
    /// and without a name begin and end.
    pub(super) fn from_elf(file: &ElfFile<'a>, debug: Option<&ElfFile<'a>>) -> NameTable<'a> {
        let of_debug = debug.map(|debug| entries_of(debug, debug.symbols()));
        let mut entries = of_debug.unwrap_or_default();
        if entries.is_empty() {
            entries = entries_of(file, file.symbols());
        }
        if entries.is_empty() {
            entries = entries_of(file, file.dynamic_symbols());
        }
        let is_stripped = entries.is_empty();
        let of_linkage = linkage_table::entries(file, &entries);
        entries.extend(of_linkage);
        let described = functions_described(file);
        for entry in entries.iter_mut().filter(|entry| entry.size == 0) {
            entry.limit = entry.limit.min(end_described(&described, entry.start));
        }
        let code = file.sections().filter(is_code);
        let code = code.map(|s| s.address()..s.address().saturating_add(s.size())).collect();
        let table = NameTable::new(entries);
        let wholes = wholes_of(&table.entries);
        NameTable { is_stripped, wholes, described, code, ..table }
    }

    /// The function that a symbol is a part or a copy of, or itself.
    pub(super) fn whole<'t>(&'t self, symbol: &'t Entry<'a>) -> &'t Entry<'a> {
        self.wholes.get(&symbol.start).map_or(symbol, |at| &self.entries[*at])
    }

    /// All symbols, in the order of their addresses.
    pub(super) fn entries(&self) -> &[Entry<'a>] {
        &self.entries
    }

    /// Where the function without a name begins that holds an address: what the call frame
    /// information, the symbols in front of it and the section leave; and whether that information
    /// has it. `None` if that is not code.
    pub(super) fn unnamed(&self, address: u64) -> Option<(u64, bool)> {
        let section = self.code.iter().find(|section| section.contains(&address))?;
        let after = self.changes.partition_point(|(from, _)| *from <= address);
        let from = after.checked_sub(1).map_or(0, |before| self.changes[before].0);
        let described = self.described.partition_point(|it| it.start <= address);
        let last = self.described[..described].last();
        let (start, is_described) = last.map_or((0, false), |last| match last.end {
            end if end <= address => (end, false),
            _ => (last.start, true),
        });
        Some((start.max(from).max(section.start), is_described))
    }

    /// Whether no symbol of the image is a function.
    pub(super) fn is_stripped(&self) -> bool {
        self.is_stripped
    }

    /// The name of the function that holds an address.
    pub(super) fn find(&self, address: u64) -> Option<&str> {
        self.entry(address).map(|e| e.name.as_ref())
    }

    /// The addresses of the function that holds an address.
    pub(super) fn range(&self, address: u64) -> Option<Range<u64>> {
        self.entry(address).map(|e| e.start..e.end().unwrap_or(u64::MAX))
    }

    pub(super) fn entry(&self, address: u64) -> Option<&Entry<'a>> {
        let after = self.changes.partition_point(|(from, _)| *from <= address);
        let (_, innermost) = self.changes.get(after.checked_sub(1)?)?;
        innermost.map(|at| &self.entries[at])
    }

    /// The lowest and the highest start.
    pub(super) fn span(&self) -> Option<(u64, u64)> {
        Some((self.entries.first()?.start, self.entries.last()?.start))
    }
}

/// The functions that local symbols are parts or copies of: of one file, those that differ in what
/// compilers add only. Their function may be one whose file is not known, as it is global or hidden.
///
/// If two symbols without a file have one name, it is not known of which of them the others are
/// parts: each is a function.
fn wholes_of(entries: &[Entry<'_>]) -> HashMap<u64, usize> {
    let bare = |at: usize| without_copies(&entries[at].name);
    let is_whole = |at: usize| bare(at) == entries[at].name;
    let parts = (0..entries.len()).filter(|at| entries[*at].is_local() && !is_whole(*at));
    let mut named: HashMap<&str, Vec<usize>> = parts.map(|at| (bare(at), Vec::new())).collect();
    for at in 0..entries.len() {
        if let Some(named) = named.get_mut(bare(at)) {
            named.push(at);
        }
    }
    let mut wholes = HashMap::new();
    for (name, named) in named {
        let mut files: HashMap<Option<(&str, usize)>, Vec<usize>> = HashMap::new();
        for at in named.iter().copied().filter(|at| entries[*at].is_local()) {
            files.entry(entries[at].file).or_default().push(at);
        }
        let lacks_whole = |of_file: &&Vec<usize>| !of_file.iter().any(|at| is_whole(*at));
        // Each file that uses a C++ function may have parts of it.
        let may_share = is_mangled(name) || files.values().filter(lacks_whole).count() == 1;
        let mut shared = named.iter().filter(|at| is_whole(**at) && entries[**at].file.is_none());
        let shared = match (shared.next(), shared.next()) {
            (Some(one), None) if may_share => Some(*one),
            _ => None,
        };
        for of_file in files.into_values() {
            let names: HashSet<&str> = of_file.iter().map(|at| &*entries[*at].name).collect();
            if names.len() == of_file.len() {
                let whole = of_file.iter().copied().find(|at| is_whole(*at)).or(shared);
                let whole = whole.unwrap_or(of_file[0]);
                wholes.extend(of_file.iter().map(|at| (entries[*at].start, whole)));
            }
        }
    }
    wholes
}

/// Where the innermost of the functions that hold an address changes, and to which.
fn changes_of(entries: &[Entry<'_>]) -> Vec<(u64, Option<usize>)> {
    let mut changes: Vec<(u64, Option<usize>)> = Vec::with_capacity(entries.len() * 2);
    // Those that hold the present address, innermost last, and some that end before it.
    let mut open: Vec<usize> = Vec::new();
    let starts = entries.iter().enumerate().map(|(at, entry)| (entry.start, Some(at)));
    for (start, next) in starts.chain([(u64::MAX, None)]) {
        let ended = |open: &[usize], by: u64| {
            open.last().and_then(|at| entries[*at].end()).filter(|end| *end <= by)
        };
        while let Some(end) = ended(&open, start) {
            let end = changes.last().map_or(end, |(last, _)| end.max(*last));
            while ended(&open, end).is_some() {
                open.pop();
            }
            changes.push((end, open.last().copied()));
        }
        open.extend(next);
        changes.extend(next.map(|at| (start, Some(at))));
    }
    changes
}

fn entries_of<'a, 'file>(
    file: &'file ElfFile<'a>,
    symbols: impl Iterator<Item = object::Symbol<'a, 'file, &'a ImageBytes>>,
) -> Vec<Entry<'a>> {
    // Sorted by number; hand-written assembly has functions without a type.
    let code: Vec<(SectionIndex, u64)> = file
        .sections()
        .filter(is_code)
        .map(|s| (s.index(), s.address().saturating_add(s.size())))
        .collect();
    let mut source = None;
    symbols
        .filter_map(|symbol| {
            if symbol.kind() == SymbolKind::File {
                let name = symbol.name().ok().filter(|name| !name.is_empty());
                source = name.map(|name| (name, symbol.index().0));
            }
            let rank = match symbol.kind() {
                SymbolKind::Text => 0,
                SymbolKind::Unknown | SymbolKind::Label => 2,
                _ => return None,
            };
            let section = symbol.section_index()?;
            let at = code.binary_search_by_key(&section.0, |(index, _)| index.0).ok()?;
            let name = String::from_utf8_lossy(symbol.name_bytes().ok()?);
            // Mapping symbols ($x) and the assembler's labels name no function, but a function's
            // name may begin like theirs.
            let is_label = symbol.size() == 0 && !symbol.is_global();
            if name.is_empty() || is_label && (name.starts_with('$') || name.starts_with(".L")) {
                return None;
            }
            Some(Entry {
                start: symbol.address(),
                size: symbol.size(),
                limit: code[at].1,
                rank: rank + u8::from(!symbol.is_global()),
                name,
                file: source.filter(|_| symbol.is_local()),
            })
        })
        .collect()
}

/// Where a function that holds this address ends at the latest, by the functions described.
fn end_described(described: &[Range<u64>], address: u64) -> u64 {
    let after = described.partition_point(|it| it.start <= address);
    let around = described[..after].last().filter(|it| address < it.end).map(|it| it.end);
    around.or(described.get(after).map(|next| next.start)).unwrap_or(u64::MAX)
}

/// Whether instructions lie in a section, also where a separate debug file left their bytes out.
pub fn is_code<'a>(section: &object::Section<'a, '_, &'a ImageBytes>) -> bool {
    let SectionFlags::Elf { sh_flags, .. } = section.flags() else { return false };
    sh_flags.contains(SHF_EXECINSTR)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn entry(start: u64, size: u64, name: &str) -> Entry<'_> {
        Entry { start, size, limit: 0x1000, rank: 0, name: name.into(), file: None }
    }

    #[test]
    fn a_gap_behind_a_sized_function_has_no_name() {
        let table = NameTable::new(vec![entry(0x10, 0x10, "f"), entry(0x40, 0, "g")]);
        assert_eq!(table.find(0x0f), None);
        assert_eq!(table.find(0x1f), Some("f"));
        assert_eq!(table.find(0x20), None);
        assert_eq!(table.find(0xfff), Some("g"));
        assert_eq!(table.find(0x1000), None);
    }

    #[test]
    fn a_function_without_a_size_ends_at_the_next() {
        let table = NameTable::new(vec![entry(0x20, 0, "b"), entry(0x10, 0, "a")]);
        assert_eq!((table.find(0x1f), table.find(0x20)), (Some("a"), Some("b")));
    }

    #[test]
    fn a_label_inside_a_function_does_not_take_its_place() {
        let table = NameTable::new(vec![entry(0x10, 0x20, "f"), entry(0x18, 0, "loop")]);
        assert_eq!(table.find(0x1c), Some("f"));
    }

    #[test]
    fn an_outer_function_is_found_behind_any_number_of_others() {
        let inner = (0..100).map(|at| entry(0x100 + at * 4, 2, "inner"));
        let table =
            NameTable::new([entry(0x80, 0x900, "outer")].into_iter().chain(inner).collect());
        for (address, name) in [(0x101, "inner"), (0x102, "outer"), (0x97f, "outer")] {
            assert_eq!(table.find(address), Some(name), "{address:#x}");
        }
        assert_eq!((table.find(0x7f), table.find(0x980)), (None, None));
    }

    #[test]
    fn functions_that_overlap_end_where_they_say() {
        let list = [(0x10, 0x30, "a"), (0x18, 8, "b"), (0x1c, 0x10, "c"), (0x38, 0x40, "d")];
        let entries = list.map(|(start, size, name)| entry(start, size, name));
        let table = NameTable::new(entries.to_vec());
        for address in 0..0x100 {
            let holds =
                |(start, size, _): &&(u64, u64, _)| (*start..start + size).contains(&address);
            let innermost = list.iter().rev().find(holds).map(|(_, _, name)| *name);
            assert_eq!(table.find(address), innermost, "{address:#x}");
        }
    }

    #[test]
    fn of_two_names_the_global_one_is_kept_whatever_the_order() {
        let local = Entry { rank: 1, ..entry(0x10, 4, "aaa") };
        let global = entry(0x10, 4, "zzz");
        for entries in [vec![local.clone(), global.clone()], vec![global, local]] {
            assert_eq!(NameTable::new(entries).find(0x10), Some("zzz"));
        }
    }

    /// The functions of these symbols, each of a name and a file: 0 is that of global symbols.
    fn functions(symbols: &[(&'static str, usize)]) -> Vec<Vec<usize>> {
        let entry = |(at, (name, file)): (usize, &(&'static str, usize))| Entry {
            rank: u8::from(*file != 0),
            file: (*file != 0).then_some(("a.c", *file)),
            ..entry(at as u64, 1, name)
        };
        let entries: Vec<Entry<'_>> = symbols.iter().enumerate().map(entry).collect();
        let wholes = wholes_of(&entries);
        let mut functions: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for at in 0..entries.len() {
            let whole = wholes.get(&(at as u64)).copied().unwrap_or(at);
            functions.entry(whole).or_default().push(at);
        }
        functions.into_values().collect()
    }

    #[test]
    fn parts_belong_to_the_functions_of_their_files() {
        // Of a function of which only a clone is left.
        assert_eq!(functions(&[("f.isra.0.cold", 1), ("f.isra.0", 1)]), [[0, 1]]);
        let clones = [("f.isra.0", 1), ("f.isra.0", 2), ("f.isra.0.cold", 1)];
        assert_eq!(functions(&clones), [vec![0, 2], vec![1]]);
        let namesakes = [("f", 1), ("f", 2), ("f.cold", 2), ("f.cold", 1)];
        assert_eq!(functions(&namesakes), [[0, 3], [1, 2]]);
        assert_eq!(functions(&[("f", 0), ("f.cold", 1)]), [[0, 1]]);
        // The global one has one file, but which?
        let clones = [("f", 0), ("f.isra.0", 1), ("f.isra.0", 2)];
        assert_eq!(functions(&clones), [[0], [1], [2]]);
        // Statics of several files of which the linker made one.
        let promoted = [("f.lto_priv.0", 1), ("f.lto_priv.1", 1), ("f.lto_priv.1.cold", 1)];
        assert_eq!(functions(&promoted), [vec![0], vec![1, 2]]);
        let inline = [("_Z1fi", 0), ("_Z1fi.part.0", 1), ("_Z1fi.part.0", 2)];
        assert_eq!(functions(&inline), [[0, 1, 2]]);
    }

    /// The linker makes a hidden function local, in no file.
    #[test]
    fn parts_may_belong_to_a_function_without_a_file() {
        let local = |at, name, file| Entry { rank: 1, file, ..entry(at, 1, name) };
        let of_file = [local(0, "f", None), local(1, "f.cold", Some(("a.c", 1)))];
        assert_eq!(wholes_of(&of_file).get(&1), Some(&0));
        let without = ["f", "f", "f.cold"];
        let without = without.map(|name| local(0, name, None));
        assert!(wholes_of(&without).is_empty(), "it is not known of which");
    }

    #[test]
    fn hostile_sizes_do_not_overflow() {
        let table = NameTable::new(vec![entry(u64::MAX, u64::MAX, "f"), entry(1, u64::MAX, "g")]);
        assert_eq!(table.find(u64::MAX), Some("f"));
        assert_eq!(table.find(0), None);
    }
}
