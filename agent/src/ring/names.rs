//! The names of the guest's events, each stored once, in the order of arrival.
//!
//! Any context of any vCPU may add names, and an upcall may interrupt the adding. A writer stores a
//! name's words into an entry one by one, each with a compare-and-swap of 0. If the cell already
//! contains the same word, the writer continues with the next word; if it contains another, with
//! the next entry. So an entry belongs to the text whose words it contains, concurrent writers of
//! the same text end in the same entry, and no writer waits.

use core::fmt;

use unikprof_proto::ring::MAX_EVENT_NAME;

use super::NO_RINGS;
use crate::ground::sync::{AtomicU64, Ordering};

const WORDS: usize = MAX_EVENT_NAME / size_of::<u64>();

/// Why an event name was rejected. Rejections are counted and sent with the ring.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum EventNameError {
    /// The agent was given no memory for a ring, or was built without the feature `ring`.
    NoRing,
    /// The name is empty.
    Empty,
    /// The name is too long: its length in bytes.
    TooLong(usize),
    /// The name contains a control character.
    NotPrintable,
    /// There are already [`MAX_EVENT_NAMES`](unikprof_proto::ring::MAX_EVENT_NAMES) names.
    TooMany,
    /// No name has this number.
    Unknown(u8),
}

/// A name's memory.
#[derive(Debug)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
pub(crate) struct NameCells {
    /// The name's length in bytes; 0 = free.
    length: AtomicU64,
    /// The name's bytes. A word in use is never 0: its first byte belongs to the text, which has no
    /// control characters.
    words: [AtomicU64; WORDS],
}

impl Default for NameCells {
    fn default() -> Self {
        Self { length: AtomicU64::new(0), words: core::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

/// All names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names<'m> {
    pub(super) cells: &'m [NameCells],
    pub(super) refused: &'m AtomicU64,
}

impl<'m> Names<'m> {
    #[cfg(all(test, loom))]
    pub(crate) fn new(cells: &'m [NameCells], refused: &'m AtomicU64) -> Self {
        Self { cells, refused }
    }

    /// The id of a name, which is added if it is new.
    pub(crate) fn intern(&self, name: &str) -> Result<u8, EventNameError> {
        self.check(name).and_then(|()| self.add(name)).inspect_err(|_| {
            self.refused.fetch_add(1, Ordering::Relaxed);
        })
    }

    /// Copies the name of an id into `buffer`; `None` if the id has no name, or its name is not
    /// complete yet.
    pub(crate) fn get<'b>(&self, id: u8, buffer: &'b mut [u8; MAX_EVENT_NAME]) -> Option<&'b str> {
        let cells = self.cells.get(usize::from(id))?;
        let length = cells.length.load(Ordering::Relaxed) as usize;
        let bytes = buffer.get_mut(..length).filter(|_| length > 0)?;
        for (chunk, word) in bytes.chunks_mut(size_of::<u64>()).zip(&cells.words) {
            let word = word.load(Ordering::Relaxed);
            if word == 0 {
                return None;
            }
            chunk.copy_from_slice(word.to_le_bytes().get(..chunk.len())?);
        }
        core::str::from_utf8(bytes).ok()
    }

    /// Whether this id has a name, complete or not.
    #[inline]
    pub(crate) fn is_in_use(&self, id: u8) -> bool {
        let cells = self.cells.get(usize::from(id));
        cells.is_some_and(|cells| cells.length.load(Ordering::Relaxed) != 0)
    }

    /// The number of ids in use.
    pub(crate) fn count(&self) -> u32 {
        let in_use = |cells: &&NameCells| cells.length.load(Ordering::Relaxed) != 0;
        self.cells.iter().take_while(in_use).count() as u32
    }

    /// The number of rejected names.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn check(&self, name: &str) -> Result<(), EventNameError> {
        if name.is_empty() {
            Err(EventNameError::Empty)
        } else if name.len() > MAX_EVENT_NAME {
            Err(EventNameError::TooLong(name.len()))
        } else if name.chars().any(char::is_control) {
            Err(EventNameError::NotPrintable)
        } else {
            Ok(())
        }
    }

    fn add(&self, name: &str) -> Result<u8, EventNameError> {
        let id = self.cells.iter().position(|cells| cells.take(name));
        id.and_then(|id| u8::try_from(id).ok()).ok_or(EventNameError::TooMany)
    }
}

