//! A block of memory as lines of text, for an output that carries nothing else: a console and its
//! log.
//!
//! The [block](crate::file::BlockHead) of a crashed guest is written in pieces, one per line:
//! ```text
//! unikprof:00000:iXVuaWttZW3sGgAAAAAAADvkQh7LhhrGiXVuaWtyZWMBAAEAAAAA:9f1c02ab
//! ```
//!
//! Each line has the [mark](MARK), the line's number from 0 in five hexadecimal digits, up to
//! [`BYTES`] bytes in base64 (RFC 4648, padded), and in eight digits the CRC-32C of the number, as
//! four bytes little-endian, and of the bytes. Only the last line has fewer bytes than the others.
//! Lines are short enough for Xen's own log, which splits longer ones, and are independent: other
//! lines may come between, and a timestamp or a domain id in front.

use core::fmt;

use crate::frame::crc32c;

/// The beginning of each line.
pub const MARK: &str = "unikprof:";

/// The number of bytes in a line.
pub const BYTES: usize = 39;

/// The length of the longest line, without the newline.
pub const LONGEST: usize = MARK.len() + DIGITS + 1 + BYTES.div_ceil(3) * 4 + 1 + 8;

/// The maximum number of bytes that lines can carry, limited by the line's number.
pub const MAX_BYTES: usize = BYTES << (4 * DIGITS);

/// Hexadecimal digits of a line's number.
const DIGITS: usize = 5;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// Xen collects up to 78 bytes that a guest writes to the port 0xE9, including the newline.
const _: () = assert!(LONGEST < 78 && BYTES.is_multiple_of(3));

/// The lines of a block, at most [`MAX_BYTES`] of it.
///
/// ```
/// use unikprof_proto::console::{Lines, piece};
///
/// for line in Lines::of(&[7; 50]) {
///     let piece = piece(line.as_str().as_bytes()).unwrap();
///     assert_eq!(piece.bytes()[0], 7);
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Lines<'b> {
    number: u32,
    rest: &'b [u8],
}

impl<'b> Lines<'b> {
    /// The lines of this block.
    pub fn of(block: &'b [u8]) -> Self {
        Self { number: 0, rest: block.get(..MAX_BYTES).unwrap_or(block) }
    }
}

impl Iterator for Lines<'_> {
    type Item = Line;

    fn next(&mut self) -> Option<Line> {
        if self.rest.is_empty() {
            return None;
        }
        let (bytes, rest) = self.rest.split_at(self.rest.len().min(BYTES));
        let line = Line::new(self.number, bytes);
        self.number += 1;
        self.rest = rest;
        Some(line)
    }
}

/// A line without its newline.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Line {
    text: [u8; LONGEST],
    length: usize,
}

impl Line {
    fn new(number: u32, bytes: &[u8]) -> Self {
        let mut line = Self { text: [0; LONGEST], length: 0 };
        line.push(MARK.as_bytes());
        line.push_hexadecimal(number, DIGITS);
        line.push(b":");
        for three in bytes.chunks(3) {
            let byte = |index| u32::from(three.get(index).copied().unwrap_or(0));
            let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
            for index in 0..4 {
                let six = bits >> (18 - 6 * index) & 63;
                let is_padding = index > three.len();
                line.push(&[if is_padding { b'=' } else { ALPHABET[six as usize] }]);
            }
        }
        line.push(b":");
        line.push_hexadecimal(checksum(number, bytes), 8);
        line
    }

    fn push(&mut self, text: &[u8]) {
        if let Some(place) = self.text.get_mut(self.length..self.length + text.len()) {
            place.copy_from_slice(text);
            self.length += text.len();
        }
    }

    fn push_hexadecimal(&mut self, number: u32, digits: usize) {
        for index in (0..digits).rev() {
            let digit = number >> (4 * index) & 15;
            self.push(&[b"0123456789abcdef"[digit as usize]]);
        }
    }

