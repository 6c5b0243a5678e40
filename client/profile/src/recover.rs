//! Finding what crashed guests left: recording files, in the log of a console or in a dump of
//! memory.
//!
//! A log holds them as [lines of text](unikprof_proto::console), memory as
//! [blocks](unikprof_proto::file::BlockHead). Both may hold anything else beside them, in any
//! place, and the same dump in both forms. Files are read once, from the beginning to the end.

mod assembly;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};

use flate2::bufread::GzDecoder;
use memchr::{memchr, memmem};
use unikprof_proto::console::{self, BYTES, LETTERS, MARK, Piece};
use unikprof_proto::file::BlockHead;

use crate::recording;
use assembly::{assemble, described};

/// The most bytes of dumps that are kept: the oldest dumps are given up first.
const MOST_HELD: usize = 128 << 20;
const MOST_DUMPS: usize = 1000;
/// The longest block that is taken from memory.
const MOST_BLOCK: usize = 64 << 20;
const CHUNK: usize = 64 << 10;

/// What crashed guests left in the files that were read.
#[derive(Debug, Default)]
pub struct Search {
    /// In the order in which they were found.
    dumps: VecDeque<Dump>,
    /// The number of bytes in these.
    held: usize,
    /// How many dumps were given up.
    pub given_up: usize,
    /// Why a guest wrote no dump.
    pub refusal: Option<String>,
    /// How many lines with the mark are no lines of a dump, as if they were cut or altered. Wrapped
    /// lines count too, also if they could be joined.
    pub spoiled: usize,
}

/// A dump as lines of a log or a block of memory bring it.
#[derive(Debug)]
struct Dump {
    identity: u32,
    lines: BTreeMap<u32, [u8; BYTES]>,
    block: Vec<u8>,
}

/// What a guest left when it crashed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remains {
    /// A recording file: the guest's, or one of what there is of it. Empty if that is too little.
    pub file: Vec<u8>,
    /// What is missing, if anything is.
    pub missing: Option<Missing>,
    /// The guest's name, if it is known.
    pub guest: Option<String>,
    /// When the guest crashed, in ns since 1970-01-01 UTC; 0 if that is not known.
    pub unix_ns: u64,
}

/// How much of a dump is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// How many bytes there are.
    pub found: usize,
    /// How many there should be, if that is known.
    pub(crate) of: Option<u64>,
    is_log: bool,
}

