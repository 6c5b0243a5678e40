//! What the images' call frame information says of a profile's frames.

use unikprof_proto::caller_table::Rule;

use super::ImageTable;
use crate::profile::FrameId;
use crate::symbols::{Assigned, Symbolized, Symbolizer};

/// By frame, the rule by which its caller is found at its address: [`Rule::UNKNOWN`] where its
/// image does not say, `None` where there is no image to look it up in, or the frame is not wanted.
pub fn rules_of_frames(
    symbolized: &Symbolized<'_>,
    symbolizer: &Symbolizer,
    is_wanted: impl Fn(FrameId) -> bool,
) -> Vec<Option<Rule>> {
    let profile = symbolized.profile();
    let mappings = profile.mappings();
    let images = symbolizer.images();
    let mut found = vec![None; profile.frames().len()];
    let architecture = &profile.recording().architecture;
    let Ok(assignment) = images.assign(mappings, architecture, &mut Vec::new()) else {
        return found;
    };
    let mut frames: Vec<Vec<FrameId>> = vec![Vec::new(); mappings.len()];
    for frame in profile.frame_ids().filter(|frame| is_wanted(*frame)) {
        if let Some(mapping) = symbolized.mapping_of(frame) {
            frames[mapping].push(frame);
        }
    }
    for group in &assignment.groups {
        let Some(image) = group.image.as_ref().map(Assigned::image) else {
            continue;
        };
        let Ok(table) = ImageTable::compile(image, &images.options.debug_dirs) else {
            continue;
        };
        for &mapping in &group.mappings {
            for &frame in &frames[mapping] {
                let address = profile.frame(frame).lookup_address();
                let linked = address.and_then(|at| image.link_address(&mappings[mapping], at));
                found[frame.index()] = linked.map(|linked| table.rule_at(linked));
            }
        }
    }
    found
}
