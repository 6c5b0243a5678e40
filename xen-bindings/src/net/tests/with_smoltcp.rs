//! The guest's smoltcp talks to another smoltcp through the rings, with checksums left out on the
//! way.

use std::collections::VecDeque;

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::{tcp, udp};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};

use super::super::checksum::Segment;
use super::*;
use crate::abi::netif::tx;

/// The peer's device: two queues.
#[derive(Default)]
struct Wire {
    to_peer: VecDeque<Vec<u8>>,
    from_peer: VecDeque<Vec<u8>>,
}

struct WireRx(Vec<u8>);
struct WireTx<'a>(&'a mut VecDeque<Vec<u8>>);

impl RxToken for WireRx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for WireTx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let result = f(&mut frame);
        self.0.push_back(frame);
        result
    }
}

impl Device for Wire {
    type RxToken<'a> = WireRx;
    type TxToken<'a> = WireTx<'a>;

    fn receive(&mut self, _: Instant) -> Option<(WireRx, WireTx<'_>)> {
        Some((WireRx(self.to_peer.pop_front()?), WireTx(&mut self.from_peer)))
    }

    fn transmit(&mut self, _: Instant) -> Option<WireTx<'_>> {
        Some(WireTx(&mut self.from_peer))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        capabilities
    }
}

fn interface(device: &mut impl Device, mac: u8, address: IpAddress) -> Interface {
    let mac = HardwareAddress::Ethernet(EthernetAddress([2, 0, 0, 0, 0, mac]));
    let mut interface = Interface::new(Config::new(mac), device, Instant::ZERO);
    interface.update_ip_addrs(|addresses| {
        addresses.push(IpCidr::new(address, 24)).unwrap();
    });
    interface
}

fn tcp_socket(sockets: &mut SocketSet<'_>) -> SocketHandle {
    let buffer = || tcp::SocketBuffer::new(vec![0; 16_384]);
    sockets.add(tcp::Socket::new(buffer(), buffer()))
}

/// Completes a checksum as a network card does: one's complement sum over the segment, with what is
/// in the field already, written to where the transport header has it. Says nothing of our own
/// code.
fn complete_like_hardware(frame: &mut [u8]) {
    let ipv6 = frame[12..14] == [0x86, 0xdd];
    let (start, protocol) =
        if ipv6 { (54, frame[20]) } else { (14 + usize::from(frame[14] & 0xf) * 4, frame[23]) };
    let end = if ipv6 {
        54 + usize::from(u16::from_be_bytes([frame[18], frame[19]]))
    } else {
        14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]))
    };
    let field = start + if protocol == 6 { 16 } else { 6 };
    let mut sum = 0_u64;
    for pair in frame[start..end].chunks(2) {
        sum += u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0));
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    frame[field..field + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

#[derive(Clone, Copy, PartialEq)]
enum Link {
    /// The backend is the same host: the peer's checksums are blank, ours may be.
    SameHost,
    /// Frames come from outside, unverified.
    Outside,
    /// As outside, but every seventh frame is damaged.
    Damaged,
}

fn address(ipv6: bool, last: u16) -> IpAddress {
    if ipv6 {
        IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, last)
    } else {
        IpAddress::v4(10, 0, 0, last as u8)
    }
}

