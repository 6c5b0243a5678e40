//! Every accepted instruction, executed by the processor at its place, and by a slot or the
//! emulation: the registers, the flags, the memory, and any fault must be the same.
#![allow(unsafe_code, clippy::unwrap_used)]

extern crate std;

use core::arch::global_asm;
use core::ptr::{addr_of, addr_of_mut};
use std::collections::HashSet;
use std::vec::Vec;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Mnemonic, OpKind, Register};
use libc::{c_int, c_void, siginfo_t, ucontext_t};

use super::instruction::{Instruction, Operation, TrapFrame, decode, indirect_target, is_taken};
use super::probes::Place;
use super::slots::test_code;

/// Bytes of code and of data, each with pages behind it that cannot be accessed.
const PAGE: usize = 4096;
const CODE: usize = PAGE;
const DATA: usize = 2 * PAGE;

/// The offsets of the tested instruction, its slot, and the targets of jumps in the code.
const AT: usize = 256;
const SLOT: usize = 1024;
const TARGET: usize = AT + 100;

/// The state in which a run has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ended {
    signal: c_int,
    pc: u64,
    registers: [u64; 16],
    flags: u64,
    data: Vec<u8>,
}

/// The data that the assembly below and the signal handler share.
#[repr(C)]
struct Shared {
    host_sp: u64,
    pc: u64,
    flags: u64,
    registers: [u64; 16],
    signal: c_int,
    mxcsr: u32,
}

static mut SHARED: Shared =
    Shared { host_sp: 0, pc: 0, flags: 0, registers: [0; 16], signal: 0, mxcsr: 0x1f80 };

global_asm!(
    ".text",
    "unikprof_test_enter:",
    "push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15",
    "fninit",
    "ldmxcsr {mxcsr}+{shared}(%rip)",
    "pxor %xmm0, %xmm0; pxor %xmm1, %xmm1; pxor %xmm2, %xmm2; pxor %xmm3, %xmm3; pxor %xmm4, %xmm4",
    "pxor %xmm5, %xmm5; pxor %xmm6, %xmm6; pxor %xmm7, %xmm7; pxor %xmm8, %xmm8; pxor %xmm9, %xmm9",
    "mov %rsp, {shared}(%rip)",
    "push 16+{shared}(%rip)",
    "popf",
    "mov 24+{shared}(%rip), %rax",
    "mov 32+{shared}(%rip), %rcx",
    "mov 40+{shared}(%rip), %rdx",
    "mov 48+{shared}(%rip), %rbx",
    "mov 64+{shared}(%rip), %rbp",
    "mov 72+{shared}(%rip), %rsi",
    "mov 80+{shared}(%rip), %rdi",
    "mov 88+{shared}(%rip), %r8",
    "mov 96+{shared}(%rip), %r9",
    "mov 104+{shared}(%rip), %r10",
    "mov 112+{shared}(%rip), %r11",
    "mov 120+{shared}(%rip), %r12",
    "mov 128+{shared}(%rip), %r13",
    "mov 136+{shared}(%rip), %r14",
    "mov 144+{shared}(%rip), %r15",
    "mov 56+{shared}(%rip), %rsp",
    "jmp *8+{shared}(%rip)",
    "unikprof_test_resume:",
    "fninit",
    "ldmxcsr {mxcsr}+{shared}(%rip)",
    "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx; ret",
    shared = sym SHARED,
    mxcsr = const core::mem::offset_of!(Shared, mxcsr),
    options(att_syntax)
);

unsafe extern "C" {
    fn unikprof_test_enter();
    fn unikprof_test_resume();
}

