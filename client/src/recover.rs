//! Finding what crashed guests left: recording files, in the log of a console or in a dump of
//! memory.
//!
//! A log holds them as [lines of text](unikprof_proto::console), memory as
//! [blocks](unikprof_proto::file::BlockHead). Both may hold anything else beside them, in any
//! place.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Read};

use memchr::{memchr, memchr_iter, memmem, memrchr};
use unikprof_proto::console::{self, MARK, Piece};
use unikprof_proto::file::{BlockError, BlockHead};

/// What a guest left when it crashed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remains<'b> {
    pub(crate) place: FoundAt,
    /// The recording file; where it is not whole, what there is of it.
    pub file: Cow<'b, [u8]>,
    /// Why it is not whole.
    pub missing: Option<Missing>,
}

/// Where something was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FoundAt {
    /// In a log, in lines from this one on, counted from 1.
    Line(usize),
    /// In memory, from this byte on.
    Byte(usize),
}

/// Why something is not whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// The log lacks its beginning: the number of the first line that is there.
    Beginning(u32),
    /// The log lacks lines: the number of the first of them, and how many it should have, where
    /// that is known.
    Lines(u32, Option<u64>),
    /// The block of memory is not whole.
    Block(BlockError),
}

impl fmt::Display for FoundAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line} of the log"),
            Self::Byte(byte) => write!(f, "byte {byte:#x} of the memory"),
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Beginning(first) => write!(
                f,
                "the beginning of the dump is missing from the log: expected the line \
                 `{MARK}00000`, found \
                 `{MARK}{first:05x}`"
            ),
            Self::Lines(first, of) => {
                write!(f, "the line `{MARK}{first:05x}` is missing from the log")?;
                match of {
                    Some(lines) => write!(f, " or damaged; expected {lines} lines"),
                    None => write!(f, " or damaged"),
                }
            }
            Self::Block(error) => error.fmt(f),
        }
    }
}

/// All that crashed guests left in these bytes, in their order: blocks of memory first.
pub fn find(bytes: &[u8]) -> Vec<Remains<'_>> {
    let mut all = in_memory(bytes);
    all.extend(in_log(bytes));
    all
}

/// What a file that is no recording seems to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// A log with lines that a crashed guest left.
    Log,
    /// Memory with a block that a crashed guest left.
    Memory,
    /// A dump of memory, as far as it was read without such a block.
    Core,
}

/// Looks whether [`find`] would find something, in the first 256 MiB; `None` where not, and it is
/// no dump of memory either. It needs little memory.
pub(crate) fn holder(mut source: impl Read) -> io::Result<Option<Holder>> {
    const MOST: usize = 256 << 20;
    const CHUNK: usize = 64 << 10;
    // Longer than a line of a log with what a host puts before it, and than a block's head.
    const OVERLAP: usize = 1 << 10;
    let (mut window, mut looked) = (Vec::with_capacity(CHUNK + OVERLAP), 0);
    let mut is_core = false;
    loop {
        let held = window.len();
        let read = source.by_ref().take(CHUNK as u64).read_to_end(&mut window)?;
        if looked == 0 {
            is_core = is_core_file(&window);
        }
        if has_block(&window) {
            return Ok(Some(Holder::Memory));
        }
        if marked_lines(&window).any(|(_, line)| console::piece(line).is_some()) {
            return Ok(Some(Holder::Log));
        }
        looked += read;
        if read == 0 || looked >= MOST {
            return Ok(is_core.then_some(Holder::Core));
        }
        window.drain(..(held + read).saturating_sub(OVERLAP));
    }
}

/// Whether these bytes begin an ELF file of the type that holds memory.
fn is_core_file(bytes: &[u8]) -> bool {
    const TYPE: usize = 16;
    const ET_CORE: u8 = 4;
    bytes.starts_with(b"\x7fELF") && bytes.get(TYPE..TYPE + 2) == Some(&[ET_CORE, 0])
}

fn has_block(bytes: &[u8]) -> bool {
    block_heads(bytes).next().is_some()
}

/// Where blocks begin. A program that writes such blocks has their magic as well, without the rest
/// of a head.
fn block_heads(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let magic = memmem::find_iter(bytes, &BlockHead::MAGIC);
    magic.filter(|at| {
        let head = bytes[*at..].first_chunk();
        head.and_then(BlockHead::decode).is_some()
    })
}

fn in_memory(bytes: &[u8]) -> Vec<Remains<'_>> {
    let mut all = Vec::new();
    let mut from = 0;
    for at in block_heads(bytes) {
        // What a whole block holds is its own.
        if at < from {
            continue;
        }
        let memory = &bytes[at..];
        let remains = of_block(memory, FoundAt::Byte(at));
        if remains.missing.is_none() {
            from = at + BlockHead::LENGTH + remains.file.len();
        }
        all.push(remains);
    }
    all
}

