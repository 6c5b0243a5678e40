//! The guest's image: its code and its build-id, from the ELF headers if they are loaded with it,
//! else from the symbols that linker scripts define.
#![allow(unsafe_code, reason = "the headers are read from the image's memory")]

use core::arch::global_asm;
use core::fmt;
use core::ops::Range;

use unikprof_agent::Mapping;

use crate::machine::address_of;

// GNU ld and lld define the first where a segment contains the file's headers; the others are usual
// names of linker scripts. In words of their own, so that a missing one is 0.
global_asm!(
    r#"
    .pushsection .data.rel.ro.unikprof_dropin, "aw", @progbits
    .weak __ehdr_start, _stext, _text, _etext, _edata
    .balign 8
unikprof_dropin_image:
    .quad __ehdr_start, _stext, _text, _etext, _edata
    .popsection
"#
);

const LOAD: u32 = 1;
const NOTE: u32 = 4;
const EXECUTABLE: u32 = 1;
/// `NT_GNU_BUILD_ID`.
const BUILD_ID: u32 = 3;
const PROGRAM_HEADER: u64 = 56;
const MAX_BUILD_ID: u64 = 64;

/// Why the code is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoImage {
    NoSymbols,
    NoCode,
}

impl fmt::Display for NoImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSymbols => {
                "the image has neither ELF headers in a loaded segment (FILEHDR PHDRS in the \
                 linker script) nor the \
                 symbol _etext in memory that is mapped one to one"
            }
            Self::NoCode => "the image has no executable segment",
        })
    }
}

/// The word at an address.
///
/// # Safety
/// The word is in the image, and not written.
unsafe fn word(address: u64) -> u64 {
    let place = core::ptr::with_exposed_provenance::<u64>(address as usize);
    // SAFETY: the caller's contract.
    unsafe { place.read_unaligned() }
}

/// The image's code. `memory` is mapped one to one.
pub(crate) fn mapping(memory: Range<u64>) -> Result<Mapping<'static>, NoImage> {
    let words = address_of!("unikprof_dropin_image");
    // SAFETY: the words above.
    let [headers, stext, text, end, data_end] =
        core::array::from_fn(|number| unsafe { word(words + 8 * number as u64) });
    if headers != 0 {
        return from_headers(headers);
    }
    let start = if stext == 0 { text } else { stext };
    let start = first_code(start, end, &memory).ok_or(NoImage::NoSymbols)?;
    Ok(Mapping {
        start,
        end,
        // Of no use: an image that is not at the addresses that the linker gave it would not run.
        file_offset: 0,
        build_id: scan(start, data_end.max(end)).unwrap_or_default(),
        path: "",
    })
}

/// The first address of the code by the symbols. An image may begin at address 0, as Mini-OS does,
/// which cannot be told from a missing symbol: then the code is what is mapped below its end.
fn first_code(start: u64, end: u64, memory: &Range<u64>) -> Option<u64> {
    let is_known = start != 0 || end <= memory.end;
    let start = if start == 0 { memory.start } else { start };
    (is_known && start < end).then_some(start)
}

/// The build-id's note between two addresses of the image.
fn scan(start: u64, end: u64) -> Option<&'static [u8]> {
    /// Behind the sizes of name and description: the type and the name.
    const TYPE_AND_NAME: u64 = BUILD_ID as u64 | (u32::from_le_bytes(*b"GNU\0") as u64) << 32;
    const NAME_SIZE: u64 = 4;
    // SAFETY: from the code to the end of the data the image is loaded.
    let word = |address| unsafe { word(address) };
    let sizes = |at: &u64| (word(at - 8) & 0xffff_ffff, word(at - 8) >> 32);
    let mut places = (start + 8..end.saturating_sub(8)).step_by(4);
    let at = places.find(|at| {
        word(*at) == TYPE_AND_NAME && matches!(sizes(at), (NAME_SIZE, 1..=MAX_BUILD_ID))
    })?;
    let (_, size) = sizes(&at);
    let id = core::ptr::with_exposed_provenance::<u8>(at as usize + 8);
    // SAFETY: as above; notes are not written.
    Some(unsafe { core::slice::from_raw_parts(id, size as usize) })
}

