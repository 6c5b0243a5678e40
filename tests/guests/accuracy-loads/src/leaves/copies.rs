//! Copies of short to long blocks: nearly all time is in `memcpy`, which has no frame.

use core::hint::black_box;

use super::{Buffers, Caller, Load, SIZE};

pub(super) const LOAD: Load = Load {
    name: "copies",
    callers: &[
        Caller { name: "copy_headers", parts: 60, call: copy_headers },
        Caller { name: "copy_bodies", parts: 30, call: copy_bodies },
        Caller { name: "copy_trailers", parts: 10, call: copy_trailers },
    ],
};

#[inline(never)]
fn copy_headers(buffers: &mut Buffers, parts: u32) -> u64 {
    copy(buffers, parts * 30, 300) ^ 1
}

#[inline(never)]
fn copy_bodies(buffers: &mut Buffers, parts: u32) -> u64 {
    copy(buffers, parts * 3, 6000) ^ 3
}

#[inline(never)]
fn copy_trailers(buffers: &mut Buffers, parts: u32) -> u64 {
    copy(buffers, parts * 40, 60) ^ 5
}

/// Makes `times` copies of `length` bytes, each a call of `memcpy`, because the length is unknown
/// at compile time.
#[inline(always)]
fn copy(buffers: &mut Buffers, times: u32, length: usize) -> u64 {
    let mut sum = 0_u64;
    for time in 0..times as usize {
        let length = black_box(length + time % 64).min(SIZE);
        let from = SIZE - length;
        buffers.target[..length].copy_from_slice(&buffers.source[from..]);
        sum = sum.wrapping_add(u64::from(black_box(&buffers.target)[time % length]));
    }
    sum
}
