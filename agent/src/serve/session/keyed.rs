//! The encrypted connection of a session: the handshake, then records in both directions.

use core::ops::Range;

use unikprof_proto::code::{message_type, refusal, role};
use unikprof_proto::frame::{self, FrameError, HEADER};
use unikprof_proto::message::{Handshake, HandshakeReply};
use unikprof_proto::preamble;
use unikprof_proto::secure::{RECORD_HEADER, TAG, prologue};

use super::{Context, Fault, Phase, Session};
use crate::serve::secure::{BadRecord, Ephemeral, Incoming, KeyId, Responder, Role, Transport};

/// The bytes between the session and its connection.
#[derive(Debug)]
pub(super) struct Line {
    /// Present after the handshake.
    transport: Option<Transport>,
    /// The role of the key that the handshake was made with.
    role: Option<Role>,
    incoming: Incoming,
    /// The client's preamble, as it was sent.
    preamble: [u8; preamble::LENGTH],
    /// A valid first message waits for its turn.
    waits: bool,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            transport: None,
            role: None,
            incoming: Incoming::new(),
            preamble: [0; preamble::LENGTH],
            waits: false,
        }
    }
}

impl Line {
    /// Erases all secrets.
    pub(super) fn close(&mut self) {
        // In place: moving a whole new value here would copy bytes of the stack into its padding.
        self.transport = None;
        self.role = None;
        self.incoming.erase();
        self.preamble.fill(0);
        self.waits = false;
    }

    /// Whether everything from now on is sent in records.
    pub(super) fn is_sealed(&self) -> bool {
        self.transport.is_some()
    }

    /// Whether bytes of a record, or its plaintext, are waiting.
    pub(super) fn has_input(&self) -> bool {
        self.incoming.has_begun()
    }

    /// Makes a record of the `plaintext` in `output`, which has room before and after it; returns
    /// the range of the record. Without encryption, that is the range of the plaintext.
    pub(super) fn seal(
        &mut self,
        output: &mut [u8],
        plaintext: Range<usize>,
    ) -> Option<Range<usize>> {
        let Some(transport) = &mut self.transport else {
            return Some(plaintext);
        };
        let start = plaintext.start.checked_sub(RECORD_HEADER)?;
        let record = output.get_mut(start..plaintext.end + TAG)?;
        let (header, rest) = record.split_first_chunk_mut::<RECORD_HEADER>()?;
        *header = u16::try_from(rest.len()).ok()?.to_le_bytes();
        let (text, tag) = rest.split_last_chunk_mut::<TAG>()?;
        *tag = transport.seal(text)?;
        Some(start..plaintext.end + TAG)
    }
}

impl Session {
    /// Whether everything from now on is encrypted.
    pub(crate) fn is_sealed(&self) -> bool {
        self.line.is_sealed()
    }

    /// Ends an encrypted conversation: nothing more is sent, and its keys and buffers are erased at
    /// once.
    pub(crate) fn end_sealed(&mut self) {
        if !self.is_sealed() {
            return;
        }
        self.abandon();
        self.line.close();
        self.input.fill(0);
        self.output.fill(0);
        self.input_length = 0;
    }

    /// Whether its role is `view`.
    pub(crate) fn is_view(&self) -> bool {
        self.role == Some(Role::View.code())
    }

    /// Whether the client's role allows a request.
    pub(super) fn allows(&self, request: u16) -> bool {
        use message_type::{
            CHECK, EVENT_NAMES, FETCH, HELLO, RING, STACKS, TAKE_SNAPSHOT, TRACE_ARM, TRACE_BEGIN,
            TRACE_FETCH, TRACE_FUNCTIONS, TRACE_PROBES, TRACE_STOP,
        };
        match request {
            HELLO | CHECK | FETCH | RING | STACKS | EVENT_NAMES | TAKE_SNAPSHOT => true,
            TRACE_BEGIN | TRACE_FUNCTIONS | TRACE_PROBES | TRACE_ARM | TRACE_FETCH | TRACE_STOP => {
                matches!(self.role, Some(role::OPEN | role::TRACE))
            }
            _ => !self.is_view(),
        }
    }

    /// Both preambles require a key: the handshake is next.
    pub(super) fn expect_handshake(&mut self, client: [u8; preamble::LENGTH]) {
        self.line.preamble = client;
        self.phase = Phase::Handshake;
    }

    /// Whether a valid first message waits for its turn.
    pub(crate) fn awaits_handshake(&self) -> bool {
        self.phase == Phase::Handshake && self.line.waits
    }

