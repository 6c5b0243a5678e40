//! Tracing: the compact encodings of the functions and probes that a client sends, and of the
//! totals that an agent answers with.
//!
//! A *probe* is a breakpoint at an instruction of a traced function. Each of these is a run of
//! items, one after the other, in which numbers are varints and addresses are [frame
//! codes](crate::code::frame_code):
//!
//! - A function: its [flags](function_flag), the number of its parts, and the first code and the
//!   length in bytes of each part. The first part begins with the entry; others are code that the
//!   compiler has moved elsewhere.
//! - A probe: the function's index, its [kind](probe_kind), its code, then as bytes: the length of
//!   its instruction, the offset in it of a 32-bit displacement from the program counter (0: there
//!   is none), and the instruction.
//! - Totals of a function: see [`FunctionTotals`] for their order; then the number of nonzero
//!   buckets of the histogram of its durations, and the index (see
//!   [`bucket`](crate::message::bucket)) and the count of each.
//! - A caller: the function's index, the code of the return address, and the number of calls.

use crate::message::BUCKETS;
use crate::run::{self, InvalidRun};
use crate::varint::{Input, Output};

/// The maximum number of functions of a trace.
pub const MAX_FUNCTIONS: usize = 1000;
/// The maximum number of parts of a function.
pub const MAX_PARTS: usize = 8;
/// The longest instruction of the x86 architecture.
pub const MAX_INSTRUCTION: usize = 15;

/// The maximum length of a function in bytes.
pub const MAX_FUNCTION_BYTES: usize = 5 + 1 + MAX_PARTS * 10;
/// The maximum length of a probe in bytes.
pub const MAX_PROBE_BYTES: usize = 5 + 1 + 5 + 2 + MAX_INSTRUCTION;
/// The maximum length of a function's totals in bytes.
pub const MAX_TOTALS_BYTES: usize = TOTALS * 10 + 2 + BUCKETS * 11;
/// The maximum length of a caller in bytes.
pub const MAX_CALLER_BYTES: usize = 5 + 5 + 10;

/// [`Function::flags`].
pub mod function_flag {
    /// In a trace that keeps slow calls only: calls of this function are measured, and the calls
    /// inside them are kept with them.
    pub const ROOT: u32 = 1;
    /// The function may jump back to its entry, so that another entry at the same stack pointer is
    /// no call. Without this flag it is one: the call before it ended by an exception.
    pub const LOOPS: u32 = 2;
}

/// [`Probe::kind`]: bits.
pub mod probe_kind {
    /// The function's first instruction, or the one after an `endbr64`.
    pub const ENTRY: u8 = 1;
    /// A return, or a jump that may leave the function: the agent decides each time by the target,
    /// which is inside or outside the function's parts.
    pub const EXIT: u8 = 2;
}

/// A function to trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function<'a> {
    /// See [`function_flag`].
    pub flags: u32,
    /// The first code and the length in bytes of each part, 1 to [`MAX_PARTS`].
    pub parts: &'a [(u32, u32)],
}

/// A probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe<'a> {
    /// The index of its function.
    pub function: u32,
    /// See [`probe_kind`].
    pub kind: u8,
    /// The code of its instruction.
    pub code: u32,
    /// The offset in the instruction of a 32-bit displacement from the program counter; 0: there is
    /// none.
    pub displacement: u8,
    /// The instruction, 1 to [`MAX_INSTRUCTION`] bytes.
    pub instruction: &'a [u8],
}

/// Numbers of a [`FunctionTotals`] on the wire.
const TOTALS: usize = 11;

/// Counts of a function since the trace began, on all vCPUs.
///
/// `calls` = those still open + those ended by a return or a jump out + `unwound` + `replaced`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionTotals {
    /// The function's index.
    pub function: u32,
    /// Whether the agent has removed its probes; see [`totals_flag`].
    pub flags: u32,
    /// Calls. A jump back to the entry within a call is not a call.
    pub calls: u64,
    /// Calls that ended without their exit: by an exception or a `longjmp`. They are closed when a
    /// caller's frame is next seen, so their durations are too long.
    pub unwound: u64,
    /// Calls that ended by an unseen jump to another traced function.
    pub replaced: u64,
    /// Returns whose call was not seen, since it began before the trace or was too deep: they are
    /// part of nothing else.
    pub orphans: u64,
    /// The duration of ended calls in ns, from entry to exit; of recursive calls, the outermost
    /// alone.
    pub total_ns: u64,
    /// `total_ns` without that of traced functions called, in ns.
    pub self_ns: u64,
    /// The part of `self_ns` during which the vCPU did not run: it was blocked, or its time
    /// was stolen.
    pub waited_ns: u64,
    /// The shortest duration of an ended call, in ns; 0 if none has ended.
    pub min_ns: u64,
    /// The longest duration of an ended call, in ns.
    pub max_ns: u64,
}

