//! The interrupt table: the guest's gates for its events, page faults and breakpoints lead to our
//! entries first.
//!
//! Layouts: Intel's manual, volume 3, chapter "Interrupt and Exception Handling".

use core::arch::asm;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use super::fault;

/// The guest's handler of its events.
pub(crate) static GUESTS_EVENTS: AtomicU64 = AtomicU64::new(0);
/// The guest's handler of breakpoints.
#[cfg(feature = "trace")]
pub(crate) static GUESTS_BREAKPOINTS: AtomicU64 = AtomicU64::new(0);

const PRESENT: u8 = 1 << 7;
/// An interrupt gate: it turns interrupts off.
const INTERRUPT_GATE: u8 = 0xe;
/// CR0: pages that are mapped for reading only cannot be written at privilege level 0 either.
const WRITE_PROTECT: u64 = 1 << 16;

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

    /// Present, and turning interrupts off.
    const fn is_usable(self) -> bool {
        self.kind & (PRESENT | 0xf) == PRESENT | INTERRUPT_GATE
    }

    /// Its two halves; all but the upper half of the entry is in the first.
    const fn halves(self) -> [u64; 2] {
        [
            self.low as u64
                | (self.selector as u64) << 16
                | (self.stack as u64) << 32
                | (self.kind as u64) << 40
                | (self.middle as u64) << 48,
            self.high as u64 | (self.reserved as u64) << 32,
        ]
    }

    /// Writes it to a table that other vCPUs may be using: one of them finds the old entry or the
    /// new one, if both are in the same 4 GiB, as the profiler and the guest's handler are, which
    /// are linked together. Returns `false` if the gate is no longer `old`: the guest has written
    /// it on another vCPU, and keeps what it has written.
    ///
    /// # Safety
    /// `place` is a gate of the table in use, and can be written.
    unsafe fn replace(self, old: Self, place: *mut Self) -> bool {
        let [first, second] = self.halves();
        let [old, _] = old.halves();
        let found: u64;
        // SAFETY: the caller's contract.
        unsafe {
            asm!(
                "mov [{place} + 8], {second}",
                "lock cmpxchg [{place}], {first}",
                place = in(reg) place,
                first = in(reg) first,
                second = in(reg) second,
                inout("rax") old => found,
                options(nostack),
            );
        }
        found == old
    }

    const fn entry(self) -> u64 {
        self.low as u64 | (self.middle as u64) << 16 | (self.high as u64) << 32
    }
}

/// The operand of `sidt` and `lidt`.
#[derive(Clone, Copy, Default)]
#[repr(C, packed)]
struct TablePointer {
    limit: u16,
    base: u64,
}

/// The guest has no interrupt gate for its events at this vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoHandler(u8);

impl fmt::Display for NoHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the guest has no interrupt gate for its events at vector {:#x}: start the profiler \
             later",
            self.0
        )
    }
}

/// Has interrupts of `vector` pass by the profiler's entry, which continues with the guest's handler.
/// Returns whether they did not before.
///
/// The gate is changed in the guest's own table, so that whatever the guest does to its table later
/// has the effect that it would have without the profiler. Other vCPUs that use the same table pass
/// by the entry, too.
///
/// # Safety
/// Interrupts are off, and the table is mapped at its address.
pub(crate) unsafe fn intercept(vector: u8) -> Result<bool, NoHandler> {
    let (gates, count) = table();
    if usize::from(vector) >= count {
        return Err(NoHandler(vector));
    }
    // SAFETY: inside the table in use.
    let guests = unsafe { gates.add(usize::from(vector)).read_unaligned() };
    if !guests.is_usable() {
        return Err(NoHandler(vector));
    }
    let ours = Gate::new(address_of!("unikprof_dropin_entry"), guests.selector, guests.stack);
    // SAFETY: as above; interrupts are off.
    unsafe {
        let gate = gates.add(usize::from(vector));
        if !put_before(gate, guests, ours, &GUESTS_EVENTS) {
            return Err(NoHandler(vector));
        }
        intercept_faults();
    }
    Ok(guests.entry() != ours.entry())
}

/// Whether interrupts of `vector` pass by the profiler's entry, or have no gate.
pub(crate) fn is_intercepted(vector: u8) -> bool {
    let (gates, count) = table();
    let place = usize::from(vector);
    // SAFETY: inside the table in use.
    place >= count
        || unsafe { gates.add(place).read_unaligned() }.entry()
            == address_of!("unikprof_dropin_entry")
}

/// The vector of page faults.
const PAGE_FAULT: u8 = 14;

/// Has page faults pass by [`fault`]'s code, which continues with the guest's handler, if it has
/// one.
///
/// # Safety
/// See [`intercept`].
pub(crate) unsafe fn intercept_faults() {
    let (gates, count) = table();
    if usize::from(PAGE_FAULT) >= count {
        return;
    }
    // SAFETY: inside the table in use; interrupts are off.
    unsafe {
        let gate = gates.add(usize::from(PAGE_FAULT));
        let guests = gate.read_unaligned();
        if guests.kind & PRESENT != 0 {
            let ours = Gate {
                kind: guests.kind,
                ..Gate::new(fault::address(), guests.selector, guests.stack)
            };
            put_before(gate, guests, ours, &fault::GUESTS_HANDLER);
        }
    }
}

