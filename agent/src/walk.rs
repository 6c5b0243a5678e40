//! The walk: from the interrupted registers up the chain of frame pointers.
//!
//! What the stack holds is not believed. A record counts only where it lies wholly inside the
//! stack, aligned, above the one before, with a return address in code; the first that does not
//! ends the walk.

use unikprof_proto::code::frame_code;

use crate::code_map::{CodeMap, Stretch};
use crate::path::{Path, PathCells};
use crate::platform::Registers;
use crate::stack::{FRAME_RECORD, ReadStack};

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

/// Walks the stack that `registers` were interrupted on, writing at most `depth` frames, leaf first,
/// to `cells`. What is missing at the root is marked there with a frame of its own.
///
/// `stack` is `None` where the platform knows no stack at the interrupted stack pointer: the leaf
/// is then all there is, and the chain broken.
#[inline]
pub fn walk<'a>(
    registers: &Registers,
    stack: Option<&impl ReadStack>,
    code: &CodeMap,
    depth: usize,
    cells: &'a PathCells,
) -> (Path<'a>, End) {
    let mut path = cells.begin();
    let mut stretch = code.first();
    path.push(code_in(&mut stretch, code, registers.pc).unwrap_or(frame_code::UNKNOWN_CODE));
    let end = match stack {
        Some(stack) => {
            let end;
            (path, end) = chain(registers, stack, code, stretch, depth, path);
            end
        }
        None => End::Broken,
    };
    match end {
        End::Root => {}
        End::Truncated => path.push(frame_code::TRUNCATED),
        End::Broken => path.push(frame_code::BROKEN),
    }
    (path, end)
}

/// Follows the chain of records. The path was begun in [`walk`] and goes in and out by value: only
/// so do its length and hash stay in registers.
#[inline]
fn chain<'a>(
    registers: &Registers,
    stack: &impl ReadStack,
    code: &CodeMap,
    mut stretch: Stretch,
    depth: usize,
    mut path: Path<'a>,
) -> (Path<'a>, End) {
    let mut fp = registers.fp;
    let mut floor = registers.sp;
    let end = loop {
        let record = if fp < floor {
            None
        } else {
            stack.frame_record(fp)
        };
        let Some([caller_fp, return_address]) = record else {
            // The outermost function has no caller: its saved frame pointer is 0, or it is known to
            // be the outermost because the stack ends with its frame.
            break if fp == 0 || floor == stack.end() {
                End::Root
            } else {
                End::Broken
            };
        };
        let Some(code) = code_in(&mut stretch, code, return_address) else {
            break if return_address == 0 {
                End::Root
            } else {
                End::Broken
            };
        };
        if path.len() >= depth {
            break End::Truncated;
        }
        path.push(code);
        // The record is inside the stack, so this does not overflow.
        floor = fp.wrapping_add(FRAME_RECORD);
        fp = caller_fp;
    };
    (path, end)
}

/// The code of `address`, looked up in the last stretch first.
#[inline]
fn code_in(stretch: &mut Stretch, code: &CodeMap, address: u64) -> Option<u32> {
    stretch.code(address).or_else(|| {
        *stretch = code.find(address)?;
        stretch.code(address)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;
    use crate::code_map::Mapping;

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
        let registers = Registers {
            pc: CODE,
            sp: STACK,
            fp,
        };
        let stack = Words(words.to_vec());
        let (path, end) = walk(&registers, Some(&stack), &code, depth, &cells);
        (end, path.codes().collect())
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
        let registers = Registers {
            pc: 77,
            sp: STACK,
            fp: 0,
        };
        let (path, end) = walk(&registers, None::<&Words>, &code, 128, &cells);
        assert_eq!(end, End::Broken);
        let path: Vec<u32> = path.codes().collect();
        assert_eq!(path, [frame_code::UNKNOWN_CODE, frame_code::BROKEN]);
    }
}
