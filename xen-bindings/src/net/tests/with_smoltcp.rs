//! The guest's smoltcp talks to another smoltcp through the rings.

use std::collections::VecDeque;

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};

use super::*;

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

/// Moves 40,000 bytes each way. If it is damaged, the link changes every seventh frame to the guest.
fn transfer(is_damaged: bool) {
    let (machine, mut net, _) = connected();
    let mut wire = Wire::default();
    let address = |last| IpAddress::v4(10, 0, 0, last);
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
    let (mut up, mut down, mut count) = (0, Vec::new(), 0_u32);
    let mut echoed = 0;
    let mut pending = VecDeque::new();
    for step in 0..200_000_i64 {
        let now = Instant::from_millis(step);
        peer.poll(now, &mut wire, &mut peer_sockets);
        while let Some(mut frame) = wire.from_peer.pop_front() {
            count += 1;
            if is_damaged && count.is_multiple_of(7) {
                *frame.last_mut().unwrap() ^= 0x10;
            }
            machine.deliver(&frame);
        }
        guest.poll(now, &mut net, &mut guest_sockets);
        wire.to_peer.extend(machine.backend.sent());
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
}

/// smoltcp verifies what comes in, and the backend takes each frame as it is.
#[test]
fn tcp_passes_and_is_verified() {
    for is_damaged in [false, true] {
        transfer(is_damaged);
    }
}
