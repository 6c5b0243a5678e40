//! The console's output of a guest that ends, which must arrive even if its reader is slow.
//!
//! xenconsoled reads a guest's output at most 30 times in 200 ms, and may wait for a processor. The
//! ring holds 2 KiB, so the guest waits for the reader, but not for ever. A [`Console`] drops
//! output much sooner.

use core::fmt;

use crate::channel::Channel;
use crate::console::Console;
use crate::page::SharedPage;

/// The time without reads after which the rest is dropped, ns.
const PATIENCE_NS: u64 = 5_000_000_000;
/// The maximum time for all output, ns.
const LIMIT_NS: u64 = 30_000_000_000;
/// The interval of checks without a notification, ns.
const LOOK_NS: u64 = 50_000_000;

/// The console of a guest that ends: waits up to 5 s for the reader's next read, and up to 30 s for
/// all output.
///
/// Use it with interrupts off. What other vCPUs write meanwhile may be mixed in.
#[derive(Debug)]
pub struct LastWords<C> {
    console: Console<C>,
    channel: C,
    end_ns: u64,
    /// A buffer, so that there is one notification for many lines.
    buffer: [u8; 1024],
    length: usize,
    /// The reader is too slow, or the ring damaged: nothing more is written.
    is_over: bool,
}

impl<C: Channel + Copy> LastWords<C> {
    /// Continues at the current position of the console's ring in `page`, whoever has written
    /// before.
    #[must_use]
    pub fn new(page: SharedPage, channel: C) -> Self {
        Self {
            console: Console::new(page, channel),
            channel,
            end_ns: channel.now_ns().saturating_add(LIMIT_NS),
            buffer: [0; 1024],
            length: 0,
            is_over: false,
        }
    }

    /// Writes the buffer, and waits up to 5 s until all was read.
    pub fn finish(mut self) {
        if self.flush().is_ok() {
            // Each call waits at most a tenth of a second, and not at all once everything was read.
            (0..PATIENCE_NS / 100_000_000).for_each(|_| self.console.drain());
        }
    }

    fn flush(&mut self) -> fmt::Result {
        if self.is_over {
            return Err(fmt::Error);
        }
        let written = self.write_buffer();
        self.is_over = written.is_err();
        self.length = 0;
        written
    }

    fn write_buffer(&mut self) -> fmt::Result {
        let mut bytes = &self.buffer[..self.length];
        let mut progress_ns = self.channel.now_ns();
        while !bytes.is_empty() {
            let count = self.console.write_some(bytes).map_err(|_| fmt::Error)?;
            bytes = &bytes[count..];
            let now_ns = self.channel.now_ns();
            if count > 0 {
                progress_ns = now_ns;
                continue;
            }
            if now_ns >= self.end_ns.min(progress_ns.saturating_add(PATIENCE_NS)) {
                return Err(fmt::Error);
            }
            self.channel.wait_until(now_ns.saturating_add(LOOK_NS));
        }
        Ok(())
    }
}

/// Fails once the reader is too slow, or the ring damaged.
impl<C: Channel + Copy> fmt::Write for LastWords<C> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            if self.length == self.buffer.len() {
                self.flush()?;
            }
            self.buffer[self.length] = byte;
            self.length += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::abi::console::{OUTPUT, OUTPUT_CONSUMER, OUTPUT_LEN, OUTPUT_PRODUCER};
    use crate::byte_ring::{ByteRingLayout, Consumer};
    use crate::errno::Errno;
    use crate::fake::leak_page;
    use crate::page::{Frame, PageIndex};
    use core::cell::{Cell, RefCell};
    use core::fmt::Write as _;
    use std::string::String;

    const LAYOUT: ByteRingLayout = ByteRingLayout {
        data: OUTPUT,
        len: OUTPUT_LEN,
        consumer: PageIndex::at(OUTPUT_CONSUMER),
        producer: PageIndex::at(OUTPUT_PRODUCER),
    };
    const LINES: usize = 1000;

    /// Reads the whole ring at an interval, or never.
    struct Reader {
        page: SharedPage,
        ring: RefCell<Consumer>,
        interval_ns: u64,
        now_ns: Cell<u64>,
        read_at_ns: Cell<u64>,
        shown: RefCell<String>,
    }

    impl Reader {
        fn new(page: &SharedPage, interval_ns: u64) -> Self {
            // SAFETY: a leaked page; this is the other side.
            #[allow(unsafe_code)]
            let page = unsafe { SharedPage::new(page.base(), Frame(page.frame().0)) };
            Self {
                ring: RefCell::new(Consumer::attach(&page, LAYOUT)),
                page,
                interval_ns,
                now_ns: Cell::new(0),
                read_at_ns: Cell::new(interval_ns),
                shown: RefCell::new(String::new()),
            }
        }
    }

    impl Channel for &Reader {
        fn notify(&self) -> Result<(), Errno> {
            Ok(())
        }

        fn now_ns(&self) -> u64 {
            self.now_ns.get()
        }

        fn wait_until(&self, deadline_ns: u64) {
            self.now_ns.set(deadline_ns);
            if deadline_ns >= self.read_at_ns.get() {
                self.read_at_ns.set(deadline_ns.saturating_add(self.interval_ns));
                let mut buffer = [0; OUTPUT_LEN as usize];
                let count = self.ring.borrow_mut().read(&self.page, &mut buffer).unwrap();
                let text = core::str::from_utf8(&buffer[..count]).unwrap();
                self.shown.borrow_mut().push_str(text);
            }
        }
    }

    /// Writes a thousand lines, 9 KiB; returns the time that it took, and what was read.
    fn write_all(interval_ns: u64) -> (u64, String) {
        let page = leak_page();
        let reader = Reader::new(&page, interval_ns);
        let mut words = LastWords::new(page, &reader);
        // As guests do, whatever became of the lines.
        let _ = (0..LINES).try_for_each(|line| writeln!(words, "line {line}"));
        words.finish();
        (reader.now_ns.get(), reader.shown.take())
    }

    /// Guards against a dump of which a slow reader gets the beginning only.
    #[test]
    fn a_reader_that_comes_now_and_then_gets_everything() {
        let (_, shown) = write_all(4_000_000_000);
        assert!(shown.ends_with("line 999\n"), "{shown}");
        assert_eq!(shown.lines().count(), LINES);
    }

    /// Guards against a guest that never ends because nobody reads its console.
    #[test]
    fn a_reader_that_comes_never_or_too_seldom_is_given_up() {
        let (waited_ns, _) = write_all(u64::MAX);
        assert!((PATIENCE_NS..2 * PATIENCE_NS).contains(&waited_ns), "{waited_ns}");
        let (waited_ns, _) = write_all(PATIENCE_NS + LOOK_NS);
        assert!(waited_ns < LIMIT_NS + PATIENCE_NS, "{waited_ns}");
    }
}
