//! The paravirtual console: what `xl console` shows.
//!
//! ```
//! use core::fmt::Write;
//! use xen_sys_lite::clock::Clock;
//! use xen_sys_lite::events::EventChannels;
//! use xen_sys_lite::fake::{FakeXen, leak_page};
//! use xen_sys_lite::{console::Console, vcpu::VcpuId, PolledChannel};
//!
//! let xen = FakeXen::new();
//! let shared = xen.map_shared_info();
//! let events = EventChannels::new(&xen, shared);
//! let clock = Clock::new(shared, VcpuId(0)).expect("vCPU 0 is in the shared page");
//! // A real guest takes page and port from `hvm::console_ring`.
//! let channel = PolledChannel::new(events, clock, xen.connected_port(0));
//! let mut console = Console::new(leak_page(), channel);
//! writeln!(console, "hello")?;
//! # Ok::<(), core::fmt::Error>(())
//! ```

use core::fmt;

use crate::abi::console as abi;
use crate::byte_ring::{ByteRingLayout, Consumer, IndexJumped, Producer};
use crate::channel::Channel;
use crate::errno::Errno;
use crate::page::{PageIndex, SharedPage};

const OUTPUT: ByteRingLayout = ByteRingLayout {
    data: abi::OUTPUT,
    len: abi::OUTPUT_LEN,
    consumer: PageIndex::at(abi::OUTPUT_CONSUMER),
    producer: PageIndex::at(abi::OUTPUT_PRODUCER),
};

const INPUT: ByteRingLayout = ByteRingLayout {
    data: abi::INPUT,
    len: abi::INPUT_LEN,
    consumer: PageIndex::at(abi::INPUT_CONSUMER),
    producer: PageIndex::at(abi::INPUT_PRODUCER),
};

/// The longest time that a write waits for a full ring to drain before it drops the rest, ns.
const DRAIN_LIMIT_NS: u64 = 100_000_000;

/// The longest time that a write takes, however slowly the ring drains, ns.
const WRITE_LIMIT_NS: u64 = 1_000_000_000;

/// The guest's end of the console.
#[derive(Debug)]
pub struct Console<C> {
    page: SharedPage,
    channel: C,
    output: Producer,
    input: Consumer,
    dropped: u64,
}

/// Why the console failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConsoleError {
    /// The backend's index is further from ours than the ring is long.
    IndexJumped {
        /// The distance it claims, bytes.
        distance: u32,
    },
    /// The notification failed.
    Notify(Errno),
}

impl From<IndexJumped> for ConsoleError {
    fn from(jump: IndexJumped) -> Self {
        Self::IndexJumped { distance: jump.distance }
    }
}

impl fmt::Display for ConsoleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IndexJumped { distance } => {
                write!(f, "the console's index is {distance} bytes from ours")
            }
            Self::Notify(errno) => write!(f, "the console was not notified: {errno}"),
        }
    }
}

impl core::error::Error for ConsoleError {}

impl<C: Channel> Console<C> {
    /// Continues at the current position of the ring in `page`.
    #[must_use]
    pub fn new(page: SharedPage, channel: C) -> Self {
        let output = Producer::attach(&page, OUTPUT);
        let input = Consumer::attach(&page, INPUT);
        Self { page, channel, output, input, dropped: 0 }
    }

    /// Writes as many of `bytes` as fit without waiting, and returns how many.
    ///
    /// # Errors
    /// See [`ConsoleError`].
    pub fn write_some(&mut self, bytes: &[u8]) -> Result<usize, ConsoleError> {
        let count = self.output.write(&self.page, bytes)?;
        if count > 0 {
            self.channel.notify().map_err(ConsoleError::Notify)?;
        }
        Ok(count)
    }

    /// Writes `bytes`. If the reader makes no progress for 100 ms, or the whole write takes more
    /// than a second, the rest is dropped and [counted](Self::dropped), so that the console cannot
    /// block the guest.
    ///
    /// # Errors
    /// See [`ConsoleError`].
    pub fn write_bytes(&mut self, mut bytes: &[u8]) -> Result<(), ConsoleError> {
        let start = self.channel.now_ns();
        let mut last_progress = start;
        while !bytes.is_empty() {
            let count = self.write_some(bytes)?;
            bytes = &bytes[count..];
            let now = self.channel.now_ns();
            if count > 0 {
                last_progress = now;
            }
            let limit = last_progress
                .saturating_add(DRAIN_LIMIT_NS)
                .min(start.saturating_add(WRITE_LIMIT_NS));
            if now >= limit {
                self.dropped += bytes.len() as u64;
                break;
            }
            if count == 0 {
                self.channel.wait_until(limit);
            }
        }
        Ok(())
    }

    /// Waits until everything is read, 100 ms at most: before a shutdown.
    pub fn drain(&self) {
        let limit = self.channel.now_ns().saturating_add(DRAIN_LIMIT_NS);
        while !self.output.is_drained(&self.page) && self.channel.now_ns() < limit {
            self.channel.wait_until(limit);
        }
    }

    /// Reads typed input and returns the number of bytes.
    ///
    /// # Errors
    /// See [`ConsoleError`].
    pub fn read_some(&mut self, into: &mut [u8]) -> Result<usize, ConsoleError> {
        let count = self.input.read(&self.page, into)?;
        if count > 0 {
            self.channel.notify().map_err(ConsoleError::Notify)?;
        }
        Ok(count)
    }

