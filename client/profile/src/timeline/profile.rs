//! A window of time as a profile: counts made from the ring's samples.

use indexmap::IndexSet;

use super::count::{Counted, Selection, Stacks, length_within_ns, union};
use super::recording_spans::RecordingSpan;
use super::spans::{SpanFilter, SpanOf};
use super::times::Times;
use super::{Timeline, Window};
use crate::profile::{Counters, Frame, FromRing, Mode, Profile, Sample, SpecialFrame, VcpuStats};
use crate::units::{duration, grouped};

impl Timeline {
    /// A recording's samples within a window, with every tick in it accounted for. `whole` is the
    /// profile that was read with the timeline; it supplies stacks, mappings and settings. With
    /// `inside`, only ticks during a nested span of this name on the same vCPU count, and those of
    /// code that ran for such a span.
    pub fn profile(
        &self,
        whole: &Profile,
        of: &RecordingSpan,
        window: Window,
        inside: Option<SpanFilter<'_>>,
    ) -> Profile {
        let asked = window;
        let window = self.bounded(of, window);
        let info = whole.recording();
        let selection = Selection::new(self, of, inside);
        let mut spans: IndexSet<SpanOf> = IndexSet::new();
        let (mut samples, mut vcpus) = (Vec::new(), Vec::new());
        for ring in &self.rings {
            let mut vcpu = selection.on(ring);
            let Counted { mut counters, stacks } = vcpu.count(window);
            count_ends(whole, &stacks, &mut counters);
            let covered = ring.covered(window);
            let times = match inside {
                None => Times::of(ring).of_windows(&covered),
                Some(_) => None,
            };
            // Where the ring has no records, none are missing: they were not fetched.
            let told = times.unwrap_or_default();
            let blocked = vcpu.blocked_in(&covered);
            let mut came = Counters { blocked, blocked_overflow: 0, blocked_aged: 0, ..counters };
            came.find_missing(info.mode, info.period_ns, told.running_ns, told.blocked_ns);
            (counters.missing, counters.missing_blocked) = (came.missing, came.missing_blocked);
            // The times of a part are interpolated: by more than what a ns of each wait may differ.
            counters.missing_blocked =
                counters.missing_blocked.filter(|_| info.mode != Mode::OffCpu);
            let elapsed_ns = covered.iter().map(|part| vcpu.length_ns(*part)).sum();
            vcpus.push(VcpuStats {
                vcpu: ring.vcpu,
                counters,
                runstate: times.unwrap_or_default(),
                elapsed_ns,
                cost: None,
                lateness_ns: None,
                allocated_bytes: 0,
                freed_samples: 0,
            });
            for ((node, span), count) in stacks {
                samples.push(Sample {
                    node,
                    vcpu: ring.vcpu,
                    span: span.map(|span| spans.insert_full(span).0 as u32),
                    count,
                });
            }
        }
        samples.sort_unstable_by_key(|s| (s.node, s.vcpu, s.span));
        let span_traces = spans.iter().map(|span| span.trace).collect();
        let span_names = spans.iter().map(|span| self.name_or_id(span.name)).collect();
        let mut recording = info.clone();
        recording.elapsed_ns = window.length_ns();
        recording.started_unix_ns = self.wall_clock().unix_ns(window.from_ns);
        recording.server_ns = 0;
        recording.warnings.extend(self.what_is_gone(of, asked));
        recording.warnings.extend(inside.and_then(|spans| self.not_nested(spans.name, window)));
        if selection.unknown_spans() > 0 {
            recording.warnings.push(format!(
                "spans left out: {}, whose ends the rings do not hold, so that it is not known how \
                 long they took",
                grouped(selection.unknown_spans())
            ));
        }
        if info.mode.is_heap() {
            recording.warnings.push(format!(
                "mode {}: the rings hold times and no sizes, so samples are shown and not bytes; \
                 fetch the counts with `dump` or `stop`",
                info.mode
            ));
        }
        recording.ring = Some(FromRing {
            from_ns: window.from_ns.saturating_sub(of.window.from_ns),
            to_ns: window.to_ns.saturating_sub(of.window.from_ns),
            inside: inside.map(|spans| spans.name.to_owned()),
            longer_ns: inside.and_then(|spans| spans.longer_ns),
            shorter_ns: inside.and_then(|spans| spans.shorter_ns),
        });
        Profile {
            mappings: whole.mappings.clone(),
            frames: whole.frames.clone(),
            tree: whole.tree.clone(),
            samples,
            heap: None,
            span_names,
            span_traces,
            vcpus,
            recording,
        }
    }

