#![allow(clippy::unwrap_used)]

use super::*;
use crate::abi::netif::{RxRequest, RxResponse, TxRequest, TxResponse, rx};
use crate::channel::PolledChannel;
use crate::clock::Clock;
use crate::errno::Errno;
use crate::fake::netback::FakeNetback;
use crate::fake::store::FakeStore;
use crate::fake::{FakeXen, leak_page};
use crate::memory::SharedInfoPage;
use crate::ring::RingError;
use crate::vcpu::VcpuId;
use crate::xenbus::XenbusState;
use crate::xenstore::StoreError;
use std::boxed::Box;
use std::vec;
use std::vec::Vec;

const TX: usize = 4;
const RX: usize = 8;

type TestNet = Netfront<'static, &'static FakeXen, 1, TX, RX>;
type TestStore = Store<PolledChannel<'static, &'static FakeXen>>;

/// The parts that outlive a device.
struct Machine {
    xen: FakeXen,
    daemon: FakeStore,
    backend: FakeNetback,
    grants: GrantTable<1>,
    shared: SharedInfoPage,
}

impl Machine {
    fn new() -> &'static Self {
        let xen = FakeXen::new();
        let daemon = FakeStore::new(&xen);
        let backend = FakeNetback::new(&xen, &daemon);
        let grants = GrantTable::map(&xen, [leak_page()]).unwrap();
        let shared = SharedInfoPage::map(&xen, leak_page()).unwrap();
        Box::leak(Box::new(Self { xen, daemon, backend, grants, shared }))
    }

    fn events(&'static self) -> EventChannels<&'static FakeXen> {
        EventChannels::new(&self.xen, self.shared.get())
    }

    fn store(&'static self) -> TestStore {
        let clock = Clock::new(self.shared.get(), VcpuId(0)).unwrap();
        self.daemon.connect_with(&self.xen, self.events(), clock)
    }

    fn device(&'static self) -> (TestNet, TestStore) {
        let net = Netfront::new(0, self.events(), &self.grants, NetPages::new(leak_page));
        (net, self.store())
    }

    fn deliver(&self, frame: &[u8]) -> bool {
        self.backend.deliver(&self.xen, frame)
    }

    fn hold(&self, holds: bool) {
        self.backend.hold(&self.xen, holds);
    }
}

/// A device that was not connected yet.
fn device() -> (&'static Machine, TestNet, TestStore) {
    let machine = Machine::new();
    let (net, store) = machine.device();
    (machine, net, store)
}

/// A connected device.
fn connected() -> (&'static Machine, TestNet, TestStore) {
    let (machine, mut net, mut store) = device();
    net.connect(&mut store).unwrap();
    (machine, net, store)
}

fn receive(net: &mut TestNet) -> Result<Option<Vec<u8>>, NetError> {
    let mut frame = [0; MAX_FRAME];
    Ok(net.receive(&mut frame)?.map(|received| frame[..received].to_vec()))
}

#[test]
fn frames_pass_both_ways_however_often_the_rings_wrap() {
    let (machine, mut net, _) = connected();
    assert_eq!(net.mac(), Some([0, 0x16, 0x3e, 1, 2, 3]));
    for number in 0..1_000_u16 {
        let frame = vec![number as u8; 60 + usize::from(number)];
        net.send(&frame).unwrap();
        assert_eq!(machine.backend.sent(), core::slice::from_ref(&frame));
        assert!(machine.deliver(&frame));
        assert_eq!(receive(&mut net), Ok(Some(frame)));
        assert_eq!(receive(&mut net), Ok(None));
    }
    let statistics = net.statistics();
    assert_eq!((statistics.sent, statistics.received), (1_000, 1_000));
}

#[test]
fn several_frames_are_in_flight_each_way() {
    let (machine, mut net, _) = connected();
    machine.hold(true);
    for number in 0..TX as u8 {
        net.send(&[number; 60]).unwrap();
    }
    assert_eq!(net.send(&[9; 60]), Err(NetError::Full));
    machine.hold(false);
    assert_eq!(machine.backend.sent().len(), TX);
    assert_eq!(net.can_send(), Ok(true));

    for number in 0..RX as u8 {
        assert!(machine.deliver(&[number; 60]));
    }
    assert!(!machine.deliver(&[9; 60]), "every buffer is filled");
    for number in 0..RX as u8 {
        assert_eq!(receive(&mut net), Ok(Some(vec![number; 60])));
    }
    assert!(machine.deliver(&[9; 60]), "buffers are posted again");
}