/// Moves 40,000 bytes each way and returns the device's statistics and the flags seen.
fn transfer(
    link: Link,
    ipv6: bool,
    options: Options,
    prepare: impl Fn(&Machine),
) -> (Statistics, Vec<u16>) {
    let machine = Machine::new();
    prepare(machine);
    let (net, mut store) = machine.device();
    let mut net = net.with_options(options);
    net.connect(&mut store).unwrap();
    let mut wire = Wire::default();
    let address = |last| address(ipv6, last);
    let mut guest = interface(&mut net, 1, address(1));
    let mut peer = interface(&mut wire, 2, address(2));
    let (mut guest_sockets, mut peer_sockets) = (SocketSet::new(vec![]), SocketSet::new(vec![]));
    let server = tcp_socket(&mut guest_sockets);
    let client = tcp_socket(&mut peer_sockets);
    guest_sockets.get_mut::<tcp::Socket<'_>>(server).listen(7777).unwrap();
    peer_sockets
        .get_mut::<tcp::Socket<'_>>(client)
        .connect(peer.context(), (address(1), 7777), 40_000)
        .unwrap();

    let data: Vec<u8> = (0..40_000_u32).map(|i| (i * 7 + i / 251) as u8).collect();
    let (mut up, mut down, mut flags_seen, mut count) = (0, Vec::new(), Vec::new(), 0_u32);
    let mut echoed = 0;
    let mut pending = VecDeque::new();
    for step in 0..200_000_i64 {
        let now = Instant::from_millis(step);
        peer.poll(now, &mut wire, &mut peer_sockets);
        while let Some(mut frame) = wire.from_peer.pop_front() {
            count += 1;
            let mut flags = 0;
            if link == Link::SameHost
                && let Some(segment) = Segment::find(&frame)
            {
                segment.leave_to_backend(&mut frame);
                flags = rx::CSUM_BLANK | rx::DATA_VALIDATED;
            }
            if link == Link::Damaged && count.is_multiple_of(7) {
                *frame.last_mut().unwrap() ^= 0x10;
            }
            machine.backend.deliver_with_flags(&machine.xen, &frame, flags);
        }
        guest.poll(now, &mut net, &mut guest_sockets);
        for (mut frame, flags) in machine.backend.sent_with_flags() {
            flags_seen.push(flags);
            if flags & tx::CSUM_BLANK != 0 {
                complete_like_hardware(&mut frame);
            }
            wire.to_peer.push_back(frame);
        }
        let socket = guest_sockets.get_mut::<tcp::Socket<'_>>(server);
        if socket.can_recv() {
            socket.recv(|bytes| (bytes.len(), pending.extend(bytes.iter().copied()))).unwrap();
        }
        while socket.can_send() && !pending.is_empty() {
            let count = socket.send_slice(pending.make_contiguous()).unwrap();
            pending.drain(..count);
            echoed += count;
        }
        let socket = peer_sockets.get_mut::<tcp::Socket<'_>>(client);
        if socket.can_send() && up < data.len() {
            up += socket.send_slice(&data[up..]).unwrap();
        }
        if socket.can_recv() {
            socket.recv(|bytes| (bytes.len(), down.extend_from_slice(bytes))).unwrap();
        }
        if down.len() == data.len() {
            break;
        }
    }
    assert_eq!(echoed, data.len());
    assert_eq!(down, data, "what came back is not what was sent");
    assert!(net.is_healthy());
    (net.statistics(), flags_seen)
}

#[test]
fn tcp_passes_with_checksums_left_to_the_backend() {
    for ipv6 in [false, true] {
        let (statistics, flags) = transfer(Link::SameHost, ipv6, Options::default(), |_| {});
        assert_eq!(statistics.bad_checksum, 0);
        assert!(flags.iter().filter(|flags| **flags & tx::CSUM_BLANK != 0).count() > 20);
    }
}

#[test]
fn tcp_from_outside_is_verified() {
    for ipv6 in [false, true] {
        let (statistics, _) = transfer(Link::Outside, ipv6, Options::default(), |_| {});
        assert_eq!(statistics.bad_checksum, 0);
        let (statistics, _) = transfer(Link::Damaged, ipv6, Options::default(), |_| {});
        assert!(statistics.bad_checksum > 0, "damaged frames were taken");
    }
}

/// The node says that the backend completes nothing: every checksum is computed here.
#[test]
fn without_an_offer_nothing_is_left_blank() {
    for ipv6 in [false, true] {
        let (_, flags) = transfer(Link::Outside, ipv6, Options::default(), |machine| {
            let backend = FakeNetback::path();
            machine.daemon.set(&std::format!("{backend}/feature-no-csum-offload"), "1");
            machine.daemon.remove(&std::format!("{backend}/feature-ipv6-csum-offload"));
        });
        assert!(flags.iter().all(|flags| *flags == 0));
    }
}

