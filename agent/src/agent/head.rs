//! Heads: each recording's id and settings, stored in the agent for crash dumps.
//!
//! The recorder writes a head when a recording begins, and removes it when the recording is
//! deleted. A panic handler reads it from the agent, as it has no access to the service. A head
//! whose writing was interrupted by the panic reads as missing.
//!
//! Why: docs/design/decisions.md#recording-heads-are-with-the-agent.

use unikprof_proto::message::{Epoch, MAX_NAME};

use crate::count::sampler::late_threshold_ns;
use crate::ground::sync::{AtomicU64, Ordering, fence};
use crate::ground::text::Name;

/// The words of a head that contain one number each.
const NUMBERS: usize = 9;

/// The words of a head, without the id. The model has no name, because the model checker tries both
/// values of each word.
const WORDS: usize = NUMBERS + if cfg!(loom) { 0 } else { MAX_NAME / size_of::<u64>() };

/// The settings with which a recording was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) name: Name,
    pub(crate) mode: u32,
    pub(crate) flags: u32,
    pub(crate) period_ns: u64,
    pub(crate) interval_bytes: u64,
    pub(crate) depth: u32,
    pub(crate) duration_ns: u64,
    pub(crate) started_ns: u64,
    pub(crate) max_age_ns: u64,
    pub(crate) max_bytes: u64,
    pub(crate) caller_table: Option<u32>,
}

impl Settings {
    /// The head of a recording with these settings for the wire: without counts, and with no time
    /// except its start.
    pub(crate) fn head(&self, recording: u64, index: usize) -> Epoch<'_> {
        Epoch {
            epoch: 0,
            recording,
            ring_bit: index as u32,
            name: self.name.as_str(),
            mode: self.mode,
            flags: self.flags,
            period_ns: self.period_ns,
            interval_bytes: self.interval_bytes,
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
#[derive(Debug, Default)]
pub(crate) struct HeadCells {
    /// The recording's id, which is never used twice; 0 if there is no head, or if it is being
    /// written.
    recording: AtomicU64,
    /// See [`Head::words`].
    words: [AtomicU64; WORDS],
}

/// The data about a recording in a crash dump.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) recording: u64,
    /// The settings, without the fields about the recording's end and its dumps.
    pub(crate) settings: Settings,
    /// The number of times that the guest had been resumed when the recording began.
    pub(crate) gaps_before: u32,
}

/// A bit of the caller table's word: there is a table, whose checksum is in the lower half.
const IS_THERE: u64 = 1 << 32;

impl Head {
    /// All fields except the id: [`NUMBERS`] words, then the bytes of the name.
    fn words(&self) -> [u64; WORDS] {
        let settings = &self.settings;
        let caller_table = settings.caller_table;
        let numbers: [u64; NUMBERS] = [
            settings.mode.into(),
            settings.flags.into(),
            settings.period_ns,
            settings.interval_bytes,
            settings.depth.into(),
            settings.started_ns,
            caller_table.map_or(0, |checksum| u64::from(checksum) | IS_THERE),
            self.gaps_before.into(),
            settings.name.as_str().len() as u64,
        ];
        let mut words = [0; WORDS];
        let (first, name) = words.split_at_mut(NUMBERS);
        first.copy_from_slice(&numbers);
        for (word, chunk) in name.iter_mut().zip(settings.name.as_str().as_bytes().chunks(8)) {
            let mut bytes = [0; 8];
            for (byte, from) in bytes.iter_mut().zip(chunk) {
                *byte = *from;
            }
            *word = u64::from_le_bytes(bytes);
        }
        words
    }

