//! A client's machine: a stack with one connection.

use unikprof_agent::tcp_server::smoltcp;

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet, SocketStorage};
use smoltcp::phy::{Device, Medium};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};

use unikprof_proto::frame::FrameError;
use unikprof_proto::preamble;
use unikprof_test_kit::frames::{Frame, take_frame};

/// Why a conversation ended before the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The agent closed its side, or the connection was reset.
    Closed,
    /// The received bytes are not the protocol.
    Foreign,
    Frame(FrameError),
    /// The agent refused, with this code.
    Refused(u32),
    /// A valid frame that must not come here.
    Unexpected(u16),
    /// Nothing was received within the test's limit.
    TimedOut,
}

pub struct Peer<D> {
    pub device: D,
    interface: Interface,
    set: SocketSet<'static>,
    handle: SocketHandle,
    /// Whether it reads received bytes.
    pub reads: bool,
    outgoing: Vec<u8>,
    received: Vec<u8>,
    greeted: bool,
}

impl<D: Device> Peer<D> {
    /// A machine with an address, `receive_bytes` of receive buffer and a connection being opened.
    pub fn connect(
        mut device: D,
        number: u8,
        addresses: (IpCidr, IpAddress),
        receive_bytes: usize,
        now: Instant,
    ) -> Self {
        let hardware = match device.capabilities().medium {
            Medium::Ethernet => EthernetAddress([0x02, 0, 0, 0, 1, number]).into(),
            _ => HardwareAddress::Ip,
        };
        let mut config = Config::new(hardware);
        config.random_seed = u64::from(number) << 32 | 77;
        let mut interface = Interface::new(config, &mut device, now);
        interface.update_ip_addrs(|list| list.push(addresses.0).unwrap());
        let mut set = SocketSet::new(Vec::leak(vec![SocketStorage::EMPTY]));
        let buffer = |bytes: usize| SocketBuffer::new(Vec::leak(vec![0_u8; bytes]));
        let mut socket = Socket::new(buffer(receive_bytes), buffer(4096));
        let remote = (addresses.1, super::PORT);
        socket.connect(interface.context(), remote, 40_000 + u16::from(number)).unwrap();
        let handle = set.add(socket);
        Self {
            device,
            interface,
            set,
            handle,
            reads: true,
            outgoing: Vec::new(),
            received: Vec::new(),
            greeted: false,
        }
    }

    /// Moves packets and bytes; returns when to be called again.
    pub fn poll(&mut self, now: Instant) -> Option<Instant> {
        let Self { device, interface, set, .. } = self;
        interface.poll(now, device, set);
        let socket = set.get_mut::<Socket>(self.handle);
        while self.reads && socket.can_recv() {
            let received = &mut self.received;
            let _ = socket.recv(|bytes| {
                received.extend_from_slice(bytes);
                (bytes.len(), ())
            });
        }
        if let Ok(sent) = socket.send_slice(&self.outgoing) {
            self.outgoing.drain(..sent);
        }
        interface.poll(now, device, set);
        interface.poll_at(now, set)
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.outgoing.extend_from_slice(bytes);
    }

    pub fn state(&self) -> State {
        self.set.get::<Socket>(self.handle).state()
    }

    pub fn close(&mut self) {
        self.set.get_mut::<Socket>(self.handle).close();
    }

    pub fn abort(&mut self) {
        self.set.get_mut::<Socket>(self.handle).abort();
    }

    /// Whether nothing more can be received.
    pub fn is_over(&self) -> bool {
        !self.set.get::<Socket>(self.handle).may_recv()
            && !matches!(self.state(), State::SynSent | State::SynReceived)
    }

    /// The number of bytes received and not yet taken as frames.
    pub fn received(&self) -> usize {
        self.received.len()
    }

    /// The bytes received and not yet taken: records, if the conversation is encrypted.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.received)
    }

    /// The next frame, if it is complete.
    pub fn take_frame(&mut self) -> Result<Option<Frame>, End> {
        if !self.greeted {
            let Some(bytes) = self.received.first_chunk() else {
                return Ok(None);
            };
            preamble::decode(bytes).map_err(|_| End::Foreign)?;
            self.received.drain(..preamble::LENGTH);
            self.greeted = true;
        }
        take_frame(&mut self.received).map_err(End::Frame)
    }
}
