//! Crash dumps: a recording file of everything that the agent has recorded, written without
//! allocation.
//!
//! The file has the same format as a client's: the file's preamble and header, welcome and
//! mappings; each recording as an epoch without vCPUs; for each vCPU, beginning with the current
//! one, its newest records; the names of events; for each vCPU its counters, and its
//! whole ring with the stacks that it refers to; the end. The newest records come first, each part
//! after its stacks. So the beginning of the file, which a console shows
//! [twice](unikprof_proto::console), has the last moments of all vCPUs.

mod rings;

use rings::Extent;

use unikprof_proto::code::role;
use unikprof_proto::file::{self, BlockHead, FileEnd, FileHeader};
use unikprof_proto::frame::{self, HEADER, Message};
use unikprof_proto::message::{Epoch, MAX_PATH, Snapshot, VcpuEpoch, Welcome};
use unikprof_proto::preamble::VERSIONS;

use crate::agent::{Agent, AnyAgent};
use crate::count::recording::RecordingCells;
use crate::ground::platform::Platform;
use crate::ground::sync::Ordering;
use crate::record::ring_answer::{Answer, OVERHEAD};
use crate::ring::{NO_RINGS, Rings};

/// The maximum frame length: frames are small, because a crash may happen on a small stack.
const FRAME: usize = 1024;

/// The length of the last moments at the beginning of the file, in bytes, of all vCPUs. What exceeds
/// it is not in the [lines](unikprof_proto::console::REPEATED) that are repeated.
const LAST_MOMENTS: usize = 2000;

const _: () = assert!(FRAME > HEADER + 3 * MAX_PATH + 200, "a welcome fits");

/// Why a crash dump cannot be written into a block of memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum CrashDumpError {
    /// The block is too short even without any record: the minimum length at present, in bytes.
    TooSmall(usize),
}

impl<P: Platform> Agent<'_, P> {
    /// Passes everything that the agent has recorded to `sink` as a recording file, piece by piece:
    /// rings, stacks, names and counters. Nothing is changed, except that a trace's breakpoints are
    /// removed first, and the agent continues if its guest does.
    ///
    /// Intended for panic handlers: it may be called on any vCPU and in any context, even if it has
    /// interrupted a tick or the writing of an event; an incomplete record is omitted. It takes
    /// less than 6 KiB of stack, in addition to what `sink` and the platform need.
    pub fn crash_dump(&self, sink: &mut dyn FnMut(&[u8])) {
        let agent: &AnyAgent<'_, '_> = self;
        #[cfg(feature = "trace")]
        agent.remove_probes();
        agent.write_file(u64::MAX, sink);
    }

    /// Writes the same file into `block`, after a [head](BlockHead) by which it can be found: by
    /// dom0 in the guest's memory, or after a reboot in memory that survives it. If the block is
    /// too short, the newest records are kept, and the file says so. Returns the number of bytes
    /// used.
    ///
    /// A block whose writing was interrupted has no head. The head of an earlier crash stays until
    /// this is called again; zero it after saving the dump.
    ///
    /// # Errors
    ///
    /// [`CrashDumpError`]; the block then has no head.
    pub fn crash_dump_into(&self, block: &mut [u8]) -> Result<usize, CrashDumpError> {
        let agent: &AnyAgent<'_, '_> = self;
        #[cfg(feature = "trace")]
        agent.remove_probes();
        agent.write_into(block)
    }
}

