//! A chain of frames on one stack. Each step leads from a frame to its caller, by a rule of the
//! caller table or by the frame record.
//!
//! # Unknown code
//! A return address outside all mappings may belong to code that was loaded or generated after the
//! start, or may be garbage: a function without a frame record may leave any value in the frame
//! pointer. It is accepted as a frame of [unknown code](frame_code::UNKNOWN_CODE) only if
//! - it [may be code](may_be_code) and does not point into the rest of the stack: pointers into the
//!   stack and small integers are the most frequent garbage there;
//! - in a frame record, the caller's frame pointer is 0 or continues the chain: aligned, upward and
//!   inside the stack. It may have any value in a record at the end of the stack;
//! - the chain has fewer than [`MAX_UNKNOWN`] such frames. Generated code may recurse, so the limit
//!   is half of the greatest depth; each step requires a plausible pair of words, so garbage ends
//!   much earlier.
//!
//! Otherwise the chain is broken, as with every other impossible record.

use unikprof_proto::caller_table::{Base, Caller, Rule};
use unikprof_proto::code::frame_code;

use super::{End, Guide, Walked, Way};
use crate::ground::platform::Registers;
use crate::stack::architecture::{Architecture, Link as _, ReturnAddress};
use crate::stack::caller_table::{CallerTable, FoundPart};
use crate::stack::code_map::{CodeMap, CodeRange};
use crate::stack::path::{MAX_DEPTH, Path};
use crate::stack::{FRAME_RECORD, ReadCode, ReadStack};

/// The most frames of unknown code in one chain, apart from the interrupted one.
pub const MAX_UNKNOWN: u32 = MAX_DEPTH as u32 / 2;

/// The end of a chain.
#[derive(Clone, Copy)]
pub(super) struct Chain<'g, A: Architecture> {
    /// The last frame.
    pub(super) frame: Frame<'g, A>,
    /// The code with which the last frame is looked up in the caller table.
    pub(super) lookup: u32,
    /// The chain consists of the interrupted function only.
    pub(super) is_leaf: bool,
    pub(super) walked: Walked,
}

impl<'g, A: Architecture> Chain<'g, A> {
    /// A chain that consists of the interrupted function, whose code is `leaf`.
    #[inline]
    pub(super) fn at_leaf(frame: Frame<'g, A>, leaf: u32, end: End, way: Way) -> Self {
        Self { frame, lookup: leaf, is_leaf: true, walked: Walked { end, way, mixed: false } }
    }
}

/// A frame on a stack.
#[derive(Clone, Copy)]
pub(super) struct Frame<'g, A: Architecture> {
    /// The stack pointer, or an address below it unless `knows_sp`: everything below it has been
    /// walked.
    pub(super) sp: u64,
    pub(super) fp: u64,
    /// Whether a rule may count from `sp`. Of no meaning if [`Architecture::RECORD_ENDS_FRAME`].
    pub(super) knows_sp: bool,
    link: A::Link,
    /// The mapping found last; most return addresses are in the same mapping as the one before.
    range: &'g CodeRange,
    /// The number of frames of unknown code so far.
    unknown: u32,
}

impl<'g, A: Architecture> Frame<'g, A> {
    /// The frame of an interrupted function.
    #[inline]
    pub(super) fn interrupted(registers: &Registers, code: &'g CodeMap) -> Self {
        Self { link: A::Link::of(registers), ..Self::caller(registers.sp, registers.fp, code) }
    }

    /// The frame of a function that has called another one.
    #[inline]
    pub(super) fn caller(sp: u64, fp: u64, code: &'g CodeMap) -> Self {
        Self { sp, fp, knows_sp: true, link: A::Link::SAVED, range: code.first(), unknown: 0 }
    }

    /// The code of `address`, if it lies in a mapping.
    #[inline]
    pub(super) fn code(&mut self, code: &'g CodeMap, address: u64) -> Option<u32> {
        self.range.code(address).or_else(|| {
            self.range = code.find(address)?;
            self.range.code(address)
        })
    }

