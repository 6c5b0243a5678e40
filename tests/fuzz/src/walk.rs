//! The walk: whatever is on the stack, it reads inside the bounds, goes upward, ends, and says how.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ops::Range;

use unikprof_agent::path::{Path, PathCells};
use unikprof_agent::stack::{FRAME_RECORD, ReadStack, StackMemory};
use unikprof_agent::walk::{End, Guide, MAX_UNKNOWN, Walked, walk, walk_aarch64};
use unikprof_agent::{CallerTable, CodeMap, MAX_DEPTH, Mapping, Registers, caller_table_bytes};
use unikprof_proto::caller_table::{Row, Rule};
use unikprof_proto::code::frame_code;

use crate::guarded::{Guarded, SIZE};
use crate::input::Input;

/// A processor, as far as walks depend on it.
struct Processor {
    walk: fn(&Registers, Option<&Watched>, &Guide<'_, ()>, usize, &mut Path<'_>) -> Walked,
    /// The address that a return address leads to.
    target: fn(u64) -> u64,
}

const PROCESSORS: [Processor; 2] = [
    Processor {
        walk: |registers, stack, guide, depth, path| walk(registers, stack, guide, depth, path),
        target: |address| address,
    },
    Processor {
        walk: |registers, stack, guide, depth, path| {
            walk_aarch64(registers, stack, guide, depth, path)
        },
        // Bit 55 is the sign; above 48 bits is a signature.
        target: |address| {
            let sign = (address << 8) as i64 >> 63;
            address & 0xffff_ffff_ffff | sign as u64 & !0xffff_ffff_ffff
        },
    },
];

/// Walks a stack made of the bytes, on either processor.
pub fn check(bytes: &[u8]) {
    for processor in &PROCESSORS {
        check_on(processor, bytes);
    }
}

fn check_on(processor: &Processor, bytes: &[u8]) {
    let input = &mut Input::new(bytes);
    let mut page = Guarded::new();
    let addresses = page.addresses();
    let starts = [0x40_0000, 0x7f00_0000_0000, u64::MAX - 0x2000];
    let lengths = starts.map(|_| 1 + input.number() % 0x2000);
    let mappings: Vec<_> = starts
        .iter()
        .zip(lengths)
        .map(|(&start, length)| Mapping {
            start,
            end: start + length,
            file_offset: 0,
            build_id: &[],
            path: "",
        })
        .collect();
    let code = CodeMap::new(&mappings).expect("sorted, apart and small");
    let bounds = bounds(input, &addresses);
    let depth = 1 + input.below(MAX_DEPTH);
    let registers = Registers::new(
        word(input, &addresses, &starts),
        word(input, &addresses, &starts),
        word(input, &addresses, &starts),
    );
    let mut offset = input.below(64) * 8;
    while !input.is_empty() && offset <= SIZE - 8 {
        page.put(offset, word(input, &addresses, &starts));
        offset += 8;
    }

    let watched = Watched {
        // SAFETY: the bounds lie inside the page, which outlives the value.
        memory: unsafe { StackMemory::new(bounds.clone()) },
        bounds,
        read: RefCell::default(),
    };
    let cells = PathCells::default();
    let guide = Guide::frame_pointers(&code);
    let mut path = cells.begin();
    let walked = (processor.walk)(&registers, Some(&watched), &guide, depth, &mut path);
    let codes: Vec<u32> = path.codes().collect();
    assert_eq!(codes.len(), path.len());
    let known = |address| code.code((processor.target)(address));
    let leaf = code.code(registers.pc);
    assert_eq!(codes[0], leaf.unwrap_or(frame_code::UNKNOWN_CODE));
    judge(&registers, &watched, known, depth, &codes, walked.end);
    walk_by_table(processor, &registers, &watched, &code, depth, input);
}

/// The same stack by a table that means no good.
fn walk_by_table(
    processor: &Processor,
    registers: &Registers,
    watched: &Watched,
    code: &CodeMap,
    depth: usize,
    input: &mut Input<'_>,
) {
    let mut rows: Vec<Row> = Vec::new();
    let mut above = frame_code::FIRST_ADDRESS;
    for _ in 0..input.below(64) {
        let rule = match input.below(6) {
            0 => Rule::UNKNOWN,
            1 => Rule::FRAME_RECORD,
            // Loaded from a word near the register.
            2 => Rule(1 | 1 << 8 | u32::from(input.short() & 0x1e7) << 9),
            3 => Rule(2 | u32::from(input.byte() & 1) | u32::from(input.short() & 0x3ff) << 2),
            4 => Rule::FRAME_RECORD.with_return_address(1),
            _ => Rule(input.number() as u32),
        };
        rows.push(Row { code: above, rule });
        above += 1 + u32::from(input.short() & 0xff);
    }
    let mut block = vec![MaybeUninit::uninit(); caller_table_bytes(rows.len() + 2)];
    let table = CallerTable::from_rows(&mut block, code, &rows).expect("sorted, and there is room");
    // No address has a code beyond the last mapping.
    for row in rows.iter().filter(|row| row.code < code.end()) {
        assert_eq!(table.rule(row.code), row.rule);
    }
    let guide =
        Guide { code, callers: Some(&table), every_frame: input.byte() & 1 == 1, instructions: () };
    watched.read.borrow_mut().clear();
    let cells = PathCells::default();
    let mut path = cells.begin();
    let registers = registers.with_lr(0x40_0000 + u64::from(input.short()));
    let walked = (processor.walk)(&registers, Some(watched), &guide, depth, &mut path);
    let codes: Vec<u32> = path.codes().collect();
    let frames = frames(&codes, walked.end);
    assert!((1..=depth).contains(&frames.len()));
    if walked.end == End::Truncated {
        assert_eq!(frames.len(), depth);
    }
}

