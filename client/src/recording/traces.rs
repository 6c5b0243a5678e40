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
            return Err(Damage::OutOfPlace {
                expected: "one trace in a file",
                found: frame.kind,
            });
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
