//! Clients that reach the agent over TCP: several at once, slow ones, misbehaving ones, and those
//! that vanish.

use crate::client::{HELLO, read, special, whole};
use crate::fake_guest;
use crate::network::{self, Cable, End, LATENCY_NS, PORT, World, ipv4};
use smoltcp::phy::{Device, DeviceCapabilities, Medium};
use smoltcp::socket::tcp::State;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};
use unikprof_agent::tcp_server::{SOCKETS, TcpConfig, TcpError, TcpServer, TcpStorage, smoltcp};
use unikprof_agent::{Access, SESSIONS, Service};
use unikprof_proto::code::{frame_code, message_type, refusal, state};
use unikprof_proto::message::{Check, Mapping, RecordingStatus, Refusal, Status, Welcome};

const SECOND: u64 = 1_000_000_000;

fn status<D: Device>(world: &mut World<D>, client: usize) -> (u32, u32, u64) {
    let frame = world.ask(client, &Check {}).unwrap();
    let status: Status = read(&frame);
    let state = if status.recordings == 0 {
        state::IDLE
    } else {
        let recording = world.frame(client).unwrap();
        read::<RecordingStatus<'_>>(&recording).state
    };
    (state, status.sessions, status.peers.connections())
}

/// A complete conversation, from hello to acknowledge; every tick is fetched exactly once.
fn converse<D: Device>(mut world: World<D>) {
    let client = world.connect();
    let welcome = world.ask(client, &HELLO).unwrap();
    assert_eq!(read::<Welcome<'_>>(&welcome).mappings, 1);
    let mapping = world.frame(client).unwrap();
    assert_eq!(read::<Mapping<'_>>(&mapping).start, fake_guest::CODE);

    world.start(client).unwrap();
    assert_eq!(status(&mut world, client).0, state::RECORDING);
    let truth = world.sample(5_000, 2_000);
    let epoch = world.stop(client).unwrap();
    assert_eq!(status(&mut world, client).0, state::FINISHED);
    assert_eq!(world.fetch(client, epoch).unwrap(), truth);
    assert_eq!(world.fetch(client, epoch).unwrap(), truth, "as often as wanted");
    world.acknowledge(client, epoch).unwrap();
    assert_eq!(status(&mut world, client).0, state::IDLE);
}

#[test]
fn what_is_fetched_is_what_was_sampled() {
    converse(World::new());
}

#[test]
fn the_guests_own_stack_serves_as_well() {
    converse(World::new().with_the_guests_stack());
}

#[test]
fn a_device_without_ethernet_serves_as_well() {
    converse(World::with(Medium::Ip, ipv4, |port| port));
}

#[cfg(feature = "ipv6")]
#[test]
fn ipv6_serves_as_well() {
    let network =
        |number: u8| IpCidr::new(IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, number.into()), 64);
    converse(World::with(Medium::Ethernet, network, |port| port));
    converse(World::with(Medium::Ip, network, |port| port));
}

#[test]
fn nothing_to_do_is_no_deadline() {
    let mut world = World::new();
    assert_eq!(world.poll_guest(), None);
    let client = world.connect();
    status(&mut world, client);
    assert!(world.poll_guest().is_some(), "keep-alive and patience are due some day");
    world.peers[client].close();
    assert!(world.run(30 * SECOND, |world| world.poll_guest().is_none()));
}

/// A stalled client must hold only its own session, and only for a limited time.
fn stall<D: Device>(mut world: World<D>) {
    let clients: Vec<usize> = (0..SESSIONS)
        .map(|index| world.connect_with(if index == 0 { 2048 } else { 65_535 }))
        .collect();
    world.start(clients[0]).unwrap();
    for (index, client) in clients.iter().enumerate() {
        status(&mut world, *client);
        assert_eq!(status(&mut world, *client).1 as usize, SESSIONS, "client {index}");
    }
    let truth = world.sample(4_000, 2_000);
    let epoch = world.stop(clients[1]).unwrap();

    // The first client sends a request and never reads.
    world.peers[clients[0]].reads = false;
    world.send(clients[0], &whole(epoch));
    world.wait(SECOND / 10);
    let stalled_ns = world.now_ns();
    for client in &clients[1..] {
        let began_ns = world.now_ns();
        assert_eq!(world.fetch(*client, epoch).unwrap(), truth);
        let took_ns = world.now_ns() - began_ns;
        assert!(took_ns < 40 * LATENCY_NS, "client {client} was delayed: {took_ns} ns");
    }

    // One more gets the reason why it is not served; the next one is reset.
    let busy = world.connect();
    let frame = world.frame(busy).unwrap();
    assert_eq!(read::<Refusal<'_>>(&frame).code, refusal::BUSY);
    let refused = world.connect();
    assert_eq!(world.frame(refused), Err(End::Closed));
    assert_eq!(world.peers[refused].received(), 0);
    assert_eq!(world.frame(busy), Err(End::Closed));

    // The stalled client is reset, and its session is free again.
    let closed = world.run(20 * SECOND, |world| world.peers[clients[0]].state() == State::Closed);
    let after_ns = world.now_ns() - stalled_ns;
    assert!(closed && after_ns < 13 * SECOND, "closed: {closed} after {after_ns} ns");
    let next = world.connect();
    assert_eq!(world.fetch(next, epoch).unwrap(), truth);
    let (_, sessions, rejected) = status(&mut world, next);
    assert_eq!((sessions, rejected), (SESSIONS as u32, 2), "the busy one and the stalled one");
}

#[test]
fn a_client_that_never_reads_delays_nobody_and_is_closed() {
    stall(World::new());
    stall(World::new().with_the_guests_stack());
}

#[test]
fn sockets_listen_again_after_every_kind_of_end() {
    let mut world = World::new();
    for round in 0..50 {
        let clients: Vec<usize> = (0..SESSIONS).map(|_| world.connect()).collect();
        for client in &clients {
            let sessions = status(&mut world, *client).1;
            assert!(sessions <= SESSIONS as u32, "round {round}");
        }
        // The clients close; reset; send invalid data; close their side before they are answered.
        world.peers[clients[0]].close();
        world.peers[clients[1]].abort();
        world.peers[clients[2]].send(&[0xff; 64]);
        world.send(clients[3], &Check {});
        let now = world.now();
        world.peers[clients[3]].poll(now);
        world.peers[clients[3]].close();
        let frame = world.frame(clients[2]).unwrap();
        assert_eq!(read::<Refusal<'_>>(&frame).code, refusal::MALFORMED);
        assert_eq!(world.frame(clients[3]).unwrap().kind, message_type::STATUS);
        for client in &clients {
            assert_eq!(world.frame(*client), Err(End::Closed), "round {round}");
        }
        world.peers[clients[2]].close();
        // No client is left: all sockets listen, and nothing is due.
        let asleep = world.run(15 * SECOND, |world| world.poll_guest().is_none());
        assert!(asleep, "round {round}: {:?}", world.poll_guest());
        world.forget_clients();
    }
}

/// A client that sends a request and closes its side must get the whole answer.
#[test]
fn a_client_that_ends_its_side_gets_what_it_asked_for() {
    let mut world = World::new();
    let client = world.connect();
    let (truth, epoch) = world.record(client, 6_000, 3_000);
    world.send(client, &whole(epoch));
    world.poll();
    world.peers[client].close();
    assert_eq!(world.receive(client).unwrap(), truth);
    assert_eq!(world.frame(client), Err(End::Closed));
}

/// Nothing else happens on this wire: the server must come back by itself to close the connection.
#[test]
fn a_client_that_does_not_introduce_itself_is_closed_after_two_seconds() {
    let mut world = World::new();
    let client = world.connect_silent(1024);
    assert!(world.run(SECOND, |world| world.peers[client].received() > 0));
    let closed = world.run(10 * SECOND, |world| world.peers[client].is_over());
    let after_ms = world.now_ns() / 1_000_000;
    assert!(closed && (2000..2010).contains(&after_ms), "after {after_ms} ms");
}

#[test]
fn a_client_that_vanishes_leaves_the_epoch_whole() {
    let mut world = World::new();
    let client = world.connect();
    let (truth, epoch) = world.record(client, 6_000, 3_000);
    world.send(client, &whole(epoch));
    assert!(world.run(SECOND, |world| world.peers[client].received() > 8_000));
    world.wire.set_cable(world.port_of(client), Cable::Cut);

    let next = world.connect();
    assert_eq!(world.fetch(next, epoch).unwrap(), truth);
    assert_eq!(status(&mut world, next).1, 2, "nobody knows yet that it is gone");
    world.wait(16 * SECOND);
    assert_eq!(status(&mut world, next).1, 1);
    world.acknowledge(next, epoch).unwrap();
}

/// An idle connection whose peer has vanished must free its session after 15 s.
#[test]
fn a_quiet_client_that_vanishes_is_noticed() {
    let mut world = World::new();
    let gone = world.connect();
    let stays = world.connect();
    status(&mut world, gone);
    assert_eq!(status(&mut world, stays).1, 2);
    world.wire.set_cable(world.port_of(gone), Cable::Cut);
    world.wait(14 * SECOND);
    assert_eq!(status(&mut world, stays).1, 2);
    world.wait(7 * SECOND);
    assert_eq!(status(&mut world, stays).1, 1);
}

/// TCP handshakes that are never completed must be dropped within seconds.
#[test]
fn half_open_connections_do_not_shut_others_out() {
    let mut world = World::new();
    for _ in 0..SOCKETS {
        let client = world.connect();
        // Long enough for ARP and a SYN, too short for the answer.
        world.wait(5 * LATENCY_NS / 2);
        world.wire.set_cable(world.port_of(client), Cable::Deaf);
    }
    let early = world.connect();
    let refused = world.run(SECOND, |world| world.peers[early].is_over());
    assert!(refused, "all sockets are taken");
    for client in 0..SOCKETS {
        world.wire.set_cable(world.port_of(client), Cable::Cut);
    }
    world.wait(4 * SECOND);
    let later = world.connect();
    assert_eq!(status(&mut world, later).1, 1);
}

/// However many packets there are, one poll takes a bounded number of them.
#[test]
fn a_flood_does_not_keep_the_guest() {
    let mut world = World::new();
    let client = world.connect();
    status(&mut world, client);
    let mut flood = world.wire.port();
    world.wire.set_cable(flood.index, Cable::Deaf);
    let frame = |transmit: &mut network::Port| {
        use smoltcp::phy::TxToken;
        let sending = transmit.transmit(Instant::ZERO).unwrap();
        sending.consume(60, |bytes| {
            bytes[..6].copy_from_slice(&[0x02, 0, 0, 0, 1, 1]);
        });
    };
    (0..1000).for_each(|_| frame(&mut flood));
    world.agent.platform().idle(LATENCY_NS);
    let now_ns = world.now_ns();
    assert_eq!(world.poll_guest(), Some(now_ns), "there is more to do, at once");
    assert_eq!(world.wire.waiting(0), 1000 - 64);
    assert_eq!(status(&mut world, client).1, 1);
}

/// A device in whose methods a tick interrupts the server.
struct Interrupted<D>(D, &'static fake_guest::FakeAgent);

impl<D: Device> Device for Interrupted<D> {
    type RxToken<'a>
        = D::RxToken<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = D::TxToken<'a>
    where
        Self: 'a;

    fn receive(&mut self, at: Instant) -> Option<(Self::RxToken<'_>, Self::TxToken<'_>)> {
        fake_guest::tick(self.1, &[0x77]);
        self.0.receive(at)
    }

    fn transmit(&mut self, at: Instant) -> Option<Self::TxToken<'_>> {
        self.0.transmit(at)
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.0.capabilities()
    }
}

#[test]
fn the_servers_own_work_is_marked() {
    let mut world = World::new();
    let client = world.connect();
    world.start(client).unwrap();
    let truth = world.sample(1, 1);
    let port = world.wire.port();
    world.wire.set_cable(port.index, Cable::Deaf);
    let mut device = Interrupted(port, world.agent);
    if let network::Server::Own(server) = &mut world.server {
        server.poll(&mut device, &mut world.service);
    }
    let epoch = world.stop(client).unwrap();
    let stacks = world.fetch(client, epoch).unwrap();
    let own = vec![0x77, special(frame_code::AGENT)];
    assert_eq!(stacks.len(), 2, "{stacks:?}");
    assert_eq!(stacks.get(&own), Some(&1), "{stacks:?}");
    assert!(truth.iter().all(|(stack, count)| stacks.get(stack) == Some(count)));
}

#[test]
fn what_smoltcp_would_panic_at_is_an_error() {
    let agent = fake_guest::agent(1, 1 << 17);
    let service = Service::new(agent, Access::Open).unwrap();
    let wire = network::Wire::new(agent.platform(), Medium::Ethernet);
    let start = |config: TcpConfig<'_>| {
        let storage: &mut TcpStorage<'_> = Box::leak(Box::default());
        TcpServer::new(&config, &mut wire.port(), &service, storage).err()
    };
    let good = TcpConfig {
        port: PORT,
        hardware_address: EthernetAddress([0x02, 0, 0, 0, 0, 1]).into(),
        addresses: &[IpCidr::new(IpAddress::v4(10, 0, 0, 1), 24)],
        gateways: &[IpAddress::v4(10, 0, 0, 254)],
    };
    assert_eq!(start(good), None);
    assert_eq!(start(TcpConfig { port: 0, ..good }), Some(TcpError::Port));
    for hardware_address in
        [HardwareAddress::Ip, EthernetAddress::BROADCAST.into(), EthernetAddress([0; 6]).into()]
    {
        let config = TcpConfig { hardware_address, ..good };
        let error = TcpError::HardwareAddress(hardware_address);
        if hardware_address != EthernetAddress([0; 6]).into() {
            assert_eq!(start(config), Some(error));
        }
    }
    let many = [ipv4(1); 9];
    for addresses in [&[][..], &many[..]] {
        assert!(matches!(start(TcpConfig { addresses, ..good }), Some(TcpError::Addresses(_))));
    }
    for address in
        [IpAddress::v4(0, 0, 0, 0), IpAddress::v4(224, 0, 0, 1), IpAddress::v4(255, 255, 255, 255)]
    {
        let addresses = &[IpCidr::new(address, 24)];
        assert_eq!(start(TcpConfig { addresses, ..good }), Some(TcpError::Address(address)));
        let gateways = &[address];
        assert_eq!(start(TcpConfig { gateways, ..good }), Some(TcpError::Address(address)));
    }
    let gateways = &[IpAddress::v4(10, 0, 0, 2), IpAddress::v4(10, 0, 0, 3)];
    assert_eq!(start(TcpConfig { gateways, ..good }), Some(TcpError::Address(gateways[1])));
}