    /// Moves to the caller. Returns the return address's code, and whether it was found by `rule`
    /// rather than by the frame pointer.
    #[inline]
    pub(super) fn step(
        &mut self,
        rule: Rule,
        stack: &impl ReadStack,
        code: &'g CodeMap,
    ) -> Result<(u32, bool), End> {
        let mut has_caller = rule == A::FRAME_RECORD;
        if rule != Rule::UNKNOWN && !has_caller {
            match rule.caller() {
                Caller::Outermost => return Err(End::Root),
                Caller::Unknown => {}
                // The caller is on another stack; `hop` continues there.
                Caller::LoadedCfa { .. } => return Err(End::Broken),
                Caller::Cfa { base, words, saved_fp } => {
                    has_caller = true;
                    let caller = self.by_rule(rule, base, words, saved_fp, stack);
                    if let Some((return_address, cfa, fp)) = caller {
                        if return_address == 0 {
                            return Err(End::Root);
                        }
                        let known = self.code(code, return_address);
                        if let Some(code) =
                            known.or_else(|| self.unknown_code(return_address, stack))
                        {
                            (self.sp, self.fp, self.link) = (cfa, fp, A::Link::SAVED);
                            self.knows_sp = true;
                            return Ok((code, true));
                        }
                    }
                }
            }
        }
        match self.step_by_record(stack, code) {
            Ok(code) => {
                self.knows_sp = rule == A::FRAME_RECORD;
                Ok((code, self.knows_sp))
            }
            // The rule says that the function has a caller, so a frame pointer of 0 does not mean
            // the root.
            Err(End::Root) if has_caller && self.ends_in_zero(stack) => Err(End::Broken),
            Err(end) => Err(end),
        }
    }

    /// Whether the chain ends because the frame pointer is 0, rather than at the end of the stack
    /// or at a return address of 0.
    #[inline]
    fn ends_in_zero(&self, stack: &impl ReadStack) -> bool {
        self.fp == 0 && self.sp != stack.end()
    }

    /// The return address, the canonical frame address (CFA) and the caller's frame pointer, by a
    /// rule.
    #[inline]
    fn by_rule(
        &self,
        rule: Rule,
        base: Base,
        words: u16,
        saved_fp: Option<u8>,
        stack: &impl ReadStack,
    ) -> Option<(u64, u64, u64)> {
        let cfa = self.register(base)?.checked_add(u64::from(words) * 8)?;
        // Each step leads upwards, or uses the link register up.
        let return_address = match A::return_address(rule, cfa)? {
            ReturnAddress::Saved(at) if at >= self.sp => stack.word(at)?,
            ReturnAddress::LinkRegister if cfa >= self.sp => self.link.return_address()?,
            _ => return None,
        };
        let return_address = A::target(return_address);
        let saved_at = saved_fp.and_then(|words| cfa.checked_sub(u64::from(words) * 8));
        let fp = match saved_at {
            // A saved value below the stack pointer has been popped already: it is in the register.
            Some(at) if at >= self.sp => stack.word(at)?,
            // OCaml's rules never state where the frame pointer is saved. It is, if it points to
            // the record below the CFA.
            None if self.fp >= self.sp && after_record(self.fp) == cfa => stack.word(self.fp)?,
            _ => self.fp,
        };
        Some((return_address, cfa, fp))
    }

    /// The value of a register; `None` if it is not known.
    #[inline]
    pub(super) fn register(&self, base: Base) -> Option<u64> {
        match base {
            Base::StackPointer => (A::RECORD_ENDS_FRAME || self.knows_sp).then_some(self.sp),
            Base::FramePointer => Some(self.fp),
        }
    }

