//! The stacks that a ring's records name, from nodes in whatever order they come.

use std::collections::BTreeMap;

use unikprof_proto::nodes::Node;

use super::error::Damage;
use super::stacks::{MAX_DEPTH, marks_a_place};
use crate::agent_info::AgentInfo;
use crate::profile::{NodeId, ProfileBuilder};

/// The nodes of one vCPU's stacks, by their ids.
#[derive(Default)]
pub(super) struct RingStacks {
    nodes: BTreeMap<u32, (u32, Box<[u32]>)>,
}

impl RingStacks {
    /// Takes a node.
    pub(super) fn add(&mut self, id: u32, node: Node<'_>) {
        self.nodes.insert(id, (node.parent, node.frames.into()));
    }

    /// Forgets all nodes.
    pub(super) fn clear(&mut self) {
        self.nodes.clear();
    }

    /// The stack that ends in a node; `None` where one of its nodes was not told.
    pub(super) fn stack(
        &self,
        id: u32,
        agent: &AgentInfo,
        builder: &mut ProfileBuilder,
    ) -> Result<Option<NodeId>, Damage> {
        let (mut codes, mut next) = (Vec::new(), id);
        while next != 0 {
            let Some((parent, frames)) = self.nodes.get(&next) else {
                return Ok(None);
            };
            codes.extend_from_slice(frames);
            if codes.len() > MAX_DEPTH as usize {
                return Err(Damage::TooDeep);
            }
            // The decoder keeps parents before their children, and nodes without frames out: this ends.
            next = *parent;
        }
        let mut stack = NodeId::ROOT;
        for at in (0..codes.len()).rev() {
            // A leaf is an interrupted place, and so is what lies below a mark; all others are return addresses.
            let inner = at.checked_sub(1).and_then(|inner| codes.get(inner));
            let is_place = inner.is_none_or(|inner| marks_a_place(*inner));
            stack = builder.step(stack, agent.mappings.frame(codes[at], is_place)?)?;
        }
        Ok(Some(stack))
    }
}
