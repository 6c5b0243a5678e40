//! The entries of procedure linkage tables, which have no symbols.

use std::borrow::Cow;
use std::collections::HashMap;

use object::{
    Architecture, Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, RelocationTarget,
};

use super::image_bytes::ElfFile;
use super::name_table::Entry;

/// The entries of an image's linkage tables, each named after the function that it jumps to:
/// `memcpy@plt`. Where the loader chooses that function by calling another one (`IRELATIVE`), it is
/// the name of the latter, from `symbols`.
pub(super) fn entries<'a>(file: &ElfFile<'a>, symbols: &[Entry<'a>]) -> Vec<Entry<'a>> {
    let jumps = match file.architecture() {
        Architecture::X86_64 => x86_64_jumps,
        Architecture::Aarch64 => aarch64_jumps,
        _ => return Vec::new(),
    };
    let mut by_pointer: HashMap<u64, Vec<(u64, u64)>> = HashMap::new();
    let is_table = |name: &str| name.starts_with(".plt") || name.starts_with(".iplt");
    for section in file.sections().filter(|section| section.name().is_ok_and(is_table)) {
        // A separate debug file has the section without its bytes.
        let Ok(code) = section.data() else { continue };
        let limit = section.address().saturating_add(code.len() as u64);
        for (at, pointer) in jumps(code, section.address()) {
            let start = section.address().saturating_add(at as u64);
            by_pointer.entry(pointer).or_default().push((start, limit));
        }
    }
    if by_pointer.is_empty() {
        return Vec::new();
    }
    let dynamic = file.dynamic_symbol_table();
    let mut by_start: Vec<&Entry<'_>> = symbols.iter().collect();
    by_start.sort_by_key(|it| (it.start, it.rank));
    let mut found = Vec::new();
    // A static program has them in no dynamic section.
    let pointers =
        file.sections().filter(|it| it.name().is_ok_and(|name| name.starts_with(".got")));
    let of_static = pointers.flat_map(|section| section.relocations().collect::<Vec<_>>());
    for (pointer, relocation) in file.dynamic_relocations().into_iter().flatten().chain(of_static) {
        // Once for each pointer, whatever a file repeats.
        let Some(places) = by_pointer.remove(&pointer) else { continue };
        let name = match relocation.target() {
            RelocationTarget::Symbol(index) => {
                let symbol = dynamic.as_ref().and_then(|all| all.symbol_by_index(index).ok());
                symbol.and_then(|symbol| Some(String::from_utf8_lossy(symbol.name_bytes().ok()?)))
            }
            _ => {
                let start = relocation.addend() as u64;
                let chooser = by_start.get(by_start.partition_point(|it| it.start < start));
                chooser.filter(|it| it.start == start).map(|it| it.name.clone())
            }
        };
        for (start, limit) in places {
            let name = name.iter().filter(|name| !name.is_empty());
            let name = name.map(|name| Cow::Owned(format!("{name}@plt")));
            // Behind every symbol.
            found.extend(name.map(|name| Entry {
                start,
                size: 0,
                limit,
                rank: 4,
                name,
                file: None,
            }));
        }
    }
    found
}

/// Where the entries begin in a table that is linked at `base`, and the pointers that they jump
/// through: `jmp *pointer(%rip)`, behind an `endbr64` where jumps are guarded.
fn x86_64_jumps(code: &[u8], base: u64) -> Vec<(usize, u64)> {
    const JUMP: usize = 6;
    let jumps = code.windows(JUMP).enumerate().filter(|(_, bytes)| bytes.starts_with(b"\xff\x25"));
    jumps
        .filter_map(|(at, bytes)| {
            let displacement = i32::from_le_bytes(*bytes.last_chunk()?);
            let end = base.wrapping_add((at + JUMP) as u64);
            let mut start = at;
            // `bnd jmp` of older linkers.
            for prefix in [&b"\xf2"[..], b"\xf3\x0f\x1e\xfa"] {
                start -= if code[..start].ends_with(prefix) { prefix.len() } else { 0 };
            }
            Some((start, end.wrapping_add_signed(displacement.into())))
        })
        .collect()
}

/// The same for aarch64: `adrp x16, page; ldr x17, [x16, offset]`, behind a `bti c` where jumps are
/// guarded.
fn aarch64_jumps(code: &[u8], base: u64) -> Vec<(usize, u64)> {
    const BTI_C: u32 = 0xd503_245f;
    let words: Vec<u32> =
        code.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    let pairs = words.windows(2).enumerate().filter(|(_, pair)| {
        pair[0] & 0x9f00_001f == 0x9000_0010 && pair[1] & 0xffc0_03ff == 0xf940_0211
    });
    pairs
        .map(|(at, pair)| {
            // 21 bits with a sign, the lower two of them apart from the others.
            let pages = ((pair[0] << 8) as i32 >> 13 << 2) | (pair[0] >> 29 & 3) as i32;
            let page = base.wrapping_add(at as u64 * 4) & !0xfff;
            let offset = u64::from(pair[1] >> 10 & 0xfff) * 8;
            let guarded = at != 0 && words[at - 1] == BTI_C;
            let pointer = page.wrapping_add_signed(i64::from(pages) << 12).wrapping_add(offset);
            ((at - usize::from(guarded)) * 4, pointer)
        })
        .collect()
}
