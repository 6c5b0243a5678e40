//! Adding rows to a caller table that the agent had no room for as a whole, while a recording runs.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use unikprof_proto::code::{frame_code, refusal};
use unikprof_proto::frame::{self, Frame, Message as _};
use unikprof_proto::message::Nodes;
use unikprof_proto::nodes;

use super::session::Session;
use super::{Observer, RecordError};
use crate::connection::ConnectionError;
use unikprof_profile::caller_table::{Interrupted, PartialTable};

/// How often a recording is drained while rows may still be added.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The agent accepts few parts: the wait before each is this many times the previous one, so that
/// seven parts serve a recording of an hour.
const SLOWER: u32 = 4;

/// A part is sent once functions without rows have one of this many samples.
const WORTH: u64 = 100;

/// Follows which code is interrupted, and sends the rows that are missing.
#[derive(Debug)]
pub(super) struct Growth {
    /// `None` where samples are only counted.
    table: Option<PartialTable>,
    /// With the rows that were sent after the last samples were taken.
    grown: Option<PartialTable>,
    /// The code that was interrupted, by vCPU and the number of a stack's leaf-most node.
    leaves: HashMap<(u32, u64), u32>,
    /// Samples since rows were added last.
    interrupted: Interrupted,
    since: u64,
    uncovered: u64,
    /// When rows may be added next, and how long to wait after that.
    next: Instant,
    pause: Duration,
}

impl Growth {
    /// Follows a recording from its start.
    pub(super) fn new(table: Option<PartialTable>) -> Growth {
        Growth {
            table,
            grown: None,
            leaves: HashMap::new(),
            interrupted: Interrupted::new(),
            since: 0,
            uncovered: 0,
            next: Instant::now(),
            pause: LOOK_EVERY,
        }
    }

    /// How long to wait between two drains, where others say that long.
    pub(super) fn between_drains(&self, wait: Duration) -> Duration {
        if self.table.as_ref().is_some_and(PartialTable::has_room) {
            wait.min(LOOK_EVERY)
        } else {
            wait
        }
    }

    /// Takes stack nodes, in a frame that was accepted.
    pub(super) fn nodes(&mut self, frame: &Frame<'_>) {
        if frame.kind != Nodes::TYPE {
            return;
        }
        let Ok(run) = frame::decode::<Nodes<'_>>(frame) else {
            return;
        };
        // It was decoded before, so it is right.
        let _ = nodes::decode(run.first, run.count, run.payload, |number, node| {
            let mut codes = node.frames.iter();
            let addresses = frame_code::FIRST_ADDRESS..frame_code::FIRST_SIZE;
            if let Some(code) = codes.find(|code| addresses.contains(*code)) {
                self.leaves.insert((run.vcpu, number), *code);
            }
        });
    }

    /// Counts samples of a stack.
    pub(super) fn count(&mut self, vcpu: u32, number: u64, count: u64) {
        let code = self.leaves.get(&(vcpu, number)).copied();
        let is_covered = match (&self.table, code) {
            (Some(table), Some(code)) => table.covers(code),
            _ => false,
        };
        self.since += count;
        if !is_covered {
            self.uncovered += count;
        }
        if let Some(code) = code {
            *self.interrupted.entry(code).or_default() += count;
        }
    }

    /// The samples so far by the code that was interrupted.
    pub(super) fn into_interrupted(self) -> Interrupted {
        self.interrupted
    }

    /// Sends rows of functions that have been interrupted since, if they are worth a part. Answers
    /// whether it did: then the samples that were taken without them are to be fetched at once, and
    /// this called again.
    pub(super) fn grow(
        &mut self,
        session: &mut Session,
        observer: &mut dyn Observer,
    ) -> Result<bool, RecordError> {
        if let Some(grown) = self.grown.take() {
            self.table = Some(grown);
            self.interrupted.clear();
            (self.since, self.uncovered) = (0, 0);
            return Ok(false);
        }
        let Some(table) = self.table.as_mut().filter(|table| table.has_room()) else {
            return Ok(false);
        };
        let now = Instant::now();
        if self.uncovered == 0 || self.uncovered * WORTH < self.since || now < self.next {
            return Ok(false);
        }
        let mut grown = table.clone();
        let Some(rows) = grown.further(&self.interrupted) else {
            return Ok(false);
        };
        match session.add_callers(&rows, observer) {
            Ok(()) => self.grown = Some(grown),
            // They are sent again after the next drain.
            Err(error) if error.is_refused(refusal::OTHER_UPLOAD) => return Ok(false),
            // Another client has used the room.
            Err(RecordError::Connection(ConnectionError::Refused { .. })) => {
                table.close();
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        self.next = now + self.pause;
        self.pause *= SLOWER;
        Ok(true)
    }
}
