//! Guests with the profiler in them, on a real Xen.

pub use unikprof_lab::profiled::*;
use unikprof_lab::{GuestConfig, LabError};

use crate::soak::target::Keys;

/// A guest for those who have one of these keys only: they lie in xenstore before the guest runs.
pub fn profiled_guest_with_keys(
    name: &str,
    keys: &Keys,
    command_line: &str,
) -> Result<GuestConfig, LabError> {
    Ok(with_keys(profiled_guest(name, command_line)?, keys))
}

/// The same guest with these keys in its part of xenstore, which its profiler asks for.
pub fn with_keys(mut guest: GuestConfig, keys: &Keys) -> GuestConfig {
    guest.command_line = guest.command_line.replace("=open:", "=keys:");
    guest.store.extend([
        ("data/unikprof/view".into(), keys.view.text()),
        ("data/unikprof/control".into(), keys.control.text()),
        ("data/unikprof/trace".into(), keys.trace.text()),
    ]);
    guest
}
