//! From the wire's stack nodes to a profile's stacks.

use unikprof_proto::code::frame_code;
use unikprof_proto::nodes::Node;

use super::error::Damage;
use crate::agent_info::AgentInfo;
use crate::profile::{AddressKind, Frame, NodeId, ProfileBuilder};

/// The deepest stack read, in frames: far above what an agent keeps.
pub(super) const MAX_DEPTH: u32 = 4096;

/// The stacks of one vCPU in one epoch, by the ids of their nodes.
#[derive(Default)]
pub(super) struct Stacks {
    vcpu: u32,
    /// The node with id `n` is at `n - 1`.
    nodes: Vec<Stack>,
}

/// A stack whose innermost frame may be a leaf or, for its children, a caller.
#[derive(Clone, Copy)]
struct Stack {
    callers: NodeId,
    innermost: Frame,
    depth: u32,
}

impl Stacks {
    /// Goes to the next vCPU.
    pub(super) fn begin(&mut self, vcpu: u32) {
        self.vcpu = vcpu;
        self.nodes.clear();
    }

    /// Takes the next node, and counts the stack that ends in it.
    pub(super) fn add(
        &mut self,
        node: Node<'_>,
        agent: &AgentInfo,
        builder: &mut ProfileBuilder,
    ) -> Result<(), Damage> {
        let count = node.count;
        if let Some(stack) = self.push(node, agent, builder)?
            && count > 0
        {
            let leaf = builder.step(stack.callers, stack.innermost)?;
            builder.count(self.vcpu, leaf, count);
        }
        Ok(())
    }

    fn push(
        &mut self,
        node: Node<'_>,
        agent: &AgentInfo,
        builder: &mut ProfileBuilder,
    ) -> Result<Option<Stack>, Damage> {
        // The decoder keeps parents before their children, and nodes without frames out.
        let parent = node
            .parent
            .checked_sub(1)
            .and_then(|at| self.nodes.get(at as usize));
        let [innermost, outer @ ..] = node.frames else {
            return Ok(None);
        };
        let (mut callers, mut depth) = match (parent, node.frames.last()) {
            (Some(parent), Some(&inner)) => {
                let frame = match marks_a_place(inner) {
                    true => parent.innermost,
                    false => as_caller(parent.innermost),
                };
                (builder.step(parent.callers, frame)?, parent.depth)
            }
            _ => (NodeId::ROOT, 0),
        };
        for (&code, &inner) in outer.iter().zip(node.frames).rev() {
            let frame = agent.mappings.frame(code, marks_a_place(inner))?;
            callers = builder.step(callers, frame)?;
        }
        depth += node.frames.len() as u32;
        if depth > MAX_DEPTH {
            return Err(Damage::TooDeep);
        }
        let innermost = agent.mappings.frame(*innermost, true)?;
        let stack = Stack {
            callers,
            innermost,
            depth,
        };
        self.nodes.push(stack);
        Ok(Some(stack))
    }
}

/// Whether the frame below this mark is an interrupted place, as a leaf is, and no return address.
pub(super) fn marks_a_place(code: u32) -> bool {
    matches!(code, frame_code::BLOCKED | frame_code::LATE)
}

fn as_caller(frame: Frame) -> Frame {
    match frame {
        Frame::Address { address, .. } => Frame::Address {
            address,
            kind: AddressKind::Caller,
        },
        special => special,
    }
}
