//! The clock of x86-64: Xen gives the parameters by which a TSC value becomes system time.

#![allow(unsafe_code, reason = "reading the TSC is an instruction")]

use core::sync::atomic::{Ordering, fence};

use crate::abi::xen::{PVCLOCK_TSC_STABLE, SharedInfo, VcpuTimeInfo};
use crate::clock::{WallTime, wall_time_at};
use crate::vcpu::VcpuId;

/// A vCPU's clock.
///
/// The origin is the boot of the host, so after a migration it is another one. Clocks of different vCPUs
/// agree without going backwards only where [`is_stable`](Self::is_stable).
#[derive(Clone, Copy, Debug)]
pub struct Clock<'a> {
    time: &'a VcpuTimeInfo,
    shared: &'a SharedInfo,
}

/// System time and the time stamp counter, read at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// System time, ns.
    pub system_time_ns: u64,
    /// The time stamp counter that it was calculated from.
    pub tsc: u64,
}

/// A consistent copy of a [`VcpuTimeInfo`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeSnapshot {
    /// TSC at the last update.
    pub tsc_timestamp: u64,
    /// System time at the last update, ns.
    pub system_time_ns: u64,
    /// 32.32 fixed point multiplier.
    pub multiplier: u32,
    /// Binary exponent applied before the multiplication.
    pub shift: i8,
}

impl TimeSnapshot {
    /// Copies `time` if no update is under way; `None` asks for another try.
    #[must_use]
    pub fn try_read(time: &VcpuTimeInfo) -> Option<Self> {
        let version = time.version.load(Ordering::Acquire);
        let snapshot = Self::load(time);
        fence(Ordering::Acquire);
        let unchanged = time.version.load(Ordering::Relaxed) == version;
        (version & 1 == 0 && unchanged).then_some(snapshot)
    }

    /// The fields as they are, consistent if the version is even and the same before and after.
    #[inline]
    fn load(time: &VcpuTimeInfo) -> Self {
        Self {
            tsc_timestamp: time.tsc_timestamp.load(Ordering::Relaxed),
            system_time_ns: time.system_time.load(Ordering::Relaxed),
            multiplier: time.tsc_to_system_mul.load(Ordering::Relaxed),
            shift: time.tsc_shift.load(Ordering::Relaxed),
        }
    }

    /// System time when the TSC reads `tsc`, ns.
    ///
    /// system_time + ((tsc − tsc_timestamp) shifted by tsc_shift) × multiplier ÷ 2³². A `tsc` before the
    /// last update counts as that update.
    #[must_use]
    #[inline]
    pub fn system_time_at(&self, tsc: u64) -> u64 {
        let delta = tsc.saturating_sub(self.tsc_timestamp);
        let places = u32::from(self.shift.unsigned_abs());
        let shifted = if self.shift < 0 {
            delta.checked_shr(places).unwrap_or(0)
        } else {
            delta.checked_shl(places).unwrap_or(0)
        };
        let elapsed = (u128::from(shifted) * u128::from(self.multiplier)) >> 32;
        self.system_time_ns.wrapping_add(elapsed as u64)
    }

    /// Frequency of the TSC, Hz; `None` before Xen has filled the multiplier.
    #[must_use]
    pub fn tsc_hz(&self) -> Option<u64> {
        let base = (1_000_000_000_u128 << 32).checked_div(u128::from(self.multiplier))?;
        let places = u32::from(self.shift.unsigned_abs());
        let hz = if self.shift < 0 {
            base.checked_shl(places)?
        } else {
            base.checked_shr(places)?
        };
        u64::try_from(hz).ok()
    }
}

impl<'a> Clock<'a> {
    /// The clock of one of the first 32 vCPUs, kept in the shared page.
    #[must_use]
    pub fn new(shared: &'a SharedInfo, vcpu: impl Into<VcpuId>) -> Option<Self> {
        let vcpu = vcpu.into();
        Some(Self {
            time: &shared.vcpu_info.get(vcpu.0 as usize)?.time,
            shared,
        })
    }

    /// The clock of a vCPU whose information was registered elsewhere.
    #[must_use]
    pub const fn with_time_info(shared: &'a SharedInfo, time: &'a VcpuTimeInfo) -> Self {
        Self { time, shared }
    }

