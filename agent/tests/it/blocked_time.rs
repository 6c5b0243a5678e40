//! Recordings of blocked time, measured or sampled.

use std::sync::atomic::Ordering;

use crate::client::serve;
use crate::client::{Download, one_ms, special};
use crate::fake_guest::{
    AT_CLOCK, Client, FakeAgent, UPCALL, agent_with_ring, block, deliver, guest, on_stack, tick,
};
use unikprof_agent::Platform;
use unikprof_proto::code::{frame_code, mode};
use unikprof_proto::message::Start;

const OFF_CPU: Start<'static> = Start { mode: mode::OFF_CPU, ..one_ms() };
const WALL: Start<'static> = Start { mode: mode::WALL, ..one_ms() };
const MS: u64 = 1_000_000;

fn stop(client: &mut Client) -> Download {
    let pending = client.stop(0);
    assert!(pending.complete);
    client.fetch(pending.first_epoch)
}

fn started(start: Start<'static>) -> (&'static FakeAgent, Client) {
    let (agent, _, mut client) = guest();
    client.start(start);
    (agent, client)
}

/// Off-CPU time is measured, not sampled: exact to the nanosecond, each wait under its stack.
#[test]
fn blocked_time_is_counted_where_the_guest_blocked() {
    let (agent, mut client) = started(OFF_CPU);
    assert_eq!(agent.deadline(), None, "nothing is sampled");
    block(agent, &[1, 2, 3], 5 * MS + 7);
    agent.platform().run(20 * MS);
    block(agent, &[9, 2, 3], 300);
    block(agent, &[1, 2, 3], 1);
    let got = stop(&mut client);
    assert_eq!(got.stacks[&vec![1, 2, 3]], 5 * MS + 8);
    assert_eq!(got.stacks[&vec![9, 2, 3]], 300);
    assert_eq!(got.stacks.len(), 2);
    assert_eq!((got.counters.ticks, got.counters.blocks), (0, 3));
    assert_eq!(got.counters.blocked_overflow, 0);
}

/// The guest has been waiting since before the last dump: each epoch gets its part of the wait.
#[test]
fn a_wait_is_divided_between_epochs() {
    let (agent, mut client) = started(OFF_CPU);
    let stack = [1, 2];
    on_stack(&stack, |registers| agent.on_block(Some(registers)));
    agent.platform().idle(3 * MS);
    let pending = client.dump(0);
    let first = client.fetch(pending.first_epoch);
    client.acknowledge(pending.first_epoch);
    agent.platform().idle(2 * MS);
    let last = stop(&mut client);
    assert_eq!(first.stacks[&vec![1, 2]], 3 * MS);
    assert_eq!(last.stacks[&vec![1, 2]], 2 * MS);
    assert_eq!(last.counters.blocks, 0, "it began in the first");
    // The recording has ended: waking up does not change it.
    agent.platform().idle(MS);
    agent.on_wake();
}

/// The wait begins before the recording: the first upcall inside it provides the stack.
#[test]
fn a_wait_that_began_before_the_recording_is_found() {
    let (agent, _, mut client) = guest();
    agent.on_block(None);
    agent.platform().idle(MS);
    client.start(OFF_CPU);
    agent.platform().idle(MS);
    on_stack(&[5, 6], |registers| {
        assert_eq!(agent.on_tick(Some(registers)), None, "it sleeps on");
    });
    agent.platform().idle(7 * MS);
    agent.on_wake();
    let got = stop(&mut client);
    assert_eq!(got.stacks[&vec![5, 6]], 7 * MS);
}

/// The recording's time was over before the guest blocked, and no tick had ended it: its last epoch
/// ends where the wait begins.
#[test]
fn a_wait_after_the_end_of_a_recording_is_none_of_its() {
    let (agent, mut client) = started(Start { duration_ns: 10 * MS, ..OFF_CPU });
    agent.platform().run(12 * MS);
    let pending = client.dump(0);
    client.acknowledge(pending.first_epoch);
    agent.platform().run(MS);
    block(agent, &[1, 2], 3 * MS);
    let last = stop(&mut client);
    assert_eq!((last.counters.blocked, last.passed_ns, last.running_ns), (0, MS, MS));
}

