//! The walk: from the interrupted registers to the root of the stack.
//!
//! The interrupted function may not have a frame yet, may have removed it, or may never have one.
//! Therefore its caller is looked up in the caller table. If the table has no row for it, the
//! instructions around the interrupted one are checked for a function's entry or return. From the
//! caller on, the walk follows the chain of frame records, or looks every frame up in the table
//! (`chain`). A chain that ends on one stack may continue on another (`hop`).
//!
//! Neither the stack nor the table is trusted. A step is valid only if everything it reads is
//! aligned, lies wholly inside the stack and above the previous step, and yields a return address
//! that can be code. The first invalid step ends the chain. Return addresses outside all mappings,
//! in code that was loaded or generated later, become frames of [unknown
//! code](frame_code::UNKNOWN_CODE), under stricter conditions; see `chain`.
//!
//! Why: docs/design/decisions.md#unknown-code,
//! docs/design/decisions.md#at-most-eight-stacks-a-walk.

use unikprof_proto::caller_table::Rule;
use unikprof_proto::code::frame_code;

use self::chain::{Chain, Frame, follow};
use self::hop::next_hop;
use crate::ground::platform::Registers;
use crate::stack::architecture::{Aarch64, Architecture, Native};
use crate::stack::caller_table::CallerTable;
use crate::stack::code_map::CodeMap;
use crate::stack::path::Path;
use crate::stack::{ReadCode, Stacks};

#[cfg(test)]
mod aarch64_tests;
mod chain;
mod hop;
#[cfg(test)]
mod tests;

pub use self::chain::MAX_UNKNOWN;
pub use self::hop::MAX_HOPS;

/// How a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// At the root of the stack.
    Root,
    /// At the depth limit; callers are missing.
    Truncated,
    /// At an impossible record; callers are missing.
    Broken,
}

/// How the interrupted function's caller was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the caller table's row for the interrupted instruction.
    Table,
    /// From the instructions around the interrupted one, which belong to a function's entry or
    /// return.
    Bytes,
    /// From the frame pointer.
    FramePointer,
}

/// The result of a walk, besides its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walked {
    /// How it ended.
    pub end: End,
    /// How the interrupted function's caller was found.
    pub way: Way,
    /// Every frame should have been looked up in the table, but it had no row for at least one.
    pub mixed: bool,
}

/// The data that a walk uses to find callers.
#[derive(Clone, Copy, Debug)]
pub struct Guide<'g, C> {
    /// The guest's code.
    pub code: &'g CodeMap,
    /// The caller table, if the recording uses one.
    pub callers: Option<&'g CallerTable<'g>>,
    /// Look every frame up in `callers`, not only the interrupted one.
    pub every_frame: bool,
    /// The instructions; `()` to read none.
    pub instructions: C,
}

impl<'g> Guide<'g, ()> {
    /// Uses frame records only.
    pub fn frame_pointers(code: &'g CodeMap) -> Self {
        Self { code, callers: None, every_frame: false, instructions: () }
    }
}

/// Walks the interrupted stack from `registers`, adding at most `depth` frames to `path`, leaf
/// first. If callers are missing at the root, a mark follows the last frame.
///
/// If `stacks` has none at the interrupted stack pointer, the path consists of the leaf alone and
/// its end is broken.
#[inline]
pub fn walk(
    registers: &Registers,
    stacks: impl Stacks,
    guide: &Guide<'_, impl ReadCode>,
    depth: usize,
    path: &mut Path<'_>,
) -> Walked {
    walk_on::<Native>(registers, stacks, guide, depth, path)
}

/// [`walk`] on a stack of aarch64, on every processor: for fuzzing, and for stacks that were
/// captured elsewhere.
#[doc(hidden)]
pub fn walk_aarch64(
    registers: &Registers,
    stacks: impl Stacks,
    guide: &Guide<'_, impl ReadCode>,
    depth: usize,
    path: &mut Path<'_>,
) -> Walked {
    walk_on::<Aarch64>(registers, stacks, guide, depth, path)
}

/// [`walk`] for a processor.
#[inline]
fn walk_on<A: Architecture>(
    registers: &Registers,
    stacks: impl Stacks,
    guide: &Guide<'_, impl ReadCode>,
    depth: usize,
    path: &mut Path<'_>,
) -> Walked {
    let limit = depth.saturating_add(path.len());
    let start = Start::Interrupted(*registers);
    let chain = from::<A>(&start, &stacks, guide, limit, path);
    let walked = match next_hop(&chain, &stacks, guide) {
        None => chain.walked,
        Some(next) => hop_on(&chain, next, &stacks, guide, limit, path),
    };
    match walked.end {
        End::Root => {}
        End::Truncated => path.push(frame_code::TRUNCATED),
        End::Broken => path.push(frame_code::BROKEN),
    }
    walked
}

