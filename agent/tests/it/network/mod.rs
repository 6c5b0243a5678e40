//! A guest and its clients on one wire, with a clock that advances only when all of them sleep.
#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    clippy::unwrap_used,
    clippy::panic,
    clippy::type_complexity
)]

mod faulty;
mod peer;
mod wire;

use std::collections::HashMap;
use std::rc::Rc;

use unikprof_agent::tcp_server::{
    SOCKETS, TcpBuffers, TcpConfig, TcpServer, TcpSockets, TcpStorage, smoltcp,
};
use unikprof_agent::{Access, Platform, Service};

use smoltcp::iface::{Config, Interface, SocketSet, SocketStorage};
use smoltcp::phy::{Device, Medium};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};

use unikprof_proto::code::message_type;
use unikprof_proto::frame::Message;
use unikprof_proto::message::{Acknowledge, Pending, Refusal, Start, Stop};
use unikprof_proto::preamble;

use crate::client::{Frame, encoded, read, receive_whole, whole};
use crate::fake_guest::{FakeAgent, FakePlatform, agent, tick};

pub use faulty::{Faults, Faulty};
pub use peer::{End, Peer};
pub use wire::{Cable, LATENCY_NS, Port, Wire};

pub const PORT: u16 = 7777;
/// The maximum time that a test waits for anything, on its own clock.
const PATIENCE_NS: u64 = 300_000_000_000;

pub type Stacks = HashMap<Vec<u32>, u64>;

