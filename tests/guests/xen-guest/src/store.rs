//! Xenstore: the domain's identity, and the tools' requests.

#![allow(unsafe_code, reason = "the ring's page is taken in charge")]

use alloc::string::{String, ToString};
use core::fmt;

use xen_sys_lite::xenstore::{Store, StoreError, Tree, WatchId};
use xen_sys_lite::{Errno, SharedPage, hvm};

use crate::channel::EventChannel;
use crate::hypervisor::xen;

/// The guest's connection.
pub(crate) type GuestStore = Store<EventChannel>;

const SHUTDOWN: &str = "control/shutdown";
const SHUTDOWN_WATCH: WatchId = match WatchId::new(0) {
    Some(id) => id,
    None => panic!("zero is a watch's number"),
};

/// The domain's identity.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) name: String,
    pub(crate) uuid: String,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "domain {} {}", self.name, self.uuid)
    }
}

/// Connects to the ring that the Xen tools have made, and watches their requests. Called again
/// after a restore.
pub(crate) fn connect() -> Result<GuestStore, StoreError> {
    let ring = hvm::store_ring(&xen()).map_err(StoreError::Notify)?;
    // SAFETY: the Xen tools placed the page for this purpose, memory is mapped one to one, and this
    // store replaces any earlier one.
    let page = unsafe { SharedPage::identity_frame(ring.frame) };
    let page = page.ok_or(StoreError::Notify(Errno::ENODEV))?;
    let channel = EventChannel::open(ring.port).map_err(StoreError::Notify)?;
    let mut store = Store::new(page, channel);
    store.watch(SHUTDOWN, SHUTDOWN_WATCH)?;
    Ok(store)
}

/// Reads the domain's name and UUID.
pub(crate) fn identity(store: &mut GuestStore) -> Result<Identity, StoreError> {
    let mut buffer = [0; 256];
    let name = store.read_text("name", &mut buffer)?.to_string();
    // The node contains the path `/vm/UUID`.
    let vm = store.read_text("vm", &mut buffer)?;
    let uuid = vm.rsplit('/').next().unwrap_or(vm).to_string();
    Ok(Identity { name, uuid })
}

/// A request of the tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    /// Power off; also for a halt.
    PowerOff,
    /// Start again.
    Reboot,
    /// Suspend, for a save or a migration.
    Suspend,
}

/// The tools' request since the last call; it is removed from xenstore.
pub(crate) fn take_request(store: &mut GuestStore) -> Result<Option<Request>, StoreError> {
    if store.take_fired()?.is_empty() {
        return Ok(None);
    }
    let mut buffer = [0; 64];
    let request = match store.read(SHUTDOWN, &mut buffer) {
        Ok(b"poweroff" | b"halt") => Request::PowerOff,
        Ok(b"reboot") => Request::Reboot,
        Ok(b"suspend") => Request::Suspend,
        // A watch fires once at its registration, without a request.
        Ok(_) | Err(StoreError::Refused(Errno::ENOENT)) => return Ok(None),
        Err(error) => return Err(error),
    };
    store.write(SHUTDOWN, b"")?;
    Ok(Some(request))
}
