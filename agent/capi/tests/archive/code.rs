//! The functions of an object, disassembled.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use iced_x86::{
    Code as Opcode, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory,
    Mnemonic, OpAccess, OpKind, Register,
};
use object::{
    Object as _, ObjectSection as _, ObjectSymbol as _, Relocation, RelocationTarget, SymbolKind,
    SymbolSection,
};

/// Length of a relocation's field in the code, in bytes: PC-relative addresses count from its end.
const FIELD: i64 = 4;

/// One function.
pub(crate) struct Function {
    pub(crate) name: String,
    instructions: Vec<Instruction>,
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
        let text = object.section_by_name(".text").unwrap();
        let data = text.data().unwrap();
        let is_in_text = |section| section == SymbolSection::Section(text.index());
        let symbols = object.symbols().filter(|symbol| {
            let is_code = matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Unknown);
            is_code && is_in_text(symbol.section()) && !symbol.name().unwrap().is_empty()
        });
        let starts: BTreeMap<u64, String> = symbols
            .map(|symbol| (symbol.address(), symbol.name().unwrap().to_owned()))
            .collect();
        let start_of = |address: u64| {
            starts
                .range(..=address)
                .next_back()
                .map(|(start, _)| *start)
        };

        // Returns the target of a relocation; `behind` is the distance from the field to the
        // address that PC-relative addresses count from.
        let target_of = |relocation: &Relocation, behind: i64| {
            let RelocationTarget::Symbol(index) = relocation.target() else {
                return None;
            };
            let symbol = object.symbol_by_index(index).unwrap();
            // For the section symbol, the addend is the offset.
            let is_section = symbol.kind() == SymbolKind::Section;
            let added = if is_section {
                relocation.addend() + behind
            } else {
                0
            };
            let at = symbol.address().wrapping_add_signed(added);
            Some((symbol.section(), at))
        };
        // Tables of functions, each up to the next referenced address: code that refers to a table
        // may call all functions in it. Narrower relocations are the targets of a switch inside a
        // function.
        let referred: BTreeSet<(usize, u64)> = text
            .relocations()
            .filter_map(|(_, one)| target_of(&one, FIELD))
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
            } else if let Some((section, to)) = target_of(&relocation, FIELD) {
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
            let body = &data[start as usize..end as usize];
            let instructions: Vec<_> = Decoder::with_ip(64, body, start, DecoderOptions::NONE)
                .into_iter()
                .collect();
            let mut edges = edges.remove(&start).unwrap_or_default();
            for instruction in &instructions {
                assert_ne!(instruction.code(), Opcode::INVALID, "{name} is code");
                // Without a relocation, such a branch would seem to go to the next instruction,
                // which may be in another function.
                let is_relocated = relocated.contains(&(instruction.next_ip().wrapping_sub(4)));
                if instruction.op0_kind() == OpKind::NearBranch64 && !is_relocated {
                    let to = instruction.near_branch_target();
                    edges.extend(start_of(to).filter(|_| to < data.len() as u64));
                }
            }
            edges.remove(&start);
            let function = Function {
                name: name.clone(),
                instructions,
                edges,
                outside: outside.remove(&start).unwrap_or_default(),
            };
            (start, function)
        });
        Self {
            functions: functions.collect(),
        }
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
        let below = function
            .edges
            .iter()
            .map(|edge| self.deepest(*edge, nested + 1));
        // The return address, the caller's frame pointer and, if the stack is aligned, 8 bytes.
        24 + function.frame_bytes() + below.max().unwrap_or(0)
    }

    fn start_of(&self, name: &str) -> u64 {
        let mut functions = self.functions.iter();
        *functions
            .find(|(_, function)| function.name == name)
            .unwrap()
            .0
    }
}

impl Function {
    /// The maximum number of bytes that the function takes below the frame pointer: pushes after
    /// `mov rbp, rsp`, and subtractions.
    pub(crate) fn frame_bytes(&self) -> u64 {
        let (mut pushed, mut taken) = (0, 0);
        let mut is_probed = false;
        let mut ends_probes = false;
        for instruction in &self.instructions {
            let first = instruction.op0_register();
            match instruction.mnemonic() {
                Mnemonic::Push if first != Register::RBP => pushed += 8,
                // A large frame: the end of the loop that touches its pages.
                Mnemonic::Lea
                    if instruction.memory_base() == Register::RSP && is_below(instruction) =>
                {
                    taken += instruction.memory_displacement64().wrapping_neg();
                    is_probed = true;
                }
                Mnemonic::Sub if first == Register::R11 && ends_probes => {
                    taken += instruction.immediate(1);
                    is_probed = true;
                }
                Mnemonic::Sub if first == Register::RSP => {
                    let bytes = instruction.immediate(1);
                    if !(is_probed && bytes == 0x1000) {
                        taken += bytes;
                    }
                }
                _ => {}
            }
            // `mov r11, rsp` begins the end of that loop for an even larger frame.
            ends_probes = instruction.mnemonic() == Mnemonic::Mov
                && first == Register::R11
                && instruction.op1_register() == Register::RSP;
        }
        pushed + taken
    }

