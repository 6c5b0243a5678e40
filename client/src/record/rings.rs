//! Bringing home what happened when: the records of the rings, the stacks and the names that they need.

use unikprof_proto::frame::Frame;
use unikprof_proto::message::{EventNames, Ring, RingHead, Stacks};
use unikprof_proto::{nodes, ring};

use super::session::{Attempt, Session};
use super::{Observer, RecordError};
use crate::connection::Connection;
use crate::timeline::{Extent, Moment, RingOrder, RingOrderError, RingPart, WallClock, Window};

/// The most bytes that are taken of one vCPU's ring with its stacks: days at any rate that makes sense.
const MOST_BYTES: usize = 64 << 20;

/// So much before a recording or a window is fetched as well: what had begun when it began, and the times of its vCPUs.
pub(super) const BEFORE_NS: u64 = 5_000_000_000;

/// What a record takes in the guest's memory, for limits that are told in bytes.
const RECORD_BYTES: u64 = 16;

/// How often a ring is read whose stacks were cleared meanwhile: another client's recording began.
const MOST_READINGS: u32 = 8;

const DOING: &str = "fetching what happened when";

/// The part of a recording's time that is wanted; all of it by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Asked {
    /// From when on.
    pub from: Option<Moment>,
    /// Up to when.
    pub to: Option<Moment>,
}

impl Asked {
    /// Whether it is a part.
    pub fn is_part(&self) -> bool {
        *self != Asked::default()
    }
}

/// How full a vCPU's ring is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingFill {
    /// The vCPU.
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
    /// And of them at most so many, the newest, of all vCPUs together, as bytes in the guest; 0: all.
    pub(super) most_bytes: u64,
}

impl Session {
    /// Asks how full the rings are, by the vCPUs' numbers; nothing where the agent keeps none.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn ring_fill(&mut self, observer: &mut dyn Observer) -> Result<Vec<RingFill>, RecordError> {
        let vcpus = match self.agent().keeps_time() {
            true => self.agent().vcpus,
            false => 0,
        };
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

    /// The dates of the guest's clock, as they were when the session was opened.
    pub(super) fn wall_clock(&self) -> WallClock {
        let agent = self.agent();
        let told = agent.wall_clock_ns.map(|unix| (agent.monotonic_ns, unix));
        WallClock::new(told)
    }

    /// The window that is asked for of a recording that goes on.
    ///
    /// # Errors
    /// [`RecordError::NoRing`], [`RecordError::Moment`], and those of the connection.
    pub(super) fn window(
        &mut self,
        recording: u64,
        asked: Asked,
        observer: &mut dyn Observer,
    ) -> Result<Window, RecordError> {
        if !self.agent().keeps_time() {
            return Err(RecordError::NoRing);
        }
        let recorder = self.check(observer)?;
        let Some(status) = recorder.by_id(recording) else {
            return Err(RecordError::Gone { recording });
        };
        let extent = Extent {
            whole: Window {
                from_ns: status.started_ns.min(recorder.now_ns),
                to_ns: recorder.now_ns,
            },
            clock: self.wall_clock(),
        };
        Ok(extent.window(asked.from, asked.to)?)
    }

    /// Fetches names, rings and stacks, and hands each part to `keep` once it is whole: a line that breaks
    /// leaves no half.
    pub(super) fn fetch_rings(
        &mut self,
        wanted: Wanted,
        observer: &mut dyn Observer,
        keep: &mut dyn FnMut(&[u8]) -> Result<(), RecordError>,
    ) -> Result<(), RecordError> {
        let names = self.persist(observer, |connection, _| {
            connection.send(&EventNames { first: 0 }, DOING)?;
            let mut bytes = Vec::new();
            let mut order = RingOrder::on_the_wire();
            receive(connection, &mut order, Answer::Names, &mut bytes, |_| ())?;
            Ok(bytes)
        })?;
        keep(&names)?;
        let vcpus = self.agent().vcpus;
        for vcpu in 0..vcpus {
            let of_each = wanted.most_bytes / RECORD_BYTES / u64::from(vcpus);
            let ring = self.persist(observer, |connection, _| {
                let position = match wanted.most_bytes {
                    0 => 0,
                    _ => head_of_ring(connection, vcpu)?.next.saturating_sub(of_each),
                };
                let request = Ring {
                    vcpu,
                    position,
                    since_ns: wanted.since_ns,
                };
                for _ in 0..MOST_READINGS {
                    if let Some(bytes) = ring_with_stacks(connection, &request)? {
                        return Ok(bytes);
                    }
                }
                Err(Attempt::Failed(RecordError::StacksCleared {
                    vcpu,
                    times: MOST_READINGS,
                }))
            })?;
            keep(&ring)?;
        }
        Ok(())
    }
}