    /// The caller by the record that the frame pointer points to.
    #[inline(always)]
    pub(super) fn step_by_record(
        &mut self,
        stack: &impl ReadStack,
        code: &'g CodeMap,
    ) -> Result<u32, End> {
        let record = if self.fp < self.sp { None } else { stack.frame_record(self.fp) };
        let Some([caller_fp, return_address]) = record else {
            // The outermost function has no caller: either its saved frame pointer is 0, or the
            // stack ends with its frame.
            return Err(if self.fp == 0 || self.sp == stack.end() {
                End::Root
            } else {
                End::Broken
            });
        };
        let return_address = A::target(return_address);
        let code = match self.code(code, return_address) {
            Some(code) => code,
            None if return_address == 0 => return Err(End::Root),
            None => {
                let leads_on = self.leads_on(caller_fp, stack.end());
                let unknown = leads_on.then(|| self.unknown_code(return_address, stack));
                unknown.flatten().ok_or(End::Broken)?
            }
        };
        self.pass_record(caller_fp);
        Ok(code)
    }

    #[inline]
    fn pass_record(&mut self, caller_fp: u64) {
        self.sp = after_record(self.fp);
        self.fp = caller_fp;
        self.knows_sp = false;
        self.link = A::Link::SAVED;
    }

    /// Whether the record at the frame pointer, which contains `caller_fp`, continues a rising
    /// chain or is its last one.
    #[inline]
    fn leads_on(&self, caller_fp: u64, end: u64) -> bool {
        let after = after_record(self.fp);
        let rises = caller_fp >= after && caller_fp < end && caller_fp & 7 == 0;
        caller_fp == 0 || rises || after == end
    }

    /// Accepts a return address outside all mappings as a frame of unknown code if it is plausible.
    #[inline]
    fn unknown_code(&mut self, return_address: u64, stack: &impl ReadStack) -> Option<u32> {
        let on_stack = (self.sp..stack.end()).contains(&return_address);
        if self.unknown >= MAX_UNKNOWN || on_stack || !A::may_be_code(return_address) {
            return None;
        }
        self.unknown += 1;
        Some(frame_code::UNKNOWN_CODE)
    }
}

/// Adds the frame at `return_code` and its callers, until `path` has `limit` frames. `way` tells
/// how it was found.
#[inline]
pub(super) fn follow<'g, A: Architecture>(
    frame: Frame<'g, A>,
    return_code: u32,
    way: Way,
    stack: &impl ReadStack,
    guide: &Guide<'g, impl ReadCode>,
    limit: usize,
    path: &mut Path<'_>,
) -> Chain<'g, A> {
    let mut frames = Frames { frame, return_code, mixed: false };
    let mut end = End::Truncated;
    if path.len() < limit {
        path.push(return_code);
        end = match guide.callers {
            Some(callers) if guide.every_frame => {
                by_table(&mut frames, stack, guide.code, callers, limit, path)
            }
            callers => by_records(&mut frames, stack, guide.code, callers, limit, path),
        };
    }
    Chain {
        frame: frames.frame,
        lookup: call_of(frames.return_code),
        is_leaf: false,
        walked: Walked { end, way, mixed: frames.mixed },
    }
}

/// The progress along a chain.
struct Frames<'g, A: Architecture> {
    frame: Frame<'g, A>,
    /// The code of the return address into the last frame.
    return_code: u32,
    /// The table had no row for at least one frame.
    mixed: bool,
}

/// Follows the chain of records to its end.
#[inline(always)]
fn by_records<'g, A: Architecture>(
    frames: &mut Frames<'g, A>,
    stack: &impl ReadStack,
    code: &'g CodeMap,
    callers: Option<&CallerTable<'_>>,
    limit: usize,
    path: &mut Path<'_>,
) -> End {
    loop {
        rise(frames, stack, path, limit, false, |_| false);
        match frames.frame.step_by_record(stack, code) {
            Ok(_) if path.len() >= limit => return End::Truncated,
            Ok(code) => {
                frames.return_code = code;
                path.push(code);
            }
            // This function has a caller, so it is not the outermost.
            Err(End::Root)
                if frames.frame.ends_in_zero(stack)
                    && has_caller::<A>(callers, frames.return_code) =>
            {
                return End::Broken;
            }
            Err(end) => return end,
        }
    }
}