fn from_headers(headers: u64) -> Result<Mapping<'static>, NoImage> {
    // SAFETY: inside the headers, which are loaded with the image and never written.
    let word = |address| unsafe { word(address) };
    let count = word(headers + 0x38) as u16;
    let first = headers + word(headers + 0x20);
    let all = (0..u64::from(count)).map(|number| {
        let at = first + number * PROGRAM_HEADER;
        let [file_offset, address, size] = [8, 16, 40].map(|offset| word(at + offset));
        (word(at), address..address.saturating_add(size), file_offset)
    });
    let of_kind = |wanted| all.clone().filter(move |(kind, ..)| *kind as u32 == wanted);
    let mut code = of_kind(LOAD).filter(|(kind, ..)| (kind >> 32) as u32 & EXECUTABLE != 0);
    // Notes that are in no loaded segment are in the file only.
    let is_loaded = |notes: &Range<u64>| {
        of_kind(LOAD).any(|(_, it, _)| it.start <= notes.start && notes.end <= it.end)
    };
    let notes = of_kind(NOTE).map(|(_, notes, _)| notes).filter(is_loaded);
    let mut build_ids = notes.filter_map(|notes| {
        let start = core::ptr::with_exposed_provenance::<u8>(notes.start as usize);
        // SAFETY: loaded with the image, and never written.
        let notes =
            unsafe { core::slice::from_raw_parts(start, (notes.end - notes.start) as usize) };
        find_build_id(notes)
    });
    let build_id = build_ids.next().unwrap_or_default();
    let (_, code, file_offset) = code.next().ok_or(NoImage::NoCode)?;
    Ok(Mapping { start: code.start, end: code.end, file_offset, build_id, path: "" })
}

/// The build-id among notes. A note: sizes of name and description, type, name, description, both
/// padded to four bytes.
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
#[allow(clippy::unwrap_used)]
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
    fn the_build_id_is_found_in_a_loaded_image() {
        let mut image = std::vec![0xcc; 100];
        image.extend(note(b"GNU\0", 5, &[9; 8]));
        image.extend(note(b"GNU\0", 3, b"twenty bytes of hash"));
        image.extend([0; 3]);
        // Aligned as images are.
        let words: Vec<u64> = image
            .chunks(8)
            .map(|it| {
                let mut word = [0; 8];
                word[..it.len()].copy_from_slice(it);
                u64::from_le_bytes(word)
            })
            .collect();
        let start = words.as_ptr().expose_provenance() as u64;
        assert_eq!(scan(start, start + 8 * words.len() as u64), Some(&b"twenty bytes of hash"[..]));
        assert_eq!(scan(start, start + 100), None);
    }

    /// Guards against a read of notes that are in the file only, as where a linker script discards
    /// their section.
    #[test]
    fn notes_outside_the_loaded_segments_are_not_read() {
        const CODE: u64 = 0x1000;
        let notes = note(b"GNU\0", 3, b"twenty bytes of hash");
        let place = notes.as_ptr().expose_provenance() as u64;
        let id = |data: Range<u64>| {
            let header = |kind, flags, range: Range<u64>| {
                let size = range.end - range.start;
                [kind | u64::from(flags) << 32, 0, range.start, range.start, size, size, 1]
            };
            let mut words = std::vec![0; 8];
            (words[4], words[7]) = (64, 3);
            words.extend(header(u64::from(LOAD), EXECUTABLE, CODE..2 * CODE));
            words.extend(header(u64::from(LOAD), 0, data));
            words.extend(header(u64::from(NOTE), 0, place..place + notes.len() as u64));
            let found = from_headers(words.as_ptr().expose_provenance() as u64).unwrap();
            assert_eq!((found.start, found.end), (CODE, 2 * CODE));
            found.build_id
        };
        let end = place + notes.len() as u64;
        assert_eq!(id(place..end), b"twenty bytes of hash");
        assert_eq!(id(place..end - 1), b"");
        assert_eq!(id(place + 1..end), b"");
    }

    /// Guards against a guest that is not profiled because it begins at address 0.
    #[test]
    fn code_may_begin_at_address_0() {
        let memory = 0x1000..0x40_0000;
        for (start, end, expected) in [
            (0, 0x5_0000, Some(0x1000)),
            (0, 0x40_0001, None),
            (0, 0x1000, None),
            (0, 0, None),
            (0x10_0000, 0x20_0000, Some(0x10_0000)),
            (0x50_0000, 0x60_0000, Some(0x50_0000)),
            (0x10_0000, 0x10_0000, None),
        ] {
            assert_eq!(first_code(start, end, &memory), expected, "{start:#x}");
        }
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
