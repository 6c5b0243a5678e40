//! Connection errors.

use std::io;
use std::time::Duration;

use thiserror::Error;
use unikprof_proto::code::{refusal, role};
use unikprof_proto::frame::FrameError;
use unikprof_proto::preamble::{self, VersionRange};

use super::{Address, RecordError};
use crate::key::KeyId;
use unikprof_profile::agent_info::{MappingError, role_name};
use unikprof_profile::messages::message_name;
use unikprof_profile::printable::{Printable, PrintableBytes};
use unikprof_profile::units::std_duration;

/// Why a connection failed.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "fields are named for what they hold")]
pub enum ConnectionError {
    /// The host's name has no address.
    #[error("cannot resolve the host `{}`: {source}; check the name, or use an IP \
             address", address.host())]
    Resolve { address: Address, source: io::Error },
    /// Nothing accepted the connection.
    #[error(
        "cannot connect to {address}: {source}; check that the guest is running, that its agent \
         listens on this \
         port, and that no firewall blocks it"
    )]
    Connect { address: Address, source: io::Error },
    /// The peer sends something other than an agent's preamble.
    #[error(
        "{address} is not a unikprof agent: expected a preamble that begins with `unikprof`, found \
         {}{}; check \
         the port (the default is 7777)",
        PrintableBytes(found),
        who_speaks(found)
    )]
    NotAnAgent { address: Address, found: Vec<u8> },
    /// The peer accepted the connection and closed it without a preamble.
    #[error(
        "{address} accepted the connection and closed it without sending anything; it is not a \
         unikprof agent, all its sessions are in use, or a port forwarder answers for a guest that \
         does not run"
    )]
    ClosedAtOnce { address: Address },
    /// The peer accepted the connection and sends nothing.
    #[error(
        "{address} accepted the connection, but sent nothing within {}; it is not a unikprof \
         agent, or its guest hangs, as its console may tell, or is too busy (`unikprof-client \
         connect` waits longer with --timeout)",
        std_duration(*waited)
    )]
    SilentAtOnce { address: Address, waited: Duration },
    /// The two sides have no protocol version in common.
    #[error(
        "the agent at {address} supports protocol version {theirs}, this client {}; use {}",
        preamble::VERSIONS,
        which_to_update(theirs)
    )]
    NoCommonVersion { address: Address, theirs: VersionRange },
    /// The agent sends an empty range of versions.
    #[error("the preamble of {address} is malformed: {source}")]
    Preamble { address: Address, source: preamble::PreambleError },
    /// The connection broke.
    #[error("the connection was lost while {doing}: {source}")]
    Lost { doing: &'static str, source: io::Error },
    /// The agent closed the connection.
    #[error("the agent closed the connection while {doing}")]
    Closed { doing: &'static str },
    /// The connection ended within a frame.
    #[error("the connection ended in the middle of a frame ({bytes} bytes received) while {doing}")]
    Cut {
        doing: &'static str,
        /// How much of the frame came.
        bytes: usize,
    },
    /// The agent sends no response.
    #[error(
        "no response from the agent within {} while {doing}; its guest hangs, as its console may \
         tell, or is too busy (`unikprof-client connect` waits longer with --timeout)",
        std_duration(*waited)
    )]
    Silent { doing: &'static str, waited: Duration },
    /// The agent sent a malformed frame.
    #[error("the agent violated the protocol while {doing}: {source}")]
    Frame { doing: &'static str, source: FrameError },
    /// The agent answered with another message.
    #[error("the agent violated the protocol while {doing}: expected {expected}, found \
             {}", message_name(*found))]
    Unexpected { doing: &'static str, expected: &'static str, found: u16 },
    /// The agent named an impossible mapping.
    #[error("the agent violated the protocol: {0}")]
    Mapping(#[from] MappingError),
    /// The agent rejected the request.
    #[error("the agent rejected the request: {}", Printable(text))]
    Refused {
        /// See [`unikprof_proto::code::refusal`].
        code: u32,
        text: String,
    },
    /// The agent requires a key, and none was given.
    #[error(
        "the agent at {address} requires a key: name the key file with --key-file FILE or in \
         UNIKPROF_KEY_FILE \
         (`unikprof-client keygen` makes one; the guest's configuration needs the same key)"
    )]
    KeyNeeded { address: Address },
    /// The agent is open, but a key was given.
    #[error(
        "the agent at {address} requires no key, but key {key} was given: its guest has no keys \
         configured, or \
         another machine answers in its place. No request was sent, and the key was not disclosed. \
         If this agent \
         is meant to require no key, omit --key-file and unset UNIKPROF_KEY_FILE"
    )]
    OpenAgent { address: Address, key: KeyId },
    /// The agent rejected the handshake.
    #[error(
        "the agent at {address} rejected key {key}: check that this guest has that key (the first \
         line of a key \
         file contains the id), that it was not replaced, and that the file is not another \
         guest's; if all that \
         is correct, the traffic is modified on the way"
    )]
    BadKey { address: Address, key: KeyId },
    /// The peer did not prove that it has the key.
    #[error(
        "the peer at {address} does not have key {key}, or its answer was modified on the way; it \
         may not be the \
         intended guest. No request was sent, and the key was not disclosed"
    )]
    FalseAgent { address: Address, key: KeyId },
    /// The agent requires a security mode that this client does not support.
    #[error(
        "the agent at {address} requires security mode {found}, which this client does not support \
         (0 is none, 1 \
         is a key); use a newer client"
    )]
    UnknownSecurity { address: Address, found: u8 },
    /// A sealed record could not be opened.
    #[error(
        "the connection was closed while {doing}: {source}; the traffic was damaged or modified on \
         the way, and \
         none of it was used"
    )]
    Record { doing: &'static str, source: RecordError },
    /// The key's role does not allow the request.
    #[error("permission denied for {doing}: {}", who_may(*key, *role, doing))]
    NotAllowed {
        doing: &'static str,
        key: Option<KeyId>,
        /// Its role, as far as the agent has told it.
        role: Option<u32>,
    },
    /// The handshake could not be computed, usually because the system provides no random numbers.
    #[error("cannot compute the handshake on this machine: {source}")]
    Cryptography { source: snow::Error },
    /// The user interrupted.
    #[error("interrupted")]
    Interrupted,
}

