//! Encrypted conversations, and what happens to clients without a key.

use crate::pipe;
use std::collections::HashSet;
use std::sync::atomic::Ordering;

use crate::client::{self, HELLO, download, encoded, frames, one_ms, read, refusal_code, whole};
use crate::fake_guest::{self, FakeService, agent};
use crate::keyed::{self, CONTROL, Client, OTHER, VIEW, connect, exchange, first_message};
use unikprof_agent::{Access, Key, Keys, Platform, Role, SESSIONS, ServeError, Service, SessionId};
use unikprof_proto::code::{refusal, role};
use unikprof_proto::frame::{self, Message as _};
use unikprof_proto::message::{
    Acknowledge, Check, Dump, Handshake, Peers, Pending, RecordingStatus, Refusal, Started, Status,
    Stop, TableBegin, TakeSnapshot, VcpuEnd, VcpuSnapshot, Welcome,
};
use unikprof_proto::preamble;
#[cfg(feature = "ring")]
use unikprof_proto::{
    message::RingRun,
    ring::{decode, kind},
};

/// The agent's counters of refused connections, as a client with a key receives them.
fn peers(service: &mut FakeService) -> Peers {
    let mut client = Client::new(service, CONTROL);
    let answers = client.ask(service, &Check {});
    let peers = read::<Status>(&answers[0]).peers;
    service.close(client.session);
    peers
}

/// More than a second: an unauthenticated client may be replaced, even if its handshake was valid.
fn pass_grace(service: &FakeService) {
    service.agent().platform().idle(1_100_000_000);
}

fn refusals(bytes: &[u8]) -> u32 {
    let answers = frames(bytes);
    let [answer] = &answers[..] else {
        panic!("not one refusal: {answers:?}");
    };
    read::<Refusal<'_>>(answer).code
}

/// Makes a recording of this many ticks; returns its epoch.
fn recorded(service: &mut FakeService, client: &mut Client, ticks: u64) -> u64 {
    client.ask(service, &one_ms());
    let agent = service.agent();
    (0..ticks).for_each(|n| assert!(fake_guest::tick(agent, &[n % 251, n % 241])));
    let pending: Pending = client.answer(service, &Stop { recording: 0 });
    pending.first_epoch
}

/// Both implementations must understand each other, and each key has its role.
#[test]
fn a_key_opens_a_conversation_with_its_role() {
    let (_, mut service) = keyed::service();
    for (key, expected) in [(VIEW, role::VIEW), (CONTROL, role::CONTROL)] {
        let mut client = Client::new(&mut service, key);
        let frames = client.ask(&mut service, &HELLO);
        let welcome: Welcome<'_> = read(&frames[0]);
        assert_eq!(welcome.role, expected);
        let frames = client.ask(&mut service, &one_ms());
        if expected == role::VIEW {
            assert_eq!(refusal_code(&frames).0, refusal::NOT_ALLOWED);
        } else {
            assert_eq!(read::<Started>(&frames[0]).recording, 1);
        }
        let status: Status = client.answer(&mut service, &Check {});
        assert_eq!(status.peers.not_allowed, 1, "the refused start");
    }
}

/// A recording is fetched in records as it is without encryption, however they are fragmented.
#[test]
fn a_recording_is_fetched_under_a_key() {
    let (agent, mut service) = keyed::service();
    let mut client = Client::new(&mut service, CONTROL);
    client.ask(&mut service, &one_ms());
    for n in 0..3000 {
        assert!(fake_guest::tick(agent, &[n % 97, n % 89]));
    }
    let stop = encoded(&Stop { recording: 0 });
    let record = client.seal(&stop);
    let mut answer = Vec::new();
    for byte in record {
        answer.extend(exchange(&mut service, client.session, &[byte]));
    }
    let pending = frames(&client.open(&answer));
    let pending: Pending = read(&pending[0]);
    let fetch = whole(pending.first_epoch);
    let frames = client.ask(&mut service, &fetch);
    let got = download(&frames);
    assert_eq!((got.samples, got.stacks.values().sum::<u64>()), (3000, 3000));
}

