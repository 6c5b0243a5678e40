//! Downloads the rings' records, and the stacks and names that they refer to.

use std::collections::BTreeMap;

use serde::Serialize;
use unikprof_proto::code::state;
use unikprof_proto::frame::{self, Frame};
use unikprof_proto::message::{EventNames, Ring, RingEnd, RingHead, Stacks};
use unikprof_proto::ring;

use super::session::{Attempt, Session};
use super::{Observer, RecordError};
use crate::connection::{Connection, ConnectionError};
use unikprof_profile::frame_reader::encoded;
use unikprof_profile::recording::{KnownNodes, NodeOrder};
use unikprof_profile::timeline::{
    Extent, Moment, RingOrder, RingOrderError, RingPart, WallClock, Window,
};

/// The most bytes that are taken of one vCPU's ring with its stacks: days at any rate that makes
/// sense.
const MOST_BYTES: usize = 64 << 20;

/// So much before a recording or a window is fetched as well: what had begun when it began, and the
/// times of its vCPUs.
pub(super) const BEFORE_NS: u64 = 5_000_000_000;

/// A record's size in the guest's memory, for limits in bytes.
const RECORD_BYTES: u64 = 16;

const DOING: &str = "fetching rings";

/// The part of a recording's time that is wanted; all of it by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Asked {
    /// From when on.
    pub from: Option<Moment>,
    /// Up to when.
    pub to: Option<Moment>,
}

impl Asked {
    /// Whether records of it are fetched elsewhere.
    pub fn is_part(&self) -> bool {
        *self != Asked::default()
    }
}

/// A part of a recording's time, and what its moments are counted from.
#[derive(Debug, Clone)]
pub(super) struct PartAsked {
    asked: Asked,
    extent: Extent,
    has_ended: bool,
}

impl PartAsked {
    /// The window on the guest's clock. Moments before the end are before `ended_ns` of the last
    /// epoch if the recording has ended: the status does not tell when another client stopped it.
    pub(super) fn window(&self, ended_ns: Option<u64>) -> Result<Window, RecordError> {
        let mut extent = self.extent.clone();
        if let Some(ended_ns) = ended_ns.filter(|_| self.has_ended) {
            extent.whole.to_ns = ended_ns.max(extent.whole.from_ns);
        }
        Ok(extent.window(self.asked.from, self.asked.to)?)
    }
}

/// How full a vCPU's ring is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RingFill {
    /// Whose ring it is.
    pub vcpu: u32,
    /// How many records it has room for.
    pub capacity: u64,
    /// How many it holds.
    pub held: u64,
    /// How many were dropped for newer ones since the agent started.
    pub evicted: u64,
}

/// What is fetched of each ring.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// Records from this moment on.
    pub(super) since_ns: u64,
    /// The maximum size of the newest records to fetch from all vCPUs together, as bytes in the
    /// guest; 0: all.
    pub(super) most_bytes: u64,
}

impl Session {
    /// Requests the fill level of each vCPU's ring; empty if the agent has no ring.
    pub fn ring_fill(&mut self, observer: &mut dyn Observer) -> Result<Vec<RingFill>, RecordError> {
        let vcpus = if self.agent().keeps_time() { self.agent().vcpus } else { 0 };
        let fill = |vcpu| {
            let head = self.persist(observer, |connection, _| head_of_ring(connection, vcpu))?;
            Ok(RingFill {
                vcpu,
                capacity: head.capacity,
                held: head.next.saturating_sub(head.oldest),
                evicted: head.oldest,
            })
        };
        (0..vcpus).map(fill).collect()
    }

    /// The dates of the guest's clock, as they were when the session was opened; if it knows none,
    /// those of the client's.
    pub(super) fn wall_clock(&self) -> WallClock {
        let agent = self.agent();
        match agent.wall_clock_ns {
            Some(unix_ns) => WallClock::new([(agent.monotonic_ns, unix_ns)]),
            None => agent.client_clock(self.connected_unix_ns()),
        }
    }

    /// The part of a recording that is asked for.
    pub(super) fn part_asked(
        &mut self,
        recording: u64,
        asked: Asked,
        observer: &mut dyn Observer,
    ) -> Result<PartAsked, RecordError> {
        if !self.agent().keeps_time() {
            return Err(RecordError::NoRing);
        }
        let recorder = self.check(observer)?;
        let Some(status) = recorder.by_id(recording) else {
            return Err(RecordError::Gone { recording });
        };
        let from_ns = status.started_ns.min(recorder.agent.now_ns);
        let has_ended = status.state == state::FINISHED;
        let by_itself_ns = from_ns.saturating_add(status.duration_ns);
        let to_ns = if has_ended && status.duration_ns != 0 {
            by_itself_ns.min(recorder.agent.now_ns)
        } else {
            recorder.agent.now_ns
        };
        let part = PartAsked {
            asked,
            extent: Extent { whole: Window { from_ns, to_ns }, clock: self.wall_clock() },
            has_ended,
        };
        part.window(None)?;
        Ok(part)
    }

