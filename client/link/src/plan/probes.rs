//! Where the probes of a function go: at its entry and at each of its exits.
//!
//! A function is disassembled with all of its parts: the range of its symbol, and the code that the
//! compiler has moved elsewhere, which `.cold` symbols and unwind entries tell of. Exits are
//! returns, jumps out of the parts, and indirect jumps, except those through a jump table that is
//! proven: then the agent decides by the target each time. A function whose exits are not all
//! certain is refused, with the [reason](Refusal).

mod code;
mod piece;
#[cfg(test)]
mod tests;

use std::cell::LazyCell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use iced_x86::{
    Code as Opcode, Decoder, DecoderOptions, FlowControl, Instruction, OpKind, Register,
};
use object::Object;
use thiserror::Error;
use unikprof_proto::trace::{MAX_PARTS, probe_kind};

use code::Code;
use piece::{Piece, Table};
use unikprof_profile::symbols::{
    DebugSections, ElfFile, Image, demangle_at, find_debug_file, told_apart,
};

/// Why a function cannot be traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Error)]
pub(crate) enum Refusal {
    #[error("it has no code in the image")]
    Empty,
    #[error("it is larger than 1 MiB")]
    TooLarge,
    #[error("its bytes are no instructions: there may be data in it")]
    Undecodable,
    #[error("it returns from an interrupt or a system call")]
    FarReturn,
    #[error("it has a branch that cannot be emulated (loop, jrcxz, far or transactional)")]
    OddBranch,
    #[error("it jumps into the middle of an instruction")]
    IntoInstruction,
    #[error("it jumps into the middle of another function")]
    IntoFunction,
    #[error("it jumps to code that has neither a symbol nor an unwind entry")]
    UnknownTarget,
    #[error("it jumps to an address outside of the image's code")]
    OutOfCode,
    #[error("it runs on into the code behind it")]
    FallsThrough,
    #[error("its symbol overlaps another function's")]
    Overlap,
    #[error("other code jumps or calls into the middle of it")]
    SecondEntry,
    #[error("the instruction at a probe can neither be copied nor emulated")]
    Instruction,
    #[error("it has more than {MAX_PARTS} parts")]
    TooManyParts,
    #[error("the agent may run it while it handles a breakpoint")]
    Agent,
}

/// Why an image cannot be planned for.
#[derive(Debug, Error)]
pub enum PlanError {
    #[error("{path}: {problem}")]
    Damaged { path: String, problem: object::Error },
    #[error("{path} is for {found}: functions are traced on x86_64 only")]
    Architecture { path: String, found: String },
    #[error(
        "{path} has no symbols of functions, and no debug file was found: name the unstripped \
         image with --image"
    )]
    NoFunctions { path: String },
}

/// A function that can be traced, by link addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlannedFunction {
    /// The first begins with the entry.
    pub(crate) parts: Vec<Range<u64>>,
    pub(crate) probes: Vec<PlannedProbe>,
    /// Whether it may jump back to its entry.
    pub(crate) loops: bool,
}

/// An instruction that gets a breakpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlannedProbe {
    /// See [`probe_kind`].
    pub(crate) kind: u8,
    pub(crate) address: u64,
    /// The offset in the instruction of a displacement from the program counter; 0: there is none.
    pub(crate) displacement: u8,
    pub(crate) instruction: Vec<u8>,
}

/// The functions of an image, analysed.
pub(crate) struct Planner<'i> {
    code: Code<'i>,
    /// By function.
    pieces: Vec<Piece>,
    /// By fragment.
    fragments: Vec<Piece>,
    /// By fragment: the function that it is a part of.
    owners: Vec<Option<usize>>,
    /// By function: its other parts.
    others: HashMap<usize, Vec<usize>>,
    /// Functions that other code enters in the middle.
    second_entries: HashSet<usize>,
    names: Vec<String>,
    /// Functions that may run while the agent in the image handles a breakpoint.
    agents: HashSet<usize>,
}

