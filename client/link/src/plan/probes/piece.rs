//! One range of code, disassembled.

use std::ops::Range;

use iced_x86::{
    Code as Opcode, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};

use super::Refusal;
use super::code::{Code, MAX_FUNCTION};

/// How many instructions before an indirect jump its table is looked for.
const LOOK_BACK: usize = 24;

/// What matters of a range of code.
#[derive(Debug, Default)]
pub(super) struct Piece {
    pub(super) range: Range<u64>,
    /// The offsets at which instructions begin.
    starts: Vec<u32>,
    /// The first instruction, or the one behind an `endbr64`.
    pub(super) entry: Option<Instruction>,
    pub(super) returns: Vec<Instruction>,
    /// Direct jumps out of the range.
    pub(super) jumps: Vec<Instruction>,
    /// Indirect jumps, and the table that may be theirs.
    pub(super) indirect: Vec<(Instruction, Option<Table>)>,
    /// The targets of direct calls out of the range.
    pub(super) calls: Vec<u64>,
    /// The places of function pointers through which it calls or jumps, relative to the program
    /// counter.
    pub(super) called_pointers: Vec<u64>,
    /// What else it refers to relative to the program counter: functions or pointers to them may be
    /// among them.
    pub(super) references: Vec<u64>,
    /// Direct calls and jumps out of the range with a pointer as the first argument: the target,
    /// and the pointer or its place.
    pub(super) passed: Vec<(u64, u64)>,
    /// Whether a direct jump within the range leads back to its beginning.
    pub(super) loops: bool,
    /// Why the range is not understood.
    pub(super) problem: Option<Refusal>,
}

/// The address of a jump table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Table {
    /// Of addresses of 64 bits.
    Absolute(u64),
    /// Of 32-bit distances from the table.
    Relative(u64),
}

impl Piece {
    pub(super) fn of(code: &Code<'_>, range: &Range<u64>) -> Piece {
        let mut piece = Piece { range: range.clone(), ..Piece::default() };
        if range.end - range.start > MAX_FUNCTION {
            piece.problem = Some(Refusal::TooLarge);
            return piece;
        }
        let bytes = code.bytes(range);
        if bytes.is_empty() || (bytes.len() as u64) < range.end - range.start {
            piece.problem = Some(Refusal::Empty);
            return piece;
        }
        let decoder = Decoder::with_ip(64, bytes, range.start, DecoderOptions::NONE);
        let instructions: Vec<Instruction> = decoder.into_iter().collect();
        let offset = |it: &Instruction| (it.ip() - range.start) as u32;
        piece.starts = instructions.iter().map(offset).collect();
        let is_landing = instructions[0].mnemonic() == Mnemonic::Endbr64;
        piece.entry = instructions.get(usize::from(is_landing)).copied();
        piece.look_at(&instructions);
        piece
    }

    /// Whether an instruction of the range begins at an address.
    pub(super) fn has_start(&self, address: u64) -> bool {
        let offset = address.checked_sub(self.range.start);
        let offset = offset.and_then(|offset| u32::try_from(offset).ok());
        offset.is_some_and(|offset| self.starts.binary_search(&offset).is_ok())
    }

