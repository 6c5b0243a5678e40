//! Builds a recording, with its warnings, from a file's contents.

use super::completeness::Completeness;
use super::contents::{Contents, EpochCounts};
use super::error::Damage;
use super::reader::{Reading, Recording};
use super::stacks::{Meaning, Missing};
use crate::profile::{Frame, Held, LiveSample, Mode, NodeId, RecordingInfo, SpecialFrame};
use crate::timeline::{RecordingSpan, Timeline, Window};
use crate::units::duration;

/// A guest's clock that is this far from the client's gets a warning, in ns.
const CLOCK_OFF_NS: u64 = 3_600_000_000_000;

const DAY_NS: u64 = 24 * 3_600_000_000_000;

/// What the end of a file brings.
pub(super) struct EndOfFile {
    pub(super) timeline: Option<Timeline>,
    pub(super) completeness: Completeness,
    /// Whether the last epoch is cut.
    pub(super) cut_epoch: bool,
    /// Warnings about the file.
    pub(super) warnings: Vec<String>,
}

impl Contents {
    /// The recording; `damage` is what ended the reading before the file's end.
    pub(super) fn finish(
        mut self,
        reading: Reading,
        damage: Option<String>,
    ) -> Result<Recording, Damage> {
        let end = self.end_reading(reading, damage)?;
        let timeline = end.timeline;
        // Its end, where the rings tell it.
        let described = timeline.as_ref().and_then(|timeline| {
            match self.span.and_then(|span| span.recording) {
                Some(id) => timeline.recording(id),
                None => self.described(timeline),
            }
        });
        let span =
            match &timeline {
                // Without a recording the rings still have the guest's own events.
                Some(timeline) => described
                    .or_else(|| timeline.busiest())
                    .or(Some(RecordingSpan { recording: None, ring_bit: 0, window: Window::ALL })),
                None => self.span,
            };
        let mut warnings = end.warnings;
        if self.epochs == 0 {
            match (&timeline, span) {
                (Some(timeline), Some(span)) => {
                    self.info = info_of(timeline, &span, self.info_of_agent());
                    warnings.push(
                        "the file contains no counts, only the contents of the guest's rings"
                            .into(),
                    );
                    if timeline.recordings().is_empty() {
                        self.info.name.clear();
                        warnings.push(
                            "no recording ran: there are the guest's own events alone".into(),
                        );
                    } else if described.is_none() {
                        warnings.extend(about_others(timeline, &span));
                    }
                }
                _ if self.trace.is_some() => {}
                _ => warnings.push("the file contains no samples".into()),
            }
        }
        self.assemble(timeline, span, warnings, end.completeness)
    }

    /// Ends the reading of a file: puts its stacks into the profile, and makes a timeline of its
    /// rings.
    pub(super) fn end_reading(
        &mut self,
        reading: Reading,
        damage: Option<String>,
    ) -> Result<EndOfFile, Damage> {
        let cut_epoch = self.progress.is_open();
        let completeness = match (damage, self.end.take()) {
            (Some(damage), _) => Completeness::Salvaged(damage),
            (None, Some(end)) => end,
            // `read_on` calls a missing end damage.
            (None, None) => Completeness::Salvaged(Damage::NoEnd.to_string()),
        };
        let mut warnings = Vec::from_iter(completeness.warning());
        if cut_epoch && self.counted > 0 {
            warnings.push(format!(
                "the last epoch is truncated: its stacks hold {} of at least {} {}",
                self.progress.samples(),
                self.counted,
                self.info.unit()
            ));
        }
        let is_ring_cut = self.rings.is_open();
        if is_ring_cut {
            warnings.push(
                "the ring of a vCPU is truncated: some of its records or stacks are missing".into(),
            );
        }
        let missing = match (&completeness, reading) {
            (Completeness::Complete, Reading::Strict) => Missing::Refused,
            _ => Missing::Unknown,
        };
        let rings = std::mem::take(&mut self.rings);
        let stacks = std::mem::take(&mut self.stacks);
        let meaning = if self.info.mode.is_heap() {
            Meaning::Allocations { interval_bytes: self.info.interval_bytes }
        } else {
            Meaning::Time
        };
        let found =
            stacks.finish(rings.named(), missing, meaning, &self.agent, &mut self.builder)?;
        if found.without_size > 0 {
            self.contradictions.push(format!(
                "{} samples of allocations have no size and are left out",
                found.without_size
            ));
        }
        self.hold(found.held);
        let spans = self.counted_epochs.iter();
        self.epoch_counts = spans
            .zip(found.epochs)
            .map(|(span, stacks)| EpochCounts { window: span.window, stacks })
            .collect();
        let clock = self.agent.client_clock(self.created_unix_ns);
        let mut timeline = rings.finish(&clock, found.named, &mut self.builder)?;
        if let Some(timeline) = &mut timeline {
            let own = self.span.map(|span| (span, self.info.clone()));
            for (span, info) in self.heads.iter().cloned().chain(own) {
                timeline.know(span, info);
            }
            let told = self.told.iter().flat_map(|(vcpu, ends)| ends.map(|end| (*vcpu, end)));
            for (vcpu, told) in told {
                if let Some(times) = &told.runstate {
                    let sums =
                        [times.running_ns, times.runnable_ns, times.blocked_ns, times.offline_ns];
                    timeline.know_times(vcpu, told.at_ns, sums);
                }
            }
        }
        Ok(EndOfFile { timeline, completeness, cut_epoch, warnings })
    }

