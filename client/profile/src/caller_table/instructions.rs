//! What single instructions tell: that nothing runs there, or where the caller is.

use unikprof_proto::caller_table::{Base, Caller, Rule};

use super::processor::Processor;

/// Whether code is padding alone.
pub(super) fn is_padding(processor: Processor, code: &[u8]) -> bool {
    match processor {
        Processor::X86_64 => is_x86_64_padding(code),
        Processor::Aarch64 => is_aarch64_padding(code),
    }
}

/// No-operations, and the undefined instruction of zeros.
fn is_aarch64_padding(code: &[u8]) -> bool {
    const NOP: [u8; 4] = 0xd503_201f_u32.to_le_bytes();
    const UDF: [u8; 4] = [0; 4];
    let (words, rest) = code.as_chunks::<4>();
    rest.is_empty() && words.iter().all(|word| [NOP, UDF].contains(word))
}

/// No-operations and breakpoints of any length.
fn is_x86_64_padding(mut code: &[u8]) -> bool {
    while !code.is_empty() {
        let prefixes = code.iter().take_while(|byte| matches!(byte, 0x66 | 0x2e)).count();
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
const PUSHED: Rule =
    Rule::new(Caller::Cfa { base: Base::StackPointer, words: 2, saved_fp: Some(2) });

/// Whether an agent that reads the instructions of a stretch finds this rule at each of them;
/// `before` is the byte before them. On x86_64 agents know entries, returns, and what follows
/// `push %rbp`. Of aarch64 no rule is left out.
pub(super) fn tell(processor: Processor, rule: Rule, before: u8, code: &[u8]) -> bool {
    const PUSH_RBP: u8 = 0x55;
    if processor != Processor::X86_64 {
        return false;
    }
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
            assert!(is_padding(Processor::X86_64, padding), "{padding:x?}");
        }
        for code in [&[0xc3][..], &[0x90, 0x55], &[0x66], &[0x0f, 0x1f, 0x84, 0], &[0x0f, 0x0b]] {
            assert!(!is_padding(Processor::X86_64, code), "{code:x?}");
        }
    }

    #[test]
    fn padding_of_aarch64_consists_of_whole_instructions() {
        let nop = [0x1f, 0x20, 0x03, 0xd5];
        let is_padding = |code: &[u8]| is_padding(Processor::Aarch64, code);
        assert!(is_padding(&[]) && is_padding(&[nop, nop, [0; 4]].concat()));
        // `ret`, half an instruction, and x86_64's padding.
        for code in [&[0xc0, 0x03, 0x5f, 0xd6][..], &nop[..2], &[0xcc; 4]] {
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
            let told = tell(Processor::X86_64, rule, before, code);
            assert!(told, "{rule:?} {code:x?}");
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
            let told = tell(Processor::X86_64, rule, before, code);
            assert!(!told, "{rule:?} {code:x?}");
        }
    }
}
