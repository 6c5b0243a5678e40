//! The paravirtual clock: system time in nanoseconds since the host booted, and the wall clock.
//!
//! The parameters in [`VcpuTimeInfo`] turn the processor's counter (the time stamp counter of
//! x86-64, the virtual counter of aarch64) into system time. On x86-64 Xen keeps them; on aarch64
//! it does not, and the guest does: see [`set_counter_hz`] and [`catch_up`].
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

use crate::abi::xen::{PVCLOCK_TSC_STABLE, SharedInfo, VcpuTimeInfo};
use crate::errno::Errno;
use crate::hypercall::{Hypercall, operations};
use crate::runstate::Runstate;
use crate::vcpu::VcpuId;

pub use crate::arch::clock::*;

/// A vCPU's clock.
///
/// The origin is the boot of the host, so after a migration it is another one. Clocks of different
/// vCPUs agree without going backwards only where [`is_stable`](Self::is_stable).
#[derive(Clone, Copy, Debug)]
pub struct Clock<'a> {
    time: &'a VcpuTimeInfo,
    shared: &'a SharedInfo,
}

/// System time and the processor's counter, read at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// System time, ns.
    pub system_time_ns: u64,
    /// The processor's counter that it was calculated from.
    pub counter: u64,
}

/// A consistent copy of a [`VcpuTimeInfo`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeSnapshot {
    /// The counter at the last update.
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

    /// System time when the counter reads `counter`, ns.
    ///
    /// system_time + ((counter − tsc_timestamp) shifted by tsc_shift) × multiplier ÷ 2³². A
    /// `counter` before the last update counts as that update.
    #[must_use]
    #[inline]
    pub fn system_time_at(&self, counter: u64) -> u64 {
        let delta = counter.saturating_sub(self.tsc_timestamp);
        let places = u32::from(self.shift.unsigned_abs());
        let shifted = if self.shift < 0 {
            delta.checked_shr(places).unwrap_or(0)
        } else {
            delta.checked_shl(places).unwrap_or(0)
        };
        let elapsed = (u128::from(shifted) * u128::from(self.multiplier)) >> 32;
        self.system_time_ns.wrapping_add(elapsed as u64)
    }

    /// The first value of the counter at which system time is `system_time_ns`, for a timer that
    /// compares counters; `u64::MAX` if the counter never gets there, or has no frequency yet.
    /// Times from 2⁶² ns on (146 years) count as that: when a vCPU sleeps, Xen converts the counter
    /// back to ns, and a result of 64 bits would be a time that has passed.
    #[must_use]
    #[inline]
    pub fn counter_at(&self, system_time_ns: u64) -> u64 {
        let deadline_ns = system_time_ns.min(1 << 62);
        let Some(elapsed) = deadline_ns.checked_sub(self.system_time_ns) else {
            return self.tsc_timestamp;
        };
        if self.multiplier == 0 {
            return u64::MAX;
        }
        let shifted = (u128::from(elapsed) << 32).div_ceil(u128::from(self.multiplier));
        let places = u32::from(self.shift.unsigned_abs());
        let delta = if self.shift < 0 {
            // Beyond 2⁶⁴ for all but the shortest of times.
            shifted.checked_shl(places).filter(|it| it >> places == shifted)
        } else {
            shifted
                .checked_add((1_u128 << places.min(127)) - 1)
                .and_then(|it| it.checked_shr(places))
        };
        let delta = delta.and_then(|delta| u64::try_from(delta).ok());
        delta.map_or(u64::MAX, |delta| self.tsc_timestamp.saturating_add(delta))
    }

    /// Frequency of the counter, Hz; `None` before Xen has filled the multiplier.
    #[must_use]
    pub fn counter_hz(&self) -> Option<u64> {
        let base = (1_000_000_000_u128 << 32).checked_div(u128::from(self.multiplier))?;
        let places = u32::from(self.shift.unsigned_abs());
        let hz = if self.shift < 0 { base.checked_shl(places)? } else { base.checked_shr(places)? };
        u64::try_from(hz).ok()
    }
}

