//! Calls of the guest's functions go straight there, not by way of a table of addresses.
//!
//! The compiler calls the memory functions through a global offset table, which the linker makes. Not every
//! kernel's linking makes one: an ELF file of 32 bits around code of 64 (Mini-OS as PVH) has none, and
//! the call ends anywhere. So each such instruction becomes the direct one of the same length, as the
//! psABI's chapter on optimizing `GOTPCRELX` relocations describes it for linkers.

use std::fmt;

/// Relocations of the psABI for x86-64: a function's place relative to the instruction, its own or that of a
/// stub which leads there, and the place of a symbol's entry in the table, which has three codes.
const PLT32: u32 = 4;
const THROUGH_TABLE: [u32; 3] = [9, 41, 42];

const SECTION_HEADER_BYTES: usize = 64;
const RELOCATION_BYTES: usize = 24;
const SHT_RELA: u32 = 4;
const ELF64_LITTLE_ENDIAN: [u8; 6] = *b"\x7fELF\x02\x01";

/// Why an object cannot be rewritten.
#[derive(Debug)]
pub(crate) enum NotDirect {
    /// It is no ELF object of 64 bits, or damaged.
    Object,
    /// An instruction that reads the table in a way not known here.
    Instruction { section: u32, offset: u64 },
}

impl fmt::Display for NotDirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotDirect::Object => f.write_str("the linked object is no ELF object of 64 bits"),
            NotDirect::Instruction { section, offset } => write!(
                f,
                "the instruction at {offset:#x} of section {section} reads a global offset table, and \
                 is neither call, jmp nor mov: teach direct.rs its direct form"
            ),
        }
    }
}

impl std::error::Error for NotDirect {}

/// Rewrites all instructions that read a global offset table; answers how many there were.
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
            if THROUGH_TABLE.contains(&half(object, relocation + 8)?) {
                rewrite_one(object, relocation, code, section)?;
                rewritten += 1;
            }
        }
    }
    Ok(rewritten)
}

/// The instruction of one relocation, whose section's bytes begin at `code`.
fn rewrite_one(
    object: &mut [u8],
    relocation: usize,
    code: usize,
    section: u32,
) -> Result<(), NotDirect> {
    let offset = word(object, relocation)?;
    // The instruction ends behind the four bytes that the relocation fills in.
    let start = (code + offset).checked_sub(3).ok_or(NotDirect::Object)?;
    let instruction: [u8; 7] = bytes(object, start)?;
    let (direct, moved) = match instruction {
        // call *name@GOTPCREL(%rip): addr32 call name
        [before, 0xff, 0x15, ..] => ([before, 0x67, 0xe8, 0, 0, 0, 0], 0),
        // jmp *name@GOTPCREL(%rip): jmp name; nop
        [before, 0xff, 0x25, ..] => ([before, 0xe9, 0, 0, 0, 0, 0x90], 1),
        // mov name@GOTPCREL(%rip), register: lea name@PLT(%rip), register, to be called
        [rex @ (0x48 | 0x4c), 0x8b, register, ..] if register & 0xc7 == 5 => {
            ([rex, 0x8d, register, 0, 0, 0, 0], 0)
        }
        _ => {
            return Err(NotDirect::Instruction {
                section,
                offset: offset as u64,
            });
        }
    };
    object[start..start + direct.len()].copy_from_slice(&direct);
    object[relocation..relocation + 8].copy_from_slice(&((offset - moved) as u64).to_le_bytes());
    object[relocation + 8..relocation + 12].copy_from_slice(&PLT32.to_le_bytes());
    Ok(())
}

fn bytes<const N: usize>(object: &[u8], at: usize) -> Result<[u8; N], NotDirect> {
    let range = at..at.checked_add(N).ok_or(NotDirect::Object)?;
    object
        .get(range)
        .and_then(|slice| slice.try_into().ok())
        .ok_or(NotDirect::Object)
}

fn half(object: &[u8], at: usize) -> Result<u32, NotDirect> {
    Ok(u32::from_le_bytes(bytes(object, at)?))
}

fn word(object: &[u8], at: usize) -> Result<usize, NotDirect> {
    usize::try_from(u64::from_le_bytes(bytes(object, at)?)).map_err(|_| NotDirect::Object)
}
