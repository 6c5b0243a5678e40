//! Makes calls of the guest's functions direct, instead of through a table of addresses.
//!
//! The compiler calls the memory functions through a global offset table, which the linker creates.
//! Some kernels' links create none (Mini-OS as PVH puts 64-bit code into a 32-bit ELF file), and
//! the call then jumps to a wrong address. So each such instruction is replaced by the direct one
//! of the same length, as the psABI describes for linkers under "optimize GOTPCRELX relocations".

mod x86_64;
use x86_64 as arch;

use std::fmt;

const SECTION_HEADER_BYTES: usize = 64;
const RELOCATION_BYTES: usize = 24;
const SHT_RELA: u32 = 4;
const ELF64_LITTLE_ENDIAN: [u8; 6] = *b"\x7fELF\x02\x01";

/// Why an object cannot be rewritten.
#[derive(Debug)]
pub(crate) enum NotDirect {
    /// Not a 64-bit ELF object, or damaged.
    Object,
    /// An unknown kind of instruction reads the table.
    Instruction { section: u32, offset: u64 },
}

impl fmt::Display for NotDirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotDirect::Object => f.write_str("the linked object is not a 64-bit ELF object"),
            NotDirect::Instruction { section, offset } => write!(
                f,
                "the instruction at {offset:#x} of section {section} reads a global offset table, \
                 and \
                 is neither call, jmp nor mov: teach direct/ its direct form"
            ),
        }
    }
}

impl std::error::Error for NotDirect {}

/// Rewrites all instructions that read a global offset table; returns their number.
pub(crate) fn rewrite(object: &mut [u8]) -> Result<usize, NotDirect> {
    if !object.starts_with(&ELF64_LITTLE_ENDIAN) {
        return Err(NotDirect::Object);
    }
    let headers = word(object, 0x28)?;
    let count = u16::from_le_bytes(bytes(object, 0x3c)?);
    let mut rewritten = 0;
    for index in 0..usize::from(count) {
        let header = headers + index * SECTION_HEADER_BYTES;
        if half(object, header + 4)? != SHT_RELA {
            continue;
        }
        let (start, length) = (word(object, header + 0x18)?, word(object, header + 0x20)?);
        let section = half(object, header + 0x2c)?;
        let target = headers + section as usize * SECTION_HEADER_BYTES;
        let code = word(object, target + 0x18)?;
        for relocation in (start..start + length).step_by(RELOCATION_BYTES) {
            if arch::THROUGH_TABLE.contains(&half(object, relocation + 8)?) {
                arch::rewrite_one(object, relocation, code, section)?;
                rewritten += 1;
            }
        }
    }
    Ok(rewritten)
}

fn bytes<const N: usize>(object: &[u8], at: usize) -> Result<[u8; N], NotDirect> {
    let range = at..at.checked_add(N).ok_or(NotDirect::Object)?;
    object.get(range).and_then(|slice| slice.try_into().ok()).ok_or(NotDirect::Object)
}

fn half(object: &[u8], at: usize) -> Result<u32, NotDirect> {
    Ok(u32::from_le_bytes(bytes(object, at)?))
}

fn word(object: &[u8], at: usize) -> Result<usize, NotDirect> {
    usize::try_from(u64::from_le_bytes(bytes(object, at)?)).map_err(|_| NotDirect::Object)
}
