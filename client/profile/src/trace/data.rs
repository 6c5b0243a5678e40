//! What a trace is: what was asked for, what was counted, and what refused functions lack.

use thiserror::Error;
use unikprof_proto::code::{trace_refusal, trace_state};
use unikprof_proto::message::{BUCKETS, TraceArmed, TraceReady, TraceState, bucket_floor};
use unikprof_proto::trace::{Caller, FunctionTotals, totals_flag};

/// A trace.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Trace {
    /// What was asked for.
    pub order: Order,
    /// By index.
    pub functions: Vec<TracedFunction>,
    /// Functions that were asked for and cannot be traced, with the client's reason.
    pub refused: Vec<(String, String)>,
    /// The agent's answer to the request for it.
    pub ready: Option<TraceReady>,
    /// The agent's answer once the probes were set.
    pub armed: Option<TraceArmed>,
    /// Its last known state.
    pub state: Option<TraceState>,
}

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Order {
    /// The patterns, separated by spaces.
    pub patterns: String,
    /// The function within whose calls others are shown; empty: everywhere.
    pub inside: String,
    /// No calls were kept: only counts.
    pub count_only: bool,
    /// Only calls of roots that took so long were kept, in ns; 0: all.
    pub slow_ns: u64,
    /// The share of a vCPU that it may take, in 1/1000.
    pub max_cost_permille: u32,
}

/// A function of a trace.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TracedFunction {
    /// As the image has it.
    pub name: String,
    /// See [`function_flag::ROOT`](unikprof_proto::trace::function_flag::ROOT).
    pub is_root: bool,
    /// The agent does not trace it.
    pub refused: Option<String>,
    /// Counts and sums of all its calls.
    pub totals: FunctionTotals,
    /// By bucket: the calls whose end was seen. Shorter than [`BUCKETS`] if the rest is zero.
    pub histogram: Vec<u64>,
    /// Who called it, the most frequent first.
    pub callers: Vec<CallsFrom>,
}

/// The calls of a function from one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallsFrom {
    /// The caller's code address, relative.
    pub code: u32,
    /// The calling function, if it is known.
    pub name: String,
    /// How many calls.
    pub calls: u64,
}

