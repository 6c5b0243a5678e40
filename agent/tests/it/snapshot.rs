//! Snapshots of vCPUs, as a client requests them.

use crate::client::{one_ms, read};
use crate::fake_guest::{self, Client, VCPU, block, connected, deliver, guest, on_stack, tick};
use std::sync::atomic::Ordering;
use unikprof_proto::code::{frame_code, refusal};
use unikprof_proto::message::{TakeSnapshot, VcpuSnapshot};

/// A request that a snapshot from this time on answers.
const fn since(since_ns: u64) -> TakeSnapshot {
    TakeSnapshot { vcpu: 0, since_ns }
}

/// Requests a new snapshot.
const NEW: TakeSnapshot = since(u64::MAX);

/// An answer. All times and registers are 0 if it has no snapshot.
#[derive(Debug, Default)]
struct Answer {
    now_ns: u64,
    running_ns: u64,
    at_ns: u64,
    blocked_since_ns: u64,
    /// `pc`, `sp`, `fp` and `lr`.
    registers: [u64; 4],
    /// Offsets into the code, leaf first.
    stack: Vec<u64>,
}

fn ask(client: &mut Client, request: &TakeSnapshot) -> Answer {
    let frames = client.ask(request);
    assert_eq!(frames.len(), 1);
    let message: VcpuSnapshot<'_> = read(&frames[0]);
    assert_eq!(message.vcpu, request.vcpu);
    // The fake platform's runstate tells running time alone.
    let runstate = message.now.runstate.unwrap();
    assert_eq!(runstate.running_ns, message.now.running_ns);
    let answer = Answer {
        now_ns: message.now.at_ns,
        running_ns: message.now.running_ns,
        ..Answer::default()
    };
    let (values, rest) = message.state.as_chunks();
    assert!(rest.is_empty());
    let values: Vec<u64> = values.iter().map(|it| u64::from_le_bytes(*it)).collect();
    let [at_ns, blocked_since_ns, pc, sp, fp, lr, stack @ ..] = &values[..] else {
        assert!(values.is_empty());
        return answer;
    };
    let offset = |code: &u64| code - u64::from(frame_code::FIRST_ADDRESS);
    Answer {
        at_ns: *at_ns,
        blocked_since_ns: *blocked_since_ns,
        registers: [*pc, *sp, *fp, *lr],
        stack: stack.iter().map(offset).collect(),
        ..answer
    }
}

#[test]
fn the_next_upcall_takes_it() {
    let (agent, _, mut client) = guest();
    agent.platform().run(1_000);
    let first = ask(&mut client, &NEW);
    assert_eq!((first.at_ns, first.now_ns), (0, 1_000), "none yet");
    assert_eq!(agent.platform().kicks.load(Ordering::Relaxed), 1);
    agent.platform().run(500);
    assert_eq!(deliver(agent, &[7, 70, 700]), None, "nothing to arm");
    agent.platform().run(20);
    let answer = ask(&mut client, &since(first.now_ns));
    assert_eq!(answer.stack, [7, 70, 700]);
    assert_eq!((answer.at_ns, answer.now_ns), (1_500, 1_520));
    assert_eq!(answer.running_ns - first.running_ns, 520);
    assert_eq!(answer.registers[0], fake_guest::CODE + 7);
    assert_eq!(answer.blocked_since_ns, 0);
    // It was new enough: nothing was requested, and the next upcall takes none.
    assert_eq!(agent.platform().kicks.load(Ordering::Relaxed), 1);
    deliver(agent, &[8]);
    let again = ask(&mut client, &since(1_500));
    assert_eq!((again.at_ns, again.stack), (1_500, vec![7, 70, 700]));
    let later = ask(&mut client, &since(1_501));
    assert_eq!(later.at_ns, 1_500, "an older one, and a new one is requested");
    assert_eq!(agent.platform().kicks.load(Ordering::Relaxed), 2);
}

/// Whoever wants to know a vCPU's times does not interrupt it.
#[test]
fn times_are_told_without_a_snapshot() {
    let (agent, _, mut client) = guest();
    agent.platform().run(700);
    let answer = ask(&mut client, &since(0));
    assert_eq!((answer.now_ns, answer.running_ns), (700, 700));
    assert_eq!(agent.platform().kicks.load(Ordering::Relaxed), 0);
}

/// Until the vCPU has taken the next snapshot, the agent sends none: the vCPU may be storing it.
#[test]
fn a_requested_snapshot_is_not_sent_before_it_is_taken() {
    let (agent, _, mut client) = guest();
    agent.platform().run(10);
    ask(&mut client, &NEW);
    deliver(agent, &[1]);
    assert_eq!(ask(&mut client, &NEW).at_ns, 10);
    let answer = ask(&mut client, &since(0));
    assert_eq!((answer.at_ns, answer.stack), (0, vec![]));
}

