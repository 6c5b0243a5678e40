//! The estimated cost of timer deliveries: measured when a recording begins, and by nothing but a
//! delivery that followed the one before at once.

use crate::client::{one_ms, read};
use crate::fake_guest::{CODE, Client, FakeAgent, FakePlatform, guest};
use unikprof_agent::{Platform as _, Registers};
use unikprof_proto::code::mode;
use unikprof_proto::message::{Check, RecordingStatus, Snapshot, Start};

const MS: u64 = 1_000_000;
const US: u64 = 1_000;
const CYCLES_PER_NS: u64 = 3;

/// A guest whose timer is delivered `delivery_ns` after it was armed for a deadline that had
/// passed.
struct Guest {
    agent: &'static FakeAgent,
    client: Client,
    delivery_ns: u64,
    /// The number of deliveries at a deadline that had passed.
    passed: u64,
    /// The instruction that is interrupted next.
    pc: u64,
}

impl Guest {
    fn new(delivery_ns: u64) -> Self {
        let (agent, _, client) = guest();
        let cycles_per_ns = &agent.platform().cycles_per_ns;
        cycles_per_ns.store(CYCLES_PER_NS, std::sync::atomic::Ordering::Relaxed);
        agent.platform().run(MS);
        Self { agent, client, delivery_ns, passed: 0, pc: CODE }
    }

    fn platform(&self) -> &'static FakePlatform {
        self.agent.platform()
    }

    fn deliver(&self) -> Option<u64> {
        self.agent.on_tick(Some(&Registers::new(self.pc, 0x1000, 0)))
    }

    /// Runs for `ms`, with a delivery at every deadline.
    fn run(&mut self, ms: u64) {
        let until_ns = self.platform().now_ns() + ms * MS;
        let mut deadline_ns = self.agent.deadline();
        while let Some(at_ns) = deadline_ns
            && self.platform().now_ns() < until_ns
        {
            match at_ns.checked_sub(self.platform().now_ns()).filter(|ns| *ns != 0) {
                Some(left_ns) => {
                    self.platform().run(left_ns);
                    self.pc = CODE + (self.pc + 1) % 0x1000;
                }
                None => {
                    self.platform().run(self.delivery_ns);
                    self.passed += 1;
                }
            }
            deadline_ns = self.deliver();
        }
    }

    /// Runs until a tick returns a deadline that has passed.
    fn run_until_passed(&mut self) {
        for _ in 0..100 {
            self.platform().run(MS / 4);
            if self.deliver().is_some_and(|at| at <= self.platform().now_ns()) {
                return;
            }
        }
        panic!("no deadline had passed");
    }

    fn dump(&mut self) -> Snapshot {
        let epoch = self.client.end_epoch();
        let download = self.client.fetch(epoch);
        self.client.acknowledge(epoch);
        download.end
    }
}

fn estimate(snapshot: &Snapshot) -> (u64, u64) {
    (snapshot.delivery_cycles, snapshot.deliveries_measured)
}

/// Guards against a cost without the deliveries, and against measurements that count as ticks, move
/// the targets or go on for ever.
#[test]
fn the_first_ticks_measure_what_a_delivery_costs() {
    let mut guest = Guest::new(17 * US);
    guest.client.start(one_ms());
    guest.run(1000);
    let end = guest.dump();
    assert_eq!(estimate(&end), (17 * US * CYCLES_PER_NS, 16));
    assert_eq!((guest.passed, end.counters.early), (16, 16));
    assert!(end.counters.ticks.abs_diff(1000) < 30, "{:?}", end.counters);
    assert_eq!(end.counters.late, 0);

    guest.run(1000);
    let status = &guest.client.ask(&Check {})[1];
    let overhead = read::<RecordingStatus<'_>>(status).overhead;
    assert_eq!((guest.passed, overhead.deliveries_measured), (16, 16));
    assert!(overhead.delivery_ns.abs_diff(1000 * 17 * US) < 30 * 17 * US, "{overhead:?}");
    assert!(overhead.running_ns.abs_diff(1000 * MS) < 3 * MS, "{overhead:?}");

    // Later recordings measure again.
    guest.delivery_ns = 40 * US;
    guest.client.discard();
    guest.client.start(one_ms());
    guest.run(100);
    assert_eq!(estimate(&guest.dump()), (40 * US * CYCLES_PER_NS, 16));
    assert_eq!(guest.passed, 32);
}

