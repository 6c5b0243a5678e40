//! The connection to Xen: the hypercall page and the shared information page.

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
/// Called once at boot, and again after a restore, when Xen does not know the old domain's pages.
pub(crate) fn connect() -> Result<(u16, u16), Errno> {
    let page = hypercalls();
    // SAFETY: all memory is mapped one to one and executable, including the text; the page has no other use.
    unsafe { HypercallPage::install(page, page.addr().get() as u64) }.map_err(|_| Errno::ENODEV)?;
    INSTALLED.store(true, Ordering::Release);
    // SAFETY: memory is mapped one to one, and the page is read through `shared_info` only.
    let page = unsafe { SharedPage::identity(SHARED_INFO.base()) };
    SharedInfoPage::map(&xen(), page)?;
    events().mask_all();
    hvm::set_callback_vector(&xen(), UPCALL_VECTOR)?;
    // Without the flag, reads of another vCPU's runstate may be torn, but not those of the current one.
    let _ = runstate::enable_update_flag(&xen());
    version::xen_version(&xen())
}

pub(crate) fn is_connected() -> bool {
    INSTALLED.load(Ordering::Acquire)
}

/// The hypercalls. Only after [`connect`].
pub(crate) const fn xen() -> CountedCalls {
    // SAFETY: the page is always executable, and `connect` has filled it before.
    CountedCalls(unsafe { HypercallPage::from_installed(hypercalls()) })
}

const fn hypercalls() -> NonNull<u8> {
    // SAFETY: the address of a symbol is not null.
    unsafe { NonNull::new_unchecked((&raw const hypercall_page).cast_mut()) }
}

/// The shared information; all zeros before [`connect`].
pub(crate) const fn shared_info() -> &'static SharedInfo {
    // SAFETY: a separate page that is never freed; every field is an atomic, and zeros are valid.
    unsafe { SHARED_INFO.base().cast().as_ref() }
}

/// The domain's event channels.
pub(crate) const fn events() -> EventChannels<CountedCalls> {
    EventChannels::new(xen(), shared_info())
}
