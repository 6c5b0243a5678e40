//! The walk: from the interrupted registers to the root of the stack.
//!
//! The interrupted function may have no frame of its own yet, or none any more, or never have one: its
//! caller is looked up in the caller table, and where that knows nothing the instructions around the
//! interrupted one tell an entry or a return. From there on the walk follows the chain of frame
//! pointers, or looks every frame up in the table.
//!
//! Neither what the stack holds nor what the table says is believed. A step counts only where what it
//! reads lies wholly inside the stack, aligned, above the one before, with a return address in code; the
//! first that does not ends the walk.

use unikprof_proto::caller_table::{Base, Caller, Rule};
use unikprof_proto::code::frame_code;

use crate::ground::platform::Registers;
use crate::stack::caller_table::CallerTable;
use crate::stack::code_map::{CodeMap, Stretch};
use crate::stack::path::Path;
use crate::stack::{FRAME_RECORD, ReadCode, ReadStack};

/// How a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// At the root of the stack.
    Root,
    /// At the depth limit; callers are missing.
    Truncated,
    /// At a record that cannot be; callers are missing.
    Broken,
}

/// How the interrupted function's caller was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The caller table knows the interrupted instruction.
    Table,
    /// The instructions around it are those of an entry or a return.
    Bytes,
    /// Neither: the frame pointer was believed.
    FramePointer,
}

/// What is to be said of a walk beside its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walked {
    /// How it ended.
    pub end: End,
    /// How the interrupted function's caller was found.
    pub way: Way,
    /// Every frame was to be looked up, and the table did not know all of them.
    pub mixed: bool,
}

/// What a walk finds its way by.
#[derive(Clone, Copy, Debug)]
pub struct Guide<'g, C> {
    /// The guest's code.
    pub code: &'g CodeMap,
    /// Where callers are found, if anyone has said so.
    pub callers: Option<&'g CallerTable<'g>>,
    /// Look every frame up in `callers`, not the interrupted one alone.
    pub every_frame: bool,
    /// The instructions, `()` to leave them out.
    pub instructions: C,
}

impl<'g> Guide<'g, ()> {
    /// The chain of frame pointers alone.
    pub fn frame_pointers(code: &'g CodeMap) -> Self {
        Self {
            code,
            callers: None,
            every_frame: false,
            instructions: (),
        }
    }
}

/// Walks the stack that `registers` were interrupted on, adding at most `depth` frames to `path`, leaf
/// first. What is missing at the root is marked there with a frame of its own.
///
/// `stack` is `None` where the platform knows no stack at the interrupted stack pointer: the leaf
/// is then all there is, and the chain broken.
#[inline]
pub fn walk<'a>(
    registers: &Registers,
    stack: Option<&impl ReadStack>,
    guide: &Guide<'_, impl ReadCode>,
    depth: usize,
    mut path: Path<'a>,
) -> (Path<'a>, Walked) {
    let mut place = Place {
        sp: registers.sp,
        fp: registers.fp,
        stretch: guide.code.first(),
    };
    let depth = depth.saturating_add(path.len());
    let code = place.code(guide.code, registers.pc);
    let leaf = code.unwrap_or(frame_code::UNKNOWN_CODE);
    path.push(leaf);
    let mut walked = Walked::by_frame_pointer(End::Broken, false);
    if let Some(stack) = stack {
        let (rule, way) = leaf_rule(guide, code, registers.pc);
        match place.step(rule, stack, guide.code) {
            Err(End::Root) => {
                walked = Walked {
                    end: End::Root,
                    way,
                    ..walked
                }
            }
            Err(end) => walked.end = end,
            Ok((code, by_rule)) => {
                (path, walked) = match guide.callers {
                    _ if path.len() >= depth => {
                        (path, Walked::by_frame_pointer(End::Truncated, false))
                    }
                    Some(callers) if guide.every_frame => {
                        path.push(code);
                        by_table(place, code, stack, guide.code, callers, depth, path)
                    }
                    callers => {
                        path.push(code);
                        by_records(place, code, stack, guide.code, callers, depth, path)
                    }
                };
                if by_rule {
                    walked.way = way;
                }
            }
        }
    }
    match walked.end {
        End::Root => {}
        End::Truncated => path.push(frame_code::TRUNCATED),
        End::Broken => path.push(frame_code::BROKEN),
    }
    (path, walked)
}

