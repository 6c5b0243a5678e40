//! From a file's frames about a trace to the trace.

use unikprof_proto::code::trace_flag;
use unikprof_proto::frame::{self, Frame, Message as _};
use unikprof_proto::message::{
    TraceArmed, TraceCallers, TraceEnd, TraceReady, TraceRefused, TraceState, TraceTotals,
};
use unikprof_proto::trace::{MAX_FUNCTIONS, decode_callers, decode_totals, function_flag};

use super::error::Damage;
use super::format::{FileCaller, FileFunction, FileTrace};
use crate::trace::{Order, Trace, TraceError, TracedFunction};

/// Whether frames of this type are about a trace.
pub(super) fn takes(kind: u16) -> bool {
    matches!(
        kind,
        FileTrace::TYPE
            | FileFunction::TYPE
            | FileCaller::TYPE
            | TraceReady::TYPE
            | TraceArmed::TYPE
            | TraceRefused::TYPE
            | TraceState::TYPE
            | TraceTotals::TYPE
            | TraceCallers::TYPE
            | TraceEnd::TYPE
    )
}

/// Takes a frame that [`takes`] names.
pub(super) fn accept(trace: &mut Option<Trace>, frame: &Frame<'_>) -> Result<(), Damage> {
    if frame.kind == FileTrace::TYPE {
        if trace.is_some() {
            return Err(Damage::OutOfPlace { expected: "one trace in a file", found: frame.kind });
        }
        let head: FileTrace<'_> = frame::decode(frame)?;
        *trace = Some(Trace {
            order: Order {
                patterns: head.patterns.into(),
                inside: head.inside.into(),
                count_only: head.flags & trace_flag::COUNT != 0,
                slow_ns: head.slow_ns,
                max_cost_permille: head.max_cost_permille,
            },
            ..Trace::default()
        });
        return Ok(());
    }
    let Some(trace) = trace else {
        return Err(Damage::OutOfPlace {
            expected: "what was to be traced, before the rest of a trace",
            found: frame.kind,
        });
    };
    match frame.kind {
        FileFunction::TYPE => function(trace, &frame::decode(frame)?)?,
        FileCaller::TYPE => {
            let caller: FileCaller<'_> = frame::decode(frame)?;
            trace.name_callers(caller.code, caller.name);
        }
        TraceReady::TYPE => trace.ready = Some(frame::decode(frame)?),
        TraceArmed::TYPE => trace.armed = Some(frame::decode(frame)?),
        TraceRefused::TYPE => {
            let refused: TraceRefused = frame::decode(frame)?;
            trace.refuse(refused.function, refused.reason)?;
        }
        TraceState::TYPE => trace.state = Some(frame::decode(frame)?),
        TraceTotals::TYPE => {
            let run: TraceTotals<'_> = frame::decode(frame)?;
            let mut taken = Ok(());
            decode_totals(run.count, run.payload, |totals, histogram| {
                let one = trace.count(totals, histogram);
                if taken.is_ok() {
                    taken = one;
                }
            })
            .map_err(TraceError::from)?;
            taken?;
        }
        TraceCallers::TYPE => {
            let run: TraceCallers<'_> = frame::decode(frame)?;
            let mut taken = Ok(());
            decode_callers(run.count, run.payload, |caller| {
                let one = trace.called_from(caller);
                if taken.is_ok() {
                    taken = one;
                }
            })
            .map_err(TraceError::from)?;
            taken?;
        }
        _ => {}
    }
    Ok(())
}

