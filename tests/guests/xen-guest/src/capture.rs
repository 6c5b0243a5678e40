//! Captures raw samples instead of the profiler: the registers and the stack from the stack pointer
//! up, to unwind them by other means and compare.
//!
//! A sample is a sequence of words, 8 bytes each, little-endian: pc, sp, fp, lr (0 on x86-64); the
//! address of the first stack word and their number; then those words. The samples captured by
//! [`take`] are kept until a client of `captures=PORT` receives them.

#![allow(unsafe_code, reason = "an interrupted stack is read")]

use alloc::boxed::Box;
use alloc::vec;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer};

use crate::command_line::CommandLine;
use crate::interrupts::Registers;
use crate::vcpus::{self, FIRST};
use crate::{println, random};

/// The maximum number of stack words in a sample.
const MOST_WORDS: usize = 512;
/// The words of a sample before the stack words; the last one is their number.
const HEAD: usize = 6;
/// The words in the ring: room for eight thousand samples.
const RING_WORDS: usize = 4 * 1024 * 1024;
/// Room for several samples of the maximum size.
const SEND_BUFFER: usize = 32 * 1024;

/// In the emulator a tick takes a tenth of this time.
const MEAN_PERIOD_NS: u64 = 1_000_000;

/// The mean time between two samples in ns; 0 = off.
static PERIOD_NS: AtomicU64 = AtomicU64::new(0);
static RANDOM: AtomicU64 = AtomicU64::new(1);
static RING: AtomicPtr<Ring> = AtomicPtr::new(core::ptr::null_mut());

/// Written by the first vCPU's upcall, read by its main loop or a rescue; both ends are counted in
/// words since the start.
struct Ring {
    words: Box<[AtomicU64]>,
    written: AtomicUsize,
    read: AtomicUsize,
    /// The number of samples, and whether there was no room for the last one.
    samples: AtomicUsize,
    is_full: AtomicBool,
}

/// Runs `load` until there are `samples` samples of it on the first vCPU, or no room for more;
/// earlier samples are discarded. Nothing may be recorded meanwhile.
pub(crate) fn take(samples: usize, mut load: impl FnMut()) {
    let ring = ring().unwrap_or_else(|| {
        let ring = Box::leak(Box::new(Ring::new()));
        RING.store(ring, Ordering::Release);
        ring
    });
    ring.clear();
    RANDOM.store(random::random().unwrap_or(1) | 1, Ordering::Relaxed);
    PERIOD_NS.store(MEAN_PERIOD_NS, Ordering::Relaxed);
    vcpus::kick(FIRST);
    while ring.samples.load(Ordering::Relaxed) < samples && !ring.is_full.load(Ordering::Relaxed) {
        load();
    }
    PERIOD_NS.store(0, Ordering::Relaxed);
}

pub(crate) fn is_on() -> bool {
    PERIOD_NS.load(Ordering::Relaxed) > 0
}

/// Stores a sample of the code interrupted at `registers`; returns the next deadline. Called in the
/// first vCPU's upcall.
pub(crate) fn on_tick(registers: &Registers, now_ns: u64) -> u64 {
    if let Some(ring) = ring()
        && let Some(stack) = vcpus::stack_bounds(registers.sp)
        && registers.sp.is_multiple_of(8)
    {
        let depth = ((stack.end - registers.sp) / 8) as usize;
        // SAFETY: the words are in a stack that is always mapped, and whose owner is interrupted.
        let word =
            |index: usize| unsafe { (registers.sp as *const u64).add(index).read_volatile() };
        ring.push(registers, depth.min(MOST_WORDS), word);
    }
    next_ns(now_ns)
}

/// A deadline half to one and a half periods from now, so that no load is synchronous with it.
pub(crate) fn next_ns(now_ns: u64) -> u64 {
    let period = PERIOD_NS.load(Ordering::Relaxed);
    let mut random = RANDOM.load(Ordering::Relaxed);
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    RANDOM.store(random, Ordering::Relaxed);
    now_ns.saturating_add(period / 2 + random % period.max(1))
}

