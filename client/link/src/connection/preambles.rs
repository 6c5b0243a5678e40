//! The first 16 bytes of the other side.

use std::io::{self, Read as _};
use std::time::Duration;

use unikprof_proto::preamble::{self, Preamble};

use super::patient::{PatientStream, WaitEnded};
use super::{Address, ConnectionError};

/// Reads the agent's preamble: as sent, and what it says.
pub(super) fn read(
    stream: &mut PatientStream,
    address: &Address,
    waited: Duration,
) -> Result<([u8; preamble::LENGTH], Preamble), ConnectionError> {
    let address = || address.clone();
    let mut bytes = [0; preamble::LENGTH];
    let mut length = 0;
    while length < bytes.len() && preamble::is_prefix(&bytes[..length]) {
        match stream.read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) => match WaitEnded::of(&error) {
                Some(WaitEnded::Interrupted) => return Err(ConnectionError::Interrupted),
                // A reset: it had no use for our preamble.
                None if error.kind() != io::ErrorKind::ConnectionReset => {
                    return Err(ConnectionError::Connect { address: address(), source: error });
                }
                Some(WaitEnded::Deadline) if length == 0 => {
                    return Err(ConnectionError::SilentAtOnce { address: address(), waited });
                }
                _ => break,
            },
        }
    }
    if length == 0 {
        return Err(ConnectionError::ClosedAtOnce { address: address() });
    }
    if length < bytes.len() {
        return Err(ConnectionError::NotAnAgent {
            address: address(),
            found: bytes[..length].into(),
        });
    }
    let said = preamble::decode(&bytes).map_err(|source| match source {
        preamble::PreambleError::Magic => {
            ConnectionError::NotAnAgent { address: address(), found: bytes.into() }
        }
        preamble::PreambleError::EmptyRange(_) => {
            ConnectionError::Preamble { address: address(), source }
        }
    })?;
    Ok((bytes, said))
}
