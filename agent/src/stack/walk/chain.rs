//! A chain of frames on one stack: from one frame to its caller, by a rule or by the frame record.
//!
//! # Unknown code
//! A return address outside all mappings may belong to code that was loaded or generated after the start, or may be
//! garbage: a function without a frame record leaves in the frame pointer whatever it likes. It is accepted as a frame
//! of [unknown code](frame_code::UNKNOWN_CODE) only if
//! - it [may be code](may_be_code) at all and does not lie on the rest of the stack: pointers into the stack and small
//!   integers are the most frequent garbage there;
//! - in a frame record, the caller's frame pointer is 0 or leads on: aligned, upward and inside the stack. The record
//!   with which the stack ends may hold any.
//! - the chain has had fewer than [`MAX_UNKNOWN`] such frames. Generated code may well recurse, so the limit is half of
//!   the greatest depth; each step demands a plausible pair of words, so garbage ends far earlier.
//!
//! Otherwise the chain is broken, as for every other impossible record.

use unikprof_proto::caller_table::{Base, Caller, Rule};
use unikprof_proto::code::frame_code;

use super::{End, Guide, Walked, Way};
use crate::stack::architecture::{FRAME_RECORD as RECORD_RULE, may_be_code, saved_return_address};
use crate::stack::caller_table::{CallerTable, FoundPart};
use crate::stack::code_map::{CodeMap, Stretch};
use crate::stack::path::{MAX_DEPTH, Path};
use crate::stack::{FRAME_RECORD, ReadCode, ReadStack};

/// The most frames of unknown code in one chain, apart from the interrupted one.
pub const MAX_UNKNOWN: u32 = MAX_DEPTH as u32 / 2;

/// The end of a chain.
#[derive(Clone, Copy)]
pub(super) struct Chain {
    /// The last frame.
    pub(super) place: Place,
    /// The code whose row in the caller table is that of the last frame.
    pub(super) lookup: u32,
    /// The interrupted function is all there is.
    pub(super) is_leaf: bool,
    pub(super) walked: Walked,
}

impl Chain {
    /// The chain that ends in the interrupted function, at this code.
    #[inline]
    pub(super) fn at_leaf(place: Place, leaf: u32, end: End, way: Way) -> Self {
        Self {
            place,
            lookup: leaf,
            is_leaf: true,
            walked: Walked {
                end,
                way,
                mixed: false,
            },
        }
    }
}

/// A frame on a stack.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// The stack pointer: everything below has been passed.
    pub(super) sp: u64,
    pub(super) fp: u64,
    /// The stretch of code that was found last; most return addresses lie in the same as the one before.
    stretch: Stretch,
    /// The frames of unknown code so far.
    unknown: u32,
}

impl Place {
    /// The frame with these registers.
    #[inline]
    pub(super) fn new(sp: u64, fp: u64, code: &CodeMap) -> Self {
        Self {
            sp,
            fp,
            stretch: code.first(),
            unknown: 0,
        }
    }

    /// The code of `address`, if it lies in a mapping.
    #[inline]
    pub(super) fn code(&mut self, code: &CodeMap, address: u64) -> Option<u32> {
        self.stretch.code(address).or_else(|| {
            self.stretch = code.find(address)?;
            self.stretch.code(address)
        })
    }

    /// Goes to the caller. Returns the return address's code, and whether `rule` led there or the frame pointer.
    #[inline]
    pub(super) fn step(
        &mut self,
        rule: Rule,
        stack: &impl ReadStack,
        code: &CodeMap,
    ) -> Result<(u32, bool), End> {
        if rule == Rule::UNKNOWN {
            return Ok((self.step_by_record(stack, code)?, false));
        }
        if rule == RECORD_RULE {
            return Ok((self.step_to_caller(stack, code)?, true));
        }
        match rule.caller() {
            Caller::Outermost => return Err(End::Root),
            Caller::Unknown => return Ok((self.step_by_record(stack, code)?, false)),
            // The caller lies on another stack: a hop.
            Caller::LoadedCfa { .. } => return Err(End::Broken),
            Caller::Cfa {
                base,
                words,
                saved_fp,
            } => match self.caller(rule, base, words, saved_fp, stack) {
                Some((0, ..)) => return Err(End::Root),
                Some((return_address, cfa, fp)) => {
                    let known = self.code(code, return_address);
                    if let Some(code) = known.or_else(|| self.unknown_code(return_address, stack)) {
                        (self.sp, self.fp) = (cfa, fp);
                        return Ok((code, true));
                    }
                }
                None => {}
            },
        }
        Ok((self.step_to_caller(stack, code)?, false))
    }

