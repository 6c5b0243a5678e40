//! What can go wrong between a client and an agent.

use std::io;
use std::time::Duration;

use thiserror::Error;
use unikprof_proto::code::{message_type as types, refusal, role};
use unikprof_proto::frame::FrameError;
use unikprof_proto::preamble::{self, VersionRange};

use super::{Address, RecordError};
use crate::agent_info::{MappingError, role_name};
use crate::exit_code;
use crate::key::KeyId;
use crate::printable::{Printable, PrintableBytes};
use crate::units::std_duration;

/// Why a conversation did not begin, or ended.
#[derive(Debug, Error)]
pub enum ConnectionError {
    /// The host's name has no address.
    #[error("cannot find the host `{}`: {source}; check the name, or give an IP address", address.host())]
    Resolve {
        /// What was asked for.
        address: Address,
        /// The resolver's answer.
        source: io::Error,
    },
    /// Nothing accepted the connection.
    #[error(
        "cannot connect to {address}: {source}; is the guest running, its agent listening on this \
         port, and the way to it open?"
    )]
    Connect {
        /// What was asked for.
        address: Address,
        /// The system's answer.
        source: io::Error,
    },
    /// The other side speaks, but not as an agent.
    #[error(
        "{address} is no unikprof agent: expected `unikprof` and its versions, found {}{}; check \
         the port (agents listen on 7777 if nobody says otherwise)",
        PrintableBytes(found),
        who_speaks(found)
    )]
    NotAnAgent {
        /// What was connected to.
        address: Address,
        /// The first bytes it sent.
        found: Vec<u8>,
    },
    /// The other side accepted the connection and closed it without a preamble.
    #[error(
        "{address} accepted the connection and closed it without a word; it is no unikprof agent, \
         or all its sessions are taken"
    )]
    ClosedAtOnce {
        /// What was connected to.
        address: Address,
    },
    /// The other side accepted the connection and sends nothing.
    #[error(
        "{address} accepted the connection, but sent nothing in {}; it is no unikprof agent, or \
         its guest is too busy to serve it (`--timeout` waits longer)",
        std_duration(*waited)
    )]
    SilentAtOnce {
        /// What was connected to.
        address: Address,
        /// How long.
        waited: Duration,
    },
    /// The two sides have no protocol version in common.
    #[error(
        "the agent at {address} speaks protocol version {theirs}, this client {}; use {}",
        preamble::VERSIONS,
        which_to_update(theirs)
    )]
    NoCommonVersion {
        /// What was connected to.
        address: Address,
        /// The agent's versions.
        theirs: VersionRange,
    },
    /// The agent sends an empty range of versions.
    #[error("the preamble of {address} is malformed: {source}")]
    Preamble {
        /// What was connected to.
        address: Address,
        /// What is wrong.
        source: preamble::PreambleError,
    },
    /// The connection broke.
    #[error("the connection was lost while {doing}: {source}")]
    Lost {
        /// What the client was at.
        doing: &'static str,
        /// The system's word.
        source: io::Error,
    },
    /// The agent closed the connection.
    #[error("the agent closed the connection while {doing}")]
    Closed {
        /// What the client was at.
        doing: &'static str,
    },
    /// The connection ended within a frame.
    #[error("the connection ended within a frame, {bytes} bytes into it, while {doing}")]
    Cut {
        /// What the client was at.
        doing: &'static str,
        /// How much of the frame came.
        bytes: usize,
    },
    /// The agent does not answer.
    #[error(
        "the agent sent nothing whole in {} while {doing}; its guest may be too busy to serve it \
         (`--timeout` waits longer)",
        std_duration(*waited)
    )]
    Silent {
        /// What the client was at.
        doing: &'static str,
        /// How long.
        waited: Duration,
    },
    /// The agent sent what is no frame, or a frame that is not its message.
    #[error("the agent broke the protocol while {doing}: {source}")]
    Frame {
        /// What the client was at.
        doing: &'static str,
        /// What is wrong.
        source: FrameError,
    },
    /// The agent answered something else.
    #[error("the agent broke the protocol while {doing}: expected {expected}, found {}", message_name(*found))]
    Unexpected {
        /// What the client was at.
        doing: &'static str,
        /// The message wanted.
        expected: &'static str,
        /// The type of the message found.
        found: u16,
    },
    /// The agent named an impossible mapping.
    #[error("the agent broke the protocol: {0}")]
    Mapping(#[from] MappingError),
    /// The agent said no.
    #[error("the agent refused: {}", Printable(text))]
    Refused {
        /// See [`unikprof_proto::code::refusal`].
        code: u32,
        /// The agent's reason.
        text: String,
    },
    /// The agent asks for a key, and there is none.
    #[error(
        "the agent at {address} asks for a key: name the file that holds it with --key-file FILE or in \
         UNIKPROF_KEY_FILE (`unikprof-client keygen` makes one; the guest must hold it too)"
    )]
    KeyNeeded {
        /// What was connected to.
        address: Address,
    },
    /// The agent is open, and there is a key.
    #[error(
        "the agent at {address} says that it is open, and key {key} was given for it: its guest has no \
         keys, or somebody between here and there has taken its place. Nothing was asked of it, and the \
         key is safe. If this agent is open on purpose, leave out --key-file and UNIKPROF_KEY_FILE"
    )]
    OpenAgent {
        /// What was connected to.
        address: Address,
        /// Which key.
        key: KeyId,
    },
    /// The agent refused the handshake.
    #[error(
        "the agent at {address} does not accept key {key}: check that this guest holds it (the first \
         line of a key file tells the id), that it was not replaced by a newer one, and that the file \
         is not the one of another guest; if all that is right, something on the way alters what is sent"
    )]
    BadKey {
        /// What was connected to.
        address: Address,
        /// Which key.
        key: KeyId,
    },
    /// The agent has not shown that it holds the key.
    #[error(
        "what answers at {address} does not hold key {key}, or its answer was altered on the way: it may \
         not be the guest that it seems to be. Nothing was asked of it, and the key is safe"
    )]
    FalseAgent {
        /// What was connected to.
        address: Address,
        /// Which key.
        key: KeyId,
    },
    /// The agent asks for a protection that this client does not know.
    #[error(
        "the agent at {address} asks for a protection of kind {found}, which this client does not know \
         (0 is none, 1 a key); use a newer client"
    )]
    UnknownSecurity {
        /// What was connected to.
        address: Address,
        /// What it asks for.
        found: u8,
    },
    /// A sealed record could not be opened.
    #[error(
        "the connection was cut while {doing}: {source}; what was sent is damaged or altered on the way, \
         and nothing of it was taken"
    )]
    Record {
        /// What the client was at.
        doing: &'static str,
        /// What is wrong.
        source: RecordError,
    },
    /// The key's role does not allow the request.
    #[error("the agent does not allow {doing}: {}", who_may(*key, *role))]
    NotAllowed {
        /// What the client was at.
        doing: &'static str,
        /// Which key.
        key: Option<KeyId>,
        /// Its role, as far as the agent has told it.
        role: Option<u32>,
    },
    /// The handshake could not be computed: the system has no random numbers, as a rule.
    #[error("the handshake cannot be made on this machine: {source}")]
    Cryptography {
        /// What is wrong.
        source: snow::Error,
    },
    /// The user gave up.
    #[error("interrupted")]
    Interrupted,
}