/// A ring and the stacks that its records name; `None` where these were cleared meanwhile, and the ids may name others.
fn ring_with_stacks(
    connection: &mut Connection,
    request: &Ring,
) -> Result<Option<Vec<u8>>, Attempt> {
    let (mut order, mut bytes) = (RingOrder::on_the_wire(), Vec::new());
    let (mut before, mut after) = (None, None);
    connection.send(request, DOING)?;
    let answer = Answer::Records(request.vcpu);
    receive(connection, &mut order, answer, &mut bytes, |part| {
        if let RingPart::Head(head) = part {
            before = Some(head.cleared);
        }
    })?;
    // After the records: every stack that they name is there by now.
    let stacks = Stacks {
        vcpu: request.vcpu,
        node: 1,
    };
    connection.send(&stacks, DOING)?;
    receive(connection, &mut order, Answer::Stacks, &mut bytes, |part| {
        if let RingPart::StacksEnd(end) = part {
            after = Some(end.cleared);
        }
    })?;
    Ok((before == after).then_some(bytes))
}

/// What a ring holds, without any of it.
fn head_of_ring(connection: &mut Connection, vcpu: u32) -> Result<RingHead, Attempt> {
    let request = Ring {
        vcpu,
        position: u64::MAX,
        since_ns: u64::MAX,
    };
    connection.send(&request, DOING)?;
    let (mut order, mut found) = (RingOrder::on_the_wire(), None);
    let bytes = &mut Vec::new();
    receive(
        connection,
        &mut order,
        Answer::Records(vcpu),
        bytes,
        |part| {
            if let RingPart::Head(head) = part {
                found = Some(*head);
            }
        },
    )?;
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
    mut visit: impl FnMut(&RingPart<'_>),
) -> Result<(), Attempt> {
    let failed = |error: RingOrderError| Attempt::Failed(error.into());
    loop {
        let frame: Frame<'_> = connection.receive(DOING)?;
        // Of a type that this client does not know.
        if !RingOrder::takes(frame.kind) && !crate::connection::is_known(frame.kind) {
            continue;
        }
        let part = order.accept(&frame).map_err(failed)?;
        answer.check(&part, frame.kind).map_err(failed)?;
        visit(&part);
        let has_ended = matches!(
            part,
            RingPart::NamesEnd(_) | RingPart::End(_) | RingPart::StacksEnd(_)
        );
        let received = connection.received();
        if bytes.len() + received.len() > MOST_BYTES {
            return Err(Attempt::Failed(RecordError::EndlessRing {
                most: MOST_BYTES,
            }));
        }
        bytes.extend_from_slice(received);
        if has_ended {
            return Ok(());
        }
    }
}

impl Answer {
    /// Checks what a reader of the file would refuse: there is nobody to ask again by then.
    fn check(self, part: &RingPart<'_>, kind: u16) -> Result<(), RingOrderError> {
        match (self, part) {
            (Answer::Names, RingPart::Name(_) | RingPart::NamesEnd(_))
            | (Answer::Records(_), RingPart::End(_))
            | (Answer::Stacks, RingPart::StacksEnd(_)) => Ok(()),
            (Answer::Records(vcpu), RingPart::Head(head)) if head.vcpu != vcpu => {
                Err(RingOrderError::OtherVcpu {
                    expected: vcpu,
                    found: head.vcpu,
                })
            }
            (Answer::Records(_), RingPart::Head(_)) => Ok(()),
            (Answer::Records(_), RingPart::Run(run)) => {
                Ok(ring::decode(run.base_ns, run.count, run.payload, |_| ())?)
            }
            (Answer::Stacks, RingPart::Nodes(run)) => {
                Ok(nodes::decode(run.first, run.count, run.payload, |_, _| ())?)
            }
            _ => Err(RingOrderError::OutOfPlace {
                expected: match self {
                    Answer::Names => "names of events, or their end",
                    Answer::Records(_) => "records of a ring, or their end",
                    Answer::Stacks => "the stacks of a ring, or their end",
                },
                found: kind,
            }),
        }
    }
}
