//! The guest's network services: polled by the main loop, and by the upcall if the loop is stuck.
//!
//! Therefore a poll may not allocate, write to the console or take another lock that the loop may
//! hold.

#![allow(unsafe_code, reason = "a reference is published to the upcall")]

use alloc::boxed::Box;
use core::sync::atomic::{AtomicPtr, Ordering};

use unikprof_agent::rescue::{PollCell, RescueStack};

#[cfg(feature = "accuracy")]
use crate::accuracy::OrderService;
#[cfg(feature = "accuracy")]
use crate::capture::CaptureService;
use crate::echo::Echo;
use crate::network::Network;
use crate::network_device::NetworkDevice;
#[cfg(feature = "agent")]
use crate::profiler::Profiler;
use crate::statistics_service::StatisticsService;
use crate::timer::Who;
use crate::vcpus::FIRST;
use crate::{interrupts, timer};

/// The size in bytes of the stack for polls of a stuck guest.
const RESCUE_STACK_SIZE: usize = 64 * 1024;

/// The network and the services on it.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) network: Network<NetworkDevice>,
    pub(crate) echo: Option<Echo>,
    pub(crate) statistics: Option<StatisticsService>,
    /// Receives orders for loads.
    #[cfg(feature = "accuracy")]
    pub(crate) orders: Option<OrderService>,
    /// Sends captured samples.
    #[cfg(feature = "accuracy")]
    pub(crate) captures: Option<CaptureService>,
    /// Serves the profiler.
    #[cfg(feature = "agent")]
    pub(crate) profiler: Option<Profiler>,
}

struct Published {
    cell: PollCell<Served>,
    stack: RescueStack<'static>,
}

/// The loop and upcalls of any vCPU may poll.
const _: () = {
    const fn can_be_shared<T: Sync>() {}
    can_be_shared::<Published>();
};

static PUBLISHED: AtomicPtr<Published> = AtomicPtr::new(core::ptr::null_mut());

impl Served {
    /// Moves packets and serves clients; bounded. Returns when to call it again without packets, on
    /// the guest's clock.
    pub(crate) fn poll(&mut self) -> Option<u64> {
        let network = &mut self.network;
        network.poll(timer::now_ns(FIRST));
        if let Some(echo) = &self.echo {
            echo.poll(&mut network.sockets);
        }
        if let Some(statistics) = &self.statistics {
            let device = network.device().statistics();
            statistics.poll(&mut network.sockets, device, rescues());
        }
        #[cfg(feature = "accuracy")]
        {
            if let Some(orders) = &mut self.orders {
                orders.poll(&mut network.sockets);
            }
            if let Some(captures) = &mut self.captures {
                captures.poll(&mut network.sockets);
            }
        }
        let deadlines = [
            #[cfg(feature = "agent")]
            self.profiler.as_mut().and_then(|profiler| profiler.poll(&mut network.sockets)),
            // The services' output is sent at once: the delay is then zero.
            network.next_poll_ns(timer::now_ns(FIRST)),
        ];
        deadlines.into_iter().flatten().min()
    }
}

/// Publishes `served` for [`poll`] and for the upcall's rescue.
pub(crate) fn publish(served: Served) {
    let stack = Box::leak(alloc::vec![0; RESCUE_STACK_SIZE].into_boxed_slice());
    let published = Box::leak(Box::new(Published {
        cell: PollCell::new(served, timer::now_ns(FIRST)),
        // SAFETY: twice the stack of the agent's own poll; the echo and the statistics need little.
        stack: unsafe { RescueStack::new(stack) },
    }));
    PUBLISHED.store(published, Ordering::Release);
}

fn published() -> Option<&'static Published> {
    // SAFETY: the pointer is null or comes from a box that is never freed.
    unsafe { PUBLISHED.load(Ordering::Acquire).as_ref() }
}

/// The main loop's poll: `poll` should call [`Served::poll`], and may wait and use the console
/// around it. Both return when to poll again without packets.
pub(crate) fn poll(poll: impl FnOnce(&mut Served) -> Option<u64>) -> Option<u64> {
    let published = published()?;
    let next_ns = published.cell.poll(timer::now_ns(FIRST), poll);
    watch(published);
    next_ns
}

/// The first vCPU's loop is about to sleep. Call it with interrupts off.
pub(crate) fn on_block() {
    if let Some(published) = published() {
        published.cell.on_block();
    }
}

/// The first vCPU's loop has woken. Call it with interrupts off.
pub(crate) fn on_wake() {
    if let Some(published) = published() {
        published.cell.on_wake(timer::now_ns(FIRST));
    }
}

/// An event has arrived that may be the network's. Called from upcalls.
pub(crate) fn notice() {
    if let Some(published) = published() {
        published.cell.notice();
    }
}

/// Polls if the main loop is overdue, and sets the timer that watches it. Call it at the end of an
/// upcall of the first vCPU; the caller arms the timer.
pub(crate) fn rescue() {
    if let Some(published) = published() {
        let now_ns = timer::now_ns(FIRST);
        published.cell.rescue(now_ns, &published.stack, Served::poll);
        set_watch(published);
    }
}

fn rescues() -> u64 {
    published().map_or(0, |published| published.cell.rescues())
}

/// Sets the timer for the case that the loop gets stuck before its next poll.
fn watch(published: &Published) {
    interrupts::disable();
    set_watch(published);
    timer::arm(FIRST);
    interrupts::enable();
}

fn set_watch(published: &Published) {
    let look_at_ns = published.cell.look_at_ns(timer::now_ns(FIRST));
    timer::set(FIRST, Who::Watch, look_at_ns);
}