/// Why frames of a trace are not valid.
#[expect(missing_docs, reason = "each message says it")]
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TraceError {
    #[error("a message is about function {found} of a trace of {functions} functions")]
    Function { found: u32, functions: usize },
    #[error("expected function {expected} of a trace, found {found}")]
    Order { expected: usize, found: u32 },
    #[error("a message is about trace {found}, in the answer about trace {expected}")]
    Other { expected: u64, found: u64 },
    #[error("{expected} {what} were announced, and {found} sent")]
    Count { what: &'static str, expected: u32, found: u32 },
    #[error(transparent)]
    Run(#[from] unikprof_proto::run::InvalidRun),
}

impl Trace {
    /// The number of the trace in records of rings.
    pub fn number(&self) -> Option<u16> {
        self.ready.as_ref().map(|ready| ready.number as u16)
    }

    /// When it began and when it ended, on the guest's monotonic clock.
    pub fn extent(&self) -> (u64, u64) {
        match (&self.state, &self.armed) {
            (Some(state), _) => (state.started_ns, state.ended_ns.max(state.started_ns)),
            (None, Some(armed)) => (armed.started_ns, armed.started_ns),
            (None, None) => (0, 0),
        }
    }

    /// The function that a message names.
    fn function(&mut self, index: u32) -> Result<&mut TracedFunction, TraceError> {
        let functions = self.functions.len();
        let found = self.functions.get_mut(index as usize);
        found.ok_or(TraceError::Function { found: index, functions })
    }

    /// Takes the agent's reason not to trace a function.
    pub(crate) fn refuse(&mut self, index: u32, reason: u32) -> Result<(), TraceError> {
        self.function(index)?.refused = Some(refusal_text(reason));
        Ok(())
    }

    /// Takes the totals of a function, which replace earlier ones.
    pub(crate) fn count(
        &mut self,
        totals: FunctionTotals,
        histogram: &[u64; BUCKETS],
    ) -> Result<(), TraceError> {
        let function = self.function(totals.function)?;
        function.totals = totals;
        function.histogram = histogram.to_vec();
        function.callers.clear();
        Ok(())
    }

    /// Takes the number of calls from one place.
    pub(crate) fn called_from(&mut self, caller: Caller) -> Result<(), TraceError> {
        self.function(caller.function)?.callers.push(CallsFrom {
            code: caller.code,
            name: String::new(),
            calls: caller.calls,
        });
        Ok(())
    }

    /// Names the callers at a code.
    pub(crate) fn name_callers(&mut self, code: u32, name: &str) {
        let callers = self.functions.iter_mut().flat_map(|it| &mut it.callers);
        for caller in callers.filter(|caller| caller.code == code) {
            name.clone_into(&mut caller.name);
        }
    }

    /// How it ended, in words; `None` if its client has ended it.
    pub fn end_text(&self) -> Option<&'static str> {
        match self.state.as_ref().map(|state| state.state) {
            Some(trace_state::STOPPED) => None,
            Some(trace_state::ABANDONED) => {
                Some("the agent ended it: its client was gone too long")
            }
            Some(trace_state::ARMED) => Some("it was still under way when this was fetched"),
            Some(_) => Some("it did not begin"),
            // The recording is incomplete, and says so.
            None => None,
        }
    }
}

impl TracedFunction {
    /// Calls whose end was seen.
    pub fn ended(&self) -> u64 {
        self.histogram.iter().fold(0, |sum: u64, count| sum.saturating_add(*count))
    }

    /// Calls that had not ended when the trace did.
    pub fn open(&self) -> u64 {
        self.totals.calls.saturating_sub(self.not_open())
    }

    /// Whether more calls ended than there were: the agent contradicts itself.
    pub fn is_contradictory(&self) -> bool {
        self.not_open() > self.totals.calls
    }

    fn not_open(&self) -> u64 {
        let FunctionTotals { unwound, replaced, .. } = self.totals;
        self.ended().saturating_add(unwound).saturating_add(replaced)
    }

    /// Whether its probes were removed because the trace cost too much.
    pub fn is_removed(&self) -> bool {
        self.totals.flags & totals_flag::REMOVED != 0
    }

    /// The duration that this share of the ended calls, in thousandths, did not exceed: the end of
    /// its bucket, at most a quarter too long. `None` if no call ended.
    pub fn quantile(&self, permille: u64) -> Option<u64> {
        let ended = u128::from(self.ended());
        let wanted = (ended * u128::from(permille)).div_ceil(1000).max(1);
        let mut below = 0;
        for (bucket, count) in self.histogram.iter().enumerate() {
            below += u128::from(*count);
            if *count > 0 && below >= wanted {
                return Some(last_of(bucket).min(self.totals.max_ns));
            }
        }
        None
    }
}

/// The greatest value of a bucket.
pub fn last_of(bucket: usize) -> u64 {
    match bucket + 1 {
        next if next < BUCKETS => bucket_floor(next).saturating_sub(1),
        _ => u64::MAX,
    }
}

/// The agent's reason not to trace a function.
fn refusal_text(reason: u32) -> String {
    let text = match reason {
        trace_refusal::OTHER_BYTES => {
            "the guest's memory has other bytes there than the image: it was changed or another \
             tracer is at work"
        }
        trace_refusal::INSTRUCTION => {
            "the agent can neither copy nor emulate the instruction at a probe"
        }
        trace_refusal::NO_SLOT => {
            "the agent has no more slots for copies of instructions near it: build it with more of \
             them"
        }
        trace_refusal::AGENT => "the agent may run it while it handles a breakpoint",
        trace_refusal::NOT_WRITABLE => "the guest cannot write to its code",
        trace_refusal::NO_ROOM => {
            "the agent's memory for probes is full: trace fewer functions, or give it more"
        }
        trace_refusal::OVERLAP => "a probe lies inside of another function's instruction",
        other => return format!("the agent gives reason {other}, which this client does not know"),
    };
    text.into()
}
