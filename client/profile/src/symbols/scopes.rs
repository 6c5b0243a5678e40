//! A function's scope, from the DWARF entries that enclose its declaration; and the units of a
//! file, which are read as they are needed.
//!
//! Compilers emit no mangled name for functions that exist only as inlined copies and are not
//! visible in other files: templates with local arguments, lambdas, static functions. Their DWARF
//! entries are still inside those of their namespaces, classes and functions.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use gimli::{
    AttributeValue, DW_AT_abstract_origin, DW_AT_decl_column, DW_AT_decl_file, DW_AT_decl_line,
    DW_AT_language, DW_AT_name, DW_AT_specification, DebuggingInformationEntry, DwTag, Dwarf, Unit,
    UnitHeader, UnitOffset, UnitRef, constants,
};

use super::debug_info::Declared;
use super::demangle::without_generics;
use super::section::Reader;
use super::source_paths::without_dots;
use super::unit_code::{Functions, Inlining, Lines, name_at, path};

/// More scopes around a function, and more references from an entry to its declaration, than any
/// program has.
const MAX_SCOPES: usize = 64;
const MAX_REFERENCES: usize = 16;

/// So many bytes of `.debug_info` the units that are kept may have together: they take about half
/// of that.
const MAX_RECENT: usize = 32 << 20;

/// What stands for the arguments of a function that others are declared in.
const ARGUMENTS: &str = "(…)";

/// The units of one file, and the scopes of its functions.
pub(super) struct Scopes<'a> {
    dwarf: Arc<Dwarf<Reader<'a>>>,
    /// In the order of their offsets.
    units: Vec<UnitHeader<Reader<'a>>>,
    /// Those that were asked for last, the latest last.
    recent: RefCell<Vec<(usize, Option<Rc<ScopedUnit<'a>>>)>>,
    /// The length of these together.
    kept: Cell<usize>,
    /// Those of the file that others share with this one.
    shared: Option<Box<Scopes<'a>>>,
    /// The unit of another file that this file has the rest of.
    rest_of: Option<Rc<ScopedUnit<'a>>>,
    /// By the offset of the function's entry.
    paths: RefCell<HashMap<usize, Option<Rc<str>>>>,
    declared: RefCell<HashMap<usize, Option<Rc<Declared>>>>,
}

/// A unit, and what is read when it is first asked for.
pub(super) struct ScopedUnit<'a> {
    pub(super) unit: Unit<Reader<'a>>,
    pub(super) is_rust: bool,
    /// Which of its scopes and functions lies in which scope: their offsets in the unit, in rising
    /// order.
    parents: OnceCell<Vec<(usize, usize)>>,
    functions: OnceCell<gimli::Result<Functions>>,
    /// By the offsets of the functions in the unit.
    inlining: RefCell<HashMap<usize, gimli::Result<Rc<Inlining<'a>>>>>,
    lines: OnceCell<gimli::Result<Option<Lines>>>,
}

/// What an entry says of a scope or a function.
struct Named<'a> {
    tag: DwTag,
    name: Option<Reader<'a>>,
    declared: Option<Declared>,
}

