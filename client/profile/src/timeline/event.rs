//! Single events, for display and for programs.

use std::fmt;

use unikprof_proto::ring::{Record, kind};

use super::spans::Pairs;
use crate::printable::Printable;
use crate::units;

/// Something that happened in the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When, on the guest's monotonic clock, in ns.
    pub at_ns: u64,
    /// The vCPU; for events that concern the whole guest, the first vCPU.
    pub vcpu: u32,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// The guest's mark, with its value.
    Mark {
        /// Its name.
        name: String,
        /// The guest's own number.
        value: u64,
    },
    /// A span of the guest's began.
    SpanBegin {
        /// Its name.
        name: String,
        /// Its number.
        number: u64,
        /// Whether it is asynchronous.
        is_async: bool,
    },
    /// A span of the guest's ended.
    SpanEnd {
        /// Its name.
        name: String,
        /// Its number.
        number: u64,
        /// How long it took, in ns, where its beginning is known.
        length_ns: Option<u64>,
    },
    /// A counter of the guest's got a value.
    Counter {
        /// Its name.
        name: String,
        /// The value.
        value: i64,
    },
    /// The vCPU woke from a wait.
    Wake {
        /// How long the wait was, in ns, as far as the records tell.
        length_ns: u64,
    },
    /// A recording began.
    Began {
        /// Its id.
        recording: u64,
    },
    /// A recording ended.
    Ended {
        /// Its id.
        recording: u64,
    },
    /// Others had the vCPU's CPU within the second before.
    Stolen {
        /// For how long, in ns.
        ns: u64,
    },
    /// The guest was suspended, and resumed before this.
    Resumed,
    /// A client's handshake failed.
    BadKey,
}

impl What {
    /// Whether every vCPU's ring tells of it.
    pub(super) fn is_of_the_guest(&self) -> bool {
        matches!(self, What::Began { .. } | What::Ended { .. } | What::Resumed)
    }

    /// A word for its kind.
    pub fn kind(&self) -> &'static str {
        match self {
            What::Mark { .. } => "mark",
            What::SpanBegin { .. } => "span_begin",
            What::SpanEnd { .. } => "span_end",
            What::Counter { .. } => "counter",
            What::Wake { .. } => "wake",
            What::Began { .. } => "recording_began",
            What::Ended { .. } => "recording_ended",
            What::Stolen { .. } => "stolen",
            What::Resumed => "resumed",
            What::BadKey => "bad_key",
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Mark { name, value } => write!(f, "mark     {} {value}", Printable(name)),
            What::SpanBegin { name, number, is_async } => {
                let how = if *is_async { " (asynchronous)" } else { "" };
                write!(f, "begin    {} #{number}{how}", Printable(name))
            }
            What::SpanEnd { name, number, length_ns } => {
                write!(f, "end      {} #{number}", Printable(name))?;
                match length_ns {
                    Some(ns) => write!(f, " after {}", units::duration(*ns)),
                    None => f.write_str(" (began earlier)"),
                }
            }
            What::Counter { name, value } => write!(f, "counter  {} = {value}", Printable(name)),
            What::Wake { length_ns } => write!(f, "wake     after {}", units::duration(*length_ns)),
            What::Began { recording } => write!(f, "began    recording {recording}"),
            What::Ended { recording } => write!(f, "ended    recording {recording}"),
            What::Stolen { ns } => {
                let stolen = units::duration(*ns);
                write!(f, "stolen   another domain had the CPU for {stolen}")
            }
            What::Resumed => f.write_str("resumed  after a suspend"),
            What::BadKey => f.write_str("rejected a client's handshake failed"),
        }
    }
}

impl Event {
    /// The event that a record tells of; `None` for ticks, times, [waits](super::OpenWaits) and
    /// kinds that this client does not know.
    pub(super) fn of<'n>(
        vcpu: u32,
        record: &Record,
        pairs: &Pairs,
        name: impl Fn(u64) -> Option<&'n str>,
    ) -> Option<Event> {
        let Record { kind, at_ns, first, second, .. } = *record;
        let name = || match name(first) {
            Some(name) => name.to_owned(),
            None => format!("[name {first}]"),
        };
        let what = match kind {
            kind::MARK => What::Mark { name: name(), value: second },
            kind::SPAN_BEGIN | kind::ASYNC_SPAN_BEGIN => What::SpanBegin {
                name: name(),
                number: second,
                is_async: kind == kind::ASYNC_SPAN_BEGIN,
            },
            kind::SPAN_END => What::SpanEnd {
                name: name(),
                number: second,
                length_ns: pairs.length_ns(first, second),
            },
            kind::COUNTER => What::Counter { name: name(), value: second as i64 },
            kind::BEGAN => What::Began { recording: first },
            kind::ENDED => What::Ended { recording: first },
            kind::STOLEN => What::Stolen { ns: first },
            kind::RESUMED => What::Resumed,
            kind::BAD_KEY => What::BadKey,
            _ => return None,
        };
        Some(Event { at_ns, vcpu, what })
    }
}