    /// Bytes dropped because the console was not read.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// Lines end with carriage return and line feed, as terminals want.
impl<C: Channel> fmt::Write for Console<C> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for line in text.split_inclusive('\n') {
            let (body, end) = match line.strip_suffix('\n') {
                Some(body) => (body, "\r\n"),
                None => (line, ""),
            };
            self.write_bytes(body.as_bytes()).map_err(|_| fmt::Error)?;
            self.write_bytes(end.as_bytes()).map_err(|_| fmt::Error)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::channel::PolledChannel;
    use crate::clock::Clock;
    use crate::events::{EventChannels, Port};
    use crate::fake::{FakeXen, leak_page};
    use crate::page::Frame;
    use crate::vcpu::VcpuId;
    use core::fmt::Write;
    use std::string::String;
    use std::sync::{Arc, Mutex};
    use std::vec;

    /// The backend's view of the same page.
    fn twin(page: &SharedPage) -> SharedPage {
        // SAFETY: a leaked page; the fake backend is the other side.
        #[allow(unsafe_code)]
        unsafe {
            SharedPage::new(page.base(), Frame(page.frame().0))
        }
    }

    fn console(xen: &FakeXen) -> (Console<PolledChannel<'static, &FakeXen>>, SharedPage, Port) {
        let shared = xen.map_shared_info();
        let port = xen.connected_port(0);
        let channel = PolledChannel::new(
            EventChannels::new(xen, shared),
            Clock::new(shared, VcpuId(0)).unwrap(),
            port,
        );
        let page = leak_page();
        let backend = twin(&page);
        (Console::new(page, channel), backend, port)
    }

    /// Reads all output, as xenconsoled does.
    fn attach_reader(xen: &FakeXen, page: SharedPage, port: Port) -> Arc<Mutex<String>> {
        let shown = Arc::new(Mutex::new(String::new()));
        let shown_here = Arc::clone(&shown);
        let mut reader = Consumer::attach(&page, OUTPUT);
        xen.attach(port, move |xen| {
            let mut buffer = vec![0; 2048];
            let count = reader.read(&page, &mut buffer).unwrap();
            shown_here.lock().unwrap().push_str(core::str::from_utf8(&buffer[..count]).unwrap());
            xen.raise(port);
        });
        shown
    }

    #[test]
    fn lines_arrive_however_often_the_ring_wraps() {
        let xen = FakeXen::new();
        let (mut console, page, port) = console(&xen);
        let shown = attach_reader(&xen, page, port);
        let mut expected = String::new();
        for line in 0..500 {
            writeln!(console, "line {line} of many").unwrap();
            expected.push_str(&std::format!("line {line} of many\r\n"));
        }
        assert_eq!(*shown.lock().unwrap(), expected);
        assert_eq!(console.dropped(), 0);
    }

    /// Guards against a guest that hangs because nobody reads its console.
    #[test]
    fn a_console_nobody_reads_drops_and_counts() {
        let xen = FakeXen::new();
        let (mut console, _page, _port) = console(&xen);
        console.write_bytes(&[b'x'; 3000]).unwrap();
        assert_eq!(console.dropped(), 3000 - 2048);
        assert_eq!(xen.now_ns(), DRAIN_LIMIT_NS);
    }

    /// Guards against a backend that reads one byte now and then, to hold the guest.
    #[test]
    fn a_console_that_drips_is_given_up() {
        let xen = FakeXen::new();
        let (mut console, page, port) = console(&xen);
        let mut reader = Consumer::attach(&page, OUTPUT);
        xen.attach(port, move |xen| {
            reader.read(&page, &mut [0]).unwrap();
            xen.advance(50_000_000);
            xen.raise(port);
        });
        console.write_bytes(&[b'x'; 3000]).unwrap();
        assert!(console.dropped() > 900, "{}", console.dropped());
        assert!(xen.now_ns() <= WRITE_LIMIT_NS + 100_000_000, "{}", xen.now_ns());
    }

    #[test]
    fn what_is_typed_is_read() {
        let xen = FakeXen::new();
        let (mut console, page, _port) = console(&xen);
        let mut keyboard = Producer::attach(&page, INPUT);
        keyboard.write(&page, b"ls\n").unwrap();
        let mut buffer = [0; 8];
        assert_eq!(console.read_some(&mut buffer), Ok(3));
        assert_eq!(&buffer[..3], b"ls\n");
        assert_eq!(console.read_some(&mut buffer), Ok(0));
    }

    /// Guards against indices that lead out of the ring.
    #[test]
    fn indices_that_jump_are_an_error() {
        let xen = FakeXen::new();
        let (mut console, page, _port) = console(&xen);
        page.store_index(OUTPUT.consumer, 77);
        let expected = ConsoleError::IndexJumped { distance: 77_u32.wrapping_neg() };
        assert_eq!(console.write_some(b"x"), Err(expected));
        page.store_index(INPUT.producer, 1025);
        let expected = ConsoleError::IndexJumped { distance: 1025 };
        assert_eq!(console.read_some(&mut [0; 8]), Err(expected));
    }
}
