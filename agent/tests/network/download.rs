//! An epoch as it comes in.

use unikprof_proto::code::message_type;
use unikprof_proto::message::{EpochEnd, Nodes, VcpuEpoch};
use unikprof_proto::nodes;

use super::{End, Frame, Stacks, read, unexpected};

/// A download in progress.
#[derive(Default)]
pub struct Download {
    /// Whole stacks by their node; node 0 is the root.
    nodes: Vec<Vec<u32>>,
    pub stacks: Stacks,
    pub recorded: u64,
    expected_nodes: u32,
    /// What the end said; there once all is.
    pub samples: Option<u64>,
}

impl Download {
    /// Takes the next frame of the answer.
    pub fn take(&mut self, frame: &Frame) -> Result<(), End> {
        match frame.0 {
            message_type::EPOCH | message_type::HISTOGRAM => {}
            message_type::VCPU_EPOCH => {
                let vcpu: VcpuEpoch = read(frame);
                assert!(vcpu.end.counters.add_up());
                self.recorded = vcpu.end.counters.recorded - vcpu.start.counters.recorded;
                self.expected_nodes = vcpu.nodes;
                self.nodes = vec![Vec::new()];
            }
            message_type::NODES => {
                let run: Nodes<'_> = read(frame);
                assert_eq!(
                    run.first as usize,
                    self.nodes.len(),
                    "no node twice or never"
                );
                nodes::decode(run.first, run.count, run.payload, |_, node| {
                    let mut stack = node.frames.to_vec();
                    stack.extend_from_slice(&self.nodes[node.parent as usize]);
                    if node.count > 0 {
                        let before = self.stacks.insert(stack.clone(), node.count);
                        assert_eq!(before, None, "a stack twice");
                    }
                    self.nodes.push(stack);
                })
                .unwrap();
            }
            message_type::EPOCH_END => {
                let end: EpochEnd = read(frame);
                self.samples = Some(end.samples);
            }
            _ => return Err(unexpected(frame)),
        }
        Ok(())
    }

    /// Fails where the sums differ, once all is there.
    pub fn check(&self) {
        assert_eq!(self.nodes.len() as u32, 1 + self.expected_nodes);
        let sum: u64 = self.stacks.values().sum();
        assert_eq!((Some(sum), sum), (self.samples, self.recorded));
    }
}
