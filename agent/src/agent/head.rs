//! Heads: who each recording is and what it was asked for, where a crash finds it.
//!
//! The recorder writes a head when its recording begins, and takes it away when the recording is gone. It
//! is read by who has nothing but the agent, also where the writing was interrupted: then there is none.

use unikprof_proto::message::{Epoch, MAX_NAME};

use crate::count::sampler::late_threshold_ns;
use crate::ground::sync::{AtomicU64, Ordering};
use crate::ground::text::Text;

const NAME_WORDS: usize = MAX_NAME / size_of::<u64>();

/// What was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) name: Text,
    pub(crate) mode: u32,
    pub(crate) flags: u32,
    pub(crate) period_ns: u64,
    pub(crate) depth: u32,
    pub(crate) duration_ns: u64,
    pub(crate) started_ns: u64,
    pub(crate) max_age_ns: u64,
    pub(crate) max_bytes: u64,
    pub(crate) caller_table: Option<u32>,
}

impl Settings {
    /// The head of what tells of a recording of these settings: without counts, and without times but for its
    /// beginning.
    pub(crate) fn head(&self, recording: u64, lane: usize) -> Epoch<'_> {
        Epoch {
            epoch: 0,
            recording,
            lane: lane as u32,
            name: self.name.as_str(),
            mode: self.mode,
            flags: self.flags,
            period_ns: self.period_ns,
            depth: self.depth,
            late_threshold_ns: late_threshold_ns(self.period_ns),
            recording_started_ns: self.started_ns,
            started_ns: self.started_ns,
            ended_ns: self.started_ns,
            ended_wall_clock_ns: None,
            gaps: 0,
            server_ns: 0,
            vcpus: 0,
            caller_table: self.caller_table,
        }
    }
}

/// A head's memory. Only the recorder writes it.
#[derive(Debug)]
pub(crate) struct HeadCells {
    /// The recording's id, which no other has; 0 = there is none, or not all of it.
    recording: AtomicU64,
    mode: AtomicU64,
    flags: AtomicU64,
    period_ns: AtomicU64,
    depth: AtomicU64,
    started_ns: AtomicU64,
    /// The checksum, and above it a bit that says whether there is one.
    caller_table: AtomicU64,
    gaps_before: AtomicU64,
    name_length: AtomicU64,
    name: [AtomicU64; NAME_WORDS],
}

/// A recording, as far as a crash needs to tell it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) recording: u64,
    /// Without what concerns its end and its dumps.
    pub(crate) settings: Settings,
    /// How often the guest had been resumed when the recording began.
    pub(crate) gaps_before: u32,
}

const IS_THERE: u64 = 1 << 32;

impl Default for HeadCells {
    fn default() -> Self {
        let cell = || AtomicU64::new(0);
        Self {
            recording: cell(),
            mode: cell(),
            flags: cell(),
            period_ns: cell(),
            depth: cell(),
            started_ns: cell(),
            caller_table: cell(),
            gaps_before: cell(),
            name_length: cell(),
            name: core::array::from_fn(|_| cell()),
        }
    }
}

impl HeadCells {
    /// Writes a recording's head in the place of another.
    pub(crate) fn write(&self, head: &Head) {
        self.clear();
        let Settings {
            name,
            mode,
            flags,
            period_ns,
            depth,
            started_ns,
            caller_table,
            ..
        } = head.settings;
        let caller_table = caller_table.map_or(0, |checksum| u64::from(checksum) | IS_THERE);
        for (cell, value) in [
            (&self.mode, u64::from(mode)),
            (&self.flags, u64::from(flags)),
            (&self.period_ns, period_ns),
            (&self.depth, u64::from(depth)),
            (&self.started_ns, started_ns),
            (&self.caller_table, caller_table),
            (&self.gaps_before, u64::from(head.gaps_before)),
            (&self.name_length, name.as_str().len() as u64),
        ] {
            cell.store(value, Ordering::Relaxed);
        }
        for (cell, chunk) in self.name.iter().zip(name.as_str().as_bytes().chunks(8)) {
            let mut word = [0; 8];
            if let Some(place) = word.get_mut(..chunk.len()) {
                place.copy_from_slice(chunk);
            }
            cell.store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
        self.recording.store(head.recording, Ordering::Release);
    }

    /// Takes the head away.
    pub(crate) fn clear(&self) {
        // Acquire: nothing that is written afterwards is seen with the id before.
        self.recording.swap(0, Ordering::AcqRel);
    }

    /// The head, if there is one and nobody writes it just now.
    pub(crate) fn read(&self) -> Option<Head> {
        let recording = self.recording.load(Ordering::Acquire);
        let get = |cell: &AtomicU64| cell.load(Ordering::Acquire);
        let mut name = [0; MAX_NAME];
        for (chunk, cell) in name.chunks_mut(8).zip(&self.name) {
            chunk.copy_from_slice(get(cell).to_le_bytes().get(..chunk.len())?);
        }
        let name = name.get(..get(&self.name_length) as usize)?;
        let caller_table = get(&self.caller_table);
        let settings = Settings {
            name: Text::from(core::str::from_utf8(name).ok()?),
            mode: get(&self.mode) as u32,
            flags: get(&self.flags) as u32,
            period_ns: get(&self.period_ns),
            depth: get(&self.depth) as u32,
            started_ns: get(&self.started_ns),
            caller_table: (caller_table & IS_THERE != 0).then_some(caller_table as u32),
            ..Settings::default()
        };
        let gaps_before = get(&self.gaps_before) as u32;
        let is_whole = recording != 0 && self.recording.load(Ordering::Relaxed) == recording;
        is_whole.then_some(Head {
            recording,
            settings,
            gaps_before,
        })
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    extern crate std;

    use std::string::String;

    use super::*;

    fn head(recording: u64, name: &str) -> Head {
        Head {
            recording,
            settings: Settings {
                name: Text::from(name),
                mode: 2,
                flags: 3,
                period_ns: u64::MAX,
                depth: 128,
                started_ns: 5,
                caller_table: Some(u32::MAX),
                ..Settings::default()
            },
            gaps_before: 4,
        }
    }

    /// What a crash tells of a recording is what it was asked for, not what the one before it was.
    #[test]
    fn a_head_comes_back_as_it_was_written() {
        let cells = HeadCells::default();
        assert!(cells.read().is_none());
        let long: String = "é".repeat(MAX_NAME / 2);
        for (id, name) in [
            (1, long.as_str()),
            (2, "x"),
            (3, "exactly8"),
            (u64::MAX, ""),
        ] {
            let written = head(id, name);
            cells.write(&written);
            let read = cells.read().unwrap();
            assert_eq!((read.recording, read.gaps_before), (id, 4));
            assert_eq!(read.settings, written.settings);
        }
        cells.clear();
        assert!(cells.read().is_none());
    }

    /// A crash in the middle of the writing must not mix two recordings.
    #[test]
    fn what_is_half_written_is_not_there() {
        let cells = HeadCells::default();
        cells.write(&head(1, "one"));
        cells.clear();
        cells.name_length.store(u64::MAX, Ordering::Relaxed);
        assert!(cells.read().is_none());
        cells.recording.store(2, Ordering::Relaxed);
        assert!(cells.read().is_none(), "no length of a name");
        cells.name_length.store(1, Ordering::Relaxed);
        cells.name[0].store(0xff, Ordering::Relaxed);
        assert!(cells.read().is_none(), "no text");
    }
}