/// A guest without kick programs [`Agent::deadline`] after each poll.
#[test]
fn a_vcpu_that_serves_the_client_is_interrupted_soon_after() {
    let (agent, service, mut client) = guest();
    assert_eq!(agent.deadline(), None);
    let work = service.borrow_mut().begin_work();
    ask(&mut client, &NEW);
    assert_eq!(deliver(agent, &[5]), Some(1_000_000), "again in 1 ms");
    service.borrow_mut().end_work(work);
    let answer = ask(&mut client, &NEW);
    assert_eq!(answer.at_ns, 0, "it was in the agent's own work");
    assert!(tick(agent, &[6, 60]), "there is a deadline");
    assert_eq!(agent.deadline(), None, "and then none");
    let answer = ask(&mut client, &since(1));
    assert_eq!((answer.at_ns, answer.stack), (1_000_000, vec![6, 60]));
}

#[test]
fn a_vcpu_that_blocks_shows_where_and_since_when() {
    let (agent, _, mut client) = guest();
    ask(&mut client, &NEW);
    agent.platform().run(100);
    // It blocks before an upcall comes.
    block(agent, &[3, 30], 1_000);
    let answer = ask(&mut client, &since(100));
    assert_eq!((answer.at_ns, answer.blocked_since_ns), (100, 100));
    assert_eq!(answer.stack, [3, 30]);
    // An upcall comes while it is blocked.
    ask(&mut client, &NEW);
    agent.platform().run(900);
    on_stack(&[4, 40], |registers| agent.on_block(Some(registers)));
    ask(&mut client, &NEW);
    agent.platform().idle(5_000);
    assert_eq!(deliver(agent, &[5, 4, 40]), None, "it stays asleep");
    let answer = ask(&mut client, &since(7_000));
    assert_eq!((answer.at_ns, answer.blocked_since_ns), (7_000, 2_000));
    assert_eq!(answer.stack, [5, 4, 40]);
    // It blocks without registers: the next upcall has some.
    agent.on_wake();
    agent.platform().run(1_000);
    ask(&mut client, &NEW);
    agent.on_block(None);
    let answer = ask(&mut client, &since(8_000));
    assert_eq!(answer.at_ns, 0);
    deliver(agent, &[6, 60]);
    let answer = ask(&mut client, &since(8_000));
    assert_eq!((answer.blocked_since_ns, answer.stack), (8_000, vec![6, 60]));
    agent.on_wake();
    ask(&mut client, &NEW);
    deliver(agent, &[1]);
    let answer = ask(&mut client, &since(7_000));
    assert_eq!(answer.blocked_since_ns, 0, "it is awake");
}

/// An upcall that was handled when events were unmasked has interrupted no code. It must not be
/// forced again and again.
#[test]
fn without_registers_there_is_none() {
    let (agent, _, mut client) = guest();
    agent.platform().run(50);
    ask(&mut client, &NEW);
    assert_eq!(agent.on_tick(None), None);
    assert_eq!(agent.deadline(), None);
    let answer = ask(&mut client, &since(1));
    assert_eq!(answer.at_ns, 0);
    deliver(agent, &[2]);
    assert_eq!(ask(&mut client, &since(1)).at_ns, 50);
}

#[test]
fn a_recording_counts_as_before() {
    let (agent, _, mut client) = connected(2, 1 << 18);
    client.start(one_ms());
    for _ in 0..10 {
        ask(&mut client, &NEW);
        assert!(tick(agent, &[1, 2]));
    }
    let (_, counters, _) = client.status();
    assert!(counters.add_up());
    assert_eq!((counters.ticks, counters.recorded), (10, 10));
    // The other vCPU has its own.
    let other = TakeSnapshot { vcpu: 1, since_ns: 1 };
    assert_eq!(ask(&mut client, &other).at_ns, 0);
    VCPU.set(Some(1));
    deliver(agent, &[9]);
    VCPU.set(Some(0));
    assert_eq!(ask(&mut client, &other).stack, [9]);
}

#[test]
fn a_vcpu_that_does_not_exist_is_rejected() {
    let (_, _, mut client) = connected(2, 1 << 18);
    for vcpu in [2, u32::MAX] {
        let request = TakeSnapshot { vcpu, since_ns: 0 };
        let (code, text) = client.refusal(&request);
        assert_eq!(code, refusal::NO_VCPU);
        assert_eq!(text, format!("no vCPU {vcpu}; the guest has 2"));
    }
}