/// The frames of a path without the mark of how it ended.
fn frames(codes: &[u32], end: End) -> &[u32] {
    let mark = match end {
        End::Root => return codes,
        End::Truncated => frame_code::TRUNCATED,
        End::Broken => frame_code::BROKEN,
    };
    let (last, frames) = codes.split_last().expect("a path has its leaf");
    assert_eq!(*last, mark);
    frames
}

/// Whether the path is what was read.
fn judge(
    registers: &Registers,
    watched: &Watched,
    known: impl Fn(u64) -> Option<u32>,
    depth: usize,
    codes: &[u32],
    end: End,
) {
    let frames = frames(codes, end);
    assert!((1..=depth).contains(&frames.len()));
    let mut read = watched.read.borrow().clone();
    assert!(read.len() <= 2 * depth, "no record more than twice");
    // One that returns into another stretch of code than the one before is looked at twice: to keep
    // what was read costs each tick more.
    read.dedup();
    let mut floor = registers.sp;
    for (at, _) in read.iter() {
        assert!(*at >= floor, "strictly upward, from the stack pointer");
        floor = at + FRAME_RECORD;
    }
    let callers =
        read.iter().map(|(_, address)| known(*address).unwrap_or(frame_code::UNKNOWN_CODE));
    let callers: Vec<u32> = callers.take(frames.len() - 1).collect();
    assert_eq!(frames[1..], callers, "the return addresses, in order");
    let unknown = callers.iter().filter(|caller| **caller == frame_code::UNKNOWN_CODE);
    assert!(unknown.count() <= MAX_UNKNOWN as usize);
    match read.get(frames.len() - 1..) {
        Some([]) => {}
        // One record more than is kept: it ends the chain, or shows that there is one beyond the
        // limit.
        Some([(_, address)]) => assert!(end == End::Truncated || known(*address).is_none()),
        other => panic!("{other:?} beyond the path"),
    }
    if end == End::Truncated {
        assert_eq!(frames.len(), depth);
    }
}

/// A part of the page, often flush with one of its ends.
fn bounds(input: &mut Input<'_>, page: &Range<u64>) -> Range<u64> {
    let (cut_below, cut_above) = (input.number(), input.number());
    let start = page.start + cut_below % (SIZE as u64 + 1);
    let end = page.end - cut_above % (SIZE as u64 + 1);
    // Bounds that are no range hold nothing.
    start..end
}

/// A word that may mean something: an address of the stack, an address of code, or any other.
fn word(input: &mut Input<'_>, stack: &Range<u64>, code: &[u64]) -> u64 {
    match input.below(5) {
        0 => stack.start + 8 * input.below(SIZE / 8 + 2) as u64,
        1 => code[input.below(code.len())] + u64::from(input.short() % 0x2000),
        2 => 0,
        // Signed, on aarch64.
        3 => code[input.below(code.len())] ^ u64::from(input.short() & 0xff7f) << 48,
        _ => input.number(),
    }
}

/// The real stack reader, watched.
struct Watched {
    memory: StackMemory,
    bounds: Range<u64>,
    /// The addresses of the records read, and the return address in each.
    read: RefCell<Vec<(u64, u64)>>,
}

impl ReadStack for Watched {
    fn frame_record(&self, fp: u64) -> Option<[u64; 2]> {
        let record = self.memory.frame_record(fp);
        if let Some([_, return_address]) = record {
            let is_inside = fp >= self.bounds.start
                && fp.checked_add(FRAME_RECORD).is_some_and(|end| end <= self.bounds.end);
            assert!(is_inside && fp.is_multiple_of(8), "{fp:#x} is not in {:#x?}", self.bounds);
            self.read.borrow_mut().push((fp, return_address));
        }
        record
    }

    fn word(&self, address: u64) -> Option<u64> {
        let word = self.memory.word(address);
        if word.is_some() {
            let is_inside = address >= self.bounds.start
                && address.checked_add(8).is_some_and(|end| end <= self.bounds.end);
            assert!(
                is_inside && address.is_multiple_of(8),
                "{address:#x} is not in {:#x?}",
                self.bounds
            );
        }
        word
    }

    fn end(&self) -> u64 {
        self.memory.end()
    }
}
