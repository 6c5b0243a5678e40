//! The caller table: rules for finding the caller of a function, for each range of code.
//!
//! The client compiles it from an image's call frame information (`.eh_frame`, `.debug_frame`); the
//! agent looks up addresses while it samples. A [`Row`] gives the [`Rule`] for the code from its
//! own code up to that of the next row. Rows are sorted by code, and their codes are distinct.
//!
//! There are two encodings. On the wire, rows are keyed by frame code, in runs of varints
//! ([`RunEncoder`], [`decode_run`]). A [`TableFile`] is keyed by file offset, so that it can be
//! linked into an image whose load address is not yet known:
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 8 | `UNIKCALL` |
//! | 8 | 4 | version, 1 |
//! | 12 | 2 | the architecture, as ELF's `e_machine` has it: [`machine`] |
//! | 14 | 2 | length of the build-id, 1 to 64 |
//! | 16 | 64 | build-id, padded with zeros |
//! | 80 | 4 | number of rows |
//! | 84 | 4 | CRC-32C of the rows |
//! | 88 | 8 each | rows: file offset, rule |
//!
//! Integers are little-endian. A [`Rule`] describes where the canonical frame address (CFA) is,
//! which is the value that the stack pointer has in the caller after the return, and where the
//! caller's registers are saved below it.
//!
//! - x86_64 (psABI): a call pushes the return address, so it is always just below the CFA.
//! - aarch64 (AAPCS64): a call leaves the return address in the link register, `x30`; a function
//!   that calls others saves it. A rule states the location, or that it is still in the register.

use core::fmt;

use crate::frame::crc32c;
use crate::message::MAX_BUILD_ID;
use crate::varint::{Output, take_varint};

/// A rule for finding a frame's caller, in 32 bits.
///
/// | bits | meaning |
/// |---|---|
/// | 0 to 1 | kind: 0 unknown, 1 special, 2 the CFA is relative to the stack pointer, 3 to the frame pointer |
/// | 2 to 7 | how many words below the CFA the caller's frame pointer is saved; 0: it is still in its register |
/// | 8 to 23 | kinds 2 and 3: the CFA's distance above the register, in words of 8 bytes; kind 1: see below |
/// | 24 to 31 | how many words below the CFA the return address is saved; 0: the architecture's usual place |
///
/// The usual place of the return address is the word just below the CFA on x86_64, and the link
/// register on aarch64.
///
/// Kind 1, with all other bits 0, is the outermost function. With bit 8 set, the CFA is *loaded
/// from memory*, for code that switches to another stack after saving the former stack pointer
/// (OCaml's `caml_c_call`): CFA = \*(register + distance) + addend.
///
/// | bits | meaning in a rule with a loaded CFA |
/// |---|---|
/// | 8 | 1 |
/// | 9 | the register: 0 the stack pointer, 1 the frame pointer |
/// | 10 to 16 | the distance of the loaded word above the register, in words |
/// | 17 to 23 | the addend, in words |
///
/// All other values are reserved. Any value is accepted: an agent treats an unknown rule as "no
/// rule", and reads only inside the stack's bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rule(pub u32);

/// A [`Rule`], decoded. The location of the return address is separate: [`Rule::return_address`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// There is no rule for this code.
    Unknown,
    /// The outermost function: it has no caller.
    Outermost,
    /// The CFA is above a register.
    Cfa {
        /// The register.
        base: Base,
        /// The CFA's distance above the register, in words of 8 bytes.
        words: u16,
        /// The distance of the caller's saved frame pointer below the CFA, in words; `None`: it is
        /// still in its register.
        saved_fp: Option<u8>,
    },
    /// The canonical frame address is computed from a word in memory.
    LoadedCfa {
        /// The register.
        base: Base,
        /// The distance of the word above the register, in words; at most [`Rule::MAX_LOADED`].
        at: u8,
        /// The addend, in words; at most [`Rule::MAX_LOADED`].
        plus: u8,
        /// The distance of the caller's saved frame pointer below the CFA, in words; `None`: it is
        /// still in its register.
        saved_fp: Option<u8>,
    },
}

