//! The interrupt controller (GIC) that Xen presents to a guest, version 2 or 3: private interrupts
//! of each vCPU.
//!
//! A guest of Xen needs two of them: that of the [timer](super::timer::INTERRUPT), and that of the
//! event channels ([`EVENTS`]). Shared interrupts, those that devices raise, are not supported.

#![allow(unsafe_code, reason = "registers of a device are accessed")]

use core::ops::Range;

pub use crate::device_tree::Registers;

use super::registers::{read, read_device, write, write_device};
use crate::vcpu::VcpuId;

/// The interrupt of the event channels (`GUEST_EVTCHN_PPI` of `arch-arm.h`).
pub const EVENTS: u32 = 31;

/// Interrupts that are private to a vCPU are below this number, and from 16 on.
const PRIVATE: u32 = 32;
/// Numbers that mean that no interrupt is pending.
const SPURIOUS: Range<u32> = 1020..1024;
/// The priority of all interrupts: the middle of the range.
const PRIORITIES: u32 = 0xa0a0_a0a0;
/// The distance between the redistributors of two vCPUs.
const REDISTRIBUTOR: u64 = 0x2_0000;

/// Registers of the distributor (GICD), and of a redistributor's second frame.
mod offset {
    pub(super) const CONTROL: u64 = 0;
    pub(super) const GROUP: u64 = 0x80;
    pub(super) const ENABLE: u64 = 0x100;
    pub(super) const PRIORITY: u64 = 0x400;
    /// GICR: sleeping, and whether it still does.
    pub(super) const WAKER: u64 = 0x14;
    /// GICR: the frame of private interrupts.
    pub(super) const PRIVATE_FRAME: u64 = 0x1_0000;
    /// GICC.
    pub(super) const PRIORITY_MASK: u64 = 4;
    pub(super) const ACKNOWLEDGE: u64 = 0xc;
    pub(super) const END: u64 = 0x10;
}

/// The interrupt controller.
#[derive(Clone, Copy, Debug)]
pub struct Gic(Registers);

/// An interrupt that was acknowledged; [`Gic::end`] ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Interrupt {
    /// The value read, which has the sending processor in version 2.
    raw: u32,
    number: u32,
}

impl Interrupt {
    /// The interrupt read from a controller whose numbers have so many bits; `None` if nothing is
    /// pending.
    fn new(raw: u32, bits: u32) -> Option<Self> {
        let number = raw & ((1 << bits) - 1);
        (!SPURIOUS.contains(&number)).then_some(Self { raw, number })
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.number
    }
}

impl Gic {
    /// The controller with these registers.
    ///
    /// # Safety
    /// The addresses are those of the guest's controller, and mapped as device memory for as long
    /// as the result is used.
    #[must_use]
    pub const unsafe fn new(registers: Registers) -> Self {
        Self(registers)
    }

    /// Lets these private interrupts come to the vCPU that calls this, once its own exceptions are
    /// unmasked. `interrupts` has bit n for interrupt n. Call it once on each vCPU, on the first
    /// one first.
    pub fn start(&self, vcpu: VcpuId, interrupts: u32) {
        // SAFETY: the addresses are the controller's (contract of `new`), and the guest wants its
        // interrupts.
        unsafe {
            match self.0 {
                Registers::V2 { distributor, interface } => {
                    // Groups are not told apart.
                    write_device(distributor + offset::CONTROL, 1);
                    set_private(distributor, interrupts);
                    write_device(interface + offset::PRIORITY_MASK, 0xff);
                    write_device(interface + offset::CONTROL, 1);
                }
                Registers::V3 { distributor, redistributors } => {
                    const PROCESSOR_SLEEP: u32 = 1 << 1;
                    const CHILDREN_ASLEEP: u32 = 1 << 2;
                    // Affinity routing, and interrupts of group 1.
                    write_device(distributor + offset::CONTROL, 1 << 4 | 1 << 1);
                    // ICC_SRE_EL1: the interface is reached by system registers.
                    write!("s3_0_c12_c12_5", read!("s3_0_c12_c12_5") | 1);
                    let redistributor = redistributors + u64::from(vcpu.0) * REDISTRIBUTOR;
                    let waker = redistributor + offset::WAKER;
                    write_device(waker, read_device(waker) & !PROCESSOR_SLEEP);
                    while read_device(waker) & CHILDREN_ASLEEP != 0 {
                        core::hint::spin_loop();
                    }
                    let frame = redistributor + offset::PRIVATE_FRAME;
                    write_device(frame + offset::GROUP, !0);
                    set_private(frame, interrupts);
                    // ICC_PMR_EL1, ICC_IGRPEN1_EL1.
                    write!("s3_0_c4_c6_0", 0xff);
                    write!("s3_0_c12_c12_7", 1);
                }
            }
        }
    }

    /// Takes the pending interrupt, in its handler; `None` if there is none.
    #[inline]
    pub fn acknowledge(&self) -> Option<Interrupt> {
        match self.0 {
            Registers::V2 { interface, .. } => {
                // SAFETY: as in `start`.
                let raw = unsafe { read_device(interface + offset::ACKNOWLEDGE) };
                Interrupt::new(raw, 10)
            }
            // ICC_IAR1_EL1.
            Registers::V3 { .. } => Interrupt::new(read!("s3_0_c12_c12_0") as u32, 24),
        }
    }

    /// Ends an interrupt, so that it can come again.
    #[inline]
    pub fn end(&self, interrupt: Interrupt) {
        match self.0 {
            // SAFETY: as in `start`.
            Registers::V2 { interface, .. } => unsafe {
                write_device(interface + offset::END, interrupt.raw);
            },
            // ICC_EOIR1_EL1.
            Registers::V3 { .. } => write!("s3_0_c12_c12_1", u64::from(interrupt.raw)),
        }
    }
}

/// Gives private interrupts a priority, and enables some.
///
/// # Safety
/// `frame` is the address of the distributor, or of a redistributor's frame of private interrupts.
unsafe fn set_private(frame: u64, interrupts: u32) {
    for word in 0..u64::from(PRIVATE) / 4 {
        // SAFETY: the caller's contract.
        unsafe { write_device(frame + offset::PRIORITY + word * 4, PRIORITIES) };
    }
    // SAFETY: as above.
    unsafe { write_device(frame + offset::ENABLE, interrupts) };
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Guards against an interrupt that another vCPU has sent (version 2), or of a message (version
    /// 3), that is taken for none: it would not be ended, and would hold back all others.
    #[test]
    fn every_interrupt_that_was_acknowledged_has_its_number() {
        let sent_by_vcpu_2 = 2 << 10 | 5;
        let interrupt = Interrupt::new(sent_by_vcpu_2, 10).unwrap();
        assert_eq!((interrupt.number(), interrupt.raw), (5, sent_by_vcpu_2));
        assert_eq!(Interrupt::new(8192, 24).unwrap().number(), 8192);
        for bits in [10, 24] {
            assert_eq!(Interrupt::new(1023, bits), None);
            assert_eq!(Interrupt::new(27, bits).unwrap().number(), 27);
        }
    }
}
