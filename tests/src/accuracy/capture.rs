//! Captured samples: the interrupted registers and a copy of the stack, to be walked elsewhere.
//!
//! They travel as 64-bit little-endian words:
//!
//! | word | |
//! |---|---|
//! | 0 | program counter |
//! | 1 | stack pointer |
//! | 2 | frame pointer |
//! | 3 | link register; 0 on x86_64 |
//! | 4 | address of the first word of the stack |
//! | 5 | how many words of the stack follow, at most [`MAX_WORDS`] |
//! | 6… | the words |

use thiserror::Error;
use unikprof_agent::Registers;
use unikprof_agent::stack::ReadStack;

/// The most words of a stack in one sample: 16 KiB.
pub(crate) const MAX_WORDS: usize = 2048;

const HEAD: usize = 6;

/// One captured sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Captured {
    pub(crate) registers: Registers,
    /// The stack: from the red zone below the stack pointer, where popped registers still lie, up.
    pub(crate) stack: CapturedStack,
}

/// A copy of a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CapturedStack {
    base: u64,
    words: Vec<u64>,
}

/// Why bytes are not captured samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum CaptureError {
    #[error("the captured samples are cut: {left} bytes are left over in sample {sample}")]
    Cut { sample: usize, left: usize },
    #[error("captured sample {sample} says it has {words} words; {MAX_WORDS} is the most")]
    TooLong { sample: usize, words: u64 },
}

impl Captured {
    pub(crate) fn read_all(bytes: &[u8]) -> Result<Vec<Captured>, CaptureError> {
        let (words, odd) = bytes.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let mut samples = Vec::new();
        while words.len() > 0 {
            let left = words.len() * 8 + odd.len();
            let cut = CaptureError::Cut { sample: samples.len(), left };
            let head: Vec<u64> = words.by_ref().take(HEAD).collect();
            let [pc, sp, fp, lr, base, count] = head.try_into().map_err(|_| cut)?;
            if count > MAX_WORDS as u64 {
                return Err(CaptureError::TooLong { sample: samples.len(), words: count });
            }
            let copied: Vec<u64> = words.by_ref().take(count as usize).collect();
            if copied.len() as u64 != count {
                return Err(cut);
            }
            samples.push(Captured {
                registers: Registers::new(pc, sp, fp).with_lr(lr),
                stack: CapturedStack { base, words: copied },
            });
        }
        if !odd.is_empty() {
            return Err(CaptureError::Cut { sample: samples.len(), left: odd.len() });
        }
        Ok(samples)
    }
}

impl ReadStack for CapturedStack {
    fn frame_record(&self, fp: u64) -> Option<[u64; 2]> {
        Some([self.word(fp)?, self.word(fp.checked_add(8)?)?])
    }

    fn word(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.base)?;
        if !address.is_multiple_of(8) {
            return None;
        }
        self.words.get(usize::try_from(offset / 8).ok()?).copied()
    }

    fn end(&self) -> u64 {
        self.base.saturating_add(8 * self.words.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn samples_are_read_back() {
        let samples =
            Captured::read_all(&bytes(&[1, 0x100, 3, 9, 0x100, 2, 7, 8, 4, 5, 6, 0, 0, 0]))
                .unwrap();
        assert_eq!(samples.len(), 2);
        let stack = &samples[0].stack;
        assert_eq!(samples[0].registers, Registers::new(1, 0x100, 3).with_lr(9));
        assert_eq!(stack.frame_record(0x100), Some([7, 8]));
        assert_eq!(stack.end(), 0x110);
        for outside in [0, 0xf8, 0x104, 0x108, 0x110, u64::MAX] {
            assert_eq!(stack.frame_record(outside), None, "{outside:#x}");
        }
        assert_eq!(samples[1].stack.word(0), None);
    }

    /// Bytes from a guest may be cut or wrong.
    #[test]
    fn what_is_no_sample_is_an_error() {
        let whole = bytes(&[1, 2, 3, 0, 4, 1, 9]);
        for cut in 1..whole.len() {
            let error = Captured::read_all(&whole[..cut]).unwrap_err();
            assert!(matches!(error, CaptureError::Cut { .. }), "{cut}: {error}");
        }
        assert_eq!(
            Captured::read_all(&bytes(&[1, 2, 3, 0, 4, u64::MAX])),
            Err(CaptureError::TooLong { sample: 0, words: u64::MAX })
        );
        assert_eq!(Captured::read_all(&[]), Ok(Vec::new()));
    }
}
