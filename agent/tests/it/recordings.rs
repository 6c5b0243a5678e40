//! Several recordings on one sampler: each one is correct for its own time, and stacks are stored
//! once.

use crate::client::{Download, one_ms, read};
use crate::fake_guest::{Client, FakeAgent, guest, tick};
use unikprof_agent::Platform as _;
use unikprof_proto::code::{mode, refusal, start_flag, state};
use unikprof_proto::message::{Check, RecordingStatus, Start, Status, Stop};

const MS: u64 = 1_000_000;

fn named(name: &'static str, period_ns: u64) -> Start<'static> {
    Start { name, period_ns, ..one_ms() }
}

/// Ends a recording and fetches its only epoch.
fn end(client: &mut Client, recording: u64) -> Download {
    let pending = client.stop(recording);
    assert_eq!((pending.recording, pending.epochs), (recording, 1));
    fetch(client, pending.first_epoch)
}

fn fetch(client: &mut Client, epoch: u64) -> Download {
    let fetched = client.fetch(epoch);
    client.acknowledge(epoch);
    fetched
}

/// Runs `ms` milliseconds in stacks that end in `leaf`; returns the number of deliveries.
fn run(agent: &FakeAgent, ms: u64, leaf: u64) -> u64 {
    let until = agent.platform().now_ns() + ms * MS;
    let mut deliveries = 0;
    while agent.deadline().is_some_and(|deadline| deadline < until) {
        assert!(tick(agent, &[leaf, 100, 200]));
        deliveries += 1;
    }
    let left = until.saturating_sub(agent.platform().now_ns());
    agent.platform().run(left);
    deliveries
}

fn near(found: u64, expected: u64, percent: u64) {
    let most = expected * percent / 100;
    assert!(found.abs_diff(expected) <= most, "{found}, expected {expected} within {most}");
}

/// Three rates, three time spans: each recording has the samples of its own period and span, and
/// the timer is armed no more often than for the fastest.
#[test]
fn each_recording_is_true_for_its_own_span() {
    let (agent, _, mut client) = guest();
    let slow = client.start(named("slow", 10 * MS));
    let alone = run(agent, 10_000, 1);
    near(alone, 1000, 5);
    let fast = client.start(named("fast", MS));
    let equal = client.start(named("equal", MS));
    let together = run(agent, 10_000, 2);
    near(together, 10_000, 2);
    let fast = end(&mut client, fast);
    let still = run(agent, 5_000, 3);
    near(still, 5_000, 2);
    let equal = end(&mut client, equal);
    near(run(agent, 10_000, 4), 1000, 5);
    let slow = end(&mut client, slow);

    let of = |one: &Download, leaf: u32| {
        let leaves = one.stacks.iter().filter(|(stack, _)| stack[0] == leaf);
        leaves.map(|(_, count)| *count).sum::<u64>()
    };
    assert_eq!((of(&fast, 2), fast.stacks.len()), (together, 1), "every tick is the fastest one's");
    assert_eq!(of(&equal, 2), together);
    // When it becomes the fastest, its target may have passed: then the first delivery is early.
    let early = still - of(&equal, 3);
    assert!(early <= 1 && equal.counters.early == early, "{early}");
    assert_eq!(equal.stacks.len(), 2);
    for (leaf, expected) in [(1, 1000), (2, 1000), (3, 500), (4, 1000)] {
        near(of(&slow, leaf), expected, 5);
    }
    for one in [&fast, &equal, &slow] {
        assert_eq!(one.counters.late, 0, "{:?}", one.counters);
        assert_eq!(one.counters.lost + one.counters.overflow, 0);
    }
    near(slow.running_ns, 35_000 * MS, 1);
    near(fast.running_ns, 10_000 * MS, 1);
}

/// With nearly equal rates, the slower recording makes up for ticks that a delivery could not
/// serve.
#[test]
fn a_rate_just_below_the_fastest_is_met() {
    let (agent, _, mut client) = guest();
    let fast = client.start(named("fast", MS));
    let near_it = client.start(named("near", MS * 101 / 100));
    let half = client.start(named("half", MS * 3 / 2));
    near(run(agent, 60_000, 1), 60_000, 1);
    for (recording, expected, percent) in
        [(fast, 60_000, 1), (near_it, 59_406, 2), (half, 40_000, 1)]
    {
        let one = end(&mut client, recording);
        near(one.counters.ticks, expected, percent);
    }
}

/// Guards against a recording that loses its end, or all of it, because the poll in which it begins
/// comes late.
#[test]
fn a_recording_that_begins_late_lasts_its_duration() {
    const SECOND: u64 = 1_000 * MS;
    for late_s in [3, 12] {
        let (agent, _, mut client) = guest();
        let delay_ns = SECOND;
        let start = Start { delay_ns, duration_ns: 10 * SECOND, ..named("late", MS) };
        let id = client.start(start);
        agent.platform().run(SECOND + late_s * SECOND);
        let next_ns = client.advance();
        let end_ns = agent.platform().now_ns() + 10 * SECOND;
        assert_eq!(next_ns, Some(end_ns), "when it is over");
        run(agent, 11_000, 1);
        let got = end(&mut client, id);
        near(got.counters.recorded, 10_000, 2);
        // Up to the tick after its end.
        near(got.passed_ns, 10 * SECOND, 1);
    }
}

/// Guards against a head that tells how late the guest polled: rates and shares of time are computed
/// from it.
#[test]
fn a_recording_that_is_polled_late_ended_when_it_was_due() {
    let (agent, _, mut client) = guest();
    let id = client.start(Start { duration_ns: 100 * MS, ..named("short", MS) });
    run(agent, 100, 1);
    agent.platform().run(5_000 * MS);
    client.advance();
    let ended = end(&mut client, id);
    assert_eq!(ended.epoch_ns, 100 * MS);
}

#[test]
fn modes_live_side_by_side() {
    let (agent, _, mut client) = guest();
    let start = |client: &mut Client, name, mode| {
        let start = Start { mode, ..named(name, MS) };
        client.start(start)
    };
    let cpu = start(&mut client, "cpu", mode::CPU);
    let wall = start(&mut client, "wall", mode::WALL);
    let off_cpu = start(&mut client, "off-cpu", mode::OFF_CPU);
    for _ in 0..100 {
        run(agent, 10, 1);
        agent.on_block(None);
        agent.platform().idle(30 * MS);
        agent.on_wake();
    }
    let cpu = end(&mut client, cpu).counters;
    let wall = end(&mut client, wall).counters;
    let off_cpu = end(&mut client, off_cpu).counters;
    near(cpu.recorded, 1000, 5);
    near(wall.recorded, 1000, 5);
    assert_eq!((cpu.blocks, wall.blocks, off_cpu.blocks), (0, 100, 100));
    // The stack is not known here: blocked time is reported as not counted, and none of it is lost.
    near(wall.blocked_overflow, 3000, 2);
    assert_eq!(off_cpu.blocked_overflow, 3000 * MS);
    assert_eq!((off_cpu.ticks, cpu.blocked), (0, 0));
}

#[test]
fn a_dump_leaves_the_others_alone() {
    let (agent, _, mut client) = guest();
    let one = client.start(named("one", MS));
    let two = client.start(named("two", MS));
    let mut sum = 0;
    for round in 1..=5 {
        run(agent, 100, 1);
        let pending = client.dump(one);
        assert_eq!((pending.recording, pending.epochs, pending.complete), (one, 1, true));
        sum += fetch(&mut client, pending.first_epoch).counters.ticks;
        let frames = client.ask(&Check {});
        let statuses: Vec<RecordingStatus<'_>> = frames[1..].iter().map(read).collect();
        let epochs: Vec<_> = statuses.iter().map(|status| (status.name, status.epochs)).collect();
        assert_eq!(epochs, [("one", 0), ("two", 0)], "round {round}");
    }
    let whole = end(&mut client, two).counters.ticks;
    assert_eq!(whole, sum + end(&mut client, one).counters.ticks);
}

#[test]
fn names_identify_recordings() {
    let (agent, _, mut client) = guest();
    let first = client.start(named("first", MS));
    client.start(named("second", MS));
    let (code, text) = client.refusal(&named("first", MS));
    assert_eq!(code, refusal::ALREADY_RECORDING, "{text}");
    let (code, text) = client.refusal(&Stop { recording: 0 });
    assert_eq!(code, refusal::WHICH_RECORDING);
    assert!(text.contains("`first`") && text.contains("`second`"), "{text}");
    let third = client.start(named("third", MS));
    let (code, text) = client.refusal(&named("fourth", MS));
    assert_eq!(code, refusal::TOO_MANY_RECORDINGS, "{text}");
    assert!(text.contains("all 3") && text.contains("`third`"), "{text}");

    run(agent, 10, 1);
    client.ask(&Stop { recording: third });
    for name in ["third", "fourth"] {
        let (code, text) = client.refusal(&named(name, MS));
        assert_eq!(code, refusal::UNFETCHED, "{text}");
        assert!(text.contains("`third`"), "{text}");
    }
    let discarding = Start { flags: start_flag::REPLACE, ..named("fourth", MS) };
    let fourth = client.start(discarding);
    let (code, text) = client.refusal(&Stop { recording: third });
    assert_eq!(code, refusal::NO_RECORDING, "{text}");
    run(agent, 10, 2);
    let fourth = end(&mut client, fourth);
    assert_eq!(fourth.stacks.len(), 1, "nothing is left of what was discarded: {fourth:?}");
    let first = end(&mut client, first);
    assert_eq!(first.stacks.len(), 2);
    let frames = client.ask(&Check {});
    let status: Status = read(&frames[0]);
    assert_eq!((status.recordings, status.max_recordings), (1, 3));
    let left: RecordingStatus<'_> = read(&frames[1]);
    assert_eq!((left.name, left.state), ("second", state::RECORDING));
}

/// A recording that ends by itself, in the upcall, must not affect the rate of the others.
#[test]
fn one_that_ends_by_itself_leaves_the_others() {
    let (agent, service, mut client) = guest();
    let slow = client.start(named("slow", 5 * MS));
    let brief = Start { duration_ns: 1000 * MS, ..named("brief", MS) };
    let brief = client.start(brief);
    run(agent, 10_000, 1);
    service.borrow_mut().advance();
    let brief = end(&mut client, brief);
    near(brief.counters.ticks, 1000, 5);
    near(brief.running_ns, 1000 * MS, 1);
    near(end(&mut client, slow).counters.ticks, 2000, 5);
}