/// A register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The stack pointer: `rsp`, `sp`.
    StackPointer,
    /// The frame pointer: `rbp`, `x29`.
    FramePointer,
}

impl Rule {
    /// There is no rule.
    pub const UNKNOWN: Self = Self(0);
    /// The outermost function.
    pub const OUTERMOST: Self = Self(1);
    /// At a function's entry on x86_64: the stack pointer points to the return address.
    pub const ENTRY: Self = Self(2 | 1 << 8);
    /// A frame record on x86_64: the frame pointer points to the caller's, and the return address
    /// is above it.
    pub const FRAME_RECORD: Self = Self(3 | 2 << 2 | 2 << 8);
    /// The greatest distance below the CFA at which a frame pointer can be saved, in words.
    pub const MAX_SAVED: u8 = 63;
    /// The greatest distance and addend of a loaded CFA, in words.
    pub const MAX_LOADED: u8 = 127;

    /// The rule for `caller`, with the return address at its usual place;
    /// [`UNKNOWN`](Self::UNKNOWN) if no rule can express it.
    pub const fn new(caller: Caller) -> Self {
        let (kind, fields, saved_fp) = match caller {
            Caller::Unknown => return Self::UNKNOWN,
            Caller::Outermost => return Self::OUTERMOST,
            Caller::Cfa { base, words, saved_fp } => (2 | base.bit(), words as u32, saved_fp),
            Caller::LoadedCfa { base, at, plus, saved_fp } => {
                if at > Self::MAX_LOADED || plus > Self::MAX_LOADED {
                    return Self::UNKNOWN;
                }
                let fields = 1 | base.bit() << 1 | (at as u32) << 2 | (plus as u32) << 9;
                (1, fields, saved_fp)
            }
        };
        let saved = match saved_fp {
            None => 0,
            Some(saved @ 1..=Self::MAX_SAVED) => saved as u32,
            Some(_) => return Self::UNKNOWN,
        };
        Self(kind | saved << 2 | fields << 8)
    }

    /// The same rule with the return address saved this many words below the CFA; 0: at its usual
    /// place.
    #[must_use]
    pub const fn with_return_address(self, words: u8) -> Self {
        Self(self.0 & 0x00ff_ffff | (words as u32) << 24)
    }

    /// The distance of the saved return address below the CFA, in words; 0: at the architecture's
    /// usual place.
    #[inline]
    pub const fn return_address(self) -> u8 {
        (self.0 >> 24) as u8
    }

    /// Decodes the rule; a reserved value is [`Unknown`](Caller::Unknown).
    #[inline]
    pub const fn caller(self) -> Caller {
        let fields = self.0 >> 8;
        let saved_fp = match (self.0 >> 2 & 0x3f) as u8 {
            0 => None,
            saved => Some(saved),
        };
        match self.0 & 3 {
            2 | 3 => Caller::Cfa { base: Base::of_bit(self.0 & 1), words: fields as u16, saved_fp },
            1 if self.0 == Self::OUTERMOST.0 => Caller::Outermost,
            1 if fields & 1 == 1 => Caller::LoadedCfa {
                base: Base::of_bit(fields >> 1 & 1),
                at: (fields >> 2) as u8 & Self::MAX_LOADED,
                plus: (fields >> 9) as u8 & Self::MAX_LOADED,
                saved_fp,
            },
            _ => Caller::Unknown,
        }
    }
}

impl Base {
    const fn bit(self) -> u32 {
        match self {
            Self::StackPointer => 0,
            Self::FramePointer => 1,
        }
    }

    const fn of_bit(bit: u32) -> Self {
        match bit {
            0 => Self::StackPointer,
            _ => Self::FramePointer,
        }
    }
}

/// `rule` applies to the code from `code` up to the next row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// A frame code on the wire and in the agent, a file offset in a [`TableFile`].
    pub code: u32,
    /// The rule for the code from there on.
    pub rule: Rule,
}