impl ConnectionError {
    /// Whether a new connection may do better: the line broke or fell silent, rather than the
    /// agent said something wrong.
    pub fn may_be_taken_up_again(&self) -> bool {
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

    /// Whether the agent may have been too crowded to hear this client out: one that is turned away, or
    /// makes room for another before it has shown its key, sees its connection end.
    pub fn may_be_a_crowd(&self) -> bool {
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
            Connect { source, .. } => source.kind() == io::ErrorKind::TimedOut,
            _ => false,
        }
    }

    /// The program's exit code for it.
    pub fn exit_code(&self) -> u8 {
        use ConnectionError::*;
        match self {
            Resolve { .. } | Connect { .. } | Lost { .. } | Closed { .. } | Silent { .. } => {
                exit_code::CONNECTION
            }
            NotAnAgent { .. }
            | ClosedAtOnce { .. }
            | SilentAtOnce { .. }
            | NoCommonVersion { .. }
            | Preamble { .. }
            | Cut { .. }
            | Frame { .. }
            | Unexpected { .. }
            | UnknownSecurity { .. }
            | Record { .. }
            | Mapping(_) => exit_code::PROTOCOL,
            Refused { code, .. } => match *code {
                refusal::NO_RECORDING | refusal::WHICH_RECORDING => exit_code::NO_SUCH_RECORDING,
                _ => exit_code::REFUSED,
            },
            KeyNeeded { .. }
            | OpenAgent { .. }
            | BadKey { .. }
            | FalseAgent { .. }
            | NotAllowed { .. } => exit_code::KEY,
            Cryptography { .. } => exit_code::OTHER,
            Interrupted => exit_code::INTERRUPTED,
        }
    }
}

