//! Faults of one direction of a connection.

use std::time::Duration;

use unikprof_proto::frame::HEADER;
use unikprof_proto::preamble;
use unikprof_proto::secure::RECORD_HEADER;

use super::random::Random;

/// A fault of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    Delay(Duration),
    SingleBytes,
    /// Closed after so many bytes.
    Cut(u64),
    /// Reset after so many bytes.
    Reset(u64),
    /// Only this direction is closed after so many bytes.
    HalfClose(u64),
    /// Nothing more comes after so many bytes, for a while; then the line is cut.
    Stall(u64, Duration),
    /// A bit of the byte after so many is changed.
    Alter(u64),
    /// The record with this number is changed, where there are records.
    AlterRecord(u64),
    /// The record with this number comes twice.
    ReplayRecord(u64),
    /// The record with this number comes after the next.
    ReorderRecord(u64),
    /// The record with this number is left out.
    DropRecord(u64),
    /// The record with this number lacks its end, and others follow.
    CutRecord(u64),
}

impl Fault {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Fault::None => "none",
            Fault::Delay(_) => "delay",
            Fault::SingleBytes => "single bytes",
            Fault::Cut(_) => "cut",
            Fault::Reset(_) => "reset",
            Fault::HalfClose(_) => "half close",
            Fault::Stall(..) => "stall",
            Fault::Alter(_) => "altered byte",
            Fault::AlterRecord(_) => "altered record",
            Fault::ReplayRecord(_) => "replayed record",
            Fault::ReorderRecord(_) => "reordered records",
            Fault::DropRecord(_) => "record left out",
            Fault::CutRecord(_) => "cut record",
        }
    }

    /// One of them. `place` is where a cut is to be, so that in time every place has its turn.
    pub(crate) fn draw(random: &mut Random, keyed: bool, place: u64) -> Fault {
        // Most conversations are short.
        let bound = random.pick(&[60, 300, 1_000, 8_000]);
        let anywhere = random.below(bound);
        let record = random.below(6);
        let kinds = if keyed { 13 } else { 8 };
        match random.below(kinds) {
            0 => Fault::Delay(Duration::from_millis(1 + random.below(120))),
            1 => Fault::SingleBytes,
            2 | 3 => Fault::Cut(place),
            4 => Fault::Reset(anywhere),
            5 => Fault::HalfClose(anywhere),
            6 => Fault::Stall(anywhere, Duration::from_millis(500 + random.below(3_000))),
            7 => Fault::Alter(anywhere),
            8 => Fault::AlterRecord(record),
            9 => Fault::ReplayRecord(record),
            10 => Fault::ReorderRecord(record),
            11 => Fault::DropRecord(record),
            _ => Fault::CutRecord(record),
        }
    }
}

/// The next action of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Pass(Vec<u8>),
    Wait(Duration),
    Cut,
    Reset,
    HalfClose,
}

/// One direction of a connection, with its fault.
#[derive(Debug)]
pub(crate) struct Direction {
    fault: Fault,
    passed: u64,
    happened: bool,
    records: Option<Records>,
    /// A record that waits for the next to pass it.
    held: Vec<u8>,
}

/// Finds the records behind what is sent in the clear.
#[derive(Debug, Default)]
struct Records {
    buffer: Vec<u8>,
    clear: Clear,
    number: u64,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Clear {
    #[default]
    Preamble,
    Frame,
    Over,
}

impl Direction {
    pub(crate) fn new(fault: Fault) -> Direction {
        let of_records = matches!(
            fault,
            Fault::AlterRecord(_)
                | Fault::ReplayRecord(_)
                | Fault::ReorderRecord(_)
                | Fault::DropRecord(_)
                | Fault::CutRecord(_)
        );
        Direction {
            fault,
            passed: 0,
            happened: matches!(fault, Fault::Delay(_) | Fault::SingleBytes),
            records: of_records.then(Records::default),
            held: Vec::new(),
        }
    }

    pub(crate) fn happened(&self) -> bool {
        self.happened
    }

    /// Passes these bytes on, or does with them what the fault says.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Vec<Step> {
        match self.fault {
            Fault::None => vec![Step::Pass(bytes.into())],
            Fault::Delay(wait) => vec![Step::Wait(wait), Step::Pass(bytes.into())],
            Fault::SingleBytes => bytes.iter().map(|byte| Step::Pass(vec![*byte])).collect(),
            Fault::Cut(at) => self.until(at, bytes, &[Step::Cut]),
            Fault::Reset(at) => self.until(at, bytes, &[Step::Reset]),
            Fault::HalfClose(at) => self.until(at, bytes, &[Step::HalfClose]),
            Fault::Stall(at, wait) => self.until(at, bytes, &[Step::Wait(wait), Step::Cut]),
            Fault::Alter(at) => vec![Step::Pass(self.alter(at, bytes))],
            _ => self.push_records(bytes),
        }
    }

    fn until(&mut self, at: u64, bytes: &[u8], then: &[Step]) -> Vec<Step> {
        if self.happened {
            return Vec::new();
        }
        let room = usize::try_from(at - self.passed).unwrap_or(usize::MAX);
        let passed = &bytes[..bytes.len().min(room)];
        self.passed += passed.len() as u64;
        let mut steps = vec![Step::Pass(passed.into())];
        if bytes.len() >= room {
            self.happened = true;
            steps.extend_from_slice(then);
        }
        steps
    }