impl<'a> Clock<'a> {
    /// The clock of one of the first 32 vCPUs, kept in the shared page.
    #[must_use]
    pub fn new(shared: &'a SharedInfo, vcpu: impl Into<VcpuId>) -> Option<Self> {
        let vcpu = vcpu.into();
        Some(Self { time: &shared.vcpu_info.get(vcpu.0 as usize)?.time, shared })
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

    /// As [`now_ns`](Self::now_ns), with the counter that the result was calculated from.
    #[must_use]
    #[inline]
    pub fn read(&self) -> Reading {
        loop {
            // The counter is read between two reads of the version, so that both belong to one
            // update.
            let version = self.time.version.load(Ordering::Acquire);
            let snapshot = TimeSnapshot::load(self.time);
            let counter = read_counter();
            fence(Ordering::Acquire);
            if version & 1 == 0 && self.time.version.load(Ordering::Relaxed) == version {
                return Reading { system_time_ns: snapshot.system_time_at(counter), counter };
            }
            core::hint::spin_loop();
        }
    }

    /// A consistent copy of the clock's parameters, to convert values of the counter taken earlier.
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

/// Time of day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct WallTime {
    /// Seconds since 1970-01-01 00:00 UTC.
    pub seconds: u64,
    /// Nanoseconds to add, less than 10⁹.
    pub nanoseconds: u32,
}

/// Makes `time` the clock of a counter with this frequency, whose system time is 0 when the counter
/// is. For aarch64, where Xen gives no parameters: the guest calls it once for each vCPU, before
/// others read the clock, and then [`catch_up`]. A frequency of 0 is ignored.
pub fn set_counter_hz(time: &VcpuTimeInfo, hz: u64) {
    const NS: u128 = 1_000_000_000;
    if hz == 0 {
        return;
    }
    // The largest multiplier below 2³².
    let scaled = |shift: i8| match shift {
        0.. => (NS << 32 >> shift) / u128::from(hz),
        _ => (NS << 32 << -shift) / u128::from(hz),
    };
    let shift = (-32..=30).find(|shift| scaled(*shift) < 1 << 32).unwrap_or(30);
    update(time, |time| {
        time.tsc_to_system_mul.store(scaled(shift) as u32, Ordering::Relaxed);
        time.tsc_shift.store(shift, Ordering::Relaxed);
        time.tsc_timestamp.store(0, Ordering::Relaxed);
        time.system_time.store(0, Ordering::Relaxed);
        time.flags.store(PVCLOCK_TSC_STABLE, Ordering::Relaxed);
    });
}

/// Sets the clock of `time` forward if a vCPU's runstate was entered later than the clock's time
/// when the counter reads `counter`; returns by how much, in ns.
///
/// On aarch64 this is how a guest learns Xen's system time: it sleeps for a moment, reads its
/// runstate, whose state Xen has entered on waking it, and calls this function with the counter at
/// that time. The clock is then late by the time between, at the most. Some repetitions at boot
/// find a short one. Call it from one vCPU at a time.
pub fn catch_up(time: &VcpuTimeInfo, runstate: &Runstate, counter: u64) -> u64 {
    let snapshot = TimeSnapshot::load(time);
    let late_ns = runstate.entered_ns.saturating_sub(snapshot.system_time_at(counter));
    if late_ns > 0 {
        update(time, |time| {
            let system_time_ns = snapshot.system_time_ns.wrapping_add(late_ns);
            time.system_time.store(system_time_ns, Ordering::Relaxed);
        });
    }
    late_ns
}

/// Writes parameters as Xen does: readers see the version change.
fn update(time: &VcpuTimeInfo, write: impl FnOnce(&VcpuTimeInfo)) {
    let version = time.version.load(Ordering::Relaxed);
    time.version.store(version | 1, Ordering::Relaxed);
    // The odd version is visible before any of the fields, and all of them before the even one.
    fence(Ordering::Release);
    write(time);
    time.version.store((version | 1).wrapping_add(1), Ordering::Release);
}

/// Has Xen keep a second copy of `vcpu`'s clock in `area`, beside the one in its `vcpu_info`;
/// `None` ends it.
///
/// Code that does not know where the guest has mapped the shared information page finds it by this
/// copy.
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
        let halved = TimeSnapshot { shift: -1, ..snapshot };
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
            let _ = (snapshot.system_time_at(u64::MAX), snapshot.counter_hz());
        }
    }

    #[test]
    fn the_frequency_is_the_inverse_of_the_scale() {
        let snapshot = TimeSnapshot::try_read(&info(2)).unwrap();
        assert_eq!(snapshot.counter_hz(), Some(1_000_000_000));
        assert_eq!(TimeSnapshot { shift: 0, ..snapshot }.counter_hz(), Some(2_000_000_000));
        assert_eq!(TimeSnapshot { multiplier: 0, ..snapshot }.counter_hz(), None);
    }

    /// Guards against a timer that fires before its deadline, or much later.
    #[test]
    fn a_deadline_is_the_first_count_at_which_its_time_has_come() {
        for hz in [1, 1_000_000, 24_000_000, 62_500_000, 999_999_937, 3_000_000_000] {
            let time = VcpuTimeInfo::default();
            set_counter_hz(&time, hz);
            let snapshot = TimeSnapshot::try_read(&time).unwrap();
            for deadline_ns in [0, 1, 999, 1_000_000_007, 1 << 50] {
                let counter = snapshot.counter_at(deadline_ns);
                assert!(snapshot.system_time_at(counter) >= deadline_ns);
                let before = counter.checked_sub(1).map(|it| snapshot.system_time_at(it));
                assert!(before.is_none_or(|at| at < deadline_ns), "{hz} {deadline_ns}");
            }
        }
    }

    /// Guards against a vCPU that sleeps for ever and is woken at once, over and over: Xen's time
    /// is a signed number.
    #[test]
    fn the_farthest_deadline_is_a_time_of_xen() {
        for hz in [1_000_000, 24_000_000, 62_500_000, 1_000_000_000] {
            let time = VcpuTimeInfo::default();
            set_counter_hz(&time, hz);
            let counter = TimeSnapshot::try_read(&time).unwrap().counter_at(u64::MAX);
            let xen_ns = u128::from(counter) * 1_000_000_000 / u128::from(hz);
            assert!((1 << 61..1 << 63).contains(&xen_ns), "{hz}: {xen_ns}");
        }
    }

    #[test]
    fn any_frequency_has_parameters_of_nine_digits() {
        for hz in [1, 62_500_000, 1_000_000_000, 10_000_000_000] {
            let time = VcpuTimeInfo::default();
            set_counter_hz(&time, hz);
            let snapshot = TimeSnapshot::try_read(&time).unwrap();
            let wrong = snapshot.counter_hz().unwrap().abs_diff(hz);
            assert!(wrong <= hz / 1_000_000_000, "{hz}: {snapshot:?}");
        }
        let time = VcpuTimeInfo::default();
        set_counter_hz(&time, 0);
        assert_eq!(TimeSnapshot::try_read(&time).unwrap().multiplier, 0);
    }

    /// Guards against a clock that is behind the times that Xen gives, or goes backwards.
    #[test]
    fn the_clock_catches_up_with_the_runstate_and_never_goes_back() {
        let time = VcpuTimeInfo::default();
        set_counter_hz(&time, 1_000_000_000);
        let entered = |entered_ns| Runstate {
            state: crate::runstate::State::Running,
            entered_ns,
            running_ns: 0,
            stolen_ns: 0,
            blocked_ns: 0,
            offline_ns: 0,
        };
        let now = |counter| TimeSnapshot::try_read(&time).unwrap().system_time_at(counter);
        assert_eq!(catch_up(&time, &entered(5_000), 1_000), 4_000);
        assert_eq!(now(1_000), 5_000);
        assert_eq!(catch_up(&time, &entered(5_900), 2_000), 0);
        assert_eq!(catch_up(&time, &entered(6_002), 2_000), 2);
        assert_eq!(now(3_000), 7_002);
    }
}
