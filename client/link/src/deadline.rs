//! Moments until which something is waited for.

use std::time::{Duration, Instant};

/// The moment after `wait`; a century from now if the system's clock has no moment so late.
pub fn after(wait: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
    let now = Instant::now();
    now.checked_add(wait).unwrap_or_else(|| now + CENTURY)
}
