//! The exchange of states between the two ends of a split driver.

use core::fmt;

use crate::abi::xenbus as abi;
use crate::channel::Channel;
use crate::errno::Errno;
use crate::xenstore::{Path, Store, StoreError, Tree, WatchId};

/// State of one end of a split driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XenbusState {
    /// Being set up.
    Initialising,
    /// Waiting for the other end's details.
    InitWait,
    /// Its own details are there.
    Initialised,
    /// Connected.
    Connected,
    /// On the way to closed.
    Closing,
    /// Closed.
    Closed,
    /// Being reconfigured.
    Reconfiguring,
    /// Was reconfigured.
    Reconfigured,
    /// No state is to be read: the other end is not there.
    Absent,
    /// A state this crate does not know.
    Unsupported(u64),
}

impl XenbusState {
    /// The state that a number in xenstore stands for.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        match u32::try_from(number) {
            Ok(abi::INITIALISING) => Self::Initialising,
            Ok(abi::INIT_WAIT) => Self::InitWait,
            Ok(abi::INITIALISED) => Self::Initialised,
            Ok(abi::CONNECTED) => Self::Connected,
            Ok(abi::CLOSING) => Self::Closing,
            Ok(abi::CLOSED) => Self::Closed,
            Ok(abi::RECONFIGURING) => Self::Reconfiguring,
            Ok(abi::RECONFIGURED) => Self::Reconfigured,
            _ => Self::Unsupported(number),
        }
    }

    /// The number for xenstore; zero, the header's "unknown", for an absent end.
    #[must_use]
    pub fn number(self) -> u64 {
        let number = match self {
            Self::Initialising => abi::INITIALISING,
            Self::InitWait => abi::INIT_WAIT,
            Self::Initialised => abi::INITIALISED,
            Self::Connected => abi::CONNECTED,
            Self::Closing => abi::CLOSING,
            Self::Closed => abi::CLOSED,
            Self::Reconfiguring => abi::RECONFIGURING,
            Self::Reconfigured => abi::RECONFIGURED,
            Self::Absent => 0,
            Self::Unsupported(number) => return number,
        };
        u64::from(number)
    }
}

impl fmt::Display for XenbusState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported(number) => write!(f, "state {number}"),
            known => write!(f, "{known:?}"),
        }
    }
}

/// Reads the state of the end whose directory is `end`.
///
/// # Errors
/// See [`StoreError`]; an end that is not there is [`XenbusState::Absent`], no error.
pub fn state(tree: &mut impl Tree, end: &str) -> Result<XenbusState, StoreError> {
    let number = tree.read_number_or(Path::join(end, "state"), 0)?;
    Ok(if number == 0 { XenbusState::Absent } else { XenbusState::from_number(number) })
}

/// Writes the state of the end whose directory is `end`.
///
/// # Errors
/// See [`StoreError`].
pub fn set_state(tree: &mut impl Tree, end: &str, state: XenbusState) -> Result<(), StoreError> {
    tree.write_number(Path::join(end, "state"), state.number())
}

/// Waits until `done` accepts the state of `end`, or system time reaches `deadline_ns`; returns the
/// last observed state in both cases. Uses `watch` for this.
///
/// # Errors
/// See [`StoreError`].
pub fn wait_state<C: Channel>(
    store: &mut Store<C>,
    end: &str,
    watch: WatchId,
    deadline_ns: u64,
    done: impl Fn(XenbusState) -> bool,
) -> Result<XenbusState, StoreError> {
    let node = Path::join(end, "state");
    match store.watch(node, watch) {
        // Left over from a wait that failed.
        Ok(()) | Err(StoreError::Refused(Errno::EEXIST)) => {}
        Err(error) => return Err(error),
    }
    let result = loop {
        match state(store, end) {
            Ok(found) if !done(found) && store.channel().now_ns() < deadline_ns => {
                if let Err(error) = store.wait_fired(deadline_ns) {
                    break Err(error);
                }
            }
            other => break other,
        }
    };
    let ended = store.unwatch(node, watch);
    let found = result?;
    ended?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fake::FakeXen;
    use crate::fake::store::FakeStore;

    const WATCH: WatchId = WatchId::new(1).unwrap();
    const END: &str = "/local/domain/0/backend/vif/1/0";

    #[test]
    fn states_go_there_and_back_and_unknown_ones_survive() {
        for number in 1..=8 {
            let state = XenbusState::from_number(number);
            assert!(!matches!(state, XenbusState::Unsupported(_)), "{number}");
            assert_eq!(state.number(), number);
        }
        for number in [9, u64::from(u32::MAX) + 2] {
            assert_eq!(XenbusState::from_number(number), XenbusState::Unsupported(number));
        }
    }

    /// Guards against never waiting again after one wait that could not end its watch.
    #[test]
    fn a_watch_left_over_does_not_hinder() {
        let xen = FakeXen::new();
        let daemon = FakeStore::new(&xen);
        let mut store = daemon.connect(&xen);
        daemon.set("/local/domain/0/backend/vif/1/0/state", "2");
        store.watch(Path::join(END, "state"), WATCH).unwrap();
        let found = wait_state(&mut store, END, WATCH, 0, |_| true);
        assert_eq!(found, Ok(XenbusState::InitWait));
    }

    #[test]
    fn a_wait_ends_with_the_state_or_the_deadline() {
        let xen = FakeXen::new();
        let daemon = FakeStore::new(&xen);
        let mut store = daemon.connect(&xen);
        let deadline = xen.now_ns() + 1_000;
        let found =
            wait_state(&mut store, END, WATCH, deadline, |state| state == XenbusState::Connected);
        assert_eq!(found, Ok(XenbusState::Absent));
        assert_eq!(xen.now_ns(), deadline);
        daemon.set("/local/domain/0/backend/vif/1/0/state", "1");
        let mut looks = 0;
        daemon.hook(move |daemon, _| {
            looks += 1;
            if looks == 5 {
                daemon.set("/local/domain/0/backend/vif/1/0/state", "4");
            }
        });
        let found =
            wait_state(&mut store, END, WATCH, u64::MAX, |state| state == XenbusState::Connected);
        assert_eq!(found, Ok(XenbusState::Connected));
    }
}
