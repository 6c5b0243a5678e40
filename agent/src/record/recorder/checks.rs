//! Checks of requests to start a recording.

use unikprof_proto::code::{mode, refusal, start_flag};
use unikprof_proto::message::{
    MAX_INTERVAL_BYTES, MAX_NAME, MAX_PERIOD_NS, MIN_INTERVAL_BYTES, MIN_PERIOD_NS, Start,
};

use super::Refused;
use crate::agent::AnyAgent;
use crate::ground::text::Text;
use crate::stack::caller_table::CallerTable;
use crate::stack::path::MAX_DEPTH;

/// Checks that the settings are within the agent's limits.
pub(super) fn check(request: &Start<'_>) -> Result<(), Refused> {
    let refused = |code, text| Err(Refused { code, text });
    let name = request.name;
    if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
        return refused(
            refusal::BAD_NAME,
            Text::format(format_args!(
                "a name has 1 to {MAX_NAME} bytes and no control characters; this one has {} bytes",
                name.len()
            )),
        );
    }
    let is_heap = cfg!(feature = "heap") && mode::is_heap(request.mode);
    if !is_heap && !matches!(request.mode, mode::CPU | mode::WALL | mode::OFF_CPU) {
        // Modes of allocations need the feature `heap`.
        let last = if cfg!(feature = "heap") { mode::LIVE } else { mode::OFF_CPU };
        return refused(
            refusal::UNSUPPORTED_MODE,
            Text::format(format_args!(
                "this agent records in modes 0 to {last}; asked for mode {}",
                u64::from(request.mode)
            )),
        );
    }
    if !is_heap && !(MIN_PERIOD_NS..=MAX_PERIOD_NS).contains(&request.period_ns) {
        return refused(
            refusal::BAD_PERIOD,
            Text::format(format_args!(
                "the period may be {MIN_PERIOD_NS} to {MAX_PERIOD_NS} ns (0.1 Hz to 100 kHz); \
                 asked \
                 for {} ns",
                request.period_ns
            )),
        );
    }
    if request.depth == 0 || request.depth as usize > MAX_DEPTH {
        return refused(
            refusal::BAD_DEPTH,
            Text::format(format_args!(
                "the depth may be 1 to {MAX_DEPTH} frames; asked for {}",
                u64::from(request.depth)
            )),
        );
    }
    if is_heap && !(MIN_INTERVAL_BYTES..=MAX_INTERVAL_BYTES).contains(&request.interval_bytes) {
        return refused(
            refusal::BAD_INTERVAL,
            Text::format(format_args!(
                "the interval may be {MIN_INTERVAL_BYTES} to {MAX_INTERVAL_BYTES} bytes; asked for \
                 {}",
                request.interval_bytes
            )),
        );
    }
    Ok(())
}

/// Checks that the agent can record allocations, if the request asks for that.
pub(super) fn check_heap(agent: &AnyAgent<'_, '_>, request: &Start<'_>) -> Result<(), Refused> {
    if !cfg!(feature = "heap") {
        return Ok(());
    }
    let text = match request.mode {
        mode::LIVE if agent.live().is_none() => {
            "the agent was given no memory for live allocations, so it records in mode alloc, not \
             live"
        }
        mode::ALLOC | mode::LIVE if !agent.sees_allocations() => {
            "the guest has not reported any allocation so far: its allocator must call the agent's \
             on_alloc"
        }
        _ => return Ok(()),
    };
    Err(Refused { code: refusal::UNSUPPORTED_MODE, text: Text::from(text) })
}

/// Checks that the platform can tell blocked from stolen time, if the request asks for both running
/// and blocked time.
pub(super) fn check_wall(agent: &AnyAgent<'_, '_>, request: &Start<'_>) -> Result<(), Refused> {
    if request.mode != mode::WALL || agent.tells_runstate() {
        return Ok(());
    }
    let text = "mode wall needs run states, which the guest's platform does not report: stolen \
                time would count as blocked";
    Err(Refused { code: refusal::UNSUPPORTED_MODE, text: Text::from(text) })
}

/// Checks that the requested caller table is the agent's.
pub(super) fn check_table(agent: &AnyAgent<'_, '_>, request: &Start<'_>) -> Result<(), Refused> {
    let held = agent.callers().and_then(CallerTable::checksum);
    let text = match (request.caller_table, held) {
        (None, _) if request.flags & start_flag::UNWIND_TABLE != 0 => {
            Text::from("to look up every frame in a caller table, the request must name the table")
        }
        (None, _) => return Ok(()),
        (Some(asked), Some(held)) if asked == held => return Ok(()),
        (Some(asked), Some(held)) => Text::format(format_args!(
            "the agent has the caller table {held:#010x}, not {asked:#010x}: another client sent \
             its \
             own; try again"
        )),
        (Some(_), None) => Text::from("the agent has no caller table; send one first"),
    };
    Err(Refused { code: refusal::NO_TABLE, text })
}
