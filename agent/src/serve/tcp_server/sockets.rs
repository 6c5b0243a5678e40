//! The agent's TCP sockets, in its own set or in the guest's.

use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Duration;

use crate::ground::platform::Platform;
use crate::serve::service::{SESSIONS, Service, SessionId};

/// The number of sockets: one for each session, and one to tell a further client that all are in
/// use.
///
/// A stack without a backlog resets a connection for which no socket listens.
pub const SOCKETS: usize = SESSIONS + 1;

/// The length of a socket's receive buffer: more than a request, and than a segment on Ethernet.
const RECEIVE: usize = 2048;

/// After this time without packets a keep-alive is sent.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// A client that answers nothing for this long, neither data nor keep-alives, has vanished.
const TIMEOUT: Duration = Duration::from_secs(15);
/// A client that does not finish its TCP handshake is dropped after 3 s.
const HANDSHAKE_NS: u64 = 3_000_000_000;
/// A client that gets no session within 1 s gets the answer that all are in use.
const WAITING_NS: u64 = 1_000_000_000;
/// A client that does not close its side of a finished conversation is reset after 2 s.
const LINGER_NS: u64 = 2_000_000_000;
/// A reset that cannot be sent is dropped after 1 s.
const RESET_NS: u64 = 1_000_000_000;
/// The most times that a poll reads and writes one socket in a row.
const TURNS: usize = 4;

/// The buffers of [`TcpSockets`]: 2 KiB for receiving and `SEND` bytes for sending for each socket.
///
/// `SEND` limits the download rate to that many bytes per round trip.
#[derive(Debug)]
pub struct TcpBuffers<const SEND: usize = 16384> {
    receive: [[u8; RECEIVE]; SOCKETS],
    send: [[u8; SEND]; SOCKETS],
}

impl<const SEND: usize> TcpBuffers<SEND> {
    /// Empty buffers, all zeros: a `static` of them takes no room in the image.
    pub const fn new() -> Self {
        Self { receive: [[0; RECEIVE]; SOCKETS], send: [[0; SEND]; SOCKETS] }
    }
}

impl<const SEND: usize> Default for TcpBuffers<SEND> {
    fn default() -> Self {
        Self::new()
    }
}

/// The agent's sockets in a [`SocketSet`] that the guest drives, for guests with their own
/// `Interface`. Guests without one use [`TcpServer`](super::TcpServer).
///
/// ```no_run
/// # use smoltcp::{iface::{Interface, SocketSet}, phy::Device, time::Instant};
/// # use unikprof_agent::{Platform, Service, tcp_server::TcpSockets};
/// # fn guest<P: Platform>(
/// #     interface: &mut Interface, device: &mut impl Device, sockets: &mut SocketSet<'_>,
/// #     agent: &mut TcpSockets, service: &mut Service<'_, '_, P>, now: Instant,
/// # ) {
/// // once: let agent = TcpSockets::add_to(&mut sockets, buffers, 7777);
/// loop {
///     interface.poll(now, device, sockets);
///     let agent_next_ns = agent.poll(sockets, service);
///     let stack_next = interface.poll_at(now, sockets);
///     // The guest's own work, then sleep until a packet or the earlier of the two.
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct TcpSockets {
    port: u16,
    places: [TrackedSocket; SOCKETS],
    /// The socket to serve first, which changes: no client keeps the others waiting.
    first: usize,
}

/// A socket and its state.
#[derive(Debug)]
struct TrackedSocket {
    handle: SocketHandle,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Waits for a client.
    Listening,
    /// A TCP handshake is in progress; dropped after this time.
    Connecting(u64),
    /// The client waits for a session until this time.
    Waiting(u64),
    Serving(SessionId),
    /// The conversation is over; the client may close its side until this time.
    Closing(u64),
    /// The connection was reset; the reset may be sent until this time.
    Resetting(u64),
    /// Both sides are closed; the stack has to send the last acknowledgement.
    Ended,
}

