//! The functions of an object, disassembled.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use iced_x86::{
    Code as Opcode, Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register,
};
use object::{
    Object as _, ObjectSection as _, ObjectSymbol as _, RelocationTarget, SymbolKind, SymbolSection,
};

/// One function.
pub(crate) struct Function {
    pub(crate) name: String,
    instructions: Vec<Instruction>,
    /// The functions that its code refers to, by where they begin.
    edges: BTreeSet<u64>,
    /// What it refers to that is not in the object.
    pub(crate) outside: Vec<String>,
}

/// All functions of an object with one section of code, by where they begin.
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
            } else if is_in_text(symbol.section()) {
                // Of the section itself, the addend says where; counted from behind the field.
                let is_section = symbol.kind() == SymbolKind::Section;
                let addend = if is_section {
                    relocation.addend() + 4
                } else {
                    0
                };
                let to = symbol.address().wrapping_add_signed(addend);
                edges.entry(from).or_default().insert(start_of(to).unwrap());
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
                if instruction.op0_kind() == OpKind::NearBranch64 {
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

    /// The functions with these names, and all that they refer to.
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

    /// The most stack that a call of this function takes, by the calls that its code names. None of them may
    /// be recursive.
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
        // The return address, the caller's frame pointer and, where a stack is aligned, 8 bytes.
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
    /// The bytes below the frame pointer that the function takes for itself, at the most: what it pushes
    /// behind `mov rbp, rsp`, and what it subtracts.
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
            // `mov r11, rsp` begins the end of that loop for a frame that is larger still.
            ends_probes = instruction.mnemonic() == Mnemonic::Mov
                && first == Register::R11
                && instruction.op1_register() == Register::RSP;
        }
        pushed + taken
    }

    /// Describes an access below the stack pointer, if there is one: below `rsp` itself, or below what
    /// the function has taken when it is counted from the frame pointer.
    pub(crate) fn below_the_stack(&self) -> Option<String> {
        let frame = self.frame_bytes();
        let keeps_frame = self.instructions.iter().any(|instruction| {
            instruction.mnemonic() == Mnemonic::Mov
                && instruction.op0_register() == Register::RBP
                && instruction.op1_register() == Register::RSP
        });
        let below = self.instructions.iter().find(|instruction| {
            let touches = (0..instruction.op_count())
                .any(|operand| instruction.op_kind(operand) == OpKind::Memory)
                && instruction.mnemonic() != Mnemonic::Lea
                && instruction.mnemonic() != Mnemonic::Nop;
            let depth = instruction.memory_displacement64().wrapping_neg();
            // An index that never is less than so much has it taken off the displacement.
            let carried = if instruction.memory_index() == Register::None {
                0
            } else {
                16
            };
            touches
                && is_below(instruction)
                && match instruction.memory_base() {
                    Register::RSP => true,
                    Register::RBP => keeps_frame && depth > frame + carried,
                    _ => false,
                }
        })?;
        Some(format!(
            "{}: {below} with a frame of {frame} bytes",
            self.name
        ))
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

    /// Whether it holds what a panic ends in.
    pub(crate) fn traps(&self) -> bool {
        let mut instructions = self.instructions.iter();
        instructions.any(|instruction| instruction.mnemonic() == Mnemonic::Ud2)
    }
}

/// Whether a displacement is negative.
fn is_below(instruction: &Instruction) -> bool {
    (instruction.memory_displacement64() as i64) < 0
}