/// Continues a walk on other stacks.
#[cold]
#[inline(never)]
fn hop_on<'g, A: Architecture>(
    first: &Chain<'g, A>,
    mut next: Start,
    stacks: &impl Stacks,
    guide: &Guide<'g, impl ReadCode>,
    limit: usize,
    path: &mut Path<'_>,
) -> Walked {
    let mut walked = first.walked;
    if let (true, Start::Caller { way, .. }) = (first.is_leaf, &next) {
        walked.way = *way;
    }
    for _ in 0..MAX_HOPS {
        if path.len() >= limit {
            walked.end = End::Truncated;
            return walked;
        }
        if let Start::Caller { way, .. } = next {
            walked.mixed |= guide.every_frame && way == Way::FramePointer;
        }
        let chain = from::<A>(&next, stacks, guide, limit, path);
        walked = walked.then(chain.walked);
        match next_hop(&chain, stacks, guide) {
            None => return walked,
            Some(another) => next = another,
        }
    }
    walked.end = End::Broken;
    walked
}

impl Walked {
    /// The combined result of two chains; the interrupted function's caller is in the first.
    fn then(self, last: Self) -> Self {
        Self { end: last.end, way: self.way, mixed: self.mixed || last.mixed }
    }
}

/// The start of a chain of frames.
enum Start {
    /// In an interrupted function.
    Interrupted(Registers),
    /// In a caller: its code and registers after the return, and how it was found.
    Caller { code: u32, sp: u64, fp: u64, way: Way },
}

/// Adds the frames on one stack to `path`, until it has `limit` frames.
#[inline]
fn from<'g, A: Architecture>(
    start: &Start,
    stacks: &impl Stacks,
    guide: &Guide<'g, impl ReadCode>,
    limit: usize,
    path: &mut Path<'_>,
) -> Chain<'g, A> {
    let (frame, code, way, stack) = match start {
        Start::Interrupted(registers) => {
            let mut frame = Frame::interrupted(registers, guide.code);
            let code = frame.code(guide.code, registers.pc);
            let leaf = code.unwrap_or(frame_code::UNKNOWN_CODE);
            path.push(leaf);
            let Some(stack) = stacks.at(registers.sp) else {
                return Chain::at_leaf(frame, leaf, End::Broken, Way::FramePointer);
            };
            let (rule, way) = leaf_rule::<A>(guide, code, registers.pc);
            let step = match rule {
                Rule::UNKNOWN => {
                    let code = frame.step_by_record(&stack, guide.code);
                    code.map(|code| (code, false))
                }
                rule => frame.step(rule, &stack, guide.code),
            };
            if way == Way::Bytes {
                // An instruction that sets the frame pointer says where the record is, and not how
                // large the frame is.
                frame.knows_sp &= rule.return_address() == 0;
            }
            match step {
                Ok((code, true)) => (frame, code, way, stack),
                Ok((code, false)) => (frame, code, Way::FramePointer, stack),
                Err(End::Root) => return Chain::at_leaf(frame, leaf, End::Root, way),
                Err(end) => return Chain::at_leaf(frame, leaf, end, Way::FramePointer),
            }
        }
        Start::Caller { code, sp, fp, way } => {
            let mut frame = Frame::caller(*sp, *fp, guide.code);
            frame.knows_sp = *way == Way::Table;
            // The word below `sp`, because `sp` itself may be the end of the stack.
            match stacks.at(sp.saturating_sub(8)) {
                Some(stack) => (frame, *code, Way::Table, stack),
                None => return Chain::at_leaf(frame, *code, End::Broken, Way::Table),
            }
        }
    };
    follow(frame, code, way, &stack, guide, limit, path)
}

/// The rule for the interrupted instruction, and where it was found.
#[inline]
fn leaf_rule<A: Architecture>(
    guide: &Guide<'_, impl ReadCode>,
    code: Option<u32>,
    pc: u64,
) -> (Rule, Way) {
    let Some(code) = code else {
        return (Rule::UNKNOWN, Way::FramePointer);
    };
    let rule = guide.callers.map_or(Rule::UNKNOWN, |callers| callers.rule(code));
    if rule != Rule::UNKNOWN {
        return (rule, Way::Table);
    }
    let bytes = guide.instructions.around(pc);
    match bytes.map_or(Rule::UNKNOWN, A::rule_of_bytes) {
        Rule::UNKNOWN => (Rule::UNKNOWN, Way::FramePointer),
        rule => (rule, Way::Bytes),
    }
}
