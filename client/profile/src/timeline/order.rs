//! Checks the order of the frames about rings, on the wire and in a file alike.
//!
//! First the names of events, then for each vCPU its records and the stacks that they refer to. On
//! the wire, records are in chronological order and precede their stacks; crash data has the newest
//! records first, between their stacks, and some of them repeatedly. A vCPU's ring may occur several
//! times, on the wire each time with the records since the last.

use std::collections::BTreeMap;

use thiserror::Error;
use unikprof_proto::frame::{self, Frame, FrameError, Message};
use unikprof_proto::message::{
    EventName, EventNamesEnd, Nodes, RingEnd, RingHead, RingRun, StacksEnd,
};
use unikprof_proto::ring::MAX_EVENT_NAMES;
use unikprof_proto::run::InvalidRun;

use crate::messages::message_name;
use crate::recording::NodeError;
use crate::runs::Runs;

/// Where the next frame stands.
#[derive(Debug, Default, Clone)]
pub struct RingOrder {
    place: Phase,
    /// Whether records come in their order, and stacks after them.
    is_strict: bool,
    /// The positions of each vCPU's records that were received.
    records: BTreeMap<u32, Runs>,
    /// The ids that have a name, a bit each.
    named: [u64; MAX_EVENT_NAMES / 64],
}

#[derive(Debug, Default, Clone, Copy)]
enum Phase {
    /// Names, or the next vCPU.
    #[default]
    Between,
    /// The records of a vCPU, from a position on and up to another; in a file, with stacks between
    /// them.
    Records { vcpu: u32, first: u64, end: u64 },
    /// The stacks of a vCPU; there may be none at all.
    Stacks { vcpu: u32 },
}

