//! How long vCPUs blocked, from one event to the next.

use std::collections::BTreeMap;

use super::{Event, What};

/// Since when vCPUs block.
#[derive(Debug, Clone, Default)]
pub(crate) struct Blocks(BTreeMap<u32, u64>);

impl Blocks {
    /// Says of each wake how long its vCPU had blocked, where its block is among these events or
    /// earlier ones; the events of a vCPU must come in the order of their times.
    pub(crate) fn complete(&mut self, events: &mut [Event]) {
        for event in events {
            match &mut event.what {
                What::Block => {
                    self.0.insert(event.vcpu, event.at_ns);
                }
                What::Wake { length_ns } => {
                    let since_ns = self.0.remove(&event.vcpu);
                    let passed = since_ns.map(|since| event.at_ns.saturating_sub(since));
                    *length_ns = length_ns.or(passed);
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at_ns: u64, vcpu: u32, what: What) -> Event {
        Event { at_ns, vcpu, what }
    }

    /// A block that one look brings and its wake in the next one must find each other.
    #[test]
    fn a_wake_finds_its_own_vcpus_block_also_in_an_earlier_look() {
        let wake = What::Wake { length_ns: None };
        let mut blocks = Blocks::default();
        let mut first = [
            event(5, 0, wake.clone()),
            event(10, 0, What::Block),
            event(11, 1, What::Block),
            event(13, 1, wake.clone()),
        ];
        blocks.complete(&mut first);
        assert_eq!(first[0].what, wake, "its block was not seen");
        assert_eq!(first[3].what, What::Wake { length_ns: Some(2) });
        let mut second = [event(40, 0, wake.clone()), event(41, 1, wake.clone())];
        blocks.complete(&mut second);
        assert_eq!(second[0].what, What::Wake { length_ns: Some(30) });
        assert_eq!(second[1].what, wake);
    }
}