impl Walked {
    fn by_frame_pointer(end: End, mixed: bool) -> Self {
        Self {
            end,
            way: Way::FramePointer,
            mixed,
        }
    }
}

/// Where a walk has come to.
#[derive(Clone, Copy)]
struct Place {
    /// What lies below has been passed.
    sp: u64,
    fp: u64,
    /// The stretch of code that was found last: the next address mostly lies in the same.
    stretch: Stretch,
}

impl Place {
    #[inline]
    fn code(&mut self, code: &CodeMap, address: u64) -> Option<u32> {
        self.stretch.code(address).or_else(|| {
            self.stretch = code.find(address)?;
            self.stretch.code(address)
        })
    }

    /// Goes to the caller; answers the return address's code, and whether `rule` led there or the
    /// frame pointer.
    #[inline]
    fn step(
        &mut self,
        rule: Rule,
        stack: &impl ReadStack,
        code: &CodeMap,
    ) -> Result<(u32, bool), End> {
        if rule == Rule::UNKNOWN {
            return Ok((self.step_by_record(stack, code)?, false));
        }
        if rule == Rule::FRAME_RECORD {
            return Ok((self.step_to_caller(stack, code)?, true));
        }
        let Caller::Cfa {
            base,
            words,
            saved_fp,
        } = rule.caller()
        else {
            return Err(End::Root);
        };
        match self.caller(base, words, saved_fp, stack) {
            Some((0, ..)) => return Err(End::Root),
            Some((return_address, cfa, fp)) => {
                if let Some(code) = self.code(code, return_address) {
                    (self.sp, self.fp) = (cfa, fp);
                    return Ok((code, true));
                }
            }
            None => {}
        }
        Ok((self.step_to_caller(stack, code)?, false))
    }

    /// The same for a function that is known to have a caller: a frame pointer of 0 comes too early.
    #[inline]
    fn step_to_caller(&mut self, stack: &impl ReadStack, code: &CodeMap) -> Result<u32, End> {
        self.step_by_record(stack, code).map_err(|end| match end {
            End::Root if self.ends_in_zero(stack) => End::Broken,
            end => end,
        })
    }

    /// Whether the chain ends because the frame pointer is 0, and not at the end of the stack or a return
    /// address of 0.
    #[inline]
    fn ends_in_zero(&self, stack: &impl ReadStack) -> bool {
        self.fp == 0 && self.sp != stack.end()
    }

    /// The return address, the canonical frame address and the caller's frame pointer, as a rule says.
    #[inline]
    fn caller(
        &self,
        base: Base,
        words: u16,
        saved_fp: Option<u8>,
        stack: &impl ReadStack,
    ) -> Option<(u64, u64, u64)> {
        let base = match base {
            Base::StackPointer => self.sp,
            Base::FramePointer => self.fp,
        };
        let cfa = base.checked_add(u64::from(words) * 8)?;
        if cfa <= self.sp {
            return None;
        }
        let return_address = stack.word(cfa - 8)?;
        let saved_at = saved_fp.and_then(|words| cfa.checked_sub(u64::from(words) * 8));
        let fp = match saved_at {
            // A place below the stack pointer was popped: its value is in the register.
            Some(at) if at >= self.sp => stack.word(at)?,
            _ => self.fp,
        };
        Some((return_address, cfa, fp))
    }

