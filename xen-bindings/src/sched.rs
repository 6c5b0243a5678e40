//! Giving up the CPU, waiting, and the end of the domain.

use crate::abi::sched::{self as abi, shutdown};
use crate::errno::Errno;
use crate::events::Port;
use crate::hypercall::Hypercall;
use crate::hypercall::operations::{self, SchedBlock, SchedShutdown, SchedYield, issue};

/// Why a domain ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShutdownReason {
    /// It has done its work.
    PowerOff,
    /// It wants to start again.
    Reboot,
    /// It has failed.
    Crash,
}

/// The outcome of a [`suspend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// In a new domain, restored or migrated: event channels, grants, registered areas, the shared
    /// page and the base of the clock are to be set up again.
    InNewDomain,
    /// In the same domain: the suspend was cancelled, or was a checkpoint. Nothing has changed.
    InSameDomain,
}

/// Gives up the physical CPU for a moment.
///
/// # Errors
/// None is known; the hypercall's error is passed on.
pub fn yield_now(hypercall: &impl Hypercall) -> Result<(), Errno> {
    issue::<SchedYield>(hypercall, &mut ()).map(drop)
}

/// Sleeps until an event is to be delivered to this vCPU.
///
/// Xen looks for pending events once more after marking the vCPU blocked, so none is slept through.
/// A PVH guest may as well use `sti; hlt`.
///
/// # Errors
/// None is known; the hypercall's error is passed on.
pub fn block(hypercall: &impl Hypercall) -> Result<(), Errno> {
    issue::<SchedBlock>(hypercall, &mut ()).map(drop)
}

/// Sleeps until one of `ports` is pending, or system time reaches `deadline_ns`.
///
/// The ports may be masked, and stay pending: clear them with
/// [`take_pending`](crate::events::EventChannels::take_pending) before handling their events. The
/// sleep also ends when an interrupt is to be delivered.
///
/// # Errors
/// `EINVAL` for more than 128 ports or an invalid port.
pub fn poll(
    hypercall: &impl Hypercall,
    ports: &[Port],
    deadline_ns: Option<u64>,
) -> Result<(), Errno> {
    // Zero means no deadline to Xen; a deadline of zero has passed, as one of 1 ns has.
    operations::poll(hypercall, ports, deadline_ns.map_or(0, |deadline| deadline.max(1)))
}

/// Ends the domain. Returns only if Xen refused.
///
/// # Errors
/// The reason for the refusal.
pub fn shutdown(hypercall: &impl Hypercall, reason: ShutdownReason) -> Errno {
    let reason = match reason {
        ShutdownReason::PowerOff => shutdown::POWEROFF,
        ShutdownReason::Reboot => shutdown::REBOOT,
        ShutdownReason::Crash => shutdown::CRASH,
    };
    match issue::<SchedShutdown>(hypercall, &mut abi::Shutdown { reason }) {
        Ok(_) => Errno::EAGAIN,
        Err(errno) => errno,
    }
}

/// Suspends the domain for a save or migration, and returns when it runs again.
///
/// Before: devices closed or ready to reconnect, the other vCPUs stopped, interrupts off. The tools
/// ask for it by writing `suspend` to `control/shutdown` in xenstore; the guest answers by clearing
/// that node.
///
/// # Errors
/// The hypercall's.
pub fn suspend(hypercall: &impl Hypercall) -> Result<Woken, Errno> {
    let mut argument = abi::Shutdown { reason: shutdown::SUSPEND };
    match issue::<SchedShutdown>(hypercall, &mut argument)? {
        0 => Ok(Woken::InNewDomain),
        _ => Ok(Woken::InSameDomain),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::events::EventChannels;
    use crate::fake::FakeXen;
    use crate::vcpu::VcpuId;

    /// Guards against setting up again what still stands, and against using what is gone.
    #[test]
    fn a_suspend_distinguishes_a_new_domain_from_the_same() {
        let xen = FakeXen::new();
        let port = xen.connected_port(0);
        xen.cancel_suspend();
        assert_eq!(suspend(&xen), Ok(Woken::InSameDomain));
        assert!(xen.is_open(port));
        assert_eq!(suspend(&xen), Ok(Woken::InNewDomain));
        assert!(!xen.is_open(port));
    }

    #[test]
    fn a_shutdown_gives_its_reason() {
        let xen = FakeXen::new();
        for (reason, code) in [
            (ShutdownReason::PowerOff, shutdown::POWEROFF),
            (ShutdownReason::Reboot, shutdown::REBOOT),
            (ShutdownReason::Crash, shutdown::CRASH),
        ] {
            shutdown(&xen, reason);
            assert_eq!(xen.shutdown_reason(), Some(code));
        }
    }

    #[test]
    fn a_poll_ends_with_its_port_or_its_deadline() {
        let xen = FakeXen::new();
        let events = EventChannels::new(&xen, xen.map_shared_info());
        events.mask_all();
        let port = events.bind_ipi(VcpuId(0)).unwrap();
        poll(&xen, &[port], Some(500)).unwrap();
        assert_eq!(xen.now_ns(), 500);
        events.send(port).unwrap();
        poll(&xen, &[port], Some(1_000)).unwrap();
        assert_eq!(xen.now_ns(), 500, "pending already");
        assert_eq!(poll(&xen, &[port; 129], None), Err(Errno::EINVAL));
    }

    // On aarch64 the timer is not a matter of hypercalls.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_blocked_vcpu_wakes_at_its_deadline() {
        let xen = FakeXen::new();
        crate::timer::set_singleshot(&xen, 9_000).unwrap();
        block(&xen).unwrap();
        assert_eq!(xen.now_ns(), 9_000);
        yield_now(&xen).unwrap();
        assert_eq!(xen.now_ns(), 9_000);
    }
}
