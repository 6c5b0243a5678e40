//! The opening of a conversation: both sides send their versions, and whether they use a key.

use unikprof_proto::code::{refusal, role, security};
use unikprof_proto::frame;
use unikprof_proto::message::Refusal;
use unikprof_proto::preamble::{self, Preamble, VERSIONS};

use super::{Context, Fault, Phase, Session};
use crate::ground::text::Text;
use crate::serve::access::Access;

impl Session {
    pub(super) fn read_preamble(&mut self, context: &Context<'_, '_, '_>) -> bool {
        let Some(bytes) = self.input[..self.input_length].first_chunk() else {
            if !preamble::is_prefix(&self.input[..self.input_length]) {
                self.give_up(Fault::Malformed);
            }
            return false;
        };
        let client = *bytes;
        self.consume(preamble::LENGTH);
        let offered = match preamble::decode(&client) {
            Ok(offered) => offered,
            // Another protocol: the peer would not understand an answer.
            Err(_) => {
                self.give_up(Fault::Malformed);
                return false;
            }
        };
        if offered.versions.common(VERSIONS).is_none() {
            let text = Text::format(format_args!(
                "this agent speaks protocol versions {VERSIONS}, the client {}; use a client of \
                 the \
                 agent's version",
                offered.versions
            ));
            self.end_with(refusal::NO_COMMON_VERSION, 0, text.as_str(), Fault::Malformed);
            return true;
        }
        match (context.access.is_keyed(), offered.security) {
            #[cfg(not(feature = "noise"))]
            (true, _) => false,
            (false, security::OPEN) => {
                self.phase = Phase::Open;
                self.role = Some(role::OPEN);
                self.progress_ns = context.now_ns;
                false
            }
            #[cfg(feature = "noise")]
            (true, security::NOISE) => {
                self.expect_handshake(client);
                false
            }
            (false, _) => {
                let text = "this agent is open; connect without a key";
                self.end_with(refusal::NOT_KEYED, 0, text, Fault::BadKey);
                true
            }
            #[cfg(feature = "noise")]
            (true, _) => {
                let text = "this agent requires a key; connect with --key-file";
                self.end_with(refusal::KEY_NEEDED, 0, text, Fault::BadKey);
                true
            }
        }
    }
}

/// The agent's preamble.
pub(super) fn own_preamble(access: Access<'_>) -> Preamble {
    if access.is_keyed() { preamble::KEYED } else { preamble::OPEN }
}

/// Writes the message to send on a connection without a session: the preamble and a refusal.
/// Returns its length in bytes; a buffer of 128 bytes is always large enough.
pub fn busy_answer(access: Access<'_>, buffer: &mut [u8]) -> usize {
    let Some((head, rest)) = buffer.split_at_mut_checked(preamble::LENGTH) else {
        return 0;
    };
    head.copy_from_slice(&preamble::encode(own_preamble(access)));
    let text = "all sessions are taken; try again later";
    let refusal = Refusal { code: refusal::BUSY, request: 0, text };
    frame::encode(&refusal, rest).map_or(0, |length| preamble::LENGTH + length)
}