    /// The part of a window in which a recording ran and which the rings of all vCPUs cover, except
    /// for gaps: it begins where the last of the rings does. Otherwise the vCPUs' shares would be of
    /// different times.
    pub fn bounded(&self, of: &RecordingSpan, window: Window) -> Window {
        let extent = self.extent().unwrap_or(Window::new(0, 0));
        // Also before the first record: from where the rings are whole on, nothing happened there.
        let from_ns = self.held_since().min(extent.to_ns);
        window.and(of.window).and(Window { from_ns, ..extent })
    }

    /// Why samples in the time of spans of this name may not be theirs, in words; `None` if all are.
    fn not_nested(&self, name: &str, window: Window) -> Option<String> {
        let table = self.spans(window).into_iter().find(|table| table.name == name)?;
        let of = |count: u64, one: &str, many: &str| {
            (count > 0).then(|| match count {
                1 => format!("1 of these spans {one}"),
                _ => format!("{} of these spans {many}", grouped(count)),
            })
        };
        let all = [
            of(table.asynchronous, "is asynchronous", "are asynchronous"),
            of(table.overlapped, "overlapped others", "overlapped others"),
            of(table.moved, "ended on another vCPU", "ended on another vCPU"),
        ];
        let all: Vec<String> = all.into_iter().flatten().collect();
        (!all.is_empty()).then(|| {
            format!(
                "{}: of the samples in the time of such a span only those are shown whose code the \
                 guest entered for it",
                all.join(", ")
            )
        })
    }

    /// What a window lacks, in words. `asked` is the part of it that was asked for.
    fn what_is_gone(&self, of: &RecordingSpan, asked: Window) -> Vec<String> {
        let mut all = Vec::new();
        let asked = asked.and(of.window);
        for ring in &self.rings {
            if ring.held_since_ns > asked.from_ns {
                let since = ring.held_since_ns.saturating_sub(of.window.from_ns);
                let why = match ring.evicted {
                    _ if ring.left_out > 0 => format!(
                        "{} older records were left out to save memory: report fewer files to see \
                         them",
                        ring.left_out
                    ),
                    0 => "earlier records were not requested (--max-age, --max-size, a window), \
                          or not dumped"
                        .to_owned(),
                    evicted => format!(
                        "{evicted} records were evicted since the agent started; a larger ring \
                         keeps more"
                    ),
                };
                all.push(format!(
                    "vCPU {}: the ring begins at {:.1} s of the recording; {why}",
                    ring.vcpu,
                    since as f64 / 1e9,
                ));
            }
            let held = asked.and(Window::new(ring.held_since_ns, u64::MAX));
            let missing_ns = |gaps: &[Window]| length_within_ns(&union(gaps.to_vec()), held);
            let (between, within) = (missing_ns(&ring.uncovered), missing_ns(&ring.gaps));
            if ring.overwritten > 0 && between > 0 {
                all.push(format!(
                    "vCPU {}: {} records are in none of the files ({} not covered): they were \
                     evicted before a fetch, or are in another file",
                    ring.vcpu,
                    ring.overwritten,
                    duration(between.saturating_add(within))
                ));
            } else if ring.overwritten > 0 && within > 0 {
                all.push(format!(
                    "vCPU {}: {} records were evicted before they could be fetched ({} not \
                     covered)",
                    ring.vcpu,
                    ring.overwritten,
                    duration(within)
                ));
            }
        }
        if let Some(last) = self.rings.iter().max_by_key(|ring| ring.held_since_ns)
            && self.rings.iter().any(|ring| ring.held_since_ns < last.held_since_ns)
            && last.held_since_ns > asked.from_ns
        {
            all.push(format!(
                "shown is the time that the rings of all vCPUs cover; that of vCPU {} begins last",
                last.vcpu
            ));
        }
        all
    }
}

/// Counts the stacks that are cut or end badly.
fn count_ends(whole: &Profile, stacks: &Stacks, counters: &mut Counters) {
    for ((node, _), count) in stacks {
        let root = whole.stack(*node).last().map(|frame| whole.frame(frame));
        match root {
            Some(Frame::Special(SpecialFrame::Truncated)) => counters.truncated += count,
            Some(Frame::Special(SpecialFrame::Broken)) => counters.broken += count,
            _ => {}
        }
    }
}
