//! IP over a network device: one interface, its sockets, and the time of its next poll.

use alloc::vec::Vec;
use core::fmt;

use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::Device;
use smoltcp::socket::dhcpv4;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr, Ipv4Address, Ipv4Cidr};

use crate::addressing::Addressing;
use crate::faults::Line;

/// The interface with its device and sockets.
///
/// A poll does not allocate: see [`served`](crate::served).
pub(crate) struct Network<D: Device> {
    device: D,
    interface: Interface,
    /// The sockets of all services.
    pub(crate) sockets: SocketSet<'static>,
    /// The IPv4 address, if it has changed.
    news: Option<Ipv4Cidr>,
    dhcp: Option<smoltcp::iface::SocketHandle>,
    /// The faults of the line, if requested.
    pub(crate) line: Option<Line>,
}

impl<D: Device> fmt::Debug for Network<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network")
            .field("addresses", &self.interface.ip_addrs())
            .finish_non_exhaustive()
    }
}

impl<D: Device> Network<D> {
    /// An interface over `device`. `seed` should differ from boot to boot.
    pub(crate) fn new(
        mut device: D,
        mac: [u8; 6],
        addressing: Addressing,
        seed: u64,
        now_ns: u64,
    ) -> Self {
        let mut config = Config::new(HardwareAddress::Ethernet(EthernetAddress(mac)));
        config.random_seed = seed;
        let interface = Interface::new(config, &mut device, instant(now_ns));
        let mut network = Self {
            device,
            interface,
            sockets: SocketSet::new(Vec::new()),
            news: None,
            dhcp: None,
            line: None,
        };
        match addressing {
            Addressing::Static { address, gateway } => network.set_ipv4(address, gateway),
            Addressing::Dhcp => {
                network.dhcp = Some(network.sockets.add(dhcpv4::Socket::new()));
            }
        }
        network
    }

    /// Moves packets between the device and the sockets; bounded by the size of the device's rings.
    pub(crate) fn poll(&mut self, now_ns: u64) {
        self.exchange(instant(now_ns));
        self.follow_dhcp();
    }

    fn exchange(&mut self, now: Instant) {
        if let Some(line) = &mut self.line {
            let mut device = line.before(&mut self.device);
            self.interface.poll(now, &mut device, &mut self.sockets);
            return;
        }
        self.interface.poll(now, &mut self.device, &mut self.sockets);
    }

    /// When to poll again without packets, in ns of system time; `None` for never.
    pub(crate) fn next_poll_ns(&mut self, now_ns: u64) -> Option<u64> {
        let delay = self.interface.poll_delay(instant(now_ns), &self.sockets)?;
        Some(now_ns.saturating_add(delay.total_micros().saturating_mul(1000)))
    }

    /// The IPv4 address, if it has changed since the last call: a poll may not print it.
    pub(crate) fn take_news(&mut self) -> Option<Ipv4Cidr> {
        self.news.take()
    }

    pub(crate) fn device(&mut self) -> &mut D {
        &mut self.device
    }

    fn set_ipv4(&mut self, address: Ipv4Cidr, gateway: Option<Ipv4Address>) {
        self.interface.update_ip_addrs(|addresses| {
            addresses.retain(|old| !matches!(old, IpCidr::Ipv4(_)));
            // The list has room for at least two.
            let _ = addresses.push(IpCidr::Ipv4(address));
        });
        if let Some(gateway) = gateway {
            // The table has room for at least two routes.
            let _ = self.interface.routes_mut().add_default_ipv4_route(gateway);
        }
        self.news = Some(address);
    }

    fn follow_dhcp(&mut self) {
        let Some(handle) = self.dhcp else { return };
        if let Some(dhcpv4::Event::Configured(lease)) =
            self.sockets.get_mut::<dhcpv4::Socket<'_>>(handle).poll()
        {
            let (address, router) = (lease.address, lease.router);
            self.set_ipv4(address, router);
        }
    }
}

/// The network stack's clock counts microseconds from the same origin.
fn instant(now_ns: u64) -> Instant {
    Instant::from_micros((now_ns / 1000).cast_signed())
}
