//! The network device and the agent's TCP server on it.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering};

use unikprof_agent::tcp_server::smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};
use unikprof_agent::tcp_server::{TcpConfig, TcpError, TcpServer, TcpStorage};
use unikprof_agent::xen::XenPlatform;
use unikprof_agent::{Agent, ServeError, Service};
use xen_sys_lite::events::Port;
use xen_sys_lite::grant::{GrantTable, GrantTableError};
use xen_sys_lite::net::{NetError, NetPages, Netfront};
use xen_sys_lite::{HypercallInstruction, PageMemory};

use crate::configuration::{Address, Configuration};
use crate::machine::own_stacks::MAX_VCPUS;
use crate::statics::Once;
use crate::store::GuestStore;

pub(crate) type Platform = XenPlatform<HypercallInstruction, MAX_VCPUS>;
pub(crate) type ServedAgent = Agent<'static, Platform>;
pub(crate) type Grants = GrantTable<1>;

const TX: usize = 32;
const RX: usize = 64;
pub(crate) type Device = Netfront<'static, HypercallInstruction, 1, TX, RX>;
pub(crate) type DevicePages = NetPages<TX, RX>;

/// One for the grant table.
pub(crate) static PAGES: [PageMemory; DevicePages::COUNT + 1] =
    [const { PageMemory::new() }; DevicePages::COUNT + 1];
pub(crate) static GRANTS: Once<MaybeUninit<Grants>> = Once::empty();
static STORAGE: Once<TcpStorage<'static>> = Once::new(TcpStorage::new());

/// Everything that a poll serves.
pub(crate) struct Served {
    device: Device,
    grants: &'static Grants,
    service: Service<'static, 'static, Platform>,
    server: TcpServer<'static>,
}

impl Served {
    /// Serves `service` on the connected `device`.
    pub(crate) fn new(
        (mut device, grants): (Device, &'static Grants),
        service: Service<'static, 'static, Platform>,
        settings: &Configuration,
    ) -> Result<Self, TcpError> {
        let address = match settings.address {
            Address::Static(address) => Some(IpCidr::Ipv4(address)),
            Address::Dhcp => None,
        };
        // DHCP brings its own gateway.
        let gateway = settings.gateway.map(IpAddress::Ipv4).filter(|_| address.is_some());
        let config = TcpConfig {
            port: settings.port,
            hardware_address: EthernetAddress(device.mac().unwrap_or_default()).into(),
            addresses: address.as_slice(),
            gateways: gateway.as_slice(),
        };
        // Taken once: `start` runs once.
        let storage = STORAGE.take().ok_or(TcpError::Port)?;
        let server = match address {
            Some(_) => TcpServer::new(&config, &mut device, &service, storage)?,
            None => TcpServer::with_dhcp(&config, &mut device, &service, storage)?,
        };
        Ok(Self { device, grants, service, server })
    }

    /// The connected device's event channel.
    pub(crate) fn port(&self) -> Option<Port> {
        self.device.port()
    }

    /// Connects the device again: in a new domain, where the old connection does not exist, or to a
    /// backend that comes anew.
    pub(crate) fn reconnect(
        &mut self,
        xen: &HypercallInstruction,
        store: &mut GuestStore,
        is_new_domain: &AtomicBool,
    ) -> Result<(), NetError> {
        if !is_new_domain.load(Ordering::Relaxed) {
            return self.device.reconnect(store);
        }
        self.grants.resume(xen).map_err(|error| match error {
            GrantTableError::Hypercall(errno) => NetError::Hypercall(errno),
            _ => NetError::NotConnected,
        })?;
        is_new_domain.store(false, Ordering::Relaxed);
        self.device.resume(store)
    }

    /// Serves those whom the settings allow, and nobody else.
    pub(crate) fn follow(&mut self, settings: &'static Configuration) -> Result<(), ServeError> {
        self.service.set_access(settings.access())
    }

    pub(crate) fn set_cpu_share(&mut self, permille: u32) {
        self.service.set_cpu_share(permille);
    }

    /// Whether a poll would receive something.
    pub(crate) fn has_received(&self) -> bool {
        self.device.has_received()
    }

    /// Serves the clients; returns when to call it again without an event, on the platform's clock.
    pub(crate) fn poll(&mut self) -> Option<u64> {
        self.server.poll(&mut self.device, &mut self.service)
    }
}
