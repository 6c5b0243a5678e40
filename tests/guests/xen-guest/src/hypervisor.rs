//! The connection to Xen: hypercalls and the shared information page.

#![allow(unsafe_code, reason = "pages are given to Xen")]

use core::sync::atomic::{AtomicBool, Ordering};

use xen_sys_lite::abi::xen::SharedInfo;
use xen_sys_lite::events::EventChannels;
use xen_sys_lite::memory::SharedInfoPage;
use xen_sys_lite::{Errno, PageMemory, SharedPage, runstate, version};

use crate::hypercalls::CountedCalls;
use crate::processor;

static SHARED_INFO: PageMemory = PageMemory::new();
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Makes hypercalls possible, maps the shared page, masks all events and has Xen deliver upcalls.
///
/// Called once at boot, and again after a restore, when Xen does not know the old domain's pages.
pub(crate) fn connect() -> Result<(u16, u16), Errno> {
    processor::install_calls()?;
    INSTALLED.store(true, Ordering::Release);
    // SAFETY: memory is mapped one to one, and the page is read through `shared_info` only.
    let page = unsafe { SharedPage::identity(SHARED_INFO.base()) };
    SharedInfoPage::map(&xen(), page)?;
    events().mask_all();
    processor::deliver_upcalls()?;
    // Without the flag, reads of another vCPU's runstate may be torn, but not those of the current
    // one.
    let _ = runstate::enable_update_flag(&xen());
    version::xen_version(&xen())
}

pub(crate) fn is_connected() -> bool {
    INSTALLED.load(Ordering::Acquire)
}

/// The hypercalls. Only after [`connect`].
pub(crate) const fn xen() -> CountedCalls {
    CountedCalls(processor::calls())
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
