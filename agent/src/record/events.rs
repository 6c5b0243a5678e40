//! The guest's own events: marks, spans and counters, in the ring beside the samples.
//!
//! ```
//! use std::mem::MaybeUninit;
//! # use unikprof_agent::{Agent, Platform};
//!
//! fn serve<P: Platform>(agent: &Agent<'_, P>) {
//!     // Once, at the start.
//!     let (request, depth) = (agent.event_name("request"), agent.event_name("queue depth"));
//!     if let (Ok(request), Ok(depth)) = (request, depth) {
//!         // For each request.
//!         let _span = agent.span(request);
//!         agent.counter(depth, 7);
//!     }
//! }
//! ```

use unikprof_proto::ring::kind;

use crate::agent::Agent;
use crate::ground::platform::Platform;
use crate::ring::{Entry, EventNameError, Ring, Rings};

/// The name of a kind of event. Valid only with the agent that returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventName(u8);

impl EventName {
    /// The name's number, for guests that store names as integers. See
    /// [`Agent::numbered_event_name`].
    pub fn number(self) -> u8 {
        self.0
    }
}

/// A span that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId(u64);

impl SpanId {
    /// No span. Also the id of one whose beginning was not written; its end is not written either.
    pub const NONE: Self = Self(0);

    /// The span's number, for guests that store spans as integers. Unique in the agent's life.
    pub fn number(self) -> u64 {
        self.0
    }

    /// The span with this [number](Self::number).
    pub fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// The span with this name and this number in the ring's records, which
    /// [`Entry::entered`] takes apart.
    fn of(name: u8, in_ring: u64) -> Self {
        Self(in_ring << 8 | u64::from(name))
    }
}

/// A nested span that ends when it is dropped. See [`Agent::span`].
#[derive(Debug)]
#[must_use = "the span ends when it is dropped"]
pub struct Span<'a, 'm, P: Platform> {
    agent: &'a Agent<'m, P>,
    name: EventName,
    id: SpanId,
}

impl<P: Platform> Span<'_, '_, P> {
    /// The span's id.
    pub fn id(&self) -> SpanId {
        self.id
    }
}

impl<P: Platform> Drop for Span<'_, '_, P> {
    #[inline]
    fn drop(&mut self) {
        self.agent.span_end(self.name, self.id);
    }
}

/// Events. These methods may be called from any context at any time, also from an upcall that
/// interrupts the writing of another event. An event goes into the ring of the vCPU that it
/// happens on. If [`Platform::vcpu`] is `None`, it is counted as lost.
impl<'m, P: Platform> Agent<'m, P> {
    /// The event name with this text of 1 to [48](unikprof_proto::ring::MAX_EVENT_NAME) bytes
    /// without control characters. It is added if it is new. The same text always gives the same
    /// name. There are at most [256](unikprof_proto::ring::MAX_EVENT_NAMES) names, and none is ever
    /// removed.
    ///
    /// # Errors
    /// [`EventNameError`].
    pub fn event_name(&self, text: &str) -> Result<EventName, EventNameError> {
        let rings = self.rings().ok_or(EventNameError::NoRing)?;
        rings.names().intern(text).map(EventName)
    }

    /// The name with this [number](EventName::number).
    ///
    /// # Errors
    /// [`EventNameError::NoRing`] and [`EventNameError::Unknown`].
    #[inline]
    pub fn numbered_event_name(&self, number: u8) -> Result<EventName, EventNameError> {
        let rings = self.rings().ok_or(EventNameError::NoRing)?;
        if rings.names().is_in_use(number) {
            Ok(EventName(number))
        } else {
            Err(EventNameError::Unknown(number))
        }
    }

    /// Records a mark. The meaning of `value` is the guest's.
    #[inline]
    pub fn mark(&self, name: EventName, value: u64) {
        self.event(|ring, _, _| {
            ring.push(self.platform().now_ns(), Entry::named(kind::MARK, name.0, value));
        });
    }

    /// Records a counter's new value.
    #[inline]
    pub fn counter(&self, name: EventName, value: i64) {
        self.event(|ring, _, _| {
            ring.push(self.platform().now_ns(), Entry::named(kind::COUNTER, name.0, value as u64));
        });
    }