/// A difference would reveal to an attacker which ids exist.
#[test]
fn an_unknown_id_and_a_wrong_key_get_the_same_answer() {
    let (_, mut service) = keyed::service();
    let unknown = connect(&mut service, OTHER);
    let first = unknown.send(&mut service);
    // A valid id with a message that was made with another key.
    let session = service.open().unwrap();
    exchange(&mut service, session, &preamble::encode(preamble::KEYED));
    let mut wrong = first_message(session, OTHER, preamble::encode(preamble::KEYED));
    let id = Key::from_bytes(VIEW).id();
    let mut shake: Handshake = read(&frames(&wrong.first)[0]);
    shake.key = id.0;
    wrong.first = encoded(&shake);
    let second = wrong.send(&mut service);
    assert_eq!(refusals(&first), refusal::BAD_KEY);
    assert_eq!(first, second);
    for session in [unknown.session, session] {
        assert!(service.is_over(session));
        service.close(session);
    }
    assert_eq!(peers(&mut service).bad_key, 2);
}

/// A failed handshake must leave a record in the ring, with its time.
#[cfg(feature = "ring")]
#[test]
fn a_failed_handshake_is_an_event() {
    let agent = fake_guest::agent_with_ring(1, 8 << 20, 1 << 16);
    let mut service = Service::new(agent, keyed::access()).unwrap();
    for at_ns in [1_000, 2_000] {
        agent.platform().run(1_000);
        let stranger = connect(&mut service, OTHER);
        assert_eq!(refusals(&stranger.send(&mut service)), refusal::BAD_KEY);
        service.close(stranger.session);
        assert_eq!(agent.platform().now_ns(), at_ns);
    }
    let mut client = Client::new(&mut service, VIEW);
    let mut events = Vec::new();
    for frame in client.ask(&mut service, &client::RING) {
        if frame.kind == RingRun::TYPE {
            let run: RingRun<'_> = read(&frame);
            decode(run.base_ns, run.count, run.payload, |record| {
                events.push((record.kind, record.at_ns));
            })
            .unwrap();
        }
    }
    events.retain(|event| event.0 != kind::NOTHING);
    assert_eq!(events, [(kind::BAD_KEY, 1_000), (kind::BAD_KEY, 2_000)]);
}

/// A client that was given another version, or another preamble, must fail the handshake.
#[test]
fn an_altered_preamble_fails_the_handshake() {
    let (_, mut service) = keyed::service();
    let session = service.open().unwrap();
    exchange(&mut service, session, &preamble::encode(preamble::KEYED));
    let mut believed = preamble::encode(preamble::KEYED);
    believed[10] = 9;
    let answer = first_message(session, CONTROL, believed).send(&mut service);
    assert_eq!(refusals(&answer), refusal::BAD_KEY);
}

/// Nobody may make an agent with keys accept an unencrypted conversation, nor a client believe that
/// it has one.
#[test]
fn there_is_no_way_down_to_the_clear() {
    let (_, mut service) = keyed::service();
    let session = service.open().unwrap();
    let mut request = preamble::encode(preamble::OPEN).to_vec();
    request.extend(encoded(&Check {}));
    let answer = exchange(&mut service, session, &request);
    let (said, rest) = answer.split_at(preamble::LENGTH);
    assert_eq!(said, preamble::encode(preamble::KEYED));
    assert_eq!(refusals(rest), refusal::KEY_NEEDED);
    assert!(service.is_over(session));
    // A request instead of the handshake.
    let session = service.open().unwrap();
    exchange(&mut service, session, &preamble::encode(preamble::KEYED));
    let answer = exchange(&mut service, session, &encoded(&Check {}));
    assert_eq!(refusals(&answer), refusal::MALFORMED);

    let open = agent(1, 1 << 17);
    let mut service = Service::new(open, Access::Open).unwrap();
    let session = service.open().unwrap();
    let answer = exchange(&mut service, session, &preamble::encode(preamble::KEYED));
    assert_eq!(refusals(&answer[preamble::LENGTH..]), refusal::NOT_KEYED);
    assert!(service.is_over(session));
}

