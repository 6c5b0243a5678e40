//! The local APIC's timer, which Xen emulates for PVH guests.
//!
//! Registers: Intel's manual, volume 3, chapter "Advanced Programmable Interrupt Controller". A
//! register is reached at its offset in the page of the APIC, or as an MSR once x2APIC mode is on.

use core::arch::x86_64::__cpuid;
use core::fmt;
use core::ptr::NonNull;

use super::{read_msr, write_msr};

const APIC_BASE: u32 = 0x1b;
const APIC_BASE_X2: u64 = 1 << 10;
const APIC_BASE_ENABLED: u64 = 1 << 11;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const X2_FIRST: u32 = 0x800;
const TSC_DEADLINE: u32 = 0x6e0;
/// CPUID leaf 1, ECX.
const HAS_X2: u32 = 1 << 21;
const HAS_TSC_DEADLINE: u32 = 1 << 24;

const EOI: u32 = 0xb0;
/// Eight registers of 32 vectors each, 16 bytes apart: interrupts being handled, and interrupts
/// that wait.
const IN_SERVICE: u32 = 0x100;
const REQUESTED: u32 = 0x200;
const SPURIOUS: u32 = 0xf0;
const SPURIOUS_ENABLED: u32 = 1 << 8;
const TIMER: u32 = 0x320;
/// Set by the processor while an interrupt waits to be delivered.
const TIMER_WAITS: u32 = 1 << 12;
const TIMER_MASKED: u32 = 1 << 16;
const TIMER_TSC_DEADLINE: u32 = 2 << 17;
const INITIAL_COUNT: u32 = 0x380;
const DIVIDE: u32 = 0x3e0;
const DIVIDE_BY_1: u32 = 0xb;

/// The timer's unit, divided by 1 (`APIC_BUS_CYCLE_NS` in Xen).
const COUNT_NS: u64 = 10;

/// The access to the registers.
#[derive(Clone, Copy)]
enum Registers {
    Page(NonNull<u8>),
    X2,
}

impl Registers {
    fn read(self, offset: u32) -> u32 {
        match self {
            // SAFETY: an aligned register in the APIC's page, which `Apic::find` found mapped.
            Self::Page(base) => unsafe { base.add(offset as usize).cast().read_volatile() },
            // SAFETY: x2APIC mode is on.
            Self::X2 => unsafe { read_msr(X2_FIRST + offset / 16) as u32 },
        }
    }

    #[inline]
    fn write(self, offset: u32, value: u32) {
        match self {
            // SAFETY: as above; the effect is the callers' purpose.
            Self::Page(base) => unsafe { base.add(offset as usize).cast().write_volatile(value) },
            // SAFETY: as above.
            Self::X2 => unsafe { write_msr(X2_FIRST + offset / 16, value.into()) },
        }
    }
}

/// This vCPU's APIC.
#[derive(Clone, Copy)]
pub(crate) struct Apic {
    registers: Registers,
    by_tsc: bool,
    /// The guest has enabled it.
    pub(crate) is_enabled: bool,
}

// SAFETY: the pointer is to a device's registers, used on the vCPU whose timer it is.
unsafe impl Send for Apic {}
// SAFETY: as above.
unsafe impl Sync for Apic {}

/// Why there is no timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoTimer {
    Disabled,
    NotMapped(u64),
    Elsewhere(u64),
    InUse,
}

impl fmt::Display for NoTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled => f.write_str("the local APIC is disabled"),
            Self::NotMapped(base) => {
                write!(f, "the local APIC at {base:#x} is not mapped, and there is no x2APIC mode")
            }
            Self::Elsewhere(base) => {
                write!(f, "the local APIC at {base:#x} is mapped at another address")
            }
            Self::InUse => f.write_str("the guest uses the local APIC's timer itself"),
        }
    }
}

impl Apic {
    /// Finds the APIC. `translate` returns the physical address of a virtual one, and `is_mapped`
    /// whether there is any for a physical one. Where the guest has not mapped the APIC, it does
    /// not use it: x2APIC mode is switched on then, in which the page is without effect.
    pub(crate) fn find(
        translate: impl Fn(u64) -> Option<u64>,
        is_mapped: impl Fn(u64) -> bool,
        tsc_hz: Option<u64>,
    ) -> Result<Self, NoTimer> {
        let features = __cpuid(1).ecx;
        // SAFETY: every x86-64 processor has the register.
        let base = unsafe { read_msr(APIC_BASE) };
        if base & APIC_BASE_ENABLED == 0 {
            return Err(NoTimer::Disabled);
        }
        let address = base & ADDRESS;
        let registers = if base & APIC_BASE_X2 != 0 {
            Registers::X2
        } else if translate(address) == Some(address) {
            NonNull::new(core::ptr::with_exposed_provenance_mut(address as usize))
                .map(Registers::Page)
                .ok_or(NoTimer::Disabled)?
        } else if is_mapped(address) {
            return Err(NoTimer::Elsewhere(address));
        } else if features & HAS_X2 != 0 {
            // SAFETY: the processor has the mode, and nobody reaches the APIC by its page.
            unsafe { write_msr(APIC_BASE, base | APIC_BASE_X2) };
            Registers::X2
        } else {
            return Err(NoTimer::NotMapped(address));
        };
        let is_enabled = registers.read(SPURIOUS) & SPURIOUS_ENABLED != 0;
        if is_enabled && registers.read(TIMER) & TIMER_MASKED == 0 {
            return Err(NoTimer::InUse);
        }
        Ok(Self {
            registers,
            by_tsc: features & HAS_TSC_DEADLINE != 0 && tsc_hz.is_some_and(|hz| hz != 0),
            is_enabled,
        })
    }

