//! Ending a recording without keeping anything of it.

use unikprof_proto::message::{Pending, Stop};

use super::session::Session;
use super::{Observer, RecordError};

/// How often an agent may say that older epochs were in the way.
const MOST_ROUNDS: u32 = 64;

/// Stops a recording and discards the counts that no client has fetched; 0 selects the only
/// recording. Other recordings are not affected.
pub fn discard(
    session: &mut Session,
    recording: u64,
    observer: &mut dyn Observer,
) -> Result<(), RecordError> {
    const DOING: &str = "stopping the recording";
    for _ in 0..MOST_ROUNDS {
        let pending: Pending = session.persist(observer, |connection, _| {
            Ok(connection.ask(&Stop { recording }, "a list of pending epochs", DOING)?)
        })?;
        let epochs = u64::from(pending.epochs);
        for epoch in pending.first_epoch..pending.first_epoch.saturating_add(epochs) {
            session.acknowledge(epoch, observer).map_err(|error| match error {
                RecordError::Leased { text, code } => {
                    RecordError::Leased { text: format!("the recording has ended; {text}"), code }
                }
                other => other,
            })?;
        }
        if pending.complete {
            return Ok(());
        }
    }
    Err(RecordError::NothingToFetch)
}

/// [`discard`], which goes on for a moment if the user gives up: a terminal that is closed sends
/// more than one signal.
pub fn discard_at_the_end(session: &mut Session, recording: u64) -> Result<(), RecordError> {
    match discard(session, recording, &mut ()) {
        Err(error) if error.is_interrupt() => {
            session.renew();
            discard(session, recording, &mut ())
        }
        other => other,
    }
}