    /// The part that is asked for of all time up to now; what comes later is in it if no end is
    /// asked for.
    pub fn window_until_now(
        &mut self,
        asked: Asked,
        observer: &mut dyn Observer,
    ) -> Result<Window, RecordError> {
        if !asked.is_part() {
            return Ok(Window::ALL);
        }
        let to_ns = self.check(observer)?.agent.now_ns;
        let extent = Extent { whole: Window { from_ns: 0, to_ns }, clock: self.wall_clock() };
        let window = extent.window(asked.from, asked.to)?;
        Ok(match asked.to {
            Some(_) => window,
            None => Window { to_ns: u64::MAX, ..window },
        })
    }

    /// Fetches the records since the last call with the stacks that they name, then the new names
    /// of events. Each part is passed to `keep` once it is complete, so that a broken connection
    /// leaves no half.
    pub(super) fn fetch_rings(
        &mut self,
        wanted: Wanted,
        received: &mut RingsReceived,
        nodes: &mut KnownNodes,
        observer: &mut dyn Observer,
        keep: &mut dyn FnMut(&[u8]) -> Result<(), RecordError>,
    ) -> Result<(), RecordError> {
        let vcpus = self.agent().vcpus;
        for vcpu in 0..vcpus {
            let of_each = wanted.most_bytes / RECORD_BYTES / u64::from(vcpus);
            let mut part = RingPartReceived {
                bytes: Vec::new(),
                order: received.order.clone(),
                nodes: nodes.clone(),
                next: received.next.get(&vcpu).copied(),
                first_ns: None,
            };
            self.persist(observer, |connection, _| {
                let position = match (part.next, wanted.most_bytes) {
                    (Some(next), _) => next,
                    (None, 0) => 0,
                    (None, _) => head_of_ring(connection, vcpu)?.next.saturating_sub(of_each),
                };
                part.receive(connection, &Ring { vcpu, position, since_ns: wanted.since_ns })
            })?;
            keep(&part.bytes)?;
            received.order = part.order;
            received.next.extend(part.next.map(|next| (vcpu, next)));
            *nodes = part.nodes;
        }
        // After the records: every name that they use is there by now.
        let (names, order, next_name) = self.persist(observer, |connection, _| {
            let request = EventNames { first: received.next_name };
            connection.send(&request, DOING)?;
            let (mut bytes, mut order) = (Vec::new(), received.order.clone());
            let mut next = received.next_name;
            receive(connection, &mut order, Answer::Names, &mut bytes, |part| {
                if let RingPart::Name(name) = part {
                    next = next.max(name.id.saturating_add(1));
                }
                Ok(())
            })?;
            Ok((bytes, order, next))
        })?;
        (received.order, received.next_name) = (order, next_name);
        keep(&names)
    }
}

/// Which parts of the rings were received.
#[derive(Debug)]
pub(super) struct RingsReceived {
    order: RingOrder,
    /// By vCPU, the position of the next record.
    next: BTreeMap<u32, u64>,
    /// The id of the first name of events that is not known.
    next_name: u32,
}

impl Default for RingsReceived {
    fn default() -> Self {
        RingsReceived { order: RingOrder::on_the_wire(), next: BTreeMap::new(), next_name: 0 }
    }
}

/// A part of a ring, and what is known once it is kept.
struct RingPartReceived {
    bytes: Vec<u8>,
    order: RingOrder,
    nodes: KnownNodes,
    /// The position of the next record.
    next: Option<u64>,
    /// When the first record was written.
    first_ns: Option<u64>,
}

impl RingPartReceived {
    /// Fetches records, and then the stacks that they refer to and the client lacks. What has
    /// arrived when the connection breaks is kept, and the next request goes on behind it.
    fn receive(&mut self, connection: &mut Connection, request: &Ring) -> Result<(), Attempt> {
        let vcpu = request.vcpu;
        let before = (self.bytes.len(), self.order.clone());
        let had = (self.next, self.nodes.known(vcpu));
        let Err(attempt) = self.receive_rest(connection, request) else {
            return Ok(());
        };
        let has_progressed = had != (self.next, self.nodes.known(vcpu));
        if !has_progressed {
            self.bytes.truncate(before.0);
            self.order = before.1;
        } else if self.order.is_amid_records() {
            let (next, whole_since_ns) = (self.next.unwrap_or(0), self.first_ns.unwrap_or(0));
            let end = RingEnd { vcpu, next, lost: 0, whole_since_ns };
            let end = encoded(&end).map_err(ConnectionError::in_frame(DOING))?;
            if let Some(frame) = frame::split(&end).map_err(ConnectionError::in_frame(DOING))? {
                self.order.accept(&frame).map_err(|error| Attempt::Failed(error.into()))?;
            }
            self.bytes.extend(end);
        }
        Err(attempt.after(has_progressed))
    }

