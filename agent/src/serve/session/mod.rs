//! One client's conversation, as a state machine without I/O.
//!
//! [`Session::receive`] accepts bytes, [`Session::transmit`] returns bytes. The memory for both is
//! bounded: one request, and one frame of an answer. A client that does not read stops only its own
//! conversation.

mod answers;
mod context;
mod fault;
mod input;
#[cfg_attr(feature = "noise", path = "keyed.rs")]
#[cfg_attr(not(feature = "noise"), path = "clear.rs")]
mod line;
mod opening;
mod requests;
mod ring;
#[cfg(feature = "trace")]
mod trace;

use core::ops::Range;

use unikprof_proto::code::{refusal, role};
use unikprof_proto::frame::{self, FrameError, HEADER, Message};
use unikprof_proto::message::Refusal;
use unikprof_proto::preamble;
use unikprof_proto::secure::{RECORD_HEADER, TAG};

use crate::ground::text::Text;
use crate::record::recorder::{Client, Outcome, Refused};
use crate::record::ring_answer::Answer;
use crate::record::welcome::MAX_REQUEST;
use crate::serve::access::Access;
use crate::serve::budget::Class;
use crate::serve::service::SESSIONS;

use answers::{Part, Share};
pub(crate) use context::{BudgetUse, Busy, Context};
pub(crate) use fault::Fault;
use line::Line;
pub use opening::busy_answer;
use opening::own_preamble;

/// Room for one frame of an answer. Nodes fill it; all other frames are smaller.
const OUTPUT: usize = 4096;

/// Runs of nodes, counts and records are no longer than what their connection has carried before
/// them, or than this: one that breaks again and again, or is very slow, brings some each time.
const SHORTEST_RUN: usize = 512;

/// Start of a frame in the output; a record's header may come before it.
const FRAME: usize = RECORD_HEADER;

/// A connection that has not shown a valid preamble, or a key if one is required, is closed after 2
/// s.
const STRANGER_NS: u64 = 2_000_000_000;
/// A client that does not read its answer is disconnected after 10 s.
const STALLED_NS: u64 = 10_000_000_000;
/// A client without requests is disconnected after 60 s.
const SILENT_NS: u64 = 60_000_000_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Free,
    /// Waits for the client's preamble.
    Preamble,
    /// Waits for the client's handshake.
    #[cfg(feature = "noise")]
    Handshake,
    Open,
    /// Sends the rest of the output, then closes.
    Closing,
    /// Nothing more is sent: the connection must be closed at once.
    GivenUp,
}

/// The next part of an answer with several frames.
#[derive(Clone, Copy, Debug, Default)]
enum Series {
    #[default]
    None,
    Mapping(usize),
    /// The recordings of a status: a bit for each one that was not sent yet.
    Recordings(u32),
    /// A part of one vCPU's part of an epoch.
    Share(Share, Part),
    #[cfg(feature = "trace")]
    Trace(trace::Part),
}

/// One client's conversation.
#[derive(Debug)]
pub(crate) struct Session {
    phase: Phase,
    series: Series,
    /// The next part of an answer about the rings.
    ring: Option<Answer>,
    /// The request at the front of the input had the result [`Outcome::NotYet`].
    again: bool,
    /// Why the conversation ended, if that was the client's fault.
    fault: Option<Fault>,
    /// The number of bytes of an unknown request that are still to be skipped.
    skip: usize,
    /// The connection still holds bytes for the client.
    has_undelivered: bool,
    client: Client,
    /// The client's role; `None` until it is authenticated.
    role: Option<u32>,
    /// When bytes were last moved; for an unauthenticated client, when it connected.
    progress_ns: u64,
    line: Line,
    input_length: usize,
    output_start: usize,
    output_end: usize,
    /// The number of bytes that the connection has carried to the client.
    carried: usize,
    input: [u8; HEADER + MAX_REQUEST],
    output: [u8; FRAME + OUTPUT + TAG],
}

impl Default for Session {
    fn default() -> Self {
        Self {
            phase: Phase::Free,
            series: Series::None,
            ring: None,
            again: false,
            fault: None,
            skip: 0,
            has_undelivered: false,
            client: Client::default(),
            role: None,
            progress_ns: 0,
            line: Line::default(),
            input_length: 0,
            output_start: 0,
            output_end: 0,
            carried: 0,
            input: [0; HEADER + MAX_REQUEST],
            output: [0; FRAME + OUTPUT + TAG],
        }
    }
}

impl Session {
    /// All sessions, free.
    #[inline]
    pub(crate) fn all() -> [Self; SESSIONS] {
        [Self::default(), Self::default(), Self::default(), Self::default()]
    }

