//! Memory that lives as long as the guest.
#![allow(unsafe_code, reason = "statics are given out once, as mutable")]

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use xen_sys_lite::{PageMemory, SharedPage};

/// A static value that is given out once.
pub(crate) struct Once<T> {
    value: UnsafeCell<T>,
    is_taken: AtomicBool,
}

// SAFETY: the only reference to the value is given to one caller.
unsafe impl<T: Send> Sync for Once<T> {}

impl<T> Once<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { value: UnsafeCell::new(value), is_taken: AtomicBool::new(false) }
    }

    /// The value; `None` if it was taken before.
    #[allow(clippy::mut_from_ref, reason = "the flag admits one caller")]
    pub(crate) fn take(&'static self) -> Option<&'static mut T> {
        let is_first = !self.is_taken.swap(true, Ordering::AcqRel);
        // SAFETY: the first caller has the only reference.
        is_first.then(|| unsafe { &mut *self.value.get() })
    }
}

impl<T> Once<MaybeUninit<T>> {
    /// Room for a value.
    pub(crate) const fn empty() -> Self {
        Self::new(MaybeUninit::uninit())
    }
}

/// Room for a value that is replaced now and then, and for its successor.
pub(crate) struct Replaced<T> {
    places: [UnsafeCell<Option<T>>; 2],
    count: AtomicUsize,
}

// SAFETY: `replace` has one caller at a time.
unsafe impl<T: Send + Sync> Sync for Replaced<T> {}

impl<T> Replaced<T> {
    pub(crate) const fn empty() -> Self {
        Self { places: [const { UnsafeCell::new(None) }; 2], count: AtomicUsize::new(0) }
    }

    /// Has `publish` use a value from now on, and drops the former one. After an error that one
    /// stays in use, and the new one is dropped.
    ///
    /// # Safety
    /// There is one call at a time. Nobody uses the former value after a successful call, nor the
    /// new one after an error.
    pub(crate) unsafe fn replace<R, E>(
        &'static self,
        value: T,
        publish: impl FnOnce(&'static T) -> Result<R, E>,
    ) -> Result<R, E> {
        let count = self.count.load(Ordering::Relaxed) + 1;
        let place = self.places[count % 2].get();
        // SAFETY: the caller's contract: the other place has the value in use.
        let result = publish(unsafe { &mut *place }.insert(value));
        let unused = match result {
            Ok(_) => {
                self.count.store(count, Ordering::Relaxed);
                self.places[(count + 1) % 2].get()
            }
            Err(_) => place,
        };
        // SAFETY: the caller's contract: nobody uses this one.
        unsafe { *unused = None };
        result
    }
}

// Words in the image: without a global offset table, code cannot refer to addresses of other
// objects.
#[cfg(unikprof_archive)]
core::arch::global_asm!(
    ".pushsection .data.rel.ro.unikprof_dropin, \"aw\", @progbits",
    ".balign 8",
    "unikprof_dropin_memory_bounds:",
    ".quad unikprof_dropin_memory, unikprof_dropin_memory_end",
    ".popsection",
);

/// The memory for samples, caller table and ring, in this order. A member of its own in the
/// archive, so that the size is chosen by `build-archive --memory`, or by a guest that defines both
/// symbols.
pub(crate) fn agent_memory() -> &'static mut [MaybeUninit<u8>] {
    #[cfg(unikprof_archive)]
    {
        let bounds = crate::machine::address_of!("unikprof_dropin_memory_bounds") as usize;
        let bounds = core::ptr::with_exposed_provenance::<[usize; 2]>(bounds);
        // SAFETY: the words above, which are never written.
        let [start, end] = unsafe { bounds.read() };
        let start = core::ptr::with_exposed_provenance_mut(start);
        // SAFETY: the symbols enclose memory for this purpose, and `start` runs once.
        unsafe { core::slice::from_raw_parts_mut(start, end - start.addr()) }
    }
    #[cfg(not(unikprof_archive))]
    {
        static MEMORY: Once<[MaybeUninit<u8>; 1 << 20]> =
            Once::new([MaybeUninit::uninit(); 1 << 20]);
        MEMORY.take().map_or(&mut [], |memory| memory)
    }
}

/// Pages to share with Xen and other domains, handed out one by one.
pub(crate) struct Pages(core::slice::Iter<'static, PageMemory>);

impl Pages {
    /// # Safety
    /// The guest's memory is mapped one to one where `pages` lies, and nothing else uses them.
    pub(crate) unsafe fn new(pages: &'static [PageMemory]) -> Self {
        Self(pages.iter())
    }

    pub(crate) fn next(&mut self) -> Option<SharedPage> {
        // SAFETY: the contract of `new`.
        Some(unsafe { SharedPage::identity(self.0.next()?.base()) })
    }
}