impl<'i> Planner<'i> {
    /// Analyses an image.
    pub(crate) fn of(
        image: &'i Image,
        debug_dirs: &[std::path::PathBuf],
    ) -> Result<Planner<'i>, PlanError> {
        let path = || image.path().display().to_string();
        let damaged = |problem| PlanError::Damaged { path: path(), problem };
        let file = ElfFile::parse(image.bytes()).map_err(damaged)?;
        if file.architecture() != object::Architecture::X86_64 {
            return Err(PlanError::Architecture {
                path: path(),
                found: format!("{:?}", file.architecture()).to_lowercase(),
            });
        }
        let separate = find_debug_file(image, &file, debug_dirs, &mut Vec::new());
        let separate = separate.as_ref();
        let names = separate.and_then(|debug| ElfFile::parse(debug.bytes()).ok());
        let code = Code::of(&file, names.as_ref());
        if code.functions.is_empty() {
            return Err(PlanError::NoFunctions { path: path() });
        }
        // Only for images of OCaml.
        let sections = LazyCell::new(|| DebugSections::of(names.as_ref().unwrap_or(&file)));
        let info = LazyCell::new(|| sections.as_ref()?.open().ok());
        let place = |start| Some(info.as_ref()?.declared_at(start)?.text());
        let mut planner = Planner::analyse(code, place);
        let mut times: HashMap<&str, u32> = HashMap::new();
        planner.names.iter().for_each(|name| *times.entry(name).or_default() += 1);
        let all = 0..planner.names.len();
        let shared: Vec<usize> = all.filter(|at| times[&*planner.names[*at]] > 1).collect();
        let starts: Vec<u64> = shared.iter().map(|at| planner.entry(*at)).collect();
        if !starts.is_empty() {
            let told = told_apart(&file, names.as_ref(), info.as_ref(), &starts);
            shared.iter().zip(told).for_each(|(at, told)| planner.names[*at] += &told);
        }
        Ok(planner)
    }

    fn analyse(code: Code<'i>, place: impl Fn(u64) -> Option<String>) -> Planner<'i> {
        let piece = |range: &Range<u64>| Piece::of(&code, range);
        let pieces: Vec<Piece> = code.functions.iter().map(|it| piece(&it.range)).collect();
        let fragments: Vec<Piece> = code.fragments.iter().map(|it| piece(&it.range)).collect();
        let names: Vec<String> = code
            .functions
            .iter()
            .map(|function| {
                let raw = function.names.first().map_or("", String::as_str);
                demangle_at(raw, || place(function.range.start)).unwrap_or_else(|| raw.to_owned())
            })
            .collect();
        let mut planner = Planner {
            owners: vec![None; fragments.len()],
            others: HashMap::new(),
            second_entries: HashSet::new(),
            code,
            pieces,
            fragments,
            names,
            agents: HashSet::new(),
        };
        planner.find_owners();
        planner.find_second_entries();
        planner.find_agents();
        planner
    }

    /// How many functions there are.
    pub(crate) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// A function's name as it is in the source.
    pub(crate) fn name(&self, function: usize) -> &str {
        &self.names[function]
    }

    /// A function's names as the symbol table has them.
    pub(crate) fn raw_names(&self, function: usize) -> &[String] {
        &self.code.functions[function].names
    }

    /// The address of a function's first instruction.
    pub(crate) fn entry(&self, function: usize) -> u64 {
        self.code.functions[function].range.start
    }

    /// The function that an address lies in, in any of its parts.
    pub(crate) fn covering(&self, address: u64) -> Option<usize> {
        let of_fragment = || self.owners[self.code.fragment_at(address)?];
        self.code.function_at(address).or_else(of_fragment)
    }

    /// The functions that a function calls or jumps to directly.
    pub(crate) fn callees(&self, function: usize) -> Vec<usize> {
        let mut callees: Vec<usize> = Vec::new();
        for piece in self.parts(function) {
            let jumps = piece.jumps.iter().map(Instruction::near_branch_target);
            for target in piece.calls.iter().copied().chain(jumps) {
                let found = self.code.function_at(target);
                let found = found.filter(|it| self.entry(*it) == target && *it != function);
                callees.extend(found);
            }
        }
        callees.sort_unstable();
        callees.dedup();
        callees
    }

    /// Plans the probes of a function.
    pub(crate) fn plan(&self, function: usize) -> Result<PlannedFunction, Refusal> {
        if self.agents.contains(&function) {
            return Err(Refusal::Agent);
        }
        let own = &self.code.functions[function].range;
        let overlaps = |other: Option<usize>| {
            let other = other.and_then(|at| self.code.functions.get(at));
            other.is_some_and(|it| it.range.start < own.end && own.start < it.range.end)
        };
        if overlaps(function.checked_sub(1)) || overlaps(function.checked_add(1)) {
            return Err(Refusal::Overlap);
        }
        if self.second_entries.contains(&function) {
            return Err(Refusal::SecondEntry);
        }
        let parts: Vec<&Piece> = self.parts(function).collect();
        if parts.len() > MAX_PARTS {
            return Err(Refusal::TooManyParts);
        }
        let mut probes = Vec::new();
        if let Some(problem) = parts.iter().find_map(|piece| piece.problem) {
            return Err(problem);
        }
        let entry = parts[0].entry.ok_or(Refusal::Empty)?;
        self.add(&entry, probe_kind::ENTRY, &mut probes)?;
        let mut loops = parts[0].loops;
        for piece in &parts {
            for instruction in &piece.returns {
                self.add(instruction, probe_kind::EXIT, &mut probes)?;
            }
            for jump in &piece.jumps {
                loops |= parts[0].is_entry(jump.near_branch_target());
                if self.leaves(jump.near_branch_target(), &parts)? {
                    self.add(jump, probe_kind::EXIT, &mut probes)?;
                }
            }
            for (jump, table) in &piece.indirect {
                let is_switch = table.is_some_and(|table| self.is_proven(table, &parts));
                if !is_switch {
                    loops = true;
                    self.add(jump, probe_kind::EXIT, &mut probes)?;
                }
            }
        }
        probes.sort_by_key(|probe: &PlannedProbe| probe.address);
        Ok(PlannedFunction {
            parts: parts.iter().map(|piece| piece.range.clone()).collect(),
            probes,
            loops,
        })
    }

    /// The pieces of a function, its own range first.
    fn parts(&self, function: usize) -> impl Iterator<Item = &Piece> {
        let others = self.others.get(&function).into_iter().flatten();
        let others = others.map(|fragment| &self.fragments[*fragment]);
        std::iter::once(&self.pieces[function]).chain(others)
    }

    /// Adds a probe, or another kind to the one that is there.
    fn add(
        &self,
        instruction: &Instruction,
        kind: u8,
        probes: &mut Vec<PlannedProbe>,
    ) -> Result<(), Refusal> {
        let address = instruction.ip();
        if let Some(known) = probes.iter_mut().find(|probe| probe.address == address) {
            known.kind |= kind;
            return Ok(());
        }
        let bytes = self.code.bytes(&(address..instruction.next_ip()));
        let displacement = displacement(instruction, bytes).ok_or(Refusal::Instruction)?;
        probes.push(PlannedProbe { kind, address, displacement, instruction: bytes.to_owned() });
        Ok(())
    }

    /// Whether a direct jump to this address leaves the function.
    fn leaves(&self, target: u64, parts: &[&Piece]) -> Result<bool, Refusal> {
        if let Some(piece) = parts.iter().find(|piece| piece.range.contains(&target)) {
            return match piece.has_start(target) {
                true => Ok(false),
                false => Err(Refusal::IntoInstruction),
            };
        }
        if let Some(other) = self.code.function_at(target) {
            return match self.entry(other) == target {
                true => Ok(true),
                false => Err(Refusal::IntoFunction),
            };
        }
        if let Some(fragment) = self.code.fragment_at(target) {
            return match self.code.fragments[fragment].range.start == target {
                true => Ok(true),
                false => Err(Refusal::IntoFunction),
            };
        }
        match self.code.section(target) {
            Some((_, true)) => Ok(true),
            Some((_, false)) => Err(Refusal::UnknownTarget),
            None => Err(Refusal::OutOfCode),
        }
    }

    /// Whether the first entry of a jump table leads into the function: a table of functions does
    /// not.
    fn is_proven(&self, table: Table, parts: &[&Piece]) -> bool {
        let target = match table {
            Table::Absolute(address) => self.code.word(address).map(u64::from_le_bytes),
            Table::Relative(address) => self
                .code
                .word(address)
                .map(|word| address.wrapping_add_signed(i32::from_le_bytes(word).into())),
        };
        target.is_some_and(|target| {
            let piece = parts.iter().find(|piece| piece.range.contains(&target));
            piece.is_some_and(|piece| piece.range.start != target && piece.has_start(target))
        })
    }

    /// Finds the function that each fragment is a part of.
    fn find_owners(&mut self) {
        let called: HashSet<u64> = self.all().flat_map(|piece| piece.calls.clone()).collect();
        let mut by_name: HashMap<&str, Vec<usize>> = HashMap::new();
        for (at, function) in self.code.functions.iter().enumerate() {
            for name in &function.names {
                by_name.entry(name).or_default().push(at);
            }
        }
        // A part may have parts of its own.
        for _ in 0..MAX_PARTS {
            let mut links: Vec<Links> = vec![Links::default(); self.fragments.len()];
            let owned = self.fragments.iter().zip(&self.owners);
            let owned = owned.filter_map(|(piece, owner)| Some(((*owner)?, piece)));
            for (function, piece) in self.pieces.iter().enumerate().chain(owned) {
                for jump in &piece.jumps {
                    let target = jump.near_branch_target();
                    let Some(fragment) = self.code.fragment_at(target) else {
                        continue;
                    };
                    let known = &self.code.fragments[fragment];
                    let is_named = known
                        .family
                        .as_ref()
                        .is_some_and(|family| self.code.functions[function].names.contains(family));
                    let is_certain = is_named || known.range.start != target;
                    links[fragment].add(function, is_certain);
                }
            }
            for (fragment, piece) in self.fragments.iter().enumerate() {
                for jump in &piece.jumps {
                    let target = jump.near_branch_target();
                    let function = self.code.function_at(target);
                    let function = function.filter(|it| self.entry(*it) != target);
                    if let Some(function) = function {
                        links[fragment].add(function, true);
                    }
                }
            }
            let mut found = self.owners.clone();
            for (fragment, links) in links.iter().enumerate() {
                let known = &self.code.fragments[fragment];
                let by_name = known.family.as_deref().and_then(|it| by_name.get(it));
                found[fragment] =
                    match (links.certain.as_slice(), links.possible.as_slice(), by_name) {
                        ([one], ..) => Some(*one),
                        ([], _, Some(named)) if named.len() == 1 => Some(named[0]),
                        ([], [one], _) if !called.contains(&known.range.start) => Some(*one),
                        _ => None,
                    };
            }
            if found == self.owners {
                break;
            }
            self.owners = found;
        }
        for (fragment, owner) in self.owners.iter().enumerate() {
            if let Some(owner) = owner {
                self.others.entry(*owner).or_default().push(fragment);
            }
        }
    }

    /// Finds the functions that other functions' code enters elsewhere than at their beginning.
    fn find_second_entries(&mut self) {
        let of_functions = self.pieces.iter().enumerate();
        let of_functions = of_functions.map(|(at, piece)| (Some(at), piece));
        let of_fragments = self.owners.iter().copied().zip(&self.fragments);
        for (owner, piece) in of_functions.chain(of_fragments) {
            let jumps = piece.jumps.iter().map(Instruction::near_branch_target);
            for target in piece.calls.iter().copied().chain(jumps) {
                let Some(other) = self.covering(target) else {
                    continue;
                };
                if Some(other) != owner && !self.is_beginning(target) {
                    self.second_entries.insert(other);
                }
            }
        }
    }

    /// Finds the functions of the agent in the image, and the others that may run while a
    /// breakpoint is handled: those that its handler calls, and the guest's handlers that call it,
    /// with what these call; in guests with the drop-in, what tells their stacks apart. What runs
    /// only before a panic or after a breakpoint that is not the agent's can be traced.
    fn find_agents(&mut self) {
        let all = 0..self.len();
        if !self.names.iter().any(|it| is_linked(it)) {
            return;
        }
        let named = |is_meant: fn(&str) -> bool| -> Vec<usize> {
            all.clone().filter(|at| is_meant(&self.names[*at])).collect()
        };
        let mut agents: HashSet<usize> = named(is_agents).into_iter().collect();
        let mut callers: HashMap<usize, Vec<usize>> = HashMap::new();
        for caller in all.clone() {
            for called in self.called(caller) {
                callers.entry(called).or_default().push(caller);
            }
        }
        let mut open = named(is_of_handler);
        // The handler of the drop-in calls what the guest has passed here.
        let asks = named(|name| name == "unikprof_dropin_call_stacks");
        let passed = self.all().flat_map(|piece| &piece.passed);
        let passed = passed.filter(|(target, _)| asks.iter().any(|it| self.entry(*it) == *target));
        open.extend(passed.filter_map(|(_, pointer)| self.code.function_by(*pointer)));
        let mut handlers = named(is_handler);
        while let Some(handler) = handlers.pop() {
            for caller in callers.remove(&handler).unwrap_or_default() {
                if !agents.insert(caller) {
                    continue;
                }
                handlers.push(caller);
                let called = self.called(caller);
                let (before, behind) = match called.iter().position(|it| *it == handler) {
                    Some(at) => called.split_at(at),
                    None => (&called[..], &[][..]),
                };
                open.extend(before);
                agents.extend(behind);
            }
        }
        let mut followed = HashSet::new();
        while let Some(function) = open.pop() {
            agents.insert(function);
            let has_exit = self.parts(function).any(|piece| !piece.has_no_exit());
            if followed.insert(function) && has_exit {
                let references = self.parts(function).flat_map(|piece| &piece.references);
                let references = references.filter_map(|it| self.code.function_by(*it));
                open.extend(references.chain(self.called(function)));
            }
        }
        self.agents = agents;
    }

    /// The functions that a function calls, in their order in its code, and those that it jumps to.
    fn called(&self, function: usize) -> Vec<usize> {
        let parts = self.parts(function);
        parts
            .flat_map(|piece| {
                let jumps = piece.jumps.iter().map(Instruction::near_branch_target);
                let direct = piece.calls.iter().copied().chain(jumps);
                direct.chain(piece.called_pointers.iter().copied())
            })
            .filter_map(|address| self.code.function_by(address))
            .filter(|it| *it != function)
            .collect()
    }

    fn is_beginning(&self, address: u64) -> bool {
        let function = self.code.function_at(address);
        let fragment = || Some(self.code.fragments[self.code.fragment_at(address)?].range.start);
        function.map(|it| self.entry(it)).or_else(fragment) == Some(address)
    }

    fn all(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.iter().chain(&self.fragments)
    }
}