impl<'a> Scopes<'a> {
    pub(super) fn of(
        dwarf: Arc<Dwarf<Reader<'a>>>,
        rest_of: Option<Rc<ScopedUnit<'a>>>,
    ) -> Scopes<'a> {
        let mut units = Vec::new();
        let mut headers = dwarf.units();
        while let Ok(Some(header)) = headers.next() {
            units.push(header);
        }
        let shared = dwarf.sup.clone().map(|shared| Box::new(Scopes::of(shared, None)));
        let (recent, kept, paths, declared) = Default::default();
        Scopes { dwarf, units, recent, kept, shared, rest_of, paths, declared }
    }

    pub(super) fn dwarf(&self) -> &Arc<Dwarf<Reader<'a>>> {
        &self.dwarf
    }

    /// The function of one of the units that holds an address.
    pub(super) fn function_at(
        &self,
        scoped: &ScopedUnit<'a>,
        address: u64,
    ) -> gimli::Result<Option<Rc<Inlining<'a>>>> {
        let unit = scoped.unit.unit_ref(&self.dwarf);
        let functions = scoped.functions.get_or_init(|| Functions::read(unit));
        let Some(at) = functions.as_ref().map_err(|error| *error)?.find(address) else {
            return Ok(None);
        };
        if let Some(known) = scoped.inlining.borrow().get(&at.0) {
            return known.clone().map(Some);
        }
        let refer = |unit: UnitRef<'_, Reader<'a>>, value| self.name(unit, value, MAX_REFERENCES);
        let read = Inlining::read(unit, at, &refer).map(Rc::new);
        scoped.inlining.borrow_mut().insert(at.0, read.clone());
        read.map(Some)
    }

    /// The line table of one of the units.
    pub(super) fn lines<'u>(&self, scoped: &'u ScopedUnit<'a>) -> gimli::Result<Option<&'u Lines>> {
        let lines = scoped.lines.get_or_init(|| Lines::read(scoped.unit.unit_ref(&self.dwarf)));
        lines.as_ref().map(Option::as_ref).map_err(|error| *error)
    }

    /// The name of the entry that an attribute refers to, or of those that this one refers to.
    fn name(
        &self,
        unit: UnitRef<'_, Reader<'a>>,
        value: AttributeValue<Reader<'a>>,
        left: usize,
    ) -> gimli::Result<Option<Reader<'a>>> {
        let (scopes, at) = match (value, self.shared.as_deref()) {
            (AttributeValue::UnitRef(at), _) => return self.name_in(unit, at, left),
            (AttributeValue::DebugInfoRef(at), _) => (self, at.0),
            (AttributeValue::DebugInfoRefSup(at), Some(shared)) => (shared, at.0),
            _ => return Ok(None),
        };
        let missing = gimli::Error::NoEntryAtGivenOffset(at as u64);
        let (start, scoped) = scopes.unit(at).ok_or(missing)?;
        scopes.name_in(scoped.unit.unit_ref(&scopes.dwarf), UnitOffset(at - start), left)
    }

    fn name_in(
        &self,
        unit: UnitRef<'_, Reader<'a>>,
        at: UnitOffset,
        left: usize,
    ) -> gimli::Result<Option<Reader<'a>>> {
        match name_at(unit, at)? {
            (None, Some(next)) if left > 1 => self.name(unit, next, left - 1),
            (name, _) => Ok(name),
        }
    }

    /// Where the function whose entry has this offset in `.debug_info` is declared. `None` if it
    /// does not say, or the entries are damaged.
    pub(super) fn declared(&self, entry: usize) -> Option<Rc<Declared>> {
        if let Some(known) = self.declared.borrow().get(&entry) {
            return known.clone();
        }
        let found = self.declaration(entry).and_then(|(scopes, at, function)| {
            // Of a lambda, gcc tells only where its class is declared.
            function.declared.or_else(|| {
                let (.., class) = scopes.declaration(scopes.parent(at)?)?;
                class.declared.filter(|_| class.name.is_none())
            })
        });
        let found = found.map(Rc::new);
        self.declared.borrow_mut().insert(entry, found.clone());
        found
    }

    /// The name of the function whose entry has this offset in `.debug_info`, with all its scopes,
    /// as in `shop::detail::sorted(…)::{lambda}`; Rust's have no generic arguments. `None` if it
    /// lies in no scope, or the entries are damaged.
    pub(super) fn path(&self, entry: usize) -> Option<Rc<str>> {
        if let Some(known) = self.paths.borrow().get(&entry) {
            return known.clone();
        }
        let found = self.find(entry).map(Rc::from);
        self.paths.borrow_mut().insert(entry, found.clone());
        found
    }

    fn find(&self, entry: usize) -> Option<String> {
        let is_rust = self.unit(entry)?.1.is_rust;
        let text = |name: Reader<'a>| match (is_rust, name.text()) {
            (true, name) => without_generics(&name).to_owned(),
            (false, name) => name,
        };
        let (mut scopes, mut at, function) = self.declaration(entry)?;
        let mut innermost_first = vec![text(function.name?)];
        for _ in 0..MAX_SCOPES {
            let Some(parent) = scopes.parent(at) else { break };
            let scope;
            (scopes, at, scope) = scopes.declaration(parent)?;
            let name = scope.name.map(text);
            let name = match (scope.tag, name) {
                // An implementation's number tells nothing; mangled names have none either.
                (_, Some(name)) if name.starts_with("{impl#") => continue,
                (constants::DW_TAG_subprogram, name) => name? + ARGUMENTS,
                (_, Some(name)) => name,
                (constants::DW_TAG_namespace, None) => "(anonymous namespace)".into(),
                (_, None) => match innermost_first.last_mut() {
                    Some(call) if call.starts_with("operator()") => {
                        *call = "{lambda}".into();
                        continue;
                    }
                    _ => "{unnamed type}".into(),
                },
            };
            innermost_first.push(name);
        }
        innermost_first.reverse();
        (innermost_first.len() > 1).then(|| innermost_first.join("::"))
    }

    /// The entry that an entry's references lead to, which lies where it was declared; maybe in the
    /// shared file.
    fn declaration(&self, entry: usize) -> Option<(&Scopes<'a>, usize, Named<'a>)> {
        let (mut scopes, mut at) = (self, entry);
        for _ in 0..MAX_REFERENCES {
            let (start, scoped) = scopes.unit(at)?;
            let entry = scoped.unit.entry(UnitOffset(at - start)).ok()?;
            let reference = [DW_AT_abstract_origin, DW_AT_specification]
                .iter()
                .find_map(|name| entry.attr_value(*name));
            match reference {
                Some(AttributeValue::UnitRef(offset)) => at = start + offset.0,
                Some(AttributeValue::DebugInfoRef(offset)) => at = offset.0,
                Some(AttributeValue::DebugInfoRefSup(offset)) => {
                    (scopes, at) = (scopes.shared.as_deref()?, offset.0);
                }
                Some(_) => return None,
                None => {
                    let name = entry.attr_value(DW_AT_name);
                    let name =
                        name.and_then(|name| scopes.dwarf.attr_string(&scoped.unit, name).ok());
                    let declared = scopes.declared_in(&scoped.unit, &entry);
                    return Some((scopes, at, Named { tag: entry.tag(), name, declared }));
                }
            }
        }
        None
    }

    /// The place that an entry's own attributes tell.
    fn declared_in(
        &self,
        unit: &Unit<Reader<'a>>,
        entry: &DebuggingInformationEntry<Reader<'a>>,
    ) -> Option<Declared> {
        let number = |name| entry.attr_value(name).and_then(|value| value.udata_value());
        let short = |number: Option<u64>| u32::try_from(number?).ok();
        let file = match entry.attr_value(DW_AT_decl_file)? {
            AttributeValue::FileIndex(index) => index,
            value => value.udata_value()?,
        };
        let header = unit.line_program.as_ref()?.header();
        let path = path(unit.unit_ref(&self.dwarf), header.file(file)?, header).ok()?;
        // Rust's closures have a number in the order of the source.
        let name = entry.attr_value(DW_AT_name);
        let name = name.and_then(|name| self.dwarf.attr_string(unit, name).ok());
        let closure = name.and_then(|name| {
            let name = name.text();
            name.strip_prefix("{closure#")?.split('}').next()?.parse().ok()
        });
        Some(Declared {
            file: without_dots(&path),
            line: short(number(DW_AT_decl_line)).unwrap_or(0),
            column: short(number(DW_AT_decl_column)).or(closure).unwrap_or(0),
        })
    }

    /// The scope that an entry lies in.
    fn parent(&self, entry: usize) -> Option<usize> {
        let (start, scoped) = self.unit(entry)?;
        let read = || ScopedUnit::parents(&scoped.unit).unwrap_or_default();
        let parents = scoped.parents.get_or_init(read);
        let at = parents.binary_search_by_key(&(entry - start), |(child, _)| *child);
        at.ok().map(|at| start + parents[at].1)
    }

    /// The unit that holds an entry, and the unit's offset.
    pub(super) fn unit(&self, entry: usize) -> Option<(usize, Rc<ScopedUnit<'a>>)> {
        let after = self.units.partition_point(|header| header.offset().0 <= entry);
        let number = after.checked_sub(1)?;
        let header = &self.units[number];
        let mut recent = self.recent.borrow_mut();
        let known = recent.iter().rposition(|(at, _)| *at == number);
        let unit = known.map(|at| recent.remove(at).1).unwrap_or_else(|| {
            let length = |at: usize| self.units[at].length_including_self();
            let mut kept = self.kept.get().saturating_add(length(number));
            while kept > MAX_RECENT && !recent.is_empty() {
                kept -= length(recent.remove(0).0);
            }
            self.kept.set(kept);
            ScopedUnit::read(&self.dwarf, *header, self.rest_of.as_deref()).map(Rc::new)
        });
        recent.push((number, unit.clone()));
        Some((header.offset().0, unit?))
    }
}