/// Replaying a first message must gain nothing: no role, no session for longer than any
/// unauthenticated client, and no effect on others.
#[test]
fn a_replayed_first_message_gains_nothing() {
    let (_, mut service) = keyed::service();
    let mut owner = Client::new(&mut service, CONTROL);
    owner.ask(&mut service, &one_ms());
    let seen = connect(&mut service, CONTROL);
    service.agent().platform().idle(5_000_000);
    seen.send(&mut service);
    service.close(seen.session);

    let mut thieves = Vec::new();
    for _ in 0..SESSIONS - 1 {
        let session = service.open().unwrap();
        exchange(&mut service, session, &preamble::encode(preamble::KEYED));
        service.agent().platform().idle(5_000_000);
        let answer = exchange(&mut service, session, &seen.first);
        assert_eq!(frames(&answer).len(), 1, "the reply that it cannot use");
        thieves.push(session);
    }
    // They are unauthenticated, and are replaced.
    pass_grace(&service);
    let newcomer = Client::new(&mut service, VIEW);
    assert!(service.is_given_up(thieves[0]));
    // What it sends instead of a record is not one.
    exchange(&mut service, thieves[1], &[[40, 0].as_slice(), &[7; 40]].concat());
    assert!(service.is_given_up(thieves[1]));
    thieves.iter().for_each(|thief| service.close(*thief));
    service.close(newcomer.session);

    let answers = owner.ask(&mut service, &Check {});
    let left: RecordingStatus<'_> = read(&answers[1]);
    assert_eq!(left.recording, 1, "it goes on");
    let peers = read::<Status>(&answers[0]).peers;
    assert_eq!((peers.displaced, peers.bad_record), (1, 1));
}

/// Guards against a key that still opens, or a conversation that goes on with it, after it was
/// withdrawn.
#[test]
fn keys_can_be_replaced_while_it_serves() {
    let (_, mut service) = keyed::service();
    let mut owner = Client::new(&mut service, CONTROL);
    owner.ask(&mut service, &one_ms());
    let none = Access::Keys(Box::leak(Box::default()));
    assert_eq!(service.set_access(none), Err(ServeError::NoKeys));
    assert!(!service.is_over(owner.session), "nothing has changed");

    let mut keys = Keys::new();
    keys.add(Role::Control, Key::from_bytes(OTHER)).unwrap();
    let keys = Access::Keys(Box::leak(Box::new(keys)));
    service.set_access(keys).unwrap();
    assert!(service.is_given_up(owner.session));
    service.close(owner.session);
    let former = connect(&mut service, CONTROL);
    service.agent().platform().idle(5_000_000);
    assert_eq!(refusals(&former.send(&mut service)), refusal::BAD_KEY);
    service.close(former.session);
    let answers = Client::new(&mut service, OTHER).ask(&mut service, &Check {});
    let left: RecordingStatus<'_> = read(&answers[1]);
    assert_eq!(left.recording, 1, "it goes on");
}

/// Replayed, out of order, altered anywhere, or of an invalid length: the conversation must end
/// with that record, send nothing more, and be counted.
#[test]
fn a_bad_record_ends_the_conversation_at_once() {
    let check = encoded(&Check {});
    type Change = fn(&mut Client, &[u8]) -> Vec<u8>;
    let changes: [(&str, Change); 6] = [
        ("replayed", |client, check| {
            let record = client.seal(check);
            [&record[..], &record].concat()
        }),
        ("out of order", |client, check| {
            let first = client.seal(check);
            [client.seal(check), first].concat()
        }),
        ("altered text", |client, check| {
            let mut record = client.seal(check);
            record[5] ^= 1;
            record
        }),
        ("altered tag", |client, check| {
            let mut record = client.seal(check);
            *record.last_mut().unwrap() ^= 0x80;
            record
        }),
        ("too long", |_, _| vec![0xff, 0xff]),
        ("too short", |_, _| vec![16, 0]),
    ];
    let (_, mut service) = keyed::service();
    for (count, (name, change)) in (1..).zip(changes) {
        let mut client = Client::new(&mut service, CONTROL);
        client.ask(&mut service, &Check {});
        let bytes = change(&mut client, &check);
        let answer = exchange(&mut service, client.session, &bytes);
        assert!(service.is_given_up(client.session), "{name}");
        let answered = frames(&client.open(&answer)).len();
        assert_eq!(answered, usize::from(name == "replayed"), "{name}");
        service.close(client.session);
        assert_eq!(peers(&mut service).bad_record, count, "{name}");
    }
    // A connection that is closed within a record.
    let mut client = Client::new(&mut service, CONTROL);
    let record = client.seal(&check);
    exchange(&mut service, client.session, &record[..9]);
    service.close(client.session);
    assert_eq!(peers(&mut service).bad_record, 1 + changes.len() as u64);
}