impl TcpSockets {
    /// Adds the sockets to `sockets`; they listen on `port` at every address.
    ///
    /// # Panics
    ///
    /// If `port` is 0, `SEND` is 0, or `sockets` has no room for [`SOCKETS`] more.
    pub fn add_to<'s, const SEND: usize>(
        sockets: &mut SocketSet<'s>,
        buffers: &'s mut TcpBuffers<SEND>,
        port: u16,
    ) -> Self {
        const { assert!(SEND > 0, "there must be room to send") };
        assert!(port != 0, "the port of a server must not be 0");
        let mut buffers = buffers.receive.iter_mut().zip(&mut buffers.send);
        Self {
            port,
            first: 0,
            places: core::array::from_fn(|_| {
                // There are as many buffers as places.
                let (receive, send) = buffers.next().map_or_else(
                    || (Default::default(), Default::default()),
                    |(receive, send)| (&mut receive[..], &mut send[..]),
                );
                let mut socket = Socket::new(SocketBuffer::new(receive), SocketBuffer::new(send));
                socket.set_nagle_enabled(false);
                socket.set_ack_delay(None);
                socket.set_keep_alive(Some(KEEP_ALIVE));
                socket.set_timeout(Some(TIMEOUT));
                listen(&mut socket, port);
                TrackedSocket { handle: sockets.add(socket), stage: Stage::Listening }
            }),
        }
    }

    /// Moves bytes between the sockets and the service, and does the work that is due. Call it
    /// after polling the `Interface`, and poll that again if its `poll_at` requires it.
    ///
    /// Returns when to call it again if no packet arrives, on the platform's monotonic clock in ns;
    /// the stack's own deadlines are not included. The work is bounded, nothing is begun after 1
    /// ms, and it is marked as the agent's own.
    ///
    /// # Panics
    ///
    /// If the sockets were not added to `sockets`.
    pub fn poll<P: Platform>(
        &mut self,
        sockets: &mut SocketSet<'_>,
        service: &mut Service<'_, '_, P>,
    ) -> Option<u64> {
        let work = service.begin_work();
        let now_ns = service.agent().platform().now_ns();
        let next_ns = self.exchange(sockets, service, now_ns);
        let next_ns = earliest(next_ns, service.advance());
        service.end_work(work);
        next_ns
    }

    /// Ends all conversations and removes the sockets from `sockets`. Recordings that clients have
    /// started continue.
    ///
    /// # Panics
    ///
    /// If the sockets were not added to `sockets`.
    pub fn remove_from<P: Platform>(
        self,
        sockets: &mut SocketSet<'_>,
        service: &mut Service<'_, '_, P>,
    ) {
        for place in self.places {
            if let Stage::Serving(session) = place.stage {
                service.close(session);
            }
            let _ = sockets.remove(place.handle);
        }
    }

    /// Moves bytes; returns when to look at the sockets again.
    pub(super) fn exchange<P: Platform>(
        &mut self,
        sockets: &mut SocketSet<'_>,
        service: &mut Service<'_, '_, P>,
        now_ns: u64,
    ) -> Option<u64> {
        let port = self.port;
        self.first = (self.first + 1) % SOCKETS;
        // First reset the connections of ended sessions: the bytes in their buffers must not be
        // sent.
        for place in &mut self.places {
            if let Stage::Serving(session) = place.stage
                && service.is_given_up(session)
            {
                service.close(session);
                place.stage = reset(sockets.get_mut(place.handle), now_ns);
            }
        }
        let (behind, before) = self.places.split_at_mut(self.first);
        let mut next_ns = None;
        for place in before.iter_mut().chain(behind) {
            if service.is_out_of_time() {
                return Some(now_ns);
            }
            let socket = sockets.get_mut(place.handle);
            next_ns = earliest(next_ns, place.step(socket, service, port, now_ns));
        }
        next_ns
    }
}