/// The two ways to embed the agent's sockets.
pub enum Server {
    Own(TcpServer<'static>),
    /// The guest's own stack, with the agent's sockets among its own.
    Guests(Interface, SocketSet<'static>, TcpSockets),
}

pub struct World<D> {
    pub agent: &'static FakeAgent,
    pub service: Service<'static, 'static, FakePlatform>,
    pub server: Server,
    pub device: D,
    pub wire: Rc<Wire>,
    pub peers: Vec<Peer<D>>,
    wrap: Box<dyn Fn(Port) -> D>,
    network: fn(u8) -> IpCidr,
}

pub fn ipv4(number: u8) -> IpCidr {
    IpCidr::new(IpAddress::v4(10, 0, 0, number), 24)
}

impl World<Port> {
    pub fn new() -> Self {
        Self::with(Medium::Ethernet, ipv4, |port| port)
    }
}

impl<D: Device> World<D> {
    /// A guest without its own stack, on devices made by `wrap`.
    pub fn with(
        medium: Medium,
        network: fn(u8) -> IpCidr,
        wrap: impl Fn(Port) -> D + 'static,
    ) -> Self {
        Self::with_access(Access::Open, medium, network, wrap)
    }

    /// The same with this access setting.
    pub fn with_access(
        access: Access<'static>,
        medium: Medium,
        network: fn(u8) -> IpCidr,
        wrap: impl Fn(Port) -> D + 'static,
    ) -> Self {
        let agent = agent(1, 1 << 20);
        let service = Service::new(agent, access).unwrap();
        let wire = Wire::new(agent.platform(), medium);
        let mut device = wrap(wire.port());
        let config = TcpConfig {
            port: PORT,
            hardware_address: hardware(medium, 1),
            addresses: &[network(1)],
            gateways: &[],
        };
        let storage: &mut TcpStorage<'_> = Box::leak(Box::default());
        let server = TcpServer::new(&config, &mut device, &service, storage).unwrap();
        Self {
            agent,
            service,
            server: Server::Own(server),
            device,
            wire,
            peers: Vec::new(),
            wrap: Box::new(wrap),
            network,
        }
    }

    /// Gives the guest its own stack, with the agent's sockets in it.
    pub fn with_the_guests_stack(mut self) -> Self {
        let hardware = hardware(self.device.capabilities().medium, 1);
        let now = self.now();
        let mut interface = Interface::new(Config::new(hardware), &mut self.device, now);
        interface.update_ip_addrs(|list| list.push((self.network)(1)).unwrap());
        let places: Vec<_> = (0..SOCKETS).map(|_| SocketStorage::EMPTY).collect();
        let mut set = SocketSet::new(places.leak());
        let buffers: &mut TcpBuffers = Box::leak(Box::default());
        let sockets = TcpSockets::add_to(&mut set, buffers, PORT);
        self.server = Server::Guests(interface, set, sockets);
        self
    }

    pub fn now_ns(&self) -> u64 {
        self.agent.platform().now_ns()
    }

    pub fn now(&self) -> Instant {
        Instant::from_micros((self.now_ns() / 1000) as i64)
    }

    /// Polls the guest once; returns its next deadline.
    pub fn poll_guest(&mut self) -> Option<u64> {
        let now = self.now();
        let Self { server, device, service, .. } = self;
        match server {
            Server::Own(server) => server.poll(device, service),
            Server::Guests(interface, set, sockets) => {
                interface.poll(now, device, set);
                let agent_ns = sockets.poll(set, service);
                let stack_ns = interface.poll_at(now, set).map(nanoseconds);
                [agent_ns, stack_ns].into_iter().flatten().min()
            }
        }
    }

    /// Polls everything once; returns the time of the next event, if any.
    pub fn poll(&mut self) -> Option<u64> {
        let now = self.now();
        let mut next_ns = [self.poll_guest(), None];
        for peer in &mut self.peers {
            let peer_ns = peer.poll(now).map(nanoseconds);
            next_ns[0] = [next_ns[0], peer_ns].into_iter().flatten().min();
        }
        next_ns[1] = self.wire.next_ns();
        next_ns.into_iter().flatten().min()
    }

    /// Polls until `done`; returns `false` if that was not reached within `limit_ns`, or never will
    /// be.
    pub fn run(&mut self, limit_ns: u64, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let until_ns = self.now_ns() + limit_ns;
        let mut still = 0;
        loop {
            let next_ns = self.poll();
            if done(self) {
                return true;
            }
            let Some(next_ns) = next_ns.filter(|_| self.now_ns() < until_ns) else {
                return false;
            };
            let ahead = next_ns.min(until_ns).saturating_sub(self.now_ns());
            still = if ahead == 0 { still + 1 } else { 0 };
            assert!(still < 1000, "somebody spins without getting anywhere");
            self.agent.platform().idle(ahead);
        }
    }

    /// Lets time pass for everything.
    pub fn wait(&mut self, ns: u64) {
        let until_ns = self.now_ns() + ns;
        self.run(ns, |_| false);
        let left = until_ns.saturating_sub(self.now_ns());
        self.agent.platform().idle(left);
    }

    /// Connects a new client, which sends its preamble; returns its number.
    pub fn connect(&mut self) -> usize {
        self.connect_with(65_535)
    }

    /// A new client with this many bytes of receive buffer.
    pub fn connect_with(&mut self, receive_bytes: usize) -> usize {
        let client = self.connect_silent(receive_bytes);
        self.peers[client].send(&preamble::encode(preamble::OPEN));
        client
    }

    /// A new client that sends nothing by itself.
    pub fn connect_silent(&mut self, receive_bytes: usize) -> usize {
        let port = self.wire.port();
        let number = 1 + port.index as u8;
        let addresses = ((self.network)(number), (self.network)(1).address());
        let device = (self.wrap)(port);
        let peer = Peer::connect(device, number, addresses, receive_bytes, self.now());
        self.peers.push(peer);
        self.peers.len() - 1
    }

    /// Removes all clients from the wire.
    pub fn forget_clients(&mut self) {
        self.peers.clear();
        self.wire.keep_ports(1);
    }

    /// The wire's port of a client.
    pub fn port_of(&self, client: usize) -> usize {
        client + 1
    }

    pub fn send<'a, M: Message<'a>>(&mut self, client: usize, message: &M) {
        self.peers[client].send(&encoded(message));
    }

    /// The next frame that a client receives.
    pub fn frame(&mut self, client: usize) -> Result<Frame, End> {
        let mut result = Err(End::TimedOut);
        self.run(PATIENCE_NS, |world| {
            let peer = &mut world.peers[client];
            let over = peer.is_over();
            match peer.take_frame() {
                Ok(Some(frame)) => result = Ok(frame),
                Ok(None) if over => result = Err(End::Closed),
                Ok(None) => return false,
                Err(end) => result = Err(end),
            }
            true
        });
        result
    }

    /// Sends a request and waits for the first frame of its answer.
    pub fn ask<'a, M: Message<'a>>(&mut self, client: usize, message: &M) -> Result<Frame, End> {
        self.send(client, message);
        self.frame(client)
    }

    pub fn start(&mut self, client: usize) -> Result<(), End> {
        let start = Start::running_time("test", 100_000);
        expect(self.ask(client, &start)?, message_type::STARTED).map(drop)
    }

    /// Ends the recording; returns the epoch to fetch.
    pub fn stop(&mut self, client: usize) -> Result<u64, End> {
        let frame = self.ask(client, &Stop { recording: 0 })?;
        let frame = expect(frame, message_type::PENDING)?;
        let pending: Pending = read(&frame);
        assert_eq!((pending.epochs, pending.complete), (1, true));
        Ok(pending.first_epoch)
    }

    /// Makes a recording of `count` ticks in stacks of `kinds` kinds; returns the expected counts
    /// and its epoch.
    pub fn record(&mut self, client: usize, count: u32, kinds: u32) -> (Stacks, u64) {
        self.start(client).unwrap();
        let truth = self.sample(count, kinds);
        (truth, self.stop(client).unwrap())
    }

    /// Fetches an epoch: its stacks with their counts.
    pub fn fetch(&mut self, client: usize, epoch: u64) -> Result<Stacks, End> {
        self.send(client, &whole(epoch));
        self.receive(client)
    }

    /// Receives a requested epoch.
    pub fn receive(&mut self, client: usize) -> Result<Stacks, End> {
        let frame = || match self.frame(client)? {
            refused if refused.kind == message_type::REFUSAL => Err(unexpected(&refused)),
            frame => Ok(frame),
        };
        Ok(receive_whole(frame)?.stacks)
    }

    pub fn acknowledge(&mut self, client: usize, epoch: u64) -> Result<(), End> {
        let frame = self.ask(client, &Acknowledge { epoch })?;
        expect(frame, message_type::ACKNOWLEDGED).map(drop)
    }

    /// Delivers `count` ticks in stacks of `kinds` kinds; returns the expected counts.
    pub fn sample(&self, count: u32, kinds: u32) -> Stacks {
        let mut truth = Stacks::new();
        for index in 0..count {
            let frames = stack(index % kinds);
            assert!(tick(self.agent, &frames), "a recording runs");
            *truth.entry(frames.iter().map(|frame| *frame as u32).collect()).or_default() += 1;
        }
        truth
    }
}

fn expect(frame: Frame, kind: u16) -> Result<Frame, End> {
    if frame.kind == kind { Ok(frame) } else { Err(unexpected(&frame)) }
}

fn unexpected(frame: &Frame) -> End {
    if frame.kind == message_type::REFUSAL {
        End::Refused(read::<Refusal<'_>>(frame).code)
    } else {
        End::Unexpected(frame.kind)
    }
}

/// A stack of functions (bytes into the code, leaf first) that shares callers with others.
fn stack(kind: u32) -> Vec<u64> {
    let depth = 3 + kind % 30;
    let callers =
        (1..depth).map(|level| u64::from(0x100 + level * 0x40 + (kind >> level.min(8)) % 3));
    let mut frames: Vec<u64> = callers.collect();
    frames.insert(0, u64::from(0x8000 + kind * 4));
    frames
}

fn hardware(medium: Medium, number: u8) -> HardwareAddress {
    match medium {
        Medium::Ethernet => EthernetAddress([0x02, 0, 0, 0, 1, number]).into(),
        _ => HardwareAddress::Ip,
    }
}

fn nanoseconds(at: Instant) -> u64 {
    at.total_micros() as u64 * 1000
}
