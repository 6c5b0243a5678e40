//! The guest's network device: netfront, with pages from the heap.

#![allow(unsafe_code, reason = "pages are given to the device, and the grant table is found again")]

use alloc::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use alloc::boxed::Box;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, Ordering};

use xen_sys_lite::SharedPage;
use xen_sys_lite::abi::PAGE_SIZE;
use xen_sys_lite::grant::GrantTable;
use xen_sys_lite::net::{NetError, NetPages, Netfront};

use crate::hypercalls::CountedCalls;
use crate::hypervisor::{events, xen};
use crate::store::GuestStore;
use crate::{println, upcall};

const GRANT_FRAMES: usize = 1;
const TX: usize = 64;
const RX: usize = 128;

pub(crate) type NetworkDevice = Netfront<'static, CountedCalls, GRANT_FRAMES, TX, RX>;

/// The domain's grants; never freed, because other domains use them.
pub(crate) type Grants = &'static GrantTable<GRANT_FRAMES>;

/// The grant table, once it is set up.
static GRANTS: AtomicPtr<GrantTable<GRANT_FRAMES>> = AtomicPtr::new(core::ptr::null_mut());

/// Sets up the grant table and connects the first device. Prints the reason and returns `None` if
/// that fails.
pub(crate) fn connect(store: &mut GuestStore) -> Option<NetworkDevice> {
    let grants: Grants = match GrantTable::map(&xen(), [new_page()]) {
        Ok(grants) => Box::leak(Box::new(grants)),
        Err(error) => {
            println!("xen-guest: no grant table: {error}");
            return None;
        }
    };
    GRANTS.store(core::ptr::from_ref(grants).cast_mut(), Ordering::Release);
    let mut device = Netfront::new(0, events(), grants, NetPages::new(new_page));
    match device.connect(store).and_then(|()| wake_on_frames(&device)) {
        Ok(()) => Some(device),
        Err(error) => {
            println!("xen-guest: no network: {error}");
            None
        }
    }
}

/// Maps the grant table again and connects the device, after a restore.
pub(crate) fn resume(device: &mut NetworkDevice, store: &mut GuestStore) -> Result<(), NetError> {
    // SAFETY: the pointer is null or comes from a box that is never freed.
    if let Some(grants) = unsafe { GRANTS.load(Ordering::Acquire).as_ref() } {
        grants.resume(&xen()).unwrap_or_else(|error| panic!("the grant table: {error}"));
    }
    device.resume(store)?;
    wake_on_frames(device)
}

/// Lets the device wake the main loop. Call it after each connection, which has its own port.
pub(crate) fn wake_on_frames(device: &NetworkDevice) -> Result<(), NetError> {
    device.port().map_or(Ok(()), |port| upcall::wake_on(port).map_err(NetError::Hypercall))
}

/// A page of zeros, never freed.
fn new_page() -> SharedPage {
    const LAYOUT: Layout = match Layout::from_size_align(PAGE_SIZE, PAGE_SIZE) {
        Ok(layout) => layout,
        Err(_) => panic!("a page is a power of two"),
    };
    // SAFETY: the size is not zero.
    let memory = NonNull::new(unsafe { alloc_zeroed(LAYOUT) });
    let base = memory.unwrap_or_else(|| handle_alloc_error(LAYOUT));
    // SAFETY: page-aligned, always mapped one to one, and not used by others.
    unsafe { SharedPage::identity(base) }
}