impl TrackedSocket {
    /// Goes through as many stages as the socket's state allows; returns when to look again.
    fn step<P: Platform>(
        &mut self,
        socket: &mut Socket<'_>,
        service: &mut Service<'_, '_, P>,
        port: u16,
        now_ns: u64,
    ) -> Option<u64> {
        loop {
            self.stage = match (self.stage, socket.state()) {
                (Stage::Listening, State::Listen) => return None,
                (Stage::Listening, State::SynReceived) => Stage::Connecting(now_ns + HANDSHAKE_NS),
                // The connection ended before it was accepted.
                (Stage::Listening, State::Closed | State::TimeWait) => {
                    listen(socket, port);
                    return None;
                }
                (Stage::Listening, _) => Stage::Waiting(now_ns + WAITING_NS),
                // The client closed the connection.
                (Stage::Waiting(_), State::Closed | State::TimeWait) => Stage::Listening,
                (Stage::Waiting(until_ns), _) => match service.place_from_ns() {
                    Some(from_ns) if now_ns < until_ns => return Some(from_ns.max(now_ns)),
                    _ => admit(socket, service, now_ns),
                },

                (Stage::Connecting(until_ns), State::SynReceived) if now_ns < until_ns => {
                    return Some(until_ns);
                }
                (Stage::Connecting(_), State::SynReceived) => reset(socket, now_ns),
                (Stage::Connecting(_), _) => Stage::Listening,

                (Stage::Serving(session), _) => {
                    match converse(socket, session, service) {
                        Conversation::Waits => return None,
                        Conversation::GoesOn => return Some(now_ns),
                        Conversation::Over => {}
                    }
                    let is_given_up = service.is_given_up(session);
                    service.close(session);
                    if is_given_up {
                        // Reset it at once: nothing more is to be sent, and others wait for the
                        // socket.
                        reset(socket, now_ns)
                    } else {
                        socket.close();
                        Stage::Closing(now_ns + LINGER_NS)
                    }
                }

                // There is no peer left: listen again.
                (Stage::Closing(_) | Stage::Resetting(_), State::Closed)
                    if socket.remote_endpoint().is_none() =>
                {
                    listen(socket, port);
                    Stage::Listening
                }
                // The stack timed out, and has a reset to send.
                (Stage::Closing(_), State::Closed) => Stage::Resetting(now_ns + RESET_NS),
                (Stage::Closing(_), State::TimeWait) => {
                    self.stage = Stage::Ended;
                    return Some(now_ns);
                }
                (Stage::Closing(until_ns), _) if now_ns < until_ns => {
                    // Unread data of the client would block its FIN.
                    let _ = socket.recv(|bytes| (bytes.len(), ()));
                    return Some(until_ns);
                }
                (Stage::Closing(_), _) => reset(socket, now_ns),
                (Stage::Resetting(until_ns), _) if now_ns < until_ns => return Some(until_ns),
                (Stage::Resetting(_) | Stage::Ended, _) => {
                    listen(socket, port);
                    Stage::Listening
                }
            };
        }
    }
}

/// Begins a conversation, or answers that all sessions are in use.
fn admit<P: Platform>(
    socket: &mut Socket<'_>,
    service: &mut Service<'_, '_, P>,
    now_ns: u64,
) -> Stage {
    if let Some(session) = service.open() {
        return Stage::Serving(session);
    }
    let mut answer = [0; 128];
    let length = service.busy_answer(&mut answer);
    let _ = socket.send_slice(&answer[..length]);
    socket.close();
    Stage::Closing(now_ns + LINGER_NS)
}

/// The state of a conversation after its turn.
enum Conversation {
    /// It waits for the client to send, or to read.
    Waits,
    /// There is more to do than in one turn.
    GoesOn,
    Over,
}

/// Moves bytes in both directions.
fn converse<P: Platform>(
    socket: &mut Socket<'_>,
    session: SessionId,
    service: &mut Service<'_, '_, P>,
) -> Conversation {
    let mut moved = true;
    for _ in 0..TURNS {
        let mut given = 0;
        if socket.can_send() {
            given = socket
                .send(|room| {
                    let length = service.transmit(session, room);
                    (length, length)
                })
                .unwrap_or(0);
        }
        // After the answers: the bytes that were left by the last poll may have room now.
        let taken = socket.recv(|bytes| {
            let length = service.receive(session, bytes);
            (length, length)
        });
        moved = taken.unwrap_or(0) + given > 0;
        if !moved || service.is_out_of_time() {
            break;
        }
    }
    if service.is_over(session) || !socket.may_send() {
        Conversation::Over
    } else if moved {
        Conversation::GoesOn
    } else if socket.may_recv() || !socket.can_send() {
        Conversation::Waits
    } else {
        // A client that has closed its side has received its answers.
        Conversation::Over
    }
}

fn reset(socket: &mut Socket<'_>, now_ns: u64) -> Stage {
    socket.abort();
    Stage::Resetting(now_ns + RESET_NS)
}

fn listen(socket: &mut Socket<'_>, port: u16) {
    if socket.is_open() {
        socket.abort();
    }
    // `listen` fails for a closed socket only with port 0, which `add_to` rejects.
    let _ = socket.listen(port);
}

pub(super) fn earliest(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    [one, other].into_iter().flatten().min()
}
