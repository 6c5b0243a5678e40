//! Conversations, message by message: requests, answers, and the resulting state.
#![allow(clippy::unwrap_used, clippy::panic)]

mod fake_guest;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;

use fake_guest::client::{
    Client, Known, add_nodes, counts_of, download, download_to, one_ms, read, refusal_code,
    service, whole,
};
use fake_guest::{FakeAgent, agent, deliver, tick};
use unikprof_agent::{Access, Platform, SESSIONS, Service};
use unikprof_proto::code::{refusal, start_flag, state};
use unikprof_proto::frame::{self, Message};
use unikprof_proto::message::{
    Acknowledge, Acknowledged, Check, Counters, Counts, Dump, Fetch, Hello, Mapping, Nodes,
    Pending, Refusal, Start, Started, Status, Stop, Welcome,
};
use unikprof_proto::preamble::{self, Preamble, VersionRange};
use unikprof_test_kit::frames::encoded;

#[test]
fn a_welcome_says_who_the_agent_is() {
    let (_, mut service) = service(2);
    let mut client = Client::connect(&mut service);
    let frames = client.ask(
        &mut service,
        &Hello {
            client: "test",
            client_id: 0,
        },
    );
    let welcome: Welcome<'_> = read(&frames[0]);
    assert_eq!(
        (welcome.guest_name, welcome.vcpus, welcome.mappings),
        (Some("fake"), 2, 1)
    );
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
            let mut service = Service::new(agent, Access::Open).unwrap();
            for _ in 0..3 {
                let mut client = Client::connect(&mut service);
                let frames = client.ask(
                    &mut service,
                    &Hello {
                        client_id: 0,
                        client: "test",
                    },
                );
                assert_eq!(read::<Welcome<'_>>(&frames[0]).instance, agent.instance());
                ids.push(agent.instance());
                service.close(client.session);
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
    let agent = agent(1, 1 << 20);
    agent.platform().run(7_000_000_000);
    let began_ns = agent.platform().now_ns();
    let mut service = Service::new(agent, Access::Open).unwrap();
    let mut client = Client::connect(&mut service);
    agent.platform().run(1_000_000_000);
    let frames = client.ask(&mut service, &Check {});
    let status: Status = read(&frames[0]);
    assert_eq!(status.server_since_ns, began_ns);
    assert!(status.now_ns >= began_ns + 1_000_000_000);
}

/// A guest may poll repeatedly while a client waits for its part of the CPU share: these polls must not use up that
/// share.
#[test]
fn a_client_that_waits_for_its_share_is_served_however_often_it_is_polled() {
    let (agent, mut service) = service(1);
    let mut client = Client::connect(&mut service);
    let request = encoded(&Check {});
    agent.platform().step_ns.store(20_000, Ordering::Relaxed);
    let session = client.session;
    let (mut answers, mut waits) = (0, 0);
    let mut is_answered = true;
    for _ in 0..20_000 {
        if is_answered {
            assert_eq!(service.receive(session, &request), request.len());
        }
        let is_deferred = service.is_deferred(session);
        let work = service.begin_work();
        is_answered = client.take(&mut service, 100_000) > 0;
        service.advance();
        service.end_work(work);
        waits += u32::from(is_deferred);
        // Only answers after a wait count.
        answers += u32::from(is_answered && waits > 100);
    }
    assert!(
        answers > 100 && waits > 100,
        "{answers} answers, {waits} waits"
    );
}

#[test]
fn a_recording_is_counted_exactly() {
    let (agent, mut service) = service(1);
    let mut client = Client::connect(&mut service);
    let frames = client.start(&mut service, one_ms());
    let started: Started = read(&frames[0]);
    for round in 0..1000_u64 {
        assert!(tick(agent, &[round % 10, 100, 200]));
    }
    deliver(agent, &[1]);
    let frames = client.ask(
        &mut service,
        &Stop {
            recording: started.recording,
        },
    );
    let pending: Pending = read(&frames[0]);
    assert_eq!((pending.epochs, pending.complete), (1, true));
    let fetch = whole(pending.first_epoch);
    let got = download(&client.ask(&mut service, &fetch));
    assert_eq!(got.stacks.len(), 10);
    assert!((0..10).all(|leaf| got.stacks[&vec![leaf, 100, 200]] == 100));
    assert!(got.counters.add_up());
    assert_eq!(
        (got.counters.ticks, got.counters.recorded, got.samples),
        (1000, 1000, 1000)
    );
    assert_eq!(got.counters.early, 1);
    assert_eq!(
        got,
        download(&client.ask(&mut service, &fetch)),
        "fetched again, the same"
    );
    let ended = client.ask(
        &mut service,
        &Acknowledge {
            epoch: pending.first_epoch,
        },
    );
    assert_eq!(read::<Acknowledged>(&ended[0]).epoch, pending.first_epoch);
    assert_eq!(client.status(&mut service).0, state::IDLE);
    let gone = refusal_code(&client.ask(&mut service, &fetch));
    assert_eq!(gone.0, refusal::NO_EPOCH);
    assert!(!tick(agent, &[1]), "nothing is armed any more");
}

/// After a broken connection, a download continues with what the client has received, wherever it
/// broke.
#[test]
fn a_broken_download_goes_on_where_it_broke() {
    const STACKS: u64 = 3000;
    let agent = agent(1, 1 << 20);
    let mut service = Service::new(agent, Access::Open).unwrap();
    let mut client = Client::connect(&mut service);
    client.start(&mut service, one_ms());
    for round in 0..STACKS {
        tick(agent, &[round, round % 100, 77]);
    }
    let pending: Pending = read(&client.ask(&mut service, &Dump { recording: 0 })[0]);
    let epoch = pending.first_epoch;
    let frames = client.ask(&mut service, &whole(epoch));
    let expected = download(&frames);
    assert_eq!(expected.stacks.len() as u64, STACKS);
    assert_eq!(expected.samples, STACKS);
    for kind in [Nodes::TYPE, Counts::TYPE] {
        let runs = frames.iter().filter(|frame| frame.0 == kind).count();
        assert!(runs > 1, "{runs} frames of type {kind:#x}");
    }
    let mut ticked = 0;
    for received in 0..frames.len() {
        // The recording continues, and there are new stacks.
        ticked += 1;
        tick(agent, &[ticked, 5000]);
        // The connection breaks in the middle of a frame.
        let mut cut = Client::connect(&mut service);
        let request = encoded(&whole(epoch));
        assert_eq!(service.receive(cut.session, &request), request.len());
        let bytes = frames[..received]
            .iter()
            .map(|frame| frame::HEADER + frame.1.len());
        cut.take(&mut service, bytes.sum::<usize>() + 6);
        service.close(cut.session);
        // The client need not receive again what it has received.
        let (mut known, mut counts) = (Known::new(), HashMap::new());
        for frame in &frames[..received] {
            match frame.0 {
                Nodes::TYPE => add_nodes(&mut known, &read(frame)),
                Counts::TYPE => counts.extend(counts_of(&read(frame))),
                _ => {}
            }
        }
        let rest = Fetch {
            known: known.keys().max().copied().unwrap_or(0),
            counted: counts.keys().max().copied().unwrap_or(0),
            ..whole(epoch)
        };
        let mut next = Client::connect(&mut service);
        let rest = next.ask(&mut service, &rest);
        let mut got = download_to(&mut known, &rest);
        for (number, count) in counts {
            let before = got.stacks.insert(known[&number].clone(), count);
            assert_eq!(before, None, "a count twice");
        }
        assert_eq!(got, expected, "broken after {received} frames");
        service.close(next.session);
    }
}

#[test]
fn a_dump_leaves_the_recording_running() {
    let (agent, mut service) = service(1);
    let mut client = Client::connect(&mut service);
    client.start(&mut service, one_ms());
    (0..300).for_each(|_| assert!(tick(agent, &[1])));
    let first: Pending = read(&client.ask(&mut service, &Dump { recording: 0 })[0]);
    assert_eq!((first.epochs, first.complete), (1, true));
    (0..50).for_each(|_| assert!(tick(agent, &[2])));
    // The first epoch still waits: the second dump says so instead of making another one.
    let second: Pending = read(&client.ask(&mut service, &Dump { recording: 0 })[0]);
    assert_eq!(
        second,
        Pending {
            complete: false,
            ..first
        }
    );
    let got = download(&client.ask(&mut service, &whole(first.first_epoch)));
    assert_eq!(got.stacks, HashMap::from([(vec![1], 300)]));
    assert_eq!(got.counters.recorded, 300);
    // Stopped while one epoch waits: now there are two, and only the older one can be acknowledged.
    let both: Pending = read(&client.ask(&mut service, &Stop { recording: 0 })[0]);
    assert_eq!((both.first_epoch, both.epochs), (first.first_epoch, 2));
    let last = both.first_epoch + 1;
    let early = refusal_code(&client.ask(&mut service, &Acknowledge { epoch: last }));
    assert_eq!(early.0, refusal::NO_EPOCH);
    let got = download(&client.ask(&mut service, &whole(last)));
    assert_eq!(got.stacks, HashMap::from([(vec![2], 50)]));
    for epoch in [both.first_epoch, last] {
        let frames = client.ask(&mut service, &Acknowledge { epoch });
        assert_eq!(read::<Acknowledged>(&frames[0]).epoch, epoch);
    }
}

/// The client disconnects before its epoch is completely cleared: no other client may be sent the
/// rest, and the next counts in the same place must begin with 0.
#[test]
fn an_acknowledged_epoch_is_gone_though_its_client_is_too() {
    // So many stacks that one call does not clear them.
    const STACKS: u64 = 40_000;
    let agent = agent(1, 8 << 20);
    let mut service = Service::new(agent, Access::Open).unwrap();
    let mut client = Client::connect(&mut service);
    client.start(&mut service, one_ms());
    (0..STACKS).for_each(|n| assert!(tick(agent, &[n % 256, n / 256])));
    let first: Pending = read(&client.ask(&mut service, &Dump { recording: 0 })[0]);
    let request = encoded(&Acknowledge {
        epoch: first.first_epoch,
    });
    service.receive(client.session, &request);
    service.transmit(client.session, &mut [0; 64]);
    service.close(client.session);

    let mut next = Client::connect(&mut service);
    let (_, _, epochs) = next.status(&mut service);
    assert_eq!(epochs, 0);
    let gone = refusal_code(&next.ask(&mut service, &whole(first.first_epoch)));
    assert_eq!(gone.0, refusal::NO_EPOCH);
    for count in [7, 5] {
        (0..count).for_each(|_| assert!(tick(agent, &[0, 0])));
        // The dump waits until there is a free column to count into.
        next.send(&mut service, &Dump { recording: 0 });
        while next.received.is_empty() {
            assert!(service.advance().is_some(), "the agent forgot the dump");
            next.take(&mut service, 100_000);
        }
        let pending: Pending = read(&next.frames()[0]);
        assert_eq!((pending.epochs, pending.complete), (1, true));
        let epoch = pending.first_epoch;
        let got = download(&next.ask(&mut service, &whole(epoch)));
        assert_eq!(got.samples, count);
        assert_eq!(got.counters.recorded, count);
        assert_eq!(got.stacks, HashMap::from([(vec![0, 0], count)]));
        next.ask(&mut service, &Acknowledge { epoch });
    }
}

/// A recording must end by itself, even without polls: a tick after the end is not counted.
#[test]
fn a_duration_ends_a_recording() {
    let (agent, mut service) = service(1);
    let mut client = Client::connect(&mut service);
    let start = Start {
        duration_ns: 100_000_000,
        delay_ns: 5_000_000,
        ..one_ms()
    };
    client.start(&mut service, start);
    assert_eq!(client.status(&mut service).0, state::DELAYED);
    assert!(!tick(agent, &[1]), "not before the delay has passed");
    agent.platform().run(5_000_000);
    assert_eq!(service.advance(), Some(105_000_000));
    while tick(agent, &[1]) {}
    assert_eq!(
        agent.platform().now_ns(),
        105_000_000,
        "the last deadline is the end"
    );
    agent.platform().run(50_000_000);
    deliver(agent, &[9]);
    service.advance();
    assert_eq!(client.status(&mut service).0, state::FINISHED);
    let pending: Pending = read(&client.ask(&mut service, &Stop { recording: 0 })[0]);
    let fetch = whole(pending.first_epoch);
    let got = download(&client.ask(&mut service, &fetch));
    assert_eq!(got.stacks.len(), 1);
    assert!(got.samples.abs_diff(100) < 20, "{}", got.samples);
    assert_eq!(
        got.running_ns, 100_000_000,
        "running time after the end is not the recording's"
    );
}

/// Every outcome of a tick has its counter, and they add up.
#[test]
fn every_tick_is_accounted_for() {
    let (agent, mut service) = service(1);
    let mut client = Client::connect(&mut service);
    client.start(
        &mut service,
        Start {
            depth: 3,
            ..one_ms()
        },
    );
    let to_deadline = || {
        let deadline = agent.deadline().unwrap();
        agent.platform().run(deadline - agent.platform().now_ns());
    };
    to_deadline();
    assert!(agent.on_tick(None).is_some(), "masked");
    to_deadline();
    agent.on_block(None);
    assert_eq!(
        deliver(agent, &[1]),
        None,
        "idle, and no deadline while the guest blocks"
    );
    assert!(agent.on_wake().is_some());
    tick(agent, &[1, 2, 3, 4]);
    // There is no code at an address that is not canonical.
    tick(agent, &[1, 1 << 60]);
    let deadline = agent.deadline().unwrap();
    agent
        .platform()
        .run(deadline - agent.platform().now_ns() + 1_500_000);
    deliver(agent, &[1]);
    deliver(agent, &[1]);
    let (_, counters, _) = client.status(&mut service);
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

/// A guest that begins to serve again, for example over another network, must find its recordings
/// unchanged: the ticks in between are counted, and a new recording has a new id.
#[test]
fn recordings_go_on_while_nobody_serves() {
    let (agent, mut service) = service(2);
    let mut client = Client::connect(&mut service);
    client.start(&mut service, one_ms());
    (0..5).for_each(|_| assert!(tick(agent, &[1, 2, 3])));
    drop(service);
    assert!(tick(agent, &[1, 2, 3]), "ticks go on");
    let mut service = Service::new(agent, Access::Open).unwrap();
    let mut client = Client::connect(&mut service);
    let (state, counters, _) = client.status(&mut service);
    assert_eq!((state, counters.ticks), (state::RECORDING, 6));
    let second = Start::running_time("second", 1_000_000);
    let frames = client.start(&mut service, second);
    assert_eq!(read::<Started>(&frames[0]).recording, 2);
    assert!(tick(agent, &[1, 2, 3]));
    let frames = client.ask(&mut service, &Stop { recording: 1 });
    let pending: Pending = read(&frames[0]);
    assert_eq!(pending.recording, 1);
    let (state, counters, epochs) = client.status(&mut service);
    assert_eq!((state, counters.ticks, epochs), (state::FINISHED, 7, 1));
    assert!(counters.add_up());
}

#[test]
fn a_full_table_is_overflow() {
    let agent = agent(1, unikprof_agent::minimum_bytes(1, 3));
    let mut service = Service::new(agent, Access::Open).unwrap();
    let mut client = Client::connect(&mut service);
    client.start(&mut service, one_ms());
    (0..1000).for_each(|leaf| assert!(tick(agent, &[leaf])));
    let (_, counters, _) = client.status(&mut service);
    assert_eq!(counters.ticks, 1000);
    assert!(counters.overflow > 800 && counters.add_up(), "{counters:?}");
}

/// Blocked time does not move a target: the rest of the period is armed again at the wake.
#[test]
fn the_remainder_survives_a_block() {
    let (agent, mut service) = service(1);
    let mut client = Client::connect(&mut service);
    client.start(&mut service, one_ms());
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
    let (agent, mut service) = service(1);
    let mut client = Client::connect(&mut service);
    let mut refused = |start: Start<'_>| refusal_code(&client.start(&mut service, start)).0;
    assert_eq!(
        refused(Start {
            name: "",
            ..one_ms()
        }),
        refusal::BAD_NAME
    );
    assert_eq!(
        refused(Start {
            name: &"x".repeat(65),
            ..one_ms()
        }),
        refusal::BAD_NAME
    );
    assert_eq!(
        refused(Start {
            name: "a\nb",
            ..one_ms()
        }),
        refusal::BAD_NAME
    );
    assert_eq!(
        refused(Start {
            period_ns: 0,
            ..one_ms()
        }),
        refusal::BAD_PERIOD
    );
    assert_eq!(
        refused(Start {
            period_ns: u64::MAX,
            ..one_ms()
        }),
        refusal::BAD_PERIOD
    );
    assert_eq!(
        refused(Start {
            depth: 0,
            ..one_ms()
        }),
        refusal::BAD_DEPTH
    );
    assert_eq!(
        refused(Start {
            depth: 129,
            ..one_ms()
        }),
        refusal::BAD_DEPTH
    );
    assert_eq!(
        refused(Start {
            mode: 9,
            ..one_ms()
        }),
        refusal::UNSUPPORTED_MODE
    );
    let none = refusal_code(&client.ask(&mut service, &Stop { recording: 0 }));
    assert_eq!(none.0, refusal::NO_RECORDING);

    client.start(
        &mut service,
        Start {
            name: "nightly",
            ..one_ms()
        },
    );
    let mut second = Client::connect(&mut service);
    let again = Start {
        name: "nightly",
        ..one_ms()
    };
    let (code, text) = refusal_code(&second.start(&mut service, again));
    assert_eq!(code, refusal::ALREADY_RECORDING);
    assert!(text.contains("nightly"), "{text}");
    tick(agent, &[1]);
    second.ask(&mut service, &Stop { recording: 0 });
    let again = Start {
        name: "nightly",
        ..one_ms()
    };
    let (code, text) = refusal_code(&second.start(&mut service, again));
    assert_eq!(code, refusal::UNFETCHED);
    assert!(text.contains("nightly"), "{text}");
    let discard = Start {
        name: "nightly",
        flags: start_flag::REPLACE,
        ..one_ms()
    };
    let frames = second.start(&mut service, discard);
    assert_eq!(read::<Started>(&frames[0]).recording, 2);
    assert_eq!(
        second.status(&mut service),
        (state::RECORDING, Counters::default(), 0)
    );
}

#[test]
fn no_common_version_names_both_ranges() {
    let (_, mut service) = service(1);
    let mut client = Client {
        session: service.open().unwrap(),
        received: Vec::new(),
    };
    let newer = VersionRange {
        lowest: 7,
        highest: 9,
    };
    client.send_bytes(
        &mut service,
        &preamble::encode(Preamble {
            versions: newer,
            ..preamble::OPEN
        }),
    );
    client.received.drain(..preamble::LENGTH);
    let (code, text) = refusal_code(&client.frames());
    assert_eq!(code, refusal::NO_COMMON_VERSION);
    assert!(
        text.contains("7 to 9") && text.contains("versions 1,"),
        "{text}"
    );
    assert!(service.is_over(client.session));
}

/// A peer that breaks the rules must lose its own connection only.
#[test]
fn rule_breakers_lose_their_connection_only() {
    let (agent, mut service) = service(1);
    let mut honest = Client::connect(&mut service);
    honest.start(&mut service, one_ms());

    let mut foreign = Client {
        session: service.open().unwrap(),
        received: Vec::new(),
    };
    foreign.send_bytes(&mut service, b"GET / HTTP/1.1\r\n\r\n");
    assert!(service.is_over(foreign.session));
    service.close(foreign.session);

    let mut damaged = Client::connect(&mut service);
    let mut request = encoded(&Check {});
    *request.last_mut().unwrap() ^= 1;
    damaged.send_bytes(&mut service, &request);
    assert_eq!(refusal_code(&damaged.frames()).0, refusal::MALFORMED);
    assert!(service.is_over(damaged.session));
    service.close(damaged.session);

    let mut endless = Client::connect(&mut service);
    let mut header = [0xff; frame::HEADER];
    header[2..6].copy_from_slice(&(frame::MAX_BODY as u32 + 1).to_le_bytes());
    endless.send_bytes(&mut service, &header);
    assert_eq!(refusal_code(&endless.frames()).0, refusal::MALFORMED);
    service.close(endless.session);

    // Unknown and too long, but complete: skipped, and the conversation continues.
    let mut newer = Client::connect(&mut service);
    let mut long = vec![0x55; frame::HEADER + 5000];
    long[..2].copy_from_slice(&0x1234_u16.to_le_bytes());
    long[2..6].copy_from_slice(&5000_u32.to_le_bytes());
    newer.send_bytes(&mut service, &long);
    assert_eq!(refusal_code(&newer.frames()).0, refusal::UNKNOWN_REQUEST);
    assert_eq!(newer.status(&mut service).0, state::RECORDING);

    assert!(tick(agent, &[5]));
    assert_eq!(honest.status(&mut service).1.recorded, 1);
    let frames = honest.ask(&mut service, &Check {});
    assert_eq!(read::<Status>(&frames[0]).peers.connections(), 3);
}

#[test]
fn silent_and_stalled_clients_are_given_up() {
    let (agent, mut service) = service(1);
    let silent = service.open().unwrap();
    let mut stalled = Client::connect(&mut service);
    let hello = encoded(&Hello {
        client: "x",
        client_id: 0,
    });
    service.receive(stalled.session, &hello);
    assert_eq!(stalled.take(&mut service, 10), 10);
    let mut quiet = Client::connect(&mut service);
    agent.platform().run(1_999_999_999);
    assert_eq!(service.advance(), Some(2_000_000_000));
    assert!(!service.is_over(silent));
    agent.platform().run(1);
    service.advance();
    assert!(service.is_over(silent) && !service.is_over(stalled.session));
    agent.platform().run(8_000_000_000);
    service.advance();
    assert!(service.is_over(stalled.session) && !service.is_over(quiet.session));
    assert_eq!(quiet.status(&mut service).0, state::IDLE);
    agent.platform().run(60_000_000_000);
    service.advance();
    assert!(service.is_over(quiet.session));
}

#[test]
fn one_client_too_many_gets_a_refusal() {
    let (_, mut service) = service(1);
    let sessions: Vec<_> = (0..SESSIONS).map(|_| service.open().unwrap()).collect();
    assert_eq!(service.open(), None);
    let mut answer = [0; 128];
    let length = service.busy_answer(&mut answer);
    let frame = frame::split(&answer[preamble::LENGTH..length])
        .unwrap()
        .unwrap();
    assert_eq!(
        frame::decode::<Refusal<'_>>(&frame).unwrap().code,
        refusal::BUSY
    );
    service.close(sessions[2]);
    let next = service.open().unwrap();
    // The state of the old conversation does not apply to the new one.
    assert!(service.is_over(sessions[2]) && !service.is_over(next));
}

#[test]
fn an_agent_has_one_service() {
    let (agent, service) = service(1);
    assert!(Service::new(agent, Access::Open).is_err());
    drop(service);
    assert!(Service::new(agent, Access::Open).is_ok());
}

/// Requests in one packet, in single bytes, and more of them than fit the buffer.
#[test]
fn cuts_in_the_stream_do_not_matter() {
    let (_, mut service) = service(1);
    let mut bytes = preamble::encode(preamble::OPEN).to_vec();
    bytes.extend(encoded(&Check {}).repeat(200));
    for piece in [1, 7, 4096] {
        let mut client = Client {
            session: service.open().unwrap(),
            received: Vec::new(),
        };
        bytes
            .chunks(piece)
            .for_each(|piece| client.send_bytes(&mut service, piece));
        client.received.drain(..preamble::LENGTH);
        assert_eq!(client.frames().len(), 200);
        service.close(client.session);
    }
}

/// Polls without a client use up the CPU share of unauthenticated clients. The share must recover even if no client is
/// connected: otherwise no client could connect any more.
#[test]
fn an_agent_that_nobody_has_asked_for_long_lets_clients_in() {
    let (agent, mut service) = service(1);
    agent.platform().step_ns.store(20_000, Ordering::Relaxed);
    let mut closed = 0;
    for _ in 0..10_000 {
        agent.platform().idle(1_000_000_000);
        closed += u32::from(service.place_from_ns().is_some());
        let work = service.begin_work();
        service.advance();
        service.end_work(work);
    }
    assert_eq!(closed, 0, "a poll in a second is a small part of the share");
}