impl<'a> ScopedUnit<'a> {
    fn read(
        dwarf: &Dwarf<Reader<'a>>,
        header: UnitHeader<Reader<'a>>,
        rest_of: Option<&ScopedUnit<'a>>,
    ) -> Option<ScopedUnit<'a>> {
        let mut unit = dwarf.unit(header).ok()?;
        if let Some(ScopedUnit { unit: first, .. }) = rest_of {
            unit.copy_relocated_attributes(first);
            // Files are then numbered as in the line table of the first.
            if unit.line_program.is_none() {
                unit.line_program.clone_from(&first.line_program);
                unit.comp_dir = unit.comp_dir.or(first.comp_dir);
            }
        }
        let mut root = unit.entries();
        let root = root.next_dfs().ok()??;
        let language = root.attr_value(DW_AT_language);
        let is_rust = matches!(language, Some(AttributeValue::Language(constants::DW_LANG_Rust)));
        let (parents, functions, inlining, lines) = Default::default();
        Some(ScopedUnit { unit, is_rust, parents, functions, inlining, lines })
    }

    fn parents(unit: &Unit<Reader<'a>>) -> Option<Vec<(usize, usize)>> {
        let mut parents = Vec::new();
        // The scopes that are open, with their depths.
        let mut open: Vec<(isize, usize)> = Vec::new();
        let mut entries = unit.entries_raw(None).ok()?;
        while !entries.is_empty() {
            let (depth, UnitOffset(at)) = (entries.next_depth(), entries.next_offset());
            let Some(abbreviation) = entries.read_abbreviation().ok()? else {
                continue;
            };
            entries.skip_attributes(abbreviation.attributes()).ok()?;
            if !is_scope(abbreviation.tag()) {
                continue;
            }
            while open.last().is_some_and(|(outer, _)| *outer >= depth) {
                open.pop();
            }
            if let Some((_, scope)) = open.last() {
                parents.push((at, *scope));
            }
            open.push((depth, at));
        }
        Some(parents)
    }
}

fn is_scope(tag: DwTag) -> bool {
    matches!(
        tag,
        constants::DW_TAG_class_type
            | constants::DW_TAG_namespace
            | constants::DW_TAG_structure_type
            | constants::DW_TAG_subprogram
            | constants::DW_TAG_union_type
    )
}