/// The states of a vCPU in an epoch make up its length, wherever the recording's end falls: before a
/// block that no tick preceded, inside one, or behind its wake. Guards against epochs that ran for
/// longer than they lasted.
#[test]
fn the_times_of_an_epoch_make_up_its_length() {
    let mut state = 7_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 33) % below
    };
    for life in 0..300 {
        let start = if life % 2 == 0 { OFF_CPU } else { WALL };
        let (agent, mut client) = started(Start { duration_ns: 10 * MS, ..start });
        let end_ns = agent.platform().now_ns() + 10 * MS;
        let mut epochs = Vec::new();
        for _ in 0..random(8) {
            agent.platform().run(random(5 * MS));
            on_stack(&[1, 2], |registers| agent.on_block(Some(registers)));
            agent.platform().run(random(2 * MS));
            agent.platform().idle(random(5 * MS));
            if random(4) == 0 && agent.platform().now_ns() < end_ns {
                epochs.push(client.collect_dump(0));
            }
            agent.platform().run(random(2 * MS));
            if random(4) == 0 {
                deliver(agent, &[1, 2]);
            }
            agent.on_wake();
        }
        epochs.push(client.collect_stop(0));
        for got in epochs {
            assert_eq!(got.running_ns + got.blocked_ns, got.passed_ns, "life {life}: {got:?}");
            if start.mode == mode::OFF_CPU {
                assert_eq!(got.counters.blocked, got.blocked_ns, "life {life}: {got:?}");
            }
        }
    }
}

/// Guards against blocked time that runs backwards: where others keep a vCPU that was woken from
/// running, another vCPU sees it blocked, until it runs and the time since is found to be stolen.
#[test]
fn blocked_time_that_is_taken_back_is_none_of_the_next_epoch() {
    for start in [OFF_CPU, WALL] {
        let (agent, mut client) = started(start);
        agent.platform().idle(10 * MS);
        let pending = client.dump(0);
        client.acknowledge(pending.first_epoch);
        agent.platform().running_ns.fetch_add(4 * MS, Ordering::Relaxed);
        let last = stop(&mut client);
        assert_eq!(last.blocked_ns, 0);
        assert_eq!(last.end.runstate.unwrap().blocked_ns, 10 * MS);
    }
}

/// Guards that blocked time without a known stack is reported.
#[test]
fn blocked_time_without_a_stack_is_reported() {
    let (agent, mut client) = started(OFF_CPU);
    agent.on_block(None);
    agent.platform().idle(4 * MS);
    agent.on_wake();
    let got = stop(&mut client);
    assert_eq!(got.counters.blocked_overflow, 4 * MS);
    assert_eq!(got.counters.blocked, 0);
}

/// Running and blocked time on one clock: the shares are those of elapsed time.
#[test]
fn wall_clock_time_is_sampled_awake_and_blocked() {
    let (agent, mut client) = started(WALL);
    for _ in 0..2_000 {
        // A quarter of a millisecond of work, three quarters of waiting.
        let end = agent.platform().now_ns() + MS / 4;
        while agent.deadline().is_some_and(|deadline| deadline <= end) {
            assert!(tick(agent, &[1, 2]));
        }
        agent.platform().run(end - agent.platform().now_ns());
        block(agent, &[7, 2], 3 * MS / 4);
    }
    let got = stop(&mut client);
    // 2,000 targets whose steps are uniform: six deviations are 77.
    assert!(got.samples.abs_diff(2_000) < 77, "{}", got.samples);
    let blocked = got.stacks[&vec![special(frame_code::BLOCKED), 7, 2]];
    let running = got.stacks[&vec![1, 2]];
    assert_eq!((got.counters.blocked, got.counters.recorded), (blocked, running));
    // At most binomial: six deviations of 2,000 at 3/4 are 116.
    assert!(blocked.abs_diff(1_500) < 116, "{blocked} of 1,500");
    assert_eq!(got.counters.idle, 0);
}