impl AnyAgent<'_, '_> {
    fn write_into(&self, block: &mut [u8]) -> Result<usize, CrashDumpError> {
        let Some((head, room)) = block.split_first_chunk_mut::<{ BlockHead::LENGTH }>() else {
            return Err(CrashDumpError::TooSmall(BlockHead::LENGTH + self.file_length(0)));
        };
        // Invalidate an earlier dump, so that it is not taken for this one even if this call is
        // interrupted. `black_box` keeps the compiler from removing the store.
        head.fill(0);
        core::hint::black_box(&mut *head);
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

    /// Writes the file with at most `newest` records of each ring.
    fn write_file(&self, newest: u64, sink: &mut dyn FnMut(&[u8])) {
        let mut output = Output { sink, buffer: [0; FRAME], length: 0, failed: false };
        self.write_guest(&mut output);
        self.write_heads(&mut output);
        let mut evicted = false;
        if let Some(rings) = self.rings() {
            let vcpus = 0..self.config().vcpus;
            let here = self.platform().vcpu().filter(|vcpu| vcpus.contains(vcpu));
            let others = vcpus.filter(|vcpu| Some(*vcpu) != here);
            let vcpus = here.into_iter().chain(others);
            let share = LAST_MOMENTS / self.config().vcpus.max(1) as usize;
            for vcpu in vcpus.clone() {
                self.write_ring(rings, vcpu, newest, Extent::Newest(share), &mut output);
            }
            output.answer(Answer::Names(0), self, rings);
            for vcpu in vcpus {
                self.write_counters(vcpu, &mut output);
                evicted |= self.write_ring(rings, vcpu, newest, Extent::All, &mut output);
            }
        }
        let reason = match (self.rings(), evicted) {
            (None, _) => NO_RINGS,
            (_, true) => "the block was too small for the older records",
            _ if output.failed => "a frame did not fit; this is a bug in the agent",
            _ => "",
        };
        output.put(&FileEnd { complete: reason.is_empty(), reason });
    }

    /// Describes the guest, as a file begins. Like the other parts, it is a function of its own, and
    /// not inlined, so that their messages are not all on the stack at a time.
    #[inline(never)]
    fn write_guest(&self, output: &mut Output<'_>) {
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
    }

    /// Describes all recordings that run or wait to be fetched, each since it began.
    #[inline(never)]
    fn write_heads(&self, output: &mut Output<'_>) {
        let platform = self.platform();
        for (index, head) in self.heads() {
            let cells = self.slot(0).and_then(|slot| slot.recording(index));
            let epoch = cells.map_or(0, RecordingCells::epoch);
            output.put(&Epoch {
                epoch,
                ended_ns: platform.now_ns(),
                ended_wall_clock_ns: platform.wall_clock_ns(),
                gaps: self.gaps().wrapping_sub(head.gaps_before),
                ..head.settings.head(head.recording, index)
            });
        }
    }

    /// Writes the current counters of a vCPU, for each recording since it began, as its current
    /// epoch. Clocks that an upcall must not read are omitted.
    #[inline(never)]
    fn write_counters(&self, vcpu: u32, output: &mut Output<'_>) {
        let Some(slot) = self.slot(vcpu) else {
            return;
        };
        let platform = self.platform();
        let here = platform.vcpu() == Some(vcpu);
        for (_, cells) in slot.each(slot.live()) {
            let (epoch, start) = cells.current();
            let (delivery_cycles, deliveries_measured) = slot.cells.delivery.estimate();
            let end = Snapshot {
                allocated_bytes: slot.cells.points.allocated(),
                freed_samples: slot.cells.points.freed(),
                at_ns: platform.now_ns(),
                cycles: platform.cycles(),
                running_ns: if here { platform.running_ns(vcpu) } else { 0 },
                blocked_ns: if here { platform.blocked_ns(vcpu) } else { 0 },
                runstate: None,
                counters: cells.counters.read(),
                tick_cycles: cells.tick_cycles.load(Ordering::Relaxed),
                delivery_cycles,
                deliveries_measured,
            };
            output.put(&VcpuEpoch { epoch, vcpu, start, end });
        }
    }
}

/// Passes frames to the sink.
struct Output<'s> {
    sink: &'s mut dyn FnMut(&[u8]),
    buffer: [u8; FRAME],
    /// The number of bytes in frames so far.
    length: usize,
    failed: bool,
}

impl Output<'_> {
    fn put<'f, M: Message<'f>>(&mut self, message: &M) {
        match frame::encode(message, &mut self.buffer) {
            Ok(length) => self.hand_out(length),
            Err(_) => self.failed = true,
        }
    }

    /// Writes an answer with all its frames.
    #[inline(never)]
    fn answer(&mut self, answer: Answer, agent: &AnyAgent<'_, '_>, rings: &Rings<'_>) {
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
            self.length = self.length.saturating_add(length);
            (self.sink)(frame);
        }
    }
}

impl core::fmt::Display for CrashDumpError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::TooSmall(least) => write!(
                f,
                "the block is too small for a crash dump; it must have at least {least} \
                 bytes"
            ),
        }
    }
}

impl core::error::Error for CrashDumpError {}

