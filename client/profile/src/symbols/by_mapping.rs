//! Finds the mapping of each address of a profile.

use std::collections::HashMap;

use super::symbolized::ImageId;
use crate::profile::{FrameId, Profile};

/// The addresses of a profile, by the mapping that holds them.
pub(super) struct ByMapping {
    /// By mapping: its look-up addresses and their frames.
    pub(super) mapped: Vec<Vec<(u64, FrameId)>>,
    /// By frame: its mapping.
    pub(super) of_frame: Vec<Option<u32>>,
    /// What no mapping holds.
    pub(super) outside: Vec<(u64, FrameId)>,
    /// The functions without a name that were found, by frame.
    pub(super) unnamed: HashMap<FrameId, Unnamed>,
}

/// A function without a name, and an address in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unnamed {
    pub(super) image: ImageId,
    /// Its first address in the image.
    pub(super) start: u64,
    /// How far behind that the address is.
    pub(super) distance: u64,
    /// Whether the call frame information has it. If not, it may be several functions.
    pub(super) is_described: bool,
}

impl ByMapping {
    /// Where the function without a name that a frame lies in begins in its image; behind all code
    /// if it lies in none.
    pub(super) fn begin(&self, frame: FrameId) -> u64 {
        self.unnamed.get(&frame).map_or(u64::MAX, |unnamed| unnamed.start)
    }

    /// Leaves only these frames to look up.
    pub(super) fn retain(&mut self, is_meant: impl Fn(FrameId) -> bool) {
        for frames in self.mapped.iter_mut().chain([&mut self.outside]) {
            frames.retain(|(_, frame)| is_meant(*frame));
        }
    }

    /// Whether there is nothing to look up.
    pub(super) fn is_empty(&self) -> bool {
        self.outside.is_empty() && self.mapped.iter().all(Vec::is_empty)
    }

    /// Sorts the addresses; of mappings that overlap, the one that begins last holds an address.
    pub(super) fn of(profile: &Profile) -> ByMapping {
        let mappings = profile.mappings();
        let mut sorted: Vec<usize> = (0..mappings.len()).collect();
        sorted.sort_by_key(|at| mappings[*at].start);
        let mut found = ByMapping {
            mapped: vec![Vec::new(); mappings.len()],
            of_frame: vec![None; profile.frames().len()],
            outside: Vec::new(),
            unnamed: HashMap::new(),
        };
        for (at, frame) in profile.frames().iter().enumerate() {
            let Some(address) = frame.lookup_address() else {
                continue;
            };
            // A frame's number fits: the builder gave it.
            let id = FrameId(at as u32);
            let after = sorted.partition_point(|m| mappings[*m].start <= address);
            match sorted[..after].last().filter(|m| mappings[**m].contains(address)) {
                Some(mapping) => {
                    found.mapped[*mapping].push((address, id));
                    found.of_frame[at] = u32::try_from(*mapping).ok();
                }
                None => found.outside.push((address, id)),
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::profile::{Frame, Mapping, ProfileBuilder, SpecialFrame};

    #[test]
    fn each_address_is_in_one_place() {
        let mut builder = ProfileBuilder::new();
        for (start, end) in [(0x3000, 0x4000), (0x1000, 0x2000)] {
            builder.add_mapping(Mapping { start, end, ..Mapping::default() });
        }
        let frames = [
            Frame::leaf(0x1fff),
            // Its call is the last instruction of the mapping.
            Frame::caller(0x2000),
            Frame::leaf(0x2000),
            Frame::leaf(0x3000),
            Frame::caller(0x3000),
            Frame::Special(SpecialFrame::Broken),
        ];
        for frame in frames {
            builder.add_stack(0, 1, &[frame]).unwrap();
        }
        let profile = builder.finish();
        let found = ByMapping::of(&profile);
        assert_eq!(found.of_frame, [Some(1), Some(1), None, Some(0), None, None]);
        assert_eq!(found.mapped[1], [(0x1fff, FrameId(0)), (0x1fff, FrameId(1))]);
        assert_eq!(found.outside, [(0x2000, FrameId(2)), (0x2fff, FrameId(4))]);
    }
}
