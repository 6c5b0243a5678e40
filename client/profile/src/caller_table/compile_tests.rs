//! Images compiled: call frame information written for the purpose, and that of this very program.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use gimli::write::{CallFrameInstruction as Cfi, DebugFrame, EndianVec, Expression};
use gimli::{
    AArch64, BaseAddresses, CfaRule, CieOrFde, LittleEndian, Register, RegisterRule, UnwindContext,
    UnwindSection as _, X86_64,
};
use object::{Object as _, ObjectSection as _, ObjectSegment as _};
use unikprof_proto::caller_table::{Base, Caller, Row, Rule, TableFile, machine};

use super::*;
use crate::profile::Mapping;
use crate::symbols::{ElfFile, Image};
use stretches::{Detail, RowBuilder};
use unikprof_test_kit::call_frames::{self, Function, aarch64_table, frame_table};
use unikprof_test_kit::elf::{CODE_ADDRESS, CODE_OFFSET, TestElf};

const PUSHED: Rule = Rule(2 | 2 << 2 | 2 << 8);
const TWO_WORDS: Rule = Rule(2 | 2 << 8);

fn eh_frame(functions: &[Function<'_>]) -> Vec<u8> {
    call_frames::eh_frame(&frame_table(functions))
}

fn debug_frame(functions: &[Function<'_>]) -> Vec<u8> {
    let mut section = DebugFrame(EndianVec::new(LittleEndian));
    let written = frame_table(functions).write_debug_frame(&mut section);
    written.unwrap();
    section.0.into_vec()
}

fn compile(elf: &TestElf<'_>) -> Result<ImageTable, CompileError> {
    let image = Image::parse(Path::new("guest.elf"), elf.bytes()).unwrap();
    ImageTable::compile(&image, &[])
}

/// The rows of code that is 256 breakpoints, by their distance from its beginning.
fn rows_of(sections: &[(&str, u64, &[u8])]) -> Vec<(u64, Rule)> {
    // `hlt`, which is no padding.
    let table = compile(&TestElf::new(&[0xf4; 256], sections)).unwrap();
    distances(&table.rows().unwrap())
}

fn distances(rows: &[Row]) -> Vec<(u64, Rule)> {
    let distance = |row: &Row| (u64::from(row.code) - CODE_OFFSET, row.rule);
    rows.iter().map(distance).collect()
}

fn eh_rows(functions: &[Function<'_>]) -> Vec<(u64, Rule)> {
    rows_of(&[(".eh_frame", 0, &eh_frame(functions))])
}

#[test]
fn a_function_with_a_frame_record_has_a_row_for_each_step() {
    let steps = [
        (1, Cfi::CfaOffset(16)),
        (1, Cfi::Offset(X86_64::RBP, -16)),
        (4, Cfi::CfaRegister(X86_64::RBP)),
        // LLVM goes on to name the slot that was popped.
        (30, Cfi::Cfa(X86_64::RSP, 8)),
    ];
    let expected = [
        (0, Rule::ENTRY),
        (1, PUSHED),
        (4, Rule::FRAME_RECORD),
        (30, Rule::ENTRY),
        (31, Rule::UNKNOWN),
    ];
    assert_eq!(eh_rows(&[(0, 31, &steps)]), expected);
}

#[test]
fn what_the_rules_cannot_say_is_unknown() {
    let mut realigned = Expression::new();
    realigned.op_breg(X86_64::RBP, -8);
    realigned.op_deref();
    let steps = [
        (2, Cfi::CfaOffset(80)),
        (4, Cfi::Cfa(X86_64::R10, 0)),
        (6, Cfi::CfaExpression(realigned)),
        (8, Cfi::Cfa(X86_64::RSP, 24)),
        (10, Cfi::Offset(X86_64::RA, -16)),
        (12, Cfi::Restore(X86_64::RA)),
        (14, Cfi::Register(X86_64::RBP, X86_64::R11)),
        (16, Cfi::Restore(X86_64::RBP)),
        (18, Cfi::Undefined(X86_64::RA)),
    ];
    let above = |words| Rule::new(Caller::Cfa { base: Base::StackPointer, words, saved_fp: None });
    let expected = [
        (0, Rule::ENTRY),
        (2, above(10)),
        (4, Rule::UNKNOWN),
        (8, above(3)),
        (10, Rule::UNKNOWN),
        (12, above(3)),
        (14, Rule::UNKNOWN),
        (16, above(3)),
        (18, Rule::OUTERMOST),
        (20, Rule::UNKNOWN),
    ];
    assert_eq!(eh_rows(&[(0, 20, &steps)]), expected);
}

fn linkage_expression(from: u8) -> Expression {
    let raw = vec![0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x30 + from, 0x2a, 0x33, 0x24, 0x22];
    Expression::raw(raw)
}

#[test]
fn the_linkage_tables_expression_becomes_rows() {
    // As linkers write it: a head of its own, then the entries.
    let steps = [
        (0, Cfi::CfaOffset(16)),
        (6, Cfi::CfaOffset(24)),
        (16, Cfi::CfaExpression(linkage_expression(11))),
    ];
    let three = Rule(2 | 3 << 8);
    let expected = [
        (0, TWO_WORDS),
        (6, three),
        (16, Rule::ENTRY),
        (27, TWO_WORDS),
        (32, Rule::ENTRY),
        (43, TWO_WORDS),
        (48, Rule::UNKNOWN),
    ];
    assert_eq!(eh_rows(&[(0, 48, &steps)]), expected);
    let other = [(0, Cfi::CfaExpression(Expression::raw(vec![0x77, 8])))];
    assert_eq!(eh_rows(&[(0, 48, &other)]), []);
}

#[test]
fn padding_between_functions_continues_the_rule_before() {
    let section = eh_frame(&[(0, 0x11, &[]), (0x20, 0x10, &[])]);
    let mut code = [0xcc; 0x30];
    let rows = |code: &[u8]| {
        let elf = TestElf::new(code, &[(".eh_frame", 0, &section)]);
        distances(&compile(&elf).unwrap().rows().unwrap())
    };
    assert_eq!(rows(&code), [(0, Rule::ENTRY), (0x30, Rule::UNKNOWN)]);
    code[0x1f] = 0xc3;
    assert_eq!(rows(&code).len(), 4, "what may run is not padding");
}

#[test]
fn functions_that_contradict_each_other_are_unknown_where_they_do() {
    let frame = [(0, Cfi::CfaOffset(16))];
    let section = eh_frame(&[(0, 0x20, &[]), (0x10, 0x20, &frame), (0x10, 0x10, &frame)]);
    let elf = TestElf::new(&[0xf4; 256], &[(".eh_frame", 0, &section)]);
    let table = compile(&elf).unwrap();
    let expected =
        [(0, Rule::ENTRY), (0x10, Rule::UNKNOWN), (0x20, TWO_WORDS), (0x30, Rule::UNKNOWN)];
    assert_eq!(distances(&table.rows().unwrap()), expected);
    assert_eq!(table.tally().contradicted_bytes, 0x10);
}

#[test]
fn debug_frame_serves_where_eh_frame_is_silent() {
    let frame = [(0, Cfi::CfaOffset(16))];
    let debug = debug_frame(&[(0, 0x20, &frame), (0x40, 0x10, &frame)]);
    let alone = rows_of(&[(".debug_frame", 0, &debug)]);
    let expected =
        [(0, TWO_WORDS), (0x20, Rule::UNKNOWN), (0x40, TWO_WORDS), (0x50, Rule::UNKNOWN)];
    assert_eq!(alone, expected);
    let eh = eh_frame(&[(0x10, 0x10, &[])]);
    let both = rows_of(&[(".debug_frame", 0, &debug), (".eh_frame", 0, &eh)]);
    assert_eq!(both[..2], [(0, TWO_WORDS), (0x10, Rule::ENTRY)]);
    assert_eq!(both[2..], expected[1..]);
}

#[test]
fn only_executable_segments_count() {
    let section = eh_frame(&[(0, 0x10, &[]), (0x20, 0x40, &[])]);
    let mut elf = TestElf::new(&[0xf4; 256], &[(".eh_frame", 0, &section)]);
    elf.segments = vec![
        (4, CODE_ADDRESS, CODE_OFFSET, 0x20),
        (5, CODE_ADDRESS + 0x20, CODE_OFFSET + 0x20, 0x20),
    ];
    let table = compile(&elf).unwrap();
    assert_eq!(table.tally().functions, 1);
    let rows = distances(&table.rows().unwrap());
    assert_eq!(rows, [(0x20, Rule::ENTRY), (0x40, Rule::UNKNOWN)]);
}

#[test]
fn what_cannot_be_compiled_says_why() {
    let section = eh_frame(&[(0, 0x10, &[])]);
    let sound = TestElf::new(&[0xf4; 64], &[(".eh_frame", 0, &section)]);
    let says = |elf: &TestElf<'_>, words: &str| {
        let error = compile(elf).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    let mut elf = sound.clone();
    // EM_RISCV.
    elf.machine = 243;
    says(&elf, "supported for x86_64 and aarch64, found riscv64");
    let mut elf = sound.clone();
    elf.segments[0].0 = 4;
    says(&elf, "no executable segment");
    let mut elf = sound.clone();
    elf.sections.retain(|(name, ..)| *name != ".eh_frame");
    says(&elf, "force-unwind-tables");
    let mut elf = sound.clone();
    elf.segments[0].1 += 0x10_0000;
    says(&elf, "1 functions are outside of it");
    let cut = &section[..section.len() - 3];
    says(&TestElf::new(&[0xf4; 64], &[(".eh_frame", 0, cut)]), ".eh_frame of guest.elf is damaged");
    let mut elf = sound;
    elf.sections.retain(|(name, ..)| *name == ".eh_frame");
    let error = compile(&elf).unwrap().to_file().unwrap_err().to_string();
    assert!(error.contains("--build-id"), "{error}");
}

/// As GCC and clang describe functions of aarch64, with signed return addresses; behind the first
/// is padding.
#[test]
fn an_aarch64_image_has_rows_with_the_place_of_the_link_register() {
    let save = |at: u32, fp: i32, lr: i32| {
        let save = |register, offset| (at, Cfi::Offset(register, offset));
        [save(AArch64::X29, fp), save(AArch64::X30, lr)]
    };
    let [gcc_fp, gcc_lr] = save(8, -48, -40);
    let [top_fp, top_lr] = save(8, -16, -8);
    let functions: [Function<'_>; 3] = [
        // paciasp; stp x29, x30, [sp, -48]!; …; ldp x29, x30, [sp], 48; autiasp; ret.
        (
            0,
            0x20,
            &[
                (4, Cfi::NegateRaState),
                (8, Cfi::CfaOffset(48)),
                gcc_fp,
                gcc_lr,
                (0x18, Cfi::Restore(AArch64::X29)),
                (0x18, Cfi::Restore(AArch64::X30)),
                (0x18, Cfi::CfaOffset(0)),
                (0x1c, Cfi::NegateRaState),
            ],
        ),
        // sub sp, sp, 64; stp x29, x30, [sp, 48]; add x29, sp, 48.
        (0x40, 0x20, &[(4, Cfi::CfaOffset(64)), top_fp, top_lr, (12, Cfi::Cfa(AArch64::X29, 16))]),
        // A leaf function.
        (0x60, 0x10, &[]),
    ];
    let section = call_frames::eh_frame(&aarch64_table(&functions));
    // `ret` everywhere, and no-operations between the first two functions.
    let mut code = [0xc0, 0x03, 0x5f, 0xd6].repeat(64);
    code[0x20..0x40].copy_from_slice(&[0x1f, 0x20, 0x03, 0xd5].repeat(8));
    let mut elf = TestElf::new(&code, &[(".eh_frame", 0, &section)]);
    elf.machine = 183;
    let compiled = compile(&elf).unwrap();
    assert_eq!(compiled.tally().damaged, 0);
    let by = |base, words, saved_fp, lr| {
        Rule::new(Caller::Cfa { base, words, saved_fp }).with_return_address(lr)
    };
    let (sp, fp) = (Base::StackPointer, Base::FramePointer);
    let in_register = by(sp, 0, None, 0);
    let gcc = by(sp, 6, Some(6), 5);
    let record = by(fp, 2, Some(2), 1);
    let expected = [
        (0, in_register),
        (8, gcc),
        (0x18, in_register),
        (0x44, by(sp, 8, None, 0)),
        (0x48, by(sp, 8, Some(2), 1)),
        (0x4c, record),
        (0x60, in_register),
        (0x70, Rule::UNKNOWN),
    ];
    assert_eq!(distances(&compiled.rows().unwrap()), expected);
    let file = compiled.to_file().unwrap();
    assert_eq!(TableFile::parse(&file).unwrap().machine(), machine::AARCH64);

    // The frame pointer tells the caller where it points to a record, and in no other place.
    let mut rows = RowBuilder::new(Detail::ByFramePointer, 100);
    let mapping = Mapping {
        start: CODE_ADDRESS,
        end: CODE_ADDRESS + 0x100,
        file_offset: CODE_OFFSET,
        ..Mapping::default()
    };
    compiled.place(&mapping, 16, &mut rows).unwrap();
    let rules: Vec<Rule> = rows.finish().unwrap().iter().map(|row| row.rule).collect();
    assert!(rules.contains(&gcc) && !rules.contains(&record), "{rules:?}");
}

#[test]
fn a_function_that_makes_no_sense_is_unknown_from_there_on() {
    let steps = [(4, Cfi::CfaOffset(16)), (8, Cfi::RestoreState)];
    let section = eh_frame(&[(0, 0x10, &steps), (0x10, 0x10, &[])]);
    let elf = TestElf::new(&[0xf4; 256], &[(".eh_frame", 0, &section)]);
    let table = compile(&elf).unwrap();
    let expected = [
        (0, Rule::ENTRY),
        (4, TWO_WORDS),
        (8, Rule::UNKNOWN),
        (0x10, Rule::ENTRY),
        (0x20, Rule::UNKNOWN),
    ];
    assert_eq!(distances(&table.rows().unwrap()), expected);
    assert_eq!((table.tally().functions, table.tally().damaged), (2, 1));
}

/// One entry may be shared by all others: evaluating it for each of them would take for ever.
#[test]
fn instructions_shared_without_measure_are_refused() {
    let mut section = eh_frame(&[(0, 0x10, &[])]);
    let fde = u32::from_le_bytes(section[..4].try_into().unwrap()) as usize + 4;
    let one = section[fde..].to_vec();
    // The shared entry grows by a megabyte of no-operations.
    let length = (fde - 4 + (1 << 20)) as u32;
    section.truncate(fde);
    section[..4].copy_from_slice(&length.to_le_bytes());
    section.resize(fde + (1 << 20), 0);
    for _ in 0..64 {
        let mut next = one.clone();
        let back = (section.len() + 4) as u32;
        next[4..8].copy_from_slice(&back.to_le_bytes());
        section.extend(next);
    }
    let elf = TestElf::new(&[0xf4; 256], &[(".eh_frame", 0, &section)]);
    let error = compile(&elf).unwrap_err().to_string();
    assert!(error.contains("share more instructions"), "{error}");
}

#[test]
fn a_mapping_gets_the_codes_of_its_part_of_the_image() {
    let section = eh_frame(&[(0x10, 0x10, &[]), (0x40, 0x20, &[])]);
    let placed = |kind, mapping: &Mapping| {
        let mut elf = TestElf::new(&[0xf4; 256], &[(".eh_frame", 0, &section)]);
        elf.kind = kind;
        let table = compile(&elf).unwrap();
        let mut rows = RowBuilder::new(Detail::Full, 100);
        table.place(mapping, 100, &mut rows).unwrap();
        let rows = rows.finish().unwrap();
        rows.iter().map(|row| row.code).collect::<Vec<_>>()
    };
    // A library, of which the mapping holds the part from 0x18 to 0x50.
    let library = Mapping {
        start: 0x7f00_0000_0000,
        end: 0x7f00_0000_0038,
        file_offset: CODE_OFFSET + 0x18,
        ..Mapping::default()
    };
    assert_eq!(placed(3, &library), [100, 108, 140, 156]);
    // A program at its own place: whatever the offset.
    let program = Mapping {
        start: CODE_ADDRESS - 8,
        end: CODE_ADDRESS + 0x100,
        file_offset: 0,
        ..Mapping::default()
    };
    assert_eq!(placed(2, &program), [124, 140, 172, 204]);
    // A library whose mapping knows no offset begins with its first segment.
    let no_offset =
        Mapping { start: 0x1000, end: 0x1100, file_offset: 0x9000, ..Mapping::default() };
    assert_eq!(placed(3, &no_offset), [116, 132, 164, 196]);
}

/// Registers at some moment, to see where both ways lead.
const RSP: u64 = 0x7000_0000;
const RBP: u64 = 0x7100_0000;

/// Where the return address is, and where the caller's frame pointer, if not in its register.
type Places = (u64, Option<u64>);

/// Where gimli's evaluation leads; `Err` where no rule can say it.
fn by_gimli(row: &gimli::UnwindTableRow<usize>) -> Result<Option<Places>, ()> {
    let return_address = match row.register(X86_64::RA) {
        Some(RegisterRule::Undefined) => return Ok(None),
        Some(RegisterRule::Offset(offset)) => offset,
        _ => return Err(()),
    };
    let CfaRule::RegisterAndOffset { register, offset } = *row.cfa() else {
        return Err(());
    };
    let value = match register {
        Register(7) => RSP,
        Register(6) => RBP,
        _ => return Err(()),
    };
    let cfa = value.wrapping_add_signed(offset);
    let saved = match row.register(Register(6)) {
        None | Some(RegisterRule::SameValue) => None,
        Some(RegisterRule::Offset(offset)) => Some(cfa.wrapping_add_signed(offset)),
        _ => return Err(()),
    };
    let freed = |place: &u64| register == Register(7) && *place < RSP;
    let place = cfa.wrapping_add_signed(return_address);
    Ok(Some((place, saved.filter(|place| !freed(place)))))
}

/// Where a rule leads.
fn by_rule(rule: Rule) -> Result<Option<Places>, ()> {
    match rule.caller() {
        Caller::Unknown => Err(()),
        Caller::Outermost => Ok(None),
        Caller::Cfa { base, words, saved_fp } => {
            let value = match base {
                Base::StackPointer => RSP,
                Base::FramePointer => RBP,
            };
            let cfa = value + 8 * u64::from(words);
            let saved = saved_fp.map(|words| cfa - 8 * u64::from(words));
            Ok(Some((cfa - 8, saved)))
        }
        Caller::LoadedCfa { .. } => Err(()),
    }
}

/// Every function of this program, at the first and the last byte of each row that gimli makes.
#[test]
#[cfg_attr(not(target_arch = "x86_64"), ignore = "the reference has the registers of x86-64")]
fn this_program_is_compiled_as_gimli_evaluates_it() {
    let path = std::env::current_exe().unwrap();
    let image = Image::open(&path).unwrap();
    let rows = ImageTable::compile(&image, &[]).unwrap().rows().unwrap();
    assert!(rows.windows(2).all(|pair| pair[0].code < pair[1].code));
    assert!(rows.windows(2).all(|pair| pair[0].rule != pair[1].rule));
    let file = ElfFile::parse(image.bytes()).unwrap();
    let offset_of = |address: u64| {
        file.segments().find_map(|segment| {
            let (offset, size) = segment.file_range();
            let within = address.checked_sub(segment.address())?;
            (within < size).then_some(offset + within)
        })
    };
    let rule_at = |address: u64| {
        let offset = offset_of(address).unwrap();
        let after = rows.partition_point(|row| u64::from(row.code) <= offset);
        after.checked_sub(1).map_or(Rule::UNKNOWN, |at| rows[at].rule)
    };
    let section = file.section_by_name(".eh_frame").unwrap();
    let eh_frame = gimli::EhFrame::new(section.data().unwrap(), LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(section.address());
    let mut entries = eh_frame.entries(&bases);
    let mut context = UnwindContext::new();
    let (mut checked, mut known) = (0, 0);
    while let Some(entry) = entries.next().unwrap() {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let cie =
            |section: &gimli::EhFrame<_>, bases: &_, offset| section.cie_from_offset(bases, offset);
        let function = partial.parse(cie).unwrap();
        let mut table = function.rows(&eh_frame, &bases, &mut context).unwrap();
        while let Some(row) = table.next_row().unwrap() {
            if matches!(row.cfa(), CfaRule::Expression(_))
                || row.start_address() >= row.end_address()
            {
                // The linkage table has its own test.
                continue;
            }
            let expected = by_gimli(row);
            for address in [row.start_address(), row.end_address() - 1] {
                let found = by_rule(rule_at(address));
                assert_eq!(found, expected, "at {address:#x}");
            }
            checked += 1;
            known += usize::from(expected.is_ok());
        }
    }
    assert!(checked > 1000, "{checked} rows");
    assert!(known * 100 > checked * 99, "{known} of {checked}");
}

/// Guards a false reason: what was overwritten meanwhile is not known to lack anything.
#[test]
fn an_image_that_changes_while_it_is_read_is_not_called_damaged() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let elf = TestElf::new(&[0xf4; 64], &[(".eh_frame", 0, &[0; 8])]);
    std::fs::write(&file, elf.bytes()).unwrap();
    let image = Image::open(file.path()).unwrap();
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(3);
    file.as_file().set_modified(later).unwrap();
    let error = ImageTable::compile(&image, &[]).unwrap_err();
    assert!(matches!(error, CompileError::Changed { .. }), "{error}");
}