    /// Goes to the caller by the record that the frame pointer points to.
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
        let Some(code) = self.code(code, return_address) else {
            return Err(if return_address == 0 {
                End::Root
            } else {
                End::Broken
            });
        };
        self.pass_record(caller_fp);
        Ok(code)
    }

    /// The same where the return address lies in the stretch of code that was found last, as most do; `None` where it
    /// does not, or the chain ends.
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
}

/// The rule for the interrupted instruction, and who gave it.
#[inline]
fn leaf_rule(guide: &Guide<'_, impl ReadCode>, code: Option<u32>, pc: u64) -> (Rule, Way) {
    let Some(code) = code else {
        return (Rule::UNKNOWN, Way::FramePointer);
    };
    let rule = guide
        .callers
        .map_or(Rule::UNKNOWN, |callers| callers.rule(code));
    if rule != Rule::UNKNOWN {
        return (rule, Way::Table);
    }
    let bytes = guide.instructions.around(pc);
    match bytes.map_or(Rule::UNKNOWN, rule_of_bytes) {
        Rule::UNKNOWN => (Rule::UNKNOWN, Way::FramePointer),
        rule => (rule, Way::Bytes),
    }
}

/// What the byte before an instruction and the four from it on tell of its function's frame
/// (Intel's manual, volume 2): an entry has not pushed the frame pointer, a return has popped it.
fn rule_of_bytes(bytes: [u8; 5]) -> Rule {
    const PUSH_RBP: u8 = 0x55;
    const RET: u8 = 0xc3;
    const PUSHED: Rule = Rule::new(Caller::Cfa {
        base: Base::StackPointer,
        words: 2,
        saved_fp: Some(2),
    });
    match bytes {
        [_, PUSH_RBP | RET, ..] => Rule::ENTRY,
        // rep ret; endbr64
        [_, 0xf3, RET, ..] | [_, 0xf3, 0x0f, 0x1e, 0xfa] => Rule::ENTRY,
        // mov rbp, rsp, in its two encodings
        [PUSH_RBP, 0x48, 0x89, 0xe5, _] | [PUSH_RBP, 0x48, 0x8b, 0xec, _] => PUSHED,
        _ => Rule::UNKNOWN,
    }
}

/// Follows the chain of records to the root, from the frame that returns to `return_code`.
#[inline]
fn by_records<'a>(
    mut place: Place,
    mut return_code: u32,
    stack: &impl ReadStack,
    code: &CodeMap,
    callers: Option<&CallerTable<'_>>,
    depth: usize,
    path: Path<'a>,
) -> (Path<'a>, Walked) {
    let mut end = End::Root;
    let path = path.push_all(|length| {
        if length < depth
            && let Some(code) = place.step_nearby(stack)
        {
            return_code = code;
            return Some(code);
        }
        match place.step_by_record(stack, code) {
            Ok(_) if length >= depth => end = End::Truncated,
            Ok(code) => {
                return_code = code;
                return Some(code);
            }
            // A function that has a caller was taken for the outermost.
            Err(End::Root) if place.ends_in_zero(stack) && has_caller(callers, return_code) => {
                end = End::Broken;
            }
            Err(other) => end = other,
        }
        None
    });
    (path, Walked::by_frame_pointer(end, false))
}

/// Whether a table knows that the function that is returned to has a caller.
#[inline]
fn has_caller(callers: Option<&CallerTable<'_>>, return_code: u32) -> bool {
    callers.is_some_and(|callers| {
        let rule = callers.rule(return_code.wrapping_sub(1));
        matches!(rule.caller(), Caller::Cfa { .. })
    })
}

