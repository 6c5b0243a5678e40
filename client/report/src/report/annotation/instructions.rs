//! The instructions of functions, and the source line of each.

use std::fmt::Write as _;
use std::rc::Rc;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Formatter as _, GasFormatter, OpKind};
use yaxpeax_arch::{Decoder as _, U8Reader};
use yaxpeax_arm::armv8::a64::{InstDecoder, Opcode, Operand};

use super::super::Report;
use super::super::filter::shown_symbols;
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{Architecture, FrameId, Profile, TooManyStacks};
use unikprof_profile::symbols::{
    Code, CodeError, Function, FunctionId, MappedAddress, Symbol, Symbolized, Symbolizer,
};

/// An instruction of a function's code.
#[derive(Debug, Clone)]
pub struct Instruction {
    /// The name of the image's file.
    pub(super) image: Rc<str>,
    /// The address in the image, as `objdump` shows it.
    pub(super) link_address: u64,
    /// The address in the guest.
    address: u64,
    length: u64,
    /// In the syntax of GNU tools.
    pub(super) text: String,
    /// Where it jumps or calls to outside its function, in the guest.
    target: Option<u64>,
    pub(super) origin: Origin,
}

/// What an instruction was compiled from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct Origin {
    /// The source file and the line in it, if the debug information has them.
    pub(super) source: Option<(Rc<str>, u32)>,
    /// The innermost function, which may be inlined.
    pub(super) function: Rc<str>,
}

/// Finds the instructions of a function.
pub(crate) type Decode = fn(&Code) -> Vec<Instruction>;

/// How the code of a processor is decoded; `None` for a processor whose instructions are not known.
pub fn decode_of(architecture: &Architecture) -> Option<Decode> {
    match architecture {
        Architecture::X86_64 => Some(decode_x86_64),
        Architecture::Aarch64 => Some(decode_aarch64),
        Architecture::Other(_) => None,
    }
}

/// The instructions of these functions, also where they are inlined into others, in the order of
/// their addresses. All of `frames` lie in them.
pub(super) fn of(
    report: &Report<'_>,
    functions: &[FunctionId],
    frames: &[(FrameId, MappedAddress)],
    symbolizer: &Symbolizer,
    decode: Decode,
) -> Result<Vec<Instruction>, CodeError> {
    let symbolized = report.symbolized;
    let profile = symbolized.profile();
    let addresses: Vec<MappedAddress> = frames.iter().map(|(_, at)| *at).collect();
    let mut code = symbolizer.code(profile, &addresses)?;
    code.sort_unstable_by_key(|code| code.address);
    let mut all: Vec<Instruction> = code.iter().flat_map(decode).collect();

    // The instructions are named like samples.
    let named = profile_of(profile, &all)?;
    let named = symbolizer.resolve(&named)?;
    let mut frames_at: Vec<(u64, FrameId)> = named
        .profile()
        .frame_ids()
        .filter_map(|frame| Some((named.profile().frame(frame).lookup_address()?, frame)))
        .collect();
    frames_at.sort_unstable();
    let symbols_at = |address: u64| {
        let at = frames_at.binary_search_by_key(&address, |(address, _)| *address);
        at.map_or(&[][..], |at| shown_symbols(named.frame(frames_at[at].1), &report.options))
    };
    let mut is_meant: Vec<bool> = all
        .iter()
        .map(|at| {
            let symbols = symbols_at(at.address).iter();
            let mut pairs =
                symbols.flat_map(|symbol| functions.iter().map(move |id| (symbol, *id)));
            pairs.any(|(symbol, id)| is_same(&named, symbol, symbolized, id))
        })
        .collect();
    for (_, MappedAddress { address, .. }) in frames {
        if let Some(at) = find(&all, *address) {
            is_meant[at] = true;
        }
    }
    for instruction in &mut all {
        if let Some(symbol) = symbols_at(instruction.address).first() {
            let source = symbol.file.zip(symbol.line);
            instruction.origin = Origin {
                source: source.map(|(file, line)| (named.file(file).into(), line)),
                function: named.function(symbol.function).name.as_str().into(),
            };
        }
        let target = instruction.target.and_then(|target| symbols_at(target).last());
        if let Some(symbol) = target {
            let name = &named.function(symbol.function).name;
            let _ = write!(instruction.text, " <{}>", Printable(name));
        }
    }
    let mut is_meant = is_meant.into_iter();
    all.retain(|_| is_meant.next().unwrap_or(false));
    Ok(all)
}

/// The origin of the instruction that holds an address of the guest.
pub(super) fn find(instructions: &[Instruction], address: u64) -> Option<usize> {
    let after = instructions.partition_point(|at| at.address <= address);
    let at = after.checked_sub(1)?;
    (address - instructions[at].address < instructions[at].length).then_some(at)
}

fn is_same(
    named: &Symbolized<'_>,
    symbol: &Symbol,
    symbolized: &Symbolized<'_>,
    id: FunctionId,
) -> bool {
    let (found, meant) = (named.function(symbol.function), symbolized.function(id));
    let image_of = |of: &Symbolized<'_>, function: &Function| {
        function.image.map(|image| of.image_path(image).to_owned())
    };
    let place_of = |of: &Symbolized<'_>, function: &Function| {
        function.place.map(|place| (of.file(place.file).to_owned(), place.line, place.column))
    };
    let places = place_of(named, found).zip(place_of(symbolized, meant));
    found.bare_name() == meant.bare_name()
        && image_of(named, found) == image_of(symbolized, meant)
        && places.is_none_or(|(found, meant)| found == meant)
}

/// A profile with a sample at each instruction, and at each address that one leads to.
fn profile_of(of: &Profile, instructions: &[Instruction]) -> Result<Profile, TooManyStacks> {
    let addresses = instructions.iter();
    let addresses = addresses.flat_map(|at| [Some(at.address), at.target]).flatten();
    of.at_addresses(addresses)
}

