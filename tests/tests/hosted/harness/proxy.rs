//! A line between client and guest that breaks when it is told to.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use unikprof_proto::{frame, preamble};

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
}

struct Shared {
    guest: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Of the next connection.
    limit: Option<(usize, Then)>,
    /// The same: a type of request, how many of them are forwarded, and what happens at the next one.
    request: Option<(u16, usize, Then)>,
    /// Whether [`State::requests`] are kept.
    keeps_requests: bool,
    /// The requests of each connection that were forwarded: their types and bodies.
    requests: Vec<Vec<(u16, Vec<u8>)>>,
    /// Whether a limit was reached.
    reached: bool,
    connections: Vec<[TcpStream; 2]>,
    closed: bool,
}

impl Proxy {
    /// Forwards connections to `guest`.
    pub(crate) fn to(guest: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            guest,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let serving = Arc::clone(&shared);
        thread::spawn(move || serving.serve(&listener));
        Proxy { address, shared }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection lasts for `bytes` towards the client.
    pub(crate) fn limit_next(&self, bytes: usize, then: Then) {
        self.shared.lock().limit = Some((bytes, then));
    }

    /// The next connection, which is in the clear, lasts until the client sends a message of this type: it has then
    /// read the answers to those before it.
    pub(crate) fn limit_next_at(&self, request: u16, then: Then) {
        self.limit_next_behind(request, 0, then);
    }

    /// The next connection, which is in the clear, lasts for so many messages of this type.
    pub(crate) fn limit_next_behind(&self, request: u16, count: usize, then: Then) {
        self.shared.lock().request = Some((request, count, then));
    }

    /// Keeps the requests of all further connections, which are in the clear.
    pub(crate) fn keep_requests(&self) {
        self.shared.lock().keeps_requests = true;
    }

    /// The bodies of the requests of this type on each connection whose requests are kept.
    pub(crate) fn requests(&self, kind: u16) -> Vec<Vec<Vec<u8>>> {
        let of_kind = |requests: &Vec<(u16, Vec<u8>)>| {
            let found = requests.iter().filter(|request| request.0 == kind);
            found.map(|request| request.1.clone()).collect()
        };
        self.shared.lock().requests.iter().map(of_kind).collect()
    }

    /// Waits until the limit has been reached.
    pub(crate) fn wait_for_limit(&self) {
        let (state, waited) = self
            .shared
            .changed
            .wait_timeout_while(self.shared.lock(), SOON, |state| !state.reached)
            .unwrap();
        assert!(!waited.timed_out(), "the limit was not reached in {SOON:?}");
        drop(state);
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
            let (limit, request) = (state.limit.take(), state.request.take());
            let kept = state.keeps_requests.then_some(state.requests.len());
            state.requests.extend(kept.map(|_| Vec::new()));
            state
                .connections
                .push([&client, &guest].map(|end| end.try_clone().unwrap()));
            drop(state);
            let [from_client, from_guest] = [&client, &guest].map(|end| end.try_clone().unwrap());
            let upwards = Arc::clone(self);
            thread::spawn(move || upwards.forward_requests(from_client, guest, request, kept));
            let downwards = Arc::clone(self);
            thread::spawn(move || downwards.forward(from_guest, client, limit));
        }
    }

    fn forward_requests(
        &self,
        mut from: TcpStream,
        mut to: TcpStream,
        limit: Option<(u16, usize, Then)>,
        kept: Option<usize>,
    ) {
        if limit.is_none() && kept.is_none() {
            return self.forward(from, to, None);
        }
        let mut begin = [0; preamble::LENGTH];
        let mut reached = None;
        if from.read_exact(&mut begin).is_ok() && to.write_all(&begin).is_ok() {
            let mut requests = Vec::new();
            let mut buffer = [0; 1024];
            let mut left = limit.map_or(0, |(_, count, _)| count);
            while reached.is_none()
                && let Ok(length @ 1..) = from.read(&mut buffer)
            {
                requests.extend_from_slice(&buffer[..length]);
                while let Ok(Some(frame)) = frame::split(&requests) {
                    if let Some((kind, _, then)) = limit
                        && frame.kind == kind
                    {
                        let Some(fewer) = left.checked_sub(1) else {
                            reached = Some(then);
                            break;
                        };
                        left = fewer;
                    }
                    let length = frame.length();
                    if let Some(index) = kept {
                        let request = (frame.kind, frame.body.to_vec());
                        self.lock().requests[index].push(request);
                    }
                    if to.write_all(&requests[..length]).is_err() {
                        break;
                    }
                    requests.drain(..length);
                }
            }
        }
        self.end(reached, &from, &to);
    }

    fn forward(&self, mut from: TcpStream, mut to: TcpStream, limit: Option<(usize, Then)>) {
        let mut left = limit.map_or(usize::MAX, |(bytes, _)| bytes);
        let mut buffer = [0; 1024];
        while left > 0 {
            let room = buffer.len().min(left);
            match from.read(&mut buffer[..room]) {
                Ok(length) if length > 0 && to.write_all(&buffer[..length]).is_ok() => {
                    left -= length;
                }
                _ => break,
            }
        }
        let reached = limit.filter(|_| left == 0).map(|(_, then)| then);
        self.end(reached, &from, &to);
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