/// Guards against a guest that sleeps while frames or free buffers wait.
#[test]
fn the_guest_is_notified_after_it_found_nothing() {
    let (machine, mut net, _) = connected();
    let events = machine.events();
    let port = net.port().unwrap();
    assert_eq!(receive(&mut net), Ok(None));
    events.take_pending(port);
    let asked = machine.backend.rx(&machine.xen, |ring| {
        let request: RxRequest = ring.take_request().unwrap();
        ring.respond(RxResponse { id: request.id, offset: 0, flags: 0, status: 60 })
    });
    assert_eq!(asked, Some(true), "the event index asks for this response");

    // The first answer is announced anyway: later ones must be asked for.
    net.send(&[1; 60]).unwrap();
    machine.hold(true);
    while net.send(&[1; 60]).is_ok() {}
    let asked = machine.backend.tx(&machine.xen, |ring| {
        let request: TxRequest = ring.take_request().unwrap();
        ring.respond(TxResponse { id: request.id, status: 0 })
    });
    assert_eq!(asked, Some(true));
    assert_eq!(net.can_send(), Ok(true));
}

#[test]
fn frames_of_impossible_size_are_refused() {
    let (_, mut net, _) = connected();
    for len in [0, MAX_FRAME + 1, 70_000] {
        assert_eq!(net.send(&vec![0; len]), Err(NetError::FrameSize { len }));
    }
}

#[test]
fn failures_the_backend_reports_are_counted() {
    let (machine, mut net, _) = connected();
    machine.hold(true);
    net.send(&[1; 60]).unwrap();
    machine.backend.tx(&machine.xen, |ring| {
        let request: TxRequest = ring.take_request().unwrap();
        ring.respond(TxResponse { id: request.id, status: -2 })
    });
    machine.backend.rx(&machine.xen, |ring| {
        let request: RxRequest = ring.take_request().unwrap();
        ring.respond(RxResponse { id: request.id, offset: 0, flags: 0, status: -1 })
    });
    assert_eq!(receive(&mut net), Ok(None));
    net.can_send().unwrap();
    let statistics = net.statistics();
    assert_eq!((statistics.send_failed, statistics.receive_failed), (1, 1));
    assert!(net.is_healthy());
}

/// Writes a response to the next receive request, changed by a lie.
fn lie_about_receive(machine: &Machine, lie: impl FnOnce(&mut RxResponse)) {
    machine.backend.rx(&machine.xen, |ring| {
        let request: RxRequest = ring.take_request().unwrap();
        let mut response = RxResponse { id: request.id, offset: 0, flags: 0, status: 60 };
        lie(&mut response);
        ring.respond(response);
    });
}

/// Guards against reading past the page, and against trusting a backend once it lied.
#[test]
fn lengths_past_the_page_end_the_connection() {
    for (offset, status) in [(4096, 1), (4000, 97), (0, 4097), (u16::MAX, i16::MAX)] {
        let (machine, mut net, _) = connected();
        lie_about_receive(machine, |response| {
            (response.offset, response.status) = (offset, status);
        });
        let len = status.unsigned_abs();
        assert_eq!(receive(&mut net), Err(NetError::PastPage { offset, len }));
        assert!(!net.is_healthy());
        assert_eq!(receive(&mut net), Err(NetError::Ring(RingError::Broken)));
    }
}

#[test]
fn the_very_end_of_a_page_is_inside() {
    let (machine, mut net, _) = connected();
    lie_about_receive(machine, |response| {
        (response.offset, response.status) = (4036, 60);
    });
    assert_eq!(receive(&mut net), Ok(Some(vec![0; 60])));
}

#[test]
fn ids_never_asked_for_end_the_connection() {
    for id in [1, 8, 255, u16::MAX] {
        let (machine, mut net, _) = connected();
        lie_about_receive(machine, |response| response.id = id);
        assert_eq!(receive(&mut net), Err(NetError::UnknownId { id }));
        assert!(!net.is_healthy());
    }
    for id in [1, 4, u16::MAX] {
        let (machine, mut net, _) = connected();
        machine.hold(true);
        net.send(&[1; 60]).unwrap(); // id 0
        machine.backend.tx(&machine.xen, |ring| ring.respond(TxResponse { id, status: 0 }));
        assert_eq!(net.can_send(), Err(NetError::UnknownId { id }));
        assert!(!net.is_healthy());
    }
}

