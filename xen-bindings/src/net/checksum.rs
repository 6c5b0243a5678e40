//! TCP and UDP checksums of Ethernet frames, where the backend leaves them to us or we to it.

#![cfg_attr(not(feature = "smoltcp"), allow(dead_code, reason = "used by the smoltcp device"))]

const ETHERNET: usize = 14;
const IPV6_HEADER: usize = 40;
const TYPE_IPV4: u16 = 0x0800;
const TYPE_IPV6: u16 = 0x86dd;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// The transport part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) is_tcp: bool,
    pub(super) is_ipv6: bool,
    /// A piece of a datagram: its checksum is that of the whole.
    pub(super) is_fragment: bool,
    start: usize,
    end: usize,
    /// Sum of the pseudo header, not folded.
    pseudo_sum: u32,
}

impl Segment {
    /// Finds TCP or UDP in a frame; `None` for anything else, and for lengths that contradict each
    /// other.
    pub(super) fn find(frame: &[u8]) -> Option<Self> {
        match read_u16(frame, 12)? {
            TYPE_IPV4 => Self::find_ipv4(frame),
            TYPE_IPV6 => Self::find_ipv6(frame),
            _ => None,
        }
    }

    fn find_ipv4(frame: &[u8]) -> Option<Self> {
        let header = frame.get(ETHERNET..)?;
        let first = *header.first()?;
        let header_len = usize::from(first & 0xf) * 4;
        let total_len = usize::from(read_u16(header, 2)?);
        if first >> 4 != 4 || header_len < 20 {
            return None;
        }
        // Bit 13: more fragments; bits 12..0: offset.
        let is_fragment = read_u16(header, 6)? & 0x3fff != 0;
        let addresses = header.get(12..20)?;
        let (start, end) = (ETHERNET + header_len, ETHERNET + total_len);
        Self::new(frame, *header.get(9)?, false, is_fragment, addresses, start, end)
    }

    fn find_ipv6(frame: &[u8]) -> Option<Self> {
        let header = frame.get(ETHERNET..)?;
        let payload_len = usize::from(read_u16(header, 4)?);
        if header.first()? >> 4 != 6 {
            return None;
        }
        let addresses = header.get(8..40)?;
        let start = ETHERNET + IPV6_HEADER;
        Self::new(frame, *header.get(6)?, true, false, addresses, start, start + payload_len)
    }

    fn new(
        frame: &[u8],
        protocol: u8,
        is_ipv6: bool,
        is_fragment: bool,
        addresses: &[u8],
        start: usize,
        end: usize,
    ) -> Option<Self> {
        let is_tcp = protocol == TCP;
        let least = if is_tcp { 20 } else { 8 };
        let len = end.checked_sub(start)?;
        let fits = end <= frame.len() && (is_fragment || len >= least);
        if !(is_tcp || protocol == UDP) || !fits {
            return None;
        }
        let pseudo_sum = sum(addresses) + u32::from(protocol) + u32::try_from(len).ok()?;
        Some(Self { is_tcp, is_ipv6, is_fragment, start, end, pseudo_sum })
    }

    fn field(self) -> usize {
        self.start + if self.is_tcp { 16 } else { 6 }
    }

    /// Is the checksum in the frame right?
    pub(super) fn is_valid(self, frame: &[u8]) -> bool {
        let whole = frame.get(self.start..self.end).map_or(0, sum);
        let none_given = !self.is_tcp && !self.is_ipv6 && read_u16(frame, self.field()) == Some(0);
        none_given || fold(self.pseudo_sum + whole) == 0xffff
    }

    /// Computes the checksum and writes it into the frame.
    pub(super) fn complete(self, frame: &mut [u8]) {
        self.write(frame, 0);
        let whole = frame.get(self.start..self.end).map_or(0, sum);
        let checksum = match !fold(self.pseudo_sum + whole) {
            // To UDP a zero means that there is no checksum.
            0 if !self.is_tcp => 0xffff,
            checksum => checksum,
        };
        self.write(frame, checksum);
    }

    /// Writes the sum of the pseudo header, which is what a backend that completes the checksum
    /// wants.
    pub(super) fn leave_to_backend(self, frame: &mut [u8]) {
        self.write(frame, fold(self.pseudo_sum));
    }

    fn write(self, frame: &mut [u8], value: u16) {
        let field = self.field();
        if let Some(place) = frame.get_mut(field..field + 2) {
            place.copy_from_slice(&value.to_be_bytes());
        }
    }
}

fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// One's complement sum, not folded; frames are too short for it to overflow.
fn sum(bytes: &[u8]) -> u32 {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let pairs: u32 = pairs.iter().map(|pair| u32::from(u16::from_be_bytes(*pair))).sum();
    pairs + rest.first().map_or(0, |last| u32::from(*last) << 8)
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// An IPv4 UDP frame of 8 bytes of header and `data`.
    fn udp(data: [u8; 2]) -> [u8; 44] {
        let mut frame = [0; 44];
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        frame[16..18].copy_from_slice(&30_u16.to_be_bytes());
        frame[23] = UDP;
        frame[42..44].copy_from_slice(&data);
        frame
    }

    /// Guards against sending zero, which to UDP says that nothing was computed.
    #[test]
    fn a_udp_checksum_of_zero_is_sent_as_all_ones() {
        // Pseudo header: protocol 17 and length 10; the data make the sum all ones.
        let mut frame = udp((0xffff_u16 - 27).to_be_bytes());
        let segment = Segment::find(&frame).unwrap();
        segment.complete(&mut frame);
        assert_eq!(frame[40..42], [0xff, 0xff]);
        assert!(segment.is_valid(&frame));
        let mut other = udp([0, 0]);
        Segment::find(&other).unwrap().complete(&mut other);
        assert_eq!(other[40..42], (!27_u16).to_be_bytes());
    }

    #[test]
    fn a_udp_datagram_without_checksum_is_valid_over_ipv4() {
        let frame = udp([1, 2]);
        assert!(Segment::find(&frame).unwrap().is_valid(&frame));
    }

    /// Guards against computing over bytes that are not there, and over headers that are no
    /// headers.
    #[test]
    fn lengths_that_contradict_each_other_are_no_segment() {
        let frame = udp([1, 2]);
        assert_eq!(Segment::find(&frame[..43]), None);
        for (at, value) in [(14, 0x44), (14, 0x65), (17, 29 - 2), (16, 0xff), (23, 1)] {
            let mut changed = frame;
            changed[at] = value;
            assert_eq!(Segment::find(&changed), None, "byte {at} = {value:#x}");
        }
        let mut fragment = frame;
        fragment[20] = 0x20;
        assert!(Segment::find(&fragment).unwrap().is_fragment);
    }
}
