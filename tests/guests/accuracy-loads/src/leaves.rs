//! Loads that are mostly interrupted where the frame pointer does not lead to the caller.
//!
//! In a leaf function without a frame, before a frame is set up, and after it is removed, the frame
//! pointer register still has the caller's value; a walk along frame pointers alone skips the
//! caller. Each load here spends its time in such code.

mod copies;
mod hashes;
mod shrink_wrapped;
mod small;
mod sorts;
mod tail_calls;

use crate::meter::Meter;

/// The memory that the loads work on; about 20 KiB, best not on a small stack.
#[derive(Debug)]
pub struct Buffers {
    source: [u8; SIZE],
    target: [u8; SIZE],
    keys: [u32; KEYS],
}

const SIZE: usize = 8192;
const KEYS: usize = 512;

impl Buffers {
    /// Buffers filled with a pattern.
    pub const fn new() -> Self {
        let mut source = [0; SIZE];
        let mut at = 0;
        while at < SIZE {
            source[at] = ((at * 131) >> 3) as u8;
            at += 1;
        }
        Self { source, target: [0; SIZE], keys: [0; KEYS] }
    }
}

impl Default for Buffers {
    fn default() -> Self {
        Self::new()
    }
}

/// A function that works by calling leaf functions.
#[derive(Debug, Clone, Copy)]
pub struct Caller {
    /// Its name.
    pub name: &'static str,
    /// Its share of the load's work, in percent.
    pub parts: u32,
    call: fn(&mut Buffers, u32) -> u64,
}

/// A load: callers that share leaf functions.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Its name.
    pub name: &'static str,
    /// The callers, at most [`MOST_CALLERS`].
    pub callers: &'static [Caller],
}

/// The most callers of one load.
pub const MOST_CALLERS: usize = 3;

/// All the loads.
pub const LOADS: [Load; 6] =
    [copies::LOAD, hashes::LOAD, sorts::LOAD, small::LOAD, shrink_wrapped::LOAD, tail_calls::LOAD];

impl Load {
    /// The load of this name.
    pub fn named(name: &str) -> Option<Load> {
        LOADS.into_iter().find(|load| load.name == name)
    }

    /// Lets each caller do its share of the work once, in order, and measures it: some tens to
    /// hundreds of microseconds.
    #[inline(never)]
    pub fn turn(
        &self,
        meter: &mut Meter<MOST_CALLERS>,
        clock: &mut impl FnMut() -> u64,
        buffers: &mut Buffers,
    ) {
        for (kind, caller) in self.callers.iter().enumerate() {
            let result = meter.around(kind, clock, || (caller.call)(buffers, caller.parts));
            core::hint::black_box(result);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_found_by_name_and_their_parts_are_a_hundred() {
        for load in LOADS {
            let found = Load::named(load.name).map(|found| found.callers.len());
            assert_eq!(found, Some(load.callers.len()), "{}", load.name);
            let parts: u32 = load.callers.iter().map(|caller| caller.parts).sum();
            assert_eq!(parts, 100, "{}", load.name);
            assert!(load.callers.len() <= MOST_CALLERS);
        }
        assert!(Load::named("none").is_none());
    }

    #[test]
    fn every_caller_works() {
        let mut now = 0;
        let mut clock = || {
            now += 1;
            now
        };
        let mut buffers = Buffers::new();
        for load in LOADS {
            let mut meter = Meter::new(&mut clock);
            load.turn(&mut meter, &mut clock, &mut buffers);
        }
    }
}
