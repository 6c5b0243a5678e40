//! The one agent of an image, and who may be inside it.
//!
//! Upcalls enter through a [`Gate`] at any moment, several at a time. Every other call claims the agent: one
//! at a time, and any other that comes meanwhile returns `UNIKPROF_E_BUSY`. Nothing here waits, and
//! `unikprof_stop` takes the memory away only while no call is inside.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use unikprof_agent::{Agent, Service, SessionId};

use super::access::Keys;
use super::guest::Guest;
use crate::abi::UNIKPROF_SESSIONS;
use crate::gate::{Gate, NotClosed};
use crate::network::Network;
use crate::status::{
    Misuse, UNIKPROF_E_BUSY, UNIKPROF_E_NOT_STARTED, UNIKPROF_E_STARTED, UNIKPROF_OK,
};

/// What lies at the front of the memory that C gave.
pub(super) struct State {
    pub(super) agent: Agent<'static, Guest>,
    pub(super) served: UnsafeCell<Served>,
    /// Whose keys are good; `None`: everybody is served. What is served refers to them.
    pub(super) keys: Option<Keys>,
    /// Of the configuration.
    pub(super) cpu_share_permille: u32,
}

/// How many connections there can be: for a moment also those that have made room for others, and were not
/// closed yet.
pub(super) const CONNECTIONS: usize = 2 * UNIKPROF_SESSIONS as usize;

/// What a claimed agent works on.
pub(super) struct Served {
    pub(super) service: Service<'static, 'static, Guest>,
    /// Where the guest hands frames over.
    pub(super) network: Option<Network>,
    pub(super) connections: [Option<Connection>; CONNECTIONS],
    /// How many connections were opened: so that an id is not used twice in a row.
    pub(super) opened: u32,
    /// Clients may have come.
    pub(super) begun: bool,
    /// A recording has begun before them.
    pub(super) records: bool,
}

/// One client.
#[derive(Clone, Copy)]
pub(super) struct Connection {
    pub(super) id: i32,
    pub(super) session: SessionId,
}

static STATE: Gate<State> = Gate::new();
/// 1: a call that is no upcall is under way.
static CLAIMED: AtomicU32 = AtomicU32::new(0);
/// What was wrong with the last call that has no other way to say so.
static MISUSE: AtomicI32 = AtomicI32::new(UNIKPROF_OK);

/// Keeps a code for who asks for it.
#[cold]
pub(super) fn note(misuse: Misuse) {
    MISUSE.store(misuse.0, Ordering::Relaxed);
}

/// The code that was kept, which is forgotten.
pub(super) fn take_noted() -> i32 {
    MISUSE.swap(UNIKPROF_OK, Ordering::Relaxed)
}

/// Enters as an upcall does.
#[inline]
pub(super) fn upcall<R>(work: impl FnOnce(&Agent<'static, Guest>) -> R) -> Result<R, Misuse> {
    // SAFETY: `publish` opened the gate to a whole state, and `withdraw` takes it away only when it has
    // closed the gate: while no call is inside.
    let entered = STATE.enter(|state| work(unsafe { &(*state).agent }));
    entered.ok_or(Misuse(UNIKPROF_E_NOT_STARTED))
}

/// The right to work on the agent outside of upcalls, until it is dropped.
pub(super) struct Claim(());

impl Claim {
    #[inline(never)]
    pub(super) fn take() -> Result<Self, Misuse> {
        CLAIMED
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .map(|_| Self(()))
            .map_err(|_| Misuse(UNIKPROF_E_BUSY))
    }

    /// What there is to work on.
    #[inline(never)]
    pub(super) fn served(&mut self) -> Result<&mut Served, Misuse> {
        let state = STATE.get();
        if state.is_null() {
            return Err(Misuse(UNIKPROF_E_NOT_STARTED));
        }
        // SAFETY: a whole state, which only who has the claim takes away; and who has the claim is alone
        // with `served`, for as long as the claim is borrowed.
        Ok(unsafe { &mut *(*state).served.get() })
    }

    /// Refuses where there is an agent.
    pub(super) fn expect_none(&self) -> Result<(), Misuse> {
        if STATE.get().is_null() {
            Ok(())
        } else {
            Err(Misuse(UNIKPROF_E_STARTED))
        }
    }

    /// Lets upcalls in.
    ///
    /// # Safety
    /// `state` leads to a whole state, which is nobody else's until [`withdraw`](Self::withdraw).
    pub(super) unsafe fn publish(&self, state: *mut State) {
        STATE.open(state);
    }

    /// Keeps upcalls out and returns the state, which is the caller's alone. Refuses while an upcall is
    /// inside; upcalls then notice nothing.
    pub(super) fn withdraw(&self) -> Result<*mut State, Misuse> {
        STATE.close().map_err(|error| {
            Misuse(match error {
                NotClosed::Closed => UNIKPROF_E_NOT_STARTED,
                NotClosed::Busy => UNIKPROF_E_BUSY,
            })
        })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        CLAIMED.store(0, Ordering::Release);
    }
}
