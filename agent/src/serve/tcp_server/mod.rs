//! The agent's own TCP server, over any [`smoltcp::phy::Device`], without allocation.
//!
//! There are two ways to embed it:
//!
//! * [`TcpServer`] owns a whole network stack, for guests that have none: an address, sockets, and
//!   a device that nothing else uses.
//!
//! * [`TcpSockets`] adds the agent's sockets to the guest's own `SocketSet`, for guests that have a
//!   stack already. The guest continues to drive its `Interface`.
//!
//! Both serve [`SESSIONS`](crate::SESSIONS) clients at a time. One more gets the answer that the
//! agent is busy; the stack resets further connections. Keep-alives and a timeout of 15 s detect a
//! client that has vanished, and its socket listens again.

#[cfg(feature = "dhcp")]
mod dhcp;
mod sockets;

use core::fmt;

use smoltcp::config::IFACE_MAX_ADDR_COUNT;
use smoltcp::iface::{
    Config, Interface, PollIngressSingleResult, PollResult, SocketSet, SocketStorage,
};
use smoltcp::phy::{Device, Medium};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};

use crate::ground::platform::Platform;
use crate::serve::service::Service;

/// The version of smoltcp whose devices and sockets are used here.
pub use smoltcp;
pub use sockets::{SOCKETS, TcpBuffers, TcpSockets};

use sockets::earliest;

/// Packets received from the device before the sockets are processed.
const PACKETS: usize = 4;
/// Rounds of one poll: at most 64 packets received, and 16 sent for each socket.
const ROUNDS: usize = 16;
/// The number of sockets in the set of a [`TcpServer`]: the agent's, and that of DHCP.
pub const PLACES: usize = SOCKETS + if cfg!(feature = "dhcp") { 1 } else { 0 };
/// A device that does not accept a packet is tried again after 1 ms, in case it does not wake the
/// guest.
const DEVICE_RETRY_NS: u64 = 1_000_000;

/// The addresses of a [`TcpServer`], all unicast.
#[derive(Clone, Copy, Debug)]
pub struct TcpConfig<'a> {
    /// The port that clients connect to; not 0.
    pub port: u16,
    /// The device's hardware address; `HardwareAddress::Ip` for devices without Ethernet.
    pub hardware_address: HardwareAddress,
    /// The guest's addresses with their networks; IPv6 ones need the feature `ipv6`.
    pub addresses: &'a [IpCidr],
    /// The default gateways, at most one for IPv4 and one for IPv6.
    pub gateways: &'a [IpAddress],
}

/// Why a [`TcpServer`] cannot start.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TcpError {
    /// The port is 0.
    Port,
    /// The hardware address is not of the device's kind, or not unicast.
    HardwareAddress(HardwareAddress),
    /// An address or gateway is not unicast; or there is a second gateway of its kind, or one in
    /// addition to DHCP's.
    Address(IpAddress),
    /// There are no addresses, or more than this maximum.
    Addresses(usize),
}

/// Memory for the sockets of a [`TcpServer`], borrowed for its whole life.
#[derive(Debug)]
pub struct TcpStorage<'s, const SEND: usize = 16384> {
    sockets: [SocketStorage<'s>; PLACES],
    buffers: TcpBuffers<SEND>,
}

impl<const SEND: usize> TcpStorage<'_, SEND> {
    /// Empty storage, fit for a `static`.
    pub const fn new() -> Self {
        Self { sockets: [const { SocketStorage::EMPTY }; PLACES], buffers: TcpBuffers::new() }
    }
}

impl<const SEND: usize> Default for TcpStorage<'_, SEND> {
    fn default() -> Self {
        Self::new()
    }
}

/// Serves a [`Service`] on its own network device.
///
/// ```no_run
/// # use unikprof_agent::{Platform, Service};
/// # use unikprof_agent::tcp_server::{TcpConfig, TcpError, TcpServer, TcpStorage, smoltcp};
/// # use smoltcp::{phy::Device, wire::{EthernetAddress, IpAddress, IpCidr}};
/// # fn guest<P: Platform>(
/// #     mut device: impl Device, mut service: Service<'_, '_, P>, sleep: impl Fn(Option<u64>),
/// # ) -> Result<(), TcpError> {
/// let config = TcpConfig {
///     port: 7777,
///     hardware_address: EthernetAddress([0x02, 0, 0, 0, 0, 1]).into(),
///     addresses: &[IpCidr::new(IpAddress::v4(10, 0, 0, 5), 24)],
///     gateways: &[IpAddress::v4(10, 0, 0, 1)],
/// };
/// let mut storage: TcpStorage<'_> = TcpStorage::new();
/// let mut server = TcpServer::new(&config, &mut device, &service, &mut storage)?;
/// loop {
///     let next_ns = server.poll(&mut device, &mut service);
///     sleep(next_ns); // or until the device has a packet
/// }
/// # }
/// ```
pub struct TcpServer<'s> {
    interface: Interface,
    set: SocketSet<'s>,
    sockets: TcpSockets,
    #[cfg(feature = "dhcp")]
    dhcp: Option<dhcp::Dhcp>,
}

