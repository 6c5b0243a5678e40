//! An agent with keys: what strangers send is answered with refusals and with nothing of the
//! guest's, and what is sealed comes out as it went in, or ends the conversation.

use std::mem::MaybeUninit;

use unikprof_agent::{Access, Agent, Key, Keys, Role, SESSIONS, SessionId, minimum_bytes};
use unikprof_proto::frame::{self, Message};
use unikprof_proto::message::{Check, HandshakeReply, Hello, Refusal, Status};
use unikprof_proto::preamble;
use unikprof_proto::secure::{self, RECORD_HEADER, TAG};
use unikprof_test_kit::frames::{encoded, framed};
use unikprof_test_kit::noise::{Initiator, Records, key_id};

use crate::client::FakeService;
use crate::fake::{Fake, FakePlatform, VCPUS, config};
use crate::frames;
use crate::input::Input;

const VIEW: [u8; 32] = [0x11; 32];
const CONTROL: [u8; 32] = [0x22; 32];
const PREAMBLE: preamble::Preamble = preamble::KEYED;

/// Strangers' bytes, with a first message that was overheard among them. None gets in, and who has
/// a key does afterwards.
pub fn check_handshake(bytes: &[u8]) {
    with_service(|fake, service| {
        let overheard = encoded(&initiator(CONTROL).message);
        let mut strangers: Vec<(SessionId, Vec<u8>)> = Vec::new();
        let mut input = Input::new(bytes);
        while !input.is_empty() {
            match input.below(8) {
                0 if strangers.len() < 2 * SESSIONS => {
                    strangers.extend(service.open().map(|session| (session, Vec::new())));
                }
                1 => fake.pass(input.number() >> 30),
                2 => {
                    service.advance();
                    strangers.retain(|(session, said)| {
                        let is_over = service.is_over(*session);
                        if is_over {
                            judge_clear(said);
                            service.close(*session);
                        }
                        !is_over
                    });
                }
                action if !strangers.is_empty() => {
                    let index = input.below(strangers.len());
                    let (session, said) = &mut strangers[index];
                    let mut sent = match action {
                        3 => preamble::encode(PREAMBLE).to_vec(),
                        4 | 5 => overheard.clone(),
                        6 => {
                            let kind = input.below(16) as u16;
                            let length = input.below(100);
                            framed(kind, input.bytes(length))
                        }
                        _ => {
                            let length = usize::from(input.byte());
                            input.bytes(length).to_vec()
                        }
                    };
                    if action == 5
                        && let Some(byte) = sent.get_mut(input.below(overheard.len()))
                    {
                        *byte ^= input.byte();
                    }
                    said.extend(exchange(service, *session, &sent));
                }
                _ => {}
            }
        }
        for (session, said) in strangers {
            judge_clear(&said);
            service.close(session);
        }
        fake.pass(1_000_000_000);
        let mut client = Client::connect(service);
        let answer = client.ask(service, &encoded(&Check {}));
        let found = frame::split(&answer).expect("sound").expect("whole");
        let status: Status = frame::decode(&found).expect("a status");
        assert_eq!(status.recordings, 0, "nobody has recorded");
        service.close(client.session);
    });
}

/// A client with a key, whose records hold what they like, come in pieces, and are altered now and
/// then.
pub fn check_sealed(bytes: &[u8]) {
    with_service(|fake, service| {
        let mut client = Client::connect(service);
        let mut answers = client.ask(service, &encoded(&Hello { client: "fuzz", client_id: 1 }));
        let mut input = Input::new(bytes);
        let mut is_damaged = false;
        while !input.is_empty() && !service.is_over(client.session) {
            let length = 1 + input.below(secure::MAX_REQUEST);
            let plaintext = match input.below(4) {
                0 => encoded(&Check {}),
                1 => {
                    let kind = input.below(16) as u16;
                    framed(kind, input.bytes(length.min(900)))
                }
                _ => input.bytes(length).to_vec(),
            };
            if plaintext.is_empty() {
                break;
            }
            let mut record = client.records.seal(&plaintext);
            if input.byte() == 0 {
                let at = input.below(record.len());
                record[at] ^= 1 + input.byte() % 255;
                is_damaged = true;
            }
            let cut = input.below(record.len() + 1);
            for part in [&record[..cut], &record[cut..]] {
                let sealed = exchange(service, client.session, part);
                answers.extend(client.records.open(&sealed).expect("the agent's records"));
            }
            fake.pass(u64::from(input.byte()) * 1000);
            service.advance();
            if is_damaged {
                // Whatever the damage was: a length that waits for more is ended by a record behind
                // it.
                let behind = vec![0; RECORD_HEADER + secure::MAX_REQUEST + TAG];
                assert!(exchange(service, client.session, &behind).is_empty());
                assert!(service.is_over(client.session), "a damaged record was taken");
            }
        }
        let mut rest = &answers[..];
        while let Some(found) = frame::split(rest).expect("sound") {
            assert!(frames::message(&found), "{found:?} is no message");
            rest = &rest[found.length()..];
        }
        service.close(client.session);
        let mut next = Client::connect(service);
        assert!(!next.ask(service, &encoded(&Check {})).is_empty());
        service.close(next.session);
    });
}