    /// System time now, ns. Meant for the vCPU whose clock this is.
    #[must_use]
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.read().system_time_ns
    }

    /// As [`now_ns`](Self::now_ns), with the TSC that the result was calculated from.
    #[must_use]
    #[inline]
    pub fn read(&self) -> Reading {
        loop {
            // The TSC is read between two reads of the version, so that both belong to one update.
            let version = self.time.version.load(Ordering::Acquire);
            let snapshot = TimeSnapshot::load(self.time);
            let tsc = read_tsc();
            fence(Ordering::Acquire);
            if version & 1 == 0 && self.time.version.load(Ordering::Relaxed) == version {
                return Reading {
                    system_time_ns: snapshot.system_time_at(tsc),
                    tsc,
                };
            }
            core::hint::spin_loop();
        }
    }

    /// A consistent copy of the clock's parameters, to convert TSC values taken earlier.
    #[must_use]
    pub fn snapshot(&self) -> TimeSnapshot {
        loop {
            if let Some(snapshot) = TimeSnapshot::try_read(self.time) {
                return snapshot;
            }
            core::hint::spin_loop();
        }
    }

    /// May clocks of different vCPUs be compared?
    #[must_use]
    pub fn is_stable(&self) -> bool {
        self.time.flags.load(Ordering::Relaxed) & PVCLOCK_TSC_STABLE != 0
    }

    /// Time of day at system time `system_time_ns`.
    #[must_use]
    pub fn wall_time_at(&self, system_time_ns: u64) -> WallTime {
        wall_time_at(self.shared, system_time_ns)
    }

    /// Time of day now.
    #[must_use]
    pub fn wall_time(&self) -> WallTime {
        self.wall_time_at(self.now_ns())
    }
}

/// Reads the time stamp counter, not before the loads that come earlier: behind a fence (`lfence`).
#[must_use]
#[inline]
pub fn read_tsc() -> u64 {
    // SAFETY: every x86_64 CPU has both instructions; a guest whose rdtsc is trapped has it emulated.
    unsafe {
        core::arch::x86_64::_mm_lfence();
        core::arch::x86_64::_rdtsc()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn info(version: u32) -> VcpuTimeInfo {
        let time = VcpuTimeInfo::default();
        time.version.store(version, Ordering::Relaxed);
        time.tsc_timestamp.store(1_000, Ordering::Relaxed);
        time.system_time.store(5_000, Ordering::Relaxed);
        time.tsc_to_system_mul.store(1 << 31, Ordering::Relaxed);
        time.tsc_shift.store(1, Ordering::Relaxed);
        time
    }

    /// Guards against using parameters while Xen rewrites them.
    #[test]
    fn an_odd_version_is_not_read() {
        assert_eq!(TimeSnapshot::try_read(&info(3)), None);
        assert!(TimeSnapshot::try_read(&info(4)).is_some());
    }

    #[test]
    fn the_formula_scales_shifts_and_adds() {
        let snapshot = TimeSnapshot::try_read(&info(2)).unwrap();
        // 100 cycles, doubled by the shift, halved by the multiplier.
        assert_eq!(snapshot.system_time_at(1_100), 5_100);
        let halved = TimeSnapshot {
            shift: -1,
            ..snapshot
        };
        assert_eq!(halved.system_time_at(1_100), 5_025);
    }

    /// Guards against a leap of centuries where the TSC reads slightly before the update.
    #[test]
    fn a_tsc_before_the_update_counts_as_the_update() {
        let snapshot = TimeSnapshot::try_read(&info(2)).unwrap();
        assert_eq!(snapshot.system_time_at(999), 5_000);
    }

    /// Guards against a panic in the upcall: any bits may stand in the page.
    #[test]
    fn no_parameters_panic() {
        for shift in [i8::MIN, -65, -64, 0, 63, 64, i8::MAX] {
            let snapshot = TimeSnapshot {
                tsc_timestamp: 0,
                system_time_ns: u64::MAX,
                multiplier: u32::MAX,
                shift,
            };
            let _ = (snapshot.system_time_at(u64::MAX), snapshot.tsc_hz());
        }
    }

    #[test]
    fn the_frequency_is_the_inverse_of_the_scale() {
        let snapshot = TimeSnapshot::try_read(&info(2)).unwrap();
        assert_eq!(snapshot.tsc_hz(), Some(1_000_000_000));
        assert_eq!(
            TimeSnapshot {
                shift: 0,
                ..snapshot
            }
            .tsc_hz(),
            Some(2_000_000_000)
        );
        assert_eq!(
            TimeSnapshot {
                multiplier: 0,
                ..snapshot
            }
            .tsc_hz(),
            None
        );
    }
}