impl<'s> TcpServer<'s> {
    /// Creates a server on `device`. Sequence numbers are seeded from the platform's random source,
    /// or from its clock if there is none.
    ///
    /// # Errors
    ///
    /// [`TcpError`] if the configuration cannot be used.
    pub fn new<P: Platform, const SEND: usize>(
        config: &TcpConfig<'_>,
        device: &mut (impl Device + ?Sized),
        service: &Service<'_, '_, P>,
        storage: &'s mut TcpStorage<'s, SEND>,
    ) -> Result<Self, TcpError> {
        Self::in_parts(config, device, service, &mut storage.sockets, &mut storage.buffers)
    }

    /// Like [`new`](Self::new), with the two parts of the storage passed separately: they are too
    /// large for a small stack, and can be initialized in place.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub fn in_parts<P: Platform, const SEND: usize>(
        config: &TcpConfig<'_>,
        device: &mut (impl Device + ?Sized),
        service: &Service<'_, '_, P>,
        sockets: &'s mut [SocketStorage<'s>; PLACES],
        buffers: &'s mut TcpBuffers<SEND>,
    ) -> Result<Self, TcpError> {
        if config.addresses.is_empty() {
            return Err(TcpError::Addresses(IFACE_MAX_ADDR_COUNT));
        }
        Self::build(config, device, service, sockets, buffers)
    }

    /// Creates a server that gets its IPv4 address and gateway by DHCP, and follows their changes.
    /// [`TcpConfig::addresses`] and [`TcpConfig::gateways`] may contain IPv6 ones in addition.
    ///
    /// # Errors
    ///
    /// [`TcpError`] if the configuration cannot be used, has IPv4 addresses or leaves no room for
    /// another one, or if the device is not Ethernet.
    #[cfg(feature = "dhcp")]
    pub fn with_dhcp<P: Platform, const SEND: usize>(
        config: &TcpConfig<'_>,
        device: &mut (impl Device + ?Sized),
        service: &Service<'_, '_, P>,
        storage: &'s mut TcpStorage<'s, SEND>,
    ) -> Result<Self, TcpError> {
        if config.hardware_address == HardwareAddress::Ip {
            return Err(TcpError::HardwareAddress(config.hardware_address));
        }
        if config.addresses.len() >= IFACE_MAX_ADDR_COUNT {
            return Err(TcpError::Addresses(IFACE_MAX_ADDR_COUNT - 1));
        }
        let addresses = config.addresses.iter().map(IpCidr::address);
        let mut all = addresses.chain(config.gateways.iter().copied());
        if let Some(address) = all.find(|address| matches!(address, IpAddress::Ipv4(_))) {
            return Err(TcpError::Address(address));
        }
        let (sockets, buffers) = (&mut storage.sockets, &mut storage.buffers);
        let mut server = Self::build(config, device, service, sockets, buffers)?;
        server.dhcp = Some(dhcp::Dhcp::add_to(&mut server.set));
        Ok(server)
    }

    fn build<P: Platform, const SEND: usize>(
        config: &TcpConfig<'_>,
        device: &mut (impl Device + ?Sized),
        service: &Service<'_, '_, P>,
        places: &'s mut [SocketStorage<'s>; PLACES],
        buffers: &'s mut TcpBuffers<SEND>,
    ) -> Result<Self, TcpError> {
        check(config, device.capabilities().medium)?;
        let platform = service.agent().platform();
        let now_ns = platform.now_ns();
        let mut stack = Config::new(config.hardware_address);
        stack.random_seed =
            platform.random().unwrap_or_else(|| now_ns ^ platform.cycles().rotate_left(32));
        let mut interface = Interface::new(stack, device, instant(now_ns));
        interface.update_ip_addrs(|addresses| {
            // `check` has checked that they fit.
            let _ = addresses.extend_from_slice(config.addresses);
        });
        for gateway in config.gateways {
            add_gateway(&mut interface, *gateway)?;
        }
        let mut set = SocketSet::new(&mut places[..]);
        let sockets = TcpSockets::add_to(&mut set, buffers, config.port);
        Ok(Self {
            interface,
            set,
            sockets,
            #[cfg(feature = "dhcp")]
            dhcp: None,
        })
    }

    /// Receives packets from the device, serves the clients, sends packets, and does the work that
    /// is due.
    ///
    /// Returns when to call it again if no packet arrives before, on the platform's monotonic clock
    /// in ns; `None` if nothing is to be done until a packet arrives, so that an idle guest stays
    /// asleep. The work is bounded (at most 64 packets are received, and nothing is begun after 1
    /// ms), and is marked as the agent's own. If work is left, the returned time is now.
    pub fn poll<P: Platform>(
        &mut self,
        device: &mut (impl Device + ?Sized),
        service: &mut Service<'_, '_, P>,
    ) -> Option<u64> {
        let work = service.begin_work();
        let next_ns = self.run(device, service);
        service.end_work(work);
        next_ns
    }

    /// The addresses that clients can connect to; without an IPv4 address until DHCP has one.
    pub fn addresses(&self) -> &[IpCidr] {
        self.interface.ip_addrs()
    }

    fn run<P: Platform>(
        &mut self,
        device: &mut (impl Device + ?Sized),
        service: &mut Service<'_, '_, P>,
    ) -> Option<u64> {
        let now_ns = service.agent().platform().now_ns();
        let now = instant(now_ns);
        self.interface.poll_maintenance(now);
        let mut wants_ns = None;
        let mut quiet = false;
        for _ in 0..ROUNDS {
            let received = self.receive(device, now);
            #[cfg(feature = "dhcp")]
            if let Some(dhcp) = &self.dhcp {
                dhcp.apply(&mut self.interface, &mut self.set);
            }
            wants_ns = self.sockets.exchange(&mut self.set, service, now_ns);
            let sent = self.interface.poll_egress(now, device, &mut self.set) != PollResult::None;
            let again = wants_ns.is_some_and(|at_ns| at_ns <= now_ns);
            quiet = !(received || sent || again);
            if quiet || service.is_out_of_time() {
                break;
            }
        }
        let next_ns = earliest(wants_ns, service.advance());
        let stack_ns = if quiet {
            self.interface.poll_at(now, &self.set).map(|at| {
                let at_ns = nanoseconds(at);
                // Work that is due but was not done: the device did not accept it.
                if at_ns <= now_ns { now_ns + DEVICE_RETRY_NS } else { at_ns }
            })
        } else {
            Some(now_ns)
        };
        earliest(next_ns, stack_ns)
    }

    /// Receives a few packets; returns whether there were any.
    fn receive(&mut self, device: &mut (impl Device + ?Sized), now: Instant) -> bool {
        for count in 0..PACKETS {
            let result = self.interface.poll_ingress_single(now, device, &mut self.set);
            if result == PollIngressSingleResult::None {
                return count > 0;
            }
        }
        true
    }
}

