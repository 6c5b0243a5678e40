//! A window of time as a profile: counts made from the ring's samples.

use std::collections::{BTreeMap, HashMap};

use unikprof_proto::ring::{SAMPLE_LATE, kind, outcome};

use super::recording_spans::RecordingSpan;
use super::spans::{Inside, Pairs};
use super::times::Times;
use super::{Ring, Timeline, Window};
use crate::profile::{
    Counters, Frame, FromRing, Mode, NodeId, Profile, Runstate, Sample, SpecialFrame, VcpuStats,
};

impl Timeline {
    /// What a recording sampled within a window, with the accounting of every tick in it. `whole` is the
    /// profile that the timeline was read with: stacks, mappings and settings are its. With `inside`, only
    /// ticks that came while a span of this name was open on the same vCPU.
    pub fn profile(
        &self,
        whole: &Profile,
        of: &RecordingSpan,
        window: Window,
        inside: Option<&str>,
    ) -> Profile {
        let window = self.bounded(of, window);
        let pairs = Pairs::of(self);
        let names = inside.map(|name| self.name_ids(name));
        let info = whole.recording();
        let mut span_names: BTreeMap<u64, u32> = BTreeMap::new();
        let (mut samples, mut vcpus) = (Vec::new(), Vec::new());
        for ring in &self.rings {
            let stretches = pairs.on(ring.vcpu);
            let allowed = names.as_ref().map(|names| {
                let named = stretches.iter().filter(|s| names.contains(&s.name));
                union(named.map(|s| s.window.and(window)).collect())
            });
            let mut count = Count {
                of,
                mode: info.mode,
                period_ns: info.period_ns,
                spans: Inside::new(stretches),
                allowed: allowed.as_deref(),
                counters: Counters::default(),
                stacks: HashMap::new(),
            };
            count.ticks(ring, window);
            count.blocks(ring, window);
            let Count {
                mut counters,
                stacks,
                ..
            } = count;
            count_ends(whole, &stacks, &mut counters);
            let times = match &allowed {
                None => Times::of(ring).of_window(window),
                Some(_) => None,
            };
            counters.missing = missing(&counters, times.as_ref(), info.mode, info.period_ns);
            let elapsed_ns = match &allowed {
                None => window.length_ns(),
                Some(allowed) => allowed
                    .iter()
                    .fold(0, |sum: u64, w| sum.saturating_add(w.length_ns())),
            };
            vcpus.push(VcpuStats {
                vcpu: ring.vcpu,
                counters,
                runstate: times.unwrap_or_default(),
                elapsed_ns,
                cost: None,
                lateness_ns: None,
            });
            for ((node, span), count) in stacks {
                let next = span_names.len() as u32;
                samples.push(Sample {
                    node,
                    vcpu: ring.vcpu,
                    span: span.map(|name| *span_names.entry(name).or_insert(next)),
                    count,
                });
            }
        }
        samples.sort_unstable_by_key(|s| (s.node, s.vcpu, s.span));
        let mut spans = vec![String::new(); span_names.len()];
        for (name, at) in span_names {
            spans[at as usize] = self.name_or_id(name);
        }
        let mut recording = info.clone();
        recording.elapsed_ns = window.length_ns();
        recording.started_unix_ns = self.wall_clock().unix_ns(window.from_ns);
        recording.server_ns = 0;
        recording.warnings.extend(self.what_is_gone(of, window));
        recording.ring = Some(FromRing {
            from_ns: window.from_ns.saturating_sub(of.window.from_ns),
            to_ns: window.to_ns.saturating_sub(of.window.from_ns),
            inside: inside.map(ToOwned::to_owned),
        });
        Profile {
            mappings: whole.mappings.clone(),
            frames: whole.frames.clone(),
            tree: whole.tree.clone(),
            samples,
            span_names: spans,
            vcpus,
            recording,
        }
    }

    /// The part of a window in which a recording ran and the rings may tell of it.
    pub fn bounded(&self, of: &RecordingSpan, window: Window) -> Window {
        let extent = self.extent().unwrap_or(Window {
            from_ns: 0,
            to_ns: 0,
        });
        // From where one ring is whole on, also before its first record: then nothing happened.
        let since = self.rings.iter().map(|ring| ring.held_since_ns);
        let extent = Window {
            from_ns: since.min().unwrap_or(extent.from_ns).min(extent.to_ns),
            ..extent
        };
        window.and(of.window).and(extent)
    }

    /// What a window lacks, in words.
    fn what_is_gone(&self, of: &RecordingSpan, window: Window) -> Vec<String> {
        let mut all = Vec::new();
        for ring in &self.rings {
            if ring.held_since_ns > window.from_ns {
                let since = ring.held_since_ns.saturating_sub(of.window.from_ns);
                let why = match ring.evicted {
                    0 => "no more was asked for".to_owned(),
                    evicted => format!(
                        "{evicted} records were evicted for newer ones since the agent started. Give the agent a \
                         larger ring to keep more"
                    ),
                };
                all.push(format!(
                    "vCPU {}: the ring holds nothing before {:.1} s of the recording; {why}",
                    ring.vcpu,
                    since as f64 / 1e9,
                ));
            }
            let misses = |gap: &Window| gap.and(window).length_ns() > 0;
            if ring.gaps.iter().any(misses) {
                all.push(format!(
                    "vCPU {}: {} records were evicted before they could be fetched",
                    ring.vcpu, ring.overwritten
                ));
            }
        }
        all
    }
}

/// What one vCPU's records come to.
struct Count<'c> {
    of: &'c RecordingSpan,
    mode: Mode,
    period_ns: u64,
    spans: Inside,
    /// Where ticks count; everywhere if `None`.
    allowed: Option<&'c [Window]>,
    counters: Counters,
    /// By stack and span.
    stacks: HashMap<(NodeId, Option<u64>), u64>,
}