const GENERAL: [c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// Ends a run: keeps its state, and continues in the test.
extern "C" fn on_signal(signal: c_int, _: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's context; only this thread uses the shared state.
    unsafe {
        let registers = &mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs;
        let shared = addr_of_mut!(SHARED);
        (*shared).signal = signal;
        (*shared).registers = GENERAL.map(|index| registers[index as usize] as u64);
        (*shared).pc = registers[libc::REG_RIP as usize] as u64;
        (*shared).flags = registers[libc::REG_EFL as usize] as u64;
        registers[libc::REG_RIP as usize] = unikprof_test_resume as *const () as i64;
        registers[libc::REG_RSP as usize] = (*shared).host_sp as i64;
        registers[libc::REG_EFL as usize] = 0x202;
    }
}

/// Memory with code and data, and a processor that runs in it.
struct Machine {
    base: *mut u8,
    /// The contents of the data before a run.
    pattern: Vec<u8>,
    _alternate: Vec<u8>,
}

impl Machine {
    fn new() -> Self {
        let length = CODE + PAGE + DATA + PAGE;
        // SAFETY: a new mapping, whose gaps are then made inaccessible.
        let base = unsafe {
            let base = libc::mmap(
                core::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(base, libc::MAP_FAILED);
            let base = base.cast::<u8>();
            for gap in [CODE, CODE + PAGE + DATA] {
                assert_eq!(libc::mprotect(base.add(gap).cast(), PAGE, libc::PROT_NONE), 0);
            }
            base
        };
        let mut alternate = std::vec![0; 256 << 10];
        let stack = libc::stack_t {
            ss_sp: alternate.as_mut_ptr().cast::<c_void>(),
            ss_flags: 0,
            ss_size: alternate.len(),
        };
        // SAFETY: the stack lives as long as the machine; the handler has the type that SA_SIGINFO
        // needs.
        unsafe {
            assert_eq!(libc::sigaltstack(&raw const stack, core::ptr::null_mut()), 0);
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            // None should trap; one that does is named.
            let signals = [libc::SIGILL, libc::SIGSEGV, libc::SIGFPE, libc::SIGBUS, libc::SIGTRAP];
            for signal in signals {
                assert_eq!(libc::sigaction(signal, &raw const action, core::ptr::null_mut()), 0);
            }
        }
        let mut machine = Self {
            base,
            pattern: (0..DATA).map(|at| (at * 7 + at / 251) as u8).collect(),
            _alternate: alternate,
        };
        // What returns and indirect jumps find.
        let target = machine.address(TARGET).to_le_bytes();
        for word in machine.pattern[DATA / 2 - 256..DATA / 2 + 256].chunks_mut(8) {
            word.copy_from_slice(&target);
        }
        machine
    }

    fn address(&self, offset: usize) -> u64 {
        self.base.expose_provenance() as u64 + offset as u64
    }

    /// The middle of the data.
    fn data(&self) -> u64 {
        self.address(CODE + PAGE + DATA / 2)
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        // SAFETY: inside the code.
        unsafe {
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(offset), bytes.len());
        }
    }

    /// Fills the code with instructions that end a run, and the data with bytes.
    fn reset(&mut self) {
        // Not an instruction in 64-bit mode.
        self.write(0, &[0x06; CODE]);
        let pattern = core::mem::take(&mut self.pattern);
        self.write(CODE + PAGE, &pattern);
        self.pattern = pattern;
    }

    /// Runs from `pc` on with these registers until a signal.
    fn run(&mut self, pc: u64, start: &TrapFrame) -> Ended {
        // SAFETY: the code ends with a signal, whose handler returns here.
        unsafe {
            let shared = addr_of_mut!(SHARED);
            (*shared).pc = pc;
            (*shared).flags = start.flags;
            (*shared).registers = start.registers;
            unikprof_test_enter();
            let shared = addr_of!(SHARED);
            let data = core::slice::from_raw_parts(self.base.add(CODE + PAGE), DATA).to_vec();
            // The resume flag differs between faults and traps, and nobody sees it.
            const RESUME: u64 = 1 << 16;
            Ended {
                signal: (*shared).signal,
                pc: (*shared).pc,
                registers: (*shared).registers,
                flags: (*shared).flags & !RESUME,
                data,
            }
        }
    }

    /// Registers that point into the data, by which any of them can be an operand's base.
    fn registers(&self, seed: u64) -> TrapFrame {
        let mut frame = TrapFrame {
            flags: 0x202 | [0, 0x8d5, 0x1, 0x40, 0x80, 0x4, 0x800, 0x881][seed as usize % 8],
            ..TrapFrame::default()
        };
        for (number, register) in (0..).zip(&mut frame.registers) {
            *register = self.data() + 8 * ((number * 5 + seed) % 13);
        }
        frame
    }

    /// Runs the instruction by the processor, and as a probe's.
    fn compare(&mut self, bytes: &[u8], instruction: Instruction, seed: u64) {
        let start = self.registers(seed);
        let address = self.address(AT);
        self.reset();
        self.write(AT, bytes);
        let native = self.run(address, &start);
        self.reset();
        let place = Place { address, bytes };
        let length = u64::from(instruction.length);
        let next = address + length;
        let mut frame = start;
        let mut copy = 0;
        // SAFETY: as the processor reads it; a test whose word cannot be read is left out before.
        let read = |place: u64| unsafe {
            core::ptr::with_exposed_provenance::<u64>(place as usize).read_unaligned()
        };
        let jump = |relative: i32| next.wrapping_add_signed(relative.into());
        frame.pc = match instruction.operation {
            Operation::Copy { .. } | Operation::Call { .. } => {
                let slot = self.address(SLOT);
                let (code, length) = test_code(&place, instruction, slot).unwrap();
                self.write(SLOT, &code);
                copy = length as u64;
                slot
            }
            Operation::Return { pop } => {
                frame.registers[4] += 8 + u64::from(pop);
                read(start.registers[4])
            }
            Operation::Jump { relative } => jump(relative),
            Operation::Branch { condition, relative } if is_taken(condition, start.flags) => {
                jump(relative)
            }
            Operation::Branch { .. } => next,
            Operation::Indirect => indirect_target(bytes, address, &start, read).unwrap(),
        };
        let mut probed = self.run(frame.pc, &frame);
        // A fault in the slot is shown as one at the original.
        let offset = probed.pc.wrapping_sub(self.address(SLOT));
        if copy != 0 && offset < copy {
            probed.pc = address;
        }
        if native != probed {
            let differs = native.data.iter().zip(&probed.data).position(|(a, b)| a != b);
            let (native, probed) =
                (Ended { data: Vec::new(), ..native }, Ended { data: Vec::new(), ..probed });
            panic!(
                "{bytes:x?} {instruction:?}\nprocessor {native:x?}\nprobe     {probed:x?}\ndata \
                 differs at {differs:?}"
            );
        }
    }
}

/// The prefixes of the tested instructions.
const PREFIXES: [&[u8]; 12] = [
    &[],
    &[0x66],
    &[0xf2],
    &[0xf3],
    &[0xf0],
    &[0x48],
    &[0x41],
    &[0x45],
    &[0x66, 0x48],
    &[0xf3, 0x4c],
    &[0xf0, 0x48],
    &[0x3e],
];

/// The opcodes of all maps.
fn opcodes() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    for opcode in 0..=255_u8 {
        all.push([opcode].to_vec());
        all.push([0x0f, opcode].to_vec());
        all.push([0x0f, 0x38, opcode].to_vec());
        all.push([0x0f, 0x3a, opcode].to_vec());
        for prefix in [0x78, 0xf9, 0x7d] {
            all.push([0xc5, prefix, opcode].to_vec());
            for map in [0xe1, 0xe2, 0xe3] {
                all.push([0xc4, map, prefix, opcode].to_vec());
            }
        }
    }
    all
}

