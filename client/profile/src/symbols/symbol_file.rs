//! Symbol lists as `nm`, `nm -S` and System.map write them.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use super::error::SymbolError;
use super::identity::{order, stem, without_copies};
use super::name_table::{Entry, NameTable};
use super::ocaml;

/// Functions from a text file: lines of `address type name` or `address size type name`, numbers
/// in hexadecimal. Other lines, and symbols that are no code, are skipped.
///
/// A type of `t`, `w` or `i` in either case is code.
#[derive(Debug)]
pub(crate) struct SymbolFile {
    table: NameTable<'static>,
    /// The symbols in the order of what the names of namesakes have in common.
    by_stem: Vec<usize>,
}

impl SymbolFile {
    /// The largest list taken, in bytes.
    pub(crate) const MAX_BYTES: u64 = 1 << 30;

    /// Reads a file.
    pub(crate) fn open(path: &Path) -> Result<SymbolFile, SymbolError> {
        let bytes = super::image::read_named_file(path, Self::MAX_BYTES)?;
        Self::parse(path, &bytes)
    }

    /// Reads text that came from `path`.
    pub(crate) fn parse(path: &Path, text: &[u8]) -> Result<SymbolFile, SymbolError> {
        let mut entries = Vec::new();
        let mut starts = Vec::new();
        let mut first_other = None;
        for line in text.split(|b| *b == b'\n') {
            let line = String::from_utf8_lossy(line);
            match symbol_of(&line) {
                Line::Function(entry) => {
                    starts.push(entry.start);
                    entries.push(entry);
                }
                Line::OtherSymbol(start) => starts.extend(start),
                Line::NotASymbol => {
                    if first_other.is_none() && !line.trim().is_empty() {
                        first_other = Some(line.chars().take(60).collect::<String>());
                    }
                }
            }
        }
        if entries.is_empty() {
            let found = first_other
                .map_or_else(|| "no line of code".to_owned(), |line| format!("{line:?}"));
            return Err(SymbolError::NoFunctions { path: path.to_owned(), found });
        }
        starts.sort_unstable();
        for entry in &mut entries {
            let next = starts.get(starts.partition_point(|start| *start <= entry.start));
            entry.limit = next.copied().unwrap_or(u64::MAX);
        }
        let table = NameTable::new(entries);
        let mut by_stem: Vec<usize> = (0..table.entries().len()).collect();
        by_stem.sort_by_cached_key(|at| stem_of(&table.entries()[*at]));
        Ok(SymbolFile { table, by_stem })
    }

    /// All symbols of code, in the order of their addresses.
    pub(super) fn entries(&self) -> &[Entry<'static>] {
        self.table.entries()
    }

    /// The symbols whose names have this in common.
    fn of_stem<'l>(&'l self, stem: &'l str) -> impl Iterator<Item = &'l Entry<'static>> {
        let entry = |at: &usize| &self.entries()[*at];
        let first = self.by_stem.partition_point(|at| stem_of(entry(at)) < Some(stem));
        let found = self.by_stem[first..].iter().map(entry);
        found.take_while(move |entry| stem_of(entry) == Some(stem))
    }

    /// The function at an address of the linked program. `begin` is where the function that holds
    /// the address begins, if its image is known. A symbol without a size names that one alone; if
    /// the image is not known, what lies before the next symbol.
    pub(super) fn find(&self, address: u64, begin: Option<u64>) -> Option<&Entry<'static>> {
        let entry = self.table.entry(address)?;
        let is_inside = match begin {
            _ if entry.size != 0 => true,
            Some(begin) => entry.start >= begin,
            None => entry.limit != u64::MAX,
        };
        is_inside.then_some(entry)
    }

    /// Whether the address lies between the first and the last function.
    pub(super) fn spans(&self, address: u64) -> bool {
        self.table.span().is_some_and(|(first, last)| (first..=last).contains(&address))
    }
}

