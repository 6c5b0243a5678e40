//! The table of probes.
//!
//! A probe stays in the table for the guest's whole life: a breakpoint may arrive long after its
//! removal, on a vCPU that was preempted between the breakpoint and the handler. Its address and
//! instruction never change; one word, which is replaced as a whole, says what it is at present.

use core::mem::MaybeUninit;

use unikprof_proto::trace::MAX_INSTRUCTION;

use super::instruction::{Instruction, Operation};
use crate::ground::block::take;
use crate::ground::sync::{AtomicU32, AtomicU64, Ordering};

/// The state of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Role {
    pub(super) state: State,
    /// The trace's number.
    pub(super) trace: u16,
    /// The index of its function.
    pub(super) function: u16,
    /// See [`probe_kind`](unikprof_proto::trace::probe_kind).
    pub(super) kind: u8,
}

/// Whether a probe is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The guest's code is as it was.
    Removed,
    /// Checked, and not set yet.
    Prepared,
    /// Set. The breakpoint is written during this state only.
    Set,
}

impl Role {
    fn to_word(self) -> u64 {
        self.state as u64
            | u64::from(self.kind) << 8
            | u64::from(self.function) << 16
            | u64::from(self.trace) << 32
    }

    fn from_word(word: u64) -> Self {
        Self {
            state: match word as u8 {
                0 => State::Removed,
                1 => State::Prepared,
                _ => State::Set,
            },
            kind: (word >> 8) as u8,
            function: (word >> 16) as u16,
            trace: (word >> 32) as u16,
        }
    }
}

/// An instruction and its address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'b> {
    pub(super) address: u64,
    /// The instruction, perhaps with more bytes behind it.
    pub(super) bytes: &'b [u8],
}

/// A probe's memory.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
#[repr(C, align(64))]
pub(super) struct ProbeCells {
    address: AtomicU64,
    role: AtomicU64,
    /// The operation's number in bits 0 to 7, the instruction's length in bits 8 to 15, the first
    /// operand in bits 16 to 31 and the second one in bits 32 to 63.
    operation: AtomicU64,
    /// The instruction.
    bytes: [AtomicU64; 2],
}

/// The execution of a probe's instruction: an [`Operation`] whose copy has a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Execution {
    Slot(u32),
    Return { pop: u16 },
    Jump { relative: i32 },
    Branch { condition: u8, relative: i32 },
    Indirect,
}

impl Execution {
    /// The execution of an instruction without a slot; `None` if it needs one.
    pub(super) fn without_slot(operation: Operation) -> Option<Self> {
        Some(match operation {
            Operation::Copy { .. } | Operation::Call { .. } => return None,
            Operation::Return { pop } => Self::Return { pop },
            Operation::Jump { relative } => Self::Jump { relative },
            Operation::Branch { condition, relative } => Self::Branch { condition, relative },
            Operation::Indirect => Self::Indirect,
        })
    }

    fn to_word(self, length: u8) -> u64 {
        let (number, first, second): (u8, u16, u32) = match self {
            Self::Slot(slot) => (0, 0, slot),
            Self::Return { pop } => (1, pop, 0),
            Self::Jump { relative } => (2, 0, relative as u32),
            Self::Branch { condition, relative } => (3, condition.into(), relative as u32),
            Self::Indirect => (4, 0, 0),
        };
        u64::from(number)
            | u64::from(length) << 8
            | u64::from(first) << 16
            | u64::from(second) << 32
    }

    fn from_word(word: u64) -> (Self, u8) {
        let (first, second) = ((word >> 16) as u16, (word >> 32) as u32);
        let execution = match word as u8 {
            0 => Self::Slot(second),
            1 => Self::Return { pop: first },
            2 => Self::Jump { relative: second as i32 },
            3 => Self::Branch { condition: first as u8, relative: second as i32 },
            _ => Self::Indirect,
        };
        (execution, (word >> 8) as u8)
    }
}

impl ProbeCells {
    /// A probe that is not set, and not in the table.
    pub(super) fn removed(address: u64) -> Self {
        Self { address: AtomicU64::new(address), ..Self::default() }
    }

    pub(super) fn address(&self) -> u64 {
        self.address.load(Ordering::Relaxed)
    }

    pub(super) fn role(&self) -> Role {
        Role::from_word(self.role.load(Ordering::SeqCst))
    }

    /// SeqCst: a handler that counts itself in before it reads the role either finds the new one,
    /// or is waited for.
    pub(super) fn set_role(&self, role: Role) {
        self.role.store(role.to_word(), Ordering::SeqCst);
    }

