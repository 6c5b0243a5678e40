//! Which stack nodes of a guest were received, and the checks of further ones.

use std::collections::BTreeMap;

use thiserror::Error;
use unikprof_proto::message::Nodes;
use unikprof_proto::nodes::{self, Node};
use unikprof_proto::run::InvalidRun;

use crate::runs::Runs;

/// The numbers of the stack nodes that were received, by vCPU, from one instance of an agent.
#[derive(Debug, Default, Clone)]
pub struct KnownNodes {
    /// How many numbers a segment has.
    segment_nodes: u64,
    vcpus: BTreeMap<u32, Vcpu>,
}

#[derive(Debug, Default, Clone)]
struct Vcpu {
    numbers: Runs,
    /// All nodes up to this number that the agent still holds were received.
    known: u64,
}

/// Why stack nodes are not accepted.
#[expect(missing_docs, reason = "each message says it")]
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NodeError {
    #[error(transparent)]
    Encoding(#[from] InvalidRun),
    #[error(
        "expected stack nodes of one segment of {segment_nodes} numbers, found {count} from \
         {first} on vCPU {vcpu}"
    )]
    Segment { segment_nodes: u64, vcpu: u32, first: u64, count: u32 },
    #[error("expected stack nodes of vCPU {vcpu} above {known}, found {found}")]
    Order { vcpu: u32, known: u64, found: u64 },
    #[error(
        "expected the parent of stack node {number} of vCPU {vcpu} in the same segment and before \
         it, found {parent}"
    )]
    Parent { vcpu: u32, number: u64, parent: u64 },
    #[error("expected counts of stacks that were sent, found one of stack {number} of vCPU {vcpu}")]
    Unknown { vcpu: u32, number: u64 },
}

/// In which order runs of nodes may come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeOrder {
    /// Numbers rise, and parents come before their children: on the wire.
    Rising,
    /// Any order, also repeatedly: in a file. A crash writes the newest stacks first, and again.
    Any,
}

impl KnownNodes {
    /// No nodes yet, for an agent whose segments have this many numbers.
    pub fn new(segment_nodes: u32) -> KnownNodes {
        KnownNodes { segment_nodes: segment_nodes.into(), vcpus: BTreeMap::new() }
    }

    /// The number up to which all nodes of a vCPU are known; 0 if none are.
    pub fn known(&self, vcpu: u32) -> u64 {
        self.vcpus.get(&vcpu).map_or(0, |vcpu| vcpu.known)
    }

    /// Whether a node was received.
    pub fn contains(&self, vcpu: u32, number: u64) -> bool {
        self.vcpus.get(&vcpu).is_some_and(|vcpu| vcpu.numbers.contains(number))
    }

    /// Takes the number up to which an answer says that all nodes were sent.
    pub fn sent_up_to(&mut self, vcpu: u32, number: u64) -> Result<(), NodeError> {
        let known = self.known(vcpu);
        if number < known {
            return Err(NodeError::Order { vcpu, known, found: number });
        }
        self.vcpus.entry(vcpu).or_default().known = number;
        Ok(())
    }

