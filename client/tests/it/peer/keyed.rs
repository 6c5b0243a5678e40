//! The agent's side of a conversation under a key, and what may go wrong with it.

use unikprof_link::key::Key;
use unikprof_proto::code::{message_type as types, refusal, role, security};
use unikprof_proto::frame::{self, Frame};
use unikprof_proto::message::{Handshake, HandshakeReply, Refusal};
use unikprof_proto::preamble;
use unikprof_proto::secure::{MAX_ANSWER, RECORD_HEADER};
use unikprof_test_kit::noise::{Records, Responder, key_id};

use super::Line;

/// The key of the tests, and one that is not the agent's.
pub const SECRET: &str = "5ec7e75ec7e75ec75ec7e75ec7e75ec75ec7e75ec7e75ec75ec7e75ec7e75ec7";
pub const OTHER_SECRET: &str = "0ddba110ddba11000ddba110ddba11000ddba110ddba11000ddba110ddba1100";

pub fn key(secret: &str) -> Key {
    Key::parse(format!("unikprof-key-1:{secret}").as_bytes()).unwrap()
}

/// What an agent with a key does.
#[derive(Clone)]
pub struct Keyed {
    /// The digits of its key.
    pub secret: &'static str,
    /// What its key allows.
    pub role: u32,
    /// What its preamble says of security.
    pub says: u8,
    /// The agent's preamble is altered on the way.
    pub altered_preamble: bool,
    /// The client's preamble is altered on the way.
    pub altered_client_preamble: bool,
    /// It sends its preamble only after the client's first message has arrived.
    pub is_silent_first: bool,
    /// It takes any key, as one does who has taken the agent's place.
    pub is_false: bool,
    /// It answers the handshake with this refusal.
    pub refuses: Option<u32>,
    /// The most plaintext in a record.
    pub record: usize,
    /// What becomes of a record of the first connection.
    pub tampers: Option<(usize, Tamper)>,
}

/// What becomes of a record on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tamper {
    /// A bit of it is flipped.
    Alter,
    /// It comes twice.
    Repeat,
    /// It is left out.
    Drop,
    /// Its length is more than can be.
    Lengthen,
    /// Its plaintext comes instead.
    InTheClear,
}

impl Default for Keyed {
    fn default() -> Self {
        Keyed {
            secret: SECRET,
            role: role::CONTROL,
            says: security::NOISE,
            altered_preamble: false,
            altered_client_preamble: false,
            is_silent_first: false,
            is_false: false,
            refuses: None,
            record: MAX_ANSWER,
            tampers: None,
        }
    }
}

impl Keyed {
    pub fn allows(&self, request: u16) -> bool {
        self.role != role::VIEW || matches!(request, types::HELLO | types::CHECK | types::FETCH)
    }

    /// Answers whether the client has shown the key.
    pub(super) fn handshake(
        &self,
        line: &mut Line,
        ours: &[u8; preamble::LENGTH],
        theirs: &[u8; preamble::LENGTH],
        connection: usize,
    ) -> std::io::Result<bool> {
        let refuse = |line: &mut Line, code| {
            line.send(&Refusal { code, request: types::HANDSHAKE, text: "no" }).map(|()| false)
        };
        if preamble::decode(theirs).unwrap().security != security::NOISE {
            return refuse(line, refusal::KEY_NEEDED);
        }
        let Some((kind, body)) = line.request()? else {
            return Ok(false);
        };
        let frame = Frame { kind, body: &body };
        let shown: Handshake = frame::decode(&frame).unwrap();
        if self.is_silent_first {
            line.write(ours)?;
        }
        if let Some(code) = self.refuses {
            return refuse(line, code);
        }
        let (mut ours, mut theirs) = (*ours, *theirs);
        ours[preamble::LENGTH - 1] ^= u8::from(self.altered_preamble);
        theirs[preamble::LENGTH - 1] ^= u8::from(self.altered_client_preamble);
        let mut secret = [0; 32];
        for (at, byte) in secret.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&self.secret[2 * at..][..2], 16).unwrap();
        }
        let responder = Responder::new(&secret, &shown, &theirs);
        if self.is_false {
            line.send(&HandshakeReply { ephemeral: [9; 32], preamble: ours, tag: [0; 16] })?;
            return Ok(false);
        }
        let Some(responder) = responder.filter(|_| shown.key == key_id(&secret)) else {
            return refuse(line, refusal::BAD_KEY);
        };
        let (reply, records) = responder.reply(&ours);
        line.send(&reply)?;
        assert!(line.input.is_empty(), "the client waits for the reply");
        line.seal = Some(Seal {
            records,
            record: self.record,
            sent: 0,
            tampers: self.tampers.filter(|_| connection == 0),
        });
        Ok(true)
    }
}

/// Seals and opens records, and spoils one of them.
pub struct Seal {
    records: Records,
    record: usize,
    sent: usize,
    tampers: Option<(usize, Tamper)>,
}

impl Seal {
    /// The plaintext of the records that are whole now.
    pub fn open(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.records.open(bytes).unwrap()
    }

    pub fn seal(&mut self, plaintext: &[u8]) -> Vec<u8> {
        let mut records = Vec::new();
        for part in plaintext.chunks(self.record) {
            let mut record = self.records.seal(part);
            match self.tampers {
                Some((at, tamper)) if at == self.sent => match tamper {
                    Tamper::Alter => record[RECORD_HEADER] ^= 1,
                    Tamper::Repeat => record.extend_from_within(..),
                    Tamper::Drop => record.clear(),
                    Tamper::Lengthen => record[1] = 0xff,
                    Tamper::InTheClear => record = part.to_vec(),
                },
                _ => {}
            }
            self.sent += 1;
            records.extend(record);
        }
        records
    }
}
