//! A server that gets its address from DHCP, and loses it again.

use crate::client::read;
use crate::network::{PORT, Port, Server, World};
use smoltcp::phy::{ChecksumCapabilities, Device, RxToken, TxToken};
use smoltcp::wire::{
    DhcpMessageType, DhcpPacket, DhcpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    EthernetRepr, IpAddress, IpCidr, IpProtocol, Ipv4Address, Ipv4Packet, Ipv4Repr, UdpPacket,
    UdpRepr,
};
use unikprof_agent::SESSIONS;
use unikprof_agent::tcp_server::{TcpConfig, TcpError, TcpServer, TcpStorage, smoltcp};
use unikprof_proto::message::{Check, Status};

const SECOND: u64 = 1_000_000_000;
const SERVER: Ipv4Address = Ipv4Address::new(10, 0, 0, 254);
const LEASED: Ipv4Address = Ipv4Address::new(10, 0, 0, 1);
/// Shorter than the timeout of a client without requests.
const LEASE_SECONDS: u32 = 30;

#[test]
fn a_leased_address_serves_and_a_lost_one_ends_its_connections() {
    let mut world = World::new();
    start(&mut world, &[]).unwrap();
    let mut dhcp = DhcpServer(world.wire.port());
    let leased = world.run(10 * SECOND, |world| {
        dhcp.answer(world);
        !addresses(world).is_empty()
    });
    assert!(leased);
    assert_eq!(addresses(&world), [IpCidr::new(IpAddress::Ipv4(LEASED), 24)]);

    let client = world.connect();
    let mut asked = false;
    let answered = world.run(SECOND, |world| {
        dhcp.answer(world);
        if !asked {
            world.send(client, &Check {});
            asked = true;
        }
        let frame = world.peers[client].take_frame().unwrap();
        frame.is_some_and(|frame| read::<Status>(&frame).sessions == 1)
    });
    assert!(answered);

    // The DHCP server stops answering, and the lease expires; the client is served until then.
    let mut free_before = SESSIONS;
    let lost = world.run(2 * u64::from(LEASE_SECONDS) * SECOND, |world| {
        dhcp.ignore(world);
        let lost = addresses(world).is_empty();
        if !lost {
            free_before = free_sessions(world);
        }
        lost
    });
    assert!(lost);
    assert_eq!(free_before, SESSIONS - 1);
    let ended = world.run(6 * SECOND, |world| {
        dhcp.ignore(world);
        free_sessions(world) == SESSIONS
    });
    assert!(ended, "the session is free again");
}

#[test]
fn an_ipv4_address_beside_dhcp_is_refused() {
    let mut world = World::new();
    let address = IpAddress::Ipv4(LEASED);
    let error = start(&mut world, &[IpCidr::new(address, 24)]).unwrap_err();
    assert!(matches!(error, TcpError::Address(refused) if refused == address), "{error}");
}

/// Gives the guest a server that uses DHCP.
fn start(world: &mut World<Port>, addresses: &[IpCidr]) -> Result<(), TcpError> {
    let config = TcpConfig {
        port: PORT,
        hardware_address: EthernetAddress([0x02, 0, 0, 0, 1, 1]).into(),
        addresses,
        gateways: &[],
    };
    let storage: &mut TcpStorage<'_> = Box::leak(Box::default());
    let server = TcpServer::with_dhcp(&config, &mut world.device, &world.service, storage)?;
    world.server = Server::Own(server);
    Ok(())
}

/// The number of clients that could be served now.
fn free_sessions(world: &mut World<Port>) -> usize {
    let free: Vec<_> = std::iter::from_fn(|| world.service.open()).collect();
    free.iter().for_each(|session| world.service.close(*session));
    free.len()
}

fn addresses(world: &World<Port>) -> Vec<IpCidr> {
    match &world.server {
        Server::Own(server) => server.addresses().to_vec(),
        Server::Guests(..) => panic!("the guest has no stack of its own"),
    }
}

/// A DHCP server with one address to give.
struct DhcpServer(Port);

impl DhcpServer {
    /// Answers all waiting requests.
    fn answer(&mut self, world: &World<Port>) {
        while let Some(frame) = self.take(world) {
            if let Some(reply) = reply(&frame) {
                let sending = self.0.transmit(world.now()).unwrap();
                sending.consume(reply.len(), |bytes| bytes.copy_from_slice(&reply));
            }
        }
    }

    fn ignore(&mut self, world: &World<Port>) {
        while self.take(world).is_some() {}
    }

    fn take(&mut self, world: &World<Port>) -> Option<Vec<u8>> {
        let (received, _) = self.0.receive(world.now())?;
        Some(received.consume(<[u8]>::to_vec))
    }
}

/// An offer for a discover, an acknowledgement for a request, and nothing for other packets.
fn reply(frame: &[u8]) -> Option<Vec<u8>> {
    let checksums = ChecksumCapabilities::default();
    let ethernet = EthernetFrame::new_checked(frame).ok()?;
    if ethernet.ethertype() != EthernetProtocol::Ipv4 {
        return None;
    }
    let ip = Ipv4Packet::new_checked(ethernet.payload()).ok()?;
    if ip.next_header() != IpProtocol::Udp {
        return None;
    }
    let udp = UdpPacket::new_checked(ip.payload()).ok()?;
    let packet = DhcpPacket::new_checked(udp.payload()).ok()?;
    let request = DhcpRepr::parse(&packet).ok()?;
    let message_type = match request.message_type {
        DhcpMessageType::Discover => DhcpMessageType::Offer,
        DhcpMessageType::Request => DhcpMessageType::Ack,
        _ => return None,
    };
    let dhcp = DhcpRepr {
        message_type,
        your_ip: LEASED,
        server_ip: SERVER,
        router: Some(SERVER),
        subnet_mask: Some(Ipv4Address::new(255, 255, 255, 0)),
        requested_ip: None,
        client_identifier: None,
        server_identifier: Some(SERVER),
        parameter_request_list: None,
        max_size: None,
        lease_duration: Some(LEASE_SECONDS),
        ..request
    };
    let udp = UdpRepr { src_port: 67, dst_port: 68 };
    let ip = Ipv4Repr {
        src_addr: SERVER,
        dst_addr: Ipv4Address::BROADCAST,
        next_header: IpProtocol::Udp,
        payload_len: udp.header_len() + dhcp.buffer_len(),
        hop_limit: 64,
    };
    let ethernet = EthernetRepr {
        src_addr: EthernetAddress([0x02, 0, 0, 0, 1, 254]),
        dst_addr: EthernetAddress::BROADCAST,
        ethertype: EthernetProtocol::Ipv4,
    };
    let length = ethernet.buffer_len() + ip.buffer_len() + ip.payload_len;
    let mut bytes = vec![0; length];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes[..]);
    ethernet.emit(&mut frame);
    let mut packet = Ipv4Packet::new_unchecked(frame.payload_mut());
    ip.emit(&mut packet, &checksums);
    let mut datagram = UdpPacket::new_unchecked(packet.payload_mut());
    udp.emit(
        &mut datagram,
        &SERVER.into(),
        &Ipv4Address::BROADCAST.into(),
        dhcp.buffer_len(),
        |payload| dhcp.emit(&mut DhcpPacket::new_unchecked(payload)).unwrap(),
        &checksums,
    );
    Some(bytes)
}