fn ring() -> Option<&'static Ring> {
    // SAFETY: the pointer is null or comes from a box that is never freed.
    unsafe { RING.load(Ordering::Acquire).as_ref() }
}

impl Ring {
    fn new() -> Self {
        Self {
            words: (0..RING_WORDS).map(|_| AtomicU64::new(0)).collect(),
            written: AtomicUsize::new(0),
            read: AtomicUsize::new(0),
            samples: AtomicUsize::new(0),
            is_full: AtomicBool::new(false),
        }
    }

    fn word(&self, place: usize) -> &AtomicU64 {
        &self.words[place % RING_WORDS]
    }

    fn push(&self, registers: &Registers, depth: usize, word: impl Fn(usize) -> u64) {
        let written = self.written.load(Ordering::Relaxed);
        let used = written - self.read.load(Ordering::Acquire);
        if used + HEAD + depth > RING_WORDS {
            self.is_full.store(true, Ordering::Relaxed);
            return;
        }
        let Registers { pc, sp, fp, lr, .. } = *registers;
        let head: [u64; HEAD] = [pc, sp, fp, lr, sp, depth as u64];
        let words = head.into_iter().chain((0..depth).map(word));
        for (index, word) in words.enumerate() {
            self.word(written + index).store(word, Ordering::Relaxed);
        }
        self.written.store(written + HEAD + depth, Ordering::Release);
        self.samples.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of words of the oldest sample.
    fn next_length(&self) -> Option<usize> {
        let read = self.read.load(Ordering::Relaxed);
        (self.written.load(Ordering::Acquire) > read)
            .then(|| HEAD + self.word(read + HEAD - 1).load(Ordering::Relaxed) as usize)
    }

    fn pop(&self, length: usize, mut take: impl FnMut([u8; 8])) {
        let read = self.read.load(Ordering::Relaxed);
        for place in read..read + length {
            take(self.word(place).load(Ordering::Relaxed).to_le_bytes());
        }
        self.read.store(read + length, Ordering::Release);
    }

    /// Discards all samples. None may be captured meanwhile.
    fn clear(&self) {
        self.samples.store(0, Ordering::Relaxed);
        self.is_full.store(false, Ordering::Relaxed);
        self.read.store(self.written.load(Ordering::Acquire), Ordering::Release);
    }
}

/// Sends the samples to one client at a time.
#[derive(Debug)]
pub(crate) struct CaptureService {
    port: u16,
    socket: SocketHandle,
}

impl CaptureService {
    /// The service that `captures=PORT` requests.
    pub(crate) fn from_command_line(
        command_line: CommandLine,
        sockets: &mut SocketSet<'static>,
    ) -> Option<Self> {
        let port = command_line.parsed("captures")?;
        let buffer = |size| SocketBuffer::new(vec![0; size]);
        println!("xen-guest: captures on port {port}");
        Some(Self { port, socket: sockets.add(Socket::new(buffer(64), buffer(SEND_BUFFER))) })
    }

    /// Sends as many whole samples as there is room for; closes the connection when none are left.
    pub(crate) fn poll(&mut self, sockets: &mut SocketSet<'static>) {
        let socket = sockets.get_mut::<Socket<'_>>(self.socket);
        if !socket.is_open() {
            // Fails only for port 0, which the command line does not give.
            let _ = socket.listen(self.port);
        }
        if !socket.may_send() {
            return;
        }
        let next = || Some((ring()?, ring()?.next_length()?));
        while let Some((ring, length)) = next() {
            if socket.send_capacity() - socket.send_queue() < length * 8 {
                return;
            }
            ring.pop(length, |word| {
                // The room was checked above.
                let _ = socket.send_slice(&word);
            });
        }
        socket.close();
    }
}
