//! Where broken stacks break.

use std::cmp::Reverse;
use std::collections::HashMap;

use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{Frame, FrameId, NodeId, SpecialFrame};
use unikprof_profile::symbols::{FunctionKind, Symbolized};

/// An image in which stacks break, and the functions in which they break most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BrokenIn {
    /// The image's name; `None` for code that is in none.
    pub(crate) image: Option<String>,
    /// The functions that have names, most samples first.
    pub(crate) functions: Vec<String>,
    /// The samples whose stacks break here.
    pub(crate) samples: u64,
}

/// The images in which stacks break, most samples first.
///
/// A stack breaks at the last frame that was found: that function, or the one that called it,
/// used the frame pointer for something else.
pub(crate) fn places(symbolized: &Symbolized<'_>) -> Vec<BrokenIn> {
    let profile = symbolized.profile();
    let mut images: HashMap<Option<String>, HashMap<Option<&str>, u64>> = HashMap::new();
    for (frame, samples) in last_frames(symbolized) {
        // Of inlined functions the outermost is what has a frame.
        let function =
            symbolized.frame(frame).last().map(|symbol| symbolized.function(symbol.function));
        let mapped = || {
            let mapping = &profile.mappings()[symbolized.mapping_of(frame)?];
            Some(mapping.file_name()).filter(|name| !name.is_empty())
        };
        let image = function
            .and_then(|f| Some(symbolized.image(f.image?)))
            .or_else(mapped)
            .map(|name| Printable(name).to_string());
        let name = function
            .filter(|f| matches!(f.kind, FunctionKind::Named | FunctionKind::Agent))
            .map(|f| f.name.as_str());
        let sum = images.entry(image).or_default().entry(name).or_default();
        *sum = sum.saturating_add(samples);
    }
    let mut places: Vec<BrokenIn> = images
        .into_iter()
        .map(|(image, functions)| {
            let samples = functions.values().fold(0, |a: u64, b| a.saturating_add(*b));
            let mut functions: Vec<(u64, &str)> = functions
                .into_iter()
                .filter_map(|(name, samples)| Some((samples, name?)))
                .collect();
            functions.sort_by_key(|(samples, name)| (Reverse(*samples), *name));
            BrokenIn {
                image,
                functions: functions
                    .into_iter()
                    .map(|(_, name)| Printable(name).to_string())
                    .collect(),
                samples,
            }
        })
        .collect();
    places.sort_by(|a, b| (Reverse(a.samples), &a.image).cmp(&(Reverse(b.samples), &b.image)));
    places
}

/// The frame next to the mark in each broken stack, with the stack's samples.
fn last_frames(symbolized: &Symbolized<'_>) -> HashMap<FrameId, u64> {
    let profile = symbolized.profile();
    let tree = profile.tree();
    // By node: itself where it is a mark at the root, below that the node next to the mark.
    let mut ends: Vec<Option<NodeId>> = vec![None; tree.node_count()];
    for (node, parent, frame) in tree.iter() {
        let is_mark = profile.frame(FrameId(frame)) == Frame::Special(SpecialFrame::Broken);
        ends[node.index()] = match ends[parent.index()] {
            _ if parent == NodeId::ROOT => is_mark.then_some(node),
            Some(mark) if mark == parent && tree.parent(mark) == Some(NodeId::ROOT) => Some(node),
            end => end,
        };
    }
    let mut last = HashMap::new();
    for sample in profile.samples() {
        if let Some(frame) = ends[sample.node.index()].and_then(|end| tree.item(end)) {
            let sum: &mut u64 = last.entry(FrameId(frame)).or_default();
            *sum = sum.saturating_add(sample.count);
        }
    }
    last
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use unikprof_profile::profile::{Mapping, Profile, ProfileBuilder};
    use unikprof_profile::symbols::{Images, Symbolizer};

    const BROKEN: Frame = Frame::Special(SpecialFrame::Broken);

    fn profile(stacks: &[(&[Frame], u64)]) -> Profile {
        let mut builder = ProfileBuilder::new();
        for (start, name) in [(0x1000, "/lib/libc.so.6"), (0x8000, "guest.elf"), (0xa000, "")] {
            builder.add_mapping(Mapping {
                start,
                end: start + 0x1000,
                path: name.into(),
                ..Mapping::default()
            });
        }
        for (frames, count) in stacks {
            builder.add_stack(0, *count, frames).unwrap();
        }
        builder.finish()
    }

    fn found(profile: &Profile) -> Vec<(Option<String>, u64)> {
        let symbolized = Symbolizer::new(Images::default()).resolve(profile).unwrap();
        let places = places(&symbolized);
        assert!(places.iter().all(|place| place.functions.is_empty()));
        places.into_iter().map(|p| (p.image, p.samples)).collect()
    }

    #[test]
    fn a_stack_breaks_at_its_last_good_frame() {
        let profile = profile(&[
            (&[Frame::leaf(0x1010), BROKEN], 5),
            (&[Frame::leaf(0x8010), Frame::caller(0x1020), BROKEN], 3),
            (&[Frame::leaf(0x8010), BROKEN], 2),
            (&[Frame::leaf(0xa010), BROKEN], 1),
            (&[Frame::leaf(0x8010)], 100),
            (&[Frame::leaf(0x8010), Frame::Special(SpecialFrame::Truncated)], 100),
        ]);
        assert_eq!(
            found(&profile),
            [(Some("libc.so.6".to_owned()), 8), (Some("guest.elf".to_owned()), 2), (None, 1)]
        );
    }

    /// Marks come from a recording, and a hostile one puts them anywhere.
    #[test]
    fn marks_without_frames_or_inside_a_stack_break_nothing() {
        let profile = profile(&[
            (&[BROKEN], 5),
            (&[Frame::leaf(0x8010), BROKEN, Frame::caller(0x8020)], 3),
            (&[Frame::leaf(0x8010), BROKEN, BROKEN], 2),
        ]);
        assert_eq!(found(&profile), [(None, 7)]);
    }
}