/// ModRM bytes with their SIB bytes and displacements: every kind of operand, with every extension.
fn operands() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for modrm in 0..=255_u8 {
        let (mode, low) = (modrm >> 6, modrm & 7);
        let displacement: &[u8] = match mode {
            1 => &[0x10],
            2 => &[0x18, 0, 0, 0],
            _ => &[],
        };
        if mode != 3 && low == 4 {
            for sib in [0x24, 0x25, 0x20, 0x65, 0x6c, 0xe4] {
                let absolute: &[u8] =
                    if mode == 0 && sib & 7 == 5 { &[0x40, 0, 0, 0] } else { displacement };
                all.push([&[modrm, sib][..], absolute].concat());
            }
        } else if mode == 0 && low == 5 {
            // From the instruction to the data: aligned for three lengths of instructions.
            let distance = (CODE + PAGE + DATA / 2 - AT) as u32;
            for more in 0..3 {
                all.push([&[modrm][..], &(distance + more).to_le_bytes()].concat());
            }
        } else {
            all.push([&[modrm][..], displacement].concat());
        }
    }
    all
}

/// Whether running it says nothing, or would harm the test.
fn is_left_out(instruction: &iced_x86::Instruction) -> bool {
    use Mnemonic::*;
    let mnemonic = instruction.mnemonic();
    // Clocks, random numbers, and the state of the x87 unit with its own address.
    let varies = matches!(
        mnemonic,
        Rdtsc
            | Rdrand
            | Rdseed
            | Cpuid
            | Fnstenv
            | Fstenv
            | Fnsave
            | Fsave
            | Fxsave
            | Fxsave64
            | Xsave
            | Xsave64
            | Xsaveopt
            | Xsaveopt64
            | Fldenv
            | Frstor
    );
    // They change what the test's own process relies on.
    let harms =
        matches!(mnemonic, Xrstor | Xrstor64 | Fxrstor | Fxrstor64 | Fldcw | Ldmxcsr | Vldmxcsr);
    // They write far from their operand's address, to where the test itself may have its stack.
    let far = matches!(mnemonic, Bts | Btr | Btc)
        && instruction.op0_kind() == OpKind::Memory
        && instruction.op1_kind() == OpKind::Register;
    let segment = instruction.segment_prefix();
    // It would jump to itself for ever.
    let repeats = instruction.is_jcc_short_or_near() || instruction.is_jmp_short_or_near();
    let target = instruction.near_branch_target();
    let repeats = repeats && (instruction.ip()..instruction.next_ip()).contains(&target);
    repeats || far || varies || harms || matches!(segment, Register::FS | Register::GS)
}