/// Waits that the guest does not report are counted in mode `wall`, without a stack: not on that of
/// the next block, and not as ticks that are missing.
#[test]
fn waits_that_are_not_reported_have_no_stack() {
    let (agent, mut client) = started(WALL);
    for _ in 0..200 {
        agent.platform().idle(10 * MS);
        block(agent, &[7, 2], 5 * MS);
    }
    agent.platform().idle(500 * MS);
    let got = stop(&mut client);
    let blocked = got.stacks[&vec![special(frame_code::BLOCKED), 7, 2]];
    // The variance is a twelfth: six deviations of 1,000 and 2,500 are 55 and 87.
    assert!(blocked.abs_diff(1_000) < 55, "{blocked} of 1,000");
    assert!(got.counters.blocked_overflow.abs_diff(2_500) < 87, "{:?}", got.counters);
}

/// Code between the block and the wake, mainly upcalls, is running time: the next tick samples it.
#[test]
fn what_runs_within_a_block_is_sampled_awake() {
    let (agent, mut client) = started(WALL);
    for _ in 0..2_000 {
        on_stack(&[7, 2], |registers| agent.on_block(Some(registers)));
        agent.platform().run(MS / 8);
        agent.platform().idle(MS / 2);
        agent.platform().run(MS / 8);
        let mut deadline = agent.on_wake();
        let end = agent.platform().now_ns() + MS / 4;
        while deadline.is_some_and(|deadline| deadline <= end) {
            assert!(tick(agent, &[1, 2]));
            deadline = agent.deadline();
        }
        agent.platform().run(end - agent.platform().now_ns());
    }
    let got = stop(&mut client);
    assert!(got.samples.abs_diff(2_000) < 77, "{}", got.samples);
    // At most binomial: six deviations of 2,000 at 1/2 are 134.
    let blocked = got.stacks[&vec![special(frame_code::BLOCKED), 7, 2]];
    assert!(blocked.abs_diff(1_000) < 134, "{blocked} of 1,000");
    assert_eq!(got.stacks[&vec![1, 2]], got.counters.recorded);
    assert_eq!((got.counters.idle, got.counters.late), (0, 0));
}

/// An idle guest sleeps through a wall-clock recording, and the recording contains its sleep.
#[test]
fn a_sleeping_guest_is_not_woken_and_still_seen() {
    let (agent, mut client) = started(WALL);
    on_stack(&[7, 2], |registers| agent.on_block(Some(registers)));
    assert_eq!(agent.deadline(), None);
    agent.platform().idle(10_000 * MS);
    let got = stop(&mut client);
    let slept = got.stacks[&vec![special(frame_code::BLOCKED), 7, 2]];
    assert!(slept.abs_diff(10_000) < 20, "{slept} of 10,000");
    assert_eq!(got.counters.ticks, 0);
}

const SECOND: u64 = 1_000 * MS;

/// The code that counts the wait that is open when a recording ends.
#[derive(Clone, Copy, Debug)]
enum Finder {
    Tick,
    Wake,
    Poll,
}

/// A recording of 30 s ends inside a block. The wait is counted up to that end, whatever notices
/// it.
#[test]
fn a_wait_that_is_open_at_the_end_is_counted_up_to_it() {
    for finder in [Finder::Tick, Finder::Wake, Finder::Poll] {
        for wakes in [0, 5] {
            for start in [OFF_CPU, WALL] {
                let (agent, mut client) = started(Start { duration_ns: 30 * SECOND, ..start });
                for _ in 0..wakes {
                    block(agent, &[1, 2], 5 * SECOND);
                }
                on_stack(&[1, 2], |registers| agent.on_block(Some(registers)));
                agent.platform().idle((30 - 5 * wakes) * SECOND + 7 * MS);
                match finder {
                    Finder::Tick => {
                        deliver(agent, &[1, 2]);
                    }
                    Finder::Wake => {
                        agent.on_wake();
                    }
                    Finder::Poll => {}
                }
                agent.platform().idle(3 * SECOND);
                let got = stop(&mut client);
                let seen = (finder, wakes, &got);
                let counted = got.counters.blocked;
                if start.mode == mode::OFF_CPU {
                    assert_eq!(counted, 30 * SECOND, "{seen:?}");
                } else {
                    assert!(counted.abs_diff(30_000) < 20, "{counted} {seen:?}");
                }
                let clocks = (got.passed_ns, got.blocked_ns);
                assert_eq!(clocks, (30 * SECOND, 30 * SECOND), "{seen:?}");
            }
        }
    }
}

