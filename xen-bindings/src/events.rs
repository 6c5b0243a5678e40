//! Event channels: binding, sending, and the demultiplexer of the upcall (two-level ABI).
//!
//! A [`Port`] is one bit: pending or not. [`EventChannels`] makes and uses ports; [`Upcall`] is one
//! vCPU's receiving end, called from its interrupt.
//!
//! ```
//! use xen_sys_lite::events::{EventChannels, Upcall, Virq};
//! use xen_sys_lite::fake::FakeXen;
//! use xen_sys_lite::vcpu::VcpuId;
//!
//! let xen = FakeXen::new();
//! let shared = xen.map_shared_info();
//! let events = EventChannels::new(&xen, shared);
//! events.mask_all();
//!
//! const BOOT: VcpuId = VcpuId(0);
//! let upcall = Upcall::for_legacy_vcpu(shared, BOOT).expect("vCPU 0 is in the shared page");
//! let timer = events.bind_virq(Virq::TIMER, BOOT)?;
//! upcall.own(timer);
//! events.unmask(timer)?;
//!
//! xen.raise_virq(Virq::TIMER, BOOT);
//! let mut ticks = 0;
//! upcall.demux(|port| ticks += u32::from(port == timer));
//! assert_eq!(ticks, 1);
//! # Ok::<(), xen_sys_lite::Errno>(())
//! ```

use core::sync::atomic::{AtomicU64, Ordering, fence};

use crate::abi::event_channel as abi;
use crate::abi::xen::{DOMID_SELF, EVTCHN_2L_NR_CHANNELS, SharedInfo, VcpuInfo, virq};
use crate::errno::Errno;
use crate::hypercall::Hypercall;
use crate::hypercall::operations::{
    EvtchnAllocUnbound, EvtchnBindInterdomain, EvtchnBindIpi, EvtchnBindVcpu, EvtchnBindVirq,
    EvtchnClose, EvtchnSend, EvtchnStatus, EvtchnUnmask, issue,
};
use crate::vcpu::VcpuId;

/// A local event channel port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Port(pub u32);

impl Port {
    /// Word of the bitmaps and bit in it; `None` beyond the 4,096 ports of the two-level ABI.
    const fn place(self) -> Option<(usize, u64)> {
        if self.0 < EVTCHN_2L_NR_CHANNELS {
            Some((self.0 as usize / 64, 1 << (self.0 % 64)))
        } else {
            None
        }
    }
}

/// A virtual interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Virq(pub u32);

impl Virq {
    /// The vCPU's timers; one port per vCPU, a second bind is `EEXIST`.
    pub const TIMER: Self = Self(virq::TIMER);
    /// A request for debug information.
    pub const DEBUG: Self = Self(virq::DEBUG);
    /// A performance counter overflowed.
    pub const PMU: Self = Self(virq::XENPMU);
}

/// The other end of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Binding {
    /// Not in use.
    Closed,
    /// Offered to `domain`, which has not connected.
    Unbound {
        /// Domain that may connect.
        domain: u16,
    },
    /// Connected to a port of another domain.
    Interdomain {
        /// The other domain.
        domain: u16,
        /// Its port.
        port: u32,
    },
    /// Bound to a physical interrupt.
    Pirq(u32),
    /// Bound to a virtual interrupt.
    Virq(Virq),
    /// Bound to another vCPU of this domain.
    Ipi,
    /// A state this crate does not know.
    Unsupported(u32),
}

/// Makes, uses and ends event channels of this domain.
#[derive(Clone, Copy, Debug)]
pub struct EventChannels<H> {
    hypercall: H,
    shared: &'static SharedInfo,
}

impl<H: Hypercall> EventChannels<H> {
    /// Uses the shared information page, which must have been mapped before (see
    /// [`SharedInfoPage`](crate::memory::SharedInfoPage)).
    pub const fn new(hypercall: H, shared: &'static SharedInfo) -> Self {
        Self { hypercall, shared }
    }