/// Looks the frames up one by one, the first of them that which returns to `return_code`.
fn by_table<'a>(
    mut place: Place,
    mut return_code: u32,
    stack: &impl ReadStack,
    code: &CodeMap,
    callers: &CallerTable<'_>,
    depth: usize,
    mut path: Path<'a>,
) -> (Path<'a>, Walked) {
    let mut mixed = false;
    let end = loop {
        // The call lies before the address it returns to, which may be the next function's.
        let rule = callers.rule(return_code.wrapping_sub(1));
        match place.step(rule, stack, code) {
            Err(end) => break end,
            Ok(_) if path.len() >= depth => break End::Truncated,
            Ok((code, by_rule)) => {
                mixed |= !by_rule;
                path.push(code);
                return_code = code;
            }
        }
    };
    (path, Walked::by_frame_pointer(end, mixed))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    extern crate std;

    use core::mem::MaybeUninit;
    use std::vec::Vec;

    use unikprof_proto::caller_table::Row;

    use super::*;
    use crate::stack::code_map::Mapping;
    use crate::stack::path::PathCells;

    const CODE: u64 = 0x40_0000;
    const STACK: u64 = 0x8000;

    /// A stack of words from [`STACK`] on.
    struct Words(Vec<u64>);

    impl ReadStack for Words {
        fn frame_record(&self, fp: u64) -> Option<[u64; 2]> {
            let offset = fp.checked_sub(STACK)?;
            if offset % 8 != 0 {
                return None;
            }
            let index = (offset / 8) as usize;
            Some([*self.0.get(index)?, *self.0.get(index + 1)?])
        }

        fn word(&self, address: u64) -> Option<u64> {
            let offset = address.checked_sub(STACK)?;
            let word = self.0.get((offset / 8) as usize)?;
            offset.is_multiple_of(8).then_some(*word)
        }

        fn end(&self) -> u64 {
            STACK + 8 * self.0.len() as u64
        }
    }

    fn walk_words(words: &[u64], fp: u64, depth: usize) -> (End, Vec<u32>) {
        let mapping = Mapping {
            start: CODE,
            end: CODE + 0x1000,
            file_offset: 0,
            build_id: &[],
            path: "",
        };
        let code = CodeMap::new(&[mapping]).unwrap();
        let cells = PathCells::default();
        let registers = Registers::new(CODE, STACK, fp);
        let stack = Words(words.to_vec());
        let guide = Guide::frame_pointers(&code);
        let (path, walked) = walk(&registers, Some(&stack), &guide, depth, cells.begin());
        assert_eq!((walked.way, walked.mixed), (Way::FramePointer, false));
        (walked.end, path.codes().collect())
    }

    /// Codes of addresses relative to [`CODE`].
    fn codes(offsets: &[u32]) -> Vec<u32> {
        offsets.iter().map(|offset| 16 + offset).collect()
    }

    #[test]
    fn a_chain_ends_at_a_zero_frame_pointer() {
        let words = [
            STACK + 16,
            CODE + 1,
            STACK + 40,
            CODE + 2,
            99,
            0,
            CODE + 3,
            99,
        ];
        assert_eq!(
            walk_words(&words, STACK, 128),
            (End::Root, codes(&[0, 1, 2, 3]))
        );
    }

    /// A thread's first function saves whatever its caller had in rbp; the stack ends with its frame.
    #[test]
    fn a_chain_ends_with_the_stack() {
        let words = [STACK + 16, CODE + 1, 0xdead_beef, CODE + 2];
        assert_eq!(
            walk_words(&words, STACK, 128),
            (End::Root, codes(&[0, 1, 2]))
        );
    }

    #[test]
    fn a_zero_return_address_is_the_root() {
        assert_eq!(
            walk_words(&[STACK + 16, 0, 7, 7], STACK, 128),
            (End::Root, codes(&[0]))
        );
    }

    #[test]
    fn a_cycle_is_broken_not_endless() {
        for caller_fp in [STACK, STACK + 8] {
            let words = [caller_fp, CODE + 1, 0, 0, 0];
            let (end, path) = walk_words(&words, STACK, 128);
            assert_eq!(end, End::Broken);
            assert_eq!(path, [16, 17, frame_code::BROKEN]);
        }
    }

    #[test]
    fn records_outside_misaligned_or_without_code_break_the_chain() {
        let ends_in = |record: [u64; 2]| {
            let words = [STACK + 16, CODE + 1, record[0], record[1], 0, 0];
            walk_words(&words, STACK, 128).0
        };
        assert_eq!(ends_in([STACK + 20, CODE]), End::Broken, "misaligned");
        assert_eq!(
            ends_in([u64::MAX - 7, CODE]),
            End::Broken,
            "at the top of memory"
        );
        assert_eq!(ends_in([STACK + 40, CODE]), End::Broken, "half a record");
        assert_eq!(
            ends_in([0, CODE + 0x1000]),
            End::Broken,
            "return address after the code"
        );
        assert_eq!(
            walk_words(&[0; 4], STACK - 16, 128).0,
            End::Broken,
            "below the stack pointer"
        );
    }

    #[test]
    fn depth_is_a_limit_and_said() {
        let mut words: Vec<u64> = (1..=200).flat_map(|n| [STACK + 16 * n, CODE + n]).collect();
        words[398] = 0;
        let (end, path) = walk_words(&words, STACK, 128);
        assert_eq!((end, path.len()), (End::Truncated, 129));
        assert_eq!(path[128], frame_code::TRUNCATED);
        let exact: Vec<u64> = (1..=127)
            .flat_map(|n| [if n == 127 { 0 } else { STACK + 16 * n }, CODE + n])
            .collect();
        assert_eq!(
            walk_words(&exact, STACK, 128).0,
            End::Root,
            "128 frames fit exactly"
        );
        assert_eq!(walk_words(&exact, STACK, 1).1, [16, frame_code::TRUNCATED]);
    }

    #[test]
    fn an_unknown_pc_is_said_and_the_walk_goes_on() {
        let mapping = Mapping {
            start: 1,
            end: 2,
            file_offset: 0,
            build_id: &[],
            path: "",
        };
        let code = CodeMap::new(&[mapping]).unwrap();
        let cells = PathCells::default();
        let registers = Registers::new(77, STACK, 0);
        let guide = Guide::frame_pointers(&code);
        let (path, walked) = walk(&registers, None::<&Words>, &guide, 128, cells.begin());
        assert_eq!(walked.end, End::Broken);
        let path: Vec<u32> = path.codes().collect();
        assert_eq!(path, [frame_code::UNKNOWN_CODE, frame_code::BROKEN]);
    }

    /// Walks from `pc` with the stack pointer at the first word, by the rules of `rows`.
    fn walk_with(
        words: &[u64],
        registers: Registers,
        rows: &[Row],
        every_frame: bool,
        instructions: impl ReadCode,
    ) -> (Walked, Vec<u32>) {
        let mapping = Mapping {
            start: CODE,
            end: CODE + 0x1000,
            file_offset: 0,
            build_id: &[],
            path: "",
        };
        let code = CodeMap::new(&[mapping]).unwrap();
        let mut block = [MaybeUninit::uninit(); 1024];
        let table = CallerTable::from_rows(&mut block, &code, rows).unwrap();
        let cells = PathCells::default();
        let guide = Guide {
            code: &code,
            callers: Some(&table),
            every_frame,
            instructions,
        };
        let stack = Words(words.to_vec());
        let (path, walked) = walk(&registers, Some(&stack), &guide, 128, cells.begin());
        (walked, path.codes().collect())
    }

    fn row(offset: u32, rule: Rule) -> Row {
        Row {
            code: 16 + offset,
            rule,
        }
    }

    fn from_sp(words: u16, saved_fp: Option<u8>) -> Rule {
        Rule::new(Caller::Cfa {
            base: Base::StackPointer,
            words,
            saved_fp,
        })
    }

    const LEAF: Registers = Registers::new(CODE, STACK, STACK + 24);

    /// A leaf without a frame of its own: the frame pointer is its caller's, whose return address
    /// leads past it.
    #[test]
    fn the_table_finds_the_caller_of_a_leaf() {
        let words = [99, CODE + 1, 77, 0, CODE + 2];
        let naive = walk_with(&words, LEAF, &[], false, ());
        assert_eq!(naive.1, codes(&[0, 2]), "the caller is passed over");
        assert_eq!(naive.0.way, Way::FramePointer);
        let (walked, path) = walk_with(&words, LEAF, &[row(0, from_sp(2, None))], false, ());
        assert_eq!(path, codes(&[0, 1, 2]));
        assert_eq!((walked.way, walked.end), (Way::Table, End::Root));
    }

    /// After `push rbp` the caller's frame pointer is on the stack; after `pop rbp` it is in its
    /// register again, whatever place below the stack pointer the rule names.
    #[test]
    fn the_frame_pointer_is_restored_from_above_the_stack_pointer_only() {
        let words = [STACK + 24, CODE + 1, 77, 0, CODE + 2];
        let pushed = Registers { fp: 1, ..LEAF };
        let rule = [row(0, from_sp(2, Some(2)))];
        assert_eq!(
            walk_with(&words, pushed, &rule, false, ()).1,
            codes(&[0, 1, 2])
        );
        let words = [CODE + 1, 77, 77, 0, CODE + 2];
        let rule = [row(0, from_sp(1, Some(2)))];
        assert_eq!(
            walk_with(&words, LEAF, &rule, false, ()).1,
            codes(&[0, 1, 2])
        );
    }

    /// A rule that leads nowhere costs nothing: the frame pointer is followed instead.
    #[test]
    fn a_hostile_rule_is_passed_over() {
        let words = [99, CODE + 1, 77, 0, CODE + 2];
        let hostile = [
            from_sp(0, None),
            from_sp(1, None),
            from_sp(6, None),
            from_sp(u16::MAX, Some(63)),
            Rule::new(Caller::Cfa {
                base: Base::FramePointer,
                words: u16::MAX,
                saved_fp: Some(1),
            }),
            Rule(u32::MAX),
        ];
        for rule in hostile {
            let (walked, path) = walk_with(&words, LEAF, &[row(0, rule)], false, ());
            assert_eq!(path, codes(&[0, 2]), "{rule:?}");
            assert_eq!(walked.way, Way::FramePointer, "{rule:?}");
        }
        let registers = Registers {
            fp: u64::MAX,
            ..LEAF
        };
        let rule = [row(0, hostile[4])];
        let (walked, _) = walk_with(&words, registers, &rule, true, ());
        assert_eq!(walked.end, End::Broken);
    }

    #[test]
    fn the_outermost_function_has_no_caller() {
        let rule = [row(0, Rule::OUTERMOST)];
        let (walked, path) = walk_with(&[99, CODE + 1, 77, 0, CODE + 2], LEAF, &rule, false, ());
        assert_eq!((walked.end, walked.way), (End::Root, Way::Table));
        assert_eq!(path, codes(&[0]));
    }

    /// A function without a frame in the middle of a stack breaks the chain, but not the look-up.
    #[test]
    fn every_frame_is_looked_up_where_that_is_asked_for() {
        // The leaf has a record, its caller at offset 0x100 keeps two words and no frame pointer.
        let words = [
            STACK + 48,
            CODE + 0x101,
            5,
            6,
            CODE + 0x201,
            7,
            0,
            CODE + 0x301,
        ];
        let leaf = Registers { fp: STACK, ..LEAF };
        let rows = [
            row(0, Rule::FRAME_RECORD),
            row(0x100, from_sp(3, None)),
            row(0x200, Rule::FRAME_RECORD),
            row(0x300, Rule::UNKNOWN),
        ];
        let (walked, path) = walk_with(&words, leaf, &rows, false, ());
        assert_eq!(path, codes(&[0, 0x101, 0x301]), "the chain passes one over");
        assert!(!walked.mixed);
        let (walked, path) = walk_with(&words, leaf, &rows, true, ());
        assert_eq!(path, codes(&[0, 0x101, 0x201, 0x301]));
        assert_eq!((walked.end, walked.mixed), (End::Root, false));
        let unknown = [
            rows[0],
            row(0x100, from_sp(3, None)),
            row(0x200, Rule::UNKNOWN),
        ];
        let (walked, path) = walk_with(&words, leaf, &unknown, true, ());
        assert_eq!(path, codes(&[0, 0x101, 0x201, 0x301]));
        assert!(walked.mixed, "a frame was found by its frame pointer");
    }

    /// A 0 in the frame pointer ends the chain of the outermost function only: the table knows which that
    /// is not.
    #[test]
    fn a_zero_that_comes_too_early_is_broken() {
        let words = [0, CODE + 0x101, 7, 8, 9];
        let leaf = Registers { fp: STACK, ..LEAF };
        let rows = |rule| [row(0, Rule::FRAME_RECORD), row(0x100, rule)];
        for (rule, end) in [
            (Rule::FRAME_RECORD, End::Broken),
            (from_sp(3, None), End::Broken),
            (Rule::UNKNOWN, End::Root),
            (Rule::OUTERMOST, End::Root),
        ] {
            let (walked, path) = walk_with(&words, leaf, &rows(rule), false, ());
            assert_eq!(walked.end, end, "{rule:?}");
            assert_eq!(path[..2], codes(&[0, 0x101]));
        }
        let by_table = walk_with(&words, leaf, &rows(Rule::FRAME_RECORD), true, ());
        assert_eq!(by_table.0.end, End::Broken);
        let no_frame = Registers { fp: 0, ..LEAF };
        let at_leaf = walk_with(&words, no_frame, &rows(Rule::UNKNOWN), false, ());
        assert_eq!(
            at_leaf.0.end,
            End::Broken,
            "the leaf has a record, says the table"
        );
        // Where the stack ends there is nothing more, whatever the table says.
        let whole = [0, CODE + 0x101];
        let (walked, _) = walk_with(&whole, leaf, &rows(Rule::FRAME_RECORD), false, ());
        assert_eq!(walked.end, End::Root);
    }

    struct Bytes([u8; 5]);

    impl ReadCode for Bytes {
        fn around(&self, pc: u64) -> Option<[u8; 5]> {
            assert_eq!(pc, CODE);
            Some(self.0)
        }
    }

    #[test]
    fn entries_and_returns_are_known_by_their_bytes() {
        let words = [CODE + 1, 77, 77, 0, CODE + 2];
        let at_entry = [
            [0x90, 0x55, 0x48, 0x89, 0xe5],
            [0x5d, 0xc3, 0x90, 0x90, 0x90],
            [0x90, 0xf3, 0xc3, 0x90, 0x90],
            [0x90, 0xf3, 0x0f, 0x1e, 0xfa],
        ];
        for bytes in at_entry {
            let (walked, path) = walk_with(&words, LEAF, &[], false, Bytes(bytes));
            assert_eq!(path, codes(&[0, 1, 2]), "{bytes:x?}");
            assert_eq!(walked.way, Way::Bytes);
        }
        let words = [STACK + 24, CODE + 1, 77, 0, CODE + 2];
        let pushed = Registers { fp: 1, ..LEAF };
        for bytes in [
            [0x55, 0x48, 0x89, 0xe5, 0x90],
            [0x55, 0x48, 0x8b, 0xec, 0x90],
        ] {
            let (walked, path) = walk_with(&words, pushed, &[], false, Bytes(bytes));
            assert_eq!(path, codes(&[0, 1, 2]), "{bytes:x?}");
            assert_eq!(walked.way, Way::Bytes);
        }
        let other = Bytes([0x90; 5]);
        assert_eq!(
            walk_with(&words, LEAF, &[], false, other).0.way,
            Way::FramePointer
        );
        let known = [row(0, Rule::FRAME_RECORD)];
        let entry = Bytes(at_entry[0]);
        assert_eq!(
            walk_with(&words, LEAF, &known, false, entry).0.way,
            Way::Table,
            "the table knows better than the bytes"
        );
    }
}
