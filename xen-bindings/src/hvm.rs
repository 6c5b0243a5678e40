//! Parameters of a guest, and how upcalls reach it.

use crate::abi::hvm::{self as abi, param};
use crate::abi::xen::DOMID_SELF;
use crate::errno::Errno;
use crate::events::Port;
use crate::hypercall::Hypercall;
use crate::hypercall::operations::{HvmGetParam, HvmSetParam, issue};
use crate::page::Frame;

#[cfg(target_arch = "x86_64")]
pub use crate::arch::callback::*;

/// Number of a parameter (`HVM_PARAM_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param(pub u32);

impl Param {
    /// The delivery of upcalls; see [`set_callback_vector`].
    pub const CALLBACK_IRQ: Self = Self(param::CALLBACK_IRQ);
    /// Frame of the xenstore ring.
    pub const STORE_FRAME: Self = Self(param::STORE_PFN);
    /// Port of the xenstore ring.
    pub const STORE_PORT: Self = Self(param::STORE_EVTCHN);
    /// Frame of the console ring.
    pub const CONSOLE_FRAME: Self = Self(param::CONSOLE_PFN);
    /// Port of the console ring.
    pub const CONSOLE_PORT: Self = Self(param::CONSOLE_EVTCHN);
}

/// A ring that the tools have made before the guest began: its page and its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolRing {
    /// The frame of the ring's page.
    pub frame: Frame,
    /// The port of the guest's end.
    pub port: Port,
}

/// Reads a parameter of this domain.
///
/// # Errors
/// `EINVAL` for a number Xen does not know, `EPERM` for one the guest may not read.
pub fn param(hypercall: &impl Hypercall, index: Param) -> Result<u64, Errno> {
    let mut argument = abi::Param { domain: DOMID_SELF, pad: 0, index: index.0, value: 0 };
    issue::<HvmGetParam>(hypercall, &mut argument)?;
    Ok(argument.value)
}

/// Sets a parameter of this domain.
///
/// # Errors
/// `EINVAL` for a number or value Xen does not know, `EPERM` for one the guest may not set.
pub fn set_param(hypercall: &impl Hypercall, index: Param, value: u64) -> Result<(), Errno> {
    let mut argument = abi::Param { domain: DOMID_SELF, pad: 0, index: index.0, value };
    issue::<HvmSetParam>(hypercall, &mut argument).map(drop)
}

/// The location of the xenstore ring.
///
/// # Errors
/// `ENODEV` if the toolstack created none, or the hypercall's error.
pub fn store_ring(hypercall: &impl Hypercall) -> Result<ToolRing, Errno> {
    tool_ring(hypercall, Param::STORE_FRAME, Param::STORE_PORT)
}

/// The location of the console ring.
///
/// # Errors
/// `ENODEV` if the toolstack created none, or the hypercall's error.
pub fn console_ring(hypercall: &impl Hypercall) -> Result<ToolRing, Errno> {
    tool_ring(hypercall, Param::CONSOLE_FRAME, Param::CONSOLE_PORT)
}

fn tool_ring(hypercall: &impl Hypercall, frame: Param, port: Param) -> Result<ToolRing, Errno> {
    let frame = param(hypercall, frame)?;
    let port = u32::try_from(param(hypercall, port)?).map_err(|_| Errno::ENODEV)?;
    // Neither can be zero, and a frame of all ones means "not yet".
    if frame == 0 || frame == u64::MAX || port == 0 {
        return Err(Errno::ENODEV);
    }
    Ok(ToolRing { frame: Frame(frame), port: Port(port) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fake::FakeXen;

    /// Guards against using frame zero, or a frame of all ones, as a ring: the tools made none
    /// then.
    #[test]
    fn a_ring_that_was_not_made_is_no_device() {
        let xen = FakeXen::new();
        for (frame, port) in [(0, 2), (u64::MAX, 2), (5, 0), (5, 1 << 32)] {
            xen.set_tool_param(Param::STORE_FRAME, frame);
            xen.set_tool_param(Param::STORE_PORT, port);
            assert_eq!(store_ring(&xen), Err(Errno::ENODEV), "{frame} {port}");
        }
        xen.set_tool_param(Param::CONSOLE_FRAME, 5);
        xen.set_tool_param(Param::CONSOLE_PORT, 3);
        assert_eq!(console_ring(&xen), Ok(ToolRing { frame: Frame(5), port: Port(3) }));
    }

    #[test]
    fn what_the_guest_may_not_set_is_refused() {
        let xen = FakeXen::new();
        assert_eq!(set_param(&xen, Param::STORE_FRAME, 1), Err(Errno::EPERM));
        assert_eq!(param(&xen, Param(4_000)), Err(Errno::EINVAL));
    }
}
