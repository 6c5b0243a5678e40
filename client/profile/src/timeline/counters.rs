//! The guest's counters: values over time.

use std::collections::BTreeMap;

use unikprof_proto::ring::kind;

use super::{Timeline, Window};

/// The values of one counter, on all vCPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CounterSeries {
    /// As the guest has it.
    pub name: String,
    /// When it got which value, in the order of time; at least one.
    values: Vec<(u64, i64)>,
}

impl CounterSeries {
    /// When it got which value, in the order of time; at least one.
    pub fn values(&self) -> &[(u64, i64)] {
        &self.values
    }

    /// The counter's name, as the guest gave it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The least value.
    pub fn min(&self) -> i64 {
        self.each().min().unwrap_or(0)
    }

    /// The greatest value.
    pub fn max(&self) -> i64 {
        self.each().max().unwrap_or(0)
    }

    /// The last value.
    pub fn last(&self) -> i64 {
        self.each().next_back().unwrap_or(0)
    }

    /// When it grew by how much, from its first value on; `None` if it fell at any time. How it
    /// changed from before one of the `gaps` to after it is left out.
    pub fn growth(&self, gaps: &[Window]) -> Option<Vec<(Window, f64)>> {
        let steps = self.values.windows(2).map(|step| {
            let ((from_ns, before), (to_ns, value)) = (step[0], step[1]);
            let grown = (value >= before).then(|| value.abs_diff(before) as f64);
            (Window::new(from_ns, to_ns), grown)
        });
        let is_across = |step: &Window| gaps.iter().any(|gap| gap.and(*step).length_ns() > 0);
        let steps = steps.filter(|(step, _)| !is_across(step));
        steps.map(|(step, grown)| Some((step, grown?))).collect()
    }

    /// The mean over each of `parts` equal parts of a window; `None` before the first value.
    pub fn means(&self, window: Window, parts: usize) -> Vec<Option<f64>> {
        let length = u128::from(window.length_ns());
        let edge = |part: usize| {
            let passed = length * part as u128 / parts.max(1) as u128;
            // Within the window, so it fits.
            window.from_ns + passed as u64
        };
        let mean = |part: usize| {
            let (from_ns, to_ns) = (edge(part), edge(part + 1));
            let known = self.values.partition_point(|(at, _)| *at <= from_ns);
            let before = known.checked_sub(1).map(|at| (from_ns, self.values[at].1));
            let later = self.values[known..].iter().copied();
            let later = later.take_while(|(at, _)| *at < to_ns);
            let (mut last, mut sum, mut time) = (before, 0.0, 0.0);
            for (at_ns, value) in later.chain([(to_ns, 0)]) {
                if let Some((since_ns, value)) = last {
                    let held = (at_ns - since_ns) as f64;
                    sum += value as f64 * held;
                    time += held;
                }
                last = Some((at_ns, value));
            }
            (time > 0.0).then(|| sum / time)
        };
        (0..parts).map(mean).collect()
    }

    /// The [means](Self::means) as heights to be drawn: the least value is an eighth of the range,
    /// which is not nothing.
    pub fn heights(&self, window: Window, parts: usize) -> Vec<Option<f64>> {
        let least = self.min() as f64;
        let lowest = (self.max().abs_diff(self.min()) as f64 / 8.0).max(1.0);
        let height = |mean: Option<f64>| mean.map(|mean| mean - least + lowest);
        self.means(window, parts).into_iter().map(height).collect()
    }

    fn each(&self) -> impl DoubleEndedIterator<Item = i64> + '_ {
        self.values.iter().map(|(_, value)| *value)
    }
}

impl Timeline {
    /// The guest's counters within a window, by name. Each begins with its value at the start of
    /// the window, if known.
    pub fn counters(&self, window: Window) -> Vec<CounterSeries> {
        let mut by_name: BTreeMap<String, Vec<(u64, i64)>> = BTreeMap::new();
        for (id, (_, value)) in self.counters_at(window.from_ns) {
            let values = by_name.entry(self.name_or_id(id)).or_default();
            values.push((window.from_ns, value));
        }
        let records = self.all_records(window);
        for (_, record) in records.filter(|(_, record)| record.kind == kind::COUNTER) {
            let values = by_name.entry(self.name_or_id(record.first)).or_default();
            values.push((record.at_ns, record.second as i64));
        }
        let series = by_name.into_iter().map(|(name, mut values)| {
            values.sort_by_key(|(at_ns, _)| *at_ns);
            CounterSeries { name, values }
        });
        series.collect()
    }

    /// What counters had been set to before a moment, by the ids of their names: when, and the
    /// value.
    pub fn counters_at(&self, at_ns: u64) -> BTreeMap<u64, (u64, i64)> {
        let before = Window::new(0, at_ns);
        let mut last: BTreeMap<u64, (u64, i64)> = BTreeMap::new();
        let records = self.all_records(before);
        for (_, record) in records.filter(|(_, record)| record.kind == kind::COUNTER) {
            let next = (record.at_ns, record.second as i64);
            let known = last.entry(record.first).or_insert(next);
            if known.0 <= record.at_ns {
                *known = next;
            }
        }
        last
    }

    /// How often each of the guest's marks was made within a window, by their names.
    pub fn marks(&self, window: Window) -> BTreeMap<String, u64> {
        let mut marks = BTreeMap::new();
        let records = self.all_records(window);
        for (_, record) in records.filter(|(_, record)| record.kind == kind::MARK) {
            *marks.entry(self.name_or_id(record.first)).or_default() += 1;
        }
        marks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_falls_counts_no_work() {
        let growth = |values: &[(u64, i64)]| {
            let series = CounterSeries { name: String::new(), values: values.to_vec() };
            let growth = series.growth(&[Window::new(40, 50)])?.into_iter();
            Some(growth.map(|(step, grown)| (step.to_ns, grown)).collect::<Vec<_>>())
        };
        assert_eq!(
            growth(&[(1, i64::MIN), (5, 0), (7, 0), (9, 3)]),
            Some(vec![(5, 9_223_372_036_854_775_808.0), (7, 0.0), (9, 3.0)])
        );
        assert_eq!(growth(&[(1, 4), (2, 3), (3, 9)]), None);
        assert_eq!(growth(&[(1, 4)]), Some(vec![]), "it grew by nothing known");
        // Between two recordings, whose second may be of another run of the guest.
        let runs = growth(&[(1, 4), (30, 9), (60, 2), (70, 5)]);
        assert_eq!(runs, Some(vec![(30, 5.0), (70, 3.0)]));
    }

    #[test]
    fn a_counter_keeps_its_value_until_the_next() {
        let series =
            CounterSeries { name: "depth".to_owned(), values: vec![(15, -2), (30, 6), (35, 2)] };
        assert_eq!((series.min(), series.max(), series.last()), (-2, 6, 2));
        let window = Window::new(0, 50);
        let heights = series.heights(window, 5);
        assert_eq!(heights, [None, Some(1.0), Some(1.0), Some(7.0), Some(5.0)]);
        // One that goes up and down within each part is no line at its top.
        let swings = (0..100).map(|at| (at, if at % 2 == 0 { 8 } else { 0 }));
        let swings = CounterSeries { name: String::new(), values: swings.collect() };
        let all = Window::new(0, 100);
        assert_eq!(swings.heights(all, 2), [Some(5.0), Some(5.0)]);
        let extremes =
            CounterSeries { name: String::new(), values: vec![(0, i64::MIN), (1, i64::MAX)] };
        assert!(extremes.heights(Window::ALL, 3).iter().all(Option::is_some));
    }
}
