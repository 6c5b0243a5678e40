//! Receives an epoch.

use std::collections::HashMap;

use unikprof_proto::code::message_type;
use unikprof_proto::message::{Counts, Nodes, VcpuEnd, VcpuEpoch};
use unikprof_proto::{counts, nodes};

use super::{End, Frame, Stacks, read, unexpected};

/// A download of one vCPU's part in progress.
#[derive(Default)]
pub struct Download {
    /// Whole stacks by node number.
    nodes: HashMap<u64, Vec<u32>>,
    /// The number of the newest node.
    newest: u64,
    pub stacks: Stacks,
    pub recorded: u64,
    /// The sum in the last frame; `None` until it arrives.
    pub samples: Option<u64>,
}

impl Download {
    /// Adds the next frame of the answer.
    pub fn take(&mut self, frame: &Frame) -> Result<(), End> {
        match frame.0 {
            message_type::EPOCH | message_type::HISTOGRAM => {}
            message_type::VCPU_EPOCH => {
                let vcpu: VcpuEpoch = read(frame);
                assert!(vcpu.end.counters.add_up());
                self.recorded = vcpu.end.counters.recorded - vcpu.start.counters.recorded;
            }
            message_type::NODES => {
                let run: Nodes<'_> = read(frame);
                assert!(run.first > self.newest, "no node twice");
                nodes::decode(run.first, run.count, run.payload, |number, node| {
                    let mut stack = node.frames.to_vec();
                    if node.parent != 0 {
                        stack.extend_from_slice(&self.nodes[&node.parent]);
                    }
                    self.nodes.insert(number, stack);
                    self.newest = number;
                })
                .unwrap();
            }
            message_type::COUNTS => {
                let run: Counts<'_> = read(frame);
                counts::decode(run.after, run.count, run.payload, |number, count| {
                    let before = self.stacks.insert(self.nodes[&number].clone(), count);
                    assert_eq!(before, None, "a stack twice");
                })
                .unwrap();
            }
            message_type::VCPU_END => {
                let end: VcpuEnd = read(frame);
                assert_eq!(end.known, self.newest, "no node is missing at the end");
                self.samples = Some(end.samples);
            }
            _ => return Err(unexpected(frame)),
        }
        Ok(())
    }

    /// Fails if the download is complete and the sums differ.
    pub fn check(&self) {
        let sum: u64 = self.stacks.values().sum();
        assert_eq!((Some(sum), sum), (self.samples, self.recorded));
    }
}
