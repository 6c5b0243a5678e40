//! What a row of unwind information says, as far as a rule can.

use gimli::constants as op;
use gimli::{
    AArch64, CfaRule, EndianSlice, Expression, LittleEndian, Reader as _, Register, RegisterRule,
    UnwindSection, UnwindTableRow, X86_64,
};
use unikprof_proto::caller_table::{Base, Caller, Rule};

use super::processor::Processor;
use super::stretches::Known;

/// The bytes of a section.
pub(super) type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// A word, in bytes.
const WORD: i64 = 8;

/// What holds where this row does. `return_address` is the column that the row's CIE names for it.
pub(super) fn known_of<'a, S>(
    processor: Processor,
    row: &UnwindTableRow<usize>,
    return_address: Register,
    section: &S,
) -> Known
where
    S: UnwindSection<Bytes<'a>>,
{
    match processor {
        Processor::X86_64 => on_x86_64(row, return_address, section),
        Processor::Aarch64 => {
            let rule = on_aarch64(row.cfa(), return_address, |register| row.register(register));
            Known::Rule(rule.unwrap_or(Rule::UNKNOWN))
        }
    }
}

/// On x86_64 a call pushes the return address, so that it lies just below the frame address.
fn on_x86_64<'a, S>(row: &UnwindTableRow<usize>, return_address: Register, section: &S) -> Known
where
    S: UnwindSection<Bytes<'a>>,
{
    let known = match row.register(return_address) {
        _ if return_address != X86_64::RA => None,
        Some(RegisterRule::Undefined) => return Known::Rule(Rule::OUTERMOST),
        Some(RegisterRule::Offset(offset)) if offset == -WORD => match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                from_register(*register, *offset, row.register(X86_64::RBP)).map(Known::Rule)
            }
            CfaRule::Expression(expression) => match expression.get(section) {
                Ok(expression) => {
                    let frame_pointer = row.register(X86_64::RBP);
                    let linkage = in_register(frame_pointer.clone())
                        .then(|| linkage_table(&expression))
                        .flatten();
                    linkage.or_else(|| loaded(&expression, frame_pointer).map(Known::Rule))
                }
                Err(_) => None,
            },
        },
        _ => None,
    };
    known.unwrap_or(Known::Rule(Rule::UNKNOWN))
}

fn from_register(
    register: Register,
    offset: i64,
    frame_pointer: Option<RegisterRule<usize>>,
) -> Option<Rule> {
    let base = match register {
        X86_64::RSP => Base::StackPointer,
        X86_64::RBP => Base::FramePointer,
        _ => return None,
    };
    let words = u16::try_from(in_words(offset)?).ok()?;
    if words == 0 {
        return None;
    }
    let saved_fp = match frame_pointer {
        rule if in_register(rule.clone()) => None,
        Some(RegisterRule::Offset(offset)) => {
            let saved = in_words(offset.checked_neg()?)?;
            let below_stack = base == Base::StackPointer && saved > i64::from(words);
            match saved {
                // LLVM's rows go on to name the slot that `pop %rbp` has just freed.
                _ if below_stack => None,
                // The return address is there.
                1 => return None,
                saved => Some(u8::try_from(saved).ok().filter(|saved| *saved > 0)?),
            }
        }
        _ => return None,
    };
    Some(Rule::new(Caller::Cfa { base, words, saved_fp }))
}

/// On aarch64 a call leaves the return address in the link register, and a function that calls
/// others saves it in its frame. Whether it is signed is of no importance: agents remove the
/// signature of every return address.
fn on_aarch64(
    cfa: &CfaRule<usize>,
    return_address: Register,
    rule_of: impl Fn(Register) -> Option<RegisterRule<usize>>,
) -> Option<Rule> {
    if return_address != AArch64::X30 {
        return None;
    }
    if let Some(RegisterRule::Undefined) = rule_of(AArch64::X30) {
        return Some(Rule::OUTERMOST);
    }
    let CfaRule::RegisterAndOffset { register, offset } = *cfa else {
        return None;
    };
    let base = match register {
        AArch64::SP => Base::StackPointer,
        AArch64::X29 => Base::FramePointer,
        _ => return None,
    };
    let words = u16::try_from(in_words(offset)?).ok()?;
    // 0: in the register. What a function has saved below its stack pointer it has loaded again.
    let saved = |register| match rule_of(register) {
        rule if in_register(rule.clone()) => Some(0),
        Some(RegisterRule::Offset(offset)) => {
            let saved = in_words(offset.checked_neg()?)?;
            if base == Base::StackPointer && saved > i64::from(words) {
                return Some(0);
            }
            u8::try_from(saved).ok().filter(|saved| *saved > 0)
        }
        _ => None,
    };
    let (fp, lr) = (saved(AArch64::X29)?, saved(AArch64::X30)?);
    if fp == lr && fp > 0 {
        return None;
    }
    let rule = Rule::new(Caller::Cfa { base, words, saved_fp: (fp > 0).then_some(fp) });
    (rule != Rule::UNKNOWN).then(|| rule.with_return_address(lr))
}

