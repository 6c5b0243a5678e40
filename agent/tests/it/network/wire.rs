//! A wire between stacks: every frame reaches all other ports, 100 µs later.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use unikprof_agent::Platform;
use unikprof_agent::tcp_server::smoltcp;

use smoltcp::phy::{self, Device, DeviceCapabilities, Medium};
use smoltcp::time::Instant;

use crate::fake_guest::FakePlatform;

pub const LATENCY_NS: u64 = 100_000;

struct Frame {
    due_ns: u64,
    bytes: Vec<u8>,
}

/// The state of a port's cable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cable {
    #[default]
    Plugged,
    /// Receives nothing, but sends everything.
    Deaf,
    /// Neither receives nor sends.
    Cut,
}

struct Socket {
    queue: VecDeque<Frame>,
    cable: Cable,
}

pub struct Wire {
    clock: &'static FakePlatform,
    medium: Medium,
    sockets: RefCell<Vec<Socket>>,
}

impl Wire {
    pub fn new(clock: &'static FakePlatform, medium: Medium) -> Rc<Self> {
        Rc::new(Self { clock, medium, sockets: RefCell::default() })
    }

    pub fn port(self: &Rc<Self>) -> Port {
        let mut sockets = self.sockets.borrow_mut();
        sockets.push(Socket { queue: VecDeque::new(), cable: Cable::Plugged });
        Port { wire: Rc::clone(self), index: sockets.len() - 1 }
    }

    pub fn set_cable(&self, port: usize, cable: Cable) {
        self.sockets.borrow_mut()[port].cable = cable;
    }

    /// Removes all ports except the first ones.
    pub fn keep_ports(&self, count: usize) {
        self.sockets.borrow_mut().truncate(count);
    }

    /// The number of frames that wait for a port.
    pub fn waiting(&self, port: usize) -> usize {
        self.sockets.borrow()[port].queue.len()
    }

    /// When the next frame arrives anywhere.
    pub fn next_ns(&self) -> Option<u64> {
        let sockets = self.sockets.borrow();
        let due =
            sockets.iter().filter_map(|socket| socket.queue.front().map(|frame| frame.due_ns));
        due.min()
    }

    fn send(&self, from: usize, bytes: &[u8]) {
        let due_ns = self.clock.now_ns() + LATENCY_NS;
        let mut sockets = self.sockets.borrow_mut();
        if sockets[from].cable == Cable::Cut {
            return;
        }
        for (index, socket) in sockets.iter_mut().enumerate() {
            if index != from && socket.cable == Cable::Plugged {
                let bytes = bytes.to_vec();
                socket.queue.push_back(Frame { due_ns, bytes });
            }
        }
    }

    fn take(&self, port: usize) -> Option<Vec<u8>> {
        let queue = &mut self.sockets.borrow_mut()[port].queue;
        let due = queue.front()?.due_ns <= self.clock.now_ns();
        due.then(|| queue.pop_front())?.map(|frame| frame.bytes)
    }
}

/// A stack's end of the wire.
#[derive(Clone)]
pub struct Port {
    wire: Rc<Wire>,
    pub index: usize,
}

pub struct Received(Vec<u8>);

pub struct Sending(Port);

impl Device for Port {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sending;

    fn receive(&mut self, _: Instant) -> Option<(Received, Sending)> {
        let bytes = self.wire.take(self.index)?;
        Some((Received(bytes), Sending(self.clone())))
    }

    fn transmit(&mut self, _: Instant) -> Option<Sending> {
        Some(Sending(self.clone()))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = self.wire.medium;
        capabilities.max_transmission_unit = match self.wire.medium {
            Medium::Ethernet => 1514,
            _ => 1500,
        };
        capabilities
    }
}

impl phy::RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl phy::TxToken for Sending {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        let mut bytes = vec![0; length];
        let result = f(&mut bytes);
        self.0.wire.send(self.0.index, &bytes);
        result
    }
}