impl Count<'_> {
    fn ticks(&mut self, ring: &Ring, window: Window) {
        for record in ring.within(window) {
            let is_tick = matches!(record.kind, kind::SAMPLE | kind::NO_SAMPLE);
            if !is_tick || !self.of.has(record.second, record.at_ns) {
                continue;
            }
            if self
                .allowed
                .is_some_and(|allowed| !holds(allowed, record.at_ns))
            {
                continue;
            }
            let c = &mut self.counters;
            let outcome = match (record.kind, record.first) {
                (kind::SAMPLE, stack) => {
                    let is_late = record.second & SAMPLE_LATE != 0;
                    c.late += u64::from(is_late && stack != 0);
                    let span = self.spans.innermost(record.at_ns);
                    let count = self.stacks.entry((ring.stack(stack), span)).or_default();
                    *count += 1;
                    match stack {
                        0 => &mut c.aged,
                        _ => &mut c.recorded,
                    }
                }
                (_, outcome::OVERFLOW) => &mut c.overflow,
                (_, outcome::MASKED) => &mut c.masked,
                (_, outcome::IDLE) => &mut c.idle,
                // Whatever else may become of ticks: they have no stack.
                _ => &mut c.lost,
            };
            *outcome += 1;
            c.ticks += 1;
        }
    }

    /// Blocked time, where the mode counts it: between a block and what comes next of block, wake and end.
    fn blocks(&mut self, ring: &Ring, window: Window) {
        if !matches!(self.mode, Mode::Wall | Mode::OffCpu) {
            return;
        }
        let mut blocked_ns = 0_u64;
        let mut open: Option<(u64, u64)> = None;
        let ends = [(ring.read_at_ns, None)];
        let changes = ring.records.iter().filter_map(|record| match record.kind {
            kind::BLOCK => Some((record.at_ns, Some(record.first))),
            kind::WAKE => Some((record.at_ns, None)),
            _ => None,
        });
        for (at_ns, stack) in changes.chain(ends) {
            if let Some((since_ns, stack)) = open.take() {
                let stretch = Window {
                    from_ns: since_ns,
                    to_ns: at_ns.max(since_ns),
                };
                self.block(ring, stretch.and(window), stack, &mut blocked_ns);
            }
            open = stack.map(|stack| (at_ns, stack));
        }
    }

    fn block(&mut self, ring: &Ring, stretch: Window, stack: u64, blocked_ns: &mut u64) {
        let length_ns = match self.allowed {
            None => stretch.length_ns(),
            Some(allowed) => allowed
                .iter()
                .map(|window| window.and(stretch).length_ns())
                .fold(0, u64::saturating_add),
        };
        if length_ns == 0 {
            return;
        }
        let before = *blocked_ns;
        *blocked_ns = before.saturating_add(length_ns);
        let amount = match self.mode {
            // One for each period, whichever blocks it is made of.
            Mode::Wall => {
                let of = |ns: u64| ns.checked_div(self.period_ns).unwrap_or(0);
                of(*blocked_ns) - of(before)
            }
            _ => length_ns,
        };
        let c = &mut self.counters;
        c.blocks += 1;
        if stack == 0 {
            c.blocked_overflow = c.blocked_overflow.saturating_add(amount);
            return;
        }
        c.blocked = c.blocked.saturating_add(amount);
        let count = self.stacks.entry((ring.stack(stack), None)).or_default();
        *count = count.saturating_add(amount);
    }
}

/// Counts the stacks that are cut or end badly.
fn count_ends(
    whole: &Profile,
    stacks: &HashMap<(NodeId, Option<u64>), u64>,
    counters: &mut Counters,
) {
    for ((node, _), count) in stacks {
        let root = whole.stack(*node).last().map(|frame| whole.frame(frame));
        match root {
            Some(Frame::Special(SpecialFrame::Truncated)) => counters.truncated += count,
            Some(Frame::Special(SpecialFrame::Broken)) => counters.broken += count,
            _ => {}
        }
    }
}

/// How many samples the time stands for beyond those that came.
fn missing(
    counters: &Counters,
    times: Option<&Runstate>,
    mode: Mode,
    period_ns: u64,
) -> Option<i64> {
    let times = times?;
    let (time_ns, came) = match mode {
        Mode::OffCpu => return None,
        Mode::Wall => (
            times.running_ns?.saturating_add(times.blocked_ns?),
            counters.ticks.saturating_add(counters.blocked_in_all()),
        ),
        Mode::Cpu | Mode::Other(_) => (times.running_ns?, counters.ticks),
    };
    let due = time_ns.checked_div(period_ns)?;
    let missing = i128::from(due) - i128::from(came);
    Some(missing.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64)
}

/// Windows that overlap as one, in the order of time.
fn union(mut windows: Vec<Window>) -> Vec<Window> {
    windows.retain(|window| window.length_ns() > 0);
    windows.sort_unstable_by_key(|window| window.from_ns);
    windows.dedup_by(|next, kept| {
        let touches = next.from_ns <= kept.to_ns;
        if touches {
            kept.to_ns = kept.to_ns.max(next.to_ns);
        }
        touches
    });
    windows
}

/// Whether one of these windows, in order and apart, holds a moment.
fn holds(windows: &[Window], at_ns: u64) -> bool {
    let after = windows.partition_point(|window| window.from_ns <= at_ns);
    let last = after.checked_sub(1).and_then(|at| windows.get(at));
    last.is_some_and(|window| window.contains(at_ns))
}
