//! The roads to Xen: the hypercall page and the shared information page.

#![allow(unsafe_code, reason = "pages are given to Xen")]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};

use xen_sys_lite::abi::xen::SharedInfo;
use xen_sys_lite::events::EventChannels;
use xen_sys_lite::memory::SharedInfoPage;
use xen_sys_lite::{Errno, HypercallPage, PageMemory, SharedPage, hvm, runstate, version};

use crate::hypercall_page::hypercall_page;
use crate::hypercalls::CountedCalls;
use crate::interrupts::UPCALL_VECTOR;

static SHARED_INFO: PageMemory = PageMemory::new();
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Installs the hypercall page, maps the shared page, masks all events and has Xen deliver upcalls.
///
/// Once at boot; again after a restore, when Xen knows nothing of the old domain's pages.
///
/// # Errors
///
/// What Xen refused.
pub(crate) fn connect() -> Result<(u16, u16), Errno> {
    let page = hypercalls();
    // SAFETY: memory is mapped one to one and executable, also the text; the page is used for nothing else.
    unsafe { HypercallPage::install(page, page.addr().get() as u64) }.map_err(|_| Errno::ENODEV)?;
    INSTALLED.store(true, Ordering::Release);
    // SAFETY: memory is mapped one to one, and the page is read through `shared_info` only.
    let page = unsafe { SharedPage::identity(SHARED_INFO.base()) };
    SharedInfoPage::map(&xen(), page)?;
    events().mask_all();
    hvm::set_callback_vector(&xen(), UPCALL_VECTOR)?;
    // Without the flag the runstate of another vCPU may be read torn, its own never.
    let _ = runstate::enable_update_flag(&xen());
    version::xen_version(&xen())
}

/// May hypercalls be made?
pub(crate) fn is_connected() -> bool {
    INSTALLED.load(Ordering::Acquire)
}

/// The hypercalls. Only after [`connect`].
pub(crate) const fn xen() -> CountedCalls {
    // SAFETY: the page is executable for ever; that it is filled is what `connect` comes first for.
    CountedCalls(unsafe { HypercallPage::from_installed(hypercalls()) })
}

const fn hypercalls() -> NonNull<u8> {
    // SAFETY: the address of a symbol is not null.
    unsafe { NonNull::new_unchecked((&raw const hypercall_page).cast_mut()) }
}

/// The shared information; all zeros before [`connect`].
pub(crate) const fn shared_info() -> &'static SharedInfo {
    // SAFETY: a page of its own that lives for ever; every field is an atomic, and zeros are valid.
    unsafe { SHARED_INFO.base().cast().as_ref() }
}

/// The domain's event channels.
pub(crate) const fn events() -> EventChannels<CountedCalls> {
    EventChannels::new(xen(), shared_info())
}
