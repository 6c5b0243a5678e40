//! Serves clients through a TAP device: the agent has its own address there, as in a unikernel, and
//! its own TCP handles every packet.
#![allow(unsafe_code)]

use core::ffi::{c_char, c_short};
use core::{fmt, slice};
use std::boxed::Box;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::vec::Vec;

use libc::pollfd;
use smoltcp::phy::{self, Device, DeviceCapabilities, Medium};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};

use super::Error;
use super::network::sleep;
use super::platform::Hosted;
use crate::serve::service::Service;
use crate::serve::tcp_server::{TcpConfig, TcpServer, TcpStorage, check};

/// An address on a TAP device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tap {
    /// The device's name. A missing device is created, which needs the privilege CAP_NET_ADMIN. The
    /// host must bring the device up and give itself an address on it.
    pub device: &'static str,
    /// The agent's address. IPv6 needs the feature `ipv6`.
    pub address: IpAddr,
    /// The length of the network prefix in bits.
    pub prefix: u8,
    /// The gateway to other networks.
    pub gateway: Option<IpAddr>,
    /// The port that clients connect to; not 0.
    pub port: u16,
}

/// The longest frame: Ethernet's header and 1500 bytes. A host with a lower limit announces it in
/// TCP's handshake.
const FRAME: usize = 14 + 1500;

/// An open TAP device and a checked configuration.
#[derive(Debug)]
pub(super) struct OpenTap {
    addresses: Addresses,
    device: TapDevice,
}

/// A server on a TAP device.
#[derive(Debug)]
pub(super) struct TapServer {
    server: TcpServer<'static>,
    device: TapDevice,
}

impl OpenTap {
    pub(super) fn open(tap: &Tap) -> Result<Self, Error> {
        let refused = |error| Error::Listen(SocketAddr::new(tap.address, tap.port), error);
        let addresses = Addresses::of(tap).map_err(refused)?;
        check(&addresses.config(), Medium::Ethernet).map_err(|error| refused(invalid(error)))?;
        let device = TapDevice::open(tap.device)
            .map_err(|error| Error::System("opening the TAP device", error))?;
        Ok(Self { addresses, device })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.addresses.socket_address
    }

    pub(super) fn server(
        self,
        service: &Service<'static, 'static, Hosted>,
    ) -> Result<TapServer, Error> {
        let Self { addresses, mut device } = self;
        let storage: &'static mut TcpStorage<'static> = Box::leak(Box::default());
        TcpServer::new(&addresses.config(), &mut device, service, storage)
            .map(|server| TapServer { server, device })
            .map_err(|error| Error::Listen(addresses.socket_address, invalid(error)))
    }
}

impl TapServer {
    /// Serves until the process ends.
    pub(super) fn serve(mut self, mut service: Service<'static, 'static, Hosted>) {
        loop {
            let next_ns = self.server.poll(&mut self.device, &mut service);
            sleep(service.agent(), &mut [self.device.interest()], next_ns);
        }
    }
}

/// The agent's addresses in smoltcp's types.
#[derive(Debug)]
struct Addresses {
    socket_address: SocketAddr,
    hardware_address: EthernetAddress,
    address: IpCidr,
    gateway: Option<IpAddress>,
}

impl Addresses {
    fn of(tap: &Tap) -> io::Result<Self> {
        let longest = if tap.address.is_ipv4() { 32 } else { 128 };
        if tap.prefix > longest {
            return Err(invalid(Unusable::Prefix(tap.prefix, longest)));
        }
        Ok(Self {
            socket_address: SocketAddr::new(tap.address, tap.port),
            hardware_address: hardware_address(tap.address),
            address: IpCidr::new(ip_address(tap.address)?, tap.prefix),
            gateway: tap.gateway.map(ip_address).transpose()?,
        })
    }

    fn config(&self) -> TcpConfig<'_> {
        TcpConfig {
            port: self.socket_address.port(),
            hardware_address: self.hardware_address.into(),
            addresses: slice::from_ref(&self.address),
            gateways: self.gateway.as_slice(),
        }
    }
}

/// Why an address cannot be used, in addition to the checks of [`TcpServer`].
#[derive(Clone, Copy, Debug)]
enum Unusable {
    /// The prefix is longer than the address: both in bits.
    Prefix(u8, u8),
    #[cfg(not(feature = "ipv6"))]
    Ipv6,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix(prefix, longest) => {
                write!(f, "a prefix of {prefix} bits; the address has {longest}")
            }
            #[cfg(not(feature = "ipv6"))]
            Self::Ipv6 => f.write_str("an IPv6 address needs the agent's feature `ipv6`"),
        }
    }
}

impl std::error::Error for Unusable {}

fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

