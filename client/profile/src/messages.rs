//! The protocol's messages: which of them this client knows, and their names for people.

use unikprof_proto::code::message_type as types;

/// The name and version that the client gives.
pub const CLIENT: &str = concat!("unikprof-client ", env!("CARGO_PKG_VERSION"));

/// Whether this client knows what a message of this type is.
pub fn is_known(kind: u16) -> bool {
    (types::HELLO..=types::TRACE_STOP).contains(&kind)
        || (types::REFUSAL..=types::TRACE_END).contains(&kind)
}

/// A message's name for people.
pub fn message_name(kind: u16) -> String {
    let name = match kind {
        types::REFUSAL => "a rejection",
        types::WELCOME => "a welcome",
        types::MAPPING => "a mapping",
        types::STATUS => "a status",
        types::STARTED => "the start of a recording",
        types::PENDING => "a list of pending epochs",
        types::EPOCH => "the header of an epoch",
        types::VCPU_EPOCH => "a vCPU's share of an epoch",
        types::HISTOGRAM => "a histogram",
        types::NODES => "stack nodes",
        types::COUNTS => "counts of stacks",
        types::VCPU_END => "the end of a vCPU's share of an epoch",
        types::ACKNOWLEDGED => "an acknowledged epoch",
        types::TABLE_READY => "permission to send a caller table",
        types::TABLE_INSTALLED => "an installed caller table",
        types::HANDSHAKE_REPLY => "a handshake reply",
        types::RECORDING_STATUS => "a recording's status",
        types::RING_HEAD => "the header of a ring",
        types::RING_RUN => "records of a ring",
        types::RING_END => "the end of a ring",
        types::STACKS_END => "the end of the stacks",
        types::EVENT_NAME => "an event name",
        types::EVENT_NAMES_END => "the end of the event names",
        types::VCPU_SNAPSHOT => "a vCPU's snapshot",
        types::TRACE_READY => "permission to send a trace",
        types::TRACE_ARMED => "the start of a trace",
        types::TRACE_REFUSED => "a function that is not traced",
        types::TRACE_STATE => "the state of a trace",
        types::TRACE_TOTALS => "totals of traced functions",
        types::TRACE_CALLERS => "callers of traced functions",
        types::TRACE_END => "the end of a trace's counts",
        _ => return format!("a message of type {kind:#06x}"),
    };
    name.into()
}
