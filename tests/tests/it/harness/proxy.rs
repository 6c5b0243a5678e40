//! A line between client and guest that stalls or breaks when it is told to.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::{iter, mem, thread};

use unikprof_proto::{frame, preamble};
use unikprof_test_kit::frames::take_frame;

use super::SOON;

/// A forwarder on loopback. It ends when the value is dropped.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

/// The point at which a connection stalls: it stays open, but nothing moves any more.
#[derive(Clone, Copy, Default)]
enum Stall {
    #[default]
    Never,
    /// After so many bytes towards the client.
    Bytes(usize),
    /// At the first request of this type.
    Request(u16),
}

struct Shared {
    guest: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The stall of the next connection.
    next: Stall,
    /// The bytes towards the client after which a connection is cut.
    each: Option<usize>,
    /// No connection follows the next one.
    is_last: bool,
    /// The bytes forwarded to the guest, by connection.
    sent: Vec<Vec<u8>>,
    has_stalled: bool,
    connections: Vec<[TcpStream; 2]>,
    closed: bool,
}

impl Proxy {
    pub(crate) fn to(guest: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared { guest, state: Mutex::default(), changed: Condvar::new() });
        let serving = Arc::clone(&shared);
        thread::spawn(move || serving.serve(&listener));
        Proxy { address, shared }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection stalls after so many bytes towards the client.
    pub(crate) fn stall_next(&self, bytes: usize) {
        self.shared.lock().next = Stall::Bytes(bytes);
    }

    /// Each connection lasts for `bytes` towards the client.
    pub(crate) fn limit_each(&self, bytes: usize) {
        self.shared.lock().each = Some(bytes);
    }

    /// The next connection lasts for `bytes` towards the client, and is the last one.
    pub(crate) fn limit_last(&self, bytes: usize) {
        self.limit_each(bytes);
        self.shared.lock().is_last = true;
    }

    /// The number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.shared.lock().sent.len()
    }

    /// The next connection, which is in the clear, stalls when the client sends a message of this
    /// type: it has then read the answers to those before it.
    pub(crate) fn stall_next_at(&self, request: u16) {
        self.shared.lock().next = Stall::Request(request);
    }

    /// The bodies of the requests of this type on all connections, which are in the clear.
    pub(crate) fn requests(&self, kind: u16) -> Vec<Vec<u8>> {
        let of_kind = |sent: Vec<u8>| {
            let mut rest = sent[preamble::LENGTH..].to_vec();
            let frames = iter::from_fn(move || take_frame(&mut rest).unwrap());
            frames.filter(move |frame| frame.kind == kind).map(|frame| frame.body)
        };
        self.shared.lock().sent.clone().into_iter().flat_map(of_kind).collect()
    }

    pub(crate) fn wait_for_stall(&self) {
        let (state, waited) = self
            .shared
            .changed
            .wait_timeout_while(self.shared.lock(), SOON, |state| !state.has_stalled)
            .unwrap();
        assert!(!waited.timed_out(), "it has not stalled in {SOON:?}");
        drop(state);
    }

    /// Cuts all connections; new ones are forwarded.
    pub(crate) fn cut(&self) {
        self.shared.lock().cut();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        state.cut();
        drop(state);
        // So that `serve` looks.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn serve(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            let Ok(client) = client else { continue };
            let mut state = self.lock();
            if state.closed {
                return;
            }
            let Ok(guest) = TcpStream::connect(self.guest) else {
                continue;
            };
            let (stall, limit) = (mem::take(&mut state.next), state.each);
            state.closed = state.is_last;
            let number = state.sent.len();
            state.sent.push(Vec::new());
            state.connections.push([&client, &guest].map(|end| end.try_clone().unwrap()));
            drop(state);
            let [from_client, from_guest] = [&client, &guest].map(|end| end.try_clone().unwrap());
            let [upwards, downwards] = [(); 2].map(|()| Arc::clone(self));
            thread::spawn(move || upwards.forward_requests(from_client, guest, number, stall));
            thread::spawn(move || downwards.forward_answers(from_guest, client, stall, limit));
        }
    }

    /// Forwards the requests of the connection with this number.
    fn forward_requests(
        &self,
        mut from: TcpStream,
        mut to: TcpStream,
        number: usize,
        stall: Stall,
    ) {
        let mut received = Vec::new();
        let mut buffer = [0; 1024];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            received.extend_from_slice(&buffer[..read]);
            let mut length = received.len();
            if let Stall::Request(kind) = stall {
                // Whole requests only. The preamble is no frame.
                let is_greeted = !self.lock().sent[number].is_empty();
                length = if is_greeted { 0 } else { preamble::LENGTH };
                if received.len() < length {
                    continue;
                }
                while let Ok(Some(frame)) = frame::split(&received[length..]) {
                    if frame.kind == kind {
                        let _ = to.write_all(&received[..length]);
                        return self.stall();
                    }
                    length += frame.length();
                }
            }
            let passed: Vec<u8> = received.drain(..length).collect();
            self.lock().sent[number].extend_from_slice(&passed);
            if to.write_all(&passed).is_err() {
                break;
            }
        }
        end(&from, &to);
    }

    fn forward_answers(
        &self,
        mut from: TcpStream,
        mut to: TcpStream,
        stall: Stall,
        limit: Option<usize>,
    ) {
        let mut left = match stall {
            Stall::Bytes(bytes) => bytes,
            Stall::Never | Stall::Request(_) => limit.unwrap_or(usize::MAX),
        };
        let mut buffer = [0; 1024];
        while left > 0 {
            let room = buffer.len().min(left);
            let Ok(length @ 1..) = from.read(&mut buffer[..room]) else {
                return end(&from, &to);
            };
            left -= length;
            if to.write_all(&buffer[..length]).is_err() {
                return end(&from, &to);
            }
        }
        match limit {
            Some(_) => end(&from, &to),
            None => self.stall(),
        }
    }

    /// The state has clones of both ends, so they stay open.
    fn stall(&self) {
        self.lock().has_stalled = true;
        self.changed.notify_all();
    }
}

fn end(from: &TcpStream, to: &TcpStream) {
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

impl State {
    fn cut(&self) {
        for end in self.connections.iter().flatten() {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}