/// [`FunctionTotals::flags`].
pub mod totals_flag {
    /// The agent has removed the function's probes because the trace cost more than its limit.
    pub const REMOVED: u32 = 1;
}

/// The calls of a function from one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The function's index.
    pub function: u32,
    /// The code of the return address; a special [frame code](crate::code::frame_code) if it lies
    /// in no mapping.
    pub code: u32,
    /// The number of calls.
    pub calls: u64,
}

/// Encodes a run of any of these items into a buffer.
#[derive(Debug)]
pub struct Encoder<'a> {
    output: Output<'a>,
}

impl<'a> Encoder<'a> {
    /// Begins a run.
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Self { output: Output::new(buffer) }
    }

    /// Whether an item of at most `bytes` certainly fits.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.output.room() >= bytes
    }

    /// Adds a function of at most [`MAX_FUNCTION_BYTES`].
    pub fn function(&mut self, function: &Function<'_>) {
        self.output.varint(function.flags.into());
        self.output.varint(function.parts.len() as u64);
        for &(code, length) in function.parts {
            self.output.varint(code.into());
            self.output.varint(length.into());
        }
    }

    /// Adds a probe of at most [`MAX_PROBE_BYTES`].
    pub fn probe(&mut self, probe: &Probe<'_>) {
        self.output.varint(probe.function.into());
        self.output.byte(probe.kind);
        self.output.varint(probe.code.into());
        self.output.byte(probe.instruction.len() as u8);
        self.output.byte(probe.displacement);
        for &byte in probe.instruction {
            self.output.byte(byte);
        }
    }

    /// Adds the totals of a function, of at most [`MAX_TOTALS_BYTES`]; `histogram` gives the count
    /// of each bucket.
    pub fn totals(&mut self, totals: &FunctionTotals, histogram: impl Fn(usize) -> u64) {
        let FunctionTotals {
            function,
            flags,
            calls,
            unwound,
            replaced,
            orphans,
            total_ns,
            self_ns,
            waited_ns,
            min_ns,
            max_ns,
        } = *totals;
        let numbers: [u64; TOTALS] = [
            function.into(),
            flags.into(),
            calls,
            unwound,
            replaced,
            orphans,
            total_ns,
            self_ns,
            waited_ns,
            min_ns,
            max_ns,
        ];
        for number in numbers {
            self.output.varint(number);
        }
        // Read once: the counts may rise meanwhile.
        let counts: [u64; BUCKETS] = core::array::from_fn(histogram);
        let nonzero = || counts.iter().enumerate().filter(|(_, count)| **count != 0);
        self.output.varint(nonzero().count() as u64);
        for (bucket, &count) in nonzero() {
            self.output.byte(bucket as u8);
            self.output.varint(count);
        }
    }

    /// Adds a caller of at most [`MAX_CALLER_BYTES`].
    pub fn caller(&mut self, caller: &Caller) {
        self.output.varint(caller.function.into());
        self.output.varint(caller.code.into());
        self.output.varint(caller.calls);
    }

    /// Ends the run; returns its length in bytes.
    pub fn finish(self) -> usize {
        self.output.length()
    }
}