impl Row {
    /// The 8 bytes of the row in a file, and in a table's checksum.
    pub fn to_bytes(self) -> [u8; 8] {
        (u64::from(self.rule.0) << 32 | u64::from(self.code)).to_le_bytes()
    }

    fn from_bytes(bytes: [u8; 8]) -> Self {
        let word = u64::from_le_bytes(bytes);
        Self { code: word as u32, rule: Rule((word >> 32) as u32) }
    }
}

/// The checksum of a table: CRC-32C over the bytes of its rows, continued from that of the rows
/// before, which begins with 0.
pub fn checksum(before: u32, row: Row) -> u32 {
    crc32c(before, &row.to_bytes())
}

/// The maximum number of table parts in an agent.
pub const MAX_PARTS: usize = 8;

/// A part of a table: rows of one range of codes. Parts are sorted by their ranges. If parts
/// overlap, the first one that has a rule for a code is used.
///
/// The codes of its rows are in `first..=end`. A row at `end` applies after the part, and must be
/// [`Rule::UNKNOWN`], so that parts of the same image are equal whatever follows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// The first code.
    pub first: u32,
    /// The first code after the part.
    pub end: u32,
    /// The number of its rows.
    pub rows: u32,
    /// The [checksum] of its rows.
    pub checksum: u32,
}

/// The checksum of a table with these parts, sorted; `None` if there are none.
///
/// The checksum of a single part is that of its rows; the checksum of several parts is the CRC-32C
/// of their ends and checksums.
pub fn table_checksum(mut parts: impl Iterator<Item = Part>) -> Option<u32> {
    let first = parts.next()?;
    let Some(second) = parts.next() else {
        return Some(first.checksum);
    };
    let parts = [first, second].into_iter().chain(parts);
    let words = parts.flat_map(|it| [it.first, it.end, it.checksum]);
    Some(words.fold(0, |crc, word| crc32c(crc, &word.to_le_bytes())))
}

/// The maximum length of a row in a run, in bytes.
pub const MAX_ROW_BYTES: usize = 10;

/// Encodes rows that follow a row with the code `after` (0 for the first of a table).
#[derive(Debug)]
pub struct RunEncoder<'a> {
    after: u32,
    output: Output<'a>,
}

impl<'a> RunEncoder<'a> {
    /// Begins a run.
    pub fn new(after: u32, buffer: &'a mut [u8]) -> Self {
        Self { after, output: Output::new(buffer) }
    }

    /// Whether another row certainly fits.
    pub fn has_room(&self) -> bool {
        self.output.room() >= MAX_ROW_BYTES
    }

    /// Adds a row. Call it only while there [is room](Self::has_room), with a code above that of
    /// the previous row.
    pub fn push(&mut self, row: Row) {
        for value in [row.code.wrapping_sub(self.after), row.rule.0] {
            self.output.varint(u64::from(value));
        }
        self.after = row.code;
    }

    /// Ends the run; returns its length in bytes.
    pub fn finish(self) -> usize {
        self.output.length()
    }
}

/// Why a run of rows cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunError {
    /// The bytes end within a row, or a varint does not end.
    Cut,
    /// A row whose code is not above that of the row before, or beyond 32 bits; or a rule beyond 32
    /// bits.
    Impossible,
    /// Bytes follow the last row: how many.
    LeftOver(usize),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut => f.write_str("the run of caller rows is truncated"),
            Self::Impossible => f.write_str("a caller row is out of order or out of range"),
            Self::LeftOver(bytes) => write!(f, "{bytes} bytes follow the caller rows"),
        }
    }
}

impl core::error::Error for RunError {}

