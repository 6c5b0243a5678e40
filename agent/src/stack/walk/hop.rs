//! Continues a walk on another stack after the chain on one stack has ended.
//!
//! The platform knows the registers of interrupted functions; the caller table knows functions that switch stacks and
//! keep the former stack pointer in memory. Both are rare, so this code is kept out of a tick's usual path.

use unikprof_proto::caller_table::Caller;

use super::chain::{Chain, Frame};
use super::{End, Guide, Start};
use crate::stack::architecture::saved_return_address;
use crate::stack::caller_table::CallerTable;
use crate::stack::code_map::CodeMap;
use crate::stack::{ReadCode, ReadStack, Stacks};

/// The most times that a walk continues on another stack. Stacks may lead to each other; this number and the depth
/// limit end such a walk.
pub const MAX_HOPS: u32 = 8;

/// Where the walk continues after `chain`; `None` if it ends there.
#[inline]
pub(super) fn next_hop(
    chain: &Chain<'_>,
    stacks: &impl Stacks,
    guide: &Guide<'_, impl ReadCode>,
) -> Option<Start> {
    if chain.walked.end == End::Truncated {
        return None;
    }
    if let Some(registers) = stacks.continuation(chain.frame.sp, chain.frame.fp) {
        return Some(Start::Interrupted(registers));
    }
    match guide.callers {
        Some(callers) if chain.walked.end == End::Broken => {
            by_loaded_cfa(&chain.frame, chain.lookup, stacks, callers, guide.code)
        }
        _ => None,
    }
}

/// The caller of a function that has switched stacks, if the table has such a rule for the function. Only a return
/// address inside the mappings is accepted.
#[cold]
#[inline(never)]
fn by_loaded_cfa(
    frame: &Frame<'_>,
    lookup: u32,
    stacks: &impl Stacks,
    callers: &CallerTable<'_>,
    code: &CodeMap,
) -> Option<Start> {
    let rule = callers.rule(lookup);
    let Caller::LoadedCfa {
        base,
        at,
        plus,
        saved_fp,
    } = rule.caller()
    else {
        return None;
    };
    let word_at = frame.register(base).checked_add(u64::from(at) * 8)?;
    let loaded = stacks.at(word_at)?.word(word_at)?;
    let cfa = loaded.checked_add(u64::from(plus) * 8)?;
    // The canonical frame address (CFA) may be the end of its stack; the word below it is always inside.
    let target = stacks.at(cfa.checked_sub(8)?)?;
    let return_address = target.word(saved_return_address(rule, cfa)?)?;
    let fp = match saved_fp {
        None => frame.fp,
        Some(words) => target.word(cfa.checked_sub(u64::from(words) * 8)?)?,
    };
    Some(Start::Caller {
        code: code.code(return_address)?,
        sp: cfa,
        fp,
    })
}