#[test]
fn without_offload_smoltcp_does_it_all() {
    let options = Options { checksum_offload: false, ..Options::default() };
    let (statistics, flags) = transfer(Link::Outside, false, options, |machine| {
        let node = std::format!("{}/feature-no-csum-offload", FakeNetback::frontend_path());
        assert_eq!(machine.daemon.get(&node), None);
    });
    assert!(flags.iter().all(|flags| *flags == 0));
    assert_eq!(statistics.bad_checksum, 0);
    let (machine, net, mut store) = device();
    let mut net = net.with_options(options);
    net.connect(&mut store).unwrap();
    assert!(matches!(net.capabilities().checksum.tcp, Checksum::Both));
    let node = std::format!("{}/feature-no-csum-offload", FakeNetback::frontend_path());
    assert_eq!(machine.daemon.get(&node).as_deref(), Some("1"), "the backend is notified");
}

/// A blank UDP checksum, as name servers and DHCP servers on the same host send.
#[test]
fn a_blank_udp_datagram_is_completed_and_received() {
    for ipv6 in [false, true] {
        let (machine, mut net, _) = connected();
        let mut wire = Wire::default();
        let address = |last| address(ipv6, last);
        let mut guest = interface(&mut net, 1, address(1));
        let mut peer = interface(&mut wire, 2, address(2));
        let socket = || {
            let buffer =
                || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 4], vec![0; 2048]);
            udp::Socket::new(buffer(), buffer())
        };
        let (mut guest_sockets, mut peer_sockets) =
            (SocketSet::new(vec![]), SocketSet::new(vec![]));
        let receiver = guest_sockets.add(socket());
        let sender = peer_sockets.add(socket());
        guest_sockets.get_mut::<udp::Socket<'_>>(receiver).bind(53).unwrap();
        peer_sockets.get_mut::<udp::Socket<'_>>(sender).bind(1053).unwrap();
        peer_sockets
            .get_mut::<udp::Socket<'_>>(sender)
            .send_slice(b"odd length!", (address(1), 53))
            .unwrap();
        for step in 0..20 {
            let now = Instant::from_millis(step * 1_000);
            peer.poll(now, &mut wire, &mut peer_sockets);
            while let Some(mut frame) = wire.from_peer.pop_front() {
                if let Some(segment) = Segment::find(&frame) {
                    segment.leave_to_backend(&mut frame);
                }
                machine.backend.deliver_with_flags(&machine.xen, &frame, rx::CSUM_BLANK);
            }
            guest.poll(now, &mut net, &mut guest_sockets);
            wire.to_peer.extend(machine.backend.sent());
        }
        let socket = guest_sockets.get_mut::<udp::Socket<'_>>(receiver);
        assert_eq!(socket.recv().unwrap().0, b"odd length!");
    }
}

/// Any bytes may come from outside: none of them panic.
#[test]
fn frames_of_nonsense_are_survived() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for _ in 0..20_000 {
        let mut frame: Vec<u8> = (0..next() % 80).map(|_| next() as u8).collect();
        if frame.len() > 24 {
            let kinds: [&[u8]; 2] = [&[8, 0, 0x45], &[0x86, 0xdd, 0x60]];
            frame[12..15].copy_from_slice(kinds[(next() % 2) as usize]);
            (frame[16], frame[18], frame[23], frame[20]) = (0, 0, 6, 17);
        }
        if let Some(segment) = Segment::find(&frame) {
            let _ = segment.is_valid(&frame);
            segment.leave_to_backend(&mut frame);
            segment.complete(&mut frame);
            assert!(segment.is_fragment || segment.is_valid(&frame));
        }
    }
}