    fn receive_rest(&mut self, connection: &mut Connection, request: &Ring) -> Result<(), Attempt> {
        let RingPartReceived { bytes, order, nodes, next, first_ns } = self;
        let vcpu = request.vcpu;
        connection.send(request, DOING)?;
        // The agent answers in order: every stack that the records name is there by then.
        let stacks = Stacks { vcpu, known: nodes.known(vcpu) };
        connection.send(&stacks, DOING)?;
        receive(connection, order, Answer::Records(vcpu), bytes, |part| {
            match part {
                RingPart::Run(run) => {
                    ring::decode(run.base_ns, run.count, run.payload, |record| {
                        first_ns.get_or_insert(record.at_ns);
                    })?;
                    *next = Some(run.first.saturating_add(run.count.into()));
                }
                RingPart::End(end) => *next = Some(end.next),
                _ => {}
            }
            Ok(())
        })?;
        receive(connection, order, Answer::Stacks, bytes, |part| {
            match part {
                RingPart::Nodes(run) => nodes.add(run, NodeOrder::Rising, |_, _| ())?,
                RingPart::StacksEnd(end) => nodes.sent_up_to(vcpu, end.known)?,
                _ => {}
            }
            Ok(())
        })
    }
}

/// What a ring holds, without any of it.
fn head_of_ring(connection: &mut Connection, vcpu: u32) -> Result<RingHead, Attempt> {
    let request = Ring { vcpu, position: u64::MAX, since_ns: u64::MAX };
    connection.send(&request, DOING)?;
    let (mut order, mut found) = (RingOrder::on_the_wire(), None);
    let bytes = &mut Vec::new();
    receive(connection, &mut order, Answer::Records(vcpu), bytes, |part| {
        if let RingPart::Head(head) = part {
            found = Some(*head);
        }
        Ok(())
    })?;
    // The order lets no end come before its head.
    found.ok_or(Attempt::Failed(RecordError::NoRing))
}

/// What a request is answered by.
#[derive(Debug, Clone, Copy)]
pub(super) enum Answer {
    /// Names of events, and their end.
    Names,
    /// The head, the records and the end of a vCPU's ring.
    Records(u32),
    /// Stacks, and their end.
    Stacks,
}

/// Receives an answer, and keeps its frames as they came.
pub(super) fn receive(
    connection: &mut Connection,
    order: &mut RingOrder,
    answer: Answer,
    bytes: &mut Vec<u8>,
    mut visit: impl FnMut(&RingPart<'_>) -> Result<(), RingOrderError>,
) -> Result<(), Attempt> {
    let failed = |error: RingOrderError| Attempt::Failed(error.into());
    loop {
        let frame = connection.receive(DOING);
        let frame: Frame<'_> = frame.map_err(Attempt::while_pipelined)?;
        // Of a type that this client does not know.
        if !RingOrder::takes(frame.kind) && !unikprof_profile::messages::is_known(frame.kind) {
            continue;
        }
        let part = order.accept(&frame).map_err(failed)?;
        answer.check(&part, frame.kind).map_err(failed)?;
        visit(&part).map_err(failed)?;
        let has_ended =
            matches!(part, RingPart::NamesEnd(_) | RingPart::End(_) | RingPart::StacksEnd(_));
        let received = connection.received();
        if bytes.len() + received.len() > MOST_BYTES {
            return Err(Attempt::Failed(RecordError::Endless { what: "a ring", most: MOST_BYTES }));
        }
        bytes.extend_from_slice(received);
        if has_ended {
            return Ok(());
        }
    }
}

impl Answer {
    /// Checks what a reader of the file would reject: by then it is too late to request it again.
    fn check(self, part: &RingPart<'_>, kind: u16) -> Result<(), RingOrderError> {
        match (self, part) {
            (Answer::Names, RingPart::Name(_) | RingPart::NamesEnd(_))
            | (Answer::Records(_), RingPart::End(_))
            | (Answer::Stacks, RingPart::Nodes(_) | RingPart::StacksEnd(_)) => Ok(()),
            (Answer::Records(vcpu), RingPart::Head(head)) if head.vcpu != vcpu => {
                Err(RingOrderError::OtherVcpu { expected: vcpu, found: head.vcpu })
            }
            (Answer::Records(_), RingPart::Head(_)) => Ok(()),
            (Answer::Records(_), RingPart::Run(run)) => {
                Ok(ring::decode(run.base_ns, run.count, run.payload, |_| ())?)
            }
            _ => Err(RingOrderError::OutOfPlace {
                expected: match self {
                    Answer::Names => "event names, or their end",
                    Answer::Records(_) => "records of a ring, or their end",
                    Answer::Stacks => "the stacks of a ring, or their end",
                },
                found: kind,
            }),
        }
    }
}