/// The functions that jump into a fragment, or that it jumps into.
#[derive(Debug, Clone, Default)]
struct Links {
    /// It is certainly a part of these.
    certain: Vec<usize>,
    /// Those that jump to its beginning, which a function may be.
    possible: Vec<usize>,
}

impl Links {
    fn add(&mut self, function: usize, is_certain: bool) {
        let list = match is_certain {
            true => &mut self.certain,
            false => &mut self.possible,
        };
        if !list.contains(&function) {
            list.push(function);
        }
    }
}

/// The offset of an instruction's displacement from the program counter, 0 if it has none; `None`
/// if the agent can neither run a copy of it nor emulate it.
fn displacement(instruction: &Instruction, bytes: &[u8]) -> Option<u8> {
    if bytes.len() != instruction.len() {
        return None;
    }
    let is_emulated = match instruction.flow_control() {
        FlowControl::Return => matches!(instruction.code(), Opcode::Retnq | Opcode::Retnq_imm16),
        FlowControl::UnconditionalBranch | FlowControl::Call => {
            instruction.op0_kind() == OpKind::NearBranch64
        }
        FlowControl::ConditionalBranch => instruction.is_jcc_short_or_near(),
        FlowControl::IndirectBranch => {
            let segment = instruction.segment_prefix();
            matches!(instruction.code(), Opcode::Jmp_rm64)
                && !matches!(segment, Register::FS | Register::GS)
        }
        FlowControl::Next => false,
        _ => return None,
    };
    if instruction.flow_control() != FlowControl::Next {
        return is_emulated.then_some(0);
    }
    if !instruction.is_ip_rel_memory_operand() {
        return Some(0);
    }
    let mut decoder = Decoder::with_ip(64, bytes, instruction.ip(), DecoderOptions::NONE);
    let again = decoder.decode();
    let offsets = decoder.get_constant_offsets(&again);
    let is_usual = instruction.memory_base() == Register::RIP && offsets.displacement_size() == 4;
    let offset = u8::try_from(offsets.displacement_offset()).ok()?;
    (is_usual && offset > 0).then_some(offset)
}

