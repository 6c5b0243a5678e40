//! Measures the true times of calls, with a clock read around each.

/// The number of clock reads from which the cost of one is measured.
const READINGS: u32 = 64;

/// Sums of the running time of `N` kinds of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meter<const N: usize> {
    ns: [u64; N],
    /// The difference of two consecutive clock reads.
    empty_ns: u64,
}

impl<const N: usize> Meter<N> {
    /// Begins with sums of 0, and measures the cost of reading `clock`.
    pub fn new(clock: &mut impl FnMut() -> u64) -> Self {
        let mut empty_ns = u64::MAX;
        for _ in 0..READINGS {
            let before = clock();
            empty_ns = empty_ns.min(clock().saturating_sub(before));
        }
        Self { ns: [0; N], empty_ns }
    }

    /// Does `work`, and adds its running time to the sum of `kind`, less the cost of the clock
    /// reads. An unknown kind is not measured.
    #[inline(always)]
    pub fn around<T>(
        &mut self,
        kind: usize,
        clock: &mut impl FnMut() -> u64,
        work: impl FnOnce() -> T,
    ) -> T {
        let before = clock();
        let result = work();
        let ran_ns = clock().saturating_sub(before).saturating_sub(self.empty_ns);
        if let Some(sum) = self.ns.get_mut(kind) {
            *sum = sum.saturating_add(ran_ns);
        }
        result
    }

    /// The sums, in ns of running time.
    pub fn ns(&self) -> &[u64; N] {
        &self.ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sums must not include the clock's cost, which would distort short calls most.
    #[test]
    fn the_cost_of_the_readings_is_taken_off() {
        let now = core::cell::Cell::new(0);
        let mut clock = || {
            now.set(now.get() + 7);
            now.get()
        };
        let mut meter = Meter::<2>::new(&mut clock);
        meter.around(1, &mut clock, || now.set(now.get() + 100));
        meter.around(5, &mut clock, || now.set(now.get() + 100));
        assert_eq!(meter.ns(), &[0, 100]);
    }
}
