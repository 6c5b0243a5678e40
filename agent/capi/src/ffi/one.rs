//! The only agent of an image, and the synchronization of calls to it.
//!
//! Once started, the agent is there for ever, and upcalls use it at any time, several at once. Every
//! other call claims it: only one at a time, and any other that comes in the meantime returns
//! `UNIKPROF_E_BUSY`. Nothing here waits.

use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

use unikprof_agent::{Agent, Service, SessionId};

use super::access::Keys;
use super::guest::Guest;
use crate::abi::UNIKPROF_SESSIONS;
use crate::network::Network;
use crate::status::{
    Misuse, UNIKPROF_E_BUSY, UNIKPROF_E_NOT_STARTED, UNIKPROF_E_STARTED, UNIKPROF_OK,
};

/// The agent's state, at the front of the memory that C gave.
pub(super) struct State {
    pub(super) agent: Agent<'static, Guest>,
    pub(super) served: UnsafeCell<Served>,
    /// The valid keys; `None`: everybody is served. `served` refers to them.
    pub(super) keys: Option<Keys>,
    /// From the configuration.
    pub(super) cpu_share_permille: u32,
}

/// The maximum number of connections. Includes those whose sessions were given to other clients and
/// which the guest has not closed yet.
pub(super) const CONNECTIONS: usize = 2 * UNIKPROF_SESSIONS as usize;

/// The part of the state that calls with a claim use.
pub(super) struct Served {
    pub(super) service: Service<'static, 'static, Guest>,
    /// If the guest hands over frames.
    pub(super) network: Option<Network>,
    pub(super) connections: [Option<Connection>; CONNECTIONS],
    /// How many connections were opened. Part of each id, so that an id is not used twice in a row.
    pub(super) opened: u32,
    /// A client may have connected.
    pub(super) begun: bool,
    /// A recording has begun at boot.
    pub(super) records: bool,
}

/// One client.
#[derive(Clone, Copy)]
pub(super) struct Connection {
    pub(super) id: i32,
    pub(super) session: SessionId,
}

/// NULL until the agent has started.
static STATE: AtomicPtr<State> = AtomicPtr::new(ptr::null_mut());
/// 1 while a call that is not an upcall is in progress.
static CLAIMED: AtomicU32 = AtomicU32::new(0);
/// The error of the last call that returns a deadline.
static MISUSE: AtomicI32 = AtomicI32::new(UNIKPROF_OK);

/// Keeps an error for `unikprof_take_error`.
#[cold]
pub(super) fn note(misuse: Misuse) {
    MISUSE.store(misuse.0, Ordering::Relaxed);
}

/// Returns and clears the kept error.
pub(super) fn take_noted() -> i32 {
    MISUSE.swap(UNIKPROF_OK, Ordering::Relaxed)
}

/// The agent's state, if it has started.
#[inline]
fn state() -> Option<&'static State> {
    // SAFETY: NULL, or a complete state, published for ever.
    unsafe { STATE.load(Ordering::Acquire).as_ref() }
}

/// Enters like an upcall.
#[inline]
pub(super) fn upcall<R>(work: impl FnOnce(&Agent<'static, Guest>) -> R) -> Result<R, Misuse> {
    state().map(|state| work(&state.agent)).ok_or(Misuse(UNIKPROF_E_NOT_STARTED))
}

/// Exclusive access to the agent, except for upcalls. Released on drop.
pub(super) struct Claim(());

impl Claim {
    #[inline(never)]
    pub(super) fn take() -> Result<Self, Misuse> {
        CLAIMED
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .map(|_| Self(()))
            .map_err(|_| Misuse(UNIKPROF_E_BUSY))
    }

    /// The part of the state that the claim gives access to.
    #[inline(never)]
    pub(super) fn served(&mut self) -> Result<&mut Served, Misuse> {
        let state = state().ok_or(Misuse(UNIKPROF_E_NOT_STARTED))?;
        // SAFETY: the holder has exclusive access to `served` as long as it borrows the claim.
        Ok(unsafe { &mut *state.served.get() })
    }

    /// Returns an error if there is an agent.
    pub(super) fn expect_none(&self) -> Result<(), Misuse> {
        if state().is_none() { Ok(()) } else { Err(Misuse(UNIKPROF_E_STARTED)) }
    }

    /// Lets upcalls in.
    ///
    /// # Safety
    ///
    /// `state` points to a complete state, whose memory is the agent's for ever.
    pub(super) unsafe fn publish(&self, state: *mut State) {
        STATE.store(state, Ordering::Release);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        CLAIMED.store(0, Ordering::Release);
    }
}