    /// Checks a run and adds its nodes, which are passed to `visit` with their numbers.
    pub fn add(
        &mut self,
        run: &Nodes<'_>,
        order: NodeOrder,
        mut visit: impl FnMut(u64, Node<'_>),
    ) -> Result<(), NodeError> {
        let Nodes { vcpu, first, count, .. } = *run;
        let segment = |number: u64| number.checked_div(self.segment_nodes).unwrap_or(0);
        let after = first.checked_add(count.into());
        // The first segment's birth is 1.
        let after = after.filter(|after| {
            count > 0 && segment(first) > 0 && segment(first) == segment(after - 1)
        });
        let Some(after) = after else {
            return Err(NodeError::Segment {
                segment_nodes: self.segment_nodes,
                vcpu,
                first,
                count,
            });
        };
        let of_vcpu = self.vcpus.entry(vcpu).or_default();
        if order == NodeOrder::Rising && first <= of_vcpu.known {
            return Err(NodeError::Order { vcpu, known: of_vcpu.known, found: first });
        }
        let mut wrong = None;
        nodes::decode(first, count, run.payload, |number, node| {
            let parent = node.parent;
            // The decoder rejects parents that do not come before their children.
            let is_there = parent >= first || of_vcpu.numbers.contains(parent);
            let is_right = parent == 0
                || number / self.segment_nodes == parent / self.segment_nodes
                    && (is_there || order == NodeOrder::Any);
            if !is_right && wrong.is_none() {
                wrong = Some(NodeError::Parent { vcpu, number, parent });
            }
            if wrong.is_none() && !of_vcpu.numbers.contains(number) {
                visit(number, node);
            }
        })?;
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        of_vcpu.numbers.unite(first, after);
        of_vcpu.known = of_vcpu.known.max(after - 1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Nodes of one frame each from `first` on, with these parents.
    fn add(
        known: &mut KnownNodes,
        order: NodeOrder,
        first: u64,
        parents: &[u64],
    ) -> Result<usize, NodeError> {
        let mut payload = [0; 256];
        let mut encoder = nodes::Encoder::new(first, &mut payload);
        for parent in parents {
            encoder.push(Node { parent: *parent, frames: &[16] });
        }
        let length = encoder.finish();
        let run =
            Nodes { vcpu: 2, first, count: parents.len() as u32, payload: &payload[..length] };
        let mut visited = 0;
        known.add(&run, order, |_, _| visited += 1)?;
        Ok(visited)
    }

    #[test]
    fn runs_rise_on_the_wire_and_come_in_any_order_in_a_file() {
        let mut known = KnownNodes::new(10);
        assert_eq!(add(&mut known, NodeOrder::Rising, 10, &[0, 10]), Ok(2));
        assert_eq!(add(&mut known, NodeOrder::Rising, 14, &[11]), Ok(1));
        // The rest of the first segment is not used.
        assert_eq!(add(&mut known, NodeOrder::Rising, 20, &[0]), Ok(1));
        assert_eq!((known.known(2), known.known(0)), (20, 0));
        assert!(known.contains(2, 14) && !known.contains(2, 12) && !known.contains(0, 14));
        let again = add(&mut known, NodeOrder::Rising, 13, &[0]).unwrap_err();
        assert!(matches!(again, NodeError::Order { known: 20, .. }));
        assert_eq!(add(&mut known, NodeOrder::Any, 13, &[12]), Ok(1));
        assert_eq!(add(&mut known, NodeOrder::Any, 12, &[0, 0]), Ok(1), "13 is known");
        known.sent_up_to(2, 25).unwrap();
        assert!(known.sent_up_to(2, 24).is_err());
        assert!(add(&mut known, NodeOrder::Rising, 25, &[0]).is_err());
    }

    #[test]
    fn impossible_runs_are_rejected() {
        let mut known = KnownNodes::new(10);
        for (first, parents) in [(9, &[0][..]), (0, &[0]), (19, &[0, 0]), (10, &[])] {
            let error = add(&mut known, NodeOrder::Any, first, parents).unwrap_err();
            assert!(matches!(error, NodeError::Segment { .. }), "{error}");
        }
        add(&mut known, NodeOrder::Any, 10, &[0]).unwrap();
        let other_segment = add(&mut known, NodeOrder::Any, 20, &[10]).unwrap_err();
        assert!(matches!(other_segment, NodeError::Parent { parent: 10, .. }));
        let missing = add(&mut known, NodeOrder::Rising, 13, &[12]).unwrap_err();
        assert!(matches!(missing, NodeError::Parent { parent: 12, .. }));
        let none = add(&mut KnownNodes::new(0), NodeOrder::Any, 1, &[0]).unwrap_err();
        assert!(matches!(none, NodeError::Segment { .. }), "{none}");
        let last = add(&mut KnownNodes::new(1), NodeOrder::Any, u64::MAX, &[0]).unwrap_err();
        assert!(matches!(last, NodeError::Segment { .. }), "{last}");
    }
}