/// What is in a block that begins with a head.
fn of_block(memory: &[u8], place: FoundAt) -> Remains<'_> {
    let (file, missing) = match BlockHead::file(memory) {
        Ok(file) => (file, None),
        Err(error) => {
            let rest = memory.get(BlockHead::LENGTH..).unwrap_or_default();
            let head = memory.first_chunk().and_then(BlockHead::decode);
            let length = head.and_then(|head| usize::try_from(head.length).ok());
            let file = length.and_then(|length| rest.get(..length));
            (file.unwrap_or(rest), Some(Missing::Block(error)))
        }
    };
    Remains { place, file: file.into(), missing }
}

/// The lines that hold the mark, with their numbers, counted from 1.
fn marked_lines(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mark = memmem::Finder::new(MARK);
    let (mut number, mut from) = (1, 0);
    std::iter::from_fn(move || {
        let rest = bytes.get(from..)?;
        let at = mark.find(rest)?;
        let start = memrchr(b'\n', &rest[..at]).map_or(0, |end| end + 1);
        let length = memchr(b'\n', &rest[start..]).unwrap_or(rest.len() - start);
        number += memchr_iter(b'\n', &rest[..start]).count();
        let line = (number, &rest[start..start + length]);
        from += start + length + 1;
        number += 1;
        Some(line)
    })
}

fn in_log(bytes: &[u8]) -> Vec<Remains<'static>> {
    let mut all = Vec::new();
    let mut current: Option<Block> = None;
    for (line, text) in marked_lines(bytes) {
        let Some(piece) = console::piece(text) else {
            continue;
        };
        match &mut current {
            // A log may hold a line twice.
            Some(block) if piece.number > 0 || block.is_repeated(&piece) => block.take(&piece),
            _ => {
                all.extend(current.take().map(Block::end));
                current = Some(Block::begin(line, &piece));
            }
        }
    }
    all.extend(current.map(Block::end));
    all
}

/// A block as lines bring it.
struct Block {
    line: usize,
    memory: Vec<u8>,
    next: u32,
    missing: Option<Missing>,
}

impl Block {
    fn begin(line: usize, piece: &Piece) -> Self {
        let mut block = Self { line, memory: Vec::new(), next: 0, missing: None };
        if piece.number > 0 {
            block.missing = Some(Missing::Beginning(piece.number));
        }
        block.take(piece);
        block
    }

    /// Is it the beginning that is there already, with nothing behind it yet?
    fn is_repeated(&self, piece: &Piece) -> bool {
        self.next == 1 && self.memory == piece.bytes()
    }

    fn take(&mut self, piece: &Piece) {
        if self.missing.is_some() || piece.number < self.next {
            return;
        }
        if piece.number > self.next {
            self.missing = Some(Missing::Lines(self.next, None));
            return;
        }
        self.memory.extend_from_slice(piece.bytes());
        self.next += 1;
    }

    fn end(self) -> Remains<'static> {
        let place = FoundAt::Line(self.line);
        let head = self.memory.first_chunk().and_then(BlockHead::decode);
        let of = head.map(|head| {
            let bytes = head.length.saturating_add(BlockHead::LENGTH as u64);
            bytes.div_ceil(console::BYTES as u64)
        });
        let lines = Some(Missing::Lines(self.next, of));
        let remains = of_block(&self.memory, place);
        let missing = match (self.missing, remains.missing) {
            (Some(Missing::Lines(..)), Some(_))
            | (None, Some(Missing::Block(BlockError::Cut(_)))) => lines,
            // What is missing may lie behind the block.
            (Some(Missing::Lines(..)), None) => None,
            (known, found) => known.or(found),
        };
        Remains { place, file: remains.file.into_owned().into(), missing }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use unikprof_proto::console::Lines;

    use super::*;

    fn block(file: &[u8]) -> Vec<u8> {
        [&BlockHead::of(file).encode()[..], file].concat()
    }

    /// A log as a host keeps it: with a prefix, and with other lines between.
    fn log(file: &[u8], number: usize) -> Vec<String> {
        let block = block(file);
        let lines = Lines::of(&block).flat_map(|line| {
            [format!("(d{number}) {line}\r"), "netfront: unikprof: a word".to_owned()]
        });
        let first = "xen-guest: panicked".to_owned();
        std::iter::once(first).chain(lines).collect()
    }

    fn file(length: usize, seed: usize) -> Vec<u8> {
        (0..length).map(|index| (index * 31 + seed) as u8).collect()
    }