/// The vector of breakpoints.
#[cfg(feature = "trace")]
const BREAKPOINT: u8 = 3;

/// Has breakpoints pass by the profiler's entry, which continues with the guest's handler. `false` if the guest has no handler of them, or if it would run on the
/// interrupted stack, although that of events, at vector `events`, does not: such a guest may be
/// compiled with a red zone.
///
/// # Safety
/// See [`intercept`].
#[cfg(feature = "trace")]
pub(crate) unsafe fn intercept_breakpoints(events: u8) -> bool {
    let (gates, count) = table();
    if count <= usize::from(BREAKPOINT.max(events)) {
        return false;
    }
    // SAFETY: inside the table in use.
    let [gate, events] = [BREAKPOINT, events].map(|it| unsafe { gates.add(usize::from(it)) });
    // SAFETY: as above.
    let (guests, events) = unsafe { (gate.read_unaligned(), events.read_unaligned()) };
    let is_usable = guests.kind & PRESENT != 0 && (guests.stack != 0 || events.stack == 0);
    if is_usable {
        let ours = address_of!("unikprof_dropin_breakpoint");
        let ours = Gate::new(ours, guests.selector, guests.stack);
        // SAFETY: as above; interrupts are off.
        return unsafe { put_before(gate, guests, ours, &GUESTS_BREAKPOINTS) };
    }
    false
}

/// Changes a gate to `ours`, and keeps the address of the guest's handler. Returns `false` if the
/// gate is no longer `guests`.
///
/// # Safety
/// Interrupts are off; `gate` was `guests`, a gate in the table in use.
unsafe fn put_before(gate: *mut Gate, guests: Gate, ours: Gate, handler: &AtomicU64) -> bool {
    if guests.entry() == ours.entry() {
        return true;
    }
    handler.store(guests.entry(), Ordering::Relaxed);
    // SAFETY: the caller's contract; the protection is as before afterwards.
    unsafe {
        let protection = super::read_cr0();
        super::write_cr0(protection & !WRITE_PROTECT);
        let is_changed = ours.replace(guests, gate);
        super::write_cr0(protection);
        is_changed
    }
}

/// The first gate of the table in use, and their number.
fn table() -> (*mut Gate, usize) {
    let mut pointer = TablePointer::default();
    // SAFETY: the instruction only stores a register.
    unsafe {
        asm!("sidt [{}]", in(reg) &raw mut pointer, options(nostack, preserves_flags));
    }
    let gates = core::ptr::with_exposed_provenance_mut::<Gate>(pointer.base as usize);
    (gates, (usize::from(pointer.limit) + 1) / size_of::<Gate>())
}

#[cfg(test)]
mod tests {
    use core::hint::black_box;
    use core::sync::atomic::{AtomicBool, AtomicU64};
    use std::thread;

    use super::*;

    /// Guards against an event of another vCPU that is handled while half of the new entry is
    /// written.
    #[test]
    fn a_gate_that_is_read_meanwhile_has_one_entry() {
        const ENTRIES: [u64; 2] = [0x0011_2233, 0x0044_5566];
        let gates = ENTRIES.map(|entry| Gate::new(entry, 8, 0));
        let known = gates.map(|gate| gate.halves()[0]);
        let place = gates[0].halves().map(AtomicU64::new);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut old = gates[0];
                for entry in ENTRIES.into_iter().cycle().take(2_000_000) {
                    let gate = Gate::new(black_box(entry), 8, 0);
                    // SAFETY: sixteen bytes that threads may write.
                    let is_written = unsafe { gate.replace(old, place.as_ptr().cast_mut().cast()) };
                    assert!(is_written);
                    old = gate;
                    black_box(&place);
                }
                is_over.store(true, Ordering::Release);
            });
            while !is_over.load(Ordering::Acquire) {
                let found = place[0].load(Ordering::Acquire);
                assert!(known.contains(&found), "a torn gate: {found:#x}");
            }
        });
    }

    /// Guards against a handler of the guest's that is lost: another vCPU writes a gate after the
    /// profiler has read it.
    #[test]
    fn a_gate_that_the_guest_writes_meanwhile_stays_the_guests() {
        let [found, guests, ours] =
            [0x0011_2233, 0x0044_5566, 0x0077_8899].map(|it| Gate::new(it, 8, 0));
        let mut gate = guests;
        // SAFETY: a gate of this test.
        assert!(!unsafe { ours.replace(found, &raw mut gate) });
        assert_eq!(gate, guests);
        // SAFETY: as above.
        assert!(unsafe { ours.replace(guests, &raw mut gate) });
        assert_eq!(gate, ours);
    }

    #[test]
    fn a_gate_keeps_all_of_its_entry() {
        let gate = Gate::new(0x1234_5678_9abc_def0, 8, 3);
        assert_eq!(gate.entry(), 0x1234_5678_9abc_def0);
        assert!(gate.is_usable());
        // The bytes of Intel's figure "64-Bit IDT Gate Descriptors".
        // SAFETY: sixteen bytes without padding.
        let bytes: [u8; 16] = unsafe { core::mem::transmute(gate) };
        assert_eq!(
            bytes,
            [0xf0, 0xde, 8, 0, 3, 0x8e, 0xbc, 0x9a, 0x78, 0x56, 0x34, 0x12, 0, 0, 0, 0]
        );
    }
}
