//! A bad line between the network device and the stack: frames are lost, duplicated, reordered and
//! damaged, according to a seeded generator.
//!
//! Frames are lost and damaged in both directions; incoming ones are also duplicated and delayed.
//! Damage is one flipped bit after the TCP header. No checksum detects it: the device has verified
//! that of an incoming frame, and the backend computes that of an outgoing one.
//!
//! Everything is allocated at the start, since a poll may not allocate.

use alloc::boxed::Box;
use core::fmt;

use smoltcp::phy::{Device, DeviceCapabilities, RxToken, TxToken};
use smoltcp::time::Instant;

use crate::command_line::CommandLine;

const FRAME: usize = 1518;
/// The maximum number of frames on their way.
const QUEUE: usize = 16;
/// A delayed frame is overtaken by at most this many others.
const MOST_OVERTAKING: u64 = 7;
/// The length of the headers of Ethernet, IPv4 and TCP, the last with its usual options.
const HEADERS: usize = 14 + 20 + 32;

/// The probability of each fault, in percent of the frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Chances {
    loss: u64,
    duplicate: u64,
    reorder: u64,
    corrupt: u64,
}

/// The line: its faults, and the incoming frames on their way.
pub(crate) struct Line {
    chances: Chances,
    random: Random,
    queue: Box<[Held; QUEUE]>,
    /// The frame that the stack is reading or writing.
    current: Box<Frame>,
}

#[derive(Clone, Copy)]
struct Frame {
    length: usize,
    bytes: [u8; FRAME],
}

/// A frame on its way; empty if its length is 0.
#[derive(Clone, Copy)]
struct Held {
    frame: Frame,
    /// The number of other frames that may still overtake it.
    overtaken_by: u64,
    /// Its number in order of arrival.
    number: u64,
}

impl Line {
    /// The line that `faults=loss:5,duplicate:2,reorder:3,corrupt:1,seed:1` requests, in percent.
    pub(crate) fn from_command_line(command_line: CommandLine) -> Option<Self> {
        let mut chances = Chances::default();
        let mut seed = 1;
        for word in command_line.value("faults")?.split(',') {
            let (name, value) = word.split_once(':')?;
            let value: u64 = value.parse().ok()?;
            match name {
                "loss" => chances.loss = value,
                "duplicate" => chances.duplicate = value,
                "reorder" => chances.reorder = value,
                "corrupt" => chances.corrupt = value,
                "seed" => seed = value,
                _ => return None,
            }
        }
        let empty = Frame { length: 0, bytes: [0; FRAME] };
        let held = Held { frame: empty, overtaken_by: 0, number: 0 };
        Some(Self {
            chances,
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            queue: Box::new([held; QUEUE]),
            current: Box::new(empty),
        })
    }

    /// The device behind this line.
    pub(crate) fn before<'a, D: Device>(&'a mut self, device: &'a mut D) -> Behind<'a, D> {
        Behind { line: self, device }
    }

    /// Applies faults to an incoming frame, and queues the result.
    fn admit(&mut self, bytes: &[u8]) {
        if bytes.len() > FRAME || self.random.happens(self.chances.loss) {
            return;
        }
        let copies = 1 + u32::from(self.random.happens(self.chances.duplicate));
        for _ in 0..copies {
            let number = 1 + self.queue.iter().map(|held| held.number).max().unwrap_or(0);
            let Some(place) = self.queue.iter_mut().find(|held| held.frame.length == 0) else {
                return;
            };
            place.number = number;
            place.overtaken_by = if self.random.happens(self.chances.reorder) {
                1 + self.random.below(MOST_OVERTAKING)
            } else {
                0
            };
            place.frame.length = bytes.len();
            let copy = &mut place.frame.bytes[..bytes.len()];
            copy.copy_from_slice(bytes);
            self.random.damage(copy, self.chances.corrupt);
        }
    }

    fn is_full(&self) -> bool {
        // A duplicated frame is queued twice.
        self.queue.iter().filter(|held| held.frame.length == 0).count() < 2
    }

    /// Makes the first frame that is not delayed the current one; the first frame of all if all
    /// are. Returns whether there is one.
    fn advance(&mut self) -> bool {
        let waiting = || (0..QUEUE).filter(|&place| self.queue[place].frame.length > 0);
        let first = |place: &usize| self.queue[*place].number;
        let ready = waiting().filter(|&place| self.queue[place].overtaken_by == 0);
        let Some(place) = ready.min_by_key(first).or_else(|| waiting().min_by_key(first)) else {
            return false;
        };
        let number = self.queue[place].number;
        for held in self.queue.iter_mut().filter(|held| held.number < number) {
            held.overtaken_by = held.overtaken_by.saturating_sub(1);
        }
        *self.current = self.queue[place].frame;
        self.queue[place].frame.length = 0;
        true
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").field("chances", &self.chances).finish_non_exhaustive()
    }
}

/// A device behind a line.
pub(crate) struct Behind<'d, D> {
    line: &'d mut Line,
    device: &'d mut D,
}

impl<D: Device> Device for Behind<'_, D> {
    type RxToken<'a>
        = Received<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = Sending<'a, D::TxToken<'a>>
    where
        Self: 'a;

    fn receive(&mut self, now: Instant) -> Option<(Received<'_>, Self::TxToken<'_>)> {
        while !self.line.is_full()
            && let Some((frame, _)) = self.device.receive(now)
        {
            frame.consume(|bytes| self.line.admit(bytes));
        }
        // A frame is received only if there is room to answer it.
        let inner = self.device.transmit(now)?;
        if !self.line.advance() {
            return None;
        }
        let Line { chances, random, current, .. } = &mut *self.line;
        let received = Received(&current.bytes[..current.length]);
        let sending = Sending { inner, chances: *chances, random };
        Some((received, sending))
    }

    fn transmit(&mut self, now: Instant) -> Option<Self::TxToken<'_>> {
        Some(Sending {
            inner: self.device.transmit(now)?,
            chances: self.line.chances,
            random: &mut self.line.random,
        })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.device.capabilities()
    }
}

/// A received frame.
pub(crate) struct Received<'a>(&'a [u8]);

impl RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, use_frame: F) -> R {
        use_frame(self.0)
    }
}

/// Room for a frame that may not get through.
pub(crate) struct Sending<'a, T> {
    inner: T,
    chances: Chances,
    random: &'a mut Random,
}

impl<T: TxToken> TxToken for Sending<'_, T> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, write: F) -> R {
        if self.random.happens(self.chances.loss) {
            let mut lost = [0; FRAME];
            return write(&mut lost[..length]);
        }
        self.inner.consume(length, |bytes| {
            let result = write(bytes);
            self.random.damage(bytes, self.chances.corrupt);
            result
        })
    }
}

/// Marsaglia's xorshift generator.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }

    fn happens(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn damage(&mut self, frame: &mut [u8], percent: u64) {
        if frame.len() > HEADERS && self.happens(percent) {
            let place = HEADERS + self.below((frame.len() - HEADERS) as u64) as usize;
            frame[place] ^= 1 << self.below(8);
        }
    }
}