    /// Guards against a part taken for the whole: of the log there is the end alone, the beginning,
    /// or not all between.
    #[test]
    fn what_is_missing_is_told() {
        let whole = file(500, 1);
        let lines = log(&whole, 1);
        let find_in = |lines: &[String]| in_log(lines.join("\n").as_bytes());

        let end = find_in(&lines[3..]);
        assert_eq!(end[0].missing, Some(Missing::Beginning(1)));
        assert!(end[0].file.is_empty());

        let beginning = find_in(&lines[..7]);
        assert_eq!(beginning[0].missing, Some(Missing::Lines(3, Some(14))));
        assert!(whole.starts_with(&beginning[0].file));
        assert_eq!(beginning[0].file.len(), 3 * 39 - BlockHead::LENGTH);

        let mut between = lines.clone();
        between[5] = between[5].replace(':', ";");
        let between = find_in(&between);
        assert_eq!(between[0].missing, Some(Missing::Lines(2, Some(14))));
        assert_eq!(between.len(), 1);

        let mut twice = lines.clone();
        twice.insert(1, lines[1].clone());
        twice.insert(4, lines[3].clone());
        assert_eq!(find_in(&twice)[0].file, whole);
        assert_eq!(find_in(&twice)[0].missing, None);
    }

    /// Two guests that crash at once share Xen's log: no mixture of both is a file.
    #[test]
    fn a_mixture_is_no_file() {
        let lines = [log(&file(500, 1), 1), log(&file(500, 2), 2)];
        let mixed: Vec<_> =
            (0..lines[0].len()).map(|index| lines[index / 2 % 2][index].clone()).collect();
        let mixed = mixed.join("\n");
        let found = find(mixed.as_bytes());
        assert!(found.iter().all(|one| one.missing.is_some()), "{found:?}");
    }

    #[test]
    fn blocks_in_memory_are_found_wherever_they_lie() {
        let (first, second) = (file(500, 1), file(70, 2));
        let mut memory = vec![0x89; 77];
        memory.extend(BlockHead::MAGIC);
        memory.extend([0; 100]);
        let at = memory.len();
        memory.extend(block(&first));
        memory.extend(file(99, 3));
        memory.extend(block(&second));
        let found = find(&memory);
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[0].place, &*found[0].file, found[0].missing),
            (FoundAt::Byte(at), &*first, None)
        );
        assert_eq!((&*found[1].file, found[1].missing), (&*second, None));

        let cut = find(&memory[..memory.len() - 1]);
        let error = BlockError::Cut(94);
        assert_eq!(cut[1].missing, Some(Missing::Block(error)));
        assert_eq!(*cut[1].file, second[..69]);
        memory[at + 300] ^= 1;
        let altered = find(&memory);
        assert!(matches!(altered[0].missing, Some(Missing::Block(BlockError::Checksum(..)))));
        assert_eq!(altered[0].file.len(), 500);
        assert_eq!(altered[1].missing, None);
    }

    /// Guards an error that leaves whom a guest has crashed alone with its log: wherever in it the
    /// lines are.
    #[test]
    fn what_would_be_found_is_seen_wherever_it_lies() {
        let holder = |bytes: &[u8]| holder(bytes).unwrap();
        let left = file(500, 1);
        let lines = log(&left, 1).join("\n");
        for before in [0, 100, (64 << 10) - 30, (64 << 10) - 1, 3 << 20] {
            let other = vec![b'\n'; before];
            let text = [&other[..], lines.as_bytes()].concat();
            assert_eq!(holder(&text), Some(Holder::Log), "{before}");
            let memory = [&vec![0x89; before][..], &block(&left), &[0; 99]].concat();
            assert_eq!(holder(&memory), Some(Holder::Memory), "{before}");
        }
        let core = [b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x04\0", &[0; 3000][..]].concat();
        assert_eq!(holder(&core), Some(Holder::Core));
        let mut program = core.clone();
        program[16] = 2;
        for other in [&b""[..], b"unikprof:", &BlockHead::MAGIC, &program] {
            assert_eq!(holder(other), None);
        }
    }

    #[test]
    fn other_bytes_hold_nothing() {
        for bytes in [&b""[..], b"\n\n", b"unikprof:", &[0x89; 3000], &BlockHead::MAGIC] {
            assert_eq!(find(bytes), []);
        }
        // A head that tells of more than there can be.
        let head = BlockHead { length: u64::MAX, checksum: 0 };
        let head = head.encode();
        let found = find(&head);
        assert_eq!(found[0].missing, Some(Missing::Block(BlockError::Cut(u64::MAX))));
        assert!(found[0].file.is_empty());
    }
}