    /// The client's id; 0 before its hello.
    pub(crate) fn client_id(&self) -> u64 {
        self.client.id
    }

    pub(crate) fn is_free(&self) -> bool {
        self.phase == Phase::Free
    }

    /// Begins a conversation; the agent's preamble is ready to be sent.
    pub(crate) fn open(&mut self, access: Access<'_>, now_ns: u64) {
        self.close();
        self.phase = Phase::Preamble;
        self.progress_ns = now_ns;
        self.output[..preamble::LENGTH].copy_from_slice(&preamble::encode(own_preamble(access)));
        self.output_end = preamble::LENGTH;
    }

    /// Ends the conversation, and erases its keys and contents.
    pub(crate) fn close(&mut self) {
        self.phase = Phase::Free;
        self.series = Series::None;
        self.ring = None;
        self.again = false;
        self.fault = None;
        self.skip = 0;
        self.has_undelivered = false;
        self.client = Client::default();
        self.role = None;
        self.line.close();
        self.input.fill(0);
        self.output.fill(0);
        self.input_length = 0;
        self.output_start = 0;
        self.output_end = 0;
        self.carried = 0;
    }

    /// When an unauthenticated client has connected; `None` for others.
    pub(crate) fn stranger_since_ns(&self) -> Option<u64> {
        (!self.is_free() && self.role.is_none()).then_some(self.progress_ns)
    }