/// A tick that interrupts the accounting of its own vCPU's block finds the slot busy. It is still
/// counted, as a sample of the agent's work on the interrupted stack.
#[test]
fn a_tick_within_the_accounting_of_a_block_is_a_sample() {
    let (agent, mut client) = started(OFF_CPU);
    client.start(Start { name: "ticks", ..one_ms() });
    for _ in 0..3 {
        let due_ns = agent.deadline().unwrap();
        agent.platform().run(due_ns - agent.platform().now_ns());
        UPCALL.set(Some(Box::new(|| {
            deliver(agent, &[8, 1, 2]);
        })));
        block(agent, &[1, 2], MS);
    }
    let pending = client.stop(2);
    let got = client.fetch(pending.first_epoch);
    let counters = got.counters;
    assert_eq!((counters.ticks, counters.lost, counters.recorded), (3, 0, 3));
    assert_eq!(got.stacks.values().sum::<u64>(), 3);
    assert!(
        got.stacks.keys().all(|stack| stack[..3] == [8, 1, 2] && stack.len() == 4),
        "{:?}",
        got.stacks
    );
}

/// A recording begins while the guest waits, and its tick comes as the vCPU wakes, behind the look
/// for open blocks. Guards against a block that stays open: the next wait would be charged to what
/// the tick interrupted.
#[test]
fn a_tick_within_a_wake_opens_no_block() {
    let agent = agent_with_ring(1, 1 << 18, 1 << 16);
    let mut client = Client::connect(&serve(agent));
    agent.platform().run(MS);
    agent.on_block(None);
    agent.platform().idle(MS);
    client.start(OFF_CPU);
    AT_CLOCK.set(Some(Box::new(|| {
        deliver(agent, &[5, 6]);
    })));
    agent.on_wake();
    agent.platform().run(MS);
    block(agent, &[1, 2], 5 * MS);
    let got = stop(&mut client);
    assert_eq!(got.stacks.get(&vec![1, 2]), Some(&(5 * MS)), "{:?}", got.stacks);
}

/// A tick that comes as the vCPU wakes, before its wait is counted, is not counted as a target in
/// the wait.
#[test]
fn a_tick_within_a_wake_takes_no_blocked_time() {
    let (agent, mut client) = started(WALL);
    on_stack(&[1, 2], |registers| agent.on_block(Some(registers)));
    agent.platform().idle(100 * MS);
    UPCALL.set(Some(Box::new(|| {
        deliver(agent, &[5, 6]);
    })));
    agent.on_wake();
    let got = stop(&mut client);
    let counters = got.counters;
    assert!(counters.blocked.abs_diff(100) < 10 && counters.late == 0, "{counters:?}");
}

/// The recording's time is over, and the tick that finds it interrupts the vCPU's own accounting,
/// which owns the slot. Another tick must end the recording.
#[test]
fn a_tick_that_cannot_end_a_recording_has_a_deadline() {
    let (agent, mut client) = started(Start { duration_ns: 10 * MS, ..WALL });
    agent.platform().run(11 * MS);
    UPCALL.set(Some(Box::new(|| {
        let now_ns = agent.platform().now_ns();
        let deadline_ns = deliver(agent, &[8, 1, 2]);
        // Not at once: the interrupted code must come to its end.
        assert!(deadline_ns.is_some_and(|at_ns| at_ns > now_ns), "{deadline_ns:?} at {now_ns}");
    })));
    block(agent, &[1, 2], MS);
    assert!(UPCALL.take().is_none(), "the tick came");
    stop(&mut client);
}