/// However slow it is, a handshake must be complete after two seconds.
#[test]
fn a_handshake_left_hanging_is_ended() {
    let (agent, mut service) = keyed::service();
    let shaking = connect(&mut service, CONTROL);
    for byte in &shaking.first[..40] {
        agent.platform().idle(49_000_000);
        exchange(&mut service, shaking.session, &[*byte]);
        service.advance();
        assert!(!service.is_over(shaking.session));
    }
    agent.platform().idle(50_000_000);
    service.advance();
    assert!(service.is_given_up(shaking.session), "2.01 s");
    service.close(shaking.session);
    // The same holds after the handshake, until a record arrives.
    let client = Client::new(&mut service, CONTROL);
    agent.platform().idle(2_000_000_000);
    service.advance();
    assert!(service.is_given_up(client.session));
    service.close(client.session);
    assert_eq!(peers(&mut service).timed_out, 2);
}

/// Unauthenticated clients connect as fast as they can and send nothing, or invalid data. A client
/// with a key must get a session, and connected clients must keep theirs.
#[test]
fn a_flood_does_not_keep_out_a_client_with_a_key() {
    let (agent, mut service) = keyed::service();
    let mut owner = Client::new(&mut service, CONTROL);
    owner.ask(&mut service, &Check {});
    let mut flood: Vec<SessionId> = Vec::new();
    let mut got_in = 0;
    for turn in 0..2000_u64 {
        agent.platform().idle(10_000_000);
        // The flood takes each place as soon as it is free; a client that connects often enough is
        // first now and then.
        if turn % 7 == 0
            && let Some(session) = service.open()
        {
            exchange(&mut service, session, &preamble::encode(preamble::KEYED));
            let shaking = first_message(session, VIEW, preamble::encode(preamble::KEYED));
            let answer = shaking.send(&mut service);
            let mut client = shaking.finish(&answer);
            client.ask(&mut service, &HELLO);
            got_in += 1;
            service.close(session);
        }
        for _ in 0..3 {
            if let Some(session) = service.open() {
                exchange(
                    &mut service,
                    session,
                    &preamble::encode(preamble::KEYED)[..turn as usize % 17],
                );
                flood.push(session);
            }
        }
        service.advance();
        let over = |session: &SessionId| service.is_over(*session);
        let ended: Vec<SessionId> = flood.iter().copied().filter(over).collect();
        flood.retain(|session| !ended.contains(session));
        ended.into_iter().for_each(|session| service.close(session));
        assert!(flood.len() < SESSIONS, "there are no more sessions than there are");
        owner.ask(&mut service, &Check {});
    }
    assert!(got_in >= 4, "{got_in} times in 20 s");
    let peers = owner.answer::<Status>(&mut service, &Check {}).peers;
    assert!(peers.displaced > 20 && peers.turned_away > 1000, "{peers:?}");
}