/// Whether the caller's value is still in the register: the ABI preserves it where nothing is said.
fn in_register(rule: Option<RegisterRule<usize>>) -> bool {
    matches!(rule, None | Some(RegisterRule::Undefined | RegisterRule::SameValue))
}

fn in_words(offset: i64) -> Option<i64> {
    (offset % WORD == 0).then_some(offset / WORD)
}

/// The one expression that linkers write, for the entries of a lazy procedure linkage table:
/// `rsp + 8 + ((rip & 15) >= from) * 8`.
fn linkage_table(expression: &Expression<Bytes<'_>>) -> Option<Known> {
    const LIT_0: u8 = op::DW_OP_lit0.0;
    const LIT_15: u8 = op::DW_OP_lit15.0;
    const RSP_AND_8: [u8; 2] = [op::DW_OP_breg7.0, 8];
    const RIP_AND_15: [u8; 4] = [op::DW_OP_breg16.0, 0, LIT_15, op::DW_OP_and.0];
    const ONE_WORD_MORE: [u8; 4] =
        [op::DW_OP_ge.0, op::DW_OP_lit3.0, op::DW_OP_shl.0, op::DW_OP_plus.0];
    let rest = expression.0.slice().strip_prefix(&RSP_AND_8)?;
    let rest = rest.strip_prefix(&RIP_AND_15)?;
    match rest.strip_suffix(&ONE_WORD_MORE)? {
        [from @ LIT_0..=LIT_15] => Some(Known::LinkageTable(from - LIT_0)),
        _ => None,
    }
}

/// The rule of code that has switched stacks and kept the former stack pointer in memory, as
/// OCaml's `caml_c_call` does: `*(register + at) + plus`.
fn loaded(
    expression: &Expression<Bytes<'_>>,
    frame_pointer: Option<RegisterRule<usize>>,
) -> Option<Rule> {
    let mut bytes = expression.0;
    let base = match op(&mut bytes)? {
        op::DW_OP_breg7 => Base::StackPointer,
        op::DW_OP_breg6 => Base::FramePointer,
        _ => return None,
    };
    let at = in_words(bytes.read_sleb128().ok()?)?;
    if op(&mut bytes)? != op::DW_OP_deref {
        return None;
    }
    let plus = match op(&mut bytes) {
        None => 0,
        Some(op::DW_OP_plus_uconst) => bytes.read_uleb128().ok()?,
        Some(_) => return None,
    };
    let saved_fp = match frame_pointer {
        rule if in_register(rule.clone()) => None,
        // Just below the frame address lies the return address.
        Some(RegisterRule::Offset(offset)) if offset <= -2 * WORD => {
            Some(u8::try_from(in_words(offset.checked_neg()?)?).ok()?)
        }
        _ => return None,
    };
    let rule = Rule::new(Caller::LoadedCfa {
        base,
        at: u8::try_from(at).ok()?,
        plus: u8::try_from(in_words(i64::try_from(plus).ok()?)?).ok()?,
        saved_fp,
    });
    (bytes.is_empty() && rule != Rule::UNKNOWN).then_some(rule)
}