    /// Whether its handshake was valid, which by itself proves nothing.
    pub(crate) fn has_shaken_hands(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Whether everything was sent and the connection should be closed.
    pub(crate) fn is_over(&self) -> bool {
        self.is_given_up() || self.phase == Phase::Closing && self.output_start == self.output_end
    }

    /// Whether the connection should be closed at once, without sending the rest.
    pub(crate) fn is_given_up(&self) -> bool {
        self.phase == Phase::GivenUp
    }

    /// Why the agent has ended it, if that was the client's fault.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// When to disconnect this client, on the monotonic clock in ns.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        let patience = match self.phase {
            Phase::Free | Phase::GivenUp => return None,
            _ if self.role.is_none() => STRANGER_NS,
            Phase::Closing => STALLED_NS,
            Phase::Open if self.output_start < self.output_end || self.has_undelivered => {
                STALLED_NS
            }
            _ => SILENT_NS,
        };
        Some(self.progress_ns.saturating_add(patience))
    }

    /// Reports whether the connection still holds bytes for the client.
    pub(crate) fn set_undelivered(&mut self, has_undelivered: bool) {
        self.has_undelivered = has_undelivered;
    }

    /// Disconnects this client: nothing more is sent.
    pub(crate) fn give_up(&mut self, fault: Fault) {
        self.fault.get_or_insert(fault);
        self.abandon();
    }

    /// Ends the conversation at once: nothing more is sent.
    pub(crate) fn abandon(&mut self) {
        self.phase = Phase::GivenUp;
        self.series = Series::None;
        self.ring = None;
        self.output_start = self.output_end;
    }

    /// The connection was closed, whatever was still to be sent.
    pub(crate) fn cut(&mut self) {
        #[cfg(feature = "noise")]
        if self.is_amid_record() && !self.is_over() {
            self.fault.get_or_insert(Fault::BadRecord);
        }
    }

    /// Whether a request waits for something that only takes time.
    pub(crate) fn wants_retry(&self) -> bool {
        self.again
    }

    /// Accepts bytes from the client; returns how many. The others must be offered again.
    pub(crate) fn receive(&mut self, bytes: &[u8], now_ns: u64) -> usize {
        if matches!(self.phase, Phase::Free | Phase::Closing | Phase::GivenUp) {
            // The conversation is over; drop the bytes.
            return bytes.len();
        }
        let taken = self.take_in(bytes);
        // Single bytes from an unauthenticated client are not progress: it must authenticate itself
        // in time.
        if taken > 0 && self.role.is_some() {
            self.progress_ns = now_ns;
        }
        taken
    }

    /// Copies bytes for the client into `buffer`; returns how many.
    pub(crate) fn transmit(
        &mut self,
        context: &mut Context<'_, '_, '_>,
        buffer: &mut [u8],
    ) -> usize {
        let mut written = 0;
        loop {
            let pending = &self.output[self.output_start..self.output_end];
            let room = &mut buffer[written..];
            let length = pending.len().min(room.len());
            room[..length].copy_from_slice(&pending[..length]);
            written += length;
            self.output_start += length;
            self.carried = self.carried.saturating_add(length);
            if self.output_start < self.output_end {
                break;
            }
            if context.is_deferred {
                context.was_deferred = self.has_work();
                break;
            }
            if context.is_out_of_time() || !self.produce(context) {
                break;
            }
        }
        if written > 0 && self.role.is_some() {
            self.progress_ns = context.now_ns;
        }
        written
    }

    /// The class whose budget pays for serving this client.
    pub(crate) fn class(&self) -> Class {
        match self.role {
            None => Class::Unauthenticated,
            Some(role::VIEW) => Class::View,
            Some(_) => Class::Control,
        }
    }

    /// Whether there may be a frame to produce: an answer in progress, or bytes of a request.
    pub(crate) fn has_work(&self) -> bool {
        !matches!(self.series, Series::None)
            || self.ring.is_some()
            || self.input_length > 0
            || self.line.has_input()
    }

    /// Puts the next frame into the empty output; returns whether there is one.
    fn produce(&mut self, context: &mut Context<'_, '_, '_>) -> bool {
        // The answer to a handshake is still sent unencrypted.
        let is_sealed = self.line.is_sealed();
        self.output_start = FRAME;
        self.output_end = FRAME;
        let is_made = self.next_frame(context);
        if is_sealed && self.output_start < self.output_end {
            let plaintext = self.output_start..self.output_end;
            match self.line.seal(&mut self.output, plaintext) {
                Some(Range { start, end }) => (self.output_start, self.output_end) = (start, end),
                None => self.give_up(Fault::TimedOut),
            }
        }
        is_made
    }

    fn next_frame(&mut self, context: &mut Context<'_, '_, '_>) -> bool {
        if !matches!(self.series, Series::None) {
            self.continue_series(context);
            return true;
        }
        if self.continue_ring(context) {
            return true;
        }
        match self.phase {
            Phase::Free | Phase::Closing | Phase::GivenUp => false,
            Phase::Preamble => {
                self.read_preamble(context)
                    || (self.phase != Phase::Preamble && self.next_frame(context))
            }
            #[cfg(feature = "noise")]
            Phase::Handshake => self.shake_hands(context),
            Phase::Open => {
                #[cfg(feature = "noise")]
                if self.open_record(context) {
                    return true;
                }
                self.phase == Phase::Open && self.read_request(context)
            }
        }
    }

    /// Ends a conversation whose client violated the protocol. Returns `true`: there is a frame
    /// that says so.
    fn malformed(&mut self, request: u16, error: FrameError) -> bool {
        let text = Text::format(format_args!("{error}"));
        self.end_with(refusal::MALFORMED, request, text.as_str(), Fault::Malformed);
        true
    }

    /// Refuses a request and ends the conversation.
    fn end_with(&mut self, code: u32, request: u16, text: &str, fault: Fault) {
        self.refuse(code, request, text);
        self.phase = Phase::Closing;
        self.fault = Some(fault);
    }

    /// Sends an outcome; returns `false` if there is none yet.
    fn finish<'f, M: Message<'f>>(&mut self, request: u16, outcome: Outcome<M>) -> bool {
        match outcome {
            Outcome::Done(message) => self.send(&message),
            Outcome::Refused(refused) => self.refuse_with(request, &refused),
            Outcome::NotYet => return false,
        }
        true
    }

    #[inline(never)]
    fn refuse_with(&mut self, request: u16, refused: &Refused) {
        self.refuse(refused.code, request, refused.text.as_str());
    }

    #[inline(never)]
    fn refuse(&mut self, code: u32, request: u16, text: &str) {
        self.send(&Refusal { code, request, text });
    }

    /// Adds a frame to the output. Every message has a limit, so that it fits the empty output.
    fn send<'f, M: Message<'f>>(&mut self, message: &M) {
        let sent = frame::encode(message, self.room());
        self.sent(sent);
    }

    /// The part of `room` that the next run may fill.
    fn run<'r>(&self, room: &'r mut [u8]) -> &'r mut [u8] {
        let length = self.carried.max(SHORTEST_RUN).min(room.len());
        room.get_mut(..length).unwrap_or_default()
    }

    /// The unused rest of the output.
    #[inline(never)]
    fn room(&mut self) -> &mut [u8] {
        &mut self.output[self.output_end..FRAME + OUTPUT]
    }

    /// Adds a frame to the output that was encoded into the [room](Self::room).
    #[inline(never)]
    fn sent(&mut self, length: Result<usize, FrameError>) {
        match length {
            Ok(length) => self.output_end += length,
            Err(_) => self.phase = Phase::Closing,
        }
    }
}
