//! An IPv4 address from the network's DHCP server.

use smoltcp::iface::{Interface, SocketHandle, SocketSet};
use smoltcp::socket::dhcpv4::{Event, Socket};
use smoltcp::wire::IpCidr;

/// The client of the network's DHCP server.
#[derive(Debug)]
pub(super) struct Dhcp(SocketHandle);

impl Dhcp {
    pub(super) fn add_to(sockets: &mut SocketSet<'_>) -> Self {
        Self(sockets.add(Socket::new()))
    }

    /// Sets the interface's address to the leased one, or removes an expired one. Connections to a
    /// removed address end.
    pub(super) fn apply(&self, interface: &mut Interface, sockets: &mut SocketSet<'_>) {
        let lease = match sockets.get_mut::<Socket<'_>>(self.0).poll() {
            None => return,
            Some(Event::Configured(lease)) => Some((IpCidr::Ipv4(lease.address), lease.router)),
            Some(Event::Deconfigured) => None,
        };
        // smoltcp would panic for an address that is not unicast.
        let lease = lease.filter(|(address, _)| address.address().is_unicast());
        interface.update_ip_addrs(|addresses| {
            addresses.retain(|address| !matches!(address, IpCidr::Ipv4(_)));
            if let Some((address, _)) = lease {
                // `check` left room for it.
                let _ = addresses.push(address);
            }
        });
        let routes = interface.routes_mut();
        let _ = routes.remove_default_ipv4_route();
        if let Some(router) = lease.and_then(|(_, router)| router) {
            let _ = routes.add_default_ipv4_route(router);
        }
    }
}