impl Missing {
    /// The percentage that there is, if that is known. Of a dump that has its length and another
    /// checksum, it is not.
    pub fn percent(&self) -> Option<u64> {
        let of = self.of.filter(|of| (self.found as u64) < *of);
        of.map(|of| (self.found as u64).saturating_mul(100) / of)
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = |bytes: u64| bytes.div_ceil(BYTES as u64);
        match (self.is_log, self.of) {
            (true, Some(of)) => {
                let (of, found) = (lines(of), lines(self.found as u64));
                match of.saturating_sub(found) {
                    0 => f.write_str("the dump's lines do not match its checksum"),
                    lost => {
                        write!(f, "{lost} of the dump's {of} lines are altered or not in the log")
                    }
                }
            }
            (true, None) => f.write_str("the log lacks lines of the dump, also its first"),
            (false, Some(of)) if self.found as u64 >= of => {
                f.write_str("the dump's block in memory was overwritten in part")
            }
            (false, _) => f.write_str("the dump's block in memory was cut or overwritten"),
        }
    }
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

/// Looks whether a [`Search`] would find something, in the first 256 MiB; `None` where not, and it
/// is no dump of memory either.
pub(crate) fn holder(source: impl Read) -> io::Result<Option<Holder>> {
    const MOST: u64 = 256 << 20;
    let mut search = Search::default();
    let mut is_core = None;
    search.scan(source.take(MOST), |search, chunk| {
        is_core.get_or_insert_with(|| is_core_file(chunk));
        !search.dumps.is_empty()
    })?;
    Ok(match search.dumps.front() {
        Some(dump) if dump.block.is_empty() => Some(Holder::Log),
        Some(_) => Some(Holder::Memory),
        None => is_core.filter(|is_core| *is_core).map(|_| Holder::Core),
    })
}

/// Whether these bytes begin an ELF file of the type that holds memory.
fn is_core_file(bytes: &[u8]) -> bool {
    const TYPE: usize = 16;
    const ET_CORE: u8 = 4;
    bytes.starts_with(b"\x7fELF") && bytes.get(TYPE..TYPE + 2) == Some(&[ET_CORE, 0])
}

/// Beginnings of files in which nothing can be found, with what they are.
const OTHER_FILES: [(&[u8], &str); 9] = [
    (&recording::MAGIC, "a recording already: `report` shows it"),
    (b"\xfd7zXZ\0", "compressed by xz: decompress it first"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd: decompress it first"),
    (b"BZh", "compressed by bzip2: decompress it first"),
    (b"\x04\x22\x4d\x18", "compressed by lz4: decompress it first"),
    (b"PK\x03\x04", "a zip archive: extract it first"),
    (b"KDUMP   ", KDUMP),
    (b"DISKDUMP", KDUMP),
    (b"makedumpfile", KDUMP),
];

const KDUMP: &str = "a compressed kdump: write it as an ELF core, without compression \
                     (`makedumpfile -E`, or `xl dump-core`)";

/// Texts in which lines of a dump are encoded, with what they are.
const OTHER_TEXTS: [(&[u8], &str); 5] = [
    (b"dW5pa3Byb2Y6", BASE64),
    (b"VuaWtwcm9mO", BASE64),
    (b"1bmlrcHJvZj", BASE64),
    (b"117,110,105,107,112,114,111,102,58", BYTE_ARRAYS),
    (b"117, 110, 105, 107, 112, 114, 111, 102, 58", BYTE_ARRAYS),
];

const BASE64: &str = "a log whose lines are encoded in base64: decode them first";
const BYTE_ARRAYS: &str = "a journal whose messages are arrays of bytes: export it as text \
                           (`journalctl -o cat --all`)";

/// The longest of [`OTHER_TEXTS`], less one.
const OVERLAP: usize = 41;

impl Search {
    /// Reads a file, also one that is compressed by gzip. Answers what the file seems to be if that
    /// hides what is in it.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub fn read(&mut self, source: impl Read) -> io::Result<Option<&'static str>> {
        let mut before = Vec::new();
        let mut encoded = None;
        let texts = OTHER_TEXTS.map(|(text, what)| (memmem::Finder::new(text), what));
        let obstacle = self.scan(source, |_, chunk| {
            // Memory is no text.
            if memchr(0, chunk).is_some() {
                return false;
            }
            before.extend_from_slice(chunk);
            let is_in = |(text, _): &&(memmem::Finder<'_>, _)| text.find(&before).is_some();
            encoded = encoded.or_else(|| texts.iter().find(is_in).map(|(_, what)| *what));
            before.drain(..before.len().saturating_sub(OVERLAP));
            false
        })?;
        Ok(obstacle.or(encoded))
    }

    /// Reads until `is_enough`, which is given each part. Answers what is in the way of reading.
    fn scan(
        &mut self,
        mut source: impl Read,
        mut is_enough: impl FnMut(&Search, &[u8]) -> bool,
    ) -> io::Result<Option<&'static str>> {
        let mut start = Vec::new();
        source.by_ref().take(64).read_to_end(&mut start)?;
        let known = OTHER_FILES.iter().find(|(magic, _)| start.starts_with(magic));
        let mut obstacle = known.map(|(_, what)| *what);
        let is_compressed = start.starts_with(&[0x1f, 0x8b]);
        let source = start.chain(source);
        let mut source: Box<dyn Read> =
            if is_compressed { Box::new(Members::of(source)) } else { Box::new(source) };
        let (mut log, mut memory) = (LogScanner::default(), MemoryScanner::default());
        let mut chunk = vec![0; CHUNK];
        loop {
            let read = match source.read(&mut chunk) {
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) if is_compressed => {
                    obstacle = Some("compressed by gzip, and damaged or cut");
                    0
                }
                Err(error) => return Err(error),
            };
            log.feed(&chunk[..read], self);
            memory.feed(&chunk[..read], self);
            if is_enough(self, &chunk[..read]) || read == 0 {
                log.end(self);
                memory.end(self);
                return Ok(obstacle);
            }
        }
    }

