//! The paravirtual clock: system time in nanoseconds since the host booted, and the wall clock.
//!
//! One read takes no hypercall and no lock, so the upcall may use it.
//!
//! ```
//! use xen_sys_lite::clock::Clock;
//! use xen_sys_lite::fake::FakeXen;
//! use xen_sys_lite::vcpu::VcpuId;
//!
//! let xen = FakeXen::new();
//! let clock = Clock::new(xen.map_shared_info(), VcpuId(0)).expect("vCPU 0 is in the shared page");
//! let before = clock.now_ns();
//! xen.advance(1_000);
//! assert_eq!(clock.now_ns() - before, 1_000);
//! ```

use core::sync::atomic::{Ordering, fence};

use crate::abi::xen::{SharedInfo, VcpuTimeInfo};
use crate::errno::Errno;
use crate::hypercall::{Hypercall, operations};
use crate::vcpu::VcpuId;

pub use crate::arch::clock::*;

/// Time of day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct WallTime {
    /// Seconds since 1970-01-01 00:00 UTC.
    pub seconds: u64,
    /// Nanoseconds to add, less than 10⁹.
    pub nanoseconds: u32,
}

/// Has Xen keep a second copy of `vcpu`'s clock in `area`, beside the one in its `vcpu_info`; `None` ends it.
///
/// Code that does not know where the guest has mapped the shared information page finds it by this copy.
///
/// # Errors
/// `ENOENT` for a vCPU that does not exist, `ENOSYS` from a Xen without this command.
pub fn register_copy(
    hypercall: &impl Hypercall,
    vcpu: VcpuId,
    area: Option<&'static VcpuTimeInfo>,
) -> Result<(), Errno> {
    operations::register_time(hypercall, vcpu, area)
}

/// Time of day at system time `system_time_ns`.
pub(crate) fn wall_time_at(shared: &SharedInfo, system_time_ns: u64) -> WallTime {
    let (seconds, nanoseconds) = wall_base(shared);
    let total = system_time_ns.saturating_add(u64::from(nanoseconds));
    WallTime {
        seconds: seconds.saturating_add(total / 1_000_000_000),
        nanoseconds: (total % 1_000_000_000) as u32,
    }
}

/// Time of day at system time zero.
fn wall_base(shared: &SharedInfo) -> (u64, u32) {
    loop {
        let version = shared.wc_version.load(Ordering::Acquire);
        let low = shared.wc_sec.load(Ordering::Relaxed);
        let high = shared.wc_sec_hi.load(Ordering::Relaxed);
        let nanoseconds = shared.wc_nsec.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        if version & 1 == 0 && shared.wc_version.load(Ordering::Relaxed) == version {
            return (u64::from(high) << 32 | u64::from(low), nanoseconds);
        }
        core::hint::spin_loop();
    }
}
