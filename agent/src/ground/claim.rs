//! A value to which one holder at a time has exclusive access, for any length of time.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

use super::sync::{AtomicU32, Ordering};

/// A value that can be claimed.
#[derive(Debug)]
pub(crate) struct Claimable<T> {
    is_claimed: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is accessed only through a `Claim`, and there is only one at a time.
unsafe impl<T: Send> Sync for Claimable<T> {}

/// Exclusive access to the value of a [`Claimable`]. Released on drop; the value stays as it is.
#[derive(Debug)]
pub(crate) struct Claim<'c, T>(&'c Claimable<T>);

impl<T> Claimable<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { is_claimed: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Claims the value; `None` if it is claimed already.
    pub(crate) fn claim(&self) -> Option<Claim<'_, T>> {
        let was_claimed = self.is_claimed.swap(1, Ordering::AcqRel);
        (was_claimed == 0).then_some(Claim(self))
    }
}

impl<T> Deref for Claim<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this is the only claim, and `&self` excludes writes.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Claim<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the only claim, and `&mut self` excludes all other access.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Claim<'_, T> {
    fn drop(&mut self) {
        self.0.is_claimed.store(0, Ordering::Release);
    }
}
