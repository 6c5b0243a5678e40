//! The agent's own TCP server, over frames that the guest hands over.

mod queue;

use core::mem::MaybeUninit;

use smoltcp::iface::SocketStorage;
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr, Ipv4Address};
use unikprof_agent::tcp_server::{PLACES, TcpBuffers, TcpConfig, TcpServer};
use unikprof_agent::{Platform, Service};

use crate::abi::{self, UNIKPROF_MAX_FRAME};
use crate::status::{Misuse, UNIKPROF_E_FRAME, UNIKPROF_E_FULL, UNIKPROF_E_NETWORK};
use queue::{FRAME, Queue};

const _: () = assert!(FRAME == UNIKPROF_MAX_FRAME as usize);

/// Memory for a network. Its parts are initialized in place, one by one: together they are larger
/// than a kernel's stack.
pub(crate) struct NetworkMemory {
    received: MaybeUninit<Queue>,
    to_send: MaybeUninit<Queue>,
    places: MaybeUninit<[SocketStorage<'static>; PLACES]>,
    buffers: MaybeUninit<TcpBuffers>,
}

/// A TCP server with its queues of received and sent frames.
pub(crate) struct Network {
    link: Link,
    server: TcpServer<'static>,
}

/// The network device for smoltcp.
struct Link {
    received: &'static mut Queue,
    to_send: &'static mut Queue,
}

impl Network {
    pub(crate) fn new<P: Platform>(
        wanted: &abi::Network,
        service: &Service<'_, '_, P>,
        memory: &'static mut NetworkMemory,
    ) -> Result<Self, Misuse> {
        let refused = Misuse(UNIKPROF_E_NETWORK);
        let prefix = u8::try_from(wanted.prefix_length).map_err(|_| refused)?;
        if prefix > 32 {
            return Err(refused);
        }
        let ip = |[a, b, c, d]: [u8; 4]| IpAddress::Ipv4(Ipv4Address::new(a, b, c, d));
        let gateway = [ip(wanted.gateway)];
        let gateways = if wanted.gateway == [0; 4] { &[][..] } else { &gateway[..] };
        let mut link = Link {
            received: memory.received.write(Queue::new()),
            to_send: memory.to_send.write(Queue::new()),
        };
        let places = memory.places.write([const { SocketStorage::EMPTY }; PLACES]);
        let buffers = memory.buffers.write(TcpBuffers::new());
        let config = TcpConfig {
            port: wanted.port,
            hardware_address: EthernetAddress(wanted.hardware_address).into(),
            addresses: &[IpCidr::new(ip(wanted.address), prefix)],
            gateways,
        };
        let server = TcpServer::in_parts(&config, &mut link, service, places, buffers)
            .map_err(|_| refused)?;
        Ok(Self { link, server })
    }

    pub(crate) fn poll<P: Platform>(&mut self, service: &mut Service<'_, '_, P>) -> Option<u64> {
        self.server.poll(&mut self.link, service)
    }

    /// Queues a frame from the guest's device.
    pub(crate) fn receive(&mut self, frame: &[u8]) -> Result<(), Misuse> {
        if frame.is_empty() || frame.len() > FRAME {
            return Err(Misuse(UNIKPROF_E_FRAME));
        }
        let place = self.link.received.push(frame.len()).ok_or(Misuse(UNIKPROF_E_FULL))?;
        place.copy_from_slice(frame);
        Ok(())
    }

    /// Copies the next frame for the guest's device into `buffer`; returns its length.
    pub(crate) fn send(&mut self, buffer: &mut [u8]) -> Result<i64, Misuse> {
        if buffer.len() < FRAME {
            return Err(Misuse(UNIKPROF_E_FRAME));
        }
        let Some(frame) = self.link.to_send.first() else {
            return Ok(0);
        };
        let length = frame.len();
        buffer[..length].copy_from_slice(frame);
        self.link.to_send.forget_first();
        Ok(length as i64)
    }
}

/// A received frame, or room for a frame to send.
struct Token<'l>(&'l mut Queue);

impl RxToken for Token<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, look: F) -> R {
        match self.0.first() {
            Some(frame) => {
                let seen = look(frame);
                self.0.forget_first();
                seen
            }
            // A token exists only if there is a frame; an empty frame would be dropped.
            None => look(&[]),
        }
    }
}

impl TxToken for Token<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, fill: F) -> R {
        match self.0.push(length) {
            Some(frame) => fill(frame),
            // A token exists only if there is room, and smoltcp respects the device's maximum frame
            // length.
            None => fill(&mut [0; FRAME][..length]),
        }
    }
}

impl Device for Link {
    type RxToken<'a> = Token<'a>;
    type TxToken<'a> = Token<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Token<'_>, Token<'_>)> {
        let is_ready = !self.received.is_empty() && !self.to_send.is_full();
        is_ready.then_some((Token(self.received), Token(self.to_send)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Token<'_>> {
        (!self.to_send.is_full()).then_some(Token(self.to_send))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = FRAME;
        capabilities
    }
}