/// The instructions of a function: where they begin in its code, and their text.
pub fn listing(code: &Code, decode: Decode) -> Vec<(u64, String)> {
    let instructions = decode(code).into_iter();
    instructions.map(|at| (at.link_address.wrapping_sub(code.link_address), at.text)).collect()
}

/// The instructions of x86-64.
fn decode_x86_64(code: &Code) -> Vec<Instruction> {
    let image: Rc<str> = code.image.as_str().into();
    let bias = code.address.wrapping_sub(code.link_address);
    let mut decoder = Decoder::with_ip(64, &code.bytes, code.link_address, DecoderOptions::NONE);
    let mut formatter = GasFormatter::new();
    let options = formatter.options_mut();
    options.set_uppercase_hex(false);
    options.set_branch_leading_zeros(false);
    options.set_first_operand_char_index(7);
    let mut all = Vec::new();
    while decoder.can_decode() {
        let instruction = decoder.decode();
        let mut text = String::new();
        formatter.format(&instruction, &mut text);
        let is_direct = matches!(
            instruction.flow_control(),
            FlowControl::Call | FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
        ) && instruction.op0_kind() == OpKind::NearBranch64;
        let target = is_direct.then(|| instruction.near_branch_target().wrapping_add(bias));
        all.push(Instruction {
            image: Rc::clone(&image),
            link_address: instruction.ip(),
            address: instruction.ip().wrapping_add(bias),
            length: instruction.len() as u64,
            text,
            target: target.filter(|target| !code.contains(*target)),
            origin: Origin::default(),
        });
    }
    all
}

/// The instructions of aarch64. A word that the disassembler does not know (most are instructions
/// of SVE) is shown as data.
fn decode_aarch64(code: &Code) -> Vec<Instruction> {
    let image: Rc<str> = code.image.as_str().into();
    let bias = code.address.wrapping_sub(code.link_address);
    let decoder = InstDecoder::default();
    let decode = |(at, word): (u64, &[u8])| {
        let (text, branch) = match decoder.decode(&mut U8Reader::new(word)) {
            Ok(instruction) => {
                let offset = instruction.operands.iter().find_map(|operand| match operand {
                    Operand::PCOffset(offset) => Some(*offset),
                    _ => None,
                });
                let text = instruction.to_string();
                let (operation, operands) = text.split_once(' ').unwrap_or((&text, ""));
                // Relative to the instruction, and always the last operand.
                let operands = operands.split('$').next().unwrap_or("");
                let (base, offset, is_branch) = match (instruction.opcode, offset) {
                    (Opcode::ADRP, offset) => (at & !0xfff, offset, false),
                    // The disassembler takes these 21 bits for a positive number.
                    (Opcode::LDR | Opcode::LDRSW | Opcode::PRFM, offset) => {
                        (at, offset.map(|offset| offset << 43 >> 43), false)
                    }
                    (opcode, offset) => (at, offset, opcode != Opcode::ADR),
                };
                let place = offset.map(|offset| base.wrapping_add_signed(offset));
                let mut text = format!("{operation:<6} {operands}");
                if let Some(place) = place {
                    let _ = write!(text, "{place:#x}");
                }
                (text.trim_end().to_owned(), place.filter(|_| is_branch))
            }
            Err(_) => {
                let word = word.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
                (format!(".word  {word:#010x}"), None)
            }
        };
        let target = branch.map(|target| target.wrapping_add(bias));
        Instruction {
            image: Rc::clone(&image),
            link_address: at,
            address: at.wrapping_add(bias),
            length: word.len() as u64,
            text,
            target: target.filter(|target| !code.contains(*target)),
            origin: Origin::default(),
        }
    };
    let places = (0..).map(|index| code.link_address.wrapping_add(4 * index));
    places.zip(code.bytes.chunks(4)).map(decode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beside what `objdump` says of these words: forward and backward places of every kind, and an
    /// instruction of SVE.
    #[test]
    fn instructions_of_aarch64_have_their_text_and_targets() {
        let expected: [(u32, &str, Option<u64>); 15] = [
            (0xd503_233f, "paciasp", None),
            (0xa9be_7bfd, "stp    x29, x30, [sp, #-0x20]!", None),
            (0xf0ff_ffe0, "adrp   x0, 0x7000", None),
            (0x10ff_ff61, "adr    x1, 0x7ff8", None),
            (0x58ff_ff42, "ldr    x2, 0x7ff8", None),
            (0x5800_0042, "ldr    x2, 0x801c", None),
            (0xb400_00e2, "cbz    x2, 0x8034", None),
            (0x371f_ff42, "tbnz   w2, #0x3, 0x8004", None),
            (0x54ff_ff22, "b.hs   0x8004", None),
            (0x9400_0400, "bl     0x9024", Some(0x19024)),
            (0x3876_c821, "ldrb   w1, [x1, w22, sxtw #0]", None),
            (0x1e62_2820, "fadd   d0, d1, d2", None),
            (0xd65f_0bff, "retaa", None),
            (0xa400_a020, ".word  0xa400a020", None),
            (0x17ff_fff1, "b      0x7ffc", Some(0x17ffc)),
        ];
        let code = Code {
            image: "kernel".into(),
            address: 0x1_8000,
            link_address: 0x8000,
            bytes: expected.iter().flat_map(|(word, ..)| word.to_le_bytes()).collect(),
        };
        let found = decode_aarch64(&code);
        let found: Vec<_> = found.iter().map(|at| (&*at.text, at.target)).collect();
        let expected = expected.map(|(_, text, target)| (text, target));
        assert_eq!(found, expected);
    }
}
