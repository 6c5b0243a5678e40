//! Leases: one client at a time fetches and acknowledges a recording, and the others get to know
//! which one it is.

use std::collections::HashMap;

use crate::client::{one_ms, read, refusal_code, whole};
use crate::fake_guest::{Client, FakeAgent, Shared, guest, served, tick};
use unikprof_agent::Platform as _;
use unikprof_proto::code::{refusal, start_flag, state};
use unikprof_proto::message::{
    Acknowledge, Check, Dump, MAX_CLIENT, Pending, RecordingStatus, Start, Stop,
};

const SECOND: u64 = 1_000_000_000;
/// The time for which a client that has lost its connection keeps its lease while an epoch waits.
const LEASE_NS: u64 = 10 * SECOND;
/// The time for which a recording whose start is not confirmed is kept.
const UNCONFIRMED_NS: u64 = 30 * SECOND;

const COLLECTOR: u64 = 0x1111_2222_3333_4444;
const PERSON: u64 = 7;

fn collector(service: &Shared) -> Client {
    Client::connect_as(service, "collector 1.2", COLLECTOR)
}

fn person(service: &Shared) -> Client {
    Client::connect_as(service, "person 3.4", PERSON)
}

/// A recording whose first epoch waits for the collector, which has the lease.
fn leased() -> (&'static FakeAgent, Shared, Client, u64) {
    let (agent, service) = served();
    let mut collector = collector(&service);
    collector.start(one_ms());
    let epoch = dump(agent, &mut collector);
    (agent, service, collector, epoch)
}

fn dump(agent: &FakeAgent, client: &mut Client) -> u64 {
    (0..20).for_each(|_| assert!(tick(agent, &[1, 2])));
    client.end_epoch()
}

/// The client that has the lease on the only recording, and since when.
fn holder(client: &mut Client) -> Option<(String, u64)> {
    let frames = client.ask(&Check {});
    let status: RecordingStatus<'_> = read(&frames[1]);
    let holder = status.holder.map(str::to_owned);
    holder.map(|holder| (holder, status.held_since_ns))
}

fn is_leased(client: &mut Client) -> bool {
    let frames = client.ask(&Dump { recording: 0 });
    let is_refused = frames[0].decode::<Pending>().is_err();
    if is_refused {
        let (code, text) = refusal_code(&frames);
        assert!(matches!(code, refusal::LEASED | refusal::HOLDER_GONE), "{text}");
        assert!(text.contains("collector 1.2"), "{text}");
    }
    is_refused
}

/// Two clients on one recording must not acknowledge each other's epochs.
#[test]
fn a_second_client_may_fetch_but_not_acknowledge() {
    let (agent, service, mut first, epoch) = leased();
    agent.platform().idle(5 * SECOND);
    let mut second = person(&service);
    assert!(is_leased(&mut second));
    let (code, text) = second.refusal(&Acknowledge { epoch });
    assert_eq!(code, refusal::LEASED);
    assert!(
        text.contains("`test`") && text.contains("collector 1.2") && text.contains(" 5 s"),
        "{text}"
    );
    let (name, since_ns) = holder(&mut second).unwrap();
    assert_eq!((name.as_str(), since_ns), ("collector 1.2", 0));
    let copied = second.fetch(epoch);
    assert_eq!(copied.stacks, HashMap::from([(vec![1, 2], 20)]));
    // A client without an id is another client too.
    let mut unknown = Client::connect(&service);
    assert!(is_leased(&mut unknown));
    let refused = unknown.refusal(&Acknowledge { epoch });
    assert_eq!(refused.0, refusal::LEASED);
    // The first client has lost nothing.
    assert_eq!(first.fetch(epoch), copied);
    first.acknowledge(epoch);
    assert!(is_leased(&mut second), "it is connected");
}

/// Another client may end a recording; its epochs still wait for the first client.
#[test]
fn a_second_client_may_stop_but_not_take_what_waits() {
    let (_, service, mut first, epoch) = leased();
    let mut second = person(&service);
    let pending = second.stop(0);
    assert_eq!((pending.first_epoch, pending.epochs), (epoch, 2));
    assert_eq!(second.status().0, state::FINISHED);
    let refused = second.refusal(&Acknowledge { epoch });
    assert_eq!(refused.0, refusal::LEASED);
    first.acknowledge(epoch);
    first.acknowledge(epoch + 1);
    assert_eq!(second.status().0, state::IDLE);
}