    /// The same of the vCPU that this runs on, where registers are to be reached in the same way.
    /// Its timer may raise `vector` already.
    pub(crate) fn of_another_vcpu(&self, vector: u8) -> Result<Self, NoTimer> {
        // SAFETY: every x86-64 processor has the register.
        let base = unsafe { read_msr(APIC_BASE) };
        if base & APIC_BASE_ENABLED == 0 {
            return Err(NoTimer::Disabled);
        }
        let address = base & ADDRESS;
        match self.registers {
            Registers::Page(page)
                if base & APIC_BASE_X2 == 0 && page.addr().get() as u64 == address => {}
            Registers::Page(_) => return Err(NoTimer::NotMapped(address)),
            // SAFETY: the first vCPU has the mode.
            Registers::X2 => unsafe { write_msr(APIC_BASE, base | APIC_BASE_X2) },
        }
        match self.is_free(vector) {
            false => Err(NoTimer::InUse),
            true => Ok(Self {
                is_enabled: self.registers.read(SPURIOUS) & SPURIOUS_ENABLED != 0,
                ..*self
            }),
        }
    }

    /// Whether the guest does not use the timer, which may raise `vector` already.
    pub(crate) fn is_free(&self, vector: u8) -> bool {
        let is_enabled = self.registers.read(SPURIOUS) & SPURIOUS_ENABLED != 0;
        !is_enabled || self.registers.read(TIMER) & TIMER_MASKED != 0 || self.is_ours(vector)
    }

    /// Has the timer raise `vector`.
    pub(crate) fn enable(&self, vector: u8) {
        if !self.is_enabled {
            // Xen withdraws no interrupt, so it raises none for that.
            self.registers.write(SPURIOUS, SPURIOUS_ENABLED | u32::from(vector));
        }
        self.registers.write(DIVIDE, DIVIDE_BY_1);
        self.registers.write(TIMER, self.timer(vector));
    }

    /// Whether the timer still raises `vector`, as [`enable`](Self::enable) has set it.
    pub(crate) fn is_ours(&self, vector: u8) -> bool {
        self.registers.read(TIMER) & !TIMER_WAITS == self.timer(vector)
    }

    fn timer(&self, vector: u8) -> u32 {
        let mode = if self.by_tsc { TIMER_TSC_DEADLINE } else { 0 };
        mode | u32::from(vector)
    }

    /// The vectors of interrupts that wait to be delivered, a bit each.
    pub(crate) fn requested(&self) -> [u32; 8] {
        core::array::from_fn(|word| self.registers.read(REQUESTED + 16 * word as u32))
    }

    /// Whether an interrupt with this vector is being handled.
    #[inline]
    pub(crate) fn is_in_service(&self, vector: u8) -> bool {
        let word = self.registers.read(IN_SERVICE + u32::from(vector / 32) * 16);
        word >> (vector % 32) & 1 != 0
    }

    /// Ends the interrupt that is being handled.
    #[inline]
    pub(crate) fn end_of_interrupt(&self) {
        self.registers.write(EOI, 0);
    }

    /// Fires once in `delay_ns`, at once for 0; `None` stops the timer. `tsc_after` returns the
    /// time stamp counter after a delay.
    #[inline]
    pub(crate) fn arm(&self, delay_ns: Option<u64>, tsc_after: impl Fn(u64) -> u64) {
        if self.by_tsc {
            let at = delay_ns.map_or(0, tsc_after);
            // SAFETY: the processor has the register.
            unsafe { write_msr(TSC_DEADLINE, at) };
        } else {
            let count = delay_ns.map_or(0, |delay_ns| delay_ns.div_ceil(COUNT_NS).max(1));
            self.registers.write(INITIAL_COUNT, u32::try_from(count).unwrap_or(u32::MAX));
        }
    }

    /// The timer's kind, for the line on the console.
    pub(crate) fn kind(&self) -> &'static str {
        match (self.by_tsc, self.registers) {
            (true, Registers::Page(_)) => "TSC deadline",
            (true, Registers::X2) => "TSC deadline, x2APIC",
            (false, Registers::Page(_)) => "APIC one-shot",
            (false, Registers::X2) => "x2APIC one-shot",
        }
    }
}