    /// Binds a virtual interrupt of `vcpu` to a new port.
    ///
    /// # Errors
    /// `EEXIST` if the interrupt is already bound, `ENOENT` for a vCPU that does not exist.
    pub fn bind_virq(&self, virq: Virq, vcpu: VcpuId) -> Result<Port, Errno> {
        let mut argument = abi::BindVirq { virq: virq.0, vcpu: vcpu.0, port: 0 };
        issue::<EvtchnBindVirq>(&self.hypercall, &mut argument)?;
        Ok(Port(argument.port))
    }

    /// Creates a port that interrupts `vcpu` of this domain when it is notified.
    ///
    /// # Errors
    /// `ENOENT` for a vCPU that does not exist, `ENOSPC` if no port is free.
    pub fn bind_ipi(&self, vcpu: VcpuId) -> Result<Port, Errno> {
        let mut argument = abi::BindIpi { vcpu: vcpu.0, port: 0 };
        issue::<EvtchnBindIpi>(&self.hypercall, &mut argument)?;
        Ok(Port(argument.port))
    }

    /// Creates a port to which `remote_domain` may connect.
    ///
    /// # Errors
    /// `ENOSPC` if no port is free; `ESRCH` for a domain that does not exist.
    pub fn alloc_unbound(&self, remote_domain: u16) -> Result<Port, Errno> {
        let mut argument = abi::AllocUnbound { domain: DOMID_SELF, remote_domain, port: 0 };
        issue::<EvtchnAllocUnbound>(&self.hypercall, &mut argument)?;
        Ok(Port(argument.port))
    }

    /// Connects to `remote_port`, which `remote_domain` offers. The new port is pending at once.
    ///
    /// # Errors
    /// `EINVAL` if that port is not offered to this domain.
    pub fn bind_interdomain(&self, remote_domain: u16, remote_port: u32) -> Result<Port, Errno> {
        let mut argument =
            abi::BindInterdomain { remote_domain, remote_port, ..Default::default() };
        issue::<EvtchnBindInterdomain>(&self.hypercall, &mut argument)?;
        Ok(Port(argument.local_port))
    }

    /// Moves an interdomain port to another vCPU. Interrupts of one vCPU (timer, IPI) cannot move.
    ///
    /// # Errors
    /// `EINVAL` for a port that cannot move.
    pub fn bind_vcpu(&self, port: Port, vcpu: VcpuId) -> Result<(), Errno> {
        let mut argument = abi::BindVcpu { port: port.0, vcpu: vcpu.0 };
        issue::<EvtchnBindVcpu>(&self.hypercall, &mut argument).map(drop)
    }

    /// Notifies the other end.
    ///
    /// # Errors
    /// `EINVAL` for a port that is not connected.
    pub fn send(&self, port: Port) -> Result<(), Errno> {
        // Xen marks the port by a store of its own, and the instruction that calls it orders
        // nothing.
        fence(Ordering::Release);
        issue::<EvtchnSend>(&self.hypercall, &mut abi::PortArgument { port: port.0 }).map(drop)
    }

    /// Closes a port. It is masked first, and its number may be reused for another purpose.
    ///
    /// # Errors
    /// `EINVAL` for a port that is not open.
    pub fn close(&self, port: Port) -> Result<(), Errno> {
        self.mask(port);
        issue::<EvtchnClose>(&self.hypercall, &mut abi::PortArgument { port: port.0 }).map(drop)
    }

