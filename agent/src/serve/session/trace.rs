//! A session's answers about the trace.

use unikprof_proto::code::message_type;
use unikprof_proto::frame::{self, FrameError, HEADER};
use unikprof_proto::message::{
    TraceArm, TraceCallers, TraceEnd, TraceFetch, TraceRefused, TraceStop, TraceTotals,
};
use unikprof_proto::trace::{Encoder, MAX_CALLER_BYTES, MAX_TOTALS_BYTES};

use super::{Context, OUTPUT, Series, Session};

/// The maximum length of a frame of totals or callers without its payload.
const OVERHEAD: usize = HEADER + 40;

/// The next part of an answer about the trace.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    /// The refusals of the functions from `first` on.
    Refused { first: u32 },
    /// The totals of the functions from `first` on, after those of `sent` functions.
    Totals { trace: u64, first: u32, sent: u32 },
    /// The callers from the place `from` on, after `sent` others.
    Callers { trace: u64, functions: u32, from: u32, sent: u32 },
}

impl Session {
    /// Answers a request about the trace; `Ok(false)` if it must be tried again later.
    #[inline(never)]
    pub(super) fn answer_trace(
        &mut self,
        request: &frame::Frame<'_>,
        context: &mut Context<'_, '_, '_>,
    ) -> Result<bool, FrameError> {
        let (agent, now_ns) = (context.agent, context.now_ns);
        let tracer = context.recorder.tracer();
        match request.kind {
            message_type::TRACE_BEGIN => {
                let begin = frame::decode(request)?;
                let ready = tracer.begin(agent, &self.client, &begin, now_ns);
                return Ok(self.finish(request.kind, ready));
            }
            message_type::TRACE_FUNCTIONS => {
                tracer.functions(agent, &self.client, &frame::decode(request)?, now_ns);
            }
            message_type::TRACE_PROBES => {
                tracer.probes(agent, &self.client, &frame::decode(request)?, now_ns);
            }
            message_type::TRACE_ARM => {
                let TraceArm { trace } = frame::decode(request)?;
                match tracer.arm(agent, &self.client, trace, now_ns) {
                    Ok(None) => return Ok(false),
                    Ok(Some(armed)) => {
                        self.series = Series::Trace(Part::Refused { first: 0 });
                        self.send(&armed);
                    }
                    Err(refused) => self.refuse_with(request.kind, &refused),
                }
            }
            message_type::TRACE_FETCH => {
                let TraceFetch { trace } = frame::decode(request)?;
                match tracer.state(agent, &self.client, trace, now_ns) {
                    Ok(state) => {
                        let (first, sent) = (0, 0);
                        self.series = Series::Trace(Part::Totals { trace, first, sent });
                        self.send(&state);
                    }
                    Err(refused) => self.refuse_with(request.kind, &refused),
                }
            }
            _ => {
                let TraceStop { trace } = frame::decode(request)?;
                let state = tracer.stop(agent, &self.client, trace, now_ns);
                return Ok(self.finish(request.kind, state));
            }
        }
        Ok(true)
    }

    /// Sends the next frame of an answer about the trace.
    #[inline(never)]
    pub(super) fn continue_trace(&mut self, part: Part, context: &mut Context<'_, '_, '_>) {
        let agent = context.agent;
        let tracer = context.recorder.tracer();
        self.series = Series::None;
        let mut payload = [0; OUTPUT - OVERHEAD];
        let mut encoder = Encoder::new(&mut payload);
        match part {
            Part::Refused { first } => {
                let mut refusals = tracer.refusals(agent, first);
                let Some((function, reason, code)) = refusals.next() else {
                    return;
                };
                if refusals.next().is_some() {
                    self.series = Series::Trace(Part::Refused { first: function + 1 });
                }
                self.send(&TraceRefused { function, reason, code });
            }
            Part::Totals { trace, first, sent } if tracer.id() == trace => {
                let (mut count, mut next) = (0, None);
                for (totals, histogram) in tracer.totals(agent, first) {
                    if !encoder.has_room(MAX_TOTALS_BYTES) {
                        next = Some(totals.function);
                        break;
                    }
                    encoder.totals(&totals, histogram);
                    count += 1;
                }
                let sent = sent + count;
                self.series = Series::Trace(match next {
                    Some(first) => Part::Totals { trace, first, sent },
                    None => Part::Callers { trace, functions: sent, from: 0, sent: 0 },
                });
                let bytes = encoder.finish();
                self.send(&TraceTotals {
                    trace,
                    count,
                    payload: payload.get(..bytes).unwrap_or_default(),
                });
            }
            Part::Callers { trace, functions, mut from, sent } if tracer.id() == trace => {
                let mut count = 0;
                let mut is_last = false;
                while encoder.has_room(MAX_CALLER_BYTES) {
                    let Some((caller, behind)) = tracer.caller(agent, from) else {
                        is_last = true;
                        break;
                    };
                    encoder.caller(&caller);
                    count += 1;
                    from = behind;
                }
                let callers = sent + count;
                let bytes = encoder.finish();
                if count > 0 {
                    self.send(&TraceCallers {
                        trace,
                        count,
                        payload: payload.get(..bytes).unwrap_or_default(),
                    });
                }
                if is_last {
                    self.send(&TraceEnd { trace, functions, callers });
                } else {
                    self.series =
                        Series::Trace(Part::Callers { trace, functions, from, sent: callers });
                }
            }
            // Another client has begun another trace meanwhile: the answer ends without its end.
            Part::Totals { trace, .. } | Part::Callers { trace, .. } => {
                if let Err(refused) = tracer.state(agent, &self.client, trace, context.now_ns) {
                    self.refuse_with(message_type::TRACE_FETCH, &refused);
                }
            }
        }
    }
}