/// Each accepted encoding behaves as by the processor, whatever its operands are. Also compares the
/// decoder with another one.
#[test]
fn every_accepted_instruction_behaves_as_by_the_processor() {
    let mut machine = Machine::new();
    let mut accepted = 0_u32;
    let mut ran = 0_u32;
    let mut codes = HashSet::new();
    let operands = operands();
    let mut seed = 0;
    for opcode in opcodes() {
        for prefix in PREFIXES {
            for operand in &operands {
                // Immediates, and displacements of jumps, that lead into the code.
                let tail = [0x40, 0, 0, 0, 0, 0, 0, 0];
                let mut bytes = [prefix, &opcode[..], operand, &tail].concat();
                let Some(found) = decode(&bytes) else {
                    continue;
                };
                accepted += 1;
                let bytes = &mut bytes[..usize::from(found.length)];
                lead_into_code(bytes, found);
                let found = decode(bytes).unwrap();
                let decoded = agrees(bytes, found, machine.address(AT));
                let Some(decoded) = decoded.filter(|decoded| !is_left_out(decoded)) else {
                    continue;
                };
                // Each instruction with each kind of operand, and some of the others.
                let is_new = codes.insert((decoded.code(), prefix, kind(&decoded)));
                if is_new || accepted.is_multiple_of(211) {
                    if !reads_any(&decoded, found, &machine, seed) {
                        continue;
                    }
                    machine.compare(bytes, found, seed);
                    seed += 1;
                    ran += 1;
                }
            }
        }
    }
    std::eprintln!("{accepted} encodings accepted, {ran} run, {} instructions", codes.len());
    assert!(accepted > 1_000_000 && ran > 10_000, "{accepted} {ran}");
}

/// Changes a direct jump's or call's displacement to one that leads into the code.
fn lead_into_code(bytes: &mut [u8], found: Instruction) {
    let is_direct = matches!(
        found.operation,
        Operation::Call { .. } | Operation::Jump { .. } | Operation::Branch { .. }
    );
    if is_direct {
        let is_short =
            bytes.iter().any(|byte| matches!(byte, 0x70..=0x7f | 0xeb)) && bytes.len() < 5;
        let (_, end) = bytes.split_at_mut(bytes.len() - if is_short { 1 } else { 4 });
        end.fill(0);
        end[0] = 0x40;
    }
}

/// Whether the target that an emulated indirect jump reads leads into the code. A jump to what is
/// no address faults at its target instead.
fn reads_any(
    decoded: &iced_x86::Instruction,
    found: Instruction,
    machine: &Machine,
    seed: u64,
) -> bool {
    if found.operation != Operation::Indirect || decoded.op0_kind() != OpKind::Memory {
        return true;
    }
    let frame = machine.registers(seed);
    let address = decoded.virtual_address(0, 0, |register, _, _| {
        if register.is_segment_register() {
            return Some(0);
        }
        let number = register.full_register().number();
        Some(frame.registers[number])
    });
    let data = machine.data();
    address.is_some_and(|address| (data - 256..data + 256).contains(&address) && address % 8 == 0)
}

/// The kinds of the operands.
fn kind(decoded: &iced_x86::Instruction) -> (bool, bool, bool) {
    let is_memory = decoded.op_kinds().any(|kind| kind == OpKind::Memory);
    let uses_stack = decoded.memory_base() == Register::RSP;
    (is_memory, uses_stack, decoded.is_ip_rel_memory_operand())
}

/// Asserts that another decoder finds the same instruction; `None` if it finds none, which then is
/// undefined on some processors.
fn agrees(bytes: &[u8], found: Instruction, address: u64) -> Option<iced_x86::Instruction> {
    let mut decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
    let decoded = decoder.decode();
    if decoded.code() == Code::INVALID {
        return None;
    }
    assert_eq!(decoded.len(), bytes.len(), "{bytes:x?} {decoded}");
    let is_right = match found.operation {
        Operation::Copy { displacement } => {
            let offsets = decoder.get_constant_offsets(&decoded);
            let other =
                if decoded.is_ip_rel_memory_operand() { offsets.displacement_offset() } else { 0 };
            usize::from(displacement) == other && decoded.flow_control() == FlowControl::Next
        }
        Operation::Call { .. } => decoded.flow_control() == FlowControl::Call,
        Operation::Return { .. } => decoded.flow_control() == FlowControl::Return,
        Operation::Jump { .. } => decoded.flow_control() == FlowControl::UnconditionalBranch,
        Operation::Branch { .. } => decoded.flow_control() == FlowControl::ConditionalBranch,
        Operation::Indirect => decoded.flow_control() == FlowControl::IndirectBranch,
    };
    assert!(is_right, "{bytes:x?} {decoded} {found:?}");
    Some(decoded)
}