    /// The line's text: ASCII.
    pub fn as_str(&self) -> &str {
        let text = self.text.get(..self.length).unwrap_or_default();
        core::str::from_utf8(text).unwrap_or_default()
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
    /// The line's number.
    pub number: u32,
    bytes: [u8; BYTES],
    length: usize,
}

impl Piece {
    /// The bytes: [`BYTES`] of them, fewer in the last line.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// The first complete piece in a line of a log, whatever is before and after it.
pub fn piece(line: &[u8]) -> Option<Piece> {
    let mark = MARK.as_bytes();
    let mut marks = line.windows(mark.len()).enumerate();
    marks.find_map(|(at, found)| {
        let behind = line.get(at + mark.len()..).filter(|_| found == mark)?;
        parse(behind)
    })
}

/// Parses the text after a mark.
fn parse(text: &[u8]) -> Option<Piece> {
    let (number, text) = text.split_at_checked(DIGITS)?;
    let number = hexadecimal(number)?;
    let text = text.strip_prefix(b":")?;
    let end = text.iter().position(|&byte| byte == b':')?;
    let (code, text) = text.split_at(end);
    let expected = hexadecimal(text.get(1..9)?)?;

    let mut bytes = [0; BYTES];
    let length = decode(code, &mut bytes)?;
    let piece = Piece { number, bytes, length };
    (checksum(number, piece.bytes()) == expected).then_some(piece)
}

/// Decodes base64 and returns the number of bytes; `None` if it is invalid, or more than a line
/// has.
fn decode(code: &[u8], into: &mut [u8; BYTES]) -> Option<usize> {
    let padding = code.iter().rev().take_while(|&&byte| byte == b'=').count();
    let letters = code.get(..code.len() - padding)?;
    let length = letters.len() * 6 / 8;
    if padding > 2 || !code.len().is_multiple_of(4) || length == 0 {
        return None;
    }
    let bytes = into.get_mut(..length)?;
    for (three, four) in bytes.chunks_mut(3).zip(letters.chunks(4)) {
        let mut bits = 0_u32;
        for (index, letter) in four.iter().enumerate() {
            let six = ALPHABET.iter().position(|known| known == letter)?;
            bits |= (six as u32) << (18 - 6 * index);
        }
        for (byte, from) in three.iter_mut().zip(&bits.to_be_bytes()[1..]) {
            *byte = *from;
        }
    }
    Some(length)
}

fn hexadecimal(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |number, &digit| {
        let value = char::from(digit).to_digit(16)?;
        Some(number << 4 | value)
    })
}

fn checksum(number: u32, bytes: &[u8]) -> u32 {
    crc32c(crc32c(0, &number.to_le_bytes()), bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    extern crate std;

    use super::*;
    use std::string::{String, ToString};
    use std::vec::Vec;

    /// Later versions must be able to read old console logs: this text may never change.
    #[test]
    fn a_line_is_as_it_was() {
        let lines: Vec<String> =
            Lines::of(b"what a guest left when it crashed, and then some more bytes")
                .map(|line| line.to_string())
                .collect();
        assert_eq!(
            lines,
            [
                "unikprof:00000:d2hhdCBhIGd1ZXN0IGxlZnQgd2hlbiBpdCBjcmFzaGVkLCBhbmQg:891170cf",
                "unikprof:00001:dGhlbiBzb21lIG1vcmUgYnl0ZXM=:c30c3dae",
            ]
        );
    }

    #[test]
    fn what_goes_out_comes_back() {
        for length in 0..4 * BYTES {
            let block: Vec<u8> = (0..length).map(|index| (index * 37 + length) as u8).collect();
            let mut back = Vec::new();
            for (number, line) in (0..).zip(Lines::of(&block)) {
                assert!(line.as_str().len() <= LONGEST);
                let text = std::format!("(d7) [12.5] {line}\r");
                let piece = piece(text.as_bytes()).unwrap();
                assert_eq!(piece.number, number);
                back.extend_from_slice(piece.bytes());
            }
            assert_eq!(back, block);
        }
    }

    /// Guards against a console that loses, alters or mixes characters.
    #[test]
    fn what_was_altered_or_cut_is_none() {
        let line = Lines::of(&[9; 20]).next().unwrap();
        let text = line.as_str().as_bytes();
        let whole = piece(text);
        for end in 0..text.len() {
            assert_eq!(piece(&text[..end]), None, "{end}");
        }
        for at in 0..text.len() {
            for other in [b'A', b'0', b'=', b':', 0xff] {
                let mut altered = text.to_vec();
                altered[at] = other;
                // Upper case, and bits that are not used, change nothing.
                let found = piece(&altered);
                assert!(found.is_none() || found == whole, "{at}: {other}");
            }
        }
        // Truncated, and started again on the same line.
        let twice = [&text[..text.len() / 2], text].concat();
        assert_eq!(piece(&twice).unwrap().bytes(), [9; 20]);
        // Base64 of more than a line holds.
        let long = std::format!("unikprof:00000:{}:00000000", "A".repeat(400));
        assert_eq!(piece(long.as_bytes()), None);
    }

    #[test]
    fn numbers_end_where_their_digits_do() {
        let line = Line::new(0xf_ffff, &[1]);
        assert_eq!(piece(line.as_str().as_bytes()).unwrap().number, 0xf_ffff);
        assert_eq!(MAX_BYTES / BYTES, 1 << 20);
    }
}