    /// The caller by the frame record, of a function that is known to have a caller: a frame pointer of 0 is then
    /// not the root.
    #[inline]
    fn step_to_caller(&mut self, stack: &impl ReadStack, code: &CodeMap) -> Result<u32, End> {
        self.step_by_record(stack, code).map_err(|end| match end {
            End::Root if self.ends_in_zero(stack) => End::Broken,
            end => end,
        })
    }

    /// Whether the chain ends because the frame pointer is 0, and not at the end of the stack or at a return
    /// address of 0.
    #[inline]
    fn ends_in_zero(&self, stack: &impl ReadStack) -> bool {
        self.fp == 0 && self.sp != stack.end()
    }

    /// The return address, the canonical frame address and the caller's frame pointer, by a rule.
    #[inline]
    fn caller(
        &self,
        rule: Rule,
        base: Base,
        words: u16,
        saved_fp: Option<u8>,
        stack: &impl ReadStack,
    ) -> Option<(u64, u64, u64)> {
        let cfa = self.register(base).checked_add(u64::from(words) * 8)?;
        if cfa <= self.sp {
            return None;
        }
        let return_address = stack.word(saved_return_address(rule, cfa)?)?;
        let saved_at = saved_fp.and_then(|words| cfa.checked_sub(u64::from(words) * 8));
        let fp = match saved_at {
            // A place below the stack pointer has been popped: the value is in the register.
            Some(at) if at >= self.sp => stack.word(at)?,
            _ => self.fp,
        };
        Some((return_address, cfa, fp))
    }

    #[inline]
    pub(super) fn register(&self, base: Base) -> u64 {
        match base {
            Base::StackPointer => self.sp,
            Base::FramePointer => self.fp,
        }
    }

    /// The caller by the record that the frame pointer points to.
    #[inline]
    fn step_by_record(&mut self, stack: &impl ReadStack, code: &CodeMap) -> Result<u32, End> {
        let record = if self.fp < self.sp {
            None
        } else {
            stack.frame_record(self.fp)
        };
        let Some([caller_fp, return_address]) = record else {
            // The outermost function has no caller: its saved frame pointer is 0, or it is known to
            // be the outermost because the stack ends with its frame.
            return Err(if self.fp == 0 || self.sp == stack.end() {
                End::Root
            } else {
                End::Broken
            });
        };
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

    /// The caller by the record, if the return address lies in the stretch of code that was found last, as most do;
    /// `None` if it does not, or the chain ends.
    #[inline]
    fn step_nearby(&mut self, stack: &impl ReadStack) -> Option<u32> {
        if self.fp < self.sp {
            return None;
        }
        let [caller_fp, return_address] = stack.frame_record(self.fp)?;
        let code = self.stretch.code(return_address)?;
        self.pass_record(caller_fp);
        Some(code)
    }

    #[inline]
    fn pass_record(&mut self, caller_fp: u64) {
        // The record is inside the stack, so this does not overflow.
        self.sp = self.fp.wrapping_add(FRAME_RECORD);
        self.fp = caller_fp;
    }

    /// Whether the record at the frame pointer, which holds `caller_fp`, is one of a chain that rises to its root.
    #[inline]
    fn leads_on(&self, caller_fp: u64, end: u64) -> bool {
        let after = self.fp.wrapping_add(FRAME_RECORD);
        let rises = caller_fp >= after && caller_fp < end && caller_fp & 7 == 0;
        caller_fp == 0 || rises || after == end
    }

    /// Accepts a return address outside all mappings as a frame of unknown code, if that is plausible.
    #[inline]
    fn unknown_code(&mut self, return_address: u64, stack: &impl ReadStack) -> Option<u32> {
        let on_stack = (self.sp..stack.end()).contains(&return_address);
        if self.unknown >= MAX_UNKNOWN || on_stack || !may_be_code(return_address) {
            return None;
        }
        self.unknown += 1;
        Some(frame_code::UNKNOWN_CODE)
    }
}

/// Adds the frame that returns to `return_code` and its callers, up to `depth` frames in `path`. `way` is how it was
/// found.
#[inline]
pub(super) fn follow<'a>(
    place: Place,
    return_code: u32,
    way: Way,
    stack: &impl ReadStack,
    guide: &Guide<'_, impl ReadCode>,
    depth: usize,
    mut path: Path<'a>,
) -> (Path<'a>, Chain) {
    let mut frames = Frames {
        place,
        return_code,
        mixed: false,
    };
    let mut end = End::Truncated;
    if path.len() < depth {
        path.push(return_code);
        (path, frames, end) = match guide.callers {
            Some(callers) if guide.every_frame => {
                by_table(frames, stack, guide.code, callers, depth, path)
            }
            callers => by_records(frames, stack, guide.code, callers, depth, path),
        };
    }
    let chain = Chain {
        place: frames.place,
        lookup: call_of(frames.return_code),
        is_leaf: false,
        walked: Walked {
            end,
            way,
            mixed: frames.mixed,
        },
    };
    (path, chain)
}

