//! The functions of an object, disassembled.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use object::{
    Architecture, Object as _, ObjectSection as _, ObjectSymbol as _, Relocation, RelocationTarget,
    SymbolKind, SymbolSection,
};

use super::aarch64::Aarch64;
use super::x86_64::X86_64;

/// The instructions of one function.
pub(crate) trait Body {
    /// Bytes of stack that a call takes beside [`frame_bytes`](Self::frame_bytes).
    fn call_bytes(&self) -> u64;

    /// Direct branches: where a relocation would be, and the target without one.
    fn branches(&self) -> Vec<(u64, u64)>;

    /// The maximum number of bytes that the function takes on the stack.
    fn frame_bytes(&self) -> u64;

    /// Describes an access below the stack pointer, if there is one.
    fn below_the_stack(&self) -> Option<String>;

    /// An instruction that reads or writes floating-point or vector state, if there is one.
    fn vector_instruction(&self) -> Option<String>;

    /// On x86-64, an instruction that not every processor has, if there is one.
    fn missing_instruction(&self) -> Option<String> {
        None
    }

    /// Whether it can reach the trap of a panic: by falling through, or by a direct jump. A table
    /// of jumps has traps for indices that do not occur.
    fn traps(&self) -> bool;
}

/// One function.
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) body: Box<dyn Body>,
    /// Start addresses of the functions that its code refers to.
    edges: BTreeSet<u64>,
    /// Symbols that it refers to and that are not in the object.
    pub(crate) outside: Vec<String>,
}

/// All functions of an object with one code section, by start address.
pub(crate) struct Code {
    functions: BTreeMap<u64, Function>,
}

impl Code {
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let object = object::File::parse(bytes).unwrap();
        let is_x86 = object.architecture() == Architecture::X86_64;
        // PC-relative addresses count from the end of the relocation's field in the code, which has
        // four bytes.
        let field = if is_x86 { 4 } else { 0 };
        let text = object.section_by_name(".text").unwrap();
        let data = text.data().unwrap();
        let is_in_text = |section| section == SymbolSection::Section(text.index());
        let symbols = object.symbols().filter(|symbol| {
            let is_code = matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Unknown);
            let name = symbol.name().unwrap();
            // Names with a dollar sign tell code from data in objects for aarch64.
            let is_name = !name.is_empty() && !name.starts_with('$');
            is_code && is_in_text(symbol.section()) && is_name
        });
        let starts: BTreeMap<u64, String> =
            symbols.map(|symbol| (symbol.address(), symbol.name().unwrap().to_owned())).collect();
        let start_of = |address: u64| starts.range(..=address).next_back().map(|(start, _)| *start);

        // Returns the target of a relocation; `behind` is the distance from the field to the
        // address that PC-relative addresses count from.
        let target_of = |relocation: &Relocation, behind: i64| {
            let RelocationTarget::Symbol(index) = relocation.target() else {
                return None;
            };
            let symbol = object.symbol_by_index(index).unwrap();
            // For the section symbol, the addend is the offset.
            let is_section = symbol.kind() == SymbolKind::Section;
            let added = if is_section { relocation.addend() + behind } else { 0 };
            let at = symbol.address().wrapping_add_signed(added);
            Some((symbol.section(), at))
        };
        // Tables of functions, each up to the next referenced address: code that refers to a table
        // may call all functions in it. Narrower relocations are the targets of a switch inside a
        // function.
        let referred: BTreeSet<(usize, u64)> = text
            .relocations()
            .filter_map(|(_, one)| target_of(&one, field))
            .filter_map(|(section, at)| Some((section.index()?.0, at)))
            .collect();
        let mut tables: HashMap<(usize, u64), BTreeSet<u64>> = HashMap::new();
        for section in object.sections().filter(|one| one.index() != text.index()) {
            for (at, one) in section.relocations().filter(|(_, one)| one.size() == 64) {
                let index = section.index().0;
                let table = referred.range((index, 0)..=(index, at)).next_back();
                let functions = target_of(&one, 0).filter(|(to, _)| is_in_text(*to));
                if let (Some(table), Some((_, to))) = (table, functions) {
                    let functions = tables.entry(*table).or_default();
                    functions.insert(start_of(to).unwrap());
                }
            }
        }

        let relocated: BTreeSet<u64> = text.relocations().map(|(at, _)| at).collect();
        let mut edges: HashMap<u64, BTreeSet<u64>> = HashMap::new();
        let mut outside: HashMap<u64, Vec<String>> = HashMap::new();
        for (at, relocation) in text.relocations() {
            let RelocationTarget::Symbol(index) = relocation.target() else {
                continue;
            };
            let symbol = object.symbol_by_index(index).unwrap();
            let from = start_of(at).unwrap();
            if symbol.is_undefined() {
                let name = symbol.name().unwrap().to_owned();
                outside.entry(from).or_default().push(name);
            } else if let Some((section, to)) = target_of(&relocation, field) {
                let edges = edges.entry(from).or_default();
                if is_in_text(section) {
                    edges.insert(start_of(to).unwrap());
                } else if let Some(section) = section.index() {
                    edges.extend(tables.get(&(section.0, to)).into_iter().flatten());
                }
            }
        }

        let ends = starts.keys().copied().skip(1).chain([data.len() as u64]);
        let functions = starts.iter().zip(ends).map(|((&start, name), end)| {
            let bytes = &data[start as usize..end as usize];
            let body: Box<dyn Body> = if is_x86 {
                Box::new(X86_64::decode(name, start, bytes))
            } else {
                Box::new(Aarch64::decode(start, bytes))
            };
            let mut edges = edges.remove(&start).unwrap_or_default();
            for (at, to) in body.branches() {
                // Without a relocation, such a branch would seem to go to the next instruction,
                // which may be in another function.
                if !relocated.contains(&at) && to < data.len() as u64 {
                    edges.extend(start_of(to));
                }
            }
            edges.remove(&start);
            let function = Function {
                name: name.clone(),
                body,
                edges,
                outside: outside.remove(&start).unwrap_or_default(),
            };
            (start, function)
        });
        Self { functions: functions.collect() }
    }

    pub(crate) fn functions(&self) -> impl Iterator<Item = &Function> {
        self.functions.values()
    }

    /// The functions with these names, and all functions that they refer to.
    pub(crate) fn reached_from(&self, names: &[&str]) -> Vec<&Function> {
        let mut reached = BTreeSet::new();
        let mut waiting: Vec<u64> = names.iter().map(|name| self.start_of(name)).collect();
        while let Some(start) = waiting.pop() {
            if reached.insert(start) {
                waiting.extend(&self.functions[&start].edges);
            }
        }
        reached.iter().map(|start| &self.functions[start]).collect()
    }

    /// The maximum stack use of a call of this function, from the calls in its code. None of them
    /// may be recursive.
    pub(crate) fn stack_bytes(&self, name: &str) -> u64 {
        self.deepest(self.start_of(name), 0)
    }

    fn deepest(&self, start: u64, nested: usize) -> u64 {
        assert!(nested < 64, "recursion");
        let function = &self.functions[&start];
        let below = function.edges.iter().map(|edge| self.deepest(*edge, nested + 1));
        function.body.call_bytes() + function.body.frame_bytes() + below.max().unwrap_or(0)
    }

    fn start_of(&self, name: &str) -> u64 {
        let mut functions = self.functions.iter();
        *functions.find(|(_, function)| function.name == name).unwrap().0
    }
}