    /// Adds what was held at the end of each epoch.
    fn hold(&mut self, held: Vec<(usize, LiveSample)>) {
        if self.info.mode != Mode::Live {
            return;
        }
        let ends = self.counted_epochs.iter().map(|epoch| epoch.window.to_ns);
        let mut by_epoch: Vec<Held> =
            ends.map(|at_ns| Held { at_ns, samples: Vec::new() }).collect();
        for (epoch, sample) in held {
            if let Some(held) = by_epoch.get_mut(epoch) {
                held.samples.push(sample);
            }
        }
        by_epoch.into_iter().for_each(|held| self.builder.add_held(held));
    }

    /// The recording, from all that was read and added up.
    pub(super) fn assemble(
        mut self,
        timeline: Option<Timeline>,
        span: Option<RecordingSpan>,
        mut warnings: Vec<String>,
        completeness: Completeness,
    ) -> Result<Recording, Damage> {
        if self.gaps > 0 {
            warnings.push(format!(
                "the guest was suspended and resumed {} times; the time in between was not sampled",
                self.gaps
            ));
        }
        warnings.extend(self.clock_warning());
        let (vcpus, of_totals) = self.totals.finish(self.info.mode, self.info.period_ns);
        self.contradictions.extend(of_totals);
        warnings.extend(self.contradictions.iter().cloned());
        self.info.warnings = warnings;
        self.info.is_incomplete = completeness != Completeness::Complete;
        for mapping in self.agent.mappings.iter() {
            self.builder.add_mapping(mapping.clone());
        }
        for stats in vcpus {
            let aged = stats.counters.aged_in_all();
            // Of allocations that were given up nobody knows the sizes.
            if aged > 0 && !self.info.mode.is_heap() {
                let frame = Frame::Special(SpecialFrame::Aged);
                let stack = self.builder.step(NodeId::ROOT, frame)?;
                self.builder.count(stats.vcpu, stack, aged);
            }
            self.builder.add_vcpu(stats);
        }
        let own_warnings = self.info.warnings.clone();
        let is_merged = self.info.merged.is_some();
        let ends = self.counted_epochs.first().zip(self.counted_epochs.last());
        let counted = ends.map(|(first, last)| {
            let to_ns = last.window.to_ns.max(self.last_told_ns);
            Window::new(first.window.from_ns, to_ns.saturating_add(1))
        });
        self.builder.set_recording(self.info);
        let mut profile = self.builder.finish();
        if self.epochs == 0
            && let Some((timeline, span)) = timeline.as_ref().zip(span)
        {
            profile = timeline.profile(&profile, &span, Window::ALL, None);
        }
        Ok(Recording {
            profile,
            agent: self.agent,
            created_unix_ns: self.created_unix_ns,
            epochs: self.epochs,
            ended_ns: ends.map_or(0, |(_, last)| last.window.to_ns),
            counted: counted.filter(|_| !is_merged),
            completeness,
            gaps: self.gaps,
            contradictions: self.contradictions,
            own_warnings,
            timeline,
            trace: self.trace,
            span,
            asked: self.asked,
            epoch_counts: self.epoch_counts,
        })
    }

