//! The guest's events as they happen.

use std::collections::{BTreeMap, HashMap};

use unikprof_proto::message::{EventNames, Ring as RingRequest};
use unikprof_proto::ring;

use super::rings::{Answer, receive};
use super::session::{Attempt, Session};
use super::{Observer, RecordError};
use crate::connection::Connection;
use unikprof_profile::timeline::{
    Event, OpenWaits, Ring, RingOrder, RingPart, Timeline, WallClock, What, Window,
};

/// The most spans whose beginnings are remembered between two looks.
const MOST_OPEN: usize = 1 << 16;

const DOING: &str = "fetching events";

/// Follows an agent's rings: each look returns the events since the previous one.
#[derive(Debug, Default)]
pub struct EventReader {
    /// By vCPU: the position of the next record.
    next: BTreeMap<u32, u64>,
    waits: OpenWaits,
    /// Spans that have begun: when, by name and number.
    open: HashMap<(String, u64), u64>,
}

/// The result of a look.
#[derive(Debug, Default)]
pub struct Look {
    /// The events, in the order of time.
    pub events: Vec<Event>,
    /// The dates of the guest's clock.
    pub clock: WallClock,
    /// How many records were evicted since the look before, or at the first look, since the agent
    /// started.
    pub evicted: u64,
}

impl EventReader {
    /// Fetches the new events; the first look fetches those since `since_ns`.
    pub fn look(
        &mut self,
        session: &mut Session,
        since_ns: u64,
        observer: &mut dyn Observer,
    ) -> Result<Look, RecordError> {
        if !session.agent().keeps_time() {
            return Err(RecordError::NoRing);
        }
        let mut rings = Vec::new();
        let mut evicted = 0_u64;
        for vcpu in 0..session.agent().vcpus {
            let position = self.next.get(&vcpu).copied();
            let request = RingRequest { vcpu, position: position.unwrap_or(0), since_ns };
            let (ring, next) =
                session.persist(observer, |connection, _| records(connection, &request))?;
            let gone = ring.evicted.saturating_sub(request.position);
            evicted = evicted.saturating_add(gone).saturating_add(ring.overwritten);
            self.next.insert(vcpu, next);
            rings.push(ring);
        }
        // After the records: every name that they use is there by now.
        let names = session.persist(observer, |connection, _| names(connection))?;
        let timeline = Timeline::new(rings, names, 0);
        let mut events = timeline.events_after(Window::ALL, &mut self.waits);
        for event in &mut events {
            self.complete(event);
        }
        Ok(Look { events, clock: timeline.wall_clock(), evicted })
    }

    /// Finds how long a span took that began in an earlier look.
    fn complete(&mut self, event: &mut Event) {
        match &mut event.what {
            What::SpanBegin { name, number, .. } if self.open.len() < MOST_OPEN => {
                self.open.insert((name.clone(), *number), event.at_ns);
            }
            What::SpanEnd { name, number, length_ns } => {
                let began_ns = self.open.remove(&(name.clone(), *number));
                let passed = began_ns.map(|began| event.at_ns.saturating_sub(began));
                *length_ns = length_ns.or(passed);
            }
            _ => {}
        }
    }
}

/// The records that a request asks for, and where to go on.
fn records(connection: &mut Connection, request: &RingRequest) -> Result<(Ring, u64), Attempt> {
    connection.send(request, DOING)?;
    let mut ring = Ring { vcpu: request.vcpu, ..Ring::default() };
    let (mut order, mut next, mut after) = (RingOrder::on_the_wire(), 0, None::<u64>);
    let bytes = &mut Vec::new();
    let answer = Answer::Records(request.vcpu);
    receive(connection, &mut order, answer, bytes, |part| match part {
        RingPart::Head(head) => {
            ring.evicted = head.oldest;
            ring.read_at_ns = head.now_ns;
            ring.read_at_unix_ns = head.wall_clock_ns;
            Ok(())
        }
        RingPart::Run(run) => {
            // Records between two runs were evicted while the answer was on its way.
            let missing = after.map_or(0, |after| run.first.saturating_sub(after));
            ring.overwritten = ring.overwritten.saturating_add(missing);
            after = Some(run.first.saturating_add(run.count.into()));
            let push = |record| ring.records.push(record);
            Ok(ring::decode(run.base_ns, run.count, run.payload, push)?)
        }
        RingPart::End(end) => {
            next = end.next;
            Ok(())
        }
        _ => Ok(()),
    })?;
    Ok((ring, next))
}

fn names(connection: &mut Connection) -> Result<BTreeMap<u32, String>, Attempt> {
    connection.send(&EventNames { first: 0 }, DOING)?;
    let (mut order, mut names) = (RingOrder::on_the_wire(), BTreeMap::new());
    let bytes = &mut Vec::new();
    receive(connection, &mut order, Answer::Names, bytes, |part| {
        if let RingPart::Name(name) = part {
            names.insert(name.id, name.name.to_owned());
        }
        Ok(())
    })?;
    Ok(names)
}
