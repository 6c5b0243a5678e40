//! The interrupt table: a copy of the guest's, in which the timer has a vector, and events pass by our entry first.
//!
//! Layouts: Intel's manual, volume 3, chapters "Interrupt and Exception Handling" and "Task Management".

use core::arch::asm;
use core::cell::UnsafeCell;
use core::fmt;
use core::mem::offset_of;
use core::sync::atomic::Ordering;

use super::entry;

const PRESENT: u8 = 1 << 7;
/// An interrupt gate: it turns interrupts off.
const INTERRUPT_GATE: u8 = 0xe;
/// Vectors for the timer: above those that kernels number their own interrupts by.
const TIMER_VECTORS: core::ops::RangeInclusive<u8> = 0x30..=0xef;
/// The vector of interrupts that the APIC has withdrawn.
const SPURIOUS: u8 = 0xff;
const VECTORS: usize = 256;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Gate {
    low: u16,
    selector: u16,
    /// The number of the stack in the TSS, or 0.
    stack: u8,
    kind: u8,
    middle: u16,
    high: u32,
    reserved: u32,
}
const _: () = assert!(size_of::<Gate>() == 16);

impl Gate {
    const NONE: Self = Self {
        low: 0,
        selector: 0,
        stack: 0,
        kind: 0,
        middle: 0,
        high: 0,
        reserved: 0,
    };

    const fn new(entry: u64, selector: u16, stack: u8) -> Self {
        Self {
            low: entry as u16,
            selector,
            stack,
            kind: PRESENT | INTERRUPT_GATE,
            middle: (entry >> 16) as u16,
            high: (entry >> 32) as u32,
            reserved: 0,
        }
    }

    const fn is_present(self) -> bool {
        self.kind & PRESENT != 0
    }

    const fn entry(self) -> u64 {
        self.low as u64 | (self.middle as u64) << 16 | (self.high as u64) << 32
    }
}

/// The operand of `sidt`, `sgdt` and `lidt`.
#[derive(Clone, Copy, Default)]
#[repr(C, packed)]
struct TablePointer {
    limit: u16,
    base: u64,
}

/// The part of a TSS that is used here.
#[repr(C, packed(4))]
struct TaskState {
    reserved: u32,
    privileged_stacks: [u64; 3],
    reserved_2: u64,
    /// The interrupt stacks, from 1 on.
    stacks: [u64; 7],
}
const _: () = assert!(offset_of!(TaskState, stacks) == 36);

#[repr(C, align(16))]
struct Table(UnsafeCell<[Gate; VECTORS]>);

// SAFETY: written while no interrupt can come, on one vCPU; the processor reads it.
unsafe impl Sync for Table {}

static TABLE: Table = Table(UnsafeCell::new([Gate::NONE; VECTORS]));

/// Why the interrupt table cannot be extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoVector {
    /// Events have no gate at their vector.
    Events(u8),
    Used,
    Stacks,
}

impl fmt::Display for NoVector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Events(vector) => write!(
                f,
                "the guest has no handler for its events at vector {vector:#x}: start the profiler later"
            ),
            Self::Used => f.write_str("the guest uses all interrupt vectors"),
            Self::Stacks => f.write_str("the guest uses all seven interrupt stacks of its TSS"),
        }
    }
}

/// The vectors of the timer and of withdrawn interrupts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vectors {
    pub(crate) timer: u8,
    pub(crate) spurious: u8,
}

