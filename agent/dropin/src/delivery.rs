//! Finds out how Xen delivers events to the guest, by raising one.
//!
//! A guest chooses a vector by `HVMOP_set_evtchn_upcall_vector`, which nobody can read, or by
//! `HVM_PARAM_CALLBACK_IRQ`. Events by the former come through the local APIC, and are seen there
//! while interrupts are off.

use core::fmt;
use core::sync::atomic::Ordering;

use xen_sys_lite::events::EventChannels;
use xen_sys_lite::hvm::{self, Param};
use xen_sys_lite::vcpu::VcpuId;
use xen_sys_lite::{Errno, Hypercall};

use xen_sys_lite::abi::xen::SharedInfo;

use crate::machine::apic::Apic;

/// The callback's kind in [`Param::CALLBACK_IRQ`]: an interrupt vector.
const BY_VECTOR: u64 = 2;

/// The delivery of events to the guest's handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) vector: u8,
    /// The handler ends the interrupt at the local APIC.
    pub(crate) by_apic: bool,
}

/// Why the guest's events cannot be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    Hypercall(Errno),
    /// An event left no trace in the shared information page.
    NotThere,
    /// An event left its trace there, but not where the first vCPU's events are told.
    Elsewhere,
    /// The guest has set no vector; [`Param::CALLBACK_IRQ`].
    NoVector(u64),
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hypercall(errno) => write!(f, "an event channel: {errno}"),
            Self::NotThere => f.write_str(
                "events are not seen in the shared information page: the guest uses FIFO event \
                 channels, or a second \
                 page",
            ),
            Self::Elsewhere => {
                f.write_str("the guest has moved its vcpu_info (VCPUOP_register_vcpu_info)")
            }
            Self::NoVector(callback) => write!(
                f,
                "it is not clear by which interrupt vector the guest's events come \
                 (HVM_PARAM_CALLBACK_IRQ is \
                 {callback:#x}): start the profiler after the guest has set it, with interrupts on"
            ),
        }
    }
}

impl Delivery {
    /// Raises an event of the first vCPU, which must be the calling one, and looks for its traces.
    /// Interrupts are off; one without an event may follow.
    pub(crate) fn find(
        xen: &(impl Hypercall + Copy),
        shared: &'static SharedInfo,
        apic: &Apic,
    ) -> Result<Self, Unknown> {
        let events = EventChannels::new(*xen, shared);
        let vcpu = &shared.vcpu_info[0];
        let port = events.bind_ipi(VcpuId(0)).map_err(Unknown::Hypercall)?;
        // Xen raises an interrupt only when these change.
        let words = vcpu.evtchn_pending_sel.swap(0, Ordering::SeqCst);
        let was_pending = vcpu.evtchn_upcall_pending.swap(0, Ordering::SeqCst) != 0;
        let before = apic.requested();
        let sent = events.unmask(port).and_then(|()| events.send(port));
        let requested = apic.requested();
        let is_there = events.take_pending(port);
        let told = vcpu.evtchn_pending_sel.load(Ordering::SeqCst) != 0
            && vcpu.evtchn_upcall_pending.load(Ordering::SeqCst) != 0;
        events.mask(port);
        let closed = events.close(port);
        vcpu.evtchn_pending_sel.fetch_or(words, Ordering::SeqCst);
        if was_pending {
            vcpu.evtchn_upcall_pending.store(1, Ordering::SeqCst);
        }
        sent.and(closed).map_err(Unknown::Hypercall)?;
        if !is_there {
            return Err(Unknown::NotThere);
        }
        if !told {
            return Err(Unknown::Elsewhere);
        }
        let callback = hvm::param(xen, Param::CALLBACK_IRQ).map_err(Unknown::Hypercall)?;
        Self::from_traces(before, requested, callback).ok_or(Unknown::NoVector(callback))
    }

    /// The vector that was `requested` after the event and not `before`. If there is none, an
    /// earlier event may have requested it (Xen raises one when the vector is chosen): one that
    /// waited, or the callback's, which does not come by the APIC unless its vector waited there.
    fn from_traces(before: [u32; 8], requested: [u32; 8], callback: u64) -> Option<Self> {
        let by_apic = |vector| Self { vector, by_apic: true };
        let new = core::array::from_fn(|word| requested[word] & !before[word]);
        if new != [0; 8] {
            return only(new).map(by_apic);
        }
        if callback >> 56 != BY_VECTOR {
            return only(before).map(by_apic);
        }
        let vector = callback as u8;
        match only(before) {
            None if before == [0; 8] => Some(Self { vector, by_apic: false }),
            Some(waited) if waited == vector => Some(by_apic(vector)),
            _ => None,
        }
    }
}

/// The vector of the only bit.
fn only(words: [u32; 8]) -> Option<u8> {
    let mut set = (0..=u8::MAX).filter(|v| words[usize::from(v / 32)] >> (v % 32) & 1 != 0);
    set.next().filter(|_| set.next().is_none())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn bits(vectors: &[u8]) -> [u32; 8] {
        let mut words = [0; 8];
        for vector in vectors {
            words[usize::from(vector / 32)] |= 1 << (vector % 32);
        }
        words
    }

    #[test]
    fn the_new_vector_is_found_beside_others() {
        let callback = 2 << 56 | 0xf3;
        let found = |before, after, callback| {
            Delivery::from_traces(bits(before), bits(after), callback)
                .map(|it| (it.vector, it.by_apic))
        };
        assert_eq!(found(&[], &[0x20], 1), Some((0x20, true)));
        assert_eq!(found(&[0x40], &[0x20, 0x40], 1), Some((0x20, true)));
        // A vector of one's own is asked for by a guest that has set both.
        assert_eq!(found(&[], &[0xf3], callback), Some((0xf3, true)));
        assert_eq!(found(&[], &[], callback), Some((0xf3, false)));
        // An event that came before has requested it already.
        assert_eq!(found(&[0x20], &[0x20], 1), Some((0x20, true)));
        assert_eq!(found(&[0xf3], &[0xf3], callback), Some((0xf3, true)));
        // What waits may be the vector, or another interrupt.
        assert_eq!(found(&[0x20, 0x40], &[0x20, 0x40], 1), None);
        assert_eq!(found(&[0x40], &[0x40], callback), None);
        assert_eq!(found(&[], &[0x20, 0x40], 1), None);
        assert_eq!(found(&[], &[], 0), None);
    }
}
