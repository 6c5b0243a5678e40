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

/// A name of events, known to the agent that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventName(u8);

impl EventName {
    /// The name's number, for guests that must keep it as one. See [`Agent::numbered_event_name`].
    pub fn number(self) -> u8 {
        self.0
    }
}

/// A span that has begun. It may end in another context and on another vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId(u64);

impl SpanId {
    /// Of a span whose beginning could not be written; its end is not either.
    const NONE: Self = Self(0);

    /// The span's number, for guests that must keep it as one; unique in the agent's life.
    pub fn number(self) -> u64 {
        self.0
    }

    /// The span of a [number](Self::number).
    pub fn from_number(number: u64) -> Self {
        Self(number)
    }
}

/// A span that ends when it is dropped. See [`Agent::span`].
#[derive(Debug)]
#[must_use = "the span ends when it is dropped"]
pub struct Span<'a, 'm, P: Platform> {
    agent: &'a Agent<'m, P>,
    name: EventName,
    id: SpanId,
}

impl<P: Platform> Drop for Span<'_, '_, P> {
    #[inline]
    fn drop(&mut self) {
        self.agent.span_end(self.name, self.id);
    }
}

/// Events: like every method of the agent from any context, at any moment, also from an upcall that
/// interrupts another event while it is written. An event goes to the ring of the vCPU that it
/// happens on; one that happens where [`Platform::vcpu`] is not known is counted as lost.
impl<'m, P: Platform> Agent<'m, P> {
    /// The name of events with this text, 1 to [48](unikprof_proto::ring::MAX_EVENT_NAME) bytes without
    /// control characters. The same text has the same name; there can be
    /// [256](unikprof_proto::ring::MAX_EVENT_NAMES), and none is ever forgotten.
    ///
    /// # Errors
    /// [`EventNameError`].
    pub fn event_name(&self, text: &str) -> Result<EventName, EventNameError> {
        let rings = self.rings().ok_or(EventNameError::NoRing)?;
        rings.names().intern(text).map(EventName)
    }

    /// The name that has this [number](EventName::number).
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

    /// Something happened; `value` is the guest's own.
    #[inline]
    pub fn mark(&self, name: EventName, value: u64) {
        self.event(|ring, _, _| {
            ring.push(
                self.platform().now_ns(),
                Entry::named(kind::MARK, name.0, value),
            );
        });
    }

    /// A counter has a value, from now on.
    #[inline]
    pub fn counter(&self, name: EventName, value: i64) {
        self.event(|ring, _, _| {
            ring.push(
                self.platform().now_ns(),
                Entry::named(kind::COUNTER, name.0, value as u64),
            );
        });
    }

    /// Something begins that takes time. Spans may overlap.
    #[inline]
    pub fn span_begin(&self, name: EventName) -> SpanId {
        let begun = self.event(|ring, rings, vcpu| {
            ring.push_numbered(
                self.platform().now_ns(),
                kind::SPAN_BEGIN,
                name.0,
                |position| rings.number(vcpu, position),
            )
        });
        begun.flatten().map_or(SpanId::NONE, SpanId)
    }

    /// What [`span_begin`](Self::span_begin) told of ends, under the same name.
    #[inline]
    pub fn span_end(&self, name: EventName, id: SpanId) {
        if id != SpanId::NONE {
            self.event(|ring, _, _| {
                ring.push(
                    self.platform().now_ns(),
                    Entry::named(kind::SPAN_END, name.0, id.0),
                );
            });
        }
    }

    /// A span that ends when the answer is dropped.
    #[inline]
    pub fn span(&self, name: EventName) -> Span<'_, 'm, P> {
        Span {
            agent: self,
            name,
            id: self.span_begin(name),
        }
    }

    /// Hands the ring of this vCPU to `write`, where there is one.
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