    /// The inverse of [`words`](Self::words); `None` if the name is not valid.
    fn from_words(recording: u64, words: [u64; WORDS]) -> Option<Self> {
        let (numbers, name_words) = words.split_first_chunk::<NUMBERS>()?;
        let &[
            mode,
            flags,
            period_ns,
            interval_bytes,
            depth,
            started_ns,
            caller_table,
            gaps_before,
            name_length,
        ] = numbers;
        let mut name = [0; MAX_NAME];
        for (chunk, word) in name.chunks_exact_mut(8).zip(name_words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        let name = name.get(..name_length as usize)?;
        Some(Self {
            recording,
            settings: Settings {
                name: Name::from(core::str::from_utf8(name).ok()?),
                mode: mode as u32,
                flags: flags as u32,
                period_ns,
                interval_bytes,
                depth: depth as u32,
                started_ns,
                caller_table: (caller_table & IS_THERE != 0).then_some(caller_table as u32),
                ..Settings::default()
            },
            gaps_before: gaps_before as u32,
        })
    }
}

impl HeadCells {
    /// Replaces the head with another recording's.
    pub(crate) fn write(&self, head: &Head) {
        self.clear();
        // Pairs with the fence in `read`: a reader that sees one of these words also sees that the
        // id is cleared.
        fence(Ordering::Release);
        for (cell, word) in self.words.iter().zip(head.words()) {
            cell.store(word, Ordering::Relaxed);
        }
        self.recording.store(head.recording, Ordering::Release);
    }

    /// Removes the head.
    pub(crate) fn clear(&self) {
        self.recording.store(0, Ordering::Relaxed);
    }

    /// The head; `None` if there is none, or if it was being written.
    pub(crate) fn read(&self) -> Option<Head> {
        let recording = self.recording.load(Ordering::Acquire);
        let words = core::array::from_fn(|index| {
            let cell = self.words.get(index);
            cell.map_or(0, |cell| cell.load(Ordering::Relaxed))
        });
        fence(Ordering::Acquire);
        let is_whole = recording != 0 && self.recording.load(Ordering::Relaxed) == recording;
        is_whole.then(|| Head::from_words(recording, words))?
    }
}

/// `RUSTFLAGS="--cfg loom" cargo test --release -p unikprof-agent --lib head_model`
#[cfg(all(test, loom))]
mod head_model {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// A head whose fields depend on the recording's id.
    fn head(recording: u64) -> Head {
        Head {
            recording,
            settings: Settings {
                mode: recording as u32,
                period_ns: recording,
                started_ns: recording,
                ..Settings::default()
            },
            gaps_before: recording as u32,
        }
    }

    /// A vCPU that crashes while the recorder replaces a head on another one finds one of the two
    /// heads, or none.
    #[test]
    fn a_crash_on_another_vcpu_finds_a_whole_head() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(|| {
            let cells = Arc::new(HeadCells::default());
            cells.write(&head(1));
            let crash = {
                let cells = Arc::clone(&cells);
                thread::spawn(move || {
                    if let Some(found) = cells.read() {
                        assert_eq!(found.words(), head(found.recording).words());
                    }
                })
            };
            cells.write(&head(2));
            crash.join().expect("no panic");
        });
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
                name: Name::from(name),
                mode: 2,
                flags: 3,
                period_ns: u64::MAX,
                interval_bytes: u64::MAX - 1,
                depth: 128,
                started_ns: 5,
                caller_table: Some(u32::MAX),
                ..Settings::default()
            },
            gaps_before: 4,
        }
    }

    /// Guards a crash dump against settings of an earlier recording.
    #[test]
    fn a_head_comes_back_as_it_was_written() {
        let cells = HeadCells::default();
        assert!(cells.read().is_none());
        let long: String = "é".repeat(MAX_NAME / 2);
        for (id, name) in [(1, long.as_str()), (2, "x"), (3, "exactly8"), (u64::MAX, "")] {
            let written = head(id, name);
            cells.write(&written);
            let read = cells.read().unwrap();
            assert_eq!((read.recording, read.gaps_before), (id, 4));
            assert_eq!(read.settings, written.settings);
        }
        cells.clear();
        assert!(cells.read().is_none());
    }

    /// Guards against a crash dump that mixes two recordings because the crash interrupted the
    /// writing of a head.
    #[test]
    fn a_half_written_head_is_missing() {
        let cells = HeadCells::default();
        cells.write(&head(1, "one"));
        cells.clear();
        let name_length = &cells.words[NUMBERS - 1];
        name_length.store(u64::MAX, Ordering::Relaxed);
        assert!(cells.read().is_none());
        cells.recording.store(2, Ordering::Relaxed);
        assert!(cells.read().is_none(), "no length of a name");
        name_length.store(1, Ordering::Relaxed);
        cells.words[NUMBERS].store(0xff, Ordering::Relaxed);
        assert!(cells.read().is_none(), "no text");
    }
}
