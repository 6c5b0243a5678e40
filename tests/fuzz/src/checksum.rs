//! Frames whose checksum is right, whatever is in them: a fuzzer cannot guess a checksum.

use unikprof_proto::frame::MAX_BODY;

/// CRC-32C, bit by bit: independent of the one that is under test.
pub(crate) fn crc32c(bytes: impl IntoIterator<Item = u8>) -> u32 {
    let crc = bytes.into_iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
        })
    });
    !crc
}

/// Adds a frame of this type and body, which is cut where it is too long.
pub(crate) fn put_frame(kind: u16, body: &[u8], out: &mut Vec<u8>) {
    let body = &body[..body.len().min(MAX_BODY)];
    let begin = out.len();
    out.extend(kind.to_le_bytes());
    out.extend((body.len() as u32).to_le_bytes());
    let crc = crc32c(out[begin..].iter().chain(body).copied());
    out.extend(crc.to_le_bytes());
    out.extend(body);
}
