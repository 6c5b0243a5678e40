//! Waiting for something to become so.

use std::thread;
use std::time::{Duration, Instant};

/// Time enough for what takes some seconds, for a program that gets a twentieth of a processor.
pub(crate) const SOON: Duration = Duration::from_secs(600);

/// Looks until there is something to be seen.
pub(crate) fn wait_until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + SOON;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < end, "not within {SOON:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