    /// Records the beginning of a nested span. It must end on this vCPU before the spans around it
    /// do, and code that runs here meanwhile belongs to it: the samples in its time are its own.
    ///
    /// A span that ends otherwise is shown as an [asynchronous](Self::async_span_begin) one.
    #[inline]
    pub fn span_begin(&self, name: EventName) -> SpanId {
        self.begin(kind::SPAN_BEGIN, name)
    }

    /// Records the beginning of an asynchronous span: one that waits while other spans' code runs
    /// on the vCPU, such as a request that an executor or an event loop serves. It may overlap
    /// others, and end in another context and on another vCPU. No sample is its own by time alone.
    #[inline]
    pub fn async_span_begin(&self, name: EventName) -> SpanId {
        self.begin(kind::ASYNC_SPAN_BEGIN, name)
    }

    #[inline]
    fn begin(&self, kind: u8, name: EventName) -> SpanId {
        let begun = self.event(|ring, rings, vcpu| {
            ring.push_numbered(self.platform().now_ns(), kind, name.0, |position| {
                rings.number(vcpu, position)
            })
        });
        begun.flatten().map_or(SpanId::NONE, |number| SpanId::of(name.0, number))
    }

    /// Records that a span is the one with this id of a distributed trace, such as one of
    /// OpenTelemetry. Clients give the ids to the span's samples. Call it once, after the span has
    /// begun; a trace id of zeros is ignored.
    pub fn span_trace(&self, span: SpanId, trace_id: [u8; 16], span_id: [u8; 8]) {
        if span == SpanId::NONE || trace_id == [0; 16] {
            return;
        }
        let trace_id = u128::from_be_bytes(trace_id);
        let numbers = [
            (kind::TRACE_HIGH, (trace_id >> 64) as u64),
            (kind::TRACE_LOW, trace_id as u64),
            (kind::TRACE_SPAN, u64::from_be_bytes(span_id)),
        ];
        self.event(|ring, _, _| {
            let now_ns = self.platform().now_ns();
            for (kind, number) in numbers {
                ring.push_pair(now_ns, kind, span.0 >> 8, number);
            }
        });
    }

    /// Says that the code that runs on this vCPU from now on works for `span`, an asynchronous one:
    /// ticks and waits until [`leave`](Self::leave) are its own. Returns the span that was entered
    /// before. Stores one word; nothing is recorded until a tick.
    ///
    /// Call it around each stretch of code that runs for a span: an executor around a poll, an
    /// event loop around a callback. Code that gives up the vCPU to another thread leaves before.
    ///
    /// ```
    /// # use unikprof_agent::{Agent, Platform, SpanId};
    /// fn poll<P: Platform>(agent: &Agent<'_, P>, request: SpanId, work: impl FnOnce()) {
    ///     let before = agent.enter(request);
    ///     work();
    ///     agent.leave(before);
    /// }
    /// ```
    #[inline]
    pub fn enter(&self, span: SpanId) -> SpanId {
        SpanId(self.current().map_or(0, |(_, slot)| slot.cells.enter(span.0)))
    }

    /// Ends what [`enter`](Self::enter) began, which returned `before`.
    #[inline]
    pub fn leave(&self, before: SpanId) {
        self.enter(before);
    }

    /// Records the end of a span that [`span_begin`](Self::span_begin) or
    /// [`async_span_begin`](Self::async_span_begin) returned, under the same name.
    #[inline]
    pub fn span_end(&self, name: EventName, id: SpanId) {
        if id != SpanId::NONE {
            self.event(|ring, _, _| {
                let end = Entry::named(kind::SPAN_END, name.0, id.0 >> 8);
                ring.push(self.platform().now_ns(), end);
            });
        }
    }

    /// Begins a nested span that ends when the returned value is dropped.
    #[inline]
    pub fn span(&self, name: EventName) -> Span<'_, 'm, P> {
        Span { agent: self, name, id: self.span_begin(name) }
    }

    /// Calls `write` with this vCPU's ring. Counts the event as lost if the vCPU has none.
    #[inline]
    fn event<T>(&self, write: impl FnOnce(Ring<'m>, &Rings<'m>, u32) -> T) -> Option<T> {
        let rings = self.rings()?;
        let place = self.platform().vcpu();
        let place = place.and_then(|vcpu| Some((vcpu, rings.ring(vcpu)?)));
        let Some((vcpu, ring)) = place else {
            rings.count_unplaced();
            return None;
        };
        Some(write(ring, rings, vcpu))
    }
}
