//! The guest's network addresses.

use alloc::string::String;

use smoltcp::wire::{Ipv4Address, Ipv4Cidr};
#[cfg(feature = "ipv6")]
use smoltcp::wire::{Ipv6Address, Ipv6Cidr};
use xen_sys_lite::xenstore::{Path, StoreError, Tree};

use crate::command_line::CommandLine;
use crate::println;
use crate::store::GuestStore;

/// The addresses requested by the command line or xenstore.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addressing {
    pub(crate) ipv4: Ipv4Addressing,
    /// `ip6=fd00::50/64`, `gateway6=fd00::1`: the address and the router.
    #[cfg(feature = "ipv6")]
    pub(crate) ipv6: Option<(Ipv6Cidr, Option<Ipv6Address>)>,
}

/// How the interface gets its IPv4 address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ipv4Addressing {
    None,
    /// `ip=10.0.2.50/24 gateway=10.0.2.2`, or xenstore's address for `ip=xenstore`.
    Static {
        /// Address and prefix length.
        address: Ipv4Cidr,
        /// The router, if there is one.
        gateway: Option<Ipv4Address>,
    },
    /// `ip=dhcp`.
    #[cfg(feature = "dhcp")]
    Dhcp,
}

impl Addressing {
    /// The requested addresses; `None` for no network.
    pub(crate) fn find(command_line: CommandLine, store: &mut GuestStore) -> Option<Self> {
        let ipv4 = Ipv4Addressing::find(command_line, store);
        #[cfg(feature = "ipv6")]
        let ipv6 = command_line
            .parsed("ip6")
            .map(|address| (address, command_line.parsed("gateway6")));
        #[cfg(feature = "ipv6")]
        let has_ipv6 = ipv6.is_some();
        #[cfg(not(feature = "ipv6"))]
        let has_ipv6 = false;
        (ipv4 != Ipv4Addressing::None || has_ipv6).then_some(Self {
            ipv4,
            #[cfg(feature = "ipv6")]
            ipv6,
        })
    }
}

impl Ipv4Addressing {
    fn find(command_line: CommandLine, store: &mut GuestStore) -> Self {
        let address = match command_line.value("ip") {
            #[cfg(feature = "dhcp")]
            Some("dhcp") => return Self::Dhcp,
            Some("xenstore") => from_xenstore(store).unwrap_or_else(|error| {
                println!("xen-guest: no address in xenstore: {error}");
                None
            }),
            _ => command_line.parsed("ip"),
        };
        address.map_or(Self::None, |address| Self::Static {
            address,
            gateway: command_line.parsed("gateway"),
        })
    }
}

/// The address that the tenant wrote to `vm-data/ip`, as `10.0.2.50/24`; or the address of the network device in the
/// host's configuration (`vif=['ip=10.0.2.50']`), in a network of 24 bits.
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
