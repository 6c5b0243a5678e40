//! The executable mappings of this process, from the dynamic loader.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_int, c_void};
use core::ops::Range;
use std::string::String;
use std::vec::Vec;

use libc::{dl_phdr_info, size_t};

use crate::stack::code_map::{MAX_MAPPINGS, Mapping};

/// ELF constants: a loadable segment, a segment of notes, the executable flag, and the type of a
/// build-id note (System V ABI, chapter 5; binutils' `NT_GNU_BUILD_ID`).
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PF_X: u32 = 1;
const NT_GNU_BUILD_ID: u32 = 3;

/// The executable mappings that belong to a file, sorted by address: the first [`MAX_MAPPINGS`] in
/// the loader's order, which begins with the program itself.
pub(super) fn of_this_process() -> Vec<Mapping<'static>> {
    let mut mappings: Vec<Mapping<'static>> = Vec::new();
    // SAFETY: the callback has the required type, and its data outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(collect), (&raw mut mappings).cast::<c_void>()) };
    mappings.truncate(MAX_MAPPINGS);
    mappings.sort_by_key(|mapping| mapping.start);
    mappings
}

/// The mapping that contains the agent's code: the program, or a library. It is not unloaded while
/// the agent runs.
pub(super) fn of_the_agent(mappings: &[Mapping<'_>]) -> Range<u64> {
    let here = of_the_agent as *const () as u64;
    mappings
        .iter()
        .map(|mapping| mapping.start..mapping.end)
        .find(|code| code.contains(&here))
        .unwrap_or_default()
}

unsafe extern "C" fn collect(info: *mut dl_phdr_info, _: size_t, data: *mut c_void) -> c_int {
    // SAFETY: `of_this_process` passes its vector, and nothing else refers to it meanwhile.
    let mappings = unsafe { &mut *data.cast::<Vec<Mapping<'static>>>() };
    // SAFETY: the loader passes a valid structure.
    let info = unsafe { &*info };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the loader's own array, which lives as long as the object is loaded.
    let headers =
        unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let base = info.dlpi_addr;
    let build_id = headers
        .iter()
        .filter(|header| header.p_type == PT_NOTE)
        .find_map(|header| {
            let start = base.wrapping_add(header.p_vaddr);
            let notes = core::ptr::with_exposed_provenance::<u8>(start as usize);
            // SAFETY: a note segment of a loaded object is mapped and readable.
            let notes = unsafe { core::slice::from_raw_parts(notes, header.p_memsz as usize) };
            build_id(notes)
        })
        .unwrap_or_default();
    let path = path(info);
    for header in headers {
        if header.p_type == PT_LOAD && header.p_flags & PF_X != 0 && header.p_memsz > 0 {
            let start = base.wrapping_add(header.p_vaddr);
            mappings.push(Mapping {
                start,
                end: start.wrapping_add(header.p_memsz),
                file_offset: header.p_offset,
                build_id: Vec::leak(build_id.to_vec()),
                path: String::leak(path.clone()),
            });
        }
    }
    0
}

/// The loader names the program itself with an empty string.
fn path(info: &dl_phdr_info) -> String {
    let name = if info.dlpi_name.is_null() {
        c""
    } else {
        // SAFETY: the loader's own string.
        unsafe { CStr::from_ptr(info.dlpi_name) }
    };
    if name.is_empty() {
        let program = std::env::current_exe();
        return program.map_or_else(|_| String::new(), |path| path.to_string_lossy().into_owned());
    }
    name.to_string_lossy().into_owned()
}

/// The build-id in a segment of notes. Each note is name size, descriptor size, type, name,
/// descriptor, padded to words.
fn build_id(mut notes: &[u8]) -> Option<&[u8]> {
    loop {
        let word = |index: usize| -> Option<u32> {
            let bytes = notes.get(index * 4..index * 4 + 4)?;
            Some(u32::from_ne_bytes(bytes.try_into().ok()?))
        };
        let (name_size, size, kind) = (word(0)? as usize, word(1)? as usize, word(2)?);
        let name_end = 12_usize.checked_add(name_size)?;
        let start = name_end.checked_next_multiple_of(4)?;
        let descriptor = notes.get(start..start.checked_add(size)?)?;
        if kind == NT_GNU_BUILD_ID && notes.get(12..name_end) == Some(b"GNU\0") {
            return Some(descriptor);
        }
        notes = notes.get((start + size).checked_next_multiple_of(4)?..)?;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn this_test_finds_itself() {
        let mappings = of_this_process();
        let here = this_test_finds_itself as *const () as u64;
        let own = mappings.iter().find(|m| (m.start..m.end).contains(&here)).unwrap();
        assert_eq!(of_the_agent(&mappings), own.start..own.end);
        assert_eq!(own.path, std::env::current_exe().unwrap().to_string_lossy());
        assert_eq!(own.build_id.len(), 20, "the workspace links with --build-id=sha1");
        assert!(mappings.is_sorted_by_key(|mapping| mapping.start));
        assert!(mappings.iter().any(|mapping| mapping.path.contains("libc")));
    }

    #[test]
    fn cut_notes_have_no_build_id() {
        let note = [4_u32, 3, 3].map(u32::to_ne_bytes).concat();
        let note = [&note[..], b"GNU\0", b"abc\0"].concat();
        assert_eq!(build_id(&note), Some(&b"abc"[..]));
        for cut in 0..note.len() - 1 {
            assert_eq!(build_id(&note[..cut]), None, "{cut}");
        }
        let other = [4_u32, u32::MAX, 1].map(u32::to_ne_bytes).concat();
        assert_eq!(build_id(&[&other[..], b"GNU\0"].concat()), None);
    }
}
