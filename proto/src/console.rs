//! A block of memory as lines of text, for an output that carries nothing else: a console and its
//! log.
//!
//! The [block](crate::file::BlockHead) of a crashed guest is written in pieces, one per line:
//! ```text
//! unikprof:Hj2Y8QAAAHdoYXQgYSBndWVzdCBsZWZ0IHdoZW4gaXQgY3Jhc2hlZCwgYW5kIHRl54jH
//! ```
//!
//! Each line has the [mark](MARK) and [`LETTERS`] letters: 51 bytes in base64 with the alphabet for
//! URLs (RFC 4648), which no JSON escapes.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | the dump's identity: the CRC-32C of the head's fields, which ends the block's head |
//! | 4 | 3 | the line's number, from 0 |
//! | 7 | 40 | the bytes; zeros follow the last |
//! | 47 | 4 | the CRC-32C of the 47 bytes before |
//!
//! Numbers are little-endian. Lines are short enough for Xen's own log, which splits longer ones, and
//! are independent: they may come in any order, repeatedly and mixed with those of other dumps.
//! A long block's first [`REPEATED`] lines come again at its end, so that a log that lost either end
//! has the beginning of the block.

use core::fmt;

use crate::frame::crc32c;

/// The beginning of each line.
pub const MARK: &str = "unikprof:";

/// The number of bytes in a line.
pub const BYTES: usize = 40;

/// The number of letters after the mark.
pub const LETTERS: usize = 68;

/// The number of lines that are repeated at the end: with short stamps less than 16 KiB of text, the
/// size of Xen's log by default.
pub const REPEATED: u32 = 150;

/// The maximum number of bytes that lines can carry.
pub const MAX_BYTES: usize = BYTES << 20;

/// The length of a line, without the newline.
const LENGTH: usize = MARK.len() + LETTERS;
const RAW: usize = LETTERS / 4 * 3;
/// The range of the payload's bytes in a decoded line.
const START: usize = 7;
const END: usize = START + BYTES;
/// The fields of a block's head before their checksum.
const FIELDS: usize = crate::file::BlockHead::LENGTH - 4;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

// Xen collects up to 78 bytes that a guest writes to the port 0xE9, including the newline.
const _: () = assert!(LENGTH < 78 && RAW == END + 4);

/// The lines of a block, at most [`MAX_BYTES`] of it.
///
/// ```
/// use unikprof_proto::console::{Lines, MARK, Piece};
///
/// for line in Lines::of(&[7; 50]) {
///     let letters = line.as_str().strip_prefix(MARK).unwrap();
///     let piece = Piece::decode(letters.as_bytes()).unwrap();
///     assert_eq!(piece.bytes[0], 7);
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Lines<'b> {
    block: &'b [u8],
    dump: u32,
    next: u32,
}

impl<'b> Lines<'b> {
    /// The lines of this block.
    pub fn of(block: &'b [u8]) -> Self {
        let block = block.get(..MAX_BYTES).unwrap_or(block);
        Self { block, dump: crc32c(0, block.get(..FIELDS).unwrap_or(block)), next: 0 }
    }
}

impl Iterator for Lines<'_> {
    type Item = Line;

    fn next(&mut self) -> Option<Line> {
        let lines = self.block.len().div_ceil(BYTES) as u32;
        let repeated = if lines > REPEATED { REPEATED } else { 0 };
        let number = match self.next {
            next if next < lines => next,
            next if next - lines < repeated => next - lines,
            _ => return None,
        };
        self.next += 1;
        let rest = self.block.get(number as usize * BYTES..)?;
        let mut piece = Piece { dump: self.dump, number, bytes: [0; BYTES] };
        piece.bytes.iter_mut().zip(rest).for_each(|(place, byte)| *place = *byte);
        Some(Line(piece.encode()))
    }
}

/// A line without its newline.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Line([u8; LENGTH]);

impl Line {
    /// The line's text: ASCII.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Line").field(&self.as_str()).finish()
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The contents of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The identity of the dump that the line is part of.
    pub dump: u32,
    /// The line's number.
    pub number: u32,
    /// The bytes; in the last line, zeros follow them.
    pub bytes: [u8; BYTES],
}