/// Guards against freeing a buffer twice: the second frame in it would be overwritten in flight.
#[test]
fn a_request_is_answered_once_only() {
    let (machine, mut net, _) = connected();
    machine.hold(true);
    net.send(&[1; 60]).unwrap();
    net.send(&[2; 60]).unwrap();
    machine.backend.tx(&machine.xen, |ring| {
        ring.respond(TxResponse { id: 1, status: 0 });
        ring.respond(TxResponse { id: 1, status: 0 });
    });
    assert_eq!(net.can_send(), Err(NetError::UnknownId { id: 1 }));
}

#[test]
fn producers_that_jump_end_the_connection() {
    for jump in [9, 256, u32::MAX] {
        let (machine, mut net, _) = connected();
        machine.backend.rx(&machine.xen, |ring| ring.jump(jump));
        let expected = RingError::ProducerJumped { claimed: jump, outstanding: 8 };
        assert_eq!(receive(&mut net), Err(NetError::Ring(expected)));
        machine.backend.tx(&machine.xen, |ring| ring.jump(jump));
        let expected = RingError::ProducerJumped { claimed: jump, outstanding: 0 };
        assert_eq!(net.can_send(), Err(NetError::Ring(expected)));
        assert!(!net.is_healthy());
    }
}

#[test]
fn a_frame_in_pieces_is_dropped_whole() {
    let (machine, mut net, _) = connected();
    machine.backend.deliver_with_flags(&machine.xen, &[1; 60], rx::MORE_DATA);
    assert_eq!(receive(&mut net), Ok(None));
    machine.backend.deliver_with_flags(&machine.xen, &[2; 60], rx::MORE_DATA);
    machine.deliver(&[3; 60]);
    machine.deliver(&[4; 60]);
    assert_eq!(receive(&mut net), Ok(Some(vec![4; 60])));
    assert_eq!(net.statistics().oversized, 1);
}

/// It is asked to complete them.
#[test]
fn a_frame_that_the_backend_leaves_without_checksum_is_dropped_and_counted() {
    let (machine, mut net, _) = connected();
    let node = std::format!("{}/feature-no-csum-offload", FakeNetback::frontend_path());
    assert_eq!(machine.daemon.get(&node).as_deref(), Some("1"));
    machine.backend.deliver_with_flags(&machine.xen, &[1; 60], rx::CSUM_BLANK);
    machine.deliver(&[2; 60]);
    assert_eq!(receive(&mut net), Ok(Some(vec![2; 60])));
    assert_eq!((net.statistics().blank, net.statistics().received), (1, 1));
}

/// Extra information has no id: it comes in the slot of a request, whose buffer is posted again.
#[test]
fn extra_information_is_passed_over() {
    let (machine, mut net, _) = connected();
    for round in 0..100 {
        machine.backend.deliver_with_flags(&machine.xen, &[round; 60], rx::EXTRA_INFO);
        for flags in [1, 0] {
            machine.backend.rx(&machine.xen, |ring| {
                let _: RxRequest = ring.take_request().unwrap();
                // Type 1 in the first byte, flags in the second.
                ring.respond(RxResponse { id: 1 | flags << 8, ..RxResponse::default() });
            });
        }
        assert_eq!(receive(&mut net), Ok(Some(vec![round; 60])));
    }
    assert_eq!(receive(&mut net), Ok(None));
    assert!(net.is_healthy());
}

#[test]
fn a_closed_device_gives_everything_back_and_connects_again() {
    let (machine, mut net, mut store) = device();
    let (free, ports) = (machine.grants.free(), machine.xen.open_ports());
    for round in 1..4 {
        net.connect(&mut store).unwrap();
        assert_eq!(machine.grants.free(), free - TX - RX - 2);
        net.send(&[round; 60]).unwrap();
        assert_eq!(machine.backend.sent(), [vec![round; 60]]);
        assert_eq!(machine.backend.connections(), u32::from(round));
        net.close(&mut store).unwrap();
        assert_eq!((machine.grants.free(), machine.xen.open_ports()), (free, ports));
        assert_eq!(net.send(&[1; 60]), Err(NetError::NotConnected));
    }
}

