//! Call frame information, written for tests.
#![allow(clippy::unwrap_used, reason = "for tests")]

use gimli::write::{
    Address, CallFrameInstruction, CommonInformationEntry, EhFrame, EndianVec,
    FrameDescriptionEntry, FrameTable,
};
use gimli::{AArch64, Encoding, Format, LittleEndian, X86_64};

use crate::elf::CODE_ADDRESS;

/// A function: where it begins in the code, its length, and its instructions with their offsets.
pub type Function<'a> = (u64, u32, &'a [(u32, CallFrameInstruction)]);

const ENCODING: Encoding = Encoding { format: Format::Dwarf32, version: 1, address_size: 8 };

/// A frame table for x86_64, where a call pushes the return address.
pub fn frame_table(functions: &[Function<'_>]) -> FrameTable {
    let mut common = CommonInformationEntry::new(ENCODING, 1, -8, X86_64::RA);
    common.add_instruction(CallFrameInstruction::Cfa(X86_64::RSP, 8));
    common.add_instruction(CallFrameInstruction::Offset(X86_64::RA, -8));
    table_of(common, functions)
}

/// A frame table for aarch64, where a call leaves the return address in the link register.
pub fn aarch64_table(functions: &[Function<'_>]) -> FrameTable {
    let mut common = CommonInformationEntry::new(ENCODING, 4, -8, AArch64::X30);
    common.add_instruction(CallFrameInstruction::Cfa(AArch64::SP, 0));
    table_of(common, functions)
}

fn table_of(common: CommonInformationEntry, functions: &[Function<'_>]) -> FrameTable {
    let mut table = FrameTable::default();
    let common = table.add_cie(common);
    for (start, length, instructions) in functions {
        let address = Address::Constant(CODE_ADDRESS + start);
        let mut function = FrameDescriptionEntry::new(address, *length);
        for (at, instruction) in *instructions {
            function.add_instruction(*at, instruction.clone());
        }
        table.add_fde(common, function);
    }
    table
}

/// The section `.eh_frame`.
pub fn eh_frame(table: &FrameTable) -> Vec<u8> {
    let mut section = EhFrame(EndianVec::new(LittleEndian));
    table.write_eh_frame(&mut section).unwrap();
    section.0.into_vec()
}
