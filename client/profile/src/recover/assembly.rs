//! A recording file of the parts that there are of one.

use std::collections::BTreeMap;

use unikprof_proto::file::{FileEnd, FileHeader, preamble};
use unikprof_proto::frame::{self, Frame, HEADER, Message};
use unikprof_proto::message::{
    Epoch, EventName, EventNamesEnd, Mapping, Nodes, RingEnd, RingHead, RingRun, StacksEnd, Welcome,
};
use unikprof_proto::preamble::VERSIONS;

use crate::frame_reader::encoded;

/// The longest body that an agent writes in a crash dump.
const MAX_BODY: u32 = 1024;

/// What there is of a vCPU's ring.
#[derive(Default)]
struct Ring {
    head: Option<RingHead>,
    /// The position after the newest record.
    next: u64,
    /// How many records were given up while they were written.
    lost: u64,
    /// The position and the time of the oldest record.
    oldest: Option<(u64, u64)>,
    /// Its records and stacks.
    frames: Vec<u8>,
}

/// The intact frames in these parts of a file, each with its bytes.
fn frames(parts: &[Vec<u8>]) -> impl Iterator<Item = (Frame<'_>, &[u8])> {
    parts.iter().flat_map(|part| {
        let mut rest = &part[..];
        std::iter::from_fn(move || {
            loop {
                if let Some(frame) = first_frame(rest) {
                    let (bytes, after) = rest.split_at(frame.length());
                    rest = after;
                    return Some((frame, bytes));
                }
                // What was cut off before the part may be the beginning of a frame.
                rest = rest.get(1..)?;
            }
        })
    })
}

fn first_frame(bytes: &[u8]) -> Option<Frame<'_>> {
    let header = bytes.first_chunk::<HEADER>()?;
    let length = u32::from_le_bytes([header[2], header[3], header[4], header[5]]);
    let frame = (length <= MAX_BODY).then(|| frame::split(bytes));
    frame?.ok().flatten()
}

/// The guest's name, and the time of the crash in ns since 1970-01-01 UTC, 0 if it is not known.
pub(super) fn described(parts: &[Vec<u8>]) -> Option<(Option<String>, u64)> {
    let (frame, _) = frames(parts).find(|(frame, _)| frame.kind == Welcome::TYPE)?;
    let welcome: Welcome<'_> = frame::decode(&frame).ok()?;
    Some((welcome.guest_name.map(str::to_owned), welcome.wall_clock_ns.unwrap_or(0)))
}

/// A recording file of the records and stacks in these parts of a crash dump, incomplete for this
/// reason; `None` without the guest's description.
pub(super) fn assemble(parts: &[Vec<u8>], reason: &str) -> Option<Vec<u8>> {
    let (mut header, mut welcome, mut mappings) = (None, None, Vec::new());
    let mut others = Vec::new();
    let mut rings: BTreeMap<u32, Ring> = BTreeMap::new();
    for (frame, bytes) in frames(parts) {
        match frame.kind {
            FileHeader::TYPE => header = header.or(Some(bytes)),
            Welcome::TYPE => welcome = welcome.or(Some((frame, bytes))),
            Mapping::TYPE => mappings.push(bytes),
            Epoch::TYPE | EventName::TYPE | EventNamesEnd::TYPE => others.extend_from_slice(bytes),
            RingHead::TYPE => {
                let head: RingHead = frame::decode(&frame).ok()?;
                rings.entry(head.vcpu).or_default().head.get_or_insert(head);
            }
            RingRun::TYPE => {
                let run: RingRun<'_> = frame::decode(&frame).ok()?;
                let ring = rings.entry(run.vcpu).or_default();
                ring.next = ring.next.max(run.first.saturating_add(run.count.into()));
                let this = (run.first, run.base_ns);
                ring.oldest = Some(ring.oldest.map_or(this, |oldest| oldest.min(this)));
                ring.frames.extend_from_slice(bytes);
            }
            Nodes::TYPE => {
                let nodes: Nodes<'_> = frame::decode(&frame).ok()?;
                rings.entry(nodes.vcpu).or_default().frames.extend_from_slice(bytes);
            }
            RingEnd::TYPE => {
                let end: RingEnd = frame::decode(&frame).ok()?;
                rings.entry(end.vcpu).or_default().lost = end.lost;
            }
            _ => {}
        }
    }
    let (frame, welcome) = welcome?;
    let guest: Welcome<'_> = frame::decode(&frame).ok()?;
    if mappings.len() != guest.mappings as usize {
        return None;
    }
    let created_unix_ns = guest.wall_clock_ns.unwrap_or(0);
    let mut file = preamble(VERSIONS.highest).to_vec();
    match header {
        Some(header) => file.extend_from_slice(header),
        None => file.append(&mut encoded(&FileHeader { client: "", created_unix_ns }).ok()?),
    }
    file.extend_from_slice(welcome);
    file.extend(mappings.into_iter().flatten());
    file.append(&mut others);
    // A ring that goes back less far lacks what is missing; it does not hide the records of others.
    let since_ns = rings.values().filter_map(|ring| ring.oldest).map(|(_, at_ns)| at_ns).min();
    for (vcpu, mut ring) in rings {
        let mut head = ring.head.unwrap_or(RingHead {
            vcpu,
            capacity: 0,
            oldest: 0,
            next: 0,
            now_ns: guest.monotonic_ns,
            wall_clock_ns: guest.wall_clock_ns,
        });
        // Other vCPUs may have gone on while the dump was written.
        head.next = head.next.max(ring.next);
        head.oldest = ring.oldest.map_or(head.oldest, |(first, _)| first.min(head.oldest));
        let end = RingEnd {
            vcpu,
            next: head.next,
            lost: ring.lost,
            whole_since_ns: since_ns.unwrap_or(head.now_ns),
        };
        file.append(&mut encoded(&head).ok()?);
        file.append(&mut ring.frames);
        file.append(&mut encoded(&end).ok()?);
        file.append(&mut encoded(&StacksEnd { vcpu, oldest: 0, known: 0 }).ok()?);
    }
    file.append(&mut encoded(&FileEnd { complete: false, reason }).ok()?);
    Some(file)
}