/// Guards against giving a page away that a hanging backend still writes to.
#[test]
fn pages_the_backend_keeps_stay_lent_and_are_used_again() {
    let (machine, mut net, mut store) = connected();
    let free = machine.grants.free();
    machine.backend.keep_mapped(true);
    net.close(&mut store).unwrap();
    assert_eq!(machine.grants.free(), free + TX + RX, "two ring pages are kept");
    net.connect(&mut store).unwrap();
    net.send(&[1; 60]).unwrap();
    assert_eq!(machine.backend.sent(), [vec![1; 60]]);
    assert_eq!(machine.grants.free(), free);
}

#[test]
fn a_device_recovers_from_a_lie_by_reconnecting() {
    let (machine, mut net, mut store) = connected();
    machine.backend.rx(&machine.xen, |ring| ring.jump(77));
    assert!(receive(&mut net).is_err());
    net.reconnect(&mut store).unwrap();
    assert!(machine.deliver(&[5; 60]));
    assert_eq!(receive(&mut net), Ok(Some(vec![5; 60])));
}

/// After a migration nothing of the old domain exists: new grants, new port, and no touch of the
/// old ones.
#[test]
fn a_device_resumes_in_a_new_domain() {
    let (machine, mut net, _) = connected();
    let old_port = net.port().unwrap();
    crate::sched::suspend(&machine.xen).unwrap();
    assert!(!machine.xen.is_open(old_port));
    machine.shared.map_again(&machine.xen).unwrap();
    machine.grants.resume(&machine.xen).unwrap();
    // The tools make the device anew.
    machine.daemon.set(&std::format!("{}/state", FakeNetback::path()), "2");
    machine.daemon.set(&std::format!("{}/state", FakeNetback::frontend_path()), "1");
    // Takes the number the device's port had.
    while !machine.xen.is_open(old_port) {
        machine.events().alloc_unbound(7).unwrap();
    }
    let mut store = machine.store();
    net.resume(&mut store).unwrap();
    assert!(machine.xen.is_open(old_port), "another's port was closed");
    assert_ne!(net.port(), Some(old_port));
    net.send(&[6; 60]).unwrap();
    assert_eq!(machine.backend.sent(), [vec![6; 60]]);
}

#[test]
fn a_backend_that_never_comes_is_a_typed_error() {
    let (machine, mut net, mut store) = device();
    let free = machine.grants.free();
    machine.daemon.set(&std::format!("{}/state", FakeNetback::path()), "8");
    let expected =
        NetError::Backend { expected: XenbusState::InitWait, found: XenbusState::Reconfigured };
    assert_eq!(net.connect(&mut store), Err(expected));
    machine.daemon.remove(FakeNetback::path());
    let expected =
        NetError::Backend { expected: XenbusState::InitWait, found: XenbusState::Absent };
    assert_eq!(net.connect(&mut store), Err(expected));
    assert_eq!(machine.grants.free(), free);
}

/// A guest that was replaced without closing: the backend is connected to rings that are gone.
#[test]
fn a_connection_of_an_earlier_life_is_closed_first() {
    let (machine, earlier, _) = connected();
    let (mut net, mut store) = machine.device();
    net.connect(&mut store).unwrap();
    assert_ne!(net.port(), earlier.port());
    assert_eq!(machine.backend.connections(), 2);
    net.send(&[1; 60]).unwrap();
    assert_eq!(machine.backend.sent(), [vec![1; 60]]);
}

#[test]
fn configuration_that_makes_no_sense_is_a_typed_error() {
    for (node, value, expected) in [
        ("mac", "00:16", NetError::Configuration("mac")),
        ("backend-id", "65536", NetError::Configuration("backend-id")),
        ("backend-id", "x", NetError::Store(StoreError::BadValue)),
    ] {
        let (machine, mut net, mut store) = device();
        machine.daemon.set(&std::format!("{}/{node}", FakeNetback::frontend_path()), value);
        assert_eq!(net.connect(&mut store), Err(expected));
    }
    let (machine, mut net, mut store) = device();
    machine.daemon.remove(&std::format!("{}/feature-rx-copy", FakeNetback::path()));
    assert_eq!(net.connect(&mut store), Err(NetError::NoReceiveCopy));
    machine.daemon.remove(FakeNetback::frontend_path());
    let expected = NetError::Store(StoreError::Refused(Errno::ENOENT));
    assert_eq!(net.connect(&mut store), Err(expected));
}

#[cfg(feature = "smoltcp")]
mod with_smoltcp;
