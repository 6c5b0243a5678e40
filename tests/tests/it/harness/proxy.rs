//! A line between client and guest that breaks, or changes a byte, when it is told to.

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

/// What happens to a connection after so many bytes towards the client, or at a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// It is cut, and the next one is forwarded.
    Cut,
    /// It is cut, and no other is accepted.
    CutForGood,
    /// It stays open, but nothing moves any more.
    Stall,
    /// Nothing more goes to the guest until it is [released](Proxy::release).
    Hold,
}

/// A direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    ToGuest,
    ToClient,
}

struct Shared {
    guest: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    next: Plan,
    /// How many bytes towards the client each other connection lasts for.
    each: Option<usize>,
    /// What was forwarded to the guest, by connection.
    sent: Vec<Vec<u8>>,
    /// How many bytes came back on the last connection.
    answered: usize,
    reached: bool,
    released: bool,
    connections: Vec<[TcpStream; 2]>,
    closed: bool,
}

/// What happens to one connection.
#[derive(Default)]
struct Plan {
    /// Bytes towards the client.
    limit: Option<(usize, Then)>,
    /// A type of request, how many of them are forwarded, and what happens at the next one.
    request: Option<(u16, usize, Then)>,
    /// A byte of which one bit is changed.
    altered: Option<(Way, usize)>,
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

    /// The next connection lasts for `bytes` towards the client.
    pub(crate) fn limit_next(&self, bytes: usize, then: Then) {
        self.shared.lock().next.limit = Some((bytes, then));
    }

    /// Each connection lasts for `bytes` towards the client.
    pub(crate) fn limit_each(&self, bytes: usize) {
        self.shared.lock().each = Some(bytes);
    }

    /// The next connection, which is in the clear, lasts until the client sends a message of this
    /// type: it has then read the answers to those before it.
    pub(crate) fn limit_next_at(&self, request: u16, then: Then) {
        self.limit_next_behind(request, 0, then);
    }

    /// The next connection, which is in the clear, lasts for so many messages of this type.
    pub(crate) fn limit_next_behind(&self, request: u16, count: usize, then: Then) {
        self.shared.lock().next.request = Some((request, count, then));
    }

    /// In the next connection a bit of one byte is changed on this way.
    pub(crate) fn alter_next(&self, way: Way, at: usize) {
        self.shared.lock().next.altered = Some((way, at));
    }

    /// The bytes that were forwarded to the guest, by connection.
    pub(crate) fn sent(&self) -> Vec<Vec<u8>> {
        self.shared.lock().sent.clone()
    }

    /// How many bytes were forwarded to the client on the last connection.
    pub(crate) fn answered(&self) -> usize {
        self.shared.lock().answered
    }

    /// The bodies of the requests of this type on each connection; all of them are in the clear.
    pub(crate) fn requests(&self, kind: u16) -> Vec<Vec<Vec<u8>>> {
        let of_kind = |sent: Vec<u8>| {
            let mut rest = sent[preamble::LENGTH..].to_vec();
            let frames = iter::from_fn(|| take_frame(&mut rest).unwrap());
            let frames = frames.filter(|frame| frame.kind == kind);
            frames.map(|frame| frame.body).collect()
        };
        self.sent().into_iter().map(of_kind).collect()
    }

    pub(crate) fn wait_for_limit(&self) {
        let (state, waited) = self
            .shared
            .changed
            .wait_timeout_while(self.shared.lock(), SOON, |state| !state.reached)
            .unwrap();
        assert!(!waited.timed_out(), "the limit was not reached in {SOON:?}");
        drop(state);
    }

    /// Lets what was [held](Then::Hold) pass.
    pub(crate) fn release(&self) {
        self.shared.lock().released = true;
        self.shared.changed.notify_all();
    }

    pub(crate) fn connections(&self) -> usize {
        self.shared.lock().connections.len()
    }

