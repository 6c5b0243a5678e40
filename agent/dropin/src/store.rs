//! The rings of Xen's tools, used before the guest uses them, and left as they were.
#![allow(unsafe_code, reason = "the rings' pages are taken in charge")]

use core::sync::atomic::Ordering;

use xen_sys_lite::abi::xen::SharedInfo;
use xen_sys_lite::clock::Clock;
use xen_sys_lite::events::{EventChannels, Port};
use xen_sys_lite::hvm::ToolRing;
use xen_sys_lite::xenstore::Store;
use xen_sys_lite::{HypercallPage, PolledChannel, SharedPage};

pub(crate) type GuestStore = Store<PolledChannel<'static, HypercallPage>>;

/// Calls `work` with a ring's page and channel. `None` if the page is not mapped one to one. The port is masked
/// meanwhile.
///
/// # Safety
/// The guest does not use the ring during the call.
pub(crate) unsafe fn with_ring<T>(
    ring: ToolRing,
    shared: &'static SharedInfo,
    xen: HypercallPage,
    is_identity: impl Fn(u64) -> bool,
    work: impl FnOnce(SharedPage, PolledChannel<'static, HypercallPage>) -> T,
) -> Option<T> {
    if !is_identity(ring.frame.address()) {
        return None;
    }
    // SAFETY: mapped one to one, made by the tools for this purpose, and not used by the guest now.
    let page = unsafe { SharedPage::identity_frame(ring.frame) }?;
    let was_unmasked = !is_masked(shared, ring.port);
    let events = EventChannels::new(xen, shared);
    let clock = Clock::new(shared, 0)?;
    let result = work(page, PolledChannel::new(events, clock, ring.port));
    if was_unmasked {
        // Fails only for a port that does not exist.
        let _ = EventChannels::new(xen, shared).unmask(ring.port);
    }
    Some(result)
}

fn is_masked(shared: &SharedInfo, port: Port) -> bool {
    let word = shared.evtchn_mask.get(port.0 as usize / 64);
    word.is_none_or(|word| word.load(Ordering::SeqCst) >> (port.0 % 64) & 1 != 0)
}
