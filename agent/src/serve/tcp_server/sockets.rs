//! The agent's TCP sockets, in a set of its own or of the guest's.

use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Duration;

use crate::ground::platform::Platform;
use crate::serve::service::{SESSIONS, Service, SessionId};

/// How many sockets there are: one for each session, and one that tells a client too many so.
///
/// A stack without a backlog resets a connection for which no socket listens.
pub const SOCKETS: usize = SESSIONS + 1;

/// Bytes of a socket's receive buffer: more than a request, and than a segment on Ethernet.
const RECEIVE: usize = 2048;

/// A connection that is quiet for this long is asked whether it still is one.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// A client that answers nothing for this long, neither data nor keep-alives, is gone.
const TIMEOUT: Duration = Duration::from_secs(15);
/// A client that does not finish its handshake is forgotten after 3 s.
const HANDSHAKE_NS: u64 = 3_000_000_000;
/// A client for whom strangers make no room in 1 s is told that there is none.
const WAITING_NS: u64 = 1_000_000_000;
/// A client that does not end its side of a finished conversation is reset after 2 s.
const LINGER_NS: u64 = 2_000_000_000;
/// A reset that cannot be sent is given up after 1 s.
const RESET_NS: u64 = 1_000_000_000;
/// How often one socket is read and written in a row.
const TURNS: usize = 4;

/// The buffers of [`TcpSockets`]: 2 KiB to receive and `SEND` bytes to send for each of them.
///
/// `SEND` bounds the download: at most so many bytes travel in one round trip.
#[derive(Debug)]
pub struct TcpBuffers<const SEND: usize = 16384> {
    receive: [[u8; RECEIVE]; SOCKETS],
    send: [[u8; SEND]; SOCKETS],
}

impl<const SEND: usize> TcpBuffers<SEND> {
    /// Empty buffers; all zeros, so that a `static` of them takes no room in the image.
    pub const fn new() -> Self {
        Self {
            receive: [[0; RECEIVE]; SOCKETS],
            send: [[0; SEND]; SOCKETS],
        }
    }
}

impl<const SEND: usize> Default for TcpBuffers<SEND> {
    fn default() -> Self {
        Self::new()
    }
}

/// The agent's sockets inside a [`SocketSet`] that somebody else drives: for guests that have an
/// `Interface` of their own. Guests without one use [`TcpServer`](super::TcpServer).
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
    places: [Place; SOCKETS],
    /// Whose turn is first: no client keeps the others from having one.
    first: usize,
}

/// One socket and what it is at.
#[derive(Debug)]
struct Place {
    handle: SocketHandle,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Waits for a client.
    Listening,
    /// A client knocks; until when it may.
    Connecting(u64),
    /// Its client waits for a session; until when.
    Waiting(u64),
    Serving(SessionId),
    /// The conversation is over; until when the client may end its side.
    Closing(u64),
    /// The client was reset; until when the reset may be sent.
    Resetting(u64),
    /// Both sides have ended; the stack has the last acknowledgement to send.
    Ended,
}

impl TcpSockets {
    /// Adds the sockets to `sockets`, listening at `port` on every address.
    ///
    /// # Panics
    /// Where `port` is 0, `SEND` is 0, or `sockets` has no room for [`SOCKETS`] more.
    pub fn add_to<'s, const SEND: usize>(
        sockets: &mut SocketSet<'s>,
        buffers: &'s mut TcpBuffers<SEND>,
        port: u16,
    ) -> Self {
        const { assert!(SEND > 0, "there must be room to send") };
        assert!(port != 0, "a server listens at a port other than 0");
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
                Place {
                    handle: sockets.add(socket),
                    stage: Stage::Listening,
                }
            }),
        }
    }

    /// Moves bytes between the sockets and the service, and does what time has come for. Call it
    /// after the `Interface` was polled, and poll that again if its `poll_at` says so.
    ///
    /// Answers when to call again without any packet, on the platform's monotonic clock in ns; the
    /// stack's own deadlines are not in it. The work is bounded, nothing is begun after 1 ms, and marked
    /// as the agent's own.
    ///
    /// # Panics
    /// Where `sockets` is not the set that the sockets were added to.
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

    /// Ends all conversations and takes the sockets out of `sockets`. What clients had started goes
    /// on.
    ///
    /// # Panics
    /// Where `sockets` is not the set that the sockets were added to.
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

    /// Moves bytes; answers when the sockets want to be looked at again.
    pub(super) fn exchange<P: Platform>(
        &mut self,
        sockets: &mut SocketSet<'_>,
        service: &mut Service<'_, '_, P>,
        now_ns: u64,
    ) -> Option<u64> {
        let port = self.port;
        self.first = (self.first + 1) % SOCKETS;
        // Connections that were given up are reset before anything else: whatever lies in their buffers is not sent.
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

impl Place {
    /// Goes through as many stages as the socket's state allows; answers when to look again.
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
                // The connection ended before anybody saw it.
                (Stage::Listening, State::Closed | State::TimeWait) => {
                    listen(socket, port);
                    return None;
                }
                (Stage::Listening, _) => Stage::Waiting(now_ns + WAITING_NS),
                // The client has gone.
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
                        // Nothing is owed to it, and others want the socket.
                        reset(socket, now_ns)
                    } else {
                        socket.close();
                        Stage::Closing(now_ns + LINGER_NS)
                    }
                }

                // What has nobody left to be told is free again.
                (Stage::Closing(_) | Stage::Resetting(_), State::Closed)
                    if socket.remote_endpoint().is_none() =>
                {
                    listen(socket, port);
                    Stage::Listening
                }
                // The stack gave the client up, and has a reset to send.
                (Stage::Closing(_), State::Closed) => Stage::Resetting(now_ns + RESET_NS),
                (Stage::Closing(_), State::TimeWait) => {
                    self.stage = Stage::Ended;
                    return Some(now_ns);
                }
                (Stage::Closing(until_ns), _) if now_ns < until_ns => {
                    // What the client still says would keep its end from getting through.
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

/// Begins a conversation, or says that there are too many.
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

/// How a conversation stands behind its turn.
enum Conversation {
    /// Until the client says something, or takes what it is sent.
    Waits,
    /// There was more than one turn's.
    GoesOn,
    Over,
}

/// Moves bytes both ways.
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
        // Behind the answers: what was left of the last poll makes room first.
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
        // A client that has ended its side got what it has asked for.
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
    // A closed socket refuses only port 0, which `add_to` has.
    let _ = socket.listen(port);
}

pub(super) fn earliest(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    [one, other].into_iter().flatten().min()
}