    fn look_at(&mut self, instructions: &[Instruction]) {
        let mut argument = None;
        for (at, instruction) in instructions.iter().enumerate() {
            if instruction.is_invalid() {
                self.refuse(Refusal::Undecodable);
                return;
            }
            let is_near = instruction.op0_kind() == OpKind::NearBranch64;
            if instruction.is_ip_rel_memory_operand() {
                let list = match instruction.flow_control() {
                    FlowControl::IndirectCall | FlowControl::IndirectBranch => {
                        &mut self.called_pointers
                    }
                    _ => &mut self.references,
                };
                list.push(instruction.ip_rel_memory_address());
            }
            if matches!(instruction.mnemonic(), Mnemonic::Lea | Mnemonic::Mov)
                && instruction.op0_register().full_register() == Register::RDI
            {
                argument = if instruction.is_ip_rel_memory_operand() {
                    Some(instruction.ip_rel_memory_address())
                } else {
                    instruction.try_immediate(1).ok()
                };
            }
            if is_near && !self.range.contains(&instruction.near_branch_target()) {
                let passed = argument.take();
                let target = instruction.near_branch_target();
                self.passed.extend(passed.map(|pointer| (target, pointer)));
            }
            match instruction.flow_control() {
                FlowControl::Return => {
                    if matches!(instruction.code(), Opcode::Retnq | Opcode::Retnq_imm16) {
                        self.returns.push(*instruction);
                    } else {
                        self.refuse(Refusal::FarReturn);
                    }
                }
                FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                    if !is_near {
                        self.refuse(Refusal::OddBranch);
                        continue;
                    }
                    let target = instruction.near_branch_target();
                    self.loops |= self.is_entry(target);
                    if !self.range.contains(&target) {
                        self.jumps.push(*instruction);
                    } else if !self.has_start(target) {
                        self.refuse(Refusal::IntoInstruction);
                    }
                }
                FlowControl::IndirectBranch => {
                    if instruction.code() != Opcode::Jmp_rm64 {
                        self.refuse(Refusal::OddBranch);
                    }
                    let before = &instructions[at.saturating_sub(LOOK_BACK)..at];
                    self.indirect.push((*instruction, table_of(instruction, before)));
                }
                FlowControl::Call if is_near => {
                    let target = instruction.near_branch_target();
                    if !self.range.contains(&target) {
                        self.calls.push(target);
                    }
                }
                FlowControl::XbeginXabortXend => self.refuse(Refusal::OddBranch),
                _ => {}
            }
        }
        let is_padding =
            |it: &&Instruction| matches!(it.mnemonic(), Mnemonic::Nop | Mnemonic::Int3);
        let last = instructions.iter().rev().find(|it| !is_padding(it));
        let ends = last.is_some_and(|last| {
            let flow = last.flow_control();
            let is_end = !matches!(flow, FlowControl::Next | FlowControl::ConditionalBranch);
            is_end || matches!(last.mnemonic(), Mnemonic::Ud2 | Mnemonic::Hlt)
        });
        if !ends {
            self.refuse(Refusal::FallsThrough);
        }
    }

    /// Whether an address is the beginning, before or behind an `endbr64`.
    pub(super) fn is_entry(&self, address: u64) -> bool {
        address == self.range.start || self.entry.is_some_and(|entry| entry.ip() == address)
    }

    /// Whether it has no exit: it ends in a loop, or in calls that do not return.
    pub(super) fn has_no_exit(&self) -> bool {
        self.returns.is_empty() && self.jumps.is_empty() && self.indirect.is_empty()
    }

    /// The first problem counts.
    fn refuse(&mut self, problem: Refusal) {
        self.problem.get_or_insert(problem);
    }
}

/// The jump table of an indirect jump, as compilers write it.
fn table_of(jump: &Instruction, before: &[Instruction]) -> Option<Table> {
    if jump.op0_kind() == OpKind::Memory {
        return absolute(jump, before);
    }
    // `movslq (table,index,4), x; add table, x; jmp *x`, or `mov table(,index,8), x; jmp *x`.
    let target = jump.op0_register();
    let mut base = None;
    for (at, instruction) in before.iter().enumerate().rev() {
        if matches!(
            instruction.flow_control(),
            FlowControl::Return | FlowControl::Call | FlowControl::IndirectCall
        ) {
            return None;
        }
        let writes =
            instruction.op0_kind() == OpKind::Register && instruction.op0_register() == target;
        match instruction.mnemonic() {
            Mnemonic::Add if writes && instruction.op1_kind() == OpKind::Register => {
                base = Some(instruction.op1_register());
            }
            Mnemonic::Mov if writes && instruction.op1_kind() == OpKind::Memory => {
                return absolute(instruction, &before[..at]);
            }
            Mnemonic::Movsxd
                if instruction.op1_kind() == OpKind::Memory
                    && instruction.memory_index_scale() == 4
                    && instruction.memory_index() != Register::None =>
            {
                let table = instruction.memory_base();
                // Either of the two may be the one that is added to the other.
                let loaded = instruction.op0_register();
                if !(loaded == target && base == Some(table) || base == Some(loaded)) {
                    return None;
                }
                return address_in(table, &before[..at]).map(Table::Relative);
            }
            _ => {}
        }
    }
    None
}

/// A table of addresses that an operand `table(,index,8)` or `(table,index,8)` reads.
fn absolute(instruction: &Instruction, before: &[Instruction]) -> Option<Table> {
    if instruction.memory_index() == Register::None || instruction.memory_index_scale() != 8 {
        return None;
    }
    let displacement = instruction.memory_displacement64();
    let address = match instruction.memory_base() {
        Register::None => displacement,
        base => address_in(base, before)?.wrapping_add(displacement),
    };
    Some(Table::Absolute(address))
}

/// The address that the last `lea address(%rip), register` has put into a register.
fn address_in(register: Register, before: &[Instruction]) -> Option<u64> {
    let last = before.iter().rev().find(|it| {
        it.op0_kind() == OpKind::Register
            && it.op0_register().full_register() == register.full_register()
            && !matches!(it.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push)
    })?;
    let is_address = last.mnemonic() == Mnemonic::Lea && last.is_ip_rel_memory_operand();
    is_address.then(|| last.ip_rel_memory_address())
}