    /// The execution of its instruction, and the instruction's length.
    pub(super) fn execution(&self) -> (Execution, u8) {
        Execution::from_word(self.operation.load(Ordering::Relaxed))
    }

    /// The instruction, with zeros behind it.
    pub(super) fn bytes(&self) -> [u8; 16] {
        let [low, high] = self.bytes.each_ref().map(|word| {
            let word = word.load(Ordering::Relaxed);
            word.to_le_bytes()
        });
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&low);
        bytes[8..].copy_from_slice(&high);
        bytes
    }

    /// The first byte of the instruction.
    pub(super) fn first_byte(&self) -> u8 {
        self.bytes[0].load(Ordering::Relaxed) as u8
    }

    /// Whether it has this instruction.
    pub(super) fn has(&self, bytes: &[u8]) -> bool {
        let (_, length) = self.execution();
        usize::from(length) == bytes.len() && self.bytes().get(..bytes.len()) == Some(bytes)
    }
}

/// All probes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probes<'m> {
    cells: &'m [ProbeCells],
    /// A hash table of numbers of probes, counted from 1; 0: a free place. More than half of it is
    /// free.
    index: &'m [AtomicU32],
    used: &'m AtomicU32,
}

/// The bytes of memory for so many probes.
pub(super) const fn probe_bytes(probes: usize) -> usize {
    probes * size_of::<ProbeCells>() + index_length(probes) * size_of::<u32>() + size_of::<u32>()
}

/// A power of two, at least twice the number of probes.
const fn index_length(probes: usize) -> usize {
    (2 * probes + 1).next_power_of_two()
}

impl<'m> Probes<'m> {
    pub(super) fn in_block(block: &mut &'m mut [MaybeUninit<u8>], probes: usize) -> Option<Self> {
        Some(Self {
            cells: take(block, probes)?,
            index: take(block, index_length(probes))?,
            used: take(block, 1)?.first()?,
        })
    }

    /// The number of probes that there is memory for.
    pub(super) fn capacity(&self) -> usize {
        self.cells.len()
    }

    /// Whether there is no memory for another probe.
    pub(super) fn is_full(&self) -> bool {
        self.used.load(Ordering::Relaxed) as usize >= self.cells.len()
    }

    /// The probes that were ever made, in any state.
    pub(super) fn all(&self) -> impl Iterator<Item = &'m ProbeCells> + use<'m> {
        let used = self.used.load(Ordering::Acquire) as usize;
        self.cells.get(..used).unwrap_or_default().iter()
    }

    /// The probe at an address.
    #[inline]
    pub(super) fn find(&self, address: u64) -> Option<&'m ProbeCells> {
        for place in self.places(address) {
            let number = self.index.get(place)?.load(Ordering::Acquire);
            let probe = self.cells.get((number as usize).checked_sub(1)?)?;
            if probe.address() == address {
                return Some(probe);
            }
        }
        None
    }

    /// Adds a probe that is not set; `None` if there is no memory left. Only the service calls it.
    pub(super) fn add(
        &self,
        place: &Place<'_>,
        instruction: Instruction,
        execution: Execution,
    ) -> Option<&'m ProbeCells> {
        let used = self.used.load(Ordering::Relaxed);
        let probe = self.cells.get(used as usize)?;
        let mut bytes = [0; 16];
        let length = usize::from(instruction.length).min(MAX_INSTRUCTION);
        bytes.get_mut(..length)?.copy_from_slice(place.bytes.get(..length)?);
        let (low, high) = bytes.split_at(8);
        for (cell, half) in probe.bytes.iter().zip([low, high]) {
            let word = half.first_chunk().map_or(0, |half| u64::from_le_bytes(*half));
            cell.store(word, Ordering::Relaxed);
        }
        let word = execution.to_word(instruction.length);
        probe.operation.store(word, Ordering::Relaxed);
        probe.address.store(place.address, Ordering::Relaxed);
        let free = self.places(place.address).find(|place| {
            let number = self.index.get(*place).map(|it| it.load(Ordering::Relaxed));
            number == Some(0)
        });
        self.index.get(free?)?.store(used + 1, Ordering::Release);
        self.used.store(used + 1, Ordering::Release);
        Some(probe)
    }

    /// The places in the index at which an address may be, in the order to look.
    #[inline]
    fn places(&self, address: u64) -> impl Iterator<Item = usize> + use<> {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let mask = self.index.len().wrapping_sub(1);
        let hash = (address.wrapping_mul(GOLDEN) >> 32) as usize;
        (0..self.index.len()).map(move |step| hash.wrapping_add(step) & mask)
    }
}