/// A client with a long round trip must get a session while unauthenticated clients take all of
/// them. It sends its preamble and its handshake in one flight, so the agent has verified the key
/// before the client's session would be given to another one.
#[test]
fn a_long_round_trip_does_not_keep_out_a_client_with_a_key_during_a_flood() {
    for (round_trip_ms, waits_for_preamble, gets_in) in [
        (300, false, true),
        (900, false, true),
        // A client that sends its handshake only after the agent's preamble has arrived.
        (300, true, false),
    ] {
        let (agent, mut service) = keyed::service();
        let mut flood = Vec::new();
        let mut far: Option<(u64, SessionId)> = None;
        let mut shaking = None;
        let mut client = None;
        let mut answered = None;
        for now_ms in 0..5_000_u64 {
            agent.platform().idle(1_000_000);
            // From 1 s on the client tries once; like the others it waits in the queue for a
            // session.
            if now_ms >= 1_000 && far.is_none() && service.place_from_ns().is_none() {
                far = service.open().map(|session| (now_ms, session));
            }
            while service.place_from_ns().is_none() {
                flood.push(service.open().unwrap());
            }
            if let Some((since_ms, session)) = far {
                let passed_ms = now_ms - since_ms;
                let first = first_message(session, VIEW, preamble::encode(preamble::KEYED));
                let flight_ms = if waits_for_preamble { round_trip_ms } else { 0 };
                if passed_ms == 0 {
                    exchange(&mut service, session, &preamble::encode(preamble::KEYED));
                }
                if passed_ms == flight_ms {
                    service.receive(session, &first.first);
                    shaking = Some(first);
                }
                // The reply waits for its turn, then takes half of the round trip; so does the
                // first record.
                let reply = exchange(&mut service, session, &[]);
                if !reply.is_empty() && client.is_none() {
                    client = Some((now_ms, shaking.take().unwrap().finish(&reply)));
                }
                if let Some((replied_ms, client)) = &mut client
                    && now_ms == *replied_ms + round_trip_ms
                {
                    let record = client.seal(&encoded(&Check {}));
                    let answer = exchange(&mut service, session, &record);
                    answered = Some(frames(&client.open(&answer)).len());
                    break;
                }
                if service.is_given_up(session) {
                    break;
                }
            }
            service.advance();
            let over = |session: &SessionId| service.is_over(*session);
            let ended: Vec<SessionId> = flood.iter().copied().filter(over).collect();
            flood.retain(|session| !ended.contains(session));
            ended.into_iter().for_each(|session| service.close(session));
        }
        assert!(far.is_some(), "it has had a session");
        let expected = gets_in.then_some(1);
        assert_eq!(answered, expected, "{round_trip_ms} ms, {waits_for_preamble}");
    }
}

/// Guards nonces: a guest that was saved may run twice, and both copies would continue with the
/// same keys. Whatever is called first after the suspension, not a byte may be sent with the old
/// keys, and recordings must still be there.
#[test]
fn a_suspension_ends_sealed_sessions_before_another_byte_is_sent() {
    type First = fn(&mut FakeService, SessionId);
    let firsts: [First; 4] = [
        |_, _| {},
        |service, session| {
            service.receive(session, &[40, 0]);
        },
        |service, _| {
            service.advance();
        },
        |service, _| {
            let newcomer = service.open().unwrap();
            service.close(newcomer);
        },
    ];
    let (agent, mut service) = keyed::service();
    let mut client = Client::new(&mut service, CONTROL);
    let fetch = whole(recorded(&mut service, &mut client, 5_000));
    for first in firsts {
        let mut client = Client::new(&mut service, VIEW);
        let request = client.seal(&encoded(&fetch));
        service.receive(client.session, &request);
        // A part of a record is on its way; the rest of it is encrypted and waits.
        let mut buffer = [0; 100];
        assert_eq!(service.transmit(client.session, &mut buffer), 100);
        agent.resume();
        first(&mut service, client.session);
        assert_eq!(service.transmit(client.session, &mut buffer), 0);
        assert!(service.is_given_up(client.session) && service.is_over(client.session));
        service.close(client.session);
        let mut again = Client::new(&mut service, VIEW);
        let frames = again.ask(&mut service, &fetch);
        assert_eq!(download(&frames).samples, 5_000);
        service.close(again.session);
    }
    // A handshake whose reply was made but not sent must end as well: both copies have its
    // ephemeral key.
    let shaking = connect(&mut service, VIEW);
    agent.platform().idle(5_000_000);
    service.receive(shaking.session, &shaking.first);
    assert_eq!(service.transmit(shaking.session, &mut [0; 10]), 10);
    agent.resume();
    assert_eq!(service.transmit(shaking.session, &mut [0; 100]), 0);
    assert!(service.is_given_up(shaking.session));
    service.close(shaking.session);
    // A handshake whose reply was not made yet continues, with a new ephemeral key.
    let shaking = connect(&mut service, VIEW);
    service.receive(shaking.session, &shaking.first);
    agent.resume();
    agent.platform().idle(5_000_000);
    let reply = exchange(&mut service, shaking.session, &[]);
    let mut client = shaking.finish(&reply);
    assert_eq!(client.ask(&mut service, &Check {}).len(), 2);
}

/// Without keys there is no nonce to protect: an unencrypted session continues after a suspension.
#[test]
fn a_suspension_leaves_sessions_in_the_clear() {
    let (agent, _, mut client) = fake_guest::guest();
    agent.resume();
    assert_eq!(client.ask(&Check {}).len(), 1);
}