/// A frame in its place.
#[derive(Debug)]
pub enum RingPart<'a> {
    /// The name of an event.
    Name(EventName<'a>),
    /// There are no more names.
    NamesEnd(EventNamesEnd),
    /// A vCPU's ring.
    Head(RingHead),
    /// The next of its records.
    Run(RingRun<'a>),
    /// There are no more records of it.
    End(RingEnd),
    /// The next of its stacks.
    Nodes(Nodes<'a>),
    /// There are no more stacks of it.
    StacksEnd(StacksEnd),
}

/// Why a frame about a ring is not in its place.
#[expect(missing_docs, reason = "each message says it")]
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RingOrderError {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("expected {expected}, found {}", message_name(*found))]
    OutOfPlace { expected: &'static str, found: u16 },
    #[error("a frame belongs to vCPU {found}, in the middle of the ring of vCPU {expected}")]
    OtherVcpu { expected: u32, found: u32 },
    #[error("expected records from position {expected} to {end}, found {count} from {found}")]
    Position { expected: u64, end: u64, found: u64, count: u32 },
    #[error("the id {0} of an event name is invalid or already used")]
    Name(u32),
    #[error(transparent)]
    Records(#[from] InvalidRun),
    #[error(transparent)]
    Nodes(#[from] NodeError),
}

impl RingOrder {
    /// The order in which an agent sends.
    pub fn on_the_wire() -> RingOrder {
        RingOrder { is_strict: true, ..RingOrder::default() }
    }

    /// Whether frames of this type are about rings; [`Nodes`] are also part of epochs.
    pub fn takes(kind: u16) -> bool {
        matches!(
            kind,
            EventName::TYPE
                | EventNamesEnd::TYPE
                | RingHead::TYPE
                | RingRun::TYPE
                | RingEnd::TYPE
                | Nodes::TYPE
                | StacksEnd::TYPE
        )
    }

    /// Whether the records or stacks of a vCPU have begun and not ended.
    pub(crate) fn is_open(&self) -> bool {
        !matches!(self.place, Phase::Between)
    }

    /// Whether the records of a vCPU have begun and not ended.
    pub fn is_amid_records(&self) -> bool {
        matches!(self.place, Phase::Records { .. })
    }

    /// Checks the next frame, which must be one that [`RingOrder::takes`].
    pub fn accept<'a>(&mut self, frame: &Frame<'a>) -> Result<RingPart<'a>, RingOrderError> {
        match frame.kind {
            EventName::TYPE => self.name(frame::decode(frame)?),
            EventNamesEnd::TYPE => {
                self.expect_between(frame.kind)?;
                Ok(RingPart::NamesEnd(frame::decode(frame)?))
            }
            RingHead::TYPE => self.head(frame::decode(frame)?),
            RingRun::TYPE => self.run(frame::decode(frame)?),
            RingEnd::TYPE => self.end(frame::decode(frame)?),
            Nodes::TYPE => self.nodes(frame::decode(frame)?),
            StacksEnd::TYPE => self.stacks_end(frame::decode(frame)?),
            found => Err(self.out_of_place(found)),
        }
    }

    fn name<'a>(&mut self, name: EventName<'a>) -> Result<RingPart<'a>, RingOrderError> {
        self.expect_between(EventName::TYPE)?;
        let (word, bit) = (name.id as usize / 64, 1 << (name.id % 64));
        match self.named.get_mut(word) {
            Some(named) if *named & bit == 0 => *named |= bit,
            _ => return Err(RingOrderError::Name(name.id)),
        }
        Ok(RingPart::Name(name))
    }

    fn head<'a>(&mut self, head: RingHead) -> Result<RingPart<'a>, RingOrderError> {
        // A ring may come without its stacks.
        if let Phase::Records { .. } = self.place {
            return Err(self.out_of_place(RingHead::TYPE));
        }
        self.place = Phase::Records { vcpu: head.vcpu, first: head.oldest, end: head.next };
        Ok(RingPart::Head(head))
    }

    fn run<'a>(&mut self, run: RingRun<'a>) -> Result<RingPart<'a>, RingOrderError> {
        let Phase::Records { vcpu, first, end } = self.place else {
            return Err(self.out_of_place(RingRun::TYPE));
        };
        same_vcpu(vcpu, run.vcpu)?;
        let records = self.records.entry(vcpu).or_default();
        let expected = if self.is_strict { first.max(records.next()) } else { first };
        let after = run.first.checked_add(run.count.into());
        let after = after.filter(|after| run.first >= expected && *after <= end);
        // In a file, its reader leaves out what is repeated.
        let accept = |after| records.add(run.first, after) || !self.is_strict && run.count > 0;
        if after.is_some_and(accept) {
            Ok(RingPart::Run(run))
        } else {
            Err(RingOrderError::Position { expected, end, found: run.first, count: run.count })
        }
    }

    fn end<'a>(&mut self, end: RingEnd) -> Result<RingPart<'a>, RingOrderError> {
        let Phase::Records { vcpu, .. } = self.place else {
            return Err(self.out_of_place(RingEnd::TYPE));
        };
        same_vcpu(vcpu, end.vcpu)?;
        self.place = Phase::Stacks { vcpu };
        Ok(RingPart::End(end))
    }

    fn nodes<'a>(&mut self, run: Nodes<'a>) -> Result<RingPart<'a>, RingOrderError> {
        let vcpu = match self.place {
            Phase::Stacks { vcpu } => vcpu,
            Phase::Records { vcpu, .. } if !self.is_strict => vcpu,
            _ => return Err(self.out_of_place(Nodes::TYPE)),
        };
        same_vcpu(vcpu, run.vcpu)?;
        Ok(RingPart::Nodes(run))
    }

    fn stacks_end<'a>(&mut self, end: StacksEnd) -> Result<RingPart<'a>, RingOrderError> {
        let Phase::Stacks { vcpu } = self.place else {
            return Err(self.out_of_place(StacksEnd::TYPE));
        };
        same_vcpu(vcpu, end.vcpu)?;
        self.place = Phase::Between;
        Ok(RingPart::StacksEnd(end))
    }

    fn expect_between(&self, found: u16) -> Result<(), RingOrderError> {
        match self.place {
            Phase::Between => Ok(()),
            _ => Err(self.out_of_place(found)),
        }
    }

    fn out_of_place(&self, found: u16) -> RingOrderError {
        let expected = match self.place {
            Phase::Between => "the header of a vCPU's ring, or an event name",
            Phase::Records { .. } => "records of a ring, or their end",
            Phase::Stacks { .. } => "the stacks of a ring, or their end",
        };
        RingOrderError::OutOfPlace { expected, found }
    }
}

