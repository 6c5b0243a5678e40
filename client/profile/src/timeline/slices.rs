//! Equal slices of a window, and the differences between them.

use std::collections::BTreeMap;

use super::count::{Selection, VcpuCount};
use super::recording_spans::RecordingSpan;
use super::times::Times;
use super::{SpanFilter, Timeline, Window};
use crate::profile::{Counters, NodeId, Runstate};
use crate::units::sum;

/// The most slices of one window: longer ones have longer slices.
pub(crate) const MOST_SLICES: u64 = 1_000;

const SECOND_NS: u64 = 1_000_000_000;

/// One slice of time, on all vCPUs.
#[derive(Debug, Clone, PartialEq)]
pub struct Slice {
    /// The slice; the last one may be shorter, or a little longer.
    pub window: Window,
    /// The outcomes of its ticks and its blocked time; `missing` is unknown.
    pub counters: Counters,
    /// Whether it is known what was counted in all of it.
    pub is_held: bool,
    /// Whether the recordings shown cover all of it: several files may lack the time between them.
    pub is_covered: bool,
    /// The share of the vCPUs' time of which it is known.
    pub coverage: f64,
    /// How the time was spent that the rings cover, and how long it is in ns, for each vCPU whose
    /// ring tells.
    pub(crate) runstates: Vec<(Runstate, u64)>,
    /// Each stack's count, in the mode's [unit](crate::profile::Mode::unit), in the order of the
    /// stacks.
    pub stacks: Vec<(NodeId, u64)>,
}

impl Slice {
    /// The share of a kind of time in the time that the rings cover; `None` if none does. The
    /// shares of all kinds are at most 1 together, also where a host measured more.
    pub fn share_of_time(&self, kind: impl Fn(&Runstate) -> Option<u64>) -> Option<f64> {
        let known = self.runstates.iter().filter_map(|(times, ns)| {
            let all = [times.running_ns, times.runnable_ns, times.blocked_ns, times.offline_ns];
            let all_ns = sum(all.into_iter().flatten().map(|ns| ns as f64));
            Some((kind(times)? as f64, all_ns.max(*ns as f64)))
        });
        let (part_ns, time_ns) = known
            .fold((0.0, 0.0), |(part_ns, time_ns), (part, time)| (part_ns + part, time_ns + time));
        (time_ns > 0.0).then(|| part_ns / time_ns)
    }
}

/// How long slices are, in ns: as wanted, or a second; longer where there were too many of them.
pub fn step_ns(window: Window, wanted_ns: Option<u64>, most: u64) -> u64 {
    const STEPS: [u64; 13] = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 86_400];
    let least = window.length_ns().div_ceil(most.clamp(1, MOST_SLICES)).max(1);
    let steps = STEPS.iter().map(|seconds| seconds * SECOND_NS);
    match wanted_ns {
        Some(wanted) => wanted.max(least),
        None => steps.into_iter().find(|step| *step >= least).unwrap_or(least),
    }
}

impl Timeline {
    /// Divides a window into slices of `step_ns`, at most a thousand. The rest is omitted, and a
    /// last slice of less than a tenth is merged into the previous one. With `inside`, only events
    /// during a span of this name on the same vCPU count, and the vCPUs' time is unknown.
    pub fn slices(
        &self,
        of: &RecordingSpan,
        window: Window,
        inside: Option<SpanFilter<'_>>,
        step_ns: u64,
    ) -> Vec<Slice> {
        let times: Vec<Times> = match inside {
            None => self.rings.iter().map(Times::of).collect(),
            Some(_) => Vec::new(),
        };
        let selection = Selection::new(self, of, inside);
        let mut vcpus: Vec<VcpuCount<'_>> = self.rings.iter().map(|r| selection.on(r)).collect();
        let slice = |window| {
            let mut counters = Counters::default();
            let mut stacks = BTreeMap::new();
            for vcpu in &mut vcpus {
                let counted = vcpu.count(window);
                counters = counters.plus(&counted.counters);
                for ((node, _), count) in counted.stacks {
                    let sum: &mut u64 = stacks.entry(node).or_default();
                    *sum = sum.saturating_add(count);
                }
            }
            let known: Vec<Vec<Window>> = vcpus.iter().map(|vcpu| vcpu.known(window)).collect();
            let length_ns = |parts: &[Window]| parts.iter().map(Window::length_ns).sum::<u64>();
            let known_ns = sum(known.iter().map(|parts| length_ns(parts) as f64));
            let told = times.iter().zip(self.rings.iter().map(|ring| ring.covered(window)));
            Slice {
                window,
                counters,
                is_held: known.iter().all(|parts| parts[..] == [window]),
                is_covered: self.covers(window),
                coverage: known_ns / (known.len().max(1) as f64 * window.length_ns().max(1) as f64),
                runstates: told
                    .filter_map(|(times, parts)| {
                        Some((times.of_windows(&parts)?, length_ns(&parts)))
                    })
                    .collect(),
                stacks: stacks.into_iter().collect(),
            }
        };
        slice_windows(window, step_ns).map(slice).collect()
    }
}

impl Timeline {
    /// Of each of these windows, the share that was stolen of the time in which the vCPUs had work;
    /// `None` where no ring tells of it.
    pub fn stolen_shares(&self, windows: &[Window]) -> Vec<Option<f64>> {
        let times: Vec<Times> = self.rings.iter().map(Times::of).collect();
        let stolen = |window: &Window| {
            let known = times.iter().filter_map(|t| t.of_window(*window));
            known.reduce(|sum, next| sum.plus(&next))?.stolen_share()
        };
        windows.iter().map(stolen).collect()
    }
}

/// The windows of a window's slices, in the order of time.
pub fn slice_windows(window: Window, step_ns: u64) -> impl Iterator<Item = Window> {
    let step_ns = step_ns.max(1);
    let (whole, rest_ns) = (window.length_ns() / step_ns, window.length_ns() % step_ns);
    // A crumb at the end belongs to the slice before it: its own rates would tell nothing.
    let has_crumb = whole > 0 && rest_ns < step_ns / 10;
    let count = if has_crumb { whole } else { window.length_ns().div_ceil(step_ns) };
    (0..count.min(MOST_SLICES)).map(move |at| {
        let from_ns = window.from_ns.saturating_add(at.saturating_mul(step_ns));
        let to_ns = if has_crumb && at + 1 == whole {
            window.to_ns
        } else {
            from_ns.saturating_add(step_ns).min(window.to_ns)
        };
        Window::new(from_ns, to_ns)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_windows_have_long_slices() {
        let window = |seconds: u64| Window::new(5, 5 + seconds * SECOND_NS);
        assert_eq!(step_ns(window(30), None, 120), SECOND_NS);
        assert_eq!(step_ns(window(600), None, 120), 5 * SECOND_NS);
        assert_eq!(step_ns(window(30), Some(100), 120), SECOND_NS / 4);
        assert!(step_ns(Window::ALL, None, 120) >= u64::MAX / 1_000);
    }
}