/// Bytes that a stream had not accepted when the guest was suspended must not be sent.
#[cfg(feature = "embedded-io")]
#[test]
fn a_suspension_drops_what_a_stream_has_not_taken() {
    use unikprof_agent::stream_server::{Connection, Progress};

    let (agent, mut service) = keyed::service();
    let pipe = pipe::Pipe::default();
    let mut connection = Connection::open(&mut service, pipe.clone()).unwrap();
    let shaking = first_message((), CONTROL, preamble::encode(preamble::KEYED));
    agent.platform().idle(5_000_000);
    pipe.send(&preamble::encode(preamble::KEYED));
    pipe.send(&shaking.first);
    pipe.make_room(10_000);
    let mut poll = |pipe: &pipe::Pipe| {
        let progress = connection.poll(&mut service).unwrap();
        (progress, pipe.take())
    };
    let (_, reply) = poll(&pipe);
    let mut client = shaking.finish(&reply[preamble::LENGTH..]);
    pipe.send(&client.seal(&encoded(&HELLO)));
    pipe.make_room(10);
    let (progress, sent) = poll(&pipe);
    assert_eq!((progress, sent.len()), (Progress::Open, 10));
    agent.resume();
    pipe.make_room(10_000);
    assert_eq!(poll(&pipe), (Progress::Over, Vec::new()));
}

/// Three clients with the role `view` must not keep out one with the role `control`.
#[test]
fn viewers_leave_one_session_free() {
    let (_, mut service) = keyed::service();
    let mut viewers: Vec<Client> = (1..SESSIONS)
        .map(|_| {
            let mut client = Client::new(&mut service, VIEW);
            client.ask(&mut service, &Check {});
            client
        })
        .collect();
    let mut fourth = Client::new(&mut service, VIEW);
    assert_eq!(refusal_code(&fourth.ask(&mut service, &Check {})).0, refusal::BUSY);
    assert!(service.is_over(fourth.session));
    service.close(fourth.session);
    let mut control = Client::new(&mut service, CONTROL);
    assert_eq!(control.answer::<Status>(&mut service, &Check {}).peers.turned_away, 1);
    for viewer in &mut viewers {
        assert_eq!(viewer.ask(&mut service, &Check {}).len(), 1, "it goes on");
    }
}

/// One handshake in five milliseconds; the others wait for their turn, and none is refused.
#[test]
fn handshakes_take_turns() {
    let (agent, mut service) = keyed::service();
    agent.platform().idle(10_000_000);
    let mut waiting: Vec<_> = (0..SESSIONS).map(|_| connect(&mut service, CONTROL)).collect();
    // All of them send the handshake at the same time.
    let answers: Vec<_> = waiting.iter().map(|shaking| shaking.send(&mut service)).collect();
    assert!(!answers[0].is_empty() && answers[1..].iter().all(Vec::is_empty));
    let mut clients = vec![waiting.remove(0).finish(&answers[0])];
    for turn in 1..SESSIONS {
        let now_ns = agent.platform().now_ns();
        assert_eq!(service.advance(), Some(now_ns + 5_000_000), "turn {turn}");
        agent.platform().idle(5_000_000);
        // The last of them is polled first, but it is not its turn.
        for shaking in waiting.iter().rev().take(waiting.len() - 1) {
            assert!(exchange(&mut service, shaking.session, &[]).is_empty(), "turn {turn}");
        }
        let shaking = waiting.remove(0);
        let answer = exchange(&mut service, shaking.session, &[]);
        clients.push(shaking.finish(&answer));
    }
    for client in &mut clients {
        assert_eq!(client.ask(&mut service, &Check {}).len(), 1);
    }
}

