//! The rings of Xen's tools, used before the guest uses them, and left as they were.
#![allow(unsafe_code, reason = "the rings' pages are taken in charge")]

use xen_sys_lite::abi::xen::SharedInfo;
use xen_sys_lite::clock::Clock;
use xen_sys_lite::events::EventChannels;
use xen_sys_lite::hvm::ToolRing;
use xen_sys_lite::xenstore::Store;
use xen_sys_lite::{HypercallInstruction, PolledChannel, SharedPage};

use crate::machine::paging::Window;

pub(crate) type GuestStore = Store<PolledChannel<'static, HypercallInstruction>>;

/// Calls `work` with a ring's page and channel. `None` if the page cannot be mapped one to one. The
/// port is masked meanwhile.
///
/// # Safety
/// The guest does not use the ring during the call. Interrupts are off, and `work` uses memory of
/// the image and the shared information page only, which are mapped one to one.
pub(crate) unsafe fn with_ring<T>(
    ring: ToolRing,
    shared: &'static SharedInfo,
    xen: HypercallInstruction,
    is_identity: impl Fn(u64) -> bool,
    work: impl FnOnce(SharedPage, PolledChannel<'static, HypercallInstruction>) -> T,
) -> Option<T> {
    let address = ring.frame.address();
    // Many guests map their memory only, and the pages of Xen's tools lie above it.
    let _window = match is_identity(address) {
        true => None,
        // SAFETY: the contract; what is mapped one to one stays so. Calls are not nested.
        false => Some(unsafe { Window::open(&xen, address) }?),
    };
    // SAFETY: mapped one to one, made by the tools for this purpose, and not used by the guest now.
    let page = unsafe { SharedPage::identity_frame(ring.frame) }?;
    let events = EventChannels::new(xen, shared);
    let was_unmasked = !events.is_masked(ring.port);
    let clock = Clock::new(shared, 0)?;
    let result = work(page, PolledChannel::new(events, clock, ring.port));
    if was_unmasked {
        // Fails only for a port that does not exist.
        let _ = EventChannels::new(xen, shared).unmask(ring.port);
    }
    Some(result)
}
