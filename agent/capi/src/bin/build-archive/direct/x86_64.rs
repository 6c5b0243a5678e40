//! The instructions and relocations of x86-64.

use super::{NotDirect, bytes, word};

/// Relocation types of the psABI for x86-64: the PC-relative address of a function or of its stub,
/// and the three types for the address of a symbol's entry in the global offset table.
const PLT32: u32 = 4;
pub(super) const THROUGH_TABLE: [u32; 3] = [9, 41, 42];

/// Rewrites the instruction of one relocation; the bytes of its section begin at `code`.
pub(super) fn rewrite_one(
    object: &mut [u8],
    relocation: usize,
    code: usize,
    section: u32,
) -> Result<(), NotDirect> {
    let offset = word(object, relocation)?;
    // The instruction ends after the four bytes that the relocation fills in.
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
            return Err(NotDirect::Instruction { section, offset: offset as u64 });
        }
    };
    object[start..start + direct.len()].copy_from_slice(&direct);
    object[relocation..relocation + 8].copy_from_slice(&((offset - moved) as u64).to_le_bytes());
    object[relocation + 8..relocation + 12].copy_from_slice(&PLT32.to_le_bytes());
    Ok(())
}
