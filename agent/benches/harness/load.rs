//! Stacks of a generated program, and the order in which calls use them.

use unikprof_agent::Registers;

use super::cycles::drain_stores;
use super::fake::stacks::{Random, Stack, StackImage, stack};

pub(crate) struct Load {
    pub(crate) stacks: Vec<Stack>,
    /// The index of each call's stack.
    pub(crate) order: Vec<usize>,
}

impl Load {
    /// `count` stacks of `frames` frames, for this many calls in random order.
    pub(crate) fn new(count: usize, frames: usize, calls: usize) -> Self {
        let mut random = Random::new(11);
        Self {
            stacks: (0..count).map(|_| stack(&mut random, frames)).collect(),
            order: (0..calls).map(|_| random.below(count as u64) as usize).collect(),
        }
    }

    /// The registers of each stack when it is in `image`. Calls `visit` while it is.
    pub(crate) fn registers(
        &self,
        image: &StackImage,
        mut visit: impl FnMut(&Registers),
    ) -> Vec<Registers> {
        let lay = |stack| {
            let registers = image.lay(stack);
            visit(&registers);
            registers
        };
        self.stacks.iter().map(lay).collect()
    }

    /// Writes the stack of a call to `image`. Afterwards its words have left the store buffer.
    pub(crate) fn lay(&self, image: &StackImage, call: usize) {
        image.lay(&self.stacks[self.order[call]]);
        drain_stores();
    }
}