fn with_service(work: impl FnOnce(&Fake<'_>, &mut FakeService<'_, '_>)) {
    let fake = Fake::new();
    let mut memory = vec![MaybeUninit::uninit(); minimum_bytes(VCPUS as usize, 1)];
    let agent = Agent::new(FakePlatform(&fake), config(1), &mut memory).expect("there is room");
    let mut keys = Keys::new();
    for (role, key) in [(Role::View, VIEW), (Role::Control, CONTROL)] {
        keys.add(role, Key::from_bytes(key)).expect("there is room");
    }
    let mut service = FakeService::new(&agent, Access::Keys(&keys)).expect("it is the first");
    work(&fake, &mut service);
}

/// Checks the bytes sent to a stranger: the preamble, then refusals or the answer to a handshake.
fn judge_clear(said: &[u8]) {
    let Some((head, mut rest)) = said.split_first_chunk() else {
        return;
    };
    assert_eq!(preamble::decode(head), Ok(PREAMBLE));
    while let Some(found) = frame::split(rest).expect("the agent's frames are sound") {
        let known = [<Refusal<'_>>::TYPE, HandshakeReply::TYPE];
        assert!(known.contains(&found.kind), "a stranger was told {found:?}");
        rest = &rest[found.length()..];
    }
    assert!(rest.is_empty(), "half a frame, or a record: {rest:?}");
}

/// Sends bytes until nothing moves; answers what came back.
fn exchange(service: &mut FakeService<'_, '_>, session: SessionId, mut sent: &[u8]) -> Vec<u8> {
    let mut answer = Vec::new();
    loop {
        let taken = service.receive(session, sent);
        sent = &sent[taken..];
        let mut buffer = [0; 777];
        let given = service.transmit(session, &mut buffer);
        answer.extend_from_slice(&buffer[..given]);
        if taken + given == 0 {
            return answer;
        }
    }
}

/// A handshake, the same each time.
fn initiator(key: [u8; 32]) -> Initiator {
    Initiator::with(&key, key_id(&key), &preamble::encode(PREAMBLE), Some(&[7; 32]))
}

/// A client that keeps to the handshake.
struct Client {
    session: SessionId,
    records: Records,
}

impl Client {
    fn connect(service: &mut FakeService<'_, '_>) -> Self {
        let session = service.open().expect("a session is free");
        let initiator = initiator(CONTROL);
        let first = encoded(&initiator.message);
        let said = exchange(service, session, &preamble::encode(PREAMBLE));
        assert_eq!(said, preamble::encode(PREAMBLE));
        let mut answer = exchange(service, session, &first);
        for _ in 0..100 {
            if !answer.is_empty() {
                break;
            }
            // Its turn comes.
            service.agent().platform().0.pass(1_000_000);
            answer = exchange(service, session, &[]);
        }
        let found = frame::split(&answer).expect("sound").expect("whole");
        let reply: HandshakeReply = frame::decode(&found).expect("a reply");
        let (records, theirs) = initiator.finish(&reply).expect("the agent's");
        assert_eq!(theirs, preamble::encode(PREAMBLE));
        Self { session, records }
    }

    fn ask(&mut self, service: &mut FakeService<'_, '_>, request: &[u8]) -> Vec<u8> {
        let record = self.records.seal(request);
        let sealed = exchange(service, self.session, &record);
        self.records.open(&sealed).expect("the agent's records")
    }
}
