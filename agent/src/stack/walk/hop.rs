//! Continues a walk on another stack after the chain on one stack has ended.
//!
//! The platform knows the registers of interrupted functions; the caller table knows functions that
//! switch stacks and keep the former stack pointer in memory. Where the platform says so, the frame
//! pointer leads from a coroutine's stack to the one that resumed it. All of them are rare, so this
//! code is kept out of a tick's usual path.

use unikprof_proto::caller_table::{Caller, Rule};

use super::chain::{Chain, after_record};
use super::{End, Guide, Start, Way};
use crate::ground::platform::Continuation;
use crate::stack::architecture::{Architecture, ReturnAddress};
use crate::stack::{FRAME_RECORD, ReadCode, ReadStack, Stacks};

/// The most times that a walk continues on another stack. Stacks may lead to each other; this
/// number and the depth limit end such a walk.
pub const MAX_HOPS: u32 = 8;

const RECORD_WORDS: u8 = (FRAME_RECORD / 8) as u8;

/// The start of the chain after `chain`; `None` if the walk ends there.
#[inline]
pub(super) fn next_hop<A: Architecture>(
    chain: &Chain<'_, A>,
    stacks: &impl Stacks,
    guide: &Guide<'_, impl ReadCode>,
) -> Option<Start> {
    if chain.walked.end == End::Truncated {
        return None;
    }
    let by_record = match stacks.continuation(chain.frame.sp, chain.frame.fp) {
        None if chain.walked.end == End::Root => return None,
        None => false,
        Some(Continuation::FrameRecord) => true,
        Some(Continuation::Interrupted(registers)) => return Some(Start::Interrupted(registers)),
    };
    caller_elsewhere(chain, by_record, stacks, guide)
}

/// The caller on another stack: by the caller table's rule for a function that has switched stacks,
/// else, if `by_record`, by the frame record that the frame pointer points to. Only a return
/// address inside the mappings is accepted.
#[cold]
#[inline(never)]
fn caller_elsewhere<A: Architecture>(
    chain: &Chain<'_, A>,
    by_record: bool,
    stacks: &impl Stacks,
    guide: &Guide<'_, impl ReadCode>,
) -> Option<Start> {
    let frame = &chain.frame;
    let rule = guide.callers.map_or(Rule::UNKNOWN, |callers| callers.rule(chain.lookup));
    let (return_address, sp, fp, way) = match rule.caller() {
        Caller::LoadedCfa { base, at, plus, saved_fp } => {
            let word_at = frame.register(base)?.checked_add(u64::from(at) * 8)?;
            let loaded = stack_at(stacks, word_at)?.word(word_at)?;
            let cfa = loaded.checked_add(u64::from(plus) * 8)?;
            // OCaml's rules never state where the frame pointer is saved. If it points to the
            // record below the canonical frame address (CFA), that is the function's own.
            let own = after_record(frame.fp) == cfa;
            let saved_fp = saved_fp.or(own.then_some(RECORD_WORDS));
            // The CFA may be the end of its stack, and nothing below the address that is asked for
            // may be readable, so this asks for the lowest word.
            let fp_at = cfa.checked_sub(u64::from(saved_fp.unwrap_or(1)) * 8)?;
            let target = stack_at(stacks, fp_at)?;
            let ReturnAddress::Saved(at) = A::return_address(rule, cfa)? else {
                return None;
            };
            let return_address = target.word(at)?;
            let fp = match saved_fp {
                None => frame.fp,
                Some(_) => target.word(fp_at)?,
            };
            (return_address, cfa, fp, Way::Table)
        }
        Caller::Unknown | Caller::Cfa { .. } if by_record && frame.fp != 0 => {
            let stack = stack_at(stacks, frame.fp)?;
            let [fp, return_address] = stack.frame_record(frame.fp)?;
            let sp = after_record(frame.fp);
            (return_address, sp, fp, Way::FramePointer)
        }
        _ => return None,
    };
    Some(Start::Caller { code: guide.code.code(A::target(return_address))?, sp, fp, way })
}

/// The stack that contains `address`. Out of line, because the platform's code for it is large.
#[inline(never)]
fn stack_at<S: Stacks>(stacks: &S, address: u64) -> Option<S::Stack> {
    stacks.at(address)
}