/// How far a chain has been followed.
#[derive(Clone, Copy)]
struct Frames {
    place: Place,
    /// Where the last frame is returned to.
    return_code: u32,
    /// The table was asked and had no row.
    mixed: bool,
}

/// Follows the chain of records to its end.
#[inline]
fn by_records<'a>(
    frames: Frames,
    stack: &impl ReadStack,
    code: &CodeMap,
    callers: Option<&CallerTable<'_>>,
    depth: usize,
    mut path: Path<'a>,
) -> (Path<'a>, Frames, End) {
    let Frames {
        mut place,
        mut return_code,
        mixed,
    } = frames;
    let end = loop {
        // Most return addresses lie in the same stretch of code as the one before. This loop has nothing else in it,
        // so that all it needs fits into registers.
        path = path.push_all(depth, || {
            let code = place.step_nearby(stack)?;
            return_code = code;
            Some(code)
        });
        // A copy, for the same reason: its address is taken.
        let mut slow = place;
        let step = slow.step_by_record(stack, code);
        place = slow;
        match step {
            Ok(_) if path.len() >= depth => break End::Truncated,
            Ok(code) => {
                return_code = code;
                path.push(code);
            }
            // A function that has a caller was taken for the outermost.
            Err(End::Root) if place.ends_in_zero(stack) && has_caller(callers, return_code) => {
                break End::Broken;
            }
            Err(end) => break end,
        }
    };
    let frames = Frames {
        place,
        return_code,
        mixed,
    };
    (path, frames, end)
}

/// Whether the table knows that the function that is returned to has a caller.
#[inline]
fn has_caller(callers: Option<&CallerTable<'_>>, return_code: u32) -> bool {
    callers.is_some_and(|callers| {
        let caller = callers.rule(call_of(return_code)).caller();
        matches!(caller, Caller::Cfa { .. } | Caller::LoadedCfa { .. })
    })
}

/// Looks the frames up one by one.
#[inline(never)]
fn by_table<'a>(
    frames: Frames,
    stack: &impl ReadStack,
    code: &CodeMap,
    callers: &CallerTable<'_>,
    depth: usize,
    mut path: Path<'a>,
) -> (Path<'a>, Frames, End) {
    let Frames {
        mut place,
        mut return_code,
        mut mixed,
    } = frames;
    let mut part = FoundPart::default();
    let end = loop {
        // Most frames have a record, and return into the same stretch of code and the same part of the table as the one
        // before.
        path = path.push_all(depth, || {
            if part.rule(call_of(return_code))? != RECORD_RULE {
                return None;
            }
            let code = place.step_nearby(stack)?;
            return_code = code;
            Some(code)
        });
        let call = call_of(return_code);
        if part.rule(call).is_none() {
            part = callers.find(call).unwrap_or_default();
        }
        let rule = part.rule(call).unwrap_or(Rule::UNKNOWN);
        let mut slow = place;
        let step = slow.step(rule, stack, code);
        place = slow;
        match step {
            Err(end) => break end,
            Ok(_) if path.len() >= depth => break End::Truncated,
            Ok((code, by_rule)) => {
                mixed |= !by_rule;
                path.push(code);
                return_code = code;
            }
        }
    };
    let frames = Frames {
        place,
        return_code,
        mixed,
    };
    (path, frames, end)
}

/// The code of a call instruction's last byte: the address it returns to may be the next function's.
#[inline]
fn call_of(return_code: u32) -> u32 {
    return_code.wrapping_sub(1)
}
