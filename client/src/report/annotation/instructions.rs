//! The instructions of functions, and the source line of each.

use std::fmt::Write as _;
use std::rc::Rc;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Formatter as _, GasFormatter, OpKind};

use super::super::Report;
use super::super::filter::shown_symbols;
use crate::printable::Printable;
use crate::profile::{Architecture, FrameId, Profile, TooManyStacks};
use crate::symbols::{Code, CodeError, FunctionId, MappedAddress, Symbol, Symbolized, Symbolizer};

/// All instructions of aarch64 are that long, in bytes.
const AARCH64_LENGTH: usize = 4;

/// An instruction of a function's code.
#[derive(Debug, Clone)]
pub(super) struct Instruction {
    /// The name of the image's file.
    pub(super) image: Rc<str>,
    /// The address in the image, as `objdump` shows it.
    pub(super) link_address: u64,
    /// The address in the guest.
    address: u64,
    length: u64,
    /// In the syntax of GNU tools; empty if the processor's instructions are not decoded.
    pub(super) text: String,
    /// Where it jumps or calls to outside its function, in the guest.
    target: Option<u64>,
    pub(super) origin: Origin,
}

/// What an instruction was compiled from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(super) struct Origin {
    /// The source file and the line in it, if the debug information has them.
    pub(super) source: Option<(Rc<str>, u32)>,
    /// The innermost function, which may be inlined.
    pub(super) function: Rc<str>,
}

/// The instructions of these functions, also where they are inlined into others, in the order of their addresses. All of
/// `frames` lie in them.
pub(super) fn of(
    report: &Report<'_>,
    functions: &[FunctionId],
    frames: &[(FrameId, MappedAddress)],
    symbolizer: &Symbolizer,
) -> Result<Vec<Instruction>, CodeError> {
    let symbolized = report.symbolized;
    let profile = symbolized.profile();
    let addresses: Vec<MappedAddress> = frames.iter().map(|(_, at)| *at).collect();
    let mut code = symbolizer.code(profile, &addresses)?;
    code.sort_unstable_by_key(|code| code.address);
    let decode = match profile.recording().architecture {
        Architecture::X86_64 => decode,
        _ => divide,
    };
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
        at.map_or(&[][..], |at| {
            shown_symbols(named.frame(frames_at[at].1), &report.options)
        })
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
        let target = instruction
            .target
            .and_then(|target| symbols_at(target).last());
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
    let image_of = |symbolized: &Symbolized<'_>, image| symbolized.image(image).to_owned();
    found.name == meant.name
        && found.image.map(|image| image_of(named, image))
            == meant.image.map(|image| image_of(symbolized, image))
}

/// A profile with a sample at each instruction, and at each address that one leads to.
fn profile_of(of: &Profile, instructions: &[Instruction]) -> Result<Profile, TooManyStacks> {
    let addresses = instructions.iter();
    let addresses = addresses
        .flat_map(|at| [Some(at.address), at.target])
        .flatten();
    of.at_addresses(addresses)
}

/// The instructions of a function of x86-64: where they begin in its code, and their text.
pub(crate) fn listing(code: &Code) -> Vec<(u64, String)> {
    let instructions = decode(code).into_iter();
    instructions
        .map(|at| (at.link_address.wrapping_sub(code.link_address), at.text))
        .collect()
}

/// The instructions of x86-64.
fn decode(code: &Code) -> Vec<Instruction> {
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

/// Code of a processor whose instructions are not shown.
fn divide(code: &Code) -> Vec<Instruction> {
    let image: Rc<str> = code.image.as_str().into();
    let instruction = |at: usize| Instruction {
        image: Rc::clone(&image),
        link_address: code.link_address.wrapping_add(at as u64),
        address: code.address.wrapping_add(at as u64),
        length: AARCH64_LENGTH as u64,
        text: String::new(),
        target: None,
        origin: Origin::default(),
    };
    (0..code.bytes.len())
        .step_by(AARCH64_LENGTH)
        .map(instruction)
        .collect()
}