#[cfg(all(test, not(loom)))]
#[allow(unsafe_code, clippy::unwrap_used)]
mod tests {
    extern crate std;

    use core::cell::Cell;
    use core::mem::MaybeUninit;
    use std::vec::Vec;

    use unikprof_proto::message::RingRun;
    use unikprof_proto::ring::{decode, kind};

    use super::*;
    use crate::ground::platform::Runstate;
    use crate::ring::{Entry, Step, ring_bytes};
    use crate::{Config, Mapping, minimum_bytes};

    /// A guest whose clock does not advance.
    struct Still;

    // SAFETY: it returns no memory.
    unsafe impl Platform for Still {
        fn now_ns(&self) -> u64 {
            7
        }

        fn wall_clock_ns(&self) -> Option<u64> {
            None
        }

        fn vcpu(&self) -> Option<u32> {
            Some(0)
        }

        fn running_ns(&self, _: u32) -> u64 {
            7
        }

        fn runstate(&self, _: u32) -> Option<Runstate> {
            None
        }

        fn kick(&self, _: u32) {}

        fn stack_bounds(&self, _: u64) -> Option<core::ops::Range<u64>> {
            None
        }

        fn random(&self) -> Option<u64> {
            None
        }
    }

    /// The values of the marks in a file, whose newest records come first.
    fn marks(file: &[u8]) -> Vec<u64> {
        let mut rest = &file[file::PREAMBLE..];
        let mut marks = Vec::new();
        while let Some(found) = frame::split(rest).unwrap() {
            if found.kind == RingRun::TYPE {
                let run: RingRun<'_> = frame::decode(&found).unwrap();
                let mut position = run.first;
                let mark = |record: unikprof_proto::ring::Record| {
                    if record.kind == kind::MARK {
                        marks.push((position, record.second));
                    }
                    position += 1;
                };
                decode(run.base_ns, run.count, run.payload, mark).unwrap();
            }
            rest = &rest[found.length()..];
        }
        marks.sort_unstable();
        // The newest are there twice.
        marks.dedup();
        marks.into_iter().map(|(_, value)| value).collect()
    }

    /// An upcall interrupts the writing of an event, writes events of its own, and the guest
    /// crashes in it: the incomplete event must be missing from the dump, and no other.
    #[test]
    fn a_crash_in_the_middle_of_an_event_leaves_out_that_one_alone() {
        const BEFORE: u64 = 300;
        for step in [Step::Reserved, Step::Looked, Step::Claimed, Step::Numbered] {
            let mut memory = std::vec![MaybeUninit::uninit(); minimum_bytes(1, 1)];
            let mut ring = std::vec![MaybeUninit::uninit(); ring_bytes(1, 100)];
            let config = Config {
                vcpus: 1,
                recordings: 1,
                mappings: &[Mapping {
                    start: 0x1000,
                    end: 0x2000,
                    file_offset: 0,
                    build_id: &[],
                    path: "",
                }],
                guest_name: None,
                guest_id: None,
                platform_name: "still",
                reachable_when_busy: false,
            };
            let agent = Agent::new(Still, config, &mut memory).unwrap();
            let agent = agent.with_ring(&mut ring);
            let name = agent.event_name("x").unwrap();
            (0..BEFORE).for_each(|value| agent.mark(name, value));
            let ring = agent.ring(0).unwrap();
            let (came, mut file) = (Cell::new(false), Vec::new());
            let left = Cell::new(Vec::new());
            ring.push_interrupted(7, Entry::named(kind::MARK, 0, BEFORE), |at| {
                if at == step && !came.replace(true) {
                    agent.mark(name, BEFORE + 1);
                    let mut bytes = Vec::new();
                    agent.crash_dump(&mut |piece| bytes.extend_from_slice(piece));
                    left.set(bytes);
                }
            });
            let marks_left = marks(&left.take());
            let (last, others) = marks_left.split_last().unwrap();
            assert_eq!(*last, BEFORE + 1, "{step:?}");
            assert!(others.iter().copied().eq(others[0]..BEFORE), "{step:?}");
            assert!(others.len() > 90);
            agent.crash_dump(&mut |piece| file.extend_from_slice(piece));
            assert!(marks(&file).contains(&BEFORE), "it was written after the crash dump");
        }
    }
}
