//! One place where everything that happens in a lab is written, and where one waits for it.
//!
//! Reader threads append to streams; a waiter looks at all of them under one lock, so "the line
//! came, or the guest died, or QEMU ended" is one wait with one deadline and nothing is polled.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A source of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stream {
    /// The machine's serial line: Xen's messages and dom0's.
    Serial,
    /// The text that a domain wrote to port 0xE9, which Xen shows as `(d1) …`.
    Early(u16),
    /// The console ring of the guest with this index.
    Console(usize),
    /// The words of `xl` about the life of the guest with this index.
    Fate(usize),
}

/// The texts of all sources at one moment, and the end of the machine.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    texts: BTreeMap<Stream, Text>,
    machine_ended: Option<String>,
}

#[derive(Debug, Default)]
struct Text {
    text: String,
    closed: bool,
}

impl Facts {
    /// Everything the stream has said; empty if it said nothing.
    pub(crate) fn text(&self, stream: Stream) -> &str {
        self.texts.get(&stream).map_or("", |text| text.text.as_str())
    }

    /// The stream was closed: nothing more will come.
    pub(crate) fn closed(&self, stream: Stream) -> bool {
        self.texts.get(&stream).is_some_and(|text| text.closed)
    }

    /// QEMU's exit status, once it has ended.
    pub(crate) fn machine_ended(&self) -> Option<&str> {
        self.machine_ended.as_deref()
    }

    /// The last `lines` lines of a stream.
    pub(crate) fn tail(&self, stream: Stream, lines: usize) -> String {
        tail(self.text(stream), lines)
    }
}

/// The last `lines` lines of `text`.
pub(crate) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// The facts, shared by the reader threads and the waiters.
#[derive(Debug, Default)]
pub(crate) struct Board {
    facts: Mutex<Facts>,
    changed: Condvar,
}

impl Board {
    /// Adds text to a stream; carriage returns are dropped.
    pub(crate) fn append(&self, stream: Stream, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        let mut facts = self.lock();
        facts.texts.entry(stream).or_default().text.extend(text.chars().filter(|&c| c != '\r'));
        drop(facts);
        self.changed.notify_all();
    }

    pub(crate) fn close(&self, stream: Stream) {
        self.lock().texts.entry(stream).or_default().closed = true;
        self.changed.notify_all();
    }

    /// Empties and reopens a stream.
    pub(crate) fn reopen(&self, stream: Stream) {
        self.lock().texts.insert(stream, Text::default());
    }

    pub(crate) fn machine_ended(&self, status: String) {
        self.lock().machine_ended = Some(status);
        self.changed.notify_all();
    }

    pub(crate) fn look<T>(&self, question: impl FnOnce(&Facts) -> T) -> T {
        question(&self.lock())
    }

    /// Asks `question` at each change until it answers, or `None` at the deadline.
    pub(crate) fn wait<T>(
        &self,
        deadline: Instant,
        mut question: impl FnMut(&Facts) -> Option<T>,
    ) -> Option<T> {
        let mut facts = self.lock();
        loop {
            if let Some(answer) = question(&facts) {
                return Some(answer);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            facts =
                self.changed.wait_timeout(facts, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    // A reader that panicked leaves whole lines behind: what is there stays readable.
    fn lock(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn a_waiter_is_woken_by_the_line_it_waits_for() {
        let board = Arc::new(Board::default());
        let writer = Arc::clone(&board);
        let thread = std::thread::spawn(move || {
            writer.append(Stream::Serial, b"first\r\n");
            writer.append(Stream::Serial, b"second\r\n");
        });
        let deadline = Instant::now() + Duration::from_secs(10);
        let found = board.wait(deadline, |facts| {
            facts.text(Stream::Serial).contains("first\nsecond\n").then_some(())
        });
        thread.join().unwrap();
        assert_eq!(found, Some(()));
    }

    #[test]
    fn a_wait_for_what_never_comes_ends_at_its_deadline() {
        let board = Board::default();
        let start = Instant::now();
        let deadline = start + Duration::from_millis(30);
        assert_eq!(board.wait(deadline, |_| None::<()>), None);
        assert!(start.elapsed() >= Duration::from_millis(30));
    }

    #[test]
    fn a_closed_stream_keeps_its_text_and_a_reopened_one_does_not() {
        let board = Board::default();
        board.append(Stream::Fate(0), b"gone");
        board.close(Stream::Fate(0));
        assert!(board.look(|facts| facts.closed(Stream::Fate(0))));
        assert_eq!(board.look(|facts| facts.text(Stream::Fate(0)).to_owned()), "gone");
        board.reopen(Stream::Fate(0));
        assert!(!board.look(|facts| facts.closed(Stream::Fate(0))));
        assert_eq!(board.look(|facts| facts.text(Stream::Fate(0)).to_owned()), "");
    }

    #[test]
    fn a_tail_longer_than_the_text_is_the_text() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a", 9), "a");
        assert_eq!(tail("", 3), "");
    }
}
