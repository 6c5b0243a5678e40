//! Connections on streams of the guest's own.
#![allow(clippy::unwrap_used)]

mod fake_guest;

use std::convert::Infallible;

use embedded_io::{ErrorType, Read, ReadReady, Write, WriteReady};
use unikprof_agent::stream_server::{Connection, Progress};
use unikprof_agent::{Access, Platform, SESSIONS, Service};
use unikprof_proto::frame;
use unikprof_proto::message::Hello;
use unikprof_proto::preamble;

const SECOND: u64 = 1_000_000_000;

/// A client that has sent some bytes and reads none: the stream takes so many, and then no more.
struct Stalled {
    sent: Vec<u8>,
    room: usize,
}

impl Stalled {
    /// It has asked often enough to be owed more than fits anywhere on the way.
    fn new() -> Self {
        Self::asking(100)
    }

    /// It has asked so often.
    fn asking(times: usize) -> Self {
        let mut sent = preamble::encode(preamble::OPEN).to_vec();
        let mut buffer = [0; 64];
        let length = frame::encode(&Hello { client: "" }, &mut buffer).unwrap();
        (0..times).for_each(|_| sent.extend_from_slice(&buffer[..length]));
        Self { sent, room: 100 }
    }
}

impl ErrorType for Stalled {
    type Error = Infallible;
}

impl Read for Stalled {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Infallible> {
        let length = buffer.len().min(self.sent.len());
        let taken: Vec<u8> = self.sent.drain(..length).collect();
        buffer[..length].copy_from_slice(&taken);
        Ok(length)
    }
}

impl ReadReady for Stalled {
    fn read_ready(&mut self) -> Result<bool, Infallible> {
        Ok(!self.sent.is_empty())
    }
}

impl Write for Stalled {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Infallible> {
        let length = bytes.len().min(self.room);
        self.room -= length;
        Ok(length)
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

impl WriteReady for Stalled {
    fn write_ready(&mut self) -> Result<bool, Infallible> {
        Ok(self.room > 0)
    }
}

/// Guards a patience that ends where the session has given the last of its bytes away: a client that
/// does not take them is no quiet one.
#[test]
fn a_client_that_leaves_the_last_answer_is_over_as_soon() {
    let agent = fake_guest::agent(1, 1 << 17);
    let mut service = Service::new(agent, Access::Open).unwrap();
    let mut connection = Connection::open(&mut service, Stalled::asking(1))
        .ok()
        .unwrap();
    assert_eq!(connection.poll(&mut service), Ok(Progress::Open));
    assert!(connection.has_output(), "the stream takes 100 bytes");
    agent.platform().idle(10 * SECOND);
    service.advance();
    assert_eq!(connection.poll(&mut service), Ok(Progress::Over));
    connection.close(&mut service);
}

/// What waits for a client that never reads must not keep its session for ever.
#[test]
fn clients_that_never_read_are_over_in_time() {
    let agent = fake_guest::agent(1, 1 << 17);
    let mut service = Service::new(agent, Access::Open).unwrap();
    let mut connections: Vec<_> = (0..SESSIONS)
        .map(|_| Connection::open(&mut service, Stalled::new()).ok().unwrap())
        .collect();
    for connection in &mut connections {
        assert_eq!(connection.poll(&mut service), Ok(Progress::Open));
        assert!(connection.has_output());
    }
    assert!(service.open().is_none(), "all sessions are taken");

    // Sleeping as long as the service says, it takes no other event to be rid of them.
    let mut rounds = 0;
    while !connections.is_empty() {
        rounds += 1;
        assert!(rounds < 10, "it takes {rounds} rounds");
        let next_ns = service.advance().unwrap();
        let ahead_ns = next_ns.saturating_sub(agent.platform().now_ns());
        agent.platform().idle(ahead_ns);
        let mut open = Vec::new();
        for mut connection in connections {
            match connection.poll(&mut service).unwrap() {
                Progress::Open => open.push(connection),
                Progress::Over => drop(connection.close(&mut service)),
            }
        }
        connections = open;
    }
    let now_ns = agent.platform().now_ns();
    assert!(now_ns <= 10 * SECOND, "after {now_ns} ns");
    assert!(service.open().is_some(), "a session is free");
}
