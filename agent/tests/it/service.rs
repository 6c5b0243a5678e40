//! Conversations, message by message: requests, answers, and the resulting state.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::atomic::Ordering;

use crate::client::{
    HELLO, Known, add_nodes, counts_of, download, download_to, encoded, newest, one_ms, read,
    refusal_code, serve, whole,
};
use crate::fake_guest::{
    self, AT_WALK, Client, FakeAgent, agent, connected, deliver, guest, served, tick,
};
use unikprof_agent::{Access, Platform, SESSIONS, Service};
use unikprof_proto::code::{refusal, start_flag, state};
use unikprof_proto::frame::{self, Message};
use unikprof_proto::message::{
    Acknowledge, Check, Counters, Counts, Fetch, Mapping, Nodes, Pending, Refusal, Start, Status,
    Stop, Welcome,
};
use unikprof_proto::preamble::{self, Preamble, VersionRange};

#[test]
fn a_welcome_says_who_the_agent_is() {
    let (_, _, mut client) = connected(2, 1 << 18);
    let frames = client.ask(&HELLO);
    let welcome: Welcome<'_> = read(&frames[0]);
    assert_eq!((welcome.guest_name, welcome.vcpus, welcome.mappings), (Some("fake"), 2, 1));
    let mapping: Mapping<'_> = read(&frames[1]);
    assert_eq!((mapping.start, mapping.code_base), (fake_guest::CODE, 16));
    assert_eq!(frames.len(), 2);
}