impl ConnectionError {
    /// Makes an error in a frame one of what was done.
    pub(crate) fn in_frame(doing: &'static str) -> impl Fn(FrameError) -> ConnectionError + Copy {
        move |source| ConnectionError::Frame { doing, source }
    }

    /// Whether a new connection may do better: the line broke or fell silent, rather than the
    /// agent said something wrong.
    pub(crate) fn may_be_taken_up_again(&self) -> bool {
        use ConnectionError::*;
        match self {
            Connect { .. } | Lost { .. } | Closed { .. } | Cut { .. } | Silent { .. } => true,
            // What two connections of a small guest may meet while the old one times out.
            ClosedAtOnce { .. } | SilentAtOnce { .. } => true,
            Refused { code, .. } => *code == refusal::BUSY,
            // A new handshake, and nothing of the record was taken.
            Record { .. } => true,
            // TCP's checksum lets a damaged segment through now and then.
            Frame { source, .. } => matches!(source, FrameError::Checksum(_)),
            _ => false,
        }
    }

    /// Whether the agent may have been too crowded to hear this client out: one that is turned
    /// away, or makes room for another before it has shown its key, sees its connection end.
    pub(crate) fn may_be_a_crowd(&self) -> bool {
        use ConnectionError::*;
        match self {
            ClosedAtOnce { .. } | Closed { .. } | Cut { .. } | Lost { .. } => true,
            Connect { source, .. } => source.kind() == io::ErrorKind::ConnectionReset,
            Record { source, .. } => *source == RecordError::Cut,
            Refused { code, .. } => *code == refusal::BUSY,
            _ => false,
        }
    }

    /// Whether nothing listened at the address.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, ConnectionError::Connect { source, .. }
            if source.kind() == io::ErrorKind::ConnectionRefused)
    }

    /// Whether it says no more than that the time was up.
    pub(crate) fn is_for_want_of_time(&self) -> bool {
        use ConnectionError::*;
        match self {
            Silent { .. } | SilentAtOnce { .. } => true,
            Resolve { source, .. } | Connect { source, .. } => {
                source.kind() == io::ErrorKind::TimedOut
            }
            _ => false,
        }
    }
}

/// What a client does that needs the role [`TRACE`](role::TRACE).
pub(crate) const TRACING: &str = "tracing";

fn who_speaks(found: &[u8]) -> &'static str {
    if found.starts_with(b"HTTP/") {
        " (a web server)"
    } else if found.starts_with(b"SSH-") {
        " (an SSH server)"
    } else if found.starts_with(b"\x15\x03") {
        " (a TLS server)"
    } else {
        ""
    }
}

fn which_to_update(theirs: &VersionRange) -> &'static str {
    if theirs.lowest > preamble::VERSIONS.highest {
        "a newer client"
    } else {
        "an older client, or build the guest with a newer agent"
    }
}

fn who_may(key: Option<KeyId>, found: Option<u32>, doing: &str) -> String {
    let whose = match key {
        Some(key) => format!("key {key}"),
        None => "this connection".to_owned(),
    };
    match found {
        Some(found) if doing == TRACING => format!(
            "{whose} has the role `{}`, but this needs the role `trace`: use a key file of that \
             role",
            role_name(found)
        ),
        Some(role::VIEW) => format!(
            "{whose} has the role `view` (info, check, events, copy, top of a running recording, \
             doctor), but this needs the role `control`: use a \
             key file of that role"
        ),
        Some(found) => format!("{whose} has the role `{}`", role_name(found)),
        None => format!("{whose} does not have the role `control`: use a key file of that role"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_agent_is_to_be_made_newer() {
        let error = ConnectionError::NoCommonVersion {
            address: Address::new("guest", 1),
            theirs: VersionRange { lowest: 0, highest: 0 },
        };
        assert!(error.to_string().contains("newer agent"), "{error}");
    }

    #[test]
    fn a_refusal_cannot_move_the_cursor() {
        let error = ConnectionError::Refused { code: 1, text: "\x1b[2Jno".into() };
        assert_eq!(error.to_string(), "the agent rejected the request: \\u{1b}[2Jno");
    }
}