impl Piece {
    /// Decodes the letters after a mark; `None` if they are not exactly a line's.
    pub fn decode(letters: &[u8]) -> Option<Self> {
        let mut raw = [0; RAW];
        let letters: &[u8; LETTERS] = letters.try_into().ok()?;
        for (four, three) in letters.as_chunks::<4>().0.iter().zip(raw.as_chunks_mut::<3>().0) {
            let bits = four.iter().try_fold(0, |bits, &letter| Some(bits << 6 | value(letter)?))?;
            three.copy_from_slice(&u32::to_be_bytes(bits)[1..]);
        }
        let [a, b, c, d, e, f, g, ..] = raw;
        let is_whole = crc32c(0, &raw[..END]).to_le_bytes() == raw[END..];
        let mut bytes = [0; BYTES];
        bytes.copy_from_slice(&raw[START..END]);
        let (dump, number) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, 0]));
        let is_whole = is_whole && (number as usize) < MAX_BYTES / BYTES;
        is_whole.then_some(Self { dump, number, bytes })
    }

    fn encode(&self) -> [u8; LENGTH] {
        let mut raw = [0; RAW];
        raw[..4].copy_from_slice(&self.dump.to_le_bytes());
        raw[4..START].copy_from_slice(&self.number.to_le_bytes()[..3]);
        raw[START..END].copy_from_slice(&self.bytes);
        let checksum = crc32c(0, &raw[..END]).to_le_bytes();
        raw[END..].copy_from_slice(&checksum);
        let mut text = [0; LENGTH];
        let (mark, letters) = text.split_at_mut(MARK.len());
        mark.copy_from_slice(MARK.as_bytes());
        // A division by the size of a chunk that is not constant would reach a panic.
        for (four, three) in letters.as_chunks_mut::<4>().0.iter_mut().zip(raw.as_chunks::<3>().0) {
            let bits = three.iter().fold(0, |bits, &byte| bits << 8 | u32::from(byte));
            for (letter, shift) in four.iter_mut().zip([18, 12, 6, 0]) {
                *letter = ALPHABET[(bits >> shift & 63) as usize];
            }
        }
        text
    }
}

/// The value of a letter; `None` for any other byte.
pub fn value(letter: u8) -> Option<u32> {
    ALPHABET.iter().position(|known| *known == letter).map(|value| value as u32)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    extern crate std;

    use super::*;
    use std::string::{String, ToString};
    use std::vec::Vec;

    fn decode(line: &str) -> Option<Piece> {
        Piece::decode(line.strip_prefix(MARK)?.as_bytes())
    }

    #[test]
    fn a_line_is_as_it_was() {
        let lines: Vec<String> =
            Lines::of(b"what a guest left when it crashed, and then some more bytes")
                .map(|line| line.to_string())
                .collect();
        assert_eq!(
            lines,
            [
                "unikprof:Hj2Y8QAAAHdoYXQgYSBndWVzdCBsZWZ0IHdoZW4gaXQgY3Jhc2hlZCwgYW5kIHRl54jH",
                "unikprof:Hj2Y8QEAAGhlbiBzb21lIG1vcmUgYnl0ZXMAAAAAAAAAAAAAAAAAAAAAAAAAAACqhVyL",
            ]
        );
    }

    #[test]
    fn what_goes_out_comes_back() {
        for length in (0..4 * BYTES).chain([REPEATED as usize * BYTES, 9001]) {
            let block: Vec<u8> = (0..length).map(|index| (index * 37 + length) as u8).collect();
            let mut back = std::vec![0; length.next_multiple_of(BYTES)];
            let pieces: Vec<Piece> =
                Lines::of(&block).map(|line| decode(line.as_str()).unwrap()).collect();
            for piece in &pieces {
                assert_eq!(piece.dump, pieces[0].dump);
                back[piece.number as usize * BYTES..][..BYTES].copy_from_slice(&piece.bytes);
            }
            assert_eq!(back[..length], block);
            let repeated = if length > 9000 { REPEATED as usize } else { 0 };
            assert_eq!(pieces.len(), length.div_ceil(BYTES) + repeated);
            assert!(pieces[pieces.len() - repeated..].iter().zip(&pieces).all(|(a, b)| a == b));
        }
    }

    /// Guards against a console that loses, alters or mixes characters.
    #[test]
    fn what_was_altered_or_cut_is_none() {
        let line = Lines::of(&[9; 20]).next().unwrap();
        let text = line.as_str();
        for end in MARK.len()..text.len() {
            assert_eq!(decode(&text[..end]), None, "{end}");
        }
        for at in MARK.len()..text.len() {
            for other in ["A", "0", "=", ":", "_"] {
                let mut altered = String::from(text);
                altered.replace_range(at..=at, other);
                assert!(altered == text || decode(&altered).is_none(), "{at}: {other}");
            }
        }
        let piece = Piece { dump: 1, number: 1 << 20, bytes: [0; BYTES] };
        assert_eq!(Piece::decode(&piece.encode()[MARK.len()..]), None, "beyond the last line");
    }
}