    /// Returns the other end of `port`.
    ///
    /// # Errors
    /// `EINVAL` for a number that is not a port.
    pub fn status(&self, port: Port) -> Result<(Binding, VcpuId), Errno> {
        let mut answer = abi::Status { domain: DOMID_SELF, port: port.0, ..abi::Status::default() };
        issue::<EvtchnStatus>(&self.hypercall, &mut answer)?;
        let domain = answer.detail[0] as u16;
        let binding = match answer.status {
            abi::status::CLOSED => Binding::Closed,
            abi::status::UNBOUND => Binding::Unbound { domain },
            abi::status::INTERDOMAIN => Binding::Interdomain { domain, port: answer.detail[1] },
            abi::status::PIRQ => Binding::Pirq(answer.detail[0]),
            abi::status::VIRQ => Binding::Virq(Virq(answer.detail[0])),
            abi::status::IPI => Binding::Ipi,
            other => Binding::Unsupported(other),
        };
        Ok((binding, VcpuId(answer.vcpu)))
    }

    /// Masks every port: the state to begin with, before the first upcall.
    pub fn mask_all(&self) {
        for word in &self.shared.evtchn_mask {
            word.store(u64::MAX, Ordering::SeqCst);
        }
    }

    /// Masks a port: it still becomes pending, and no upcall follows.
    pub fn mask(&self, port: Port) {
        if let Some((word, bit)) = port.place() {
            self.shared.evtchn_mask[word].fetch_or(bit, Ordering::SeqCst);
        }
    }

    /// Unmasks a port. If it is pending, its upcall follows, on the vCPU it is bound to.
    ///
    /// # Errors
    /// `EINVAL` for a port that is not open and was pending, or a number that is not a port.
    pub fn unmask(&self, port: Port) -> Result<(), Errno> {
        let (word, bit) = port.place().ok_or(Errno::EINVAL)?;
        self.shared.evtchn_mask[word].fetch_and(!bit, Ordering::SeqCst);
        if self.shared.evtchn_pending[word].load(Ordering::SeqCst) & bit == 0 {
            return Ok(());
        }
        // The event came while masked: only Xen can find its vCPU, and it acts on masked ports
        // only.
        self.shared.evtchn_mask[word].fetch_or(bit, Ordering::SeqCst);
        issue::<EvtchnUnmask>(&self.hypercall, &mut abi::PortArgument { port: port.0 }).map(drop)
    }

    /// Is the port masked? So is what is not a port.
    #[must_use]
    pub fn is_masked(&self, port: Port) -> bool {
        port.place().is_none_or(|(word, bit)| {
            self.shared.evtchn_mask[word].load(Ordering::SeqCst) & bit != 0
        })
    }

    /// Is the port pending?
    #[must_use]
    pub fn is_pending(&self, port: Port) -> bool {
        port.place().is_some_and(|(word, bit)| {
            self.shared.evtchn_pending[word].load(Ordering::SeqCst) & bit != 0
        })
    }

    /// Clears a port's pending bit and returns whether it was set: for ports that are polled, not
    /// handled.
    pub fn take_pending(&self, port: Port) -> bool {
        port.place().is_some_and(|(word, bit)| {
            self.shared.evtchn_pending[word].fetch_and(!bit, Ordering::SeqCst) & bit != 0
        })
    }

    /// The hypercall interface in use.
    pub const fn hypercall(&self) -> &H {
        &self.hypercall
    }
}

/// One vCPU's receiving end.
///
/// All pending bits of a domain are in one bitmap, and the ports of two vCPUs may share a word.
/// Each vCPU therefore keeps a set of the ports that it [owns](Self::own) and leaves the others
/// alone.
///
/// Every method takes `&self`, and none locks, allocates or panics: a static of this type can serve
/// the interrupt and the rest of the guest at the same time.
#[derive(Debug)]
pub struct Upcall<'a> {
    shared: &'a SharedInfo,
    vcpu: &'a VcpuInfo,
    owned: [AtomicU64; 64],
}

impl<'a> Upcall<'a> {
    /// The receiving end of the vCPU whose information is `vcpu`: an entry of the shared page, or
    /// the place registered with [`register_vcpu_info`](crate::vcpu::register_vcpu_info).
    #[must_use]
    pub const fn new(shared: &'a SharedInfo, vcpu: &'a VcpuInfo) -> Self {
        Self { shared, vcpu, owned: [const { AtomicU64::new(0) }; 64] }
    }