/// A message's name for people.
pub(crate) fn message_name(kind: u16) -> String {
    let name = match kind {
        types::REFUSAL => "a refusal",
        types::WELCOME => "a welcome",
        types::MAPPING => "a mapping",
        types::STATUS => "a status",
        types::STARTED => "the start of a recording",
        types::PENDING => "a list of pending epochs",
        types::EPOCH => "the head of an epoch",
        types::VCPU_EPOCH => "a vCPU's share of an epoch",
        types::HISTOGRAM => "a histogram",
        types::NODES => "stack nodes",
        types::COUNTS => "counts of stacks",
        types::VCPU_END => "the end of a vCPU's share of an epoch",
        types::ACKNOWLEDGED => "an epoch acknowledged",
        types::TABLE_READY => "leave to send a caller table",
        types::TABLE_INSTALLED => "a caller table installed",
        types::HANDSHAKE_REPLY => "the answer to a handshake",
        types::RECORDING_STATUS => "a recording's status",
        types::RING_HEAD => "the head of a ring",
        types::RING_RUN => "records of a ring",
        types::RING_END => "the end of a ring",
        types::STACKS_END => "the end of the stacks",
        types::EVENT_NAME => "the name of an event",
        types::EVENT_NAMES_END => "the end of the names of events",
        _ => return format!("a message of type {kind:#06x}"),
    };
    name.into()
}

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

fn who_may(key: Option<KeyId>, found: Option<u32>) -> String {
    let whose = match key {
        Some(key) => format!("key {key}"),
        None => "this connection".to_owned(),
    };
    match found {
        Some(role::VIEW) => format!(
            "{whose} has the role `view` (info, check, copy, events), and this takes the role `control`: use \
             the key file of that role"
        ),
        Some(found) => format!("{whose} has the role `{}`", role_name(found)),
        None => format!("{whose} has not the role `control`: use the key file of that role"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_version_ranges_and_the_way_out_are_in_the_message() {
        let error = |lowest, highest| {
            ConnectionError::NoCommonVersion {
                address: Address::new("guest", 1),
                theirs: VersionRange { lowest, highest },
            }
            .to_string()
        };
        assert_eq!(
            error(7, 9),
            "the agent at guest:1 speaks protocol version 7 to 9, this client 1; use a newer client"
        );
        assert!(error(0, 0).contains("newer agent"));
    }

    #[test]
    fn a_refusal_cannot_move_the_cursor() {
        let error = ConnectionError::Refused {
            code: 1,
            text: "\x1b[2Jno".into(),
        };
        assert_eq!(error.to_string(), "the agent refused: \\u{1b}[2Jno");
    }
}
