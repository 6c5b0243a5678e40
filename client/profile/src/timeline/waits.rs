//! How long vCPUs waited, from records that tell of parts of waits.

use std::collections::BTreeMap;

use unikprof_proto::ring::{Record, Wait};

use super::{Event, What};

/// The parts of waits that have not ended: their length in ns, by vCPU and ring bit.
#[derive(Debug, Clone, Default)]
pub struct OpenWaits(BTreeMap<(u32, u8), u64>);

impl OpenWaits {
    /// The wake that a record of a wait tells of; `None` if the vCPU did not wake. A vCPU's records
    /// must come in the order of their times. A wait whose beginning was not seen is as long as
    /// what was.
    pub(super) fn wake(&mut self, vcpu: u32, record: &Record) -> Option<Event> {
        let wait = Wait::from_number(record.third);
        let before_ns = self.0.remove(&(vcpu, wait.ring_bits)).filter(|_| !wait.is_first);
        let length_ns = before_ns.unwrap_or(0).saturating_add(wait.length_ns);
        if !wait.is_last {
            self.0.insert((vcpu, wait.ring_bits), length_ns);
            return None;
        }
        Some(Event { at_ns: record.at_ns, vcpu, what: What::Wake { length_ns } })
    }
}

#[cfg(test)]
mod tests {
    use unikprof_proto::ring::kind;

    use super::*;

    fn record(at_ns: u64, wait: Wait) -> Record {
        Record { kind: kind::WAIT, at_ns, third: wait.to_number(), ..Record::default() }
    }

    /// A wait of which one look tells a part, and the next one the end, is one wait.
    #[test]
    fn the_parts_of_a_wait_add_up_on_its_own_vcpu() {
        let mut waits = OpenWaits::default();
        let first = Wait { ring_bits: 1, is_first: true, length_ns: 10, ..Wait::default() };
        let last = Wait { ring_bits: 1, is_last: true, length_ns: 5, ..Wait::default() };
        assert_eq!(waits.wake(0, &record(10, first)), None);
        assert_eq!(waits.wake(1, &record(11, first)), None);
        let mut length_ns = |vcpu, wait| {
            let wake = waits.wake(vcpu, &record(15, wait));
            wake.map(|wake| wake.what)
        };
        assert_eq!(length_ns(0, last), Some(What::Wake { length_ns: 15 }));
        assert_eq!(length_ns(0, last), Some(What::Wake { length_ns: 5 }), "the rest was not seen");
        let whole = Wait { is_first: true, ..last };
        assert_eq!(length_ns(1, whole), Some(What::Wake { length_ns: 5 }));
    }
}