    fn alter(&mut self, at: u64, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        let place = at.checked_sub(self.passed);
        self.passed += bytes.len() as u64;
        let place = place.and_then(|place| usize::try_from(place).ok());
        if let Some(byte) = place.and_then(|place| bytes.get_mut(place)) {
            *byte ^= 1 << (at % 8);
            self.happened = true;
        }
        bytes
    }

    fn push_records(&mut self, bytes: &[u8]) -> Vec<Step> {
        let Some(records) = &mut self.records else {
            return vec![Step::Pass(bytes.into())];
        };
        let mut pass = Vec::new();
        for (number, mut piece) in records.push(bytes) {
            match (number, self.fault) {
                (Some(number), Fault::AlterRecord(at)) if number == at => {
                    let last = piece.len() - 1;
                    piece[last] ^= 1;
                    pass.extend(piece);
                    self.happened = true;
                }
                (Some(number), Fault::ReplayRecord(at)) if number == at => {
                    pass.extend_from_slice(&piece);
                    pass.extend(piece);
                    self.happened = true;
                }
                (Some(number), Fault::ReorderRecord(at)) if number == at => self.held = piece,
                (Some(number), Fault::ReorderRecord(at)) if number == at + 1 => {
                    pass.extend(piece);
                    pass.append(&mut self.held);
                    self.happened = true;
                }
                (Some(number), Fault::DropRecord(at)) if number == at => self.happened = true,
                (Some(number), Fault::CutRecord(at)) if number == at => {
                    pass.extend_from_slice(&piece[..piece.len() - 1]);
                    self.happened = true;
                }
                _ => pass.extend(piece),
            }
        }
        vec![Step::Pass(pass)]
    }
}

impl Records {
    /// Whole pieces; those that are records with their numbers.
    fn push(&mut self, bytes: &[u8]) -> Vec<(Option<u64>, Vec<u8>)> {
        self.buffer.extend_from_slice(bytes);
        let mut pieces = Vec::new();
        while let Some(length) = self.whole() {
            let piece: Vec<u8> = self.buffer.drain(..length).collect();
            let number = match self.clear {
                Clear::Preamble => {
                    self.clear = Clear::Frame;
                    None
                }
                Clear::Frame => {
                    self.clear = Clear::Over;
                    None
                }
                Clear::Over => {
                    self.number += 1;
                    Some(self.number - 1)
                }
            };
            pieces.push((number, piece));
        }
        pieces
    }

    /// The length of what stands first, if all of it is there.
    fn whole(&self) -> Option<usize> {
        let length = match self.clear {
            Clear::Preamble => preamble::LENGTH,
            Clear::Frame => {
                let length = self.buffer.get(2..6)?.first_chunk()?;
                HEADER + u32::from_le_bytes(*length) as usize
            }
            Clear::Over => {
                let length = self.buffer.first_chunk()?;
                RECORD_HEADER + usize::from(u16::from_le_bytes(*length))
            }
        };
        (self.buffer.len() >= length).then_some(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(steps: &[Step]) -> Vec<u8> {
        let bytes = steps.iter().filter_map(|step| match step {
            Step::Pass(bytes) => Some(&bytes[..]),
            _ => None,
        });
        bytes.collect::<Vec<_>>().concat()
    }

    /// Guards a cut that comes somewhere else than it is counted for.
    #[test]
    fn a_cut_is_at_its_place_however_the_bytes_come() {
        for place in 0..6 {
            let mut whole = Direction::new(Fault::Cut(place));
            let steps = whole.push(b"123456");
            assert_eq!(passed(&steps), b"123456"[..place as usize]);
            assert_eq!(steps.last(), Some(&Step::Cut));
            let mut single = Direction::new(Fault::Cut(place));
            let steps: Vec<Step> = b"123456".iter().flat_map(|b| single.push(&[*b])).collect();
            assert_eq!(passed(&steps), b"123456"[..place as usize]);
            assert_eq!(steps.iter().filter(|step| **step == Step::Cut).count(), 1);
        }
    }

    /// A preamble, a frame with two bytes, then three records.
    const KEYED: &[u8] = b"unikprof........\x0b\0\x02\0\0\0\0\0\0\0hs\x01\0a\x02\0bb\x01\0c";

    /// Guards faults that hit the handshake, and pass for faults of records.
    #[test]
    fn records_are_found_behind_the_handshake() {
        let clear = KEYED.len() - 10;
        for (fault, expected) in [
            (Fault::ReplayRecord(1), &b"\x01\0a\x02\0bb\x02\0bb\x01\0c"[..]),
            (Fault::ReorderRecord(0), b"\x02\0bb\x01\0a\x01\0c"),
            (Fault::DropRecord(2), b"\x01\0a\x02\0bb"),
            (Fault::CutRecord(1), b"\x01\0a\x02\0b\x01\0c"),
            (Fault::AlterRecord(0), b"\x01\0`\x02\0bb\x01\0c"),
        ] {
            let mut direction = Direction::new(fault);
            let steps: Vec<Step> = KEYED.chunks(3).flat_map(|b| direction.push(b)).collect();
            let passed = passed(&steps);
            assert_eq!(passed[..clear], KEYED[..clear], "{fault:?}");
            assert_eq!(passed[clear..], *expected, "{fault:?}");
            assert!(direction.happened(), "{fault:?}");
        }
    }
}
