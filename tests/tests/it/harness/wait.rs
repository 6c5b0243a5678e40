//! Waiting for something to become so.

use std::thread;
use std::time::{Duration, Instant};

/// Time enough for what takes some seconds, for a program that gets a twentieth of a processor.
pub(crate) const SOON: Duration = Duration::from_secs(600);

/// Looks until there is something to be seen.
pub(crate) fn wait_until<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    wait_within(SOON, what, look)
}

/// The same where it takes longer.
pub(crate) fn wait_within<T>(most: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + most;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < end, "not within {most:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