/// Loads a copy of the guest's interrupt table, with a gate for the timer. Events at vector `events` enter
/// [`entry`]'s code, which continues with the guest's handler.
///
/// # Safety
/// Interrupts are off, and the descriptor tables are mapped at their addresses.
pub(crate) unsafe fn install(events: u8) -> Result<Vectors, NoVector> {
    let (mut old, mut code) = (TablePointer::default(), 0_u16);
    // SAFETY: the instructions only store registers.
    unsafe {
        asm!("sidt [{}]", in(reg) &raw mut old, options(nostack, preserves_flags));
        asm!("mov {:x}, cs", out(reg) code, options(nomem, nostack, preserves_flags));
    }
    let count = (usize::from(old.limit) + 1) / size_of::<Gate>();
    let mut gates = [Gate::NONE; VECTORS];
    for (number, gate) in gates.iter_mut().enumerate().take(count) {
        let from = core::ptr::with_exposed_provenance::<Gate>(old.base as usize);
        // SAFETY: inside the table in use.
        *gate = unsafe { from.add(number).read_unaligned() };
    }
    let guests = gates[usize::from(events)];
    if !guests.is_present() {
        return Err(NoVector::Events(events));
    }
    let is_free = |vector: &u8| !gates[usize::from(*vector)].is_present();
    let timer = TIMER_VECTORS.rev().find(is_free).ok_or(NoVector::Used)?;
    // SAFETY: the caller's contract.
    let stack = unsafe { own_stack() }?;
    entry::GUESTS_HANDLER.store(guests.entry(), Ordering::Relaxed);
    gates[usize::from(events)] = Gate::new(entry::events(), guests.selector, guests.stack);
    gates[usize::from(timer)] = Gate::new(entry::timer(), code, stack);
    if !gates[usize::from(SPURIOUS)].is_present() {
        gates[usize::from(SPURIOUS)] = Gate::new(entry::spurious(), code, 0);
    }
    let new = TablePointer {
        limit: (size_of::<Table>() - 1) as u16,
        base: TABLE.0.get().expose_provenance() as u64,
    };
    // SAFETY: nobody else uses the copy yet; it contains all of the guest's gates.
    unsafe {
        TABLE.0.get().write(gates);
        asm!("lidt [{}]", in(reg) &raw const new, options(nostack, preserves_flags));
    }
    Ok(Vectors {
        timer,
        spurious: SPURIOUS,
    })
}

/// Puts [`entry`]'s landing stack into the guest's TSS and returns its number; 0 if the guest has no TSS. Its own
/// handlers then run on the interrupted stack too.
///
/// # Safety
/// As for [`install`].
unsafe fn own_stack() -> Result<u8, NoVector> {
    let (mut table, mut selector) = (TablePointer::default(), 0_u16);
    // SAFETY: the instructions only store registers.
    unsafe {
        asm!("sgdt [{}]", in(reg) &raw mut table, options(nostack, preserves_flags));
        asm!("str {:x}", out(reg) selector, options(nomem, nostack, preserves_flags));
    }
    if selector & !7 == 0 {
        return Ok(0);
    }
    let descriptor = table.base + u64::from(selector & !7);
    let descriptor = core::ptr::with_exposed_provenance::<[u64; 2]>(descriptor as usize);
    // SAFETY: the descriptor of the loaded task register.
    let [low, high] = unsafe { descriptor.read_unaligned() };
    let base = low >> 16 & 0xff_ffff | low >> 56 << 24 | high << 32;
    let state = core::ptr::with_exposed_provenance_mut::<TaskState>(base as usize);
    for number in (1..=7_u8).rev() {
        // SAFETY: the TSS in use.
        let place = unsafe { &raw mut (*state).stacks[usize::from(number) - 1] };
        // SAFETY: as above; a stack of 0 is used by no gate.
        unsafe {
            if place.read_unaligned() == 0 {
                place.write_unaligned(entry::landing_stack_top());
                return Ok(number);
            }
        }
    }
    Err(NoVector::Stacks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_keeps_all_of_its_entry() {
        let gate = Gate::new(0x1234_5678_9abc_def0, 8, 3);
        assert_eq!(gate.entry(), 0x1234_5678_9abc_def0);
        assert!(gate.is_present());
        // The bytes of Intel's figure "64-Bit IDT Gate Descriptors".
        // SAFETY: sixteen bytes without padding.
        let bytes: [u8; 16] = unsafe { core::mem::transmute(gate) };
        assert_eq!(
            bytes,
            [
                0xf0, 0xde, 8, 0, 3, 0x8e, 0xbc, 0x9a, 0x78, 0x56, 0x34, 0x12, 0, 0, 0, 0
            ]
        );
    }
}
