//! What is left after a crash: a recording file of all that the agent knows, made without allocation.
//!
//! The file is as a client writes one: the file's preamble and header, welcome and mappings, the names of
//! events; of each vCPU its counters as they stand, its ring and the stacks that this names; the end.

use unikprof_proto::code::role;
use unikprof_proto::file::{self, BlockHead, FileEnd, FileHeader};
use unikprof_proto::frame::{self, HEADER, Message};
use unikprof_proto::message::{MAX_PATH, Ring as RingRequest, Snapshot, VcpuEpoch, Welcome};
use unikprof_proto::preamble::VERSIONS;

use crate::agent::Agent;
use crate::platform::Platform;
use crate::ring::{Answer, OVERHEAD, Rings};
use crate::sync::Ordering;

/// A crash may come on a small stack, so frames are small: the most that one takes.
const FRAME: usize = 1024;

const _: () = assert!(FRAME > HEADER + 3 * MAX_PATH + 200, "a welcome fits");

/// Why a block of memory cannot take what is left after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashDumpError {
    /// The block is too small even without a single record: the least it must have now, in bytes.
    TooSmall(usize),
}

impl<P: Platform> Agent<'_, P> {
    /// Hands out all that the agent knows as a recording file, piece by piece: rings, stacks, names and
    /// counters. Nothing is changed, and the agent goes on if its guest does.
    ///
    /// For a panic handler: callable on any vCPU, whatever was interrupted, also a tick or an event while
    /// it was written; what was half written is left out. Beside what `sink` and the platform take it needs
    /// less than 6 KiB of stack.
    pub fn crash_dump(&self, sink: &mut dyn FnMut(&[u8])) {
        self.write_file(u64::MAX, sink);
    }

    /// Leaves the same in `block`, behind a [head](BlockHead) by which it is found: by dom0 in the guest's
    /// memory, or by the guest's next life in memory that survives. Where the block is too small the newest
    /// records are kept, and the file says so. Answers the bytes in use.
    ///
    /// # Errors
    /// [`CrashDumpError`]; the block then holds no head.
    pub fn crash_dump_into(&self, block: &mut [u8]) -> Result<usize, CrashDumpError> {
        let Some((head, room)) = block.split_first_chunk_mut::<{ BlockHead::LENGTH }>() else {
            return Err(CrashDumpError::TooSmall(
                BlockHead::LENGTH + self.file_length(0),
            ));
        };
        // What an earlier crash left is not taken for this one's.
        head.fill(0);
        let mut newest = self.rings().map_or(0, Rings::capacity);
        loop {
            let mut length = 0;
            self.write_file(newest, &mut |bytes| {
                if let Some(place) = room.get_mut(length..length + bytes.len()) {
                    place.copy_from_slice(bytes);
                }
                length += bytes.len();
            });
            if let Some(file) = room.get(..length) {
                *head = BlockHead::of(file).encode();
                return Ok(BlockHead::LENGTH + length);
            }
            if newest == 0 {
                return Err(CrashDumpError::TooSmall(BlockHead::LENGTH + length));
            }
            newest /= 2;
        }
    }

    fn file_length(&self, newest: u64) -> usize {
        let mut length = 0;
        self.write_file(newest, &mut |bytes| length += bytes.len());
        length
    }

    /// The file, with so many of the newest records of each ring.
    fn write_file(&self, newest: u64, sink: &mut dyn FnMut(&[u8])) {
        let mut output = Output {
            sink,
            buffer: [0; FRAME],
            failed: false,
        };
        (output.sink)(&file::preamble(VERSIONS.highest));
        output.put(&FileHeader {
            client: concat!("unikprof-agent ", env!("CARGO_PKG_VERSION"), ", crash dump"),
            created_unix_ns: self.platform().wall_clock_ns().unwrap_or(0),
        });
        let welcome: Welcome<'_> = self.welcome(role::OPEN, false);
        output.put(&welcome);
        for index in 0..self.config().mappings.len() {
            if let Some(mapping) = self.mapping(index) {
                output.put(&mapping);
            }
        }
        let mut evicted = false;
        if let Some(rings) = self.rings() {
            output.answer(Answer::Names(0), self, rings);
            for vcpu in 0..self.config().vcpus {
                self.write_counters(vcpu, &mut output);
                let next = rings.ring(vcpu).map_or(0, |ring| ring.next());
                let position = next.saturating_sub(newest);
                evicted |= rings
                    .ring(vcpu)
                    .is_some_and(|ring| ring.oldest() < position);
                let request = RingRequest {
                    vcpu,
                    position,
                    since_ns: 0,
                };
                output.answer(Answer::Head(request, false), self, rings);
                output.answer(Answer::stacks(self, vcpu, 1), self, rings);
            }
        }
        let reason = match (self.rings(), evicted) {
            (None, _) => "the agent was given no memory for a ring",
            (_, true) => "the block was too small for the older records",
            _ if output.failed => "a frame did not fit; this is a fault of the agent's",
            _ => "",
        };
        output.put(&FileEnd {
            complete: reason.is_empty(),
            reason,
        });
    }

    /// The counters of a vCPU as they stand, for each recording since it began: its current epoch. Clocks
    /// that an upcall may not ask are left out.
    fn write_counters(&self, vcpu: u32, output: &mut Output<'_>) {
        let Some(slot) = self.slot(vcpu) else {
            return;
        };
        let platform = self.platform();
        let here = platform.vcpu() == Some(vcpu);
        for (_, lane) in slot.live().lanes() {
            let epoch = lane.epoch();
            let end = Snapshot {
                at_ns: platform.now_ns(),
                cycles: platform.cycles(),
                running_ns: if here { platform.running_ns(vcpu) } else { 0 },
                blocked_ns: if here { platform.blocked_ns(vcpu) } else { 0 },
                runstate: None,
                counters: lane.counters.read(),
                tick_cycles: lane.tick_cycles.load(Ordering::Relaxed),
            };
            output.put(&VcpuEpoch {
                epoch,
                vcpu,
                start: lane.boundary(epoch),
                end,
                nodes: slot.table.used(),
            });
        }
    }
}

/// Frames on their way to the sink.
struct Output<'s> {
    sink: &'s mut dyn FnMut(&[u8]),
    buffer: [u8; FRAME],
    failed: bool,
}

impl Output<'_> {
    fn put<'f, M: Message<'f>>(&mut self, message: &M) {
        match frame::encode(message, &mut self.buffer) {
            Ok(length) => self.hand_out(length),
            Err(_) => self.failed = true,
        }
    }

    /// An answer with all its frames.
    fn answer<P: Platform>(&mut self, answer: Answer, agent: &Agent<'_, P>, rings: &Rings<'_>) {
        let mut payload = [0; FRAME - OVERHEAD];
        let mut next = Some(answer);
        while let Some(answer) = next {
            match answer.encode(agent, rings, &mut payload, &mut self.buffer) {
                Ok((length, after)) => {
                    self.hand_out(length);
                    next = after;
                }
                Err(_) => {
                    self.failed = true;
                    next = None;
                }
            }
        }
    }

    fn hand_out(&mut self, length: usize) {
        if let Some(frame) = self.buffer.get(..length) {
            (self.sink)(frame);
        }
    }
}

impl core::fmt::Display for CrashDumpError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::TooSmall(least) => write!(
                f,
                "the block is too small for what is left after a crash; it must have at least {least} \
                 bytes"
            ),
        }
    }
}

impl core::error::Error for CrashDumpError {}
