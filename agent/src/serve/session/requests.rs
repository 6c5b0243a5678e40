//! The requests of clients.

use unikprof_proto::code::{message_type, refusal};
use unikprof_proto::frame::{self, FrameError};
use unikprof_proto::message::{
    Acknowledge, Acknowledged, Check, Dump, Fetch, Hello, MAX_CLIENT, Pending, Start, Started,
    Stop, TableBegin, TableEnd,
};

use super::answers::{Part, Share};
use super::{Context, Series, Session};
use crate::ground::text::{Name, Text};
use crate::record::recorder::{Client, Outcome, Refused, Waiting};

impl Session {
    /// Answers a request; `Ok(false)` if it must be tried again later.
    pub(super) fn answer(
        &mut self,
        request: &frame::Frame<'_>,
        context: &mut Context<'_, '_, '_>,
    ) -> Result<bool, FrameError> {
        #[cfg(feature = "noise")]
        if !self.allows(request.kind) {
            context.peers.not_allowed += 1;
            let text = if self.is_view() {
                "the role view of the client's key does not allow this request; use the key for \
                 control"
            } else {
                "the role control of the client's key does not allow tracing; use a key with the \
                 role trace"
            };
            self.refuse(refusal::NOT_ALLOWED, request.kind, text);
            return Ok(true);
        }
        let Context { agent, recorder, server, .. } = context;
        let server_ns = server.total_ns;
        let client = &self.client;
        recorder.update_leases(&context.clients, context.now_ns);
        if !matches!(request.kind, message_type::HELLO | message_type::START) {
            recorder.confirm(client, context.now_ns);
        }
        let pending = |Waiting { recording, first_epoch, epochs, complete }| Pending {
            recording,
            first_epoch,
            epochs,
            complete,
        };
        match request.kind {
            message_type::HELLO => {
                let Hello { client, client_id } = frame::decode(request)?;
                let name = &client[..client.floor_char_boundary(MAX_CLIENT)];
                self.client = Client { id: client_id, name: Name::from(name) };
                self.welcome(context);
                Ok(true)
            }
            message_type::CHECK => {
                frame::decode::<Check>(request)?;
                self.status(context);
                Ok(true)
            }
            message_type::START => {
                let start: Start<'_> = frame::decode(request)?;
                let outcome = recorder.start(agent, client, &start, server_ns);
                let started =
                    outcome.map(|(recording, started_ns)| Started { recording, started_ns });
                Ok(self.finish(request.kind, started))
            }
            message_type::TABLE_BEGIN => {
                let begin: TableBegin = frame::decode(request)?;
                let ready = recorder.begin_table(agent, &begin, server_ns);
                Ok(self.finish(request.kind, ready))
            }
            message_type::TABLE_ROWS => {
                recorder.table_rows(agent, &frame::decode(request)?);
                Ok(true)
            }
            message_type::TABLE_END => {
                let end: TableEnd = frame::decode(request)?;
                let installed = recorder.end_table(agent, &end);
                Ok(self.finish(request.kind, installed.into()))
            }
            message_type::STOP => {
                let stop: Stop = frame::decode(request)?;
                let outcome = recorder.stop(agent, client, stop.recording, server_ns);
                Ok(self.finish(request.kind, outcome.map(pending)))
            }
            message_type::DUMP => {
                let dump: Dump = frame::decode(request)?;
                let outcome = recorder.dump(agent, client, dump.recording, server_ns, self.again);
                Ok(self.finish(request.kind, outcome.map(pending)))
            }
            message_type::ACKNOWLEDGE => {
                let Acknowledge { epoch } = frame::decode(request)?;
                let outcome = recorder.acknowledge(agent, client, epoch);
                Ok(self.finish(request.kind, outcome.map(|()| Acknowledged { epoch })))
            }
            message_type::FETCH => {
                let fetch: Fetch = frame::decode(request)?;
                match recorder.holding(fetch.epoch) {
                    Some(recording) => {
                        self.series = Series::Share(Share::new(fetch, recording), Part::Head);
                        self.continue_series(context);
                    }
                    None => self.refuse_with(request.kind, &recorder.no_epoch(fetch.epoch)),
                }
                Ok(true)
            }
            message_type::RING | message_type::STACKS | message_type::EVENT_NAMES => {
                self.answer_ring(request, context)
            }
            message_type::TAKE_SNAPSHOT => {
                self.snapshot(&frame::decode(request)?, context.agent);
                Ok(true)
            }
            #[cfg(feature = "trace")]
            message_type::TRACE_BEGIN
            | message_type::TRACE_FUNCTIONS
            | message_type::TRACE_PROBES
            | message_type::TRACE_ARM
            | message_type::TRACE_FETCH
            | message_type::TRACE_STOP => self.answer_trace(request, context),
            kind => {
                let text = Text::format(format_args!(
                    "this agent does not know request {:#06x}",
                    u32::from(kind)
                ));
                self.refuse(refusal::UNKNOWN_REQUEST, kind, text.as_str());
                Ok(true)
            }
        }
    }
}

impl<T> From<Result<T, Refused>> for Outcome<T> {
    fn from(result: Result<T, Refused>) -> Self {
        result.map_or_else(Self::Refused, Self::Done)
    }
}

impl<T> Outcome<T> {
    fn map<U>(self, map: impl FnOnce(T) -> U) -> Outcome<U> {
        match self {
            Self::Done(value) => Outcome::Done(map(value)),
            Self::Refused(refused) => Outcome::Refused(refused),
            Self::NotYet => Outcome::NotYet,
        }
    }
}
