//! What one vCPU uses at a time: the copies of the page tables, the window, the rings of Xen's
//! tools and the whole stack of polls.

use core::sync::atomic::{AtomicU32, Ordering};

use xen_sys_lite::clock::Clock;

use crate::found::{FIRST, found};
use crate::vcpus;

/// The vCPU that uses them, plus one; or 0.
static USER: AtomicU32 = AtomicU32::new(0);
/// It uses them no longer than that, mostly: it waits 10 s for the device's backend.
const LONGEST_USE_NS: u64 = 12_000_000_000;

/// Runs `work` on the first vCPU while it alone uses them; `false` if another does.
pub(crate) fn with(work: impl FnOnce()) -> bool {
    let is_free = claim(&USER, FIRST.0 + 1);
    if is_free {
        work();
        USER.store(0, Ordering::Release);
    }
    is_free
}

fn claim(user: &AtomicU32, id: u32) -> bool {
    user.compare_exchange(0, id, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Claims what this vCPU needs for a crash dump, or waits until another has done with it. After a
/// while, or if this vCPU itself had it when it crashed, there is nothing to wait for.
pub(crate) fn claim_for_crash() {
    let clock = found().and_then(|found| Clock::new(found.shared, FIRST));
    let now_ns = || clock.as_ref().map_or(u64::MAX, Clock::now_ns);
    let until_ns = now_ns().saturating_add(LONGEST_USE_NS);
    let id = vcpus::current().unwrap_or(FIRST.0) + 1;
    wait_for(&USER, id, || now_ns() >= until_ns);
}

fn wait_for(user: &AtomicU32, id: u32, is_over: impl Fn() -> bool) {
    while user.load(Ordering::Relaxed) != id && !claim(user, id) && !is_over() {
        core::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against a crash that uses the tables of a window that another vCPU has open.
    #[test]
    fn a_crash_waits_for_another_vcpu_and_not_for_ever() {
        let user = AtomicU32::new(1);
        let looks = core::cell::Cell::new(0);
        let is_over = |most, releases_at| {
            let (looks, user) = (&looks, &user);
            move || {
                looks.set(looks.get() + 1);
                if looks.get() == releases_at {
                    user.store(0, Ordering::Release);
                }
                looks.get() == most
            }
        };
        wait_for(&user, 2, is_over(5, 9));
        assert_eq!((looks.take(), user.load(Ordering::Relaxed)), (5, 1));
        wait_for(&user, 2, is_over(9, 3));
        assert_eq!((looks.take(), user.load(Ordering::Relaxed)), (3, 2));
        // This vCPU itself crashed while it had them.
        wait_for(&user, 2, is_over(5, 9));
        assert_eq!((looks.take(), user.load(Ordering::Relaxed)), (0, 2));
        assert!(!claim(&user, 1));
    }
}
