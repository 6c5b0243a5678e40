//! A recording that goes on, fetched epoch by epoch, each into a file of its own.

use std::ops::Range;
use std::path::Path;

use unikprof_proto::message::Pending;

use super::RecordError;
use super::collect::{Collector, dump, stop};
use super::session::Session;
use unikprof_profile::recording::KnownNodes;

/// The bytes of stacks that are kept from one epoch to the next in any case. Beyond that, and twice
/// of what the agent had at first, most may be of stacks that it has given up: what it has is sent
/// again.
const LEAST_KEPT: usize = 64 << 10;

/// Fetches the epochs of a recording one at a time. Each file has all stacks that its counts need,
/// but only new ones are sent: those of the epochs before are kept here.
#[derive(Debug)]
pub struct EpochReader {
    recording: u64,
    kept: KeptNodes,
}

/// Stack nodes of a guest, and the frames in which they came.
#[derive(Debug)]
pub(super) struct KeptNodes {
    pub(super) nodes: KnownNodes,
    pub(super) frames: Vec<u8>,
    /// The length of all that the agent had at first; 0 before.
    pub(super) first: usize,
}

impl KeptNodes {
    fn of(session: &Session) -> KeptNodes {
        KeptNodes {
            nodes: KnownNodes::new(session.agent().segment_nodes),
            frames: Vec::new(),
            first: 0,
        }
    }
}

impl EpochReader {
    /// A reader of this recording's epochs, from the oldest one that the agent keeps.
    pub fn new(session: &Session, recording: u64) -> EpochReader {
        EpochReader { recording, kept: KeptNodes::of(session) }
    }

    /// The epochs that wait, and whether there is no further one. If none waits, the counts so far
    /// become one. The lease on the recording is this client's from then on.
    ///
    /// # Errors
    /// [`RecordError::Leased`], while another client has it, and all others of a session.
    pub fn pending(&self, session: &mut Session) -> Result<(Range<u64>, bool), RecordError> {
        let recording = self.recording;
        let pending: Pending =
            session.persist(&mut (), |connection, _| Ok(dump(connection, recording)?))?;
        let end = pending.first_epoch.saturating_add(pending.epochs.into());
        Ok((pending.first_epoch..end, pending.complete))
    }

    /// Ends the recording; what it has counted waits.
    pub fn end(&self, session: &mut Session) -> Result<(), RecordError> {
        let recording = self.recording;
        let _: Pending =
            session.persist(&mut (), |connection, _| Ok(stop(connection, recording)?))?;
        Ok(())
    }

    /// Fetches an epoch into a file, which then is safe on disk.
    ///
    /// # Errors
    /// Those of a session and of files. The agent keeps the epoch.
    pub fn fetch(
        &mut self,
        session: &mut Session,
        epoch: u64,
        path: &Path,
    ) -> Result<(), RecordError> {
        let fresh = KeptNodes::of(session);
        let kept = std::mem::replace(&mut self.kept, fresh);
        let Some(mut kept) = Collector::one_epoch(session, epoch, kept, path)? else {
            return Ok(());
        };
        if kept.first == 0 {
            kept.first = kept.frames.len();
        }
        if kept.frames.len() <= LEAST_KEPT.max(kept.first.saturating_mul(2)) {
            self.kept = kept;
        }
        Ok(())
    }

    /// Tells the agent that an epoch is safe.
    pub fn acknowledge(&self, session: &mut Session, epoch: u64) -> Result<(), RecordError> {
        session.acknowledge(epoch, &mut ())
    }
}