#[cfg_attr(feature = "ipv6", allow(clippy::unnecessary_wraps))]
fn ip_address(address: IpAddr) -> io::Result<IpAddress> {
    match address {
        IpAddr::V4(address) => Ok(IpAddress::Ipv4(address)),
        #[cfg(feature = "ipv6")]
        IpAddr::V6(address) => Ok(IpAddress::Ipv6(address)),
        #[cfg(not(feature = "ipv6"))]
        IpAddr::V6(_) => Err(invalid(Unusable::Ipv6)),
    }
}

/// A hardware address that is unique to the guest and the same at each start, so that no
/// neighbour's ARP cache becomes stale: locally administered, then the address's last four bytes.
fn hardware_address(address: IpAddr) -> EthernetAddress {
    let [.., a, b, c, d] = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    EthernetAddress([0x02, 0, a, b, c, d])
}

/// The device. Frames that it does not accept are lost, as on any network, and TCP sends them
/// again.
#[derive(Debug)]
struct TapDevice {
    file: File,
    received: Box<[u8]>,
    sending: Vec<u8>,
    /// The device was removed while the file was open.
    is_gone: bool,
}

impl TapDevice {
    fn open(name: &str) -> io::Result<Self> {
        let mut request = libc::ifreq {
            ifr_name: [0; libc::IFNAMSIZ],
            ifr_ifru: libc::__c_anonymous_ifr_ifru {
                ifru_flags: (libc::IFF_TAP | libc::IFF_NO_PI) as c_short,
            },
        };
        // The last byte stays 0; the kernel refuses invalid names.
        if name.len() >= request.ifr_name.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *place = byte as c_char;
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")?;
        // SAFETY: TUNSETIFF reads and writes an `ifreq`, and `request` is one.
        let failed =
            unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } < 0;
        if failed {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            file,
            received: std::vec![0; FRAME].into(),
            sending: Vec::with_capacity(FRAME),
            is_gone: false,
        })
    }

    /// The descriptor and events to sleep on.
    fn interest(&self) -> pollfd {
        let fd = if self.is_gone { -1 } else { self.file.as_raw_fd() };
        pollfd { fd, events: libc::POLLIN, revents: 0 }
    }
}

impl Device for TapDevice {
    type RxToken<'a> = Received<'a>;
    type TxToken<'a> = Sending<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Received<'_>, Sending<'_>)> {
        let length = match self.file.read(&mut self.received) {
            Ok(length) => length,
            Err(error) => {
                let passes = [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted];
                self.is_gone = !passes.contains(&error.kind());
                return None;
            }
        };
        let received = Received(self.received.get(..length)?);
        let sending = Sending { file: &self.file, bytes: &mut self.sending };
        Some((received, sending))
    }

    fn transmit(&mut self, _: Instant) -> Option<Sending<'_>> {
        Some(Sending { file: &self.file, bytes: &mut self.sending })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = FRAME;
        capabilities
    }
}

/// A frame from the device.
struct Received<'a>(&'a [u8]);

impl phy::RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(self.0)
    }
}

/// Permission to send one frame.
struct Sending<'a> {
    file: &'a File,
    bytes: &'a mut Vec<u8>,
}

impl phy::TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(mut self, length: usize, write: F) -> R {
        self.bytes.clear();
        self.bytes.resize(length, 0);
        let result = write(self.bytes);
        // The frame is lost if the queue is full or the device is down.
        let _ = self.file.write(self.bytes);
        result
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::Ipv4Addr;
    use std::string::ToString;

    use super::*;

    const TAP: Tap = Tap {
        device: "unikprof-test-name-too-long",
        address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 5)),
        prefix: 24,
        gateway: None,
        port: 7777,
    };

    /// A bad configuration is rejected before a device is opened or created.
    #[test]
    fn a_bad_configuration_is_an_error() {
        let gateway = Some(IpAddr::V4(Ipv4Addr::BROADCAST));
        let address = IpAddr::V4(Ipv4Addr::new(224, 0, 0, 1));
        for (tap, expected) in [
            (Tap { prefix: 33, ..TAP }, "a prefix of 33 bits; the address has 32"),
            (Tap { port: 0, ..TAP }, "must not be 0"),
            (Tap { gateway, ..TAP }, "255.255.255.255 cannot be used"),
            (Tap { address, ..TAP }, "224.0.0.1 cannot be used"),
            (TAP, "opening the TAP device failed"),
        ] {
            let error = OpenTap::open(&tap).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_hardware_address_is_local_and_stays() {
        let hardware = hardware_address(TAP.address);
        assert_eq!(hardware, EthernetAddress([0x02, 0, 10, 0, 0, 5]));
        let ipv6 = hardware_address("fd00::1:203:405".parse().unwrap());
        assert_eq!(ipv6, EthernetAddress([0x02, 0, 2, 3, 4, 5]));
    }
}
