//! The console ring (`io/console.h`, `struct xencons_interface`).
//!
//! | offset | field | written by |
//! |---|---|---|
//! | 0 | input, 1,024 bytes | backend |
//! | 1,024 | output, 2,048 bytes | guest |
//! | 3,072 | input consumer | guest |
//! | 3,076 | input producer | backend |
//! | 3,080 | output consumer | backend |
//! | 3,084 | output producer | guest |

/// Offset of the input bytes.
pub const INPUT: usize = 0;
/// Length of the input bytes.
pub const INPUT_LEN: u32 = 1024;
/// Offset of the output bytes.
pub const OUTPUT: usize = 1024;
/// Length of the output bytes.
pub const OUTPUT_LEN: u32 = 2048;
/// Offset of `in_cons`.
pub const INPUT_CONSUMER: usize = 3072;
/// Offset of `in_prod`.
pub const INPUT_PRODUCER: usize = 3076;
/// Offset of `out_cons`.
pub const OUTPUT_CONSUMER: usize = 3080;
/// Offset of `out_prod`.
pub const OUTPUT_PRODUCER: usize = 3084;

const _: () = assert!(OUTPUT + OUTPUT_LEN as usize == INPUT_CONSUMER);