/// The next operation of an expression.
fn op(bytes: &mut Bytes<'_>) -> Option<gimli::DwOp> {
    bytes.read_u8().ok().map(gimli::DwOp)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(register: Register, offset: i64, fp: Option<RegisterRule<usize>>) -> Option<Caller> {
        from_register(register, offset, fp).map(Rule::caller)
    }

    fn cfa(base: Base, words: u16, saved_fp: Option<u8>) -> Option<Caller> {
        Some(Caller::Cfa { base, words, saved_fp })
    }

    #[test]
    fn a_freed_slot_means_the_register() {
        let saved = |offset| Some(RegisterRule::Offset(offset));
        let pushed = cfa(Base::StackPointer, 2, Some(2));
        assert_eq!(rule(X86_64::RSP, 16, saved(-16)), pushed);
        let popped = cfa(Base::StackPointer, 1, None);
        assert_eq!(rule(X86_64::RSP, 8, saved(-16)), popped);
        let record = cfa(Base::FramePointer, 2, Some(2));
        assert_eq!(rule(X86_64::RBP, 16, saved(-16)), record);
        // Relative to the frame pointer nothing can be said of the stack's end.
        let above = cfa(Base::FramePointer, 1, Some(2));
        assert_eq!(rule(X86_64::RBP, 8, saved(-16)), above);
    }

    /// A row of an aarch64 image: what holds of the frame address, of `x29` and of `x30`.
    fn arm(
        register: Register,
        offset: i64,
        fp: Option<RegisterRule<usize>>,
        lr: Option<RegisterRule<usize>>,
    ) -> Option<(Caller, u8)> {
        let cfa = CfaRule::RegisterAndOffset { register, offset };
        let rule = on_aarch64(&cfa, AArch64::X30, |register| match register {
            AArch64::X29 => fp.clone(),
            AArch64::X30 => lr.clone(),
            _ => None,
        });
        rule.map(|rule| (rule.caller(), rule.return_address()))
    }

    #[test]
    fn the_link_register_is_followed_to_where_it_is_saved() {
        let saved = |offset| Some(RegisterRule::Offset(offset));
        let by = |base, words, saved_fp, lr| cfa(base, words, saved_fp).map(|caller| (caller, lr));
        let (sp, fp) = (Base::StackPointer, Base::FramePointer);
        // At the entry and in leaf functions; with locals; after `stp x29, x30, [sp, -48]!`; with
        // the record at the top.
        assert_eq!(arm(AArch64::SP, 0, None, None), by(sp, 0, None, 0));
        assert_eq!(arm(AArch64::SP, 32, None, None), by(sp, 4, None, 0));
        let gcc = arm(AArch64::SP, 48, saved(-48), saved(-40));
        assert_eq!(gcc, by(sp, 6, Some(6), 5));
        let llvm = arm(AArch64::X29, 16, saved(-16), saved(-8));
        assert_eq!(llvm, by(fp, 2, Some(2), 1));
        // Without a frame pointer; further away than a frame pointer's place can be told.
        assert_eq!(arm(AArch64::SP, 16, None, saved(-16)), by(sp, 2, None, 2));
        let far = arm(AArch64::SP, 2040, None, saved(-2040));
        assert_eq!(far, by(sp, 255, None, 255));
        // A row that still names what was popped.
        let popped = arm(AArch64::SP, 0, saved(-16), saved(-8));
        assert_eq!(popped, by(sp, 0, None, 0));
        let root = arm(AArch64::SP, 0, None, Some(RegisterRule::Undefined));
        assert_eq!(root, Some((Caller::Outermost, 0)));
    }

    #[test]
    fn what_no_rule_can_say_of_aarch64_is_unknown() {
        let saved = |offset| Some(RegisterRule::Offset(offset));
        for (register, offset, fp, lr) in [
            (AArch64::X19, 16, None, None),
            (AArch64::SP, 12, None, None),
            (AArch64::SP, -8, None, None),
            (AArch64::SP, 8 << 16, None, None),
            // Further than the fields reach, on half words, above, in other registers, both in one
            // place.
            (AArch64::SP, 512, saved(-512), saved(-504)),
            (AArch64::SP, 2048, None, saved(-2048)),
            (AArch64::SP, 64, None, saved(-12)),
            (AArch64::SP, 64, None, saved(8)),
            (AArch64::SP, 64, None, saved(i64::MIN)),
            (AArch64::SP, 64, None, Some(RegisterRule::Register(AArch64::X9))),
            (AArch64::SP, 64, Some(RegisterRule::ValOffset(-16)), saved(-8)),
            (AArch64::SP, 64, saved(-8), saved(-8)),
        ] {
            let found = arm(register, offset, fp.clone(), lr.clone());
            assert_eq!(found, None, "{register:?} {offset} {fp:?} {lr:?}");
        }
        let cfa = CfaRule::RegisterAndOffset { register: AArch64::SP, offset: 0 };
        assert_eq!(on_aarch64(&cfa, X86_64::RA, |_| None), None, "another column");
    }

    #[test]
    fn what_no_rule_can_say_is_unknown() {
        for (register, offset, fp) in [
            (X86_64::RBX, 16, None),
            (X86_64::RSP, 12, None),
            (X86_64::RSP, 0, None),
            (X86_64::RSP, -8, None),
            (X86_64::RSP, 8 << 16, None),
            (X86_64::RSP, 8 * 80, Some(RegisterRule::Offset(-8 * 64))),
            (X86_64::RSP, 64, Some(RegisterRule::Offset(-12))),
            (X86_64::RSP, 64, Some(RegisterRule::Offset(-8))),
            (X86_64::RSP, 64, Some(RegisterRule::Offset(0))),
            (X86_64::RSP, 64, Some(RegisterRule::Offset(8))),
            (X86_64::RSP, 64, Some(RegisterRule::Offset(i64::MIN))),
            (X86_64::RSP, 64, Some(RegisterRule::Register(X86_64::RAX))),
            (X86_64::RSP, 64, Some(RegisterRule::ValOffset(-16))),
        ] {
            let found = rule(register, offset, fp.clone());
            let unknown = matches!(found, None | Some(Caller::Unknown));
            assert!(unknown, "{register:?} {offset} {fp:?}: {found:?}");
        }
        let furthest = cfa(Base::StackPointer, u16::MAX, Some(63));
        let fp = Some(RegisterRule::Offset(-8 * 63));
        assert_eq!(rule(X86_64::RSP, 8 * 65_535, fp), furthest);
        let kept = Some(RegisterRule::SameValue);
        assert_eq!(rule(X86_64::RSP, 8, kept), cfa(Base::StackPointer, 1, None));
    }

    #[test]
    fn a_frame_address_in_memory_has_a_rule() {
        let rule = |bytes: &[u8], fp| {
            let expression = Expression(EndianSlice::new(bytes, LittleEndian));
            loaded(&expression, fp).map(Rule::caller)
        };
        let found = |base, at, plus, saved_fp| Some(Caller::LoadedCfa { base, at, plus, saved_fp });
        // breg7 +8, deref, plus_uconst 8: `caml_c_call` of OCaml 5.
        let c_call = [0x77, 8, 0x06, 0x23, 8];
        assert_eq!(rule(&c_call, None), found(Base::StackPointer, 1, 1, None));
        let saved = Some(RegisterRule::Offset(-16));
        assert_eq!(rule(&c_call, saved), found(Base::StackPointer, 1, 1, Some(2)));
        let plain = [0x76, 0, 0x06];
        assert_eq!(rule(&plain, None), found(Base::FramePointer, 0, 0, None));
        for unknown in [
            // Another register, half a word, below the register, too far, cut, more operations,
            // another order.
            &[0x73, 8, 0x06][..],
            &[0x77, 4, 0x06],
            &[0x77, 0x78, 0x06],
            &[0x77, 0x80, 0x08, 0x06],
            &[0x77, 8, 0x06, 0x23, 4],
            &[0x77, 8, 0x06, 0x23, 0x80, 0x08],
            &[0x77, 8, 0x06, 0x23],
            &[0x77, 8],
            &[0x77],
            &[],
            &[0x77, 8, 0x06, 0x06],
            &[0x77, 8, 0x06, 0x23, 8, 0x06],
            &[0x77, 8, 0x23, 8, 0x06],
        ] {
            assert_eq!(rule(unknown, None), None, "{unknown:x?}");
        }
        for elsewhere in [
            RegisterRule::Offset(-8),
            RegisterRule::Offset(-12),
            RegisterRule::Offset(8),
            RegisterRule::Offset(i64::MIN),
            RegisterRule::Offset(-8 * 64),
            RegisterRule::Register(X86_64::RAX),
        ] {
            let name = format!("{elsewhere:?}");
            assert_eq!(rule(&c_call, Some(elsewhere)), None, "{name}");
        }
    }
}