    /// The warning that the dates, which are the guest's, are not the client's.
    fn clock_warning(&self) -> Option<String> {
        let off_ns = self.agent.clock_off_ns(self.created_unix_ns.into())?;
        let apart_ns = u64::try_from(off_ns.unsigned_abs()).unwrap_or(u64::MAX);
        (self.created_unix_ns != 0 && apart_ns >= CLOCK_OFF_NS).then(|| {
            format!(
                "the guest's clock was {} {} the client's when this was fetched; dates are by the \
                 guest's",
                if apart_ns < DAY_NS { duration(apart_ns) } else { "more than a day".into() },
                if off_ns < 0 { "behind" } else { "ahead of" }
            )
        })
    }

    /// The recording of a file that describes one alone: that is what it was made for, though
    /// others may have more samples.
    fn described(&self, timeline: &Timeline) -> Option<RecordingSpan> {
        match self.heads.as_slice() {
            [(only, _)] => timeline.recording(only.recording?),
            _ => None,
        }
    }
}

impl Recording {
    /// Shows another recording of the file by its name or number: what the rings hold of it.
    ///
    /// # Errors
    ///
    /// The names of those that there are.
    pub fn choose(&mut self, wanted: &str) -> Result<(), Vec<String>> {
        let info = self.profile.recording();
        let Some(timeline) = &self.timeline else {
            return if info.name == wanted { Ok(()) } else { Err(vec![info.name.clone()]) };
        };
        let all = timeline.recordings();
        let has_name = |span: &&RecordingSpan| {
            let id = span.recording.map(|id| id.to_string());
            timeline.recording_name(span) == wanted || id.as_deref() == Some(wanted)
        };
        let Some(span) = all.iter().copied().find(|span| has_name(&span)) else {
            return Err(all.iter().map(|span| timeline.recording_name(span)).collect());
        };
        if self.span == Some(span) {
            return Ok(());
        }
        let of_guest = RecordingInfo {
            guest_name: info.guest_name.clone(),
            guest_id: info.guest_id.clone(),
            agent_version: info.agent_version.clone(),
            architecture: info.architecture.clone(),
            ..RecordingInfo::default()
        };
        let is_incomplete = info.is_incomplete;
        let (mut warnings, only_vcpus) = (info.warnings.clone(), info.only_vcpus.clone());
        // Which one is shown is known now.
        let told = self.span.and_then(|span| about_others(timeline, &span));
        warnings.retain(|warning| told.as_ref() != Some(warning));
        self.profile.recording = RecordingInfo {
            warnings,
            only_vcpus,
            is_incomplete,
            ..info_of(timeline, &span, of_guest)
        };
        self.profile = timeline.profile(&self.profile, &span, Window::ALL, None);
        self.span = Some(span);
        self.asked = None;
        self.counted = None;
        self.epoch_counts.clear();
        Ok(())
    }
}

/// What is known of a recording in the rings; `of_guest` holds for all of them.
fn info_of(timeline: &Timeline, span: &RecordingSpan, of_guest: RecordingInfo) -> RecordingInfo {
    match timeline.info(span) {
        Some(info) => info.clone(),
        None => RecordingInfo { name: timeline.recording_name(span), ..of_guest },
    }
}

/// Which recordings are not shown, where the file does not tell which one it was made for.
fn about_others(timeline: &Timeline, span: &RecordingSpan) -> Option<String> {
    let all = timeline.recordings();
    let others: Vec<String> = all
        .iter()
        .filter(|other| *other != span)
        .map(|span| timeline.recording_name(span))
        .collect();
    (!others.is_empty()).then(|| {
        format!(
            "the rings also contain other recordings ({}); showing {}, which has the most samples; \
             --recording NAME \
             shows another",
            others.join(", "),
            timeline.recording_name(span)
        )
    })
}
