//! Answers about the rings, frame by frame: records, the stacks that they refer to, and the names
//! of events.

use unikprof_proto::frame::{self, FrameError, HEADER, Message};
use unikprof_proto::message::{
    EventName, EventNamesEnd, Nodes, Ring as RingRequest, RingEnd, RingHead, RingRun, StacksEnd,
};
use unikprof_proto::ring::MAX_EVENT_NAME;

use crate::agent::AnyAgent;
use crate::count::table::Run;
use crate::ring::{Reader, Rings};

/// The maximum length of a frame without its records or stacks.
pub(crate) const OVERHEAD: usize = HEADER + 48;

/// The next part of an answer with several frames.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    Head(RingRequest),
    Records(u32, Reader),
    /// The vCPU, the number after which nodes are sent, and the last number.
    Stacks(u32, u64, u64),
    /// The next id.
    Names(u32),
}

impl Answer {
    /// The nodes of a vCPU that exist now, with numbers above `known`.
    pub(crate) fn stacks(agent: &AnyAgent<'_, '_>, vcpu: u32, known: u64) -> Self {
        let newest = agent.slot(vcpu).map_or(0, |slot| slot.table.newest());
        Self::Stacks(vcpu, known, newest)
    }

    /// Encodes the next frame into `buffer`; returns its length and the rest of the answer. The
    /// records or stacks of a frame are encoded in `payload`, which must be shorter than the buffer
    /// by [`OVERHEAD`].
    pub(crate) fn encode(
        self,
        agent: &AnyAgent<'_, '_>,
        rings: &Rings<'_>,
        payload: &mut [u8],
        buffer: &mut [u8],
    ) -> Result<(usize, Option<Self>), FrameError> {
        match self {
            Self::Head(request) => head(request, agent, rings, buffer),
            Self::Records(vcpu, reader) => records(vcpu, reader, agent, rings, payload, buffer),
            Self::Stacks(vcpu, after, last) => {
                let slot = agent.slot(vcpu);
                let run = slot.and_then(|slot| slot.table.encode(after, last, payload));
                let Some(Run { first, count, bytes }) = run else {
                    let end = StacksEnd {
                        vcpu,
                        oldest: slot.map_or(0, |slot| slot.table.oldest()),
                        known: last.max(after),
                    };
                    return put(&end, None, buffer);
                };
                let nodes =
                    Nodes { vcpu, first, count, payload: payload.get(..bytes).unwrap_or_default() };
                let sent = first + u64::from(count) - 1;
                put(&nodes, Some(Self::Stacks(vcpu, sent, last)), buffer)
            }
            Self::Names(first) => names(first, rings, buffer),
        }
    }
}

fn head(
    request: RingRequest,
    agent: &AnyAgent<'_, '_>,
    rings: &Rings<'_>,
    buffer: &mut [u8],
) -> Result<(usize, Option<Answer>), FrameError> {
    let RingRequest { vcpu, position, since_ns } = request;
    let now_ns = agent.platform().now_ns();
    let Some(ring) = rings.ring(vcpu) else {
        return end(vcpu, position, now_ns, rings, buffer);
    };
    let reader = Reader::new(&ring, position, since_ns);
    let head = RingHead {
        vcpu,
        capacity: ring.capacity(),
        oldest: ring.oldest().min(reader.end()),
        next: reader.end(),
        now_ns,
        wall_clock_ns: agent.platform().wall_clock_ns(),
    };
    put(&head, Some(Answer::Records(vcpu, reader)), buffer)
}

fn records(
    vcpu: u32,
    mut reader: Reader,
    agent: &AnyAgent<'_, '_>,
    rings: &Rings<'_>,
    payload: &mut [u8],
    buffer: &mut [u8],
) -> Result<(usize, Option<Answer>), FrameError> {
    let slot = agent.slot(vcpu);
    let number = |position, place| slot.map_or(0, |slot| slot.table.number_at(place, position));
    let run = rings.ring(vcpu).and_then(|ring| reader.run(&ring, number, payload));
    let Some(run) = run else {
        // Without a record, it is only known that none is missing from now on.
        let whole_since_ns = reader.whole_since_ns();
        let whole_since_ns = whole_since_ns.unwrap_or_else(|| agent.platform().now_ns());
        return end(vcpu, reader.position(), whole_since_ns, rings, buffer);
    };
    let run = RingRun {
        vcpu,
        first: run.first,
        count: run.count,
        base_ns: run.base_ns,
        payload: payload.get(..run.bytes).unwrap_or_default(),
    };
    put(&run, Some(Answer::Records(vcpu, reader)), buffer)
}

fn end(
    vcpu: u32,
    next: u64,
    whole_since_ns: u64,
    rings: &Rings<'_>,
    buffer: &mut [u8],
) -> Result<(usize, Option<Answer>), FrameError> {
    let lost = rings.lost(vcpu);
    let end = RingEnd { vcpu, next, lost, whole_since_ns };
    put(&end, None, buffer)
}

fn names(
    first: u32,
    rings: &Rings<'_>,
    buffer: &mut [u8],
) -> Result<(usize, Option<Answer>), FrameError> {
    let names = rings.names();
    let count = names.count();
    let mut text = [0; MAX_EVENT_NAME];
    // A name that is being added is skipped.
    for id in first..count {
        if let Some(name) = names.get(id as u8, &mut text) {
            let name = EventName { id, name };
            return put(&name, Some(Answer::Names(id + 1)), buffer);
        }
    }
    let end = EventNamesEnd { names: count, refused: names.refused() };
    put(&end, None, buffer)
}

fn put<'f, M: Message<'f>>(
    message: &M,
    next: Option<Answer>,
    buffer: &mut [u8],
) -> Result<(usize, Option<Answer>), FrameError> {
    Ok((frame::encode(message, buffer)?, next))
}