    /// Describes an access below the stack pointer, if there is one: below `rsp` itself, or,
    /// relative to the frame pointer, below what the function has taken.
    pub(crate) fn below_the_stack(&self) -> Option<String> {
        let frame = self.frame_bytes();
        let keeps_frame = self.instructions.iter().any(|instruction| {
            instruction.mnemonic() == Mnemonic::Mov
                && instruction.op0_register() == Register::RBP
                && instruction.op1_register() == Register::RSP
        });
        let below = self
            .instructions
            .iter()
            .enumerate()
            .find(|(at, instruction)| {
                let touches = (0..instruction.op_count())
                    .any(|operand| instruction.op_kind(operand) == OpKind::Memory)
                    && instruction.mnemonic() != Mnemonic::Lea
                    && instruction.mnemonic() != Mnemonic::Nop;
                let depth = instruction.memory_displacement64().wrapping_neg();
                touches
                    && is_below(instruction)
                    && match instruction.memory_base() {
                        Register::RSP => true,
                        Register::RBP => keeps_frame && depth > frame + self.least_index(*at),
                        _ => false,
                    }
            });
        let (_, below) = below?;
        Some(format!(
            "{}: {below} with a frame of {frame} bytes",
            self.name
        ))
    }

    /// The minimum value of an operand's index, in bytes; 0 if it is not known.
    ///
    /// LLVM counts some loops over an array from 3, and subtracts the 3 from the displacement:
    /// ChaCha20's tail, four bytes per iteration, has `mov ecx, 3`, then `xor dl, [rbp + rcx -
    /// 0x183]` in a frame of 0x180 bytes, then `add rcx, 4; cmp rcx, 0x43; jne`. Only this form of
    /// loop is recognized: entered from above only, with a constant, and with one addition that
    /// reaches the limit exactly.
    fn least_index(&self, at: usize) -> u64 {
        self.counted_from(at).unwrap_or(0)
    }

    fn counted_from(&self, at: usize) -> Option<u64> {
        let access = &self.instructions[at];
        let index = access.memory_index();
        if index == Register::None || access.memory_index_scale() != 1 {
            return None;
        }
        let mut factory = InstructionInfoFactory::new();
        let mut writes = |instruction: &Instruction| {
            let information = factory.info(instruction);
            let mut used = information.used_registers().iter();
            used.any(|used| {
                let is_read = matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
                !is_read && used.register().full_register() == index
            })
        };
        let before = &self.instructions[..at];
        let start = before.iter().rposition(&mut writes)?;
        let first = constant(&before[start], Mnemonic::Mov, index)?;
        // The loop ends with the next branch, whose target is between the constant and the access.
        let is_branch = |instruction: &Instruction| instruction.op0_kind() == OpKind::NearBranch64;
        let end = at + self.instructions[at..].iter().position(is_branch)?;
        let branch = &self.instructions[end];
        let target = branch.near_branch_target();
        let body = &self.instructions[start + 1..end];
        let is_loop = branch.mnemonic() == Mnemonic::Jne
            && (before[start].next_ip()..=access.ip()).contains(&target);
        let is_entered_elsewhere = self.instructions.iter().any(|other| {
            let to = is_branch(other).then(|| other.near_branch_target());
            let inside = before[start].next_ip()..branch.next_ip();
            other.ip() != branch.ip() && to.is_some_and(|to| inside.contains(&to))
        });
        let has_jump = body
            .iter()
            .any(|it| is_branch(it) || it.flow_control() != FlowControl::Next);
        let mut changes = body.iter().filter(|instruction| writes(instruction));
        let step = constant(changes.next()?, Mnemonic::Add, index)?;
        let limit = constant(body.last()?, Mnemonic::Cmp, index)?;
        let is_exact = step > 0 && limit > first && (limit - first).is_multiple_of(step);
        let is_known = is_loop && is_exact && changes.next().is_none();
        (is_known && !is_entered_elsewhere && !has_jump).then_some(first)
    }

    /// An instruction that reads or writes x87, MMX, SSE or AVX state, if there is one.
    pub(crate) fn vector_instruction(&self) -> Option<String> {
        let mut factory = InstructionInfoFactory::new();
        let found = self.instructions.iter().find(|instruction| {
            let information = factory.info(instruction);
            let mut used = information.used_registers().iter();
            used.any(|used| {
                let register = used.register();
                used.access() != OpAccess::None
                    && (register.is_vector_register() || register.is_st() || register.is_mm())
            }) || instruction.fpu_stack_increment_info().writes_top()
                || matches!(
                    instruction.mnemonic(),
                    Mnemonic::Ldmxcsr | Mnemonic::Stmxcsr | Mnemonic::Fldcw | Mnemonic::Emms
                )
        })?;
        Some(found.to_string())
    }

    /// Whether it can reach the trap of a panic: by falling through, or by a direct jump. A table of jumps has traps for
    /// indices that do not occur.
    pub(crate) fn traps(&self) -> bool {
        let targets: BTreeSet<u64> = self
            .instructions
            .iter()
            .filter(|it| it.is_jcc_short_or_near() || it.is_jmp_short_or_near())
            .map(Instruction::near_branch_target)
            .collect();
        let mut falls_through = true;
        self.instructions.iter().any(|instruction| {
            let is_reached = falls_through || targets.contains(&instruction.ip());
            falls_through = matches!(
                instruction.flow_control(),
                FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::Call
            );
            is_reached && instruction.mnemonic() == Mnemonic::Ud2
        })
    }
}

/// The non-negative constant that this instruction moves to, adds to or compares with a register.
fn constant(instruction: &Instruction, mnemonic: Mnemonic, register: Register) -> Option<u64> {
    let is_it = instruction.mnemonic() == mnemonic
        && instruction.op0_kind() == OpKind::Register
        && instruction.op0_register().full_register() == register
        && instruction.op0_register().size() >= 4
        && instruction.try_immediate(1).is_ok();
    let value = is_it.then(|| instruction.immediate(1))?;
    i32::try_from(value).ok().map(|_| value)
}

/// Whether a displacement is negative.
fn is_below(instruction: &Instruction) -> bool {
    (instruction.memory_displacement64() as i64) < 0
}
