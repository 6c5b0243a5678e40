//! The rings of Xen's tools, used before the guest uses them, and left as they were.
#![allow(unsafe_code, reason = "the rings' pages are taken in charge")]

use xen_sys_lite::abi::xen::SharedInfo;
use xen_sys_lite::clock::Clock;
use xen_sys_lite::events::EventChannels;
use xen_sys_lite::hvm::ToolRing;
use xen_sys_lite::xenstore::Store;
use xen_sys_lite::{HypercallInstruction, PolledChannel, SharedPage};

pub(crate) type GuestStore = Store<PolledChannel<'static, HypercallInstruction>>;

/// Calls `work` with a ring's page and channel. `None` if the page is not mapped one to one. The port is masked
/// meanwhile.
///
/// # Safety
/// The guest does not use the ring during the call.
pub(crate) unsafe fn with_ring<T>(
    ring: ToolRing,
    shared: &'static SharedInfo,
    xen: HypercallInstruction,
    is_identity: impl Fn(u64) -> bool,
    work: impl FnOnce(SharedPage, PolledChannel<'static, HypercallInstruction>) -> T,
) -> Option<T> {
    if !is_identity(ring.frame.address()) {
        return None;
    }
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