/// Decodes `count` rows that follow a row with the code `after`, and passes each to `visit`.
///
/// # Errors
/// [`RunError`] at the first invalid row, after `visit` has seen those before it.
pub fn decode_run(
    mut after: u32,
    count: u32,
    mut bytes: &[u8],
    mut visit: impl FnMut(Row),
) -> Result<(), RunError> {
    let mut number = || {
        let value = take_varint(&mut bytes).ok_or(RunError::Cut)?;
        u32::try_from(value).map_err(|_| RunError::Impossible)
    };
    for _ in 0..count {
        let (step, rule) = (number()?, number()?);
        let code = after.checked_add(step).filter(|_| step > 0);
        after = code.ok_or(RunError::Impossible)?;
        visit(Row { code: after, rule: Rule(rule) });
    }
    match bytes.len() {
        0 => Ok(()),
        left => Err(RunError::LeftOver(left)),
    }
}

/// The magic of a table file.
pub const MAGIC: [u8; 8] = *b"UNIKCALL";
/// Architectures, by their numbers in ELF files (`e_machine`).
pub mod machine {
    /// `EM_X86_64`.
    pub const X86_64: u16 = 62;
    /// `EM_AARCH64`.
    pub const AARCH64: u16 = 183;

    /// The name of an architecture in agents; `None` if there is no agent for it.
    pub const fn name(machine: u16) -> Option<&'static str> {
        match machine {
            X86_64 => Some("x86_64"),
            AARCH64 => Some("aarch64"),
            _ => None,
        }
    }
}

/// The version of table files.
pub const VERSION: u32 = 1;
/// The length of a table file's head, in bytes.
pub const HEAD: usize = 88;

/// A caller table in a file, keyed by file offset.
#[derive(Clone, Copy, Debug)]
pub struct TableFile<'a> {
    machine: u16,
    build_id: &'a [u8],
    rows: &'a [u8],
}

/// Why bytes are not a table file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableFileError {
    /// They do not begin with [`MAGIC`].
    Magic,
    /// Their version is not [`VERSION`].
    Version(u32),
    /// A length in the head is impossible, or the file is truncated or too long.
    Length,
    /// The rows are damaged.
    Checksum,
    /// A row is out of order: its index.
    Order(u32),
}

impl fmt::Display for TableFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic => f.write_str("not a caller table: it does not begin with UNIKCALL"),
            Self::Version(found) => write!(
                f,
                "a caller table of version {found}; this program reads version {VERSION}: make it \
                 again with the client of this version"
            ),
            Self::Length => {
                f.write_str("the caller table is truncated, or longer than its head says")
            }
            Self::Checksum => f.write_str("the caller table is damaged: its checksum is wrong"),
            Self::Order(row) => write!(f, "row {row} of the caller table is out of order"),
        }
    }
}

impl core::error::Error for TableFileError {}

impl<'a> TableFile<'a> {
    /// Checks `bytes` and decodes their head.
    ///
    /// # Errors
    /// [`TableFileError`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, TableFileError> {
        if !bytes.starts_with(&MAGIC) {
            return Err(TableFileError::Magic);
        }
        let number = |at: usize| {
            let bytes = bytes.get(at..at + 4)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?))
        };
        let version = number(8).ok_or(TableFileError::Length)?;
        if version != VERSION {
            return Err(TableFileError::Version(version));
        }
        let parts = || {
            let [machine, length] = [12, 14].map(|at| {
                let bytes = bytes.get(at..at + 2)?;
                Some(u16::from_le_bytes(bytes.try_into().ok()?))
            });
            let build_id = bytes.get(16..16 + MAX_BUILD_ID)?;
            let build_id = build_id.get(..usize::from(length?))?;
            let rows = bytes.get(HEAD..)?;
            let whole = rows.len() as u64 == u64::from(number(80)?) * 8;
            (whole && !build_id.is_empty()).then_some((machine?, build_id, rows))
        };
        let (machine, build_id, rows) = parts().ok_or(TableFileError::Length)?;
        if Some(crc32c(0, rows)) != number(84) {
            return Err(TableFileError::Checksum);
        }
        let file = Self { machine, build_id, rows };
        let mut floor = None;
        for (number, row) in (0..).zip(file.rows()) {
            if floor >= Some(row.code) {
                return Err(TableFileError::Order(number));
            }
            floor = Some(row.code);
        }
        Ok(file)
    }

    /// The [architecture](machine) that its rules are for.
    pub fn machine(&self) -> u16 {
        self.machine
    }

    /// The build-id of the image it was made from.
    pub fn build_id(&self) -> &'a [u8] {
        self.build_id
    }

    /// The rows, keyed by file offset, in order.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = Row> + Clone + 'a {
        let (rows, _) = self.rows.as_chunks::<8>();
        rows.iter().map(|&bytes| Row::from_bytes(bytes))
    }
}