    /// What was found. The same dump counts once, however often and in which forms it was found.
    pub fn finish(self) -> Vec<Remains> {
        self.dumps.into_iter().map(Dump::remains).collect()
    }

    fn dump(&mut self, identity: u32, length: usize) -> &mut Dump {
        self.held += length;
        while (self.dumps.len() > MOST_DUMPS || self.held > MOST_HELD && self.dumps.len() > 1)
            && let Some(oldest) = self.dumps.pop_front()
        {
            self.held -= oldest.lines.len() * BYTES + oldest.block.len();
            self.given_up += 1;
        }
        let known = self.dumps.iter().rposition(|dump| dump.identity == identity);
        let at = known.unwrap_or_else(|| {
            self.dumps.push_back(Dump { identity, lines: BTreeMap::new(), block: Vec::new() });
            self.dumps.len() - 1
        });
        &mut self.dumps[at]
    }

    fn line(&mut self, piece: &Piece) {
        let dump = self.dump(piece.dump, BYTES);
        if dump.lines.insert(piece.number, piece.bytes).is_some() {
            self.held -= BYTES;
        }
    }

    /// Takes memory that begins with a block's head.
    fn block(&mut self, memory: &[u8]) {
        let is_whole = BlockHead::file(memory).is_ok();
        let identity = memory.get(BlockHead::LENGTH - 4..).and_then(|rest| rest.first_chunk());
        let identity = identity.map_or(0, |identity| u32::from_le_bytes(*identity));
        let dump = self.dump(identity, memory.len());
        let is_known = BlockHead::file(&dump.block).is_ok();
        let before = dump.block.len();
        if is_known || !is_whole && before > memory.len() {
            self.held -= memory.len();
        } else {
            dump.block = memory.to_vec();
            self.held -= before;
        }
    }
}

impl Dump {
    fn remains(self) -> Remains {
        // The bytes that there are, in parts without a gap.
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let mut next = 0;
        let from_lines = self.block.len() < self.lines.len() * BYTES;
        if !from_lines {
            parts.push(self.block);
        } else {
            for (number, bytes) in &self.lines {
                match parts.last_mut() {
                    Some(part) if *number == next => part.extend_from_slice(bytes),
                    _ => parts.push(bytes.to_vec()),
                }
                next = number + 1;
            }
        }
        let begins = !from_lines || self.lines.contains_key(&0);
        let first = parts.first().filter(|_| begins);
        let file = first.and_then(|first| BlockHead::file(first).ok());
        let described = described(&parts);
        let (guest, unix_ns) = described.unwrap_or_default();
        if let Some(file) = file {
            return Remains { file: file.to_vec(), missing: None, guest, unix_ns };
        }
        let head = first.and_then(|first| first.first_chunk()).and_then(BlockHead::decode);
        let missing = Missing {
            found: parts.iter().map(Vec::len).sum(),
            of: head.map(|head| head.length.saturating_add(BlockHead::LENGTH as u64)),
            is_log: from_lines,
        };
        let reason = format!("{missing}; vCPUs may have records of different times");
        let file = assemble(&parts, &reason).unwrap_or_default();
        Remains { file, missing: Some(missing), guest, unix_ns }
    }
}

