//! The guest of a case.

use unikprof_tests::accuracy::xen::{XenGuest, steal};
use unikprof_tests::lab::{LabError, Shared};

/// The frame pointers of the guest's build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FramePointers {
    /// As the agent asks for; with a neighbour, which is paused.
    Kept,
    Omitted,
}

static GUEST: Shared<FramePointers, XenGuest> = Shared::new(1);

/// Runs a case on a guest that was built so, alone; skips it where there can be no lab.
pub(crate) fn on(built: FramePointers, body: impl FnOnce(&mut XenGuest)) {
    GUEST.on(built, start, body);
}

fn start(built: &FramePointers) -> Result<XenGuest, LabError> {
    let started = match built {
        FramePointers::Kept => XenGuest::with_frame_pointers().and_then(|guest| {
            steal::pause(&guest)?;
            Ok(guest)
        }),
        FramePointers::Omitted => XenGuest::without_frame_pointers(),
    };
    started.map_err(|error| match error.downcast() {
        Ok(error) => error,
        Err(other) => panic!("{other:#}"),
    })
}