/// Whether the table says that the function at this return address has a caller.
///
/// A kernel may start a thread with the address of its function as the return address. The table
/// has the return address in the link register there, which no function has that has called another
/// one; the call instruction's rule would be that of the function before.
#[inline]
fn has_caller<A: Architecture>(callers: Option<&CallerTable<'_>>, return_code: u32) -> bool {
    callers.is_some_and(|callers| {
        let is_saved = || {
            let place = A::return_address(callers.rule(return_code), u64::MAX);
            place != Some(ReturnAddress::LinkRegister)
        };
        match callers.rule(call_of(return_code)).caller() {
            Caller::Cfa { .. } => is_saved(),
            Caller::LoadedCfa { .. } => true,
            Caller::Outermost | Caller::Unknown => false,
        }
    })
}

/// Looks the frames up one by one.
#[inline(never)]
fn by_table<'g, A: Architecture>(
    frames: &mut Frames<'g, A>,
    stack: &impl ReadStack,
    code: &'g CodeMap,
    callers: &CallerTable<'_>,
    limit: usize,
    path: &mut Path<'_>,
) -> End {
    let mut part = FoundPart::default();
    loop {
        // Most frames have a record and are in the same part of the table as the one before.
        rise(frames, stack, path, limit, true, |code| {
            part.rule(call_of(code)) != Some(A::FRAME_RECORD)
        });
        let call = call_of(frames.return_code);
        if part.rule(call).is_none_or(|rule| rule == Rule::UNKNOWN) {
            part = callers.find(call).unwrap_or_default();
        }
        let rule = part.rule(call).unwrap_or(Rule::UNKNOWN);
        match frames.frame.step(rule, stack, code) {
            Err(End::Broken)
                if frames.frame.ends_in_zero(stack)
                    && !has_caller::<A>(Some(callers), frames.return_code) =>
            {
                return End::Root;
            }
            Err(end) => return end,
            Ok(_) if path.len() >= limit => return End::Truncated,
            Ok((code, by_rule)) => {
                frames.mixed |= !by_rule;
                frames.return_code = code;
                path.push(code);
            }
        }
    }
}

/// Follows frame records while they return into the mapping found last, as most do. Adds a frame
/// for each, until `is_due` returns true for its code, another kind of step is needed, or the path
/// has `limit` frames. `knows_sp` says whether rules have said that the frames end behind their
/// records.
///
/// A separate function, so that all variables of the loop fit into registers.
#[inline(never)]
fn rise<A: Architecture>(
    frames: &mut Frames<'_, A>,
    stack: &impl ReadStack,
    path: &mut Path<'_>,
    limit: usize,
    knows_sp: bool,
    is_due: impl Fn(u32) -> bool,
) {
    let Frame { mut sp, mut fp, range, .. } = frames.frame;
    let mut last = frames.return_code;
    path.push_all(limit, || {
        if fp < sp || is_due(last) {
            return None;
        }
        let [caller_fp, return_address] = stack.frame_record(fp)?;
        last = range.code(A::target(return_address))?;
        sp = after_record(fp);
        fp = caller_fp;
        Some(last)
    });
    frames.return_code = last;
    if !A::RECORD_ENDS_FRAME && sp != frames.frame.sp {
        frames.frame.knows_sp = knows_sp;
    }
    (frames.frame.sp, frames.frame.fp) = (sp, fp);
}

/// The address after the record at `fp`. The record is inside a stack, so this does not overflow.
#[inline]
pub(super) fn after_record(fp: u64) -> u64 {
    fp.wrapping_add(FRAME_RECORD)
}

/// The code of the call instruction's last byte: the return address itself may belong to the next
/// function.
#[inline]
fn call_of(return_code: u32) -> u32 {
    return_code.wrapping_sub(1)
}
