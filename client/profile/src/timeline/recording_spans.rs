//! Which recording a sample belongs to: a sample names ring bits, and a bit belongs to one
//! recording after another.

use std::collections::BTreeMap;

use unikprof_proto::ring::{Record, Wait, kind};

use super::{Timeline, Window};
use crate::profile::RecordingInfo;

/// A recording in time: its ring bit, and from when to when it had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordingSpan {
    /// Its id; `None` if the recording began before the oldest record in the rings and nothing else
    /// gives it.
    pub recording: Option<u64>,
    /// Which bit it has in the samples.
    pub ring_bit: u32,
    /// From its beginning to its end, as far as these are known.
    pub window: Window,
}

impl RecordingSpan {
    /// Whether a sample of these ring bits at this moment is the recording's.
    pub(super) fn has(&self, ring_bits: u64, at_ns: u64) -> bool {
        let bit = 1_u64.checked_shl(self.ring_bit).unwrap_or(0);
        ring_bits & bit != 0 && self.window.contains(at_ns)
    }
}

/// Ring bits that a sample can name: its lowest eight bits.
const RING_BITS: u32 = 8;

impl Timeline {
    /// The recordings whose samples, beginning or end are in the rings, in the order of their ring
    /// bits and beginnings.
    pub fn recordings(&self) -> Vec<RecordingSpan> {
        if self.is_joined {
            return self.known.iter().map(|(span, _)| *span).collect();
        }
        let mut known: BTreeMap<(u64, u32), Window> = BTreeMap::new();
        let mut bits_used = 0;
        for (_, record) in self.all_records(Window::ALL) {
            match (record.kind, u32::try_from(record.second)) {
                (kind::BEGAN, Ok(ring_bit)) => {
                    let window = known.entry((record.first, ring_bit)).or_insert(Window::ALL);
                    // Told in every vCPU's ring: the first of them.
                    window.from_ns = match window.from_ns {
                        0 => record.at_ns,
                        from_ns => from_ns.min(record.at_ns),
                    };
                }
                (kind::ENDED, Ok(ring_bit)) => {
                    let window = known.entry((record.first, ring_bit)).or_insert(Window::ALL);
                    window.to_ns = window.to_ns.min(record.at_ns);
                }
                (kind::SAMPLE | kind::NO_SAMPLE, _) => bits_used |= record.second as u8,
                (kind::WAIT, _) => bits_used |= Wait::from_number(record.third).ring_bits,
                _ => {}
            }
        }
        for (told, _) in &self.known {
            if let Some(id) = told.recording {
                let window = known.entry((id, told.ring_bit)).or_insert(Window::ALL);
                // Its beginning is noted a little after its first samples.
                window.from_ns = told.window.from_ns;
                window.to_ns = window.to_ns.min(told.window.to_ns);
            }
        }
        let mut found: Vec<RecordingSpan> = known
            .into_iter()
            .map(|((id, ring_bit), window)| RecordingSpan {
                recording: Some(id),
                ring_bit,
                window: window.and(window),
            })
            .collect();
        for ring_bit in (0..RING_BITS).filter(|ring_bit| bits_used & (1 << ring_bit) != 0) {
            let first = found.iter().filter(|span| span.ring_bit == ring_bit);
            let before_ns = first.map(|span| span.window.from_ns).min();
            let before = RecordingSpan {
                recording: None,
                ring_bit,
                window: Window::new(0, before_ns.unwrap_or(u64::MAX)),
            };
            if before.window.to_ns > 0 && self.has_samples(&before) {
                found.push(before);
            }
        }
        found.sort_by_key(|span| (span.ring_bit, span.window.from_ns, span.recording));
        found
    }

    pub(crate) fn recording(&self, id: u64) -> Option<RecordingSpan> {
        let mut all = self.recordings().into_iter();
        all.find(|span| span.recording == Some(id))
    }

    /// The settings of a recording; `None` if only the rings tell of it.
    pub fn info(&self, span: &RecordingSpan) -> Option<&RecordingInfo> {
        // Of files that were joined, several may have a recording of this number: each start of a
        // guest counts anew.
        let is_it = |known: &RecordingSpan| match self.is_joined {
            true => known == span,
            false => known.recording == span.recording,
        };
        let mut known = self.known.iter();
        known.find(|(known, _)| is_it(known)).map(|(_, info)| info)
    }

    /// What a recording is called: its name, or its number if only the rings tell of it.
    pub fn recording_name(&self, span: &RecordingSpan) -> String {
        match (self.info(span), span.recording) {
            (Some(info), _) if !info.name.is_empty() => info.name.clone(),
            (_, Some(id)) => format!("recording {id}"),
            (_, None) => format!("bit {}", span.ring_bit),
        }
    }

    /// The recording that has the most samples; of equals one whose id is known.
    pub(crate) fn busiest(&self) -> Option<RecordingSpan> {
        let all = self.recordings().into_iter();
        all.max_by_key(|span| (self.samples_of(span).count(), span.recording.is_some()))
    }

    fn has_samples(&self, span: &RecordingSpan) -> bool {
        self.samples_of(span).next().is_some()
    }

    /// When the last of its samples or waits was.
    pub fn last_sample_ns(&self, span: &RecordingSpan) -> Option<u64> {
        self.samples_of(span).max()
    }

    /// The times of its samples and waits.
    fn samples_of<'t>(&'t self, span: &'t RecordingSpan) -> impl Iterator<Item = u64> + 't {
        let is_its = |record: &Record| match record.kind {
            kind::SAMPLE => span.has(record.second, record.at_ns),
            _ => span.wait(record).is_some(),
        };
        let records = self.all_records(span.window);
        records.filter(move |(_, record)| is_its(record)).map(|(_, record)| record.at_ns)
    }
}
