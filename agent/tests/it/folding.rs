//! The folding of counts into `aged`, interrupted by what else a guest and its client do: whatever
//! comes between two of its pieces, each sample and each wait is counted once.

use crate::client::{Known, download_to, newest, one_ms, whole};
use crate::fake_guest::{Client, FakeAgent, block, connected, on_stack, tick};
use unikprof_proto::code::{mode, start_flag};
use unikprof_proto::message::{Check, Counters, Fetch, Pending, Start, Status};

const MS: u64 = 1_000_000;

/// Enough nodes that one poll does not fold a segment to its end.
const MEMORY: usize = 2 << 20;

/// A guest whose samples are all of new stacks, with one client.
struct Guest {
    agent: &'static FakeAgent,
    client: Client,
    known: Known,
    leaf: u64,
}

impl Guest {
    fn new() -> Self {
        let (agent, _, client) = connected(1, MEMORY);
        Self { agent, client, known: Known::new(), leaf: 100 }
    }

    fn start(&mut self, name: &str, mode: u32) {
        let start = Start { name, mode, flags: start_flag::KEEP_NEWEST, ..one_ms() };
        self.client.start(start);
    }

    /// The nodes that the agent has in use, and the most that it can have.
    fn nodes(&mut self) -> (u64, u64) {
        let status: Status = self.client.answer(&Check {});
        (status.nodes_used, status.nodes_capacity)
    }

    fn segment(&mut self) -> u64 {
        self.nodes().1 / 6
    }

    fn poll(&mut self, times: u32) {
        for _ in 0..times {
            self.client.advance();
        }
    }

    /// Samples so many new stacks.
    fn sample(&mut self, stacks: u64) {
        for _ in 0..stacks {
            self.leaf += 1;
            assert!(tick(self.agent, &[self.leaf]));
        }
    }

    /// Samples new stacks until so little of the memory is left that the oldest must be folded.
    fn fill(&mut self) {
        let (used, capacity) = self.nodes();
        self.sample(capacity * 23 / 24 - used);
    }

    /// Fetches what waits and acknowledges it; returns what the recording has counted.
    fn fetch(&mut self, pending: Pending) -> Counters {
        assert!(pending.complete && pending.epochs == 1);
        let epoch = pending.first_epoch;
        let frames = self.client.ask(&Fetch { known: newest(&self.known), ..whole(epoch) });
        let got = download_to(&mut self.known, &frames);
        let counted: u64 = got.stacks.values().sum();
        assert_eq!(counted, got.samples, "what the head promises");
        assert_eq!(counted, got.counters.recorded + got.counters.blocked);
        self.client.acknowledge(epoch);
        got.counters
    }

    /// The aged count of the first recording.
    fn aged(&mut self) -> u64 {
        self.client.status().1.aged
    }

    fn drain(&mut self) -> Counters {
        let pending = self.client.dump(0);
        self.fetch(pending)
    }

    fn stop(&mut self, recording: u64) -> Counters {
        let pending = self.client.stop(recording);
        self.fetch(pending)
    }
}

/// A vCPU waits on an old stack, and another one polls: the stack's segment is condemned and
/// folded. The vCPU wakes after any number of those polls.
#[test]
fn a_wait_that_ends_while_its_segment_is_folded_is_counted() {
    for polls in 0..10 {
        let mut guest = Guest::new();
        guest.start("waits", mode::OFF_CPU);
        guest.start("ticks", mode::CPU);
        block(guest.agent, &[1, 2], MS);
        guest.fill();
        on_stack(&[1, 2], |registers| guest.agent.on_block(Some(registers)));
        guest.agent.platform().idle(3 * MS);
        guest.poll(polls);
        guest.agent.on_wake();
        guest.poll(20);
        let got = guest.stop(1);
        assert_eq!(got.blocked + got.blocked_aged, 4 * MS, "{polls} polls");
        assert_eq!(got.blocked_overflow, 0, "{polls} polls");
    }
}

/// A client takes the counts of a segment that is half folded. When the same segment, which has new
/// stacks by then, is folded the next time, all of it is. One of the two numbers of fetches gives
/// its counts the same column again.
#[test]
fn a_segment_that_was_fetched_while_it_was_folded_is_folded_whole_the_next_time() {
    for drains in 4..=5 {
        let mut guest = Guest::new();
        guest.start("ticks", mode::CPU);
        guest.fill();
        while guest.aged() == 0 {
            guest.poll(1);
        }
        guest.poll(1);
        let aged = guest.aged();
        // The last fetch but one, or the last, comes when the first segment has just begun anew.
        let stacks = guest.segment() / 12 + 10;
        for _ in 0..drains {
            guest.drain();
            guest.poll(20);
            guest.sample(stacks);
        }
        while guest.aged() == aged {
            guest.sample(stacks);
            guest.poll(20);
        }
        guest.stop(1);
    }
}