fn same_vcpu(expected: u32, found: u32) -> Result<(), RingOrderError> {
    if expected == found { Ok(()) } else { Err(RingOrderError::OtherVcpu { expected, found }) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn accept<'m, M: Message<'m>>(
        order: &mut RingOrder,
        message: &M,
    ) -> Result<(), RingOrderError> {
        let mut buffer = [0; 256];
        frame::encode(message, &mut buffer).unwrap();
        let frame = frame::split(&buffer).unwrap().unwrap();
        assert!(RingOrder::takes(frame.kind));
        order.accept(&frame).map(drop)
    }

    fn head(vcpu: u32) -> RingHead {
        RingHead { vcpu, capacity: 8, oldest: 4, next: 9, now_ns: 1, wall_clock_ns: None }
    }

    fn run(vcpu: u32, first: u64, count: u32) -> RingRun<'static> {
        RingRun { vcpu, first, count, base_ns: 0, payload: &[] }
    }

    fn end(vcpu: u32) -> RingEnd {
        RingEnd { vcpu, next: 9, lost: 0, whole_since_ns: 0 }
    }

    fn nodes() -> Nodes<'static> {
        Nodes { vcpu: 0, first: 10, count: 2, payload: &[] }
    }

    fn stacks_end(vcpu: u32) -> StacksEnd {
        StacksEnd { vcpu, oldest: 10, known: 20 }
    }

    #[test]
    fn two_rings_pass_in_their_order() {
        let order = &mut RingOrder::default();
        accept(order, &EventName { id: 0, name: "n" }).unwrap();
        accept(order, &head(0)).unwrap();
        accept(order, &run(0, 5, 2)).unwrap();
        accept(order, &run(0, 8, 1)).unwrap();
        accept(order, &end(0)).unwrap();
        accept(order, &nodes()).unwrap();
        assert!(order.is_open());
        accept(order, &stacks_end(0)).unwrap();
        accept(order, &head(1)).unwrap();
        accept(order, &end(1)).unwrap();
    }

    /// A client that drains a ring fetches it again and again, each time from where the last answer
    /// ended.
    #[test]
    fn a_ring_that_comes_again_goes_on_where_it_ended() {
        for order in [&mut RingOrder::default(), &mut RingOrder::on_the_wire()] {
            accept(order, &head(0)).unwrap();
            accept(order, &run(0, 4, 5)).unwrap();
            accept(order, &end(0)).unwrap();
            accept(order, &stacks_end(0)).unwrap();
            let next = RingHead { oldest: 7, next: 12, ..head(0) };
            accept(order, &next).unwrap();
            accept(order, &run(0, 9, 3)).unwrap();
            accept(order, &end(0)).unwrap();
        }
    }

    /// What a crash has left: the newest first, each part behind its stacks; on the wire that is
    /// out of place.
    #[test]
    fn parts_pass_in_any_order_in_a_file_and_in_one_on_the_wire() {
        let order = &mut RingOrder::default();
        accept(order, &head(0)).unwrap();
        accept(order, &nodes()).unwrap();
        accept(order, &run(0, 7, 2)).unwrap();
        accept(order, &nodes()).unwrap();
        accept(order, &run(0, 5, 2)).unwrap();
        // The newest come again with the whole ring.
        for again in [run(0, 5, 1), run(0, 8, 1), run(0, 4, 3)] {
            accept(order, &again).unwrap();
        }
        accept(order, &run(0, 4, 1)).unwrap();
        accept(order, &end(0)).unwrap();
        accept(order, &nodes()).unwrap();

        let wire = &mut RingOrder::on_the_wire();
        accept(wire, &head(0)).unwrap();
        assert!(accept(wire, &nodes()).is_err());
        accept(wire, &run(0, 7, 2)).unwrap();
        for twice in [run(0, 5, 2), run(0, 8, 1)] {
            let error = accept(wire, &twice).unwrap_err();
            assert!(matches!(error, RingOrderError::Position { .. }), "{error}");
        }
        accept(wire, &end(0)).unwrap();
        accept(wire, &nodes()).unwrap();
    }

    #[test]
    fn what_is_not_in_its_place_is_told() {
        let begun = || {
            let mut order = RingOrder::on_the_wire();
            accept(&mut order, &head(0)).unwrap();
            order
        };
        let position = |first, count| accept(&mut begun(), &run(0, first, count)).unwrap_err();
        for error in [position(3, 1), position(4, 6), position(4, 0), position(u64::MAX, 1)] {
            assert!(matches!(error, RingOrderError::Position { .. }), "{error}");
        }
        let other = accept(&mut begun(), &run(1, 4, 1)).unwrap_err();
        assert!(matches!(other, RingOrderError::OtherVcpu { .. }), "{other}");
        let twice = accept(&mut begun(), &head(0)).unwrap_err();
        assert!(twice.to_string().contains("expected records"), "{twice}");
        let name = EventName { id: 256, name: "n" };
        let name = accept(&mut RingOrder::default(), &name);
        assert_eq!(name, Err(RingOrderError::Name(256)));
        let mut order = RingOrder::default();
        let last = EventName { id: 255, name: "n" };
        assert_eq!(accept(&mut order, &last), Ok(()));
        assert_eq!(accept(&mut order, &last), Err(RingOrderError::Name(255)));
    }
}