impl NameCells {
    /// Whether this entry contains `name`, or was free and now does.
    fn take(&self, name: &str) -> bool {
        put(&self.length, name.len() as u64)
            && name.as_bytes().chunks(size_of::<u64>()).zip(&self.words).all(|(chunk, cell)| {
                // No `memcpy`: names are added in upcalls, and a kernel's `memcpy` may use vector
                // registers.
                let bytes = chunk.iter().rev();
                let word = bytes.fold(0, |word, byte| word << 8 | u64::from(*byte));
                put(cell, word)
            })
    }
}

/// Stores `value` into the cell if that is 0. Returns whether the cell now holds `value`.
fn put(cell: &AtomicU64, value: u64) -> bool {
    match cell.compare_exchange(0, value, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => true,
        Err(found) => found == value,
    }
}

impl fmt::Display for EventNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRing => f.write_str(NO_RINGS),
            Self::Empty => f.write_str("an event's name has at least one byte"),
            Self::TooLong(length) => write!(
                f,
                "an event's name has at most {MAX_EVENT_NAME} bytes; this one has {length}"
            ),
            Self::NotPrintable => f.write_str("an event's name holds no control characters"),
            Self::TooMany => f.write_str("there are as many names of events as there can be: 256"),
            Self::Unknown(number) => write!(
                f,
                "no name of events has the number {number}; take one that was answered for a text"
            ),
        }
    }
}

impl core::error::Error for EventNameError {}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    extern crate std;

    use std::format;
    use std::string::String;
    use std::vec::Vec;

    use unikprof_proto::ring::MAX_EVENT_NAMES;

    use super::*;

    fn with_names(test: impl Fn(Names<'_>)) {
        let cells: Vec<_> = (0..MAX_EVENT_NAMES).map(|_| NameCells::default()).collect();
        test(Names { cells: &cells, refused: &AtomicU64::new(0) });
    }

    fn name(names: &Names<'_>, id: u8) -> Option<String> {
        names.get(id, &mut [0; MAX_EVENT_NAME]).map(String::from)
    }

    #[test]
    fn a_name_is_kept_once_and_comes_back() {
        with_names(|names| {
            let long = "x".repeat(MAX_EVENT_NAME);
            // Texts that share words, and one that ends at the end of a word.
            let texts = ["r", "request", "requests", "requests x", "größe", &long];
            for _ in 0..2 {
                for (id, text) in texts.iter().enumerate() {
                    assert_eq!(names.intern(text), Ok(id as u8));
                    assert_eq!(name(&names, id as u8).as_deref(), Some(*text));
                }
            }
            assert_eq!(names.count(), texts.len() as u32);
            assert!(names.is_in_use(5) && !names.is_in_use(6));
            assert_eq!(name(&names, 200), None);
            assert_eq!(names.refused(), 0);
        });
    }

    #[test]
    fn names_that_cannot_be_kept_are_refused_and_counted() {
        with_names(|names| {
            assert_eq!(names.intern(""), Err(EventNameError::Empty));
            let long = "x".repeat(MAX_EVENT_NAME + 1);
            assert_eq!(names.intern(&long), Err(EventNameError::TooLong(49)));
            assert_eq!(names.intern("a\0b"), Err(EventNameError::NotPrintable));
            for id in 0..MAX_EVENT_NAMES {
                assert_eq!(names.intern(&format!("event {id}")), Ok(id as u8));
            }
            assert_eq!(names.intern("one more"), Err(EventNameError::TooMany));
            assert_eq!(names.intern("event 255"), Ok(255), "it is there already");
            assert_eq!(names.refused(), 4);
        });
    }

    /// Guards an entry whose writer was interrupted halfway, while another context adds a name with
    /// the same beginning.
    #[test]
    fn a_half_written_entry_belongs_to_the_writer_that_completes_it() {
        with_names(|names| {
            names.cells[0].length.store(16, Ordering::Relaxed);
            let word = u64::from_le_bytes(*b"requests");
            names.cells[0].words[0].store(word, Ordering::Relaxed);
            assert_eq!(name(&names, 0), None, "half a name is none");
            assert_eq!(names.intern("requestsfinished"), Ok(0));
            assert_eq!(names.intern("requestsrejected"), Ok(1));
            assert_eq!(name(&names, 0).as_deref(), Some("requestsfinished"));
        });
    }
}