/// A poll must begin nothing more after its time, ask to be called again, and report the longest
/// time.
#[test]
fn a_poll_has_a_budget() {
    let (agent, mut service) = keyed::service();
    let mut client = Client::new(&mut service, CONTROL);
    let fetch = whole(recorded(&mut service, &mut client, 20_000));
    let request = client.seal(&encoded(&fetch));
    service.receive(client.session, &request);
    // A slow guest: each read of the clock takes 100 µs.
    agent.platform().step_ns.store(100_000, Ordering::Relaxed);
    let mut polls = 0;
    let mut sealed = Vec::new();
    loop {
        let work = service.begin_work();
        let mut buffer = vec![0; 1 << 20];
        let length = service.transmit(client.session, &mut buffer);
        sealed.extend_from_slice(&buffer[..length]);
        let next = service.advance();
        service.end_work(work);
        polls += 1;
        assert!(length < 64 << 10, "{length} bytes in one poll");
        let now_ns = agent.platform().now_ns.load(Ordering::Relaxed);
        if next.is_none_or(|next| next > now_ns) {
            break;
        }
    }
    agent.platform().step_ns.store(0, Ordering::Relaxed);
    assert!(polls > 3, "{polls}");
    let frames = frames(&client.open(&sealed));
    assert_eq!(download(&frames).samples, 20_000);
    let status: Status = client.answer(&mut service, &Check {});
    let longest_ns = status.server_longest_ns;
    assert!((1_000_000..=2_000_000).contains(&longest_ns), "{longest_ns}");
}

/// Guards the guest's CPU, and a collector, from a viewer that fetches in a loop: over three
/// seconds all polls together take at most the share, and a download with the control key is not
/// slowed down.
#[test]
fn a_viewer_that_fetches_in_a_loop_uses_its_share_and_no_more() {
    const SECOND: u64 = 1_000_000_000;
    let (agent, mut service) = keyed::service();
    let mut control = Client::new(&mut service, CONTROL);
    let fetch = encoded(&whole(recorded(&mut service, &mut control, 20_000)));
    let mut viewer = Client::new(&mut service, VIEW);
    viewer.ask(&mut service, &Check {});
    let now_ns = || agent.platform().now_ns.load(Ordering::Relaxed);
    // Each read of the clock takes this long, so a frame costs time.
    agent.platform().step_ns.store(20_000, Ordering::Relaxed);
    let began_ns = now_ns();
    let (mut downloads, mut longest_ns) = (0, 0);
    let mut asked_ns = None;
    let (mut unsent, mut collected, mut buffer) = (Vec::new(), Vec::new(), vec![0; 1 << 16]);
    while now_ns() < began_ns + 3 * SECOND {
        // The viewer always has a request to be answered; a collector comes once a second.
        if unsent.is_empty() {
            unsent = viewer.seal(&fetch);
        }
        if asked_ns.is_none_or(|(asked_ns, has_ended)| has_ended && now_ns() > asked_ns + SECOND) {
            asked_ns = Some((now_ns(), false));
            let request = control.seal(&fetch);
            assert_eq!(service.receive(control.session, &request), request.len());
        }
        let work = service.begin_work();
        let viewed = service.transmit(viewer.session, &mut buffer);
        let taken = service.receive(viewer.session, &unsent);
        unsent.drain(..taken);
        let length = service.transmit(control.session, &mut buffer);
        let next_ns = service.advance();
        service.end_work(work);
        collected.extend(control.open(&buffer[..length]));
        while let Some(found) = frame::split(&collected).unwrap() {
            if found.kind == VcpuEnd::TYPE
                && let Some((asked_ns, has_ended)) = &mut asked_ns
            {
                *has_ended = true;
                longest_ns = longest_ns.max(now_ns() - *asked_ns);
                downloads += 1;
            }
            let length = found.length();
            collected.drain(..length);
        }
        // The guest's own work, until the agent wants to be called.
        let idle_ns = next_ns.map_or(SECOND, |next_ns| next_ns.saturating_sub(now_ns()));
        if viewed + taken == 0 {
            agent.platform().idle(idle_ns.min(SECOND / 10));
        }
    }
    agent.platform().step_ns.store(0, Ordering::Relaxed);
    let passed_ns = now_ns() - began_ns;
    // The rest of a download in progress.
    agent.platform().idle(SECOND);
    let rest = exchange(&mut service, control.session, &[]);
    control.open(&rest);
    let status: Status = control.answer(&mut service, &Check {});
    let worked_ns = status.server_ns;
    // A tenth of a CPU, and the tenth of a second in full buckets at the start.
    let share_ns = passed_ns / 10 + SECOND / 10;
    assert!(worked_ns < share_ns * 11 / 10, "{worked_ns} of {passed_ns}");
    assert!(worked_ns > share_ns / 2, "the viewer is served: {worked_ns} of {passed_ns}");
    assert!(downloads >= 2 && longest_ns < SECOND / 10, "{downloads}, {longest_ns}");
    assert_eq!(status.server_share_permille, 100);
    assert!(status.server_deferred_ns > SECOND, "{}", status.server_deferred_ns);
}

