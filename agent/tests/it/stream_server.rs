//! Connections on streams of the guest.

use crate::fake_guest;
use std::sync::atomic::Ordering;

use crate::client::{HELLO, encoded, frames, longest_request};
use crate::pipe::Pipe;
use unikprof_agent::stream_server::{Connection, Progress};
use unikprof_agent::{Access, Platform, SESSIONS, Service};
use unikprof_proto::frame::Message as _;
use unikprof_proto::message::{Check, Status};
use unikprof_proto::preamble;

const SECOND: u64 = 1_000_000_000;

/// A client that has sent so many requests and reads no answer: the stream takes a few bytes of it.
fn stalled(requests: usize) -> Pipe {
    let pipe = Pipe::default();
    pipe.send(&preamble::encode(preamble::OPEN));
    let hello = encoded(&HELLO);
    pipe.send(&hello.repeat(requests));
    pipe.make_room(100);
    pipe
}

/// The stall timeout must also apply if the session has passed its last bytes to the connection,
/// and the client does not read them.
#[test]
fn a_client_that_leaves_the_last_answer_is_over_as_soon() {
    let agent = fake_guest::agent(1, 1 << 17);
    let mut service = Service::new(agent, Access::Open).unwrap();
    let mut connection = Connection::open(&mut service, stalled(1)).unwrap();
    assert_eq!(connection.poll(&mut service), Ok(Progress::Open));
    assert!(connection.has_output(), "the stream takes 100 bytes");
    agent.platform().idle(10 * SECOND);
    service.advance();
    assert_eq!(connection.poll(&mut service), Ok(Progress::Over));
    connection.close(&mut service);
}

/// When a poll's time is over, bytes may wait between the stream and the session: only the time
/// returned by the service wakes the guest for them.
#[test]
fn what_a_poll_has_left_is_done_without_another_event() {
    for step_ns in (1..80).map(|steps| steps * 2_500) {
        let agent = fake_guest::agent(1, 1 << 17);
        let mut service = Service::new(agent, Access::Open).unwrap();
        let pipe = Pipe::default();
        pipe.make_room(usize::MAX);
        pipe.send(&preamble::encode(preamble::OPEN));
        pipe.send(&longest_request().repeat(40));
        pipe.send(&encoded(&Check {}));
        let mut connection = Connection::open(&mut service, pipe.clone()).unwrap();
        // The clock's steps are not work: the CPU budget must not delay anything here.
        service.set_cpu_share(1000);
        agent.platform().step_ns.store(step_ns, Ordering::Relaxed);
        for polls in 0.. {
            assert!(polls < 10_000, "it does not end");
            let work = service.begin_work();
            let progress = connection.poll(&mut service);
            assert_eq!(progress, Ok(Progress::Open), "{step_ns} {polls}: {pipe:?}");
            let next_ns = service.advance();
            service.end_work(work);
            let at_once = next_ns.is_some_and(|next_ns| next_ns <= agent.platform().now_ns());
            if !at_once && pipe.is_read() {
                break;
            }
        }
        agent.platform().step_ns.store(0, Ordering::Relaxed);
        let answers = frames(&pipe.take()[preamble::LENGTH..]);
        assert_eq!(answers[0].kind, Status::TYPE, "steps of {step_ns} ns");
        connection.close(&mut service);
    }
}

/// A request may arrive when the client's part of the CPU share is used up and none of its other
/// requests wait: the guest must wake for it, because of the stream or in time.
#[test]
fn a_guest_that_sleeps_wakes_for_each_request() {
    let agent = fake_guest::agent(1, 1 << 17);
    let mut service = Service::new(agent, Access::Open).unwrap();
    let pipe = Pipe::default();
    pipe.make_room(usize::MAX);
    pipe.send(&preamble::encode(preamble::OPEN));
    let mut connection = Connection::open(&mut service, pipe.clone()).unwrap();
    let request = encoded(&Check {});
    agent.platform().step_ns.store(20_000, Ordering::Relaxed);
    let (mut requests, mut slept_ns) = (0, 0);
    while requests < 1000 {
        let work = service.begin_work();
        assert_eq!(connection.poll(&mut service), Ok(Progress::Open));
        let next_ns = service.advance().unwrap();
        service.end_work(work);
        if !pipe.take().is_empty() {
            // The client sends the next request when it has its answer, and the guest has polled.
            requests += 1;
            pipe.send(&request);
        }
        if connection.wants_input(&service) && !pipe.is_read() {
            continue;
        }
        let sleep_ns = next_ns.saturating_sub(agent.platform().now_ns());
        assert!(sleep_ns < SECOND, "asleep for {sleep_ns} ns with request {requests}");
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
    let mut connections: Vec<_> =
        (0..SESSIONS).map(|_| Connection::open(&mut service, stalled(100)).unwrap()).collect();
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