/// Whether a function, by its name, shows that the agent is linked into the image.
fn is_linked(name: &str) -> bool {
    name.starts_with("unikprof_agent::") || name == C_HANDLER
}

/// The agent's breakpoint handler for C.
const C_HANDLER: &str = "unikprof_on_breakpoint";

/// Whether a function is the agent's breakpoint handler, by its name.
fn is_handler(name: &str) -> bool {
    name == C_HANDLER || name.contains("unikprof_agent::") && name.ends_with("::on_breakpoint")
}

/// Whether the breakpoint handler begins with a function of the agent, or calls a function of its
/// platform, by its name.
fn is_of_handler(name: &str) -> bool {
    const METHODS: [&str; 8] = [
        "vcpu",
        "call_stack",
        "stack_bounds",
        "moment",
        "running_ns",
        "now_ns",
        "cycles",
        "write_code",
    ];
    let method =
        name.split_once("unikprof_agent::ground::platform::Platform>::").map(|(_, method)| method);
    is_handler(name)
        || name.contains("unikprof_agent::guests::hosted::breakpoint::")
        || method.is_some_and(|method| METHODS.contains(&method))
}

/// Whether a function belongs to the agent, by its name in a program that the agent is linked into.
fn is_agents(name: &str) -> bool {
    const CRATES: [&str; 2] = ["unikprof_agent::", "unikprof_proto::"];
    const BUILTINS: [&str; 6] = ["memcpy", "memmove", "memset", "memcmp", "bcmp", "strlen"];
    let is_of_c_calls = name.starts_with("unikprof_") && !name.contains("::");
    CRATES.iter().any(|it| name.contains(it)) || BUILTINS.contains(&name) || is_of_c_calls
}