/// The contents of a file that was compressed by gzip, in one or more members. Zeros may follow
/// them: the file's space was reserved, or it was copied in blocks.
struct Members<R: Read>(Option<GzDecoder<BufReader<R>>>);

impl<R: Read> Members<R> {
    fn of(source: R) -> Self {
        Members(Some(GzDecoder::new(BufReader::new(source))))
    }
}

impl<R: Read> Read for Members<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.0 {
            let read = member.read(buffer)?;
            if read != 0 || buffer.is_empty() {
                return Ok(read);
            }
            let bytes = member.get_mut().fill_buf()?;
            let is_end = bytes.is_empty();
            match bytes.iter().take_while(|byte| **byte == 0).count() {
                0 => {
                    let ended = self.0.take().filter(|_| !is_end);
                    self.0 = ended.map(|member| GzDecoder::new(member.into_inner()));
                }
                zeros => member.get_mut().consume(zeros),
            }
        }
        Ok(0)
    }
}

/// What follows the mark if a guest writes no dump, before the reason.
const REFUSAL: &[u8] = b" no crash dump: ";

/// Finds the lines of dumps in a text, whatever is between their letters that is no text: ends of
/// lines, where lines are wrapped, and zeros, where characters are of two bytes.
#[derive(Default)]
struct LogScanner {
    /// How much of the mark the last bytes are.
    matched: usize,
    /// What follows the last mark.
    text: Option<Vec<u8>>,
    /// The letters before the end of the last line, if a line of a dump may be wrapped there.
    wrapped: Vec<u8>,
    /// The line that follows: it may have a stamp before the other letters.
    rest: Vec<u8>,
}

impl LogScanner {
    fn feed(&mut self, mut bytes: &[u8], search: &mut Search) {
        while let Some((&byte, rest)) = bytes.split_first() {
            bytes = rest;
            let is_idle = self.matched == 0 && self.text.is_none() && self.wrapped.is_empty();
            if is_idle && byte != MARK.as_bytes()[0] {
                let Some(at) = memchr(MARK.as_bytes()[0], bytes) else {
                    return;
                };
                (self.matched, bytes) = (1, &bytes[at + 1..]);
            } else {
                self.push(byte, search);
            }
        }
    }

    fn push(&mut self, byte: u8, search: &mut Search) {
        const MOST: usize = 200;
        let is_long = self.text.as_ref().is_some_and(|text| text.len() == MOST);
        if is_long || matches!(byte, b'\n' | b'\r' | b'"' | b'\\') {
            self.end_refusal(search);
        }
        if matches!(byte, b'\n' | b'\r') {
            self.end_line(search);
        }
        if byte < b' ' {
            return;
        }
        if !self.wrapped.is_empty() {
            self.rest.push(byte);
            if self.rest.len() > MOST {
                self.forget_wrapped();
            }
        }
        let mark = MARK.as_bytes();
        let is_next = mark[self.matched] == byte;
        self.matched = if is_next { self.matched + 1 } else { usize::from(byte == mark[0]) };
        if self.matched == mark.len() {
            self.spoil(search);
            (self.matched, self.text) = (0, Some(Vec::with_capacity(LETTERS)));
            return;
        }
        let Some(text) = &mut self.text else {
            return;
        };
        text.push(byte);
        let is_refusal = text.starts_with(&REFUSAL[..text.len().min(REFUSAL.len())]);
        if !is_refusal && console::value(byte).is_none() {
            self.spoil(search);
        } else if !is_refusal && text.len() == LETTERS {
            match Piece::decode(text) {
                Some(piece) => {
                    search.line(&piece);
                    self.text = None;
                }
                None => self.spoil(search),
            }
        }
    }