    /// The receiving end of one of the first 32 vCPUs, with its information in the shared page.
    #[must_use]
    pub fn for_legacy_vcpu(shared: &'a SharedInfo, vcpu: VcpuId) -> Option<Self> {
        Some(Self::new(shared, shared.vcpu_info.get(vcpu.0 as usize)?))
    }

    /// Adds a port to those that this vCPU handles. Do so before unmasking it: an event on a port
    /// without an owner stays pending and is not handled.
    pub fn own(&self, port: Port) {
        if let Some((word, bit)) = port.place() {
            self.owned[word].fetch_or(bit, Ordering::Release);
        }
    }

    /// Removes a port from those this vCPU handles.
    pub fn disown(&self, port: Port) {
        if let Some((word, bit)) = port.place() {
            self.owned[word].fetch_and(!bit, Ordering::Release);
        }
    }

    /// Does this vCPU handle `port`?
    #[must_use]
    pub fn owns(&self, port: Port) -> bool {
        port.place().is_some_and(|(word, bit)| self.owned[word].load(Ordering::Acquire) & bit != 0)
    }

    /// Does an event wait for this vCPU?
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.vcpu.evtchn_upcall_pending.load(Ordering::Acquire) != 0
    }

    /// Calls `handler` for each pending, unmasked port that this vCPU owns, and returns how many.
    ///
    /// The order is the ABI's: the upcall flag is cleared, the selector is taken with an exchange,
    /// and each pending bit is cleared *before* its handler runs. An event that arrives in the
    /// meantime raises the flag again, and Xen makes another upcall after this one; so one pass is
    /// enough, and its length is bounded by the number of ports.
    pub fn demux(&self, mut handler: impl FnMut(Port)) -> u32 {
        self.vcpu.evtchn_upcall_pending.store(0, Ordering::SeqCst);
        let mut words = self.vcpu.evtchn_pending_sel.swap(0, Ordering::SeqCst);
        let mut handled = 0;
        while words != 0 {
            let word = words.trailing_zeros();
            words &= words - 1;
            handled += self.demux_word(word, &mut handler);
        }
        handled
    }

    fn demux_word(&self, word: u32, handler: &mut impl FnMut(Port)) -> u32 {
        let index = word as usize % 64;
        let pending = &self.shared.evtchn_pending[index];
        let mut ports = pending.load(Ordering::SeqCst)
            & !self.shared.evtchn_mask[index].load(Ordering::SeqCst)
            & self.owned[index].load(Ordering::Acquire);
        let mut handled = 0;
        while ports != 0 {
            let bit = ports.trailing_zeros();
            ports &= ports - 1;
            pending.fetch_and(!(1 << bit), Ordering::SeqCst);
            handler(Port(word * 64 + bit));
            handled += 1;
        }
        handled
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fake::FakeXen;
    use std::boxed::Box;
    use std::vec::Vec;

    const BOOT: VcpuId = VcpuId(0);
    const SECOND: VcpuId = VcpuId(1);

    type Events = EventChannels<&'static FakeXen>;

    fn machine() -> (&'static FakeXen, &'static SharedInfo, Events) {
        let xen: &FakeXen = Box::leak(Box::new(FakeXen::new()));
        xen.add_vcpu(SECOND);
        let shared = xen.map_shared_info();
        let events = EventChannels::new(xen, shared);
        events.mask_all();
        (xen, shared, events)
    }

    fn handled(upcall: &Upcall<'_>) -> Vec<Port> {
        let mut ports = Vec::new();
        upcall.demux(|port| ports.push(port));
        ports
    }

    /// Guards against losing an event that comes while its handler runs: the bit must be clear by
    /// then.
    #[test]
    fn the_bit_is_clear_before_its_handler_runs() {
        let (xen, shared, events) = machine();
        let upcall = Upcall::for_legacy_vcpu(shared, BOOT).unwrap();
        let port = events.bind_virq(Virq::TIMER, BOOT).unwrap();
        upcall.own(port);
        events.unmask(port).unwrap();
        xen.raise_virq(Virq::TIMER, BOOT);

        let mut runs = 0;
        let count = upcall.demux(|port| {
            assert!(!events.is_pending(port), "pending inside its own handler");
            assert!(!upcall.is_pending(), "the flag stands: Xen would make no further upcall");
            runs += 1;
            xen.raise_virq(Virq::TIMER, BOOT); // again, while handled
        });
        assert_eq!((count, runs), (1, 1));
        assert!(upcall.is_pending(), "the second event asks for another upcall");
        assert_eq!(handled(&upcall), [port]);
        assert_eq!(handled(&upcall), []);
    }

    /// Guards against a lost wake-up: the flag is cleared before the selector is taken, the
    /// selector before the bits are looked at.
    #[test]
    fn an_event_of_another_word_during_the_pass_asks_for_another_upcall() {
        let (_, shared, events) = machine();
        let upcall = Upcall::for_legacy_vcpu(shared, BOOT).unwrap();
        let ports: Vec<Port> = (0..130).map(|_| events.bind_ipi(BOOT).unwrap()).collect();
        for port in &ports {
            upcall.own(*port);
            events.unmask(*port).unwrap();
        }
        events.send(ports[100]).unwrap();
        let (first, last) = (ports[0], ports[129]);
        let mut seen = Vec::new();
        upcall.demux(|port| {
            seen.push(port);
            events.send(first).unwrap(); // a word before this one
            events.send(last).unwrap(); // and one after
        });
        assert_eq!(seen, [ports[100]]);
        assert!(upcall.is_pending());
        assert_eq!(handled(&upcall), [first, last]);
    }

    /// Guards against one vCPU taking another's timer tick where their ports share a word.
    // On aarch64 the shared page has one vCPU.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_vcpu_leaves_the_ports_of_others() {
        let (xen, shared, events) = machine();
        let boot = Upcall::for_legacy_vcpu(shared, BOOT).unwrap();
        let second = Upcall::for_legacy_vcpu(shared, SECOND).unwrap();
        let boot_timer = events.bind_virq(Virq::TIMER, BOOT).unwrap();
        let second_timer = events.bind_virq(Virq::TIMER, SECOND).unwrap();
        boot.own(boot_timer);
        second.own(second_timer);
        events.unmask(boot_timer).unwrap();
        events.unmask(second_timer).unwrap();
        xen.raise_virq(Virq::TIMER, BOOT);
        xen.raise_virq(Virq::TIMER, SECOND);
        assert_eq!(handled(&boot), [boot_timer]);
        assert!(events.is_pending(second_timer));
        assert_eq!(handled(&second), [second_timer]);
    }

    /// Guards against handling a masked port because a neighbour in its word is pending.
    #[test]
    fn a_masked_port_is_left_pending() {
        let (_, shared, events) = machine();
        let upcall = Upcall::for_legacy_vcpu(shared, BOOT).unwrap();
        let [open, masked] = [(); 2].map(|()| events.bind_ipi(BOOT).unwrap());
        upcall.own(open);
        upcall.own(masked);
        events.unmask(open).unwrap();
        events.send(masked).unwrap();
        events.send(open).unwrap();
        assert_eq!(handled(&upcall), [open]);
        assert!(events.is_pending(masked));
    }

    // On aarch64 the shared page has one vCPU.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_masked_event_is_delivered_at_unmask_on_its_own_vcpu() {
        let (_, shared, events) = machine();
        let second = Upcall::for_legacy_vcpu(shared, SECOND).unwrap();
        let port = events.bind_ipi(SECOND).unwrap();
        second.own(port);
        events.send(port).unwrap();
        assert!(!second.is_pending(), "masked");
        events.unmask(port).unwrap();
        assert!(second.is_pending());
        assert_eq!(handled(&second), [port]);
    }

    #[test]
    fn a_registered_vcpu_info_receives_the_events() {
        let (xen, shared, events) = machine();
        let place: &'static VcpuInfo = Box::leak(Box::default());
        let address = core::ptr::from_ref(place).expose_provenance() as u64;
        // SAFETY: identity-mapped under the fake.
        #[allow(unsafe_code)]
        unsafe { crate::vcpu::register_vcpu_info(&xen, SECOND, place, address) }.unwrap();
        let upcall = Upcall::new(shared, place);
        assert_eq!(handled(&upcall), [], "the move itself is no event");
        let port = events.bind_virq(Virq::TIMER, SECOND).unwrap();
        upcall.own(port);
        events.unmask(port).unwrap();
        xen.raise_virq(Virq::TIMER, SECOND);
        assert_eq!(handled(&upcall), [port]);
    }

    #[test]
    fn the_timer_binds_once_per_vcpu() {
        let (_, _, events) = machine();
        let port = events.bind_virq(Virq::TIMER, BOOT).unwrap();
        assert_eq!(events.bind_virq(Virq::TIMER, BOOT), Err(Errno::EEXIST));
        assert_eq!(events.bind_virq(Virq::TIMER, VcpuId(9)), Err(Errno::ENOENT));
        assert_eq!(events.status(port), Ok((Binding::Virq(Virq::TIMER), BOOT)));
        events.close(port).unwrap();
        assert_eq!(events.status(port), Ok((Binding::Closed, BOOT)));
    }

    #[test]
    fn an_interdomain_port_reaches_its_backend() {
        let (xen, _, events) = machine();
        let port = events.alloc_unbound(3).unwrap();
        assert_eq!(events.status(port).unwrap().0, Binding::Unbound { domain: 3 });
        assert_eq!(xen.bind(port, 4), Err(Errno::EINVAL), "offered to another domain");
        xen.bind(port, 3).unwrap();
        xen.attach(port, move |xen| xen.raise(port));
        events.send(port).unwrap();
        assert!(events.take_pending(port));
        assert!(!events.take_pending(port));
    }

    /// Guards against an index past the bitmaps.
    #[test]
    fn ports_beyond_the_abi_do_nothing() {
        let (_, shared, events) = machine();
        let upcall = Upcall::for_legacy_vcpu(shared, BOOT).unwrap();
        let port = Port(4096);
        upcall.own(port);
        events.mask(port);
        assert!(!upcall.owns(port) && !events.is_pending(port) && !events.take_pending(port));
        assert_eq!(events.unmask(port), Err(Errno::EINVAL));
        assert!(Upcall::for_legacy_vcpu(shared, VcpuId(32)).is_none());
    }

    /// The timer upcall as the sampler uses it: handler re-arms the single shot, through shared
    /// references.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_timer_handler_can_arm_the_next_shot() {
        use crate::timer::set_singleshot;
        let (xen, shared, events) = machine();
        let upcall = Upcall::for_legacy_vcpu(shared, BOOT).unwrap();
        let clock = crate::clock::Clock::new(shared, BOOT).unwrap();
        let port = events.bind_virq(Virq::TIMER, BOOT).unwrap();
        upcall.own(port);
        events.unmask(port).unwrap();
        set_singleshot(xen, 1_000).unwrap();
        let ticks = core::cell::RefCell::new(Vec::new());
        for _ in 0..3 {
            xen.advance(1_000);
            upcall.demux(|_| {
                let now = clock.now_ns();
                ticks.borrow_mut().push(now);
                set_singleshot(xen, now + 1_000).unwrap();
            });
        }
        assert_eq!(*ticks.borrow(), [1_000, 2_000, 3_000]);
    }
}