    /// Cuts all connections; new ones are forwarded.
    pub(crate) fn cut(&self) {
        self.shared.lock().cut();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.close();
        // So that `serve` looks.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.cut();
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
            let plan = mem::take(&mut state.next);
            let limit = plan.limit.or(state.each.map(|bytes| (bytes, Then::Cut)));
            let number = state.sent.len();
            state.sent.push(Vec::new());
            state.connections.push([&client, &guest].map(|end| end.try_clone().unwrap()));
            drop(state);
            let [from_client, from_guest] = [&client, &guest].map(|end| end.try_clone().unwrap());
            let altered = |way| plan.altered.filter(|it| it.0 == way).map(|(_, at)| at);
            let [up, down] = [Way::ToGuest, Way::ToClient].map(altered);
            let upwards = Arc::clone(self);
            thread::spawn(move || match plan.request {
                Some(limit) => upwards.forward_requests(from_client, guest, number, limit),
                None => upwards.forward(from_client, guest, Some(number), None, up),
            });
            let downwards = Arc::clone(self);
            thread::spawn(move || downwards.forward(from_guest, client, None, limit, down));
        }
    }

    /// Forwards whole requests of the connection with this number.
    fn forward_requests(
        &self,
        mut from: TcpStream,
        mut to: TcpStream,
        number: usize,
        (kind, mut left, then): (u16, usize, Then),
    ) {
        let mut received = Vec::new();
        let mut buffer = [0; 1024];
        let (mut is_greeted, mut reached) = (false, None);
        while reached.is_none()
            && let Ok(read @ 1..) = from.read(&mut buffer)
        {
            received.extend_from_slice(&buffer[..read]);
            loop {
                let length = match frame::split(&received) {
                    // The preamble is no frame.
                    _ if !is_greeted => preamble::LENGTH,
                    Ok(Some(frame)) if frame.kind == kind && left == 0 && then == Then::Hold => {
                        left = usize::MAX;
                        self.hold();
                        frame.length()
                    }
                    Ok(Some(frame)) if frame.kind == kind && left == 0 => {
                        reached = Some(then);
                        break;
                    }
                    Ok(Some(frame)) => {
                        left -= usize::from(frame.kind == kind);
                        frame.length()
                    }
                    _ => break,
                };
                if received.len() < length {
                    break;
                }
                is_greeted = true;
                let whole: Vec<u8> = received.drain(..length).collect();
                self.lock().sent[number].extend_from_slice(&whole);
                if to.write_all(&whole).is_err() {
                    break;
                }
            }
        }
        self.end(reached, &from, &to);
    }

    /// Forwards bytes, which are kept if `sent` is the connection's number and else counted, and
    /// changes the one at `altered`.
    fn forward(
        &self,
        mut from: TcpStream,
        mut to: TcpStream,
        sent: Option<usize>,
        limit: Option<(usize, Then)>,
        altered: Option<usize>,
    ) {
        let mut left = limit.map_or(usize::MAX, |(bytes, _)| bytes);
        let mut passed = 0;
        let mut buffer = [0; 1024];
        while left > 0 {
            let room = buffer.len().min(left);
            let Ok(length @ 1..) = from.read(&mut buffer[..room]) else {
                break;
            };
            let altered = altered.and_then(|at| at.checked_sub(passed));
            if let Some(byte) = altered.and_then(|at| buffer[..length].get_mut(at)) {
                *byte ^= 4;
            }
            passed += length;
            left -= length;
            match sent {
                Some(number) => self.lock().sent[number].extend_from_slice(&buffer[..length]),
                None => self.lock().answered = passed,
            }
            if to.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        let reached = limit.filter(|_| left == 0).map(|(_, then)| then);
        self.end(reached, &from, &to);
    }

    fn hold(&self) {
        let mut state = self.lock();
        state.reached = true;
        self.changed.notify_all();
        let is_held = |state: &mut State| !state.released && !state.closed;
        drop(self.changed.wait_timeout_while(state, SOON, is_held).unwrap());
    }

    /// Ends a connection, by itself or because its limit was reached.
    fn end(&self, reached: Option<Then>, from: &TcpStream, to: &TcpStream) {
        if let Some(then) = reached {
            if then == Then::CutForGood {
                self.close();
            }
            self.lock().reached = true;
            self.changed.notify_all();
            if then == Then::Stall {
                // The proxy keeps clones of both ends, so they stay open.
                return;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
}

impl State {
    fn cut(&self) {
        for end in self.connections.iter().flatten() {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}
