//! What single instructions tell: that nothing runs there, or where the caller is.

use unikprof_proto::caller_table::{Base, Caller, Rule};

/// Whether x86_64 code is padding alone: no-operations and breakpoints of any length.
pub(super) fn is_padding(mut code: &[u8]) -> bool {
    while !code.is_empty() {
        let prefixes = code
            .iter()
            .take_while(|byte| matches!(byte, 0x66 | 0x2e))
            .count();
        let length = match &code[prefixes..] {
            // nop, int3
            [0x90 | 0xcc, ..] => 1,
            // nop with an operand: its length follows from the addressing byte.
            [0x0f, 0x1f, 0x00, ..] => 3,
            [0x0f, 0x1f, 0x40, ..] => 4,
            [0x0f, 0x1f, 0x44, ..] => 5,
            [0x0f, 0x1f, 0x80, ..] => 7,
            [0x0f, 0x1f, 0x84, ..] => 8,
            _ => return false,
        };
        match code.get(prefixes + length..) {
            Some(rest) => code = rest,
            None => return false,
        }
    }
    true
}

/// After `push %rbp`: the caller's frame pointer lies where the stack pointer points.
const PUSHED: Rule = Rule::new(Caller::Cfa {
    base: Base::StackPointer,
    words: 2,
    saved_fp: Some(2),
});

/// Whether an agent that reads the instructions of a stretch finds this rule at each of them; `before`
/// is the byte before them. Agents know entries, returns, and what follows `push %rbp`.
pub(super) fn tell(rule: Rule, before: u8, code: &[u8]) -> bool {
    const PUSH_RBP: u8 = 0x55;
    match rule {
        PUSHED => before == PUSH_RBP && matches!(code, [0x48, 0x89, 0xe5] | [0x48, 0x8b, 0xec]),
        Rule::ENTRY => {
            // endbr64
            let rest = code.strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa]);
            let rest = rest.unwrap_or(code);
            // push %rbp; ret; rep ret
            matches!(rest, [PUSH_RBP | 0xc3] | [0xf3, 0xc3])
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_told_from_code() {
        for padding in [
            &[][..],
            &[0xcc; 7],
            &[0x66, 0x90, 0x90],
            &[0x0f, 0x1f, 0x00, 0x0f, 0x1f, 0x40, 0x00],
            &[0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
            &[0x0f, 0x1f, 0x80, 0, 0, 0, 0, 0x0f, 0x1f, 0x44, 0, 0],
        ] {
            assert!(is_padding(padding), "{padding:x?}");
        }
        for code in [
            &[0xc3][..],
            &[0x90, 0x55],
            &[0x66],
            &[0x0f, 0x1f, 0x84, 0],
            &[0x0f, 0x0b],
        ] {
            assert!(!is_padding(code), "{code:x?}");
        }
    }

    /// Whatever is left out of the smaller table must be what the agent's own look tells.
    #[test]
    fn only_what_every_instruction_of_a_stretch_tells_is_told() {
        for (rule, before, code) in [
            (Rule::ENTRY, 0, &[0x55][..]),
            (Rule::ENTRY, 0, &[0xc3]),
            (Rule::ENTRY, 0, &[0xf3, 0xc3]),
            (Rule::ENTRY, 0, &[0xf3, 0x0f, 0x1e, 0xfa, 0x55]),
            (PUSHED, 0x55, &[0x48, 0x89, 0xe5]),
            (PUSHED, 0x55, &[0x48, 0x8b, 0xec]),
        ] {
            assert!(tell(rule, before, code), "{rule:?} {code:x?}");
        }
        for (rule, before, code) in [
            (Rule::ENTRY, 0, &[0x90, 0xc3][..]),
            (Rule::ENTRY, 0, &[0x53]),
            (Rule::ENTRY, 0, &[]),
            (PUSHED, 0x90, &[0x48, 0x89, 0xe5]),
            (PUSHED, 0x55, &[0x48, 0x89, 0xe5, 0x90]),
            (PUSHED, 0x55, &[0x55]),
            (Rule::OUTERMOST, 0, &[0x55]),
        ] {
            assert!(!tell(rule, before, code), "{rule:?} {code:x?}");
        }
    }
}