/// Keys without random numbers would give a false sense of protection.
#[test]
fn an_agent_with_keys_and_without_randomness_serves_nobody() {
    let agent = agent(1, 1 << 17);
    let mut keys = Keys::new();
    let none: &'static Keys = Box::leak(Box::default());
    assert_eq!(Service::new(agent, Access::Keys(none)).err(), Some(ServeError::NoKeys));
    keys.add(Role::Control, Key::from_bytes(CONTROL)).unwrap();
    let keys: &'static Keys = Box::leak(Box::new(keys));
    agent.platform().has_no_random.store(true, Ordering::Relaxed);
    let refused = Service::new(agent, Access::Keys(keys)).err();
    assert_eq!(refused, Some(ServeError::NoRandomness));
    let logged = agent.platform().logged.lock().unwrap().clone();
    assert!(logged.last().unwrap().contains("random"), "{logged:?}");
    // Nothing was claimed: with a random source it can be served.
    agent.platform().has_no_random.store(false, Ordering::Relaxed);
    assert!(Service::new(agent, Access::Keys(keys)).is_ok());
}

/// Keys in memory could be read from a memory dump long afterwards.
#[test]
#[allow(unsafe_code)]
fn no_key_remains_in_a_session_that_was_closed() {
    let (_, mut service) = keyed::service();
    let bytes_of = |service: &FakeService| {
        let start = std::ptr::from_ref(service).cast::<u8>();
        let length = size_of_val(service);
        // SAFETY: all of the service's bytes, read one by one; padding is readable memory too.
        (0..length).map(|at| unsafe { start.add(at).read_volatile() }).collect::<Vec<u8>>()
    };
    let before = bytes_of(&service);
    let mut client = Client::new(&mut service, CONTROL);
    client.ask(&mut service, &Check {});
    let during = bytes_of(&service);
    service.close(client.session);
    // The levels of the budget look random too, but are not secret: set them to their former
    // values.
    service.set_cpu_share(100);
    let after = bytes_of(&service);
    // Both keys of the conversation, 32 bytes each, and the agent's own: wherever a new
    // random-looking byte appeared, it must have disappeared. Padding may hold other bytes.
    let pairs: Vec<_> = before.iter().zip(&during).collect();
    let is_random =
        |pairs: &[(&u8, &u8)]| pairs.iter().filter(|(then, now)| then != now).count() >= 28;
    let windows = pairs.windows(32).zip(during.windows(32));
    let secrets: HashSet<_> =
        windows.filter(|(pairs, _)| is_random(pairs)).map(|(_, bytes)| bytes).collect();
    assert!(secrets.len() > 32, "the scan sees keys while they are there");
    let left = after.windows(32).filter(|bytes| secrets.contains(bytes));
    assert_eq!(left.count(), 0, "something is left");
    for key in [VIEW, CONTROL] {
        assert!(!after.windows(32).any(|window| window == key));
    }
}

/// A request that the role does not allow must not affect the requests that it allows.
#[test]
fn every_request_has_its_role() {
    let (_, mut service) = keyed::service();
    let mut viewer = Client::new(&mut service, VIEW);
    let table = TableBegin { first: 16, end: 17, rows: 1, checksum: 0 };
    for (request, code) in [
        (encoded(&Stop { recording: 0 }), refusal::NOT_ALLOWED),
        (encoded(&Dump { recording: 0 }), refusal::NOT_ALLOWED),
        (encoded(&table), refusal::NOT_ALLOWED),
        (encoded(&Acknowledge { epoch: 1 }), refusal::NOT_ALLOWED),
        // A view key may fetch, but there is no epoch.
        (encoded(&whole(1)), refusal::NO_EPOCH),
    ] {
        let record = viewer.seal(&request);
        let answer = exchange(&mut service, viewer.session, &record);
        assert_eq!(refusals(&viewer.open(&answer)), code);
    }
    let snapshot = viewer.ask(&mut service, &TakeSnapshot { vcpu: 0, since_ns: 0 });
    assert_eq!(read::<VcpuSnapshot<'_>>(&snapshot[0]).vcpu, 0, "it may");
    assert_eq!(viewer.answer::<Status>(&mut service, &Check {}).peers.not_allowed, 4);
}