/// A client that starts a new recording must not discard what a connected client is about to fetch.
#[test]
fn a_second_client_may_not_discard_what_the_first_one_fetches() {
    let (agent, service, mut first, epoch) = leased();
    let mut second = person(&service);
    second.ask(&Stop { recording: 0 });
    let anew = || Start { flags: start_flag::REPLACE, ..one_ms() };
    let (code, text) = second.refusal(&anew());
    assert_eq!(code, refusal::LEASED, "{text}");
    assert!(text.contains("collector 1.2"), "{text}");
    assert_eq!(second.status().0, state::FINISHED);
    let kept = first.fetch(epoch);
    assert_eq!(kept.stacks, HashMap::from([(vec![1, 2], 20)]));
    // The first client may discard it, and so may the second one after the first has disconnected.
    assert_eq!(first.start(anew()), 2);
    dump(agent, &mut first);
    first.ask(&Stop { recording: 0 });
    first.close();
    service.borrow_mut().advance();
    assert_eq!(second.start(anew()), 3);
}

/// A start without room for another recording discards one that no other client fetches, whichever
/// ended first.
#[test]
fn a_recording_that_another_client_fetches_is_passed_over_to_make_room() {
    let (agent, service) = served();
    let (mut first, mut second) = (collector(&service), person(&service));
    let ended = |client: &mut Client, name| {
        let start = Start { name, ..one_ms() };
        let recording = client.start(start);
        assert!(tick(agent, &[1, 2]));
        client.stop(recording).first_epoch
    };
    let held = ended(&mut first, "held");
    let [own, _] = ["own", "other"].map(|name| ended(&mut second, name));
    let anew = Start { name: "new", flags: start_flag::REPLACE, ..one_ms() };
    assert_eq!(second.start(anew), 4);
    assert_eq!(first.fetch(held).samples, 1);
    let gone = second.refusal(&whole(own));
    assert_eq!(gone.0, refusal::NO_EPOCH, "{}", gone.1);
}

#[test]
fn a_lost_connection_keeps_its_lease_while_an_epoch_waits() {
    let (agent, service, first, epoch) = leased();
    let mut second = person(&service);
    first.close();
    service.borrow_mut().advance();
    agent.platform().idle(LEASE_NS - 1);
    service.borrow_mut().advance();
    assert!(is_leased(&mut second));
    let (code, text) = second.refusal(&Dump { recording: 0 });
    assert_eq!(code, refusal::HOLDER_GONE, "the client may wait: {text}");
    agent.platform().idle(1);
    let pending = second.dump(0);
    assert_eq!((pending.first_epoch, pending.complete), (epoch, false));
    let (name, since_ns) = holder(&mut second).unwrap();
    assert_eq!(name, "person 3.4");
    assert_eq!(since_ns, agent.platform().now_ns());
    second.acknowledge(epoch);
    // The first client reconnects too late.
    let mut first = collector(&service);
    let refused = first.refusal(&Dump { recording: 0 });
    assert_eq!(refused.0, refusal::LEASED);
}

#[test]
fn a_lost_connection_ends_its_lease_at_once_if_nothing_waits() {
    let (agent, service, mut first, epoch) = leased();
    let mut second = person(&service);
    first.acknowledge(epoch);
    assert!(is_leased(&mut second));
    first.close();
    assert_eq!(holder(&mut second), None);
    let next = dump(agent, &mut second);
    assert_eq!(next, epoch + 1);
    second.acknowledge(next);
}

/// A collector that reconnects keeps the lease as long as it is connected.
#[test]
fn a_client_that_comes_back_keeps_its_lease() {
    let (agent, service, first, epoch) = leased();
    let mut second = person(&service);
    first.close();
    service.borrow_mut().advance();
    agent.platform().idle(LEASE_NS - SECOND);
    let mut first = collector(&service);
    for _ in 0..3 {
        // Both stay connected: a silent connection would be closed.
        agent.platform().idle(LEASE_NS);
        service.borrow_mut().advance();
        assert!(holder(&mut first).is_some());
        assert!(is_leased(&mut second));
    }
    // Closing a second connection of the same client has no effect.
    let other = collector(&service);
    other.close();
    agent.platform().idle(LEASE_NS);
    service.borrow_mut().advance();
    assert!(is_leased(&mut second));
    first.acknowledge(epoch);
}

