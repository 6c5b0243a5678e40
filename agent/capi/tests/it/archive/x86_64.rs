//! Instructions of x86-64.

use std::collections::BTreeSet;

use iced_x86::{
    Code as Opcode, CpuidFeature, Decoder, DecoderOptions, FlowControl, Instruction,
    InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};

use super::code::Body;

/// The features of every x86-64 processor.
const FEATURES: [CpuidFeature; 17] = [
    CpuidFeature::INTEL8086,
    CpuidFeature::INTEL186,
    CpuidFeature::INTEL286,
    CpuidFeature::INTEL386,
    CpuidFeature::INTEL486,
    CpuidFeature::X64,
    CpuidFeature::CPUID,
    CpuidFeature::TSC,
    CpuidFeature::MULTIBYTENOP,
    CpuidFeature::CMOV,
    CpuidFeature::FXSR,
    CpuidFeature::SSE,
    CpuidFeature::SSE2,
    CpuidFeature::FPU,
    CpuidFeature::MSR,
    CpuidFeature::CX8,
    CpuidFeature::PAUSE,
];

/// Instructions that only some processors have. The code asks CPUID before all but the first, which
/// is `bsf` where it is missing: the same for all operands but 0, for which compilers do not use
/// it.
const CHOSEN: [Mnemonic; 5] =
    [Mnemonic::Tzcnt, Mnemonic::Rdrand, Mnemonic::Rdseed, Mnemonic::Vmcall, Mnemonic::Vmmcall];

/// The instructions of one function.
pub(crate) struct X86_64(Vec<Instruction>);

impl X86_64 {
    pub(crate) fn decode(name: &str, start: u64, bytes: &[u8]) -> Self {
        let decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
        let instructions: Vec<_> = decoder.into_iter().collect();
        for instruction in &instructions {
            assert_ne!(instruction.code(), Opcode::INVALID, "{name} is code");
        }
        Self(instructions)
    }
}

impl Body for X86_64 {
    /// The return address, the caller's frame pointer and, if the stack is aligned, 8 bytes.
    fn call_bytes(&self) -> u64 {
        24
    }

    fn branches(&self) -> Vec<(u64, u64)> {
        let branches = self.0.iter();
        branches
            .filter(|it| it.op0_kind() == OpKind::NearBranch64)
            .map(|it| (it.next_ip().wrapping_sub(4), it.near_branch_target()))
            .collect()
    }

    /// Pushes after `mov rbp, rsp`, and subtractions.
    fn frame_bytes(&self) -> u64 {
        let (mut pushed, mut taken) = (0, 0);
        let mut is_probed = false;
        let mut ends_probes = false;
        for instruction in &self.0 {
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

    /// Below `rsp` itself, or, relative to the frame pointer, below what the function has taken.
    fn below_the_stack(&self) -> Option<String> {
        let frame = self.frame_bytes();
        let keeps_frame = self.0.iter().any(|instruction| {
            instruction.mnemonic() == Mnemonic::Mov
                && instruction.op0_register() == Register::RBP
                && instruction.op1_register() == Register::RSP
        });
        let below = self.0.iter().enumerate().find(|(at, instruction)| {
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
        Some(format!("{below} with a frame of {frame} bytes"))
    }

    /// x87, MMX, SSE or AVX state.
    fn vector_instruction(&self) -> Option<String> {
        let mut factory = InstructionInfoFactory::new();
        let found = self.0.iter().find(|instruction| {
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

    fn missing_instruction(&self) -> Option<String> {
        let mut found = self.0.iter().filter(|instruction| {
            let mut features = instruction.cpuid_features().iter();
            features.any(|feature| !FEATURES.contains(feature))
                && !CHOSEN.contains(&instruction.mnemonic())
        });
        found.next().map(|instruction| format!("{instruction}: {:?}", instruction.cpuid_features()))
    }

    fn traps(&self) -> bool {
        let targets: BTreeSet<u64> = self
            .0
            .iter()
            .filter(|it| it.is_jcc_short_or_near() || it.is_jmp_short_or_near())
            .map(Instruction::near_branch_target)
            .collect();
        let mut falls_through = true;
        self.0.iter().any(|instruction| {
            let is_reached = falls_through || targets.contains(&instruction.ip());
            falls_through = matches!(
                instruction.flow_control(),
                FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::Call
            );
            is_reached && instruction.mnemonic() == Mnemonic::Ud2
        })
    }
}

impl X86_64 {
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
        let access = &self.0[at];
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
        let before = &self.0[..at];
        let start = before.iter().rposition(&mut writes)?;
        let first = constant(&before[start], Mnemonic::Mov, index)?;
        // The loop ends with the next branch, whose target is between the constant and the access.
        let is_branch = |instruction: &Instruction| instruction.op0_kind() == OpKind::NearBranch64;
        let end = at + self.0[at..].iter().position(is_branch)?;
        let branch = &self.0[end];
        let target = branch.near_branch_target();
        let body = &self.0[start + 1..end];
        let is_loop = branch.mnemonic() == Mnemonic::Jne
            && (before[start].next_ip()..=access.ip()).contains(&target);
        let is_entered_elsewhere = self.0.iter().any(|other| {
            let to = is_branch(other).then(|| other.near_branch_target());
            let inside = before[start].next_ip()..branch.next_ip();
            other.ip() != branch.ip() && to.is_some_and(|to| inside.contains(&to))
        });
        let has_jump =
            body.iter().any(|it| is_branch(it) || it.flow_control() != FlowControl::Next);
        let mut changes = body.iter().filter(|instruction| writes(instruction));
        let step = constant(changes.next()?, Mnemonic::Add, index)?;
        let limit = constant(body.last()?, Mnemonic::Cmp, index)?;
        let is_exact = step > 0 && limit > first && (limit - first).is_multiple_of(step);
        let is_known = is_loop && is_exact && changes.next().is_none();
        (is_known && !is_entered_elsewhere && !has_jump).then_some(first)
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
