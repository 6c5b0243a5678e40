//! The ELF image inside a Linux `bzImage`.
//!
//! Xen's loader can start a `bzImage`, but then decompresses it inside the emulated machine, which
//! costs seconds. The payload's place is in the setup header (Linux
//! `Documentation/arch/x86/boot.rst`).

/// Offset of `setup_sects`: sectors of the 16-bit part, 0 meaning 4.
const SETUP_SECTS: usize = 0x1f1;
/// Offset of the magic `HdrS`.
const MAGIC: usize = 0x202;
/// Offsets of `payload_offset` and `payload_length`, u32 each, from the protected-mode code.
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;

/// The compressed kernel inside `image`, or `None` where `image` is not a bzImage.
pub(crate) fn compressed_payload(image: &[u8]) -> Option<&[u8]> {
    if image.get(MAGIC..MAGIC + 4)? != b"HdrS" {
        return None;
    }
    let sectors = match image[SETUP_SECTS] {
        0 => 4,
        n => usize::from(n),
    };
    let start = ((sectors + 1) * 512).checked_add(u32_at(image, PAYLOAD_OFFSET)?)?;
    let end = start.checked_add(u32_at(image, PAYLOAD_LENGTH)?)?;
    image.get(start..end)
}

fn u32_at(image: &[u8], offset: usize) -> Option<usize> {
    let bytes = image.get(offset..offset + 4)?;
    usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn image(setup_sects: u8, offset: u32, length: u32) -> Vec<u8> {
        let mut image = vec![0; 4096];
        image[SETUP_SECTS] = setup_sects;
        image[MAGIC..MAGIC + 4].copy_from_slice(b"HdrS");
        image[PAYLOAD_OFFSET..PAYLOAD_OFFSET + 4].copy_from_slice(&offset.to_le_bytes());
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&length.to_le_bytes());
        image
    }

    #[test]
    fn the_payload_follows_the_setup_sectors() {
        let mut bytes = image(1, 16, 4);
        bytes[1040..1044].copy_from_slice(b"data");
        assert_eq!(compressed_payload(&bytes), Some(&b"data"[..]));
        // No sectors given means four.
        bytes[SETUP_SECTS] = 0;
        bytes[2576..2580].copy_from_slice(b"four");
        assert_eq!(compressed_payload(&bytes), Some(&b"four"[..]));
    }

    #[test]
    fn a_payload_outside_the_file_is_refused() {
        assert_eq!(compressed_payload(&image(1, 16, 1 << 20)), None);
        assert_eq!(compressed_payload(&image(1, u32::MAX, u32::MAX)), None);
        assert_eq!(compressed_payload(b"\x7fELF"), None);
    }
}