/// Numbers of recordings and stacks repeat after a reboot and in every copy of a save: clients
/// distinguish them by the instance id, even if the platform has no random numbers.
#[test]
fn an_instance_id_is_renewed_after_a_suspension_and_never_repeats() {
    let mut ids = Vec::new();
    for has_no_random in [false, true] {
        for _ in 0..3 {
            let agent = fake_guest::agent_with(|platform| {
                platform.has_no_random = has_no_random.into();
            });
            let service = serve(agent);
            for _ in 0..3 {
                let mut client = Client::connect(&service);
                let frames = client.ask(&HELLO);
                assert_eq!(read::<Welcome<'_>>(&frames[0]).instance, agent.instance());
                ids.push(agent.instance());
                client.close();
                agent.resume();
            }
        }
    }
    assert!(!ids.contains(&0), "{ids:?}");
    // The fake platform's random numbers are the same for each agent.
    let drawn: HashSet<_> = ids[..9].iter().collect();
    assert_eq!(drawn.len(), 3);
    let hashed: HashSet<_> = ids[9..].iter().collect();
    assert_eq!(hashed.len(), 9, "{ids:?}");
}

/// The time counts from the creation of the service, which may be long after the machine's start.
#[test]
fn a_status_says_since_when_the_agent_serves() {
    let agent = agent(1, 1 << 18);
    agent.platform().run(7_000_000_000);
    let began_ns = agent.platform().now_ns();
    let service = serve(agent);
    let mut client = Client::connect(&service);
    agent.platform().run(1_000_000_000);
    let status: Status = client.answer(&Check {});
    assert_eq!(status.server_since_ns, began_ns);
    assert!(status.now_ns >= began_ns + 1_000_000_000);
}

/// A guest may poll repeatedly while a client waits for its part of the CPU share: these polls must
/// not use up that share.
#[test]
fn a_client_that_waits_for_its_share_is_served_however_often_it_is_polled() {
    let (agent, service, mut client) = guest();
    let request = encoded(&Check {});
    agent.platform().step_ns.store(20_000, Ordering::Relaxed);
    let session = client.session;
    let (mut answers, mut waits) = (0, 0);
    let mut is_answered = true;
    for _ in 0..20_000 {
        if is_answered {
            assert_eq!(service.borrow_mut().receive(session, &request), request.len());
        }
        let is_deferred = service.borrow().is_deferred(session);
        let work = service.borrow_mut().begin_work();
        is_answered = client.take(100_000) > 0;
        service.borrow_mut().advance();
        service.borrow_mut().end_work(work);
        waits += u32::from(is_deferred);
        // Only answers after a wait count.
        answers += u32::from(is_answered && waits > 100);
    }
    assert!(answers > 100 && waits > 100, "{answers} answers, {waits} waits");
}

#[test]
fn a_recording_is_counted_exactly() {
    let (agent, _, mut client) = guest();
    let recording = client.start(one_ms());
    for round in 0..1000_u64 {
        assert!(tick(agent, &[round % 10, 100, 200]));
    }
    deliver(agent, &[1]);
    let pending = client.stop(recording);
    assert_eq!((pending.epochs, pending.complete), (1, true));
    let got = client.fetch(pending.first_epoch);
    assert_eq!(got.stacks.len(), 10);
    assert!((0..10).all(|leaf| got.stacks[&vec![leaf, 100, 200]] == 100));
    assert!(got.counters.add_up());
    assert_eq!((got.counters.ticks, got.counters.recorded, got.samples), (1000, 1000, 1000));
    assert_eq!(got.counters.early, 1);
    assert_eq!(got, client.fetch(pending.first_epoch), "fetched again, the same");
    client.acknowledge(pending.first_epoch);
    assert_eq!(client.status().0, state::IDLE);
    let gone = client.refusal(&whole(pending.first_epoch));
    assert_eq!(gone.0, refusal::NO_EPOCH);
    assert!(!tick(agent, &[1]), "nothing is armed any more");
}

/// After a broken connection, a download continues with what the client has received, wherever it
/// broke.
#[test]
fn a_broken_download_goes_on_where_it_broke() {
    const STACKS: u64 = 3000;
    let (agent, service, mut client) = connected(1, 1 << 20);
    client.start(one_ms());
    for round in 0..STACKS {
        tick(agent, &[round, round % 100, 77]);
    }
    let pending = client.dump(0);
    let epoch = pending.first_epoch;
    let frames = client.ask(&whole(epoch));
    let expected = download(&frames);
    assert_eq!(expected.stacks.len() as u64, STACKS);
    assert_eq!(expected.samples, STACKS);
    for kind in [Nodes::TYPE, Counts::TYPE] {
        let runs = frames.iter().filter(|frame| frame.kind == kind).count();
        assert!(runs > 1, "{runs} frames of type {kind:#x}");
    }
    let mut ticked = 0;
    for received in 0..frames.len() {
        // The recording continues, and there are new stacks.
        ticked += 1;
        tick(agent, &[ticked, 5000]);
        // The connection breaks in the middle of a frame.
        let mut cut = Client::connect(&service);
        cut.send_only(&whole(epoch));
        let bytes = frames[..received].iter().map(|frame| frame::HEADER + frame.body.len());
        cut.take(bytes.sum::<usize>() + 6);
        cut.close();
        // The client need not receive again what it has received.
        let (mut known, mut counts) = (Known::new(), HashMap::new());
        for frame in &frames[..received] {
            match frame.kind {
                Nodes::TYPE => add_nodes(&mut known, &read(frame)),
                Counts::TYPE => counts.extend(counts_of(&read(frame))),
                _ => {}
            }
        }
        let rest = Fetch {
            known: newest(&known),
            counted: counts.keys().max().copied().unwrap_or(0),
            ..whole(epoch)
        };
        let mut next = Client::connect(&service);
        let rest = next.ask(&rest);
        let mut got = download_to(&mut known, &rest);
        for (number, count) in counts {
            let before = got.stacks.insert(known[&number].clone(), count);
            assert_eq!(before, None, "a count twice");
        }
        assert_eq!(got, expected, "broken after {received} frames");
        next.close();
    }
}

#[test]
fn a_dump_leaves_the_recording_running() {
    let (agent, _, mut client) = guest();
    client.start(one_ms());
    (0..300).for_each(|_| assert!(tick(agent, &[1])));
    let first = client.dump(0);
    assert_eq!((first.epochs, first.complete), (1, true));
    (0..50).for_each(|_| assert!(tick(agent, &[2])));
    // The first epoch still waits: the second dump says so instead of making another one.
    let second = client.dump(0);
    assert_eq!(second, Pending { complete: false, ..first });
    let got = client.fetch(first.first_epoch);
    assert_eq!(got.stacks, HashMap::from([(vec![1], 300)]));
    assert_eq!(got.counters.recorded, 300);
    // Stopped while one epoch waits: now there are two, and only the older one can be acknowledged.
    let both = client.stop(0);
    assert_eq!((both.first_epoch, both.epochs), (first.first_epoch, 2));
    let last = both.first_epoch + 1;
    let early = client.refusal(&Acknowledge { epoch: last });
    assert_eq!(early.0, refusal::NO_EPOCH);
    let got = client.fetch(last);
    assert_eq!(got.stacks, HashMap::from([(vec![2], 50)]));
    for epoch in [both.first_epoch, last] {
        client.acknowledge(epoch);
    }
}

/// The client disconnects before its epoch is completely cleared: no other client may be sent the
/// rest, and the next counts in the same place must begin with 0.
#[test]
fn an_acknowledged_epoch_is_gone_though_its_client_is_too() {
    // So many stacks that one call does not clear them.
    const STACKS: u64 = 40_000;
    let (agent, service, mut client) = connected(1, 8 << 20);
    client.start(one_ms());
    (0..STACKS).for_each(|n| assert!(tick(agent, &[n % 256, n / 256])));
    let first = client.dump(0);
    let epoch = first.first_epoch;
    client.send_only(&Acknowledge { epoch });
    service.borrow_mut().transmit(client.session, &mut [0; 64]);
    client.close();

    let mut next = Client::connect(&service);
    let (_, _, epochs) = next.status();
    assert_eq!(epochs, 0);
    let gone = next.refusal(&whole(first.first_epoch));
    assert_eq!(gone.0, refusal::NO_EPOCH);
    for count in [7, 5] {
        (0..count).for_each(|_| assert!(tick(agent, &[0, 0])));
        // The dump waits until there is a free column to count into.
        let pending = next.dump(0);
        assert_eq!((pending.epochs, pending.complete), (1, true));
        let epoch = pending.first_epoch;
        let got = next.fetch(epoch);
        assert_eq!(got.samples, count);
        assert_eq!(got.counters.recorded, count);
        assert_eq!(got.stacks, HashMap::from([(vec![0, 0], count)]));
        next.acknowledge(epoch);
    }
}

/// A recording must end by itself, even without polls: a tick after the end is not counted.
#[test]
fn a_duration_ends_a_recording() {
    let (agent, service, mut client) = guest();
    let start = Start { duration_ns: 100_000_000, delay_ns: 5_000_000, ..one_ms() };
    client.start(start);
    assert_eq!(client.status().0, state::DELAYED);
    assert!(!tick(agent, &[1]), "not before the delay has passed");
    agent.platform().run(5_000_000);
    assert_eq!(service.borrow_mut().advance(), Some(105_000_000));
    while tick(agent, &[1]) {}
    assert_eq!(agent.platform().now_ns(), 105_000_000, "the last deadline is the end");
    agent.platform().run(50_000_000);
    deliver(agent, &[9]);
    service.borrow_mut().advance();
    assert_eq!(client.status().0, state::FINISHED);
    let pending = client.stop(0);
    let got = client.fetch(pending.first_epoch);
    assert_eq!(got.stacks.len(), 1);
    assert!(got.samples.abs_diff(100) < 20, "{}", got.samples);
    assert_eq!(got.running_ns, 100_000_000, "running time after the end is not the recording's");
}

/// Every outcome of a tick has its counter, and they add up.
#[test]
fn every_tick_is_accounted_for() {
    let (agent, _, mut client) = guest();
    client.start(Start { depth: 3, ..one_ms() });
    let to_deadline = || {
        let deadline = agent.deadline().unwrap();
        agent.platform().run(deadline - agent.platform().now_ns());
    };
    to_deadline();
    assert!(agent.on_tick(None).is_some(), "masked");
    to_deadline();
    agent.on_block(None);
    assert_eq!(deliver(agent, &[1]), None, "idle, and no deadline while the guest blocks");
    assert!(agent.on_wake().is_some());
    tick(agent, &[1, 2, 3, 4]);
    // There is no code at an address that is not canonical; on aarch64 at one that is misaligned.
    let nowhere = if cfg!(target_arch = "aarch64") { 0x7fff_0000_0002 } else { 1 << 60 };
    tick(agent, &[1, nowhere]);
    let deadline = agent.deadline().unwrap();
    agent.platform().run(deadline - agent.platform().now_ns() + 1_500_000);
    deliver(agent, &[1]);
    deliver(agent, &[1]);
    let (_, counters, _) = client.status();
    let expected = Counters {
        ticks: 5,
        recorded: 3,
        masked: 1,
        idle: 1,
        early: 1,
        late: 1,
        truncated: 1,
        broken: 1,
        by_frame_pointer: 3,
        ..Counters::default()
    };
    assert_eq!(counters, expected);
    assert!(counters.add_up());
}

/// A client ends its file with the last epoch of what has finished: that of a tick which is still
/// being counted would be missing.
#[test]
fn a_recording_is_not_finished_before_its_last_epoch_waits() {
    let (agent, _, mut client) = guest();
    client.start(Start { duration_ns: 5_000_000, ..one_ms() });
    let client = Rc::new(RefCell::new(client));
    let other = Rc::clone(&client);
    AT_WALK.set(Some(Box::new(move || {
        agent.platform().run(10_000_000);
        other.borrow().advance();
        let (state, _, epochs) = other.borrow_mut().status();
        assert_eq!((state, epochs), (state::RECORDING, 0));
    })));
    assert!(tick(agent, &[1, 2]));
    assert!(AT_WALK.take().is_none());
    client.borrow().advance();
    let (state, counters, epochs) = client.borrow_mut().status();
    assert_eq!((state, counters.ticks, epochs), (state::FINISHED, 1, 1));
}

/// Guards an agent that is blamed for what others had the CPU for.
#[test]
fn stolen_time_is_no_network_work() {
    let (agent, service, mut client) = guest();
    let work = service.borrow_mut().begin_work();
    agent.platform().run(2_000_000);
    agent.platform().steal(5_000_000);
    service.borrow_mut().end_work(work);
    let status: Status = read(&client.ask(&Check {})[0]);
    assert_eq!((status.server_ns, status.server_longest_ns), (2_000_000, 7_000_000));
}

/// A guest that begins to serve again, for example over another network, must find its recordings
/// unchanged: the ticks in between are counted, and a new recording has a new id.
#[test]
fn recordings_go_on_while_nobody_serves() {
    let (agent, service, mut client) = connected(2, 1 << 18);
    client.start(one_ms());
    (0..5).for_each(|_| assert!(tick(agent, &[1, 2, 3])));
    drop((service, client));
    assert!(tick(agent, &[1, 2, 3]), "ticks go on");
    let service = serve(agent);
    let mut client = Client::connect(&service);
    let (state, counters, _) = client.status();
    assert_eq!((state, counters.ticks), (state::RECORDING, 6));
    let second = Start::running_time("second", 1_000_000);
    assert_eq!(client.start(second), 2);
    assert!(tick(agent, &[1, 2, 3]));
    let pending = client.stop(1);
    assert_eq!(pending.recording, 1);
    let (state, counters, epochs) = client.status();
    assert_eq!((state, counters.ticks, epochs), (state::FINISHED, 7, 1));
    assert!(counters.add_up());
}

#[test]
fn a_full_table_is_overflow() {
    let (agent, _, mut client) = connected(1, unikprof_agent::minimum_bytes(1, 3));
    client.start(one_ms());
    (0..1000).for_each(|leaf| assert!(tick(agent, &[leaf])));
    let (_, counters, _) = client.status();
    assert_eq!(counters.ticks, 1000);
    assert!(counters.overflow > 800 && counters.add_up(), "{counters:?}");
}

/// Blocked time does not move a target: the rest of the period is armed again at the wake.
#[test]
fn the_remainder_survives_a_block() {
    let (agent, _, mut client) = guest();
    client.start(one_ms());
    let left = |agent: &FakeAgent| agent.deadline().unwrap() - agent.platform().now_ns();
    let before = left(agent);
    agent.platform().run(before / 2);
    agent.on_block(None);
    assert_eq!(agent.deadline(), None);
    agent.platform().idle(10_000_000_000);
    let deadline = agent.on_wake().unwrap();
    assert_eq!(deadline - agent.platform().now_ns(), before - before / 2);
}

#[test]
fn refusals_say_what_was_wrong() {
    let (agent, service, mut client) = guest();
    let long = "x".repeat(65);
    let named = |name| Start { name, ..one_ms() };
    let period = |period_ns| Start { period_ns, ..one_ms() };
    let depth = |depth| Start { depth, ..one_ms() };
    // As of allocations: a mode that the agent does not know has no period.
    let mode = Start { mode: 9, ..period(0) };
    for (start, code) in [
        (named(""), refusal::BAD_NAME),
        (named(&long), refusal::BAD_NAME),
        (named("a\nb"), refusal::BAD_NAME),
        (period(0), refusal::BAD_PERIOD),
        (period(u64::MAX), refusal::BAD_PERIOD),
        (depth(0), refusal::BAD_DEPTH),
        (depth(129), refusal::BAD_DEPTH),
        (mode, refusal::UNSUPPORTED_MODE),
    ] {
        assert_eq!(client.refusal(&start).0, code, "{start:?}");
    }
    let none = client.refusal(&Stop { recording: 0 });
    assert_eq!(none.0, refusal::NO_RECORDING);

    client.start(named("nightly"));
    let mut second = Client::connect(&service);
    for code in [refusal::ALREADY_RECORDING, refusal::UNFETCHED] {
        let (refused, text) = second.refusal(&named("nightly"));
        assert_eq!(refused, code);
        assert!(text.contains("nightly"), "{text}");
        tick(agent, &[1]);
        second.ask(&Stop { recording: 0 });
    }
    let discard = Start { flags: start_flag::REPLACE, ..named("nightly") };
    assert_eq!(second.start(discard), 2);
    assert_eq!(second.status(), (state::RECORDING, Counters::default(), 0));
}

#[test]
fn no_common_version_names_both_ranges() {
    let (_, service) = served();
    let mut client = Client::silent(&service);
    let newer = VersionRange { lowest: 7, highest: 9 };
    client.send_bytes(&preamble::encode(Preamble { versions: newer, ..preamble::OPEN }));
    client.received.drain(..preamble::LENGTH);
    let (code, text) = refusal_code(&client.frames());
    assert_eq!(code, refusal::NO_COMMON_VERSION);
    assert!(text.contains("7 to 9") && text.contains("versions 1,"), "{text}");
    assert!(client.is_over());
}

/// A peer that breaks the rules must lose its own connection only.
#[test]
fn rule_breakers_lose_their_connection_only() {
    let (agent, service) = served();
    let mut honest = Client::connect(&service);
    honest.start(one_ms());

    let mut foreign = Client::silent(&service);
    foreign.send_bytes(b"GET / HTTP/1.1\r\n\r\n");
    assert!(foreign.is_over());
    foreign.close();

    let mut damaged = Client::connect(&service);
    let mut request = encoded(&Check {});
    *request.last_mut().unwrap() ^= 1;
    damaged.send_bytes(&request);
    assert_eq!(refusal_code(&damaged.frames()).0, refusal::MALFORMED);
    assert!(damaged.is_over());
    damaged.close();

    let mut endless = Client::connect(&service);
    let mut header = [0xff; frame::HEADER];
    header[2..6].copy_from_slice(&(frame::MAX_BODY as u32 + 1).to_le_bytes());
    endless.send_bytes(&header);
    assert_eq!(refusal_code(&endless.frames()).0, refusal::MALFORMED);
    endless.close();

    // Unknown and too long, but complete: skipped, and the conversation continues.
    let mut newer = Client::connect(&service);
    let mut long = vec![0x55; frame::HEADER + 5000];
    long[..2].copy_from_slice(&0x1234_u16.to_le_bytes());
    long[2..6].copy_from_slice(&5000_u32.to_le_bytes());
    newer.send_bytes(&long);
    assert_eq!(refusal_code(&newer.frames()).0, refusal::UNKNOWN_REQUEST);
    assert_eq!(newer.status().0, state::RECORDING);

    assert!(tick(agent, &[5]));
    assert_eq!(honest.status().1.recorded, 1);
    assert_eq!(honest.answer::<Status>(&Check {}).peers.connections(), 3);
}

#[test]
fn silent_and_stalled_clients_are_given_up() {
    let (agent, service) = served();
    let silent = service.borrow_mut().open().unwrap();
    let mut stalled = Client::connect(&service);
    stalled.send_only(&HELLO);
    assert_eq!(stalled.take(10), 10);
    let mut quiet = Client::connect(&service);
    agent.platform().run(1_999_999_999);
    assert_eq!(service.borrow_mut().advance(), Some(2_000_000_000));
    assert!(!service.borrow().is_over(silent));
    agent.platform().run(1);
    service.borrow_mut().advance();
    assert!(service.borrow().is_over(silent) && !stalled.is_over());
    agent.platform().run(8_000_000_000);
    service.borrow_mut().advance();
    assert!(stalled.is_over() && !quiet.is_over());
    assert_eq!(quiet.status().0, state::IDLE);
    agent.platform().run(60_000_000_000);
    service.borrow_mut().advance();
    assert!(quiet.is_over());
}

#[test]
fn one_client_too_many_gets_a_refusal() {
    let (_, service) = served();
    let sessions: Vec<_> = (0..SESSIONS).map(|_| service.borrow_mut().open().unwrap()).collect();
    assert_eq!(service.borrow_mut().open(), None);
    let mut answer = [0; 128];
    let length = service.borrow().busy_answer(&mut answer);
    let frame = frame::split(&answer[preamble::LENGTH..length]).unwrap().unwrap();
    assert_eq!(frame::decode::<Refusal<'_>>(&frame).unwrap().code, refusal::BUSY);
    service.borrow_mut().close(sessions[2]);
    let next = service.borrow_mut().open().unwrap();
    // The state of the old conversation does not apply to the new one.
    assert!(service.borrow().is_over(sessions[2]) && !service.borrow().is_over(next));
}

#[test]
fn an_agent_has_one_service() {
    let (agent, service, client) = guest();
    assert!(Service::new(agent, Access::Open).is_err());
    drop((service, client));
    assert!(Service::new(agent, Access::Open).is_ok());
}

/// Requests in one packet, in single bytes, and more of them than fit the buffer.
#[test]
fn cuts_in_the_stream_do_not_matter() {
    let (_, service) = served();
    let mut bytes = preamble::encode(preamble::OPEN).to_vec();
    bytes.extend(encoded(&Check {}).repeat(200));
    for piece in [1, 7, 4096] {
        let mut client = Client::silent(&service);
        bytes.chunks(piece).for_each(|piece| client.send_bytes(piece));
        client.received.drain(..preamble::LENGTH);
        assert_eq!(client.frames().len(), 200);
        client.close();
    }
}

/// Polls without a client use up the CPU share of unauthenticated clients. The share must recover
/// even if no client is connected: otherwise no client could connect any more.
#[test]
fn an_agent_that_nobody_has_asked_for_long_lets_clients_in() {
    let (agent, service) = served();
    agent.platform().step_ns.store(20_000, Ordering::Relaxed);
    let mut closed = 0;
    for _ in 0..10_000 {
        agent.platform().idle(1_000_000_000);
        closed += u32::from(service.borrow_mut().place_from_ns().is_some());
        let work = service.borrow_mut().begin_work();
        service.borrow_mut().advance();
        service.borrow_mut().end_work(work);
    }
    assert_eq!(closed, 0, "a poll in a second is a small part of the share");
}
