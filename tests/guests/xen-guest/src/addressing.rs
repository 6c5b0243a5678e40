//! The guest's network addresses.

use alloc::string::String;

use smoltcp::wire::{Ipv4Address, Ipv4Cidr};
use xen_sys_lite::xenstore::{Path, StoreError, Tree};

use crate::command_line::CommandLine;
use crate::println;
use crate::store::GuestStore;

/// The address requested by the command line or xenstore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Addressing {
    /// `ip=10.0.2.50/24 gateway=10.0.2.2`, or xenstore's address for `ip=xenstore`.
    Static {
        /// Address and prefix length.
        address: Ipv4Cidr,
        /// The router, if there is one.
        gateway: Option<Ipv4Address>,
    },
    /// `ip=dhcp`.
    Dhcp,
}

impl Addressing {
    /// The requested address; `None` for no network.
    pub(crate) fn find(command_line: CommandLine, store: &mut GuestStore) -> Option<Self> {
        let address = match command_line.value("ip") {
            Some("dhcp") => return Some(Self::Dhcp),
            Some("xenstore") => from_xenstore(store).unwrap_or_else(|error| {
                println!("xen-guest: no address in xenstore: {error}");
                None
            }),
            _ => command_line.parsed("ip"),
        };
        Some(Self::Static { address: address?, gateway: command_line.parsed("gateway") })
    }
}

/// The address that the tenant wrote to `vm-data/ip`, as `10.0.2.50/24`; or the address of the
/// network device in the host's configuration (`vif=['ip=10.0.2.50']`), in a network of 24 bits.
fn from_xenstore(store: &mut GuestStore) -> Result<Option<Ipv4Cidr>, StoreError> {
    let mut buffer = [0; 256];
    if let Ok(text) = store.read_text("vm-data/ip", &mut buffer) {
        return Ok(text.trim().parse().ok());
    }
    let backend = String::from(store.read_text("device/vif/0/backend", &mut buffer)?);
    let text = store.read_text(Path::join(&backend, "ip"), &mut buffer)?;
    let address: Option<Ipv4Address> = text.trim().parse().ok();
    Ok(address.map(|address| Ipv4Cidr::new(address, 24)))
}
