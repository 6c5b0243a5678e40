//! How often the user asked to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::deadline;

/// How often the user asked to stop; clones share the count.
///
/// Once means: end the recording and keep what there is. Twice means: give up now.
#[derive(Debug, Clone)]
pub struct Interrupt {
    count: Arc<AtomicU32>,
    quits_after: u32,
}

impl Default for Interrupt {
    /// Nobody asked yet, and the second time gives up.
    fn default() -> Self {
        Interrupt { count: Arc::default(), quits_after: 2 }
    }
}

impl Interrupt {
    /// One that gives up the first time: for what cannot be ended early in good order.
    pub fn quitting_at_once() -> Interrupt {
        Interrupt { quits_after: 1, ..Interrupt::default() }
    }

    /// The same count, for what gives up the first time.
    pub fn quitting_at_first(&self) -> Interrupt {
        Interrupt { quits_after: 1, ..self.clone() }
    }

    /// Counts one request to stop; answers how many there were.
    pub fn raise(&self) -> u32 {
        self.count.fetch_add(1, Ordering::Relaxed).saturating_add(1)
    }

    /// Asks to stop, if nobody did.
    pub fn raise_once(&self) {
        let _ = self.count.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether the other one is a clone of this.
    pub fn is(&self, other: &Interrupt) -> bool {
        Arc::ptr_eq(&self.count, &other.count)
    }

    /// Whether to end in good order.
    pub fn stop(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= 1
    }

    /// Sleeps; answers whether nobody gave up meanwhile.
    pub(crate) fn sleep_unless_quit(&self, wait: Duration) -> bool {
        self.sleep_until(deadline::after(wait), Interrupt::quit)
    }

    /// Sleeps until then, or until `ended`; answers whether it slept to the end.
    pub fn sleep_until(&self, end: Instant, ended: impl Fn(&Interrupt) -> bool) -> bool {
        const SLICE: Duration = Duration::from_millis(50);
        loop {
            if ended(self) {
                return false;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            thread::sleep(left.min(SLICE));
        }
    }

    /// Whether to give up.
    pub fn quit(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= self.quits_after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_who_ask_once_do_not_give_up() {
        let interrupt = Interrupt::default();
        interrupt.raise_once();
        interrupt.clone().raise_once();
        assert!(interrupt.stop() && !interrupt.quit());
    }

    #[test]
    fn the_first_signal_stops_and_the_second_quits() {
        let interrupt = Interrupt::default();
        interrupt.clone().raise();
        assert!(interrupt.stop() && !interrupt.quit());
        interrupt.raise();
        assert!(interrupt.quit());
    }
}
