//! A live view of a recording: the last seconds of the rings.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use unikprof_proto::frame::{self, Message as _};
use unikprof_proto::message::{EventName, Nodes};

use super::rings::{BEFORE_NS, RingsReceived, Wanted};
use super::session::Session;
use super::{Observer, RecordError, RecordingStatus};
use unikprof_profile::frame_reader::encoded;
use unikprof_profile::messages::CLIENT;
use unikprof_profile::recording::{FileEnd, FileHeader, KnownNodes, Reading, Recording, preamble};
use unikprof_profile::timeline::RingOrderError;

/// Stacks are kept for this multiple of the agent's number of segments: records may refer to stacks
/// that the agent has discarded.
const SEGMENTS_KEPT: u64 = 2;

/// Follows a recording through its agent's rings without changing anything in the guest: it
/// creates, fetches and acknowledges no epoch, and takes no lease.
///
/// It keeps the last seconds as a recording file in memory.
#[derive(Debug)]
pub struct LiveReader {
    /// How far back records are kept, in ns.
    keep_ns: u64,
    received: RingsReceived,
    known: KnownNodes,
    /// The frames of the names of events.
    names: Vec<u8>,
    /// The runs of stack nodes, by vCPU: the segment of each, and its frame.
    nodes: BTreeMap<u32, VecDeque<(u64, Vec<u8>)>>,
    /// What each look brought of records, and when it was.
    looks: VecDeque<(u64, Vec<u8>)>,
}

impl LiveReader {
    /// A reader that keeps records for so long at least, in ns.
    pub fn new(session: &Session, keep_ns: u64) -> LiveReader {
        LiveReader {
            keep_ns: keep_ns.saturating_add(BEFORE_NS),
            received: RingsReceived::default(),
            known: KnownNodes::new(session.agent().segment_nodes),
            names: Vec::new(),
            nodes: BTreeMap::new(),
            looks: VecDeque::new(),
        }
    }

    /// Fetches the records that are new, and answers the last seconds of the recording; its
    /// timeline is there.
    pub fn look(
        &mut self,
        session: &mut Session,
        status: &RecordingStatus,
        observer: &mut dyn Observer,
    ) -> Result<Recording, RecordError> {
        if !session.agent().keeps_time() {
            return Err(RecordError::NoRing);
        }
        let now_ns = status.now_ns;
        let wanted = Wanted { since_ns: now_ns.saturating_sub(self.keep_ns), most_bytes: 0 };
        let mut frames = Vec::new();
        let LiveReader { received, known, .. } = self;
        session.fetch_rings(wanted, received, known, observer, &mut |bytes| {
            frames.extend_from_slice(bytes);
            Ok(())
        })?;
        self.sort(&frames, session.agent().segment_nodes)?;
        self.forget(now_ns, session.agent().segments);
        let file = self.file(session, status)?;
        Recording::read(&file[..], Path::new("the recording in memory"), Reading::Strict)
            .map_err(|error| RecordError::Unreadable(Box::new(error)))
    }

    /// Puts each frame where it is kept.
    fn sort(&mut self, mut frames: &[u8], segment_nodes: u32) -> Result<(), RingOrderError> {
        let mut records = Vec::new();
        while let Some(frame) = frame::split(frames)? {
            let (encoded, rest) = frames.split_at(frame.length());
            frames = rest;
            match frame.kind {
                Nodes::TYPE => {
                    let run: Nodes<'_> = frame::decode(&frame)?;
                    let segment = run.first.checked_div(segment_nodes.into()).unwrap_or(0);
                    let of_vcpu = self.nodes.entry(run.vcpu).or_default();
                    of_vcpu.push_back((segment, encoded.to_owned()));
                }
                EventName::TYPE => self.names.extend_from_slice(encoded),
                _ => records.extend_from_slice(encoded),
            }
        }
        self.looks.push_back((0, records));
        Ok(())
    }

    /// Drops what is older than what is kept.
    fn forget(&mut self, now_ns: u64, segments: u32) {
        if let Some((at_ns, _)) = self.looks.back_mut() {
            *at_ns = now_ns;
        }
        let since_ns = now_ns.saturating_sub(self.keep_ns);
        while self.looks.front().is_some_and(|(at, _)| *at < since_ns) {
            self.looks.pop_front();
        }
        let kept = SEGMENTS_KEPT * u64::from(segments);
        for of_vcpu in self.nodes.values_mut() {
            let newest = of_vcpu.back().map_or(0, |(segment, _)| *segment);
            while of_vcpu.front().is_some_and(|(segment, _)| segment.saturating_add(kept) < newest)
            {
                of_vcpu.pop_front();
            }
        }
    }

    /// What is kept, as a recording file.
    fn file(&self, session: &Session, status: &RecordingStatus) -> Result<Vec<u8>, RingOrderError> {
        let mut file = preamble(session.protocol()).to_vec();
        file.extend(encoded(&FileHeader {
            client: CLIENT,
            created_unix_ns: session.connected_unix_ns(),
        })?);
        file.extend_from_slice(session.greeting_frames());
        file.extend(encoded(&status.as_epoch(&session.wall_clock()))?);
        file.extend_from_slice(&self.names);
        let nodes = self.nodes.values().flatten();
        let records = self.looks.iter();
        for (_, frames) in nodes.chain(records) {
            file.extend_from_slice(frames);
        }
        file.extend(encoded(&FileEnd { complete: true, reason: "" })?);
        Ok(file)
    }
}