/// Guards against a median that preemptions falsify.
#[test]
fn lost_time_is_left_out() {
    let mut guest = Guest::new(17 * US);
    guest.client.start(one_ms());
    for round in 0..16 {
        guest.run_until_passed();
        // Between the two deliveries the vCPU loses its CPU, or is interrupted for long.
        match round {
            1 | 5 | 9 => guest.platform().idle(5 * MS),
            2 | 6 | 10 => guest.platform().idle(100 * US),
            _ => {}
        }
        guest.platform().run(if round == 3 { 90 * US } else { 17 * US });
        guest.deliver();
    }
    assert_eq!(estimate(&guest.dump()), (17 * US * CYCLES_PER_NS, 10));
}

/// Guards against a time in which the guest has run, blocked or had no recording, taken for the
/// cost of a delivery, and against a guest that is interrupted again and again.
#[test]
fn a_guest_that_is_not_interrupted_at_once_has_no_estimate() {
    // A timer that fires once a millisecond, and ignores deadlines. The guest is a short loop.
    let mut coarse = Guest::new(0);
    coarse.client.start(Start { period_ns: 10 * MS, ..one_ms() });
    for round in 0..1000 {
        coarse.platform().run(MS);
        coarse.pc = CODE + round % 2;
        coarse.deliver();
    }
    let end = coarse.dump();
    assert_eq!(estimate(&end), (0, 0));
    assert!(end.counters.ticks.abs_diff(100) < 10, "{:?}", end.counters);

    // One that fires late, after the guest has run.
    let mut runs = Guest::new(0);
    runs.client.start(one_ms());
    for round in 0..1000 {
        runs.platform().run(50 * US);
        runs.pc = CODE + round;
        runs.deliver();
    }
    assert_eq!(estimate(&runs.dump()), (0, 0));

    // A block between the two.
    let mut blocks = Guest::new(0);
    blocks.client.start(Start { mode: mode::WALL, ..one_ms() });
    for _ in 0..1000 {
        blocks.platform().run(MS / 10);
        if blocks.deliver().is_some_and(|at| at <= blocks.platform().now_ns()) {
            blocks.agent.on_block(None);
            blocks.platform().idle(100 * US);
            blocks.agent.on_wake();
            blocks.platform().run(10 * US);
            blocks.deliver();
        }
    }
    assert_eq!(estimate(&blocks.dump()), (0, 0));

    // The end of the recording between the two, and a new one.
    let mut ends = Guest::new(0);
    for _ in 0..40 {
        ends.client.start(one_ms());
        ends.run_until_passed();
        ends.client.discard();
        ends.client.start(one_ms());
        ends.platform().run(100 * US);
        ends.deliver();
        assert_eq!(estimate(&ends.dump()), (0, 0));
        ends.client.discard();
    }

    // Upcalls without registers, and a platform without a cycle counter.
    let mut masked = Guest::new(0);
    masked.client.start(one_ms());
    for _ in 0..100 {
        masked.platform().run(MS);
        let deadline = masked.agent.on_tick(None);
        assert!(deadline.is_some_and(|at| at > masked.platform().now_ns()));
    }
    assert_eq!(estimate(&masked.dump()), (0, 0));
    let mut uncounted = Guest::new(17 * US);
    let cycles_per_ns = &uncounted.platform().cycles_per_ns;
    cycles_per_ns.store(0, std::sync::atomic::Ordering::Relaxed);
    uncounted.client.start(one_ms());
    uncounted.run(100);
    assert_eq!((estimate(&uncounted.dump()), uncounted.passed), ((0, 0), 0));
}
