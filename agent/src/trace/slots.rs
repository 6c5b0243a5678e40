//! Slots: places for copies of instructions, in the agent's own text.
//!
//! A slot belongs to one address for the guest's whole life, since a thread can be preempted in it
//! and continue at any later time. Its code is written once, before the probe is set that leads
//! there.
#![allow(unsafe_code)]

use core::arch::{asm, global_asm};
use core::mem::MaybeUninit;
use core::sync::atomic::AtomicU32;

use super::instruction::{Instruction, Operation};
use super::probes::Place;
use crate::ground::block::take;
use crate::ground::sync::{AtomicU64, Ordering};

/// The bytes of a slot: the longest instruction, and a jump of 5 bytes.
const BYTES: usize = 20;

/// The number of slots, from the variable `UNIKPROF_TRACE_SLOTS` when the agent is built.
pub(crate) const SLOTS: usize = match option_env!("UNIKPROF_TRACE_SLOTS") {
    Some(text) => number(text.as_bytes()),
    None => 2048,
};

const fn number(text: &[u8]) -> usize {
    let mut value = 0;
    let mut at = 0;
    while at < text.len() {
        assert!(text[at].is_ascii_digit(), "UNIKPROF_TRACE_SLOTS is a number");
        value = value * 10 + (text[at] - b'0') as usize;
        at += 1;
    }
    assert!(1 <= value && value <= 1 << 20, "UNIKPROF_TRACE_SLOTS is 1 to 1048576");
    value
}

global_asm!(
    // Breakpoints until a slot is used.
    ".section .text.unikprof_trace_slots,\"ax\",@progbits",
    ".balign 64",
    ".globl trace_slots_of_unikprof",
    ".hidden trace_slots_of_unikprof",
    "trace_slots_of_unikprof:",
    ".fill {slots} * {bytes}, 1, 0xcc",
    // The function on which the agent measures the cost of a breakpoint.
    ".globl trace_breakpoint_of_unikprof",
    ".hidden trace_breakpoint_of_unikprof",
    "trace_breakpoint_of_unikprof:",
    "int3",
    "ret",
    ".text",
    slots = const SLOTS,
    bytes = const BYTES,
);

/// The address of a symbol of the assembly above. Not by a Rust declaration, which would be looked
/// up in a global offset table that kernels do not have.
macro_rules! address_of {
    ($symbol:literal) => {{
        let address: u64;
        // SAFETY: computes an address.
        unsafe {
            asm!(
                concat!("lea {}, [rip + ", $symbol, "]"),
                out(reg) address,
                options(nomem, nostack, preserves_flags)
            );
        }
        address
    }};
}

/// The address of the agent's own breakpoint.
pub(super) fn own_address() -> u64 {
    address_of!("trace_breakpoint_of_unikprof")
}

/// Executes the agent's own breakpoint, which counts nothing.
pub(super) fn own_breakpoint() {
    // SAFETY: the function has this type, and returns when the guest's handler has called the
    // agent's.
    let own: extern "C" fn() = unsafe {
        core::mem::transmute(core::ptr::with_exposed_provenance::<()>(own_address() as usize))
    };
    own();
}

/// The number of slots that were given to addresses. They stay so when an agent is stopped and
/// another one starts.
static USED: AtomicU32 = AtomicU32::new(0);

/// A slot's memory outside of the text.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
struct SlotCells {
    /// The address of the original; 0: the slot is unused.
    original: AtomicU64,
    /// The length of the copy in bits 0 to 7, and in the others the distance from the original to
    /// where the jump behind the copy leads.
    copy: AtomicU64,
}

/// All slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots<'m> {
    cells: &'m [SlotCells],
}

/// The bytes of the slots' memory outside of the text.
pub(super) const MEMORY: usize = SLOTS * size_of::<SlotCells>();

/// Why there is no slot for an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotError {
    /// There is none left, or none near enough.
    None,
    /// The platform cannot write there.
    NotWritable,
}

/// The contents of a slot.
struct Code {
    bytes: [u8; BYTES],
    /// The length of the part that stands for the original.
    copy: usize,
    /// The target of the jump behind it.
    target: u64,
}

impl<'m> Slots<'m> {
    pub(super) fn in_block(block: &mut &'m mut [MaybeUninit<u8>]) -> Option<Self> {
        Some(Self { cells: take(block, SLOTS)? })
    }

    /// The address of the slot with this number.
    pub(super) fn address(number: u32) -> u64 {
        address_of!("trace_slots_of_unikprof") + u64::from(number) * BYTES as u64
    }

    /// Makes a slot for the instruction at `place`; returns its number. Only the service calls it.
    /// `write` writes to the guest's code.
    pub(super) fn make(
        &self,
        place: &Place<'_>,
        instruction: Instruction,
        write: impl FnOnce(u64, &[u8]) -> bool,
    ) -> Result<u32, SlotError> {
        let number = USED.load(Ordering::Relaxed);
        let cells = self.cells.get(number as usize).ok_or(SlotError::None)?;
        let address = Self::address(number);
        let code = code(place, instruction, address).ok_or(SlotError::None)?;
        if !write(address, &code.bytes) {
            return Err(SlotError::NotWritable);
        }
        let distance = code.target.wrapping_sub(place.address);
        let word = code.copy as u64 | distance << 8;
        cells.copy.store(word, Ordering::Relaxed);
        cells.original.store(place.address, Ordering::Release);
        USED.store(number + 1, Ordering::Relaxed);
        Ok(number)
    }

