//! How the caller of each frame was found, as far as the recording and the images tell: an agent
//! counts it for all samples together, and not for each stack.

use unikprof_proto::caller_table::{Base, Caller};

use unikprof_profile::profile::{AddressKind, Frame, RecordingInfo, SpecialFrame, Unwind};

/// The codes are those of `client/report/page/colors.js`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::report) enum Way {
    /// No caller was looked for: the outermost frame, or a mark.
    None,
    /// The debug information says what it was inlined into.
    Inlined,
    /// A row of the caller table.
    Row,
    /// The frame pointer, of a function that has a frame record there.
    FramePointer,
    /// The frame pointer, or a row: no image or no settings of the recording, or none that say what
    /// is right there.
    Unchecked,
    /// The interrupted function's instructions, or the frame pointer: it has no frame record there.
    Guess,
    /// Not at all, or only the caller's caller: the function has no frame record, or the stack is
    /// broken.
    Missing,
}

impl Way {
    pub(super) const COUNT: usize = 7;
    pub(super) const ALL: [Way; Way::COUNT] = [
        Way::None,
        Way::Inlined,
        Way::Row,
        Way::FramePointer,
        Way::Unchecked,
        Way::Guess,
        Way::Missing,
    ];

    /// The way from a frame to `outer`, the frame in which its walk ended or went on, if there is
    /// one. `caller` is what its image says of it.
    pub(super) fn of(
        frame: Frame,
        outer: Option<Frame>,
        caller: Option<Caller>,
        info: &RecordingInfo,
    ) -> Way {
        let Frame::Address { kind, .. } = frame else {
            return Way::None;
        };
        match outer {
            Some(Frame::Special(SpecialFrame::Broken)) => return Way::Missing,
            None | Some(Frame::Special(SpecialFrame::Truncated)) => return Way::None,
            Some(_) => {}
        }
        // Only the rings tell of the recording, and not how its callers were found.
        if info.is_unknown() {
            return Way::Unchecked;
        }
        let is_leaf = kind == AddressKind::Leaf;
        // Where the caller is on another stack, every walk looks it up.
        let looks_up = is_leaf
            || info.unwind == Unwind::Table
            || matches!(caller, Some(Caller::LoadedCfa { .. }));
        let has_row = info.caller_table.is_some() && looks_up;
        let by_stack_pointer = matches!(
            caller,
            Some(Caller::LoadedCfa { .. } | Caller::Cfa { base: Base::StackPointer, .. })
        );
        match caller {
            None if is_leaf && info.caller_table.is_none() => Way::Guess,
            None => Way::Unchecked,
            Some(Caller::Unknown | Caller::Outermost) if is_leaf => Way::Guess,
            Some(Caller::Unknown | Caller::Outermost) => Way::Unchecked,
            Some(_) if has_row => Way::Row,
            Some(_) if !by_stack_pointer => Way::FramePointer,
            Some(_) if is_leaf => Way::Guess,
            Some(_) => Way::Missing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: Caller = Caller::Cfa { base: Base::FramePointer, words: 2, saved_fp: None };
    const NO_RECORD: Caller = Caller::Cfa { base: Base::StackPointer, words: 1, saved_fp: None };

    #[test]
    fn a_way_is_told_by_the_frame_the_image_and_the_recording() {
        let (leaf, call) = (Frame::leaf(0x1000), Frame::caller(0x2000));
        let settings = |caller_table, unwind| RecordingInfo {
            caller_table,
            unwind,
            period_ns: 1_000_000,
            ..RecordingInfo::default()
        };
        let without = settings(None, Unwind::FramePointers);
        let with = settings(Some(7), Unwind::FramePointers);
        let every = settings(Some(7), Unwind::Table);
        let unknown = RecordingInfo::default();
        let way = Way::of(leaf, Some(call), Some(RECORD), &unknown);
        assert_eq!(way, Way::Unchecked, "of a recording without settings");
        for (frame, caller, info, expected) in [
            (leaf, Some(NO_RECORD), &with, Way::Row),
            (leaf, Some(RECORD), &without, Way::FramePointer),
            (leaf, Some(NO_RECORD), &without, Way::Guess),
            (leaf, None, &without, Way::Guess),
            (leaf, Some(Caller::Unknown), &with, Way::Guess),
            (leaf, None, &with, Way::Unchecked),
            (call, Some(RECORD), &with, Way::FramePointer),
            (call, Some(NO_RECORD), &with, Way::Missing),
            (call, Some(NO_RECORD), &every, Way::Row),
            (call, Some(Caller::Unknown), &every, Way::Unchecked),
            (call, None, &with, Way::Unchecked),
        ] {
            assert_eq!(Way::of(frame, Some(call), caller, info), expected, "{frame:?} {caller:?}");
        }
        let ends = [(SpecialFrame::Broken, Way::Missing), (SpecialFrame::Truncated, Way::None)];
        for (end, expected) in ends {
            assert_eq!(Way::of(call, Some(Frame::Special(end)), Some(RECORD), &with), expected);
        }
        assert_eq!(Way::of(call, None, Some(NO_RECORD), &with), Way::None);
    }
}
