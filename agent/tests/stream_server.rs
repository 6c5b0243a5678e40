//! Connections on streams of the guest.
#![allow(clippy::unwrap_used)]

mod fake_guest;

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use embedded_io::{ErrorType, Read, ReadReady, Write, WriteReady};
use unikprof_agent::stream_server::{Connection, Progress};
use unikprof_agent::{Access, MAX_REQUEST, Platform, SESSIONS, Service};
use unikprof_proto::frame::{self, HEADER, Message as _};
use unikprof_proto::message::{Check, Hello, Status, TableRows};
use unikprof_proto::preamble;
use unikprof_test_kit::frames::encoded;

const SECOND: u64 = 1_000_000_000;

/// A client that has sent some bytes and reads none: the stream accepts a number of bytes, and then
/// no more.
struct Stalled {
    sent: Vec<u8>,
    room: usize,
}

impl Stalled {
    /// With so many requests that the answers do not fit the buffers.
    fn new() -> Self {
        Self::asking(100)
    }

    /// With this many requests.
    fn asking(times: usize) -> Self {
        let mut sent = preamble::encode(preamble::OPEN).to_vec();
        let hello = encoded(&Hello {
            client: "",
            client_id: 0,
        });
        sent.extend(hello.repeat(times));
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

/// The stall timeout must also apply if the session has passed its last bytes to the connection,
/// and the client does not read them.
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

/// A client whose bytes have all been read when the last poll ends.
struct Whole {
    sent: Rc<RefCell<Vec<u8>>>,
    answered: Vec<u8>,
}

impl ErrorType for Whole {
    type Error = Infallible;
}

impl Read for Whole {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Infallible> {
        let mut sent = self.sent.borrow_mut();
        let length = buffer.len().min(sent.len());
        sent.drain(..length)
            .zip(buffer)
            .for_each(|(from, to)| *to = from);
        Ok(length)
    }
}

impl ReadReady for Whole {
    fn read_ready(&mut self) -> Result<bool, Infallible> {
        Ok(!self.sent.borrow().is_empty())
    }
}

impl Write for Whole {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Infallible> {
        self.answered.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

impl WriteReady for Whole {
    fn write_ready(&mut self) -> Result<bool, Infallible> {
        Ok(true)
    }
}

/// When a poll's time is over, bytes may wait between the stream and the session: only the time
/// returned by the service wakes the guest for them.
#[test]
fn what_a_poll_has_left_is_done_without_another_event() {
    for step_ns in (1..80).map(|steps| steps * 2_500) {
        let agent = fake_guest::agent(1, 1 << 17);
        let mut service = Service::new(agent, Access::Open).unwrap();
        let mut sent = preamble::encode(preamble::OPEN).to_vec();
        let mut add = |frame: &[u8]| sent.extend_from_slice(frame);
        // Rows of no upload: they are as long as possible, and have no answer.
        let payload = [0; 1_019];
        let rows = TableRows {
            upload: 7,
            first: 0,
            count: 1,
            payload: &payload,
        };
        let rows = encoded(&rows);
        assert_eq!(rows.len(), HEADER + MAX_REQUEST);
        (0..40).for_each(|_| add(&rows));
        add(&encoded(&Check {}));
        let stream = Whole {
            sent: Rc::new(RefCell::new(sent)),
            answered: Vec::new(),
        };
        let mut connection = Connection::open(&mut service, stream).ok().unwrap();
        // The clock's steps are not work: the CPU budget must not delay anything here.
        service.set_cpu_share(1000);
        agent.platform().step_ns.store(step_ns, Ordering::Relaxed);
        for polls in 0.. {
            assert!(polls < 10_000, "it does not end");
            let work = service.begin_work();
            let progress = connection.poll(&mut service);
            let answered = &connection.stream().answered;
            assert_eq!(
                progress,
                Ok(Progress::Open),
                "{step_ns} {polls}: {answered:?}"
            );
            let next_ns = service.advance();
            service.end_work(work);
            let at_once = next_ns.is_some_and(|next_ns| next_ns <= agent.platform().now_ns());
            if !at_once && connection.stream().sent.borrow().is_empty() {
                break;
            }
        }
        agent.platform().step_ns.store(0, Ordering::Relaxed);
        let answered = &connection.stream().answered[preamble::LENGTH..];
        let answer = frame::split(answered).unwrap();
        let kind = answer.map(|answer| answer.kind);
        assert_eq!(kind, Some(Status::TYPE), "steps of {step_ns} ns");
        connection.close(&mut service);
    }
}

/// A request may arrive when the client's part of the CPU share is used up and none of its other requests wait: the guest
/// must wake for it, because of the stream or in time.
#[test]
fn a_guest_that_sleeps_wakes_for_each_request() {
    let agent = fake_guest::agent(1, 1 << 17);
    let mut service = Service::new(agent, Access::Open).unwrap();
    let sent = Rc::new(RefCell::new(preamble::encode(preamble::OPEN).to_vec()));
    let stream = Whole {
        sent: Rc::clone(&sent),
        answered: Vec::new(),
    };
    let mut connection = Connection::open(&mut service, stream).ok().unwrap();
    let request = encoded(&Check {});
    agent.platform().step_ns.store(20_000, Ordering::Relaxed);
    let (mut requests, mut answered, mut slept_ns) = (0, 0, 0);
    while requests < 1000 {
        let work = service.begin_work();
        assert_eq!(connection.poll(&mut service), Ok(Progress::Open));
        let next_ns = service.advance().unwrap();
        service.end_work(work);
        let length_now = connection.stream().answered.len();
        if length_now > answered {
            // The client sends the next request when it has its answer, and the guest has polled.
            answered = length_now;
            requests += 1;
            sent.borrow_mut().extend_from_slice(&request);
        }
        if connection.wants_input(&service) && !sent.borrow().is_empty() {
            continue;
        }
        let sleep_ns = next_ns.saturating_sub(agent.platform().now_ns());
        assert!(
            sleep_ns < SECOND,
            "asleep for {sleep_ns} ns with request {requests}"
        );
        agent.platform().idle(sleep_ns);
        slept_ns += sleep_ns;
    }
    assert!(slept_ns > 10_000_000, "the share was not used up");
    connection.close(&mut service);
}

/// Bytes that wait for a client which never reads must not keep its session for ever.
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

    // If the guest sleeps as long as the service says, no other event is needed to end them.
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