/// Decodes `count` functions and passes each one to `visit`.
///
/// # Errors
/// [`InvalidRun`] at the first invalid function: without parts, with too many, or with an empty or
/// endless one.
pub fn decode_functions(
    count: u32,
    payload: &[u8],
    mut visit: impl FnMut(Function<'_>),
) -> Result<(), InvalidRun> {
    decode(
        "traced function",
        count,
        payload,
        |input| {
            let flags = small(input)?;
            let count = small(input)? as usize;
            let mut parts = [(0, 0); MAX_PARTS];
            let mut is_valid = (1..=MAX_PARTS).contains(&count);
            for index in 0..count {
                let (code, length) = (small(input)?, small(input)?);
                is_valid &= length > 0 && code.checked_add(length).is_some();
                if let Some(place) = parts.get_mut(index) {
                    *place = (code, length);
                }
            }
            Some(is_valid.then_some((flags, parts, count)))
        },
        |(flags, parts, count)| {
            visit(Function { flags, parts: &parts[..count] });
        },
    )
}

/// Decodes `count` probes and passes each one to `visit`.
///
/// # Errors
/// [`InvalidRun`] at the first invalid probe: the displacement or the instruction's length are
/// impossible.
pub fn decode_probes<'a>(
    count: u32,
    payload: &'a [u8],
    visit: impl FnMut(Probe<'a>),
) -> Result<(), InvalidRun> {
    decode(
        "probe",
        count,
        payload,
        |input| {
            let function = small(input)?;
            let kind = input.byte()?;
            let code = small(input)?;
            let length = usize::from(input.byte()?);
            let displacement = input.byte()?;
            let (instruction, rest) = input.bytes.split_at_checked(length)?;
            input.bytes = rest;
            let valid = (1..=MAX_INSTRUCTION).contains(&length)
                && (displacement == 0 || usize::from(displacement) + 4 <= length);
            Some(valid.then_some(Probe { function, kind, code, displacement, instruction }))
        },
        visit,
    )
}

/// Decodes the totals of `count` functions and passes each one, with its histogram, to `visit`.
///
/// # Errors
/// [`InvalidRun`] at the first invalid totals: with a bucket that does not exist.
pub fn decode_totals(
    count: u32,
    payload: &[u8],
    mut visit: impl FnMut(FunctionTotals, &[u64; BUCKETS]),
) -> Result<(), InvalidRun> {
    decode(
        "traced function's totals",
        count,
        payload,
        |input| {
            let totals = FunctionTotals {
                function: small(input)?,
                flags: small(input)?,
                calls: input.varint()?,
                unwound: input.varint()?,
                replaced: input.varint()?,
                orphans: input.varint()?,
                total_ns: input.varint()?,
                self_ns: input.varint()?,
                waited_ns: input.varint()?,
                min_ns: input.varint()?,
                max_ns: input.varint()?,
            };
            let mut histogram = [0_u64; BUCKETS];
            let mut is_valid = true;
            for _ in 0..input.varint()? {
                let bucket = usize::from(input.byte()?);
                let count = input.varint()?;
                match histogram.get_mut(bucket) {
                    Some(place) => *place = count,
                    None => is_valid = false,
                }
            }
            Some(is_valid.then_some((totals, histogram)))
        },
        |(totals, histogram)| visit(totals, &histogram),
    )
}

/// Decodes `count` callers and passes each one to `visit`.
///
/// # Errors
/// [`InvalidRun`] at the first one that ends early.
pub fn decode_callers(
    count: u32,
    payload: &[u8],
    visit: impl FnMut(Caller),
) -> Result<(), InvalidRun> {
    decode(
        "caller",
        count,
        payload,
        |input| {
            Some(Some(Caller {
                function: small(input)?,
                code: small(input)?,
                calls: input.varint()?,
            }))
        },
        visit,
    )
}

/// Decodes `count` items: `take` returns `None` if the bytes end within one, and `Some(None)` if it
/// is invalid.
fn decode<'a, T>(
    item: &'static str,
    count: u32,
    payload: &'a [u8],
    mut take: impl FnMut(&mut Input<'a>) -> Option<Option<T>>,
    mut visit: impl FnMut(T),
) -> Result<(), InvalidRun> {
    let mut input = Input { bytes: payload };
    for index in 0..u64::from(count) {
        let found = take(&mut input).ok_or(InvalidRun::Cut(item, index))?;
        visit(found.ok_or(InvalidRun::Impossible(item, index))?);
    }
    run::end(item, input.bytes)
}

/// A varint of 32 bits.
fn small(input: &mut Input<'_>) -> Option<u32> {
    u32::try_from(input.varint()?).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    fn encoded(length: usize, encode: impl FnOnce(&mut Encoder<'_>)) -> Vec<u8> {
        let mut buffer = std::vec![0; length];
        let mut encoder = Encoder::new(&mut buffer);
        assert!(encoder.has_room(length));
        encode(&mut encoder);
        let length = encoder.finish();
        buffer.truncate(length);
        buffer
    }

    #[test]
    fn the_longest_items_come_back_and_fit() {
        let parts = [(u32::MAX - 9, 9); MAX_PARTS];
        let function = Function { flags: u32::MAX, parts: &parts };
        let bytes = encoded(MAX_FUNCTION_BYTES, |encoder| encoder.function(&function));
        let mut found = 0;
        decode_functions(1, &bytes, |back| {
            assert_eq!(back, function);
            found += 1;
        })
        .unwrap();
        assert_eq!(found, 1);

        let probe = Probe {
            function: u32::MAX,
            kind: probe_kind::ENTRY | probe_kind::EXIT,
            code: u32::MAX,
            displacement: 11,
            instruction: &[0x90; MAX_INSTRUCTION],
        };
        let bytes = encoded(MAX_PROBE_BYTES, |encoder| encoder.probe(&probe));
        let mut back = Vec::new();
        decode_probes(1, &bytes, |one| back.push(one)).unwrap();
        assert_eq!(back, [probe]);

        let totals = FunctionTotals {
            function: u32::MAX,
            flags: totals_flag::REMOVED,
            calls: u64::MAX,
            unwound: 1,
            replaced: 2,
            orphans: 3,
            total_ns: 4,
            self_ns: 5,
            waited_ns: 6,
            min_ns: 7,
            max_ns: 8,
        };
        let bytes = encoded(MAX_TOTALS_BYTES, |encoder| {
            encoder.totals(&totals, |bucket| u64::MAX - bucket as u64);
        });
        let mut found = 0;
        decode_totals(1, &bytes, |back, histogram| {
            assert_eq!(back, totals);
            for (bucket, count) in histogram.iter().enumerate() {
                assert_eq!(*count, u64::MAX - bucket as u64);
            }
            found += 1;
        })
        .unwrap();
        assert_eq!(found, 1);

        let caller = Caller { function: u32::MAX, code: u32::MAX, calls: u64::MAX };
        let bytes = encoded(MAX_CALLER_BYTES, |encoder| encoder.caller(&caller));
        let mut back = Vec::new();
        decode_callers(1, &bytes, |one| back.push(one)).unwrap();
        assert_eq!(back, [caller]);
    }

    #[test]
    fn every_cut_and_what_is_left_over_are_errors() {
        let bytes = encoded(MAX_TOTALS_BYTES, |encoder| {
            encoder.totals(&FunctionTotals::default(), |bucket| u64::from(bucket == 5));
        });
        for cut in 0..bytes.len() {
            let found = decode_totals(1, &bytes[..cut], |_, _| ());
            assert!(matches!(found, Err(InvalidRun::Cut(..))), "{cut}: {found:?}");
        }
        let longer = [&bytes[..], &[0]].concat();
        let found = decode_totals(1, &longer, |_, _| ());
        assert!(matches!(found, Err(InvalidRun::LeftOver(_, 1))));
    }

    #[test]
    fn hostile_items_are_errors() {
        let invalid =
            |found: Result<(), InvalidRun>| matches!(found, Err(InvalidRun::Impossible(_, 0)));
        let functions = |bytes: &[u8]| decode_functions(1, bytes, |_| ());
        assert!(invalid(functions(&[0, 0])), "no part");
        assert!(invalid(functions(&[0, 1, 16, 0])), "an empty part");
        let endless = [0, 1, 0xff, 0xff, 0xff, 0xff, 0xf, 2];
        assert!(invalid(functions(&endless)), "a part beyond 32 bits");
        let many = [&[0, 9][..], &[16, 1].repeat(9)].concat();
        assert!(invalid(functions(&many)), "nine parts");

        let probes = |bytes: &[u8]| decode_probes(1, bytes, |_| ());
        assert!(invalid(probes(&[0, 1, 16, 0, 0])), "no instruction");
        let long = [&[0, 1, 16, 16, 0][..], &[0x90; 16]].concat();
        assert!(invalid(probes(&long)), "16 bytes");
        assert!(
            invalid(probes(&[0, 1, 16, 4, 1, 0x90, 0, 0, 0])),
            "a displacement that ends outside"
        );

        let bucket = [&[0; TOTALS][..], &[1, 128, 1]].concat();
        assert!(invalid(decode_totals(1, &bucket, |_, _| ())), "bucket 128");
    }
}