/// The functions of all lists that share a function's name, with itself, and the
/// [order](super::identity::order) of the functions that they are; none if it is the only one.
///
/// Symbols that differ in what compilers add to copies and parts are one function. If two do not
/// differ, it is not known of which of them the others are parts or copies: each symbol counts as a
/// function.
pub(super) fn namesakes<'l>(
    lists: &'l [SymbolFile],
    of: &'l Entry<'_>,
) -> Vec<(&'l Entry<'static>, u64)> {
    let Some(stem) = stem_of(of) else { return Vec::new() };
    let mut all: Vec<&Entry<'_>> = lists.iter().flat_map(|list| list.of_stem(stem)).collect();
    all.sort_by_key(|entry| (entry.start, &entry.name));
    all.dedup_by_key(|entry| (entry.start, &entry.name));
    let mut functions: BTreeMap<&str, Vec<&Entry<'_>>> = BTreeMap::new();
    for entry in all {
        let own = match ocaml::stem(&entry.name) {
            None => without_copies(&entry.name),
            Some(_) => "",
        };
        functions.entry(own).or_default().push(entry);
    }
    let wholes = functions.values().flat_map(|parts| {
        let names: HashSet<&str> = parts.iter().map(|entry| &*entry.name).collect();
        let is_one = ocaml::stem(&of.name).is_none() && names.len() == parts.len();
        parts.iter().map(move |entry| {
            (*entry, if is_one { order(&entry.name, parts[0].start) } else { entry.start })
        })
    });
    let wholes: Vec<(&Entry<'_>, u64)> = wholes.collect();
    match wholes.iter().all(|(_, whole)| *whole == wholes[0].1) {
        true => Vec::new(),
        false => wholes,
    }
}

/// What the names of namesakes have in common. Instances of a generic function and of a
/// constructor, whose names a list may have demangled, are one, unless they say that they are of
/// several files.
fn stem_of<'e>(entry: &'e Entry<'_>) -> Option<&'e str> {
    let name = &*entry.name;
    // C++'s end with parameters, and what qualifies the object.
    let is_cpp = |bare: &str| {
        let mut words =
            bare.rsplit(' ').skip_while(|it| matches!(*it, "const" | "volatile" | "&" | "&&"));
        words.next().is_some_and(|word| word.ends_with(')'))
    };
    let is_of_file = |bare: &str| {
        bare.contains("(anonymous namespace)") || (is_cpp(bare) && without_copies(name) != bare)
    };
    let is_told =
        |bare: &&str| ocaml::stem(name).is_some() || !name.contains("::") || is_of_file(bare);
    stem(name).filter(is_told)
}

enum Line {
    Function(Entry<'static>),
    /// Data with its address, or a symbol that is undefined or absolute.
    OtherSymbol(Option<u64>),
    NotASymbol,
}

fn symbol_of(line: &str) -> Line {
    fn parse(line: &str) -> Option<Line> {
        // `nm -l` adds the source line behind a tab.
        let line = line.split('\t').next()?.trim();
        let (first, rest) = line.split_once(char::is_whitespace)?;
        let mut kind_and_name = rest.trim_start().split_once(char::is_whitespace)?;
        if first == "U" || first == "w" {
            return Some(Line::OtherSymbol(None));
        }
        let start = u64::from_str_radix(first, 16).ok()?;
        let mut size = 0;
        if kind_and_name.0.len() > 1 {
            size = u64::from_str_radix(kind_and_name.0, 16).ok()?;
            kind_and_name = kind_and_name.1.trim_start().split_once(char::is_whitespace)?;
        }
        let (kind, name) = kind_and_name;
        let mut letters = kind.chars();
        let letter = letters.next()?;
        if letters.next().is_some() {
            return None;
        }
        if !matches!(letter, 't' | 'T' | 'w' | 'W' | 'i' | 'I') {
            let is_data = "bBdDgGrRsSvV".contains(letter);
            return Some(Line::OtherSymbol(is_data.then_some(start)));
        }
        Some(Line::Function(Entry {
            start,
            size,
            limit: u64::MAX,
            rank: u8::from(letter.is_lowercase()),
            name: name.trim().to_owned().into(),
            file: None,
        }))
    }
    parse(line).unwrap_or(Line::NotASymbol)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(text: &str) -> Result<SymbolFile, SymbolError> {
        SymbolFile::parse(Path::new("list"), text.as_bytes())
    }

    fn name(file: &SymbolFile, address: u64) -> Option<&str> {
        file.find(address, None).map(|found| &*found.name)
    }

    #[test]
    fn every_layout_is_read() {
        let file = parse(
            "                 U memcpy\n\
             0000000000101000 T main\n\
             0000000000101040 0000000000000010 t helper\n\
             ffffffff81000000 T _stext\n\
             0000000000101080 T std::vector<int, x>::size() const\tvector.h:12\n\
             0000000000101090 D data\n\
             ffffffff81000010 A absolute\n",
        )
        .unwrap();
        assert_eq!(name(&file, 0x101000), Some("main"));
        assert_eq!(name(&file, 0x10104f), Some("helper"));
        assert_eq!(name(&file, 0x101050), None);
        assert_eq!(name(&file, 0x101080), Some("std::vector<int, x>::size() const"));
        assert_eq!(name(&file, 0x10108f), name(&file, 0x101080));
        assert_eq!(name(&file, 0x101090), None, "data begins");
        assert_eq!(name(&file, 0xffff_ffff_8100_0000), None, "nothing tells where it ends");
        assert!(file.spans(0x101000) && !file.spans(0x100fff));
    }

    #[test]
    fn demangled_functions_of_several_files_are_told_apart() {
        let file = parse(
            "10 t ns::f(int) [clone .lto_priv.1]\n20 t ns::f(int) [clone .lto_priv.0]\n\
             30 t ns::f(int) [clone .lto_priv.0] [clone .cold]\n\
             40 t ns::(anonymous namespace)::g()\n50 t ns::(anonymous namespace)::g()\n\
             60 T A::A(int)\n70 T A::A(int)\n\
             80 t a::b [clone .llvm.1]\n90 t a::b [clone .llvm.2]\n\
             a0 t n::f(int)::{lambda()#1}::operator()() const [clone .lto_priv.0]\n\
             b0 t n::f(int)::{lambda()#1}::operator()() const [clone .lto_priv.1]\n",
        )
        .unwrap();
        let lists = [file];
        let wholes = |at: usize| {
            let found = namesakes(&lists, &lists[0].entries()[at]);
            let wholes = found.iter().map(|(_, whole)| *whole);
            let all: std::collections::BTreeSet<u64> = wholes.collect();
            all.len()
        };
        // By the numbers of their files: these stay where code moves.
        let f = namesakes(&lists, &lists[0].entries()[0]);
        let f: Vec<(u64, u64)> = f.iter().map(|(entry, whole)| (entry.start, whole << 1)).collect();
        assert_eq!(f, [(0x20, 0), (0x30, 0), (0x10, 2)]);
        let told: Vec<usize> = (0..11).map(wholes).collect();
        assert_eq!(told, [2, 2, 2, 2, 2, 0, 0, 0, 0, 2, 2]);
    }

    #[test]
    fn a_file_without_functions_shows_what_it_holds() {
        let error = parse("\nhello world and more\n").unwrap_err().to_string();
        assert!(error.contains("list contains no functions"), "{error}");
        assert!(error.contains("found \"hello world and more\""), "{error}");
        assert!(parse("").unwrap_err().to_string().contains("no line of code"));
        assert!(parse("0000000000200000 D data\n").is_err(), "data is no function");
    }

    #[test]
    fn hostile_lines_are_skipped() {
        let file =
            parse("zzz T a\n1 T\n1 2 3 4 5\n1 TT x\nffffffffffffffffff T b\n10 10 T ok\n").unwrap();
        assert_eq!(name(&file, 0x10), Some("ok"));
        assert_eq!(name(&file, 1), None);
        assert!(SymbolFile::parse(Path::new("x"), &[0xff, 0xfe, b'\n', 0]).is_err());
    }
}
