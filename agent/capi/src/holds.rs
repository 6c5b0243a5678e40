//! Whether there may be live samples: the word that a free reads before it enters the gate.
//!
//! A vCPU that samples an allocation notes it in the word; one that frees the last sample clears
//! the word, unless another vCPU has noted one since it looked. So the word is set from before an
//! allocator returns a sampled allocation until it is freed, on whatever vCPU. The loom tests run
//! this code.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};

/// The lower half is not 0 while there may be live samples; the upper half counts the notes.
#[repr(transparent)]
pub(crate) struct Holds(AtomicU64);

const SOME: u64 = 1;
const NOTE: u64 = 1 << u32::BITS;

impl Holds {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Forgets all samples. No other call may be under way.
    #[cfg(not(loom))]
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Notes that this vCPU may have sampled an allocation.
    pub(crate) fn note(&self) {
        let mut word = self.0.load(Ordering::Relaxed);
        // Release: whoever clears the word counts this sample.
        while let Err(now) = self.0.compare_exchange_weak(
            word,
            word.wrapping_add(NOTE) | SOME,
            Ordering::Release,
            Ordering::Relaxed,
        ) {
            word = now;
        }
    }

    /// Clears the word if there `are_none`, and no sample is noted meanwhile.
    pub(crate) fn clear_if(&self, are_none: impl FnOnce() -> bool) {
        let word = self.0.load(Ordering::Acquire);
        if are_none() {
            let clear = word & !(NOTE - 1);
            let _ = self.0.compare_exchange(word, clear, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// What the assembly of a free reads.
    #[cfg(all(test, loom))]
    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) as u32 != 0
    }
}

#[cfg(all(test, loom))]
mod holds_model {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32;
    use loom::thread;

    use super::*;

    struct Guest {
        holds: Holds,
        /// The number of live samples.
        used: AtomicU32,
    }

    impl Guest {
        fn sample(&self) {
            self.used.fetch_add(1, Ordering::Relaxed);
            self.holds.note();
        }

        fn free(&self) {
            assert!(self.holds.is_set(), "a free that does not look");
            self.used.fetch_sub(1, Ordering::Relaxed);
            self.holds.clear_if(|| self.used.load(Ordering::Relaxed) == 0);
        }
    }

    /// Each vCPU frees what it has sampled, while another one frees what seems to be the last
    /// sample.
    #[test]
    fn a_free_of_a_sample_looks_for_it() {
        loom::model(|| {
            let guest = Arc::new(Guest { holds: Holds::new(), used: AtomicU32::new(0) });
            guest.sample();
            let other = thread::spawn({
                let guest = guest.clone();
                move || {
                    guest.sample();
                    guest.free();
                }
            });
            guest.free();
            other.join().unwrap();
        });
    }
}