    /// Answers the handshake at the front of the input; returns whether there was one.
    pub(super) fn shake_hands(&mut self, context: &mut Context<'_, '_, '_>) -> bool {
        let input = self.input;
        let input = &input[..self.input_length];
        let Some(header) = input.first_chunk::<HEADER>() else {
            return false;
        };
        let kind = u16::from_le_bytes([header[0], header[1]]);
        if kind != message_type::HANDSHAKE {
            let error = FrameError::Type(message_type::HANDSHAKE, kind);
            return self.malformed(kind, error);
        }
        let shake = match frame::split(input) {
            Ok(None) => return false,
            Ok(Some(found)) if found.length() < input.len() => {
                // Nothing can follow: the client has no answer yet.
                return self.malformed(kind, FrameError::Body(kind));
            }
            Ok(Some(found)) => frame::decode::<Handshake>(&found),
            Err(error) => Err(error),
        };
        let shake = match shake {
            Ok(shake) => shake,
            Err(error) => return self.malformed(kind, error),
        };
        let keys = context.access.keys();
        let Some(entry) = keys.and_then(|keys| keys.find(KeyId(shake.key))) else {
            return self.bad_key();
        };
        let bound = prologue(&self.line.preamble, &shake.key);
        let first = Responder::read(&entry.key, &bound, shake.ephemeral, &mut [], &shake.tag);
        let Some(responder) = first else {
            return self.bad_key();
        };
        // The costly half is also done for a replayed message, so its rate is limited.
        self.line.waits = true;
        if !context.handshake.is_allowed {
            return false;
        }
        let (platform, count) = (context.agent.platform(), context.handshake.count);
        let Some(ephemeral) = Ephemeral::draw(platform, &entry.key, count) else {
            return false;
        };
        context.handshake.was_made = true;
        context.handshake.is_allowed = false;
        // The client compares it with the preamble that it received unencrypted.
        let mut preamble = preamble::encode(preamble::KEYED);
        let Some((ephemeral, tag, transport)) = responder.write(&ephemeral, &mut preamble) else {
            return self.bad_key();
        };
        self.line.waits = false;
        self.input_length = 0;
        self.send(&HandshakeReply { ephemeral, preamble, tag });
        self.line.transport = Some(transport);
        self.line.role = Some(entry.role);
        self.phase = Phase::Open;
        true
    }

    /// The same answer for an unknown key and for a wrong one.
    fn bad_key(&mut self) -> bool {
        let text = "the handshake failed: this agent does not hold the client's key; compare the \
                    key's id \
                    with those of the guest";
        self.end_with(refusal::BAD_KEY, message_type::HANDSHAKE, text, Fault::BadKey);
        true
    }

    /// Accepts bytes of a record; returns their number.
    pub(super) fn receive_record(&mut self, bytes: &[u8]) -> usize {
        self.line.incoming.receive(bytes)
    }

    /// Whether a record is incomplete.
    pub(super) fn is_amid_record(&self) -> bool {
        self.line.is_sealed() && self.line.incoming.has_begun()
    }

    /// Moves the plaintext of a complete record to the input. Returns whether there is a refusal to
    /// be sent instead of an answer.
    pub(super) fn open_record(&mut self, context: &Context<'_, '_, '_>) -> bool {
        let Some(transport) = &mut self.line.transport else {
            return false;
        };
        match self.line.incoming.open(transport) {
            Ok(false) => {}
            // Only the peer of this handshake can encrypt a valid record.
            Ok(true) if self.role.is_none() => {
                if self.grant(context) {
                    return true;
                }
            }
            Ok(true) => {}
            Err(BadRecord) => {
                self.give_up(Fault::BadRecord);
                return false;
            }
        }
        let Self { line, input, input_length, skip, .. } = self;
        let taken = super::input::take(input, input_length, skip, line.incoming.plaintext());
        line.incoming.consume(taken);
        false
    }

    /// Grants the role of the key; returns whether the client was refused instead.
    fn grant(&mut self, context: &Context<'_, '_, '_>) -> bool {
        if self.line.role == Some(Role::View) && context.views_taken {
            let text = "all sessions for the role view are in use; one is reserved for control";
            self.end_with(refusal::BUSY, 0, text, Fault::TurnedAway);
            return true;
        }
        self.role = self.line.role.map(Role::code);
        self.progress_ns = context.now_ns;
        false
    }
}
