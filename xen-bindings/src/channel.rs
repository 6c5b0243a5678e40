//! Waiting for the other side of a ring, with a deadline.

use crate::clock::Clock;
use crate::errno::Errno;
use crate::events::{EventChannels, Port};
use crate::hypercall::Hypercall;
use crate::sched;

/// An event channel with a way to wait for it, as blocking calls need.
///
/// [`PolledChannel`] waits by hypercall. A guest with a scheduler of its own implements this to run
/// other threads meanwhile.
pub trait Channel {
    /// Notifies the other side.
    ///
    /// # Errors
    /// The hypercall's.
    fn notify(&self) -> Result<(), Errno>;

    /// System time, ns.
    fn now_ns(&self) -> u64;

    /// Forgets the notifications so far. Called before looking at what they may stand for, so that
    /// the next one is not missed.
    fn acknowledge(&self) {}

    /// Returns once the other side has notified this one since the last call or
    /// [`acknowledge`](Self::acknowledge), or at `deadline_ns`; may also return spuriously.
    fn wait_until(&self, deadline_ns: u64);
}

/// A channel whose port is polled with `SCHEDOP_poll`: needs no interrupt.
///
/// The port is masked. A guest that sleeps by `hlt` or [`sched::block`](crate::sched::block) and
/// wants to be woken by it unmasks it with [`EventChannels::unmask`] and calls
/// [`acknowledge`](Channel::acknowledge) (as
/// [`Store::take_fired`](crate::xenstore::Store::take_fired) does) when awake; no upcall owns the
/// port.
#[derive(Clone, Copy, Debug)]
pub struct PolledChannel<'a, H> {
    events: EventChannels<H>,
    clock: Clock<'a>,
    port: Port,
}

impl<'a, H: Hypercall> PolledChannel<'a, H> {
    /// A channel over `port`, which no [`Upcall`](crate::events::Upcall) owns.
    pub fn new(events: EventChannels<H>, clock: Clock<'a>, port: Port) -> Self {
        events.mask(port);
        Self { events, clock, port }
    }

    /// The port.
    #[must_use]
    pub const fn port(&self) -> Port {
        self.port
    }
}

impl<H: Hypercall> Channel for PolledChannel<'_, H> {
    fn notify(&self) -> Result<(), Errno> {
        self.events.send(self.port)
    }

    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    fn acknowledge(&self) {
        self.events.take_pending(self.port);
    }

    fn wait_until(&self, deadline_ns: u64) {
        // A notification that came before is taken; one that comes between ends the poll at once.
        if !self.events.take_pending(self.port)
            && sched::poll(self.events.hypercall(), &[self.port], Some(deadline_ns)).is_err()
        {
            core::hint::spin_loop();
        }
    }
}