impl fmt::Debug for TcpServer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpServer")
            .field("addresses", &self.addresses())
            .field("sockets", &self.sockets)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for TcpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port => f.write_str("the port of a server must not be 0"),
            Self::HardwareAddress(address) => write!(
                f,
                "the hardware address {address} is of the wrong kind for the device, or not unicast"
            ),
            Self::Address(address) => write!(
                f,
                "{address} cannot be used: not unicast, a second gateway of its kind, or DHCP's \
                 matter"
            ),
            Self::Addresses(most) => {
                write!(f, "a server has at least one address, and at most {most}")
            }
        }
    }
}

impl core::error::Error for TcpError {}

/// Rejects configurations for which smoltcp would panic.
pub(crate) fn check(config: &TcpConfig<'_>, medium: Medium) -> Result<(), TcpError> {
    if config.port == 0 {
        return Err(TcpError::Port);
    }
    let fits = match (config.hardware_address, medium) {
        (HardwareAddress::Ethernet(address), Medium::Ethernet) => address.is_unicast(),
        (HardwareAddress::Ip, Medium::Ip) => true,
        _ => false,
    };
    if !fits {
        return Err(TcpError::HardwareAddress(config.hardware_address));
    }
    if config.addresses.len() > IFACE_MAX_ADDR_COUNT {
        return Err(TcpError::Addresses(IFACE_MAX_ADDR_COUNT));
    }
    let addresses = config.addresses.iter().map(IpCidr::address);
    let mut all = addresses.chain(config.gateways.iter().copied());
    all.find(|address| !address.is_unicast())
        .map_or(Ok(()), |address| Err(TcpError::Address(address)))
}

fn add_gateway(interface: &mut Interface, gateway: IpAddress) -> Result<(), TcpError> {
    let routes = interface.routes_mut();
    let replaced = match gateway {
        IpAddress::Ipv4(gateway) => routes.add_default_ipv4_route(gateway),
        #[cfg(feature = "ipv6")]
        IpAddress::Ipv6(gateway) => routes.add_default_ipv6_route(gateway),
        // The guest's smoltcp may have more features enabled than this crate, and therefore more
        // kinds of addresses.
        #[allow(unreachable_patterns)]
        _ => return Err(TcpError::Address(gateway)),
    };
    match replaced {
        Ok(None) => Ok(()),
        _ => Err(TcpError::Address(gateway)),
    }
}

fn instant(ns: u64) -> Instant {
    Instant::from_micros(i64::try_from(ns / 1000).unwrap_or(i64::MAX))
}

fn nanoseconds(at: Instant) -> u64 {
    u64::try_from(at.total_micros()).unwrap_or(0).saturating_mul(1000)
}