    /// The address of the original if `pc` lies in a used slot: of the instruction, or, if the copy
    /// has run, of the one that follows, which of a call is the first of what it calls.
    pub(super) fn original(&self, pc: u64) -> Option<u64> {
        let offset = pc.wrapping_sub(Self::address(0));
        if offset >= (SLOTS * BYTES) as u64 {
            return None;
        }
        let cells = self.cells.get(offset as usize / BYTES)?;
        let original = cells.original.load(Ordering::Acquire);
        if original == 0 {
            return None;
        }
        let word = cells.copy.load(Ordering::Relaxed);
        let has_run = offset % BYTES as u64 >= word & 0xff;
        let passed = if has_run { word as i64 >> 8 } else { 0 };
        Some(original.wrapping_add_signed(passed))
    }
}

/// The code of a slot at `slot`; `None` if it is too far from what the instruction refers to.
fn code(place: &Place<'_>, instruction: Instruction, slot: u64) -> Option<Code> {
    const JUMP: u8 = 0xe9;
    const JUMP_BYTES: usize = 5;
    let mut bytes = [0xcc; BYTES];
    let next = place.address.wrapping_add(instruction.length.into());
    let (copy, target) = match instruction.operation {
        Operation::Copy { displacement } => {
            let length = usize::from(instruction.length);
            bytes.get_mut(..length)?.copy_from_slice(place.bytes.get(..length)?);
            if displacement != 0 {
                let field = bytes.get_mut(usize::from(displacement)..)?.first_chunk_mut()?;
                let moved = place.address.wrapping_sub(slot) as i64;
                let relative = moved.checked_add(i32::from_le_bytes(*field).into())?;
                *field = i32::try_from(relative).ok()?.to_le_bytes();
            }
            (length, next)
        }
        Operation::Call { relative } => {
            // push 5(%rip): the word behind the jump. One instruction, so that the stack is always
            // as before the call or as behind it; a fault at the stack's end happens in it, as in
            // the call.
            const PUSH: [u8; 6] = [0xff, 0x35, JUMP_BYTES as u8, 0, 0, 0];
            bytes.get_mut(..PUSH.len())?.copy_from_slice(&PUSH);
            let word = bytes.get_mut(PUSH.len() + JUMP_BYTES..)?;
            *word.first_chunk_mut()? = next.to_le_bytes();
            (PUSH.len(), next.wrapping_add_signed(relative.into()))
        }
        _ => return None,
    };
    let end = copy + JUMP_BYTES;
    let relative = target.wrapping_sub(slot.wrapping_add(end as u64)) as i64;
    let relative = i32::try_from(relative).ok()?;
    let jump = bytes.get_mut(copy..end)?;
    let (first, rest) = jump.split_first_mut()?;
    *first = JUMP;
    rest.copy_from_slice(&relative.to_le_bytes());
    Some(Code { bytes, copy, target })
}

/// The code of a slot at `slot`, and the length of the part that stands for the original.
#[cfg(test)]
pub(super) fn test_code(
    place: &Place<'_>,
    instruction: Instruction,
    slot: u64,
) -> Option<([u8; BYTES], usize)> {
    code(place, instruction, slot).map(|code| (code.bytes, code.copy))
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    extern crate std;

    use super::super::instruction::decode;
    use super::*;

    /// A tick at any instruction of a slot is one before or behind the original: a walk from it
    /// finds the stack so.
    #[test]
    fn each_place_of_a_slot_stands_for_one_before_or_behind_the_original() {
        let mut block = std::vec![MaybeUninit::uninit(); MEMORY + 64];
        let slots = Slots::in_block(&mut &mut block[..]).unwrap();
        let address = own_address() + 100;
        let instructions: [(&[u8], u64, u64); 3] = [
            // push %rbx
            (&[0x53], 1, address + 1),
            // mov 16(%rip), %rax
            (&[0x48, 0x8b, 0x05, 16, 0, 0, 0], 7, address + 7),
            // A call of what begins 32 bytes before its end: a push of 6 bytes.
            (&[0xe8, 0xe0, 0xff, 0xff, 0xff], 6, address + 5 - 32),
        ];
        for (bytes, copy, behind) in instructions {
            let place = Place { address, bytes };
            let number = slots.make(&place, decode(bytes).unwrap(), |_, _| true).unwrap();
            let slot = Slots::address(number);
            for offset in 0..BYTES as u64 {
                let original = slots.original(slot + offset).unwrap();
                let expected = if offset < copy { address } else { behind };
                assert_eq!(original, expected, "{bytes:x?} {offset}");
            }
        }
    }
}