fn function(trace: &mut Trace, function: &FileFunction<'_>) -> Result<(), TraceError> {
    if !function.refused.is_empty() {
        let refused = (function.name.into(), function.refused.into());
        trace.refused.push(refused);
        return Ok(());
    }
    if trace.functions.len() >= MAX_FUNCTIONS {
        return Err(TraceError::Function {
            found: trace.functions.len() as u32,
            functions: MAX_FUNCTIONS,
        });
    }
    trace.functions.push(TracedFunction {
        name: function.name.into(),
        is_root: function.flags & function_flag::ROOT != 0,
        ..TracedFunction::default()
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use unikprof_proto::frame::{HEADER, MAX_BODY, Message};
    use unikprof_proto::message::BUCKETS;
    use unikprof_proto::trace::{Caller, Encoder, FunctionTotals};

    use super::*;

    fn take<'m, M: Message<'m>>(trace: &mut Option<Trace>, message: &M) -> Result<(), Damage> {
        let mut buffer = [0; HEADER + MAX_BODY];
        let length = frame::encode(message, &mut buffer).unwrap();
        let kind = M::TYPE;
        assert!(takes(kind));
        accept(trace, &Frame { kind, body: &buffer[HEADER..length] })
    }

    const HEAD: FileTrace<'static> = FileTrace {
        patterns: "tcp_*",
        inside: "",
        flags: trace_flag::COUNT,
        slow_ns: 0,
        max_cost_permille: 50,
    };

    fn with_functions(count: usize) -> Option<Trace> {
        let mut trace = None;
        take(&mut trace, &HEAD).unwrap();
        for at in 0..count {
            let function =
                FileFunction { name: "tcp_input", flags: u32::from(at == 0), refused: "" };
            take(&mut trace, &function).unwrap();
        }
        trace
    }

    fn totals(function: u32) -> Vec<u8> {
        let mut buffer = [0; 4096];
        let mut encoder = Encoder::new(&mut buffer);
        let totals = FunctionTotals {
            function,
            calls: 7,
            unwound: 2,
            max_ns: 900,
            ..FunctionTotals::default()
        };
        encoder.totals(&totals, |bucket| u64::from(bucket == 20) * 4);
        let length = encoder.finish();
        buffer[..length].to_vec()
    }

    #[test]
    fn counts_come_back_and_add_up() {
        let mut trace = with_functions(2);
        let refused =
            FileFunction { name: "tcp_isr", flags: 0, refused: "it returns from an interrupt" };
        take(&mut trace, &refused).unwrap();
        let payload = &totals(1)[..];
        // The second answer replaces the first.
        for _ in 0..2 {
            take(&mut trace, &TraceTotals { trace: 1, count: 1, payload }).unwrap();
        }
        let trace = trace.unwrap();
        assert_eq!((trace.functions.len(), trace.refused.len()), (2, 1));
        assert!(trace.order.count_only && trace.functions[0].is_root);
        let function = &trace.functions[1];
        assert_eq!(function.histogram.len(), BUCKETS);
        assert_eq!((function.ended(), function.open()), (4, 1), "7 = 4 + 2 + 1");
        assert!(!function.is_contradictory());
    }

    /// An agent may send anything.
    #[test]
    fn functions_that_do_not_exist_are_damage() {
        let damaged = |found: Result<(), Damage>| matches!(found, Err(Damage::Trace(_)));
        let mut trace = with_functions(2);
        let payload = &totals(2)[..];
        let message = TraceTotals { trace: 1, count: 1, payload };
        assert!(damaged(take(&mut trace, &message)), "totals");
        let message = TraceTotals { trace: 1, count: 2, payload };
        assert!(damaged(take(&mut trace, &message)), "cut");
        let mut buffer = [0; 64];
        let mut encoder = Encoder::new(&mut buffer);
        encoder.caller(&Caller { function: 9, code: 16, calls: 1 });
        let length = encoder.finish();
        let message = TraceCallers { trace: 1, count: 1, payload: &buffer[..length] };
        assert!(damaged(take(&mut trace, &message)), "callers");
        let message = TraceRefused { function: 2, reason: 1, code: 0 };
        assert!(damaged(take(&mut trace, &message)), "refused");
        let mut trace = with_functions(MAX_FUNCTIONS);
        let more = FileFunction { name: "more", flags: 0, refused: "" };
        assert!(damaged(take(&mut trace, &more)), "too many");
    }

    #[test]
    fn a_file_has_one_trace_and_its_head_comes_first() {
        let mut trace = None;
        let message = TraceRefused { function: 0, reason: 1, code: 0 };
        let found = take(&mut trace, &message);
        assert!(matches!(found, Err(Damage::OutOfPlace { .. })));
        let mut trace = with_functions(1);
        let found = take(&mut trace, &HEAD);
        assert!(matches!(found, Err(Damage::OutOfPlace { .. })));
    }
}
