//! Compress: DEFLATE in the zlib format, which is HTTP's `deflate`.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use miniz_oxide::DataFormat;
use miniz_oxide::deflate::CompressionLevel;
use miniz_oxide::deflate::core::{CompressorOxide, TDEFLFlush, TDEFLStatus, compress};
use miniz_oxide::inflate::{TINFLStatus, decompress_to_vec_zlib_with_limit};

/// A compressor that keeps its windows and tables (about 300 KB) from one use to the next.
pub(crate) struct Compressor {
    state: Box<CompressorOxide>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InflateError {
    /// The output would pass the limit.
    TooLarge,
    /// Not a zlib stream, cut short, or with a wrong check sum.
    Corrupt,
}

impl Compressor {
    pub(crate) fn new() -> Self {
        let level = CompressionLevel::DefaultLevel;
        Self {
            state: Box::new(CompressorOxide::with_format_and_level(
                DataFormat::Zlib,
                level,
            )),
        }
    }

    /// Compresses `input` into one zlib stream, or gives `None` should the encoder refuse.
    #[inline(never)]
    pub(crate) fn deflate(&mut self, mut input: &[u8]) -> Option<Vec<u8>> {
        self.state.reset();
        let mut output = vec![0; input.len() / 2 + 64];
        let mut written = 0;
        loop {
            let (status, consumed, produced) = compress(
                &mut self.state,
                input,
                &mut output[written..],
                TDEFLFlush::Finish,
            );
            written += produced;
            match status {
                TDEFLStatus::Done => {
                    output.truncate(written);
                    return Some(output);
                }
                TDEFLStatus::Okay => {
                    input = input.get(consumed..)?;
                    output.resize(output.len() * 2, 0);
                }
                _ => return None,
            }
        }
    }
}

/// Expands a zlib stream to at most `limit` bytes.
#[inline(never)]
pub(crate) fn inflate(input: &[u8], limit: usize) -> Result<Vec<u8>, InflateError> {
    decompress_to_vec_zlib_with_limit(input, limit).map_err(|error| match error.status {
        TINFLStatus::HasMoreOutput => InflateError::TooLarge,
        _ => InflateError::Corrupt,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn a_reused_compressor_gives_what_a_new_one_gives() {
        let mut random = Random::new(3);
        let mut kept = Compressor::new();
        for length in [0, 1, 100, 5_000, 100_000] {
            let input: Vec<u8> = (0..length).map(|_| random.below(12) as u8).collect();
            let output = kept.deflate(&input).unwrap();
            assert_eq!(Compressor::new().deflate(&input).unwrap(), output);
            assert_eq!(inflate(&output, length).unwrap(), input);
        }
    }

    #[test]
    fn bytes_without_pattern_grow_a_little_and_come_back() {
        let mut random = Random::new(4);
        let input: Vec<u8> = (0..50_000).map(|_| random.next() as u8).collect();
        let output = Compressor::new().deflate(&input).unwrap();
        assert!(output.len() < input.len() + 100);
        assert_eq!(inflate(&output, input.len()).unwrap(), input);
    }

    #[test]
    fn inflating_stops_at_the_limit_and_at_damage() {
        let mut output = Compressor::new().deflate(&[b'x'; 10_000]).unwrap();
        assert_eq!(inflate(&output, 9_999), Err(InflateError::TooLarge));
        assert_eq!(
            inflate(&output[..output.len() - 1], 20_000),
            Err(InflateError::Corrupt)
        );
        let last = output.len() - 1;
        output[last] ^= 1;
        assert_eq!(inflate(&output, 20_000), Err(InflateError::Corrupt));
        assert_eq!(inflate(b"not zlib", 100), Err(InflateError::Corrupt));
    }
}
