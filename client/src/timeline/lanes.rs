//! Which recording a sample belongs to: a sample names lanes, and lanes are lent to recordings.

use std::collections::BTreeMap;

use unikprof_proto::ring::kind;

use super::{Timeline, Window};

/// A recording in time: its lane, and from when to when it had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordingSpan {
    /// Its id; `None` where it began before all that the rings hold, and nothing else tells.
    pub recording: Option<u64>,
    /// Its lane: which bit it has in the samples.
    pub lane: u32,
    /// From its beginning to its end, as far as these are known.
    pub window: Window,
}

impl RecordingSpan {
    /// Whether a sample of these lanes at this moment is the recording's.
    pub(super) fn has(&self, lanes: u64, at_ns: u64) -> bool {
        let bit = 1_u64.checked_shl(self.lane).unwrap_or(0);
        lanes & bit != 0 && self.window.contains(at_ns)
    }
}

/// Lanes that a sample can name: its lowest eight bits.
const LANES: u32 = 8;

impl Timeline {
    /// The recordings that the rings hold samples of, or whose beginning or end they tell, in the order of
    /// their lanes and beginnings.
    pub fn recordings(&self) -> Vec<RecordingSpan> {
        let mut known: BTreeMap<(u64, u32), Window> = BTreeMap::new();
        let mut lanes_used = 0;
        for (_, record) in self.all_records(Window::ALL) {
            match (record.kind, u32::try_from(record.second)) {
                (kind::BEGAN, Ok(lane)) => {
                    let window = known.entry((record.first, lane)).or_insert(Window::ALL);
                    // Told in every vCPU's ring: the first of them.
                    window.from_ns = match window.from_ns {
                        0 => record.at_ns,
                        from_ns => from_ns.min(record.at_ns),
                    };
                }
                (kind::ENDED, Ok(lane)) => {
                    let window = known.entry((record.first, lane)).or_insert(Window::ALL);
                    window.to_ns = window.to_ns.min(record.at_ns);
                }
                (kind::SAMPLE | kind::NO_SAMPLE, _) => lanes_used |= record.second as u8,
                _ => {}
            }
        }
        for told in &self.known {
            if let Some(id) = told.recording {
                let window = known.entry((id, told.lane)).or_insert(Window::ALL);
                // Its beginning is noted a little after its first samples.
                window.from_ns = told.window.from_ns;
                window.to_ns = window.to_ns.min(told.window.to_ns);
            }
        }
        let mut found: Vec<RecordingSpan> = known
            .into_iter()
            .map(|((id, lane), window)| RecordingSpan {
                recording: Some(id),
                lane,
                window: window.and(window),
            })
            .collect();
        for lane in (0..LANES).filter(|lane| lanes_used & (1 << lane) != 0) {
            let first = found.iter().filter(|span| span.lane == lane);
            let before_ns = first.map(|span| span.window.from_ns).min();
            let before = RecordingSpan {
                recording: None,
                lane,
                window: Window {
                    from_ns: 0,
                    to_ns: before_ns.unwrap_or(u64::MAX),
                },
            };
            if before.window.to_ns > 0 && self.has_samples(&before) {
                found.push(before);
            }
        }
        found.sort_by_key(|span| (span.lane, span.window.from_ns, span.recording));
        found
    }

    /// The recording with this id.
    pub fn recording(&self, id: u64) -> Option<RecordingSpan> {
        let mut all = self.recordings().into_iter();
        all.find(|span| span.recording == Some(id))
    }

    /// The recording that has the most samples; of equals one whose id is known.
    pub fn busiest(&self) -> Option<RecordingSpan> {
        let all = self.recordings().into_iter();
        all.max_by_key(|span| (self.samples_of(span).count(), span.recording.is_some()))
    }

    fn has_samples(&self, span: &RecordingSpan) -> bool {
        self.samples_of(span).next().is_some()
    }

    fn samples_of<'t>(&'t self, span: &'t RecordingSpan) -> impl Iterator<Item = u64> + 't {
        let records = self.all_records(span.window);
        records
            .filter(|(_, r)| r.kind == kind::SAMPLE && span.has(r.second, r.at_ns))
            .map(|(_, record)| record.at_ns)
    }
}
