//! The console of a crashing guest: with interrupts off, and regardless of the console's lock.
//!
//! The reader may be slow: xenconsoled reads a guest's output at most 30 times in 200 ms, and may wait for a
//! processor. The ring holds 2 KiB, so the guest waits for the reader, but not for ever.

#![allow(unsafe_code, reason = "the ring's page is taken over")]

use core::fmt;

use xen_sys_lite::clock::Clock;
use xen_sys_lite::console::Console;
use xen_sys_lite::{Channel as _, PolledChannel, SharedPage, hvm};

use crate::hypercalls::CountedCalls;
use crate::hypervisor::{events, shared_info, xen};
use crate::vcpus;

type Channel = PolledChannel<'static, CountedCalls>;

/// The time without reads after which the rest is dropped, in ns.
const PATIENCE_NS: u64 = 5_000_000_000;
/// The maximum time for all output, in ns.
const LIMIT_NS: u64 = 30_000_000_000;
/// The interval of checks without a notification, in ns.
const LOOK_NS: u64 = 50_000_000;

/// The console's ring, continued at its current position.
pub(crate) struct LastWords {
    console: Console<Channel>,
    channel: Channel,
    end_ns: u64,
    /// A buffer, so that there is one notification for many lines.
    buffer: [u8; 1024],
    length: usize,
}

impl LastWords {
    /// Takes over the console on this vCPU; concurrent output of other vCPUs may be mixed in. `None` if there is no
    /// console.
    pub(crate) fn open() -> Option<Self> {
        let ring = hvm::console_ring(&xen()).ok()?;
        // SAFETY: the Xen tools placed the page for this purpose, memory is mapped one to one, and the earlier
        // console is no longer used on this vCPU.
        let page = unsafe { SharedPage::identity_frame(ring.frame) }?;
        let clock = Clock::new(shared_info(), vcpus::current().0)?;
        let channel = PolledChannel::new(events(), clock, ring.port);
        Some(Self {
            console: Console::new(page, channel),
            channel,
            end_ns: channel.now_ns().saturating_add(LIMIT_NS),
            buffer: [0; 1024],
            length: 0,
        })
    }

    /// Writes the buffer, and waits until it was read.
    pub(crate) fn finish(mut self) {
        if self.flush().is_ok() {
            // Each call waits at most a tenth of a second, and not at all once everything was read.
            (0..PATIENCE_NS / 100_000_000).for_each(|_| self.console.drain());
        }
    }

    fn flush(&mut self) -> fmt::Result {
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
        self.length = 0;
        Ok(())
    }
}

impl fmt::Write for LastWords {
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