    /// Gives up what follows the last mark, which is no line of a dump any more if it ever was.
    fn spoil(&mut self, search: &mut Search) {
        const FEWEST: usize = 16;
        let is_line = |text: Vec<u8>| {
            text.get(..FEWEST).is_some_and(|text| text.iter().all(|b| console::value(*b).is_some()))
        };
        search.spoiled += usize::from(self.text.take().is_some_and(is_line));
    }

    fn end(&mut self, search: &mut Search) {
        self.push(b'\n', search);
        self.spoil(search);
    }

    fn end_line(&mut self, search: &mut Search) {
        let begin = (self.wrapped.len() + self.rest.len()).checked_sub(LETTERS);
        if let Some(letters) = begin.and_then(|begin| self.rest.get(begin..))
            && let Some(piece) = Piece::decode(&[&self.wrapped[..], letters].concat())
        {
            search.line(&piece);
        }
        if !self.rest.is_empty() {
            self.forget_wrapped();
        }
        if self.wrapped.is_empty()
            && let Some(text) = &self.text
        {
            self.wrapped.clone_from(text);
        }
    }

    fn forget_wrapped(&mut self) {
        self.wrapped.clear();
        self.rest.clear();
    }

    /// Takes the reason for which a guest wrote no dump, if that is what follows the last mark. In
    /// memory, what follows a program's constant is no text.
    fn end_refusal(&mut self, search: &mut Search) {
        if let Some(text) = self.text.take_if(|text| text.starts_with(REFUSAL))
            && let Ok(reason) = str::from_utf8(&text[REFUSAL.len()..])
            && !reason.trim().is_empty()
        {
            search.refusal = Some(reason.trim().to_owned());
        }
    }
}

/// Finds blocks in memory.
#[derive(Default)]
struct MemoryScanner {
    /// What was read since the current block began, or what may be the beginning of a head.
    held: Vec<u8>,
    /// The length of the current block.
    length: Option<usize>,
    /// How much of `held` was searched for the head of another block.
    searched: usize,
}

impl MemoryScanner {
    /// A block ends where another begins: it was overwritten there, or is only a copy of a head.
    fn feed(&mut self, bytes: &[u8], search: &mut Search) {
        self.held.extend_from_slice(bytes);
        let mut begin = 0;
        loop {
            let rest = &self.held[begin..];
            let head = block_heads(&rest[self.searched..]).next().map(|at| self.searched + at);
            let end = head.into_iter().chain(self.length).min();
            let Some(end) = end.filter(|end| *end <= rest.len()) else {
                let searched = rest.len().saturating_sub(BlockHead::LENGTH - 1).max(self.searched);
                let is_block = self.length.is_some();
                self.held.drain(..begin + if is_block { 0 } else { searched });
                self.searched = if is_block { searched } else { 0 };
                return;
            };
            if self.length.is_some() {
                search.block(&rest[..end]);
            }
            self.length = (head == Some(end)).then(|| block_length(&rest[end..]));
            self.searched = usize::from(self.length.is_some());
            begin += end;
        }
    }