/// The head of the table file of these rows for an [architecture](machine); the rows' bytes follow
/// it. `None` if the build-id is empty or longer than [`MAX_BUILD_ID`], or there are too many rows.
pub fn file_head(machine: u16, build_id: &[u8], rows: &[Row]) -> Option<[u8; HEAD]> {
    let mut head = [0; HEAD];
    let id = head.get_mut(16..16 + MAX_BUILD_ID)?;
    if build_id.is_empty() {
        return None;
    }
    id.get_mut(..build_id.len())?.copy_from_slice(build_id);
    let crc = rows.iter().fold(0, |crc, row| checksum(crc, *row));
    head[..8].copy_from_slice(&MAGIC);
    for (at, value) in [
        (8, VERSION),
        (12, u32::from(machine) | (build_id.len() as u32) << 16),
        (80, u32::try_from(rows.len()).ok()?),
        (84, crc),
    ] {
        head[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    Some(head)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    fn cfa(base: Base, words: u16, saved_fp: Option<u8>) -> Caller {
        Caller::Cfa { base, words, saved_fp }
    }

    fn loaded(base: Base, at: u8, plus: u8, saved_fp: Option<u8>) -> Caller {
        Caller::LoadedCfa { base, at, plus, saved_fp }
    }

    #[test]
    fn rules_come_apart_as_they_were_put_together() {
        let mut callers = std::vec![Caller::Unknown, Caller::Outermost];
        for base in [Base::StackPointer, Base::FramePointer] {
            for saved_fp in [None, Some(1), Some(2), Some(63)] {
                callers.extend([0, 1, 2, 300, u16::MAX].map(|words| cfa(base, words, saved_fp)));
                let loads = [(0, 0), (1, 1), (0, 7), (127, 0), (5, 127)];
                callers.extend(loads.map(|(at, plus)| loaded(base, at, plus, saved_fp)));
            }
        }
        for caller in callers {
            assert_eq!(Rule::new(caller).caller(), caller);
        }
        for too_far in [
            loaded(Base::StackPointer, 128, 0, None),
            loaded(Base::StackPointer, 0, 128, None),
            cfa(Base::StackPointer, 80, Some(64)),
        ] {
            assert_eq!(Rule::new(too_far), Rule::UNKNOWN);
        }
        let entry = cfa(Base::StackPointer, 1, None);
        assert_eq!(Rule::ENTRY.caller(), entry);
        let record = cfa(Base::FramePointer, 2, Some(2));
        assert_eq!(Rule::FRAME_RECORD.caller(), record);
    }

    /// The return address must not affect the other fields.
    #[test]
    fn the_return_address_has_a_field_of_its_own() {
        let rule = Rule::FRAME_RECORD.with_return_address(255);
        assert_eq!(rule.0 >> 24, 255);
        assert_eq!(rule.return_address(), 255);
        assert_eq!(rule.caller(), Rule::FRAME_RECORD.caller());
        assert_eq!(rule.with_return_address(0), Rule::FRAME_RECORD);
        assert_eq!(Rule::ENTRY.return_address(), 0);
    }

    /// Rules that a later version may define are unknown to this one.
    #[test]
    fn reserved_rules_are_unknown() {
        for reserved in [4, 1 << 8, 1 << 24, 1 | 1 << 2, 1 | 2 << 8, 1 | 1 << 24] {
            assert_eq!(Rule(reserved).caller(), Caller::Unknown, "{reserved:#x}");
        }
    }

    const fn row(code: u32, rule: Rule) -> Row {
        Row { code, rule }
    }

    const ROWS: [Row; 4] = [
        row(16, Rule::ENTRY),
        row(17, Rule::FRAME_RECORD),
        row(0x10_0000, Rule::UNKNOWN),
        row(u32::MAX, Rule(u32::MAX)),
    ];

    #[test]
    fn runs_come_back() {
        let mut buffer = [0; 40];
        let mut encoder = RunEncoder::new(0, &mut buffer);
        for row in ROWS {
            assert!(encoder.has_room());
            encoder.push(row);
        }
        let length = encoder.finish();
        let run = &buffer[..length];
        let mut rows = Vec::new();
        decode_run(0, 4, run, |row| rows.push(row)).unwrap();
        assert_eq!(rows, ROWS);
        let decode = |after, count, run| decode_run(after, count, run, |_| ());
        assert_eq!(decode(0, 4, &run[..length - 1]), Err(RunError::Cut));
        assert_eq!(decode(0, 2, &[16, 3, 0, 3]), Err(RunError::Impossible));
        assert_eq!(decode(u32::MAX, 1, &[1, 0]), Err(RunError::Impossible));
        assert_eq!(decode(0, 1, &[1, 0, 9]), Err(RunError::LeftOver(1)));
    }

    fn file(build_id: &[u8]) -> Option<Vec<u8>> {
        let mut file = Vec::from(file_head(machine::AARCH64, build_id, &ROWS)?);
        file.extend(ROWS.iter().flat_map(|row| row.to_bytes()));
        Some(file)
    }

    #[test]
    fn files_come_back_and_damage_is_found() {
        let file = file(&[7; 20]).unwrap();
        let parsed = TableFile::parse(&file).unwrap();
        assert_eq!(parsed.build_id(), [7; 20]);
        assert_eq!(parsed.machine(), machine::AARCH64);
        assert!(parsed.rows().eq(ROWS));
        let error = |bytes: &[u8]| TableFile::parse(bytes).unwrap_err();
        assert_eq!(error(&file[1..]), TableFileError::Magic);
        assert_eq!(error(&file[..file.len() - 1]), TableFileError::Length);
        assert_eq!(error(&file[..20]), TableFileError::Length);
        for (at, expected) in [
            (8, TableFileError::Version(0)),
            (14, TableFileError::Length),
            (80, TableFileError::Length),
            (84, TableFileError::Checksum),
            (100, TableFileError::Checksum),
        ] {
            let mut bad = file.clone();
            bad[at] ^= if at == 14 { 20 } else { 1 };
            assert_eq!(error(&bad), expected, "byte {at}");
        }
        assert!(self::file(&[]).is_none() && self::file(&[1; 65]).is_none());
    }

    #[test]
    fn a_table_of_several_parts_has_a_checksum_of_its_own() {
        let part = |first, end, checksum| Part { first, end, rows: 2, checksum };
        let (a, b) = (part(16, 32, 7), part(32, 64, 8));
        assert_eq!(table_checksum([].into_iter()), None);
        assert_eq!(table_checksum([a].into_iter()), Some(7));
        let both = table_checksum([a, b].into_iter());
        assert!(both.is_some());
        for other in [[b, a], [a, part(32, 65, 8)], [a, part(32, 64, 9)]] {
            assert_ne!(table_checksum(other.into_iter()), both);
        }
    }

    #[test]
    fn rows_out_of_order_are_refused() {
        let rows = [ROWS[1], ROWS[0]];
        let mut file = Vec::from(file_head(machine::X86_64, &[1], &rows).unwrap());
        file.extend(rows.iter().flat_map(|row| row.to_bytes()));
        assert_eq!(TableFile::parse(&file).err(), Some(TableFileError::Order(1)));
    }
}