/// A client that has lost the answer to its start does not know of the recording: it would run on,
/// and take a place at each try.
#[test]
fn a_recording_whose_start_is_not_confirmed_is_discarded() {
    for delay_ns in [0, 60 * SECOND] {
        let (agent, service) = served();
        let start = || Start { delay_ns, ..one_ms() };
        let started = |is_confirmed| {
            let mut client = collector(&service);
            let recording = client.start(start());
            if is_confirmed {
                client.status();
            }
            client.close();
            recording
        };
        let mut watcher = person(&service);
        let mut state_after = |ns| {
            agent.platform().idle(ns);
            service.borrow_mut().advance();
            watcher.status().0
        };
        // Repeated over another connection, the start is answered the same.
        assert_eq!(started(false), started(false));
        assert_ne!(
            state_after(UNCONFIRMED_NS - SECOND),
            state::IDLE,
            "another client confirms nothing"
        );
        assert_eq!(state_after(SECOND), state::IDLE);
        started(true);
        assert_ne!(state_after(UNCONFIRMED_NS), state::IDLE);
    }
}

/// A watched recording is discarded half a minute after its client's last request.
#[test]
fn a_watched_recording_is_discarded_once_its_client_is_silent() {
    let (agent, service) = served();
    let mut client = collector(&service);
    let mut watcher = person(&service);
    client.start(Start { flags: start_flag::WATCHED, ..one_ms() });
    let mut state_after = |ns, client: Option<&mut Client>| {
        agent.platform().idle(ns);
        service.borrow_mut().advance();
        if let Some(client) = client {
            client.status();
        }
        watcher.status().0
    };
    for _ in 0..3 {
        assert_ne!(state_after(UNCONFIRMED_NS - SECOND, Some(&mut client)), state::IDLE);
    }
    assert_ne!(state_after(UNCONFIRMED_NS - SECOND, None), state::IDLE);
    assert_eq!(state_after(SECOND, None), state::IDLE);
}

/// Whoever stops it knows of it, and has as long as any other client to fetch it.
#[test]
fn a_recording_that_another_client_stops_is_not_discarded_unconfirmed() {
    let (agent, service) = served();
    let mut starter = collector(&service);
    let recording = starter.start(one_ms());
    starter.close();
    let mut other = person(&service);
    agent.platform().idle(UNCONFIRMED_NS - SECOND);
    service.borrow_mut().advance();
    other.ask(&Stop { recording });
    agent.platform().idle(2 * SECOND);
    service.borrow_mut().advance();
    let pending: Pending = read(&other.ask(&Stop { recording })[0]);
    assert!(pending.complete);
    other.acknowledge(pending.first_epoch);
}

/// Each recording has its own lease, and a client without an id takes none.
#[test]
fn leases_are_taken_by_recording_and_by_clients_with_an_id() {
    let (agent, service, mut unknown) = guest();
    unknown.start(one_ms());
    let epoch = dump(agent, &mut unknown);
    assert_eq!(holder(&mut unknown), None);
    unknown.acknowledge(epoch);
    let mut second = person(&service);
    let second_name = Start { name: "second", ..one_ms() };
    second.start(second_name);
    let mut first = collector(&service);
    first.ask(&Dump { recording: 1 });
    let frames = second.ask(&Check {});
    let holders: Vec<_> =
        frames[1..].iter().map(|frame| read::<RecordingStatus<'_>>(frame).holder).collect();
    assert_eq!(holders, [Some("collector 1.2"), Some("person 3.4")]);
    for (client, recording) in [(&mut first, 2), (&mut second, 1)] {
        let refused = client.refusal(&Dump { recording });
        assert_eq!(refused.0, refusal::LEASED);
    }
}

/// A client name that is too long is truncated at the end, and error texts with it fit their
/// message.
#[test]
fn a_long_name_of_a_client_is_cut() {
    let (agent, service) = served();
    let long = "ä".repeat(300);
    let mut first = Client::connect_as(&service, &long, COLLECTOR);
    let name = "x".repeat(64);
    let start = Start { name: &name, ..one_ms() };
    first.start(start);
    dump(agent, &mut first);
    let mut second = person(&service);
    let (held_by, _) = holder(&mut second).unwrap();
    assert_eq!(held_by, "ä".repeat(MAX_CLIENT / 2));
    let refused = second.refusal(&Dump { recording: 0 });
    assert!(refused.1.contains(&held_by) && refused.1.ends_with(" s"));
}