    fn end(&mut self, search: &mut Search) {
        if self.length.take().is_some() {
            search.block(&self.held);
        }
    }
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

/// The length of a block with its head, by its head.
fn block_length(memory: &[u8]) -> usize {
    let head = memory.first_chunk().and_then(BlockHead::decode);
    let length = head.and_then(|head| usize::try_from(head.length).ok()).unwrap_or(usize::MAX);
    length.saturating_add(BlockHead::LENGTH).min(MOST_BLOCK)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use unikprof_proto::console::Lines;

    use super::*;

    fn block(file: &[u8]) -> Vec<u8> {
        [&BlockHead::of(file).encode()[..], file].concat()
    }

    fn file(length: usize, seed: usize) -> Vec<u8> {
        (0..length).map(|index| (index * 31 + seed) as u8).collect()
    }

    fn find(bytes: &[u8]) -> Vec<Remains> {
        let mut search = Search::default();
        search.read(bytes).unwrap();
        search.finish()
    }

    fn log(file: &[u8]) -> String {
        Lines::of(&block(file))
            .map(|line| format!("(d1) {line}\r\nnetfront: unikprof: a word\n"))
            .collect()
    }

    #[test]
    fn blocks_in_memory_are_found_wherever_they_lie() {
        let (first, second) = (file(500, 1), file(70, 2));
        let mut memory = vec![0x89; CHUNK - 30];
        memory.extend(BlockHead::MAGIC);
        memory.extend([0; 10]);
        let at = memory.len();
        memory.extend(block(&first));
        memory.extend(file(99, 3));
        memory.extend(block(&second));
        let found = find(&memory);
        assert_eq!(found.len(), 2);
        assert_eq!((&found[0].file, found[0].missing), (&first, None));
        assert_eq!((&found[1].file, found[1].missing), (&second, None));

        let cut = find(&memory[..memory.len() - 1]);
        let missing = Missing { found: 93, of: Some(94), is_log: false };
        assert_eq!(cut[1].missing, Some(missing));
        memory[at + 300] ^= 1;
        let altered = find(&memory);
        assert!(altered[0].missing.is_some() && altered[0].file.is_empty());
        let missing = altered[0].missing.unwrap();
        let told = (missing.percent(), missing.to_string());
        assert_eq!(told, (None, "the dump's block in memory was overwritten in part".into()));
        assert_eq!(altered[1].missing, None);
        // The longer one was cut: the other lies where the rest of it should.
        let cut = &block(&file(600, 4))[..200];
        let within = find(&[cut, &block(&first), &block(&second)].concat());
        let missing = Missing { found: 200, of: Some(624), is_log: false };
        assert_eq!(within[0].missing, Some(missing));
        assert_eq!((&within[1].file, within[1].missing), (&first, None));
        assert_eq!((&within[2].file, within[2].missing), (&second, None));
        // A copy of the head, as on the stack of what wrote it.
        let first = block(&first);
        let copied = find(&[&first[..BlockHead::LENGTH], &[0; 99], &first].concat());
        assert_eq!((copied.len(), copied[0].missing), (1, None));
    }

    /// The block and its lines lie in one dump of memory, where the console's buffer has the last of
    /// them.
    #[test]
    fn a_dump_counts_once_in_whatever_forms_it_is_there() {
        let (left, earlier) = (file(3000, 1), file(300, 2));
        let text = log(&left);
        let memory = [block(&left), text.as_bytes()[text.len() - 2048..].to_vec()].concat();
        let found = find(&[log(&earlier).into_bytes(), memory].concat());
        assert_eq!(found.len(), 2);
        assert_eq!((&found[0].file, found[0].missing), (&earlier, None));
        assert_eq!((&found[1].file, found[1].missing), (&left, None));
    }

    /// Guards an error that leaves whom a guest has crashed alone with its log: wherever in it the
    /// lines are.
    #[test]
    fn what_would_be_found_is_seen_wherever_it_lies() {
        let holder = |bytes: &[u8]| holder(bytes).unwrap();
        let left = file(500, 1);
        let lines = log(&left);
        for before in [0, 100, CHUNK - 30, CHUNK - 1, 3 << 20] {
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
        let found = find(&head.encode());
        let missing = Missing { found: 24, of: Some(u64::MAX), is_log: false };
        assert_eq!((found[0].missing, found[0].file.len()), (Some(missing), 0));
    }

    /// Guards against advice to look at the guest's panic handler, where it has written every line.
    #[test]
    fn lines_that_are_cut_or_altered_are_counted() {
        let [one, other] = [1, 2].map(|seed| -> Vec<String> {
            Lines::of(&block(&file(500, seed))).map(|line| line.to_string()).collect()
        });
        let in_turn = one.iter().zip(&other).map(|(one, other)| {
            let ((a, b), (c, d)) = (one.split_at(50), other.split_at(50));
            format!("(d1) {a}\n(d2) {c}\n(d1) {b}\n(d2) {d}\n")
        });
        let cut =
            |columns: usize| one.iter().map(|line| line[..columns].to_owned() + "\r\n").collect();
        let altered = one.join("\n").to_lowercase();
        let logs = [(cut(70), 14), (cut(30), 14), (in_turn.collect(), 28), (altered, 14)];
        for (log, lines) in logs {
            let mut search = Search::default();
            search.read(log.as_bytes()).unwrap();
            assert_eq!(search.spoiled, lines, "{log}");
            assert_eq!(search.finish(), []);
        }
        // Other lines with the mark.
        let mut search = Search::default();
        let others = "unikprof: no crash dump: small\nunikprof: up\nunikprof:listening on port 3\n";
        search.read(others.as_bytes()).unwrap();
        assert_eq!(search.spoiled, 0);
    }

    /// A log whose space was reserved ends in zeros. It is whole, and must not be called cut.
    #[test]
    fn zeros_behind_the_members_of_a_gzip_are_none_of_them() {
        use flate2::Compression;
        let gzip = |text: &str| {
            let mut packed = flate2::read::GzEncoder::new(text.as_bytes(), Compression::fast());
            let mut bytes = Vec::new();
            packed.read_to_end(&mut bytes).unwrap();
            bytes
        };
        let text = log(&file(500, 1));
        let (before, after) = text.split_at(300);
        let zeros = vec![0; 3 * CHUNK];
        let members = [gzip(before), zeros.clone(), gzip(after), zeros].concat();
        let damaged = [gzip(&text), b"\0\x01".to_vec()].concat();
        let cut = "compressed by gzip, and damaged or cut";
        for (bytes, obstacle) in [(members, None), (damaged, Some(cut))] {
            let mut search = Search::default();
            assert_eq!(search.read(&bytes[..]).unwrap(), obstacle);
            assert_eq!(search.finish()[0].missing, None);
        }
    }

    /// Guards against advice to look at the guest's panic handler, where the log is what it lies at.
    #[test]
    fn what_cannot_be_read_is_named() {
        use base64::Engine as _;
        let text = log(&file(500, 1));
        let encoded = |before: usize| {
            let text = [&vec![b' '; before][..], text.as_bytes()].concat();
            base64::engine::general_purpose::STANDARD.encode(text).into_bytes()
        };
        let numbers = |between: &str| {
            let numbers: Vec<String> = text.bytes().map(|byte| byte.to_string()).collect();
            format!("{{\"MESSAGE\":[{}]}}", numbers.join(between)).into_bytes()
        };
        let files = [
            (encoded(0), BASE64),
            (encoded(1), BASE64),
            (encoded(2), BASE64),
            (numbers(","), BYTE_ARRAYS),
            (numbers(", "), BYTE_ARRAYS),
        ];
        let magics = OTHER_FILES.iter().map(|(magic, what)| (magic.to_vec(), *what));
        for (bytes, what) in files.into_iter().chain(magics) {
            let mut search = Search::default();
            assert_eq!(search.read(&bytes[..]).unwrap(), Some(what));
            assert_eq!(search.finish(), []);
        }
        let refused = "up\nunikprof: no crash dump: the block is too small\r\nunikprof: more\n";
        let mut search = Search::default();
        search.read(refused.as_bytes()).unwrap();
        assert_eq!(search.refusal.as_deref(), Some("the block is too small"));
        // The end of a log, and the constants of a program.
        let program = b"\r\nunikprof: no crash dump: \r\nunikprof: no crash dump: \0\x01\x89\x02\n";
        let log = b"unikprof: no crash dump: too small";
        for (bytes, expected) in [(&program[..], None), (log, Some("too small"))] {
            let mut search = Search::default();
            search.read(bytes).unwrap();
            assert_eq!(search.refusal.as_deref(), expected);
        }
    }
}
