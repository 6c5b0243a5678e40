//! The guest's image: its code and its build-id, from the ELF headers that are loaded with it.
#![allow(unsafe_code, reason = "the headers are read from the image's memory")]

use core::arch::global_asm;
use core::fmt;

use unikprof_agent::Mapping;

use crate::machine::address_of;

// GNU ld and lld define the symbol where a segment contains the file's headers. In a word of its own, so that a
// missing one is 0.
global_asm!(
    r#"
    .pushsection .data.rel.ro.unikprof_dropin, "aw", @progbits
    .weak __ehdr_start
    .balign 8
unikprof_dropin_image_headers:
    .quad __ehdr_start
    .popsection
"#
);

const LOAD: u32 = 1;
const NOTE: u32 = 4;
const EXECUTABLE: u32 = 1;
/// `NT_GNU_BUILD_ID`.
const BUILD_ID: u32 = 3;
const PROGRAM_HEADER: usize = 56;

/// Why the code is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoImage {
    NoHeaders,
    NoCode,
}

impl fmt::Display for NoImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoHeaders => {
                "the image's ELF headers are not loaded: add FILEHDR PHDRS to the first segment of its linker script"
            }
            Self::NoCode => "the image has no executable segment",
        })
    }
}

/// The image's executable segment.
pub(crate) fn mapping() -> Result<Mapping<'static>, NoImage> {
    let word = |address: u64| {
        let place = core::ptr::with_exposed_provenance::<u64>(address as usize);
        // SAFETY: the word above, or inside the headers, which are loaded with the image and never written.
        unsafe { place.read_unaligned() }
    };
    let headers = word(address_of!("unikprof_dropin_image_headers"));
    if headers == 0 {
        return Err(NoImage::NoHeaders);
    }
    let count = word(headers + 0x38) as u16;
    let first = headers + word(headers + 0x20);
    let mut code = None;
    let mut build_id: &'static [u8] = &[];
    for number in 0..usize::from(count) {
        let at = first + (number * PROGRAM_HEADER) as u64;
        let (kind, flags) = (word(at) as u32, (word(at) >> 32) as u32);
        let [file_offset, address, size] = [8, 16, 40].map(|offset| word(at + offset));
        match kind {
            LOAD if flags & EXECUTABLE != 0 && code.is_none() => {
                code = Some((address, size, file_offset));
            }
            NOTE => {
                let notes = core::ptr::with_exposed_provenance::<u8>(address as usize);
                // SAFETY: a note's segment is loaded with the image and never written.
                let notes = unsafe { core::slice::from_raw_parts(notes, size as usize) };
                build_id = find_build_id(notes).unwrap_or(build_id);
            }
            _ => {}
        }
    }
    let (start, size, file_offset) = code.ok_or(NoImage::NoCode)?;
    Ok(Mapping {
        start,
        end: start + size,
        file_offset,
        build_id,
        path: "",
    })
}

/// The build-id among notes. A note: sizes of name and description, type, name, description, both padded to four
/// bytes.
fn find_build_id(mut notes: &[u8]) -> Option<&[u8]> {
    loop {
        let [name_size, size, kind] = [0, 4, 8].map(|at| {
            let bytes = notes.get(at..at + 4)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?))
        });
        let rest = notes.get(12..)?;
        let (name_size, size) = (name_size? as usize, size? as usize);
        let start = name_size.checked_next_multiple_of(4)?;
        let name = rest.get(..name_size)?;
        let description = rest.get(start..start.checked_add(size)?)?;
        if kind? == BUILD_ID && name == b"GNU\0" {
            return Some(description);
        }
        notes = rest.get(start + size.checked_next_multiple_of(4)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn note(name: &[u8], kind: u32, description: &[u8]) -> Vec<u8> {
        let mut note = Vec::new();
        for number in [name.len() as u32, description.len() as u32, kind] {
            note.extend(number.to_le_bytes());
        }
        for part in [name, description] {
            note.extend(part);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    }

    #[test]
    fn the_build_id_is_found_behind_other_notes() {
        let mut notes = note(b"Xen\0", 18, &[1, 2, 3, 4]);
        notes.extend(note(b"GNU\0", 5, &[9; 7]));
        assert_eq!(find_build_id(&notes), None);
        notes.extend(note(b"GNU\0", 3, b"twenty bytes of hash"));
        assert_eq!(find_build_id(&notes), Some(&b"twenty bytes of hash"[..]));
        for end in 0..notes.len() {
            assert_eq!(find_build_id(&notes[..end]), None, "{end}");
        }
    }
}
