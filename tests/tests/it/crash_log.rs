//! The log of a console that lost its end after a crash: what is left tells the last moments, with
//! their stacks.
#![allow(unsafe_code)]

#[path = "../../../agent/tests/it/fake/mod.rs"]
mod fake;

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::path::Path;

use fake::conversation::InProcess;
use fake::platform::TwoVcpus;
use fake::stacks::{Random, any_stack};
use unikprof_agent::{Agent, Config, MAX_DEPTH, minimum_bytes, ring_bytes};
use unikprof_client::profile::{Frame, Profile, SpecialFrame};
use unikprof_client::recording::{Completeness, Reading, Recording};
use unikprof_client::recover::find;
use unikprof_client::timeline::{What, Window};
use unikprof_proto::console::Lines;

const PERIOD_NS: u64 = 1_000_000;
/// Ticks on each vCPU, each with a mark before it: all of them fit the ring.
const TICKS: usize = 150;
const RECORDS: usize = 400;

/// Addresses, leaf first, and how often they were sampled; by vCPU.
type Stacks = HashMap<(u32, Vec<u64>), u64>;

/// What is told of a vCPU's samples, which end in the newest.
fn newest(all: &[(u32, Vec<u64>)], vcpu: u32, count: usize) -> Stacks {
    let mut stacks = Stacks::new();
    let of_vcpu = all.iter().rev().filter(|(of, _)| *of == vcpu);
    for one in of_vcpu.take(count) {
        *stacks.entry(one.clone()).or_default() += 1;
    }
    stacks
}

fn stacks(profile: &Profile) -> Stacks {
    let mut stacks = Stacks::new();
    for sample in profile.samples() {
        let frames = profile.stack(sample.node).map(|id| profile.frame(id));
        let addresses = frames.filter_map(|frame| match frame {
            Frame::Address { address, .. } => Some(address),
            Frame::Special(SpecialFrame::Late) => None,
            other => panic!("a sample without its stack: {other:?}"),
        });
        let stack = (sample.vcpu, addresses.collect());
        *stacks.entry(stack).or_default() += sample.count;
    }
    stacks
}

/// A guest of two vCPUs crashes on the second. Its log is cut behind every line: what is told then
/// is what happened last, each sample with its own stack, and a line more never tells less.
#[test]
fn a_log_that_is_cut_tells_the_last_moments_with_their_stacks() {
    let config = Config { vcpus: 2, ..fake::CONFIG };
    let mut memory = vec![MaybeUninit::uninit(); minimum_bytes(2, 1) + 500_000];
    let mut ring = vec![MaybeUninit::uninit(); ring_bytes(2, RECORDS)];
    let agent = Agent::new(TwoVcpus::new(MAX_DEPTH), config, &mut memory).unwrap();
    let agent = agent.with_ring(&mut ring);
    let name = agent.event_name("request").unwrap();
    InProcess::connect(&agent).unwrap().start(PERIOD_NS).unwrap();
    let (platform, mut random) = (agent.platform(), Random::new(3));
    let mut all = Vec::new();
    for number in 0..2 * TICKS {
        let vcpu = number as u32 % 2;
        platform.switch_to(vcpu);
        platform.fake.advance(2 * PERIOD_NS);
        agent.mark(name, number as u64);
        let stack = any_stack(&mut random);
        agent.on_tick(Some(&platform.fake.stack().lay(&stack)));
        all.push((vcpu, stack.0));
    }
    let mut block = vec![0; 1 << 20];
    let length = agent.crash_dump_into(&mut block).unwrap();
    let lines: Vec<String> = Lines::of(&block[..length]).map(|line| line.to_string()).collect();

    let mut told = [0; 2];
    let mut first_sample = None;
    for end in 1..=lines.len() {
        let log = lines[..end].join("\n");
        let remains = find(log.as_bytes()).remove(0);
        assert_eq!(remains.missing.is_none(), end == lines.len());
        let read = Recording::read(&remains.file[..], Path::new("log"), Reading::Salvage);
        let Ok(recording) = read else {
            assert_eq!(told, [0; 2], "what was read with fewer lines");
            continue;
        };
        assert_eq!(recording.completeness == Completeness::Complete, end == lines.len());
        let (Some(timeline), Some(span)) = (&recording.timeline, recording.span) else {
            assert_eq!(told, [0; 2]);
            continue;
        };
        let profile = timeline.profile(&recording.profile, &span, Window::ALL, None);
        let found = stacks(&profile);
        for vcpu in [0, 1] {
            let of_vcpu = |((of, stack), count): (&(u32, Vec<u64>), &u64)| {
                (*of == vcpu).then(|| ((vcpu, stack.clone()), *count))
            };
            let found: Stacks = found.iter().filter_map(of_vcpu).collect();
            let count = found.values().sum::<u64>() as usize;
            assert_eq!(found, newest(&all, vcpu, count), "vCPU {vcpu}, {end} lines");
            let marks = |from_ns| {
                let events = timeline.events(Window::new(from_ns, u64::MAX)).into_iter();
                let marks = events.filter(|event| event.vcpu == vcpu);
                let marks = marks.filter_map(|event| match event.what {
                    What::Mark { value, .. } => Some(value),
                    _ => None,
                });
                marks.collect::<Vec<u64>>()
            };
            // Samples are shown from where both vCPUs tell of them. Marks lie between them: as many
            // are told, or one more or less.
            let beside = marks(timeline.held_since());
            assert!(beside.len().abs_diff(count) <= 1, "{} {count}", beside.len());
            let marks = marks(0);
            assert!(marks.len() >= told[vcpu as usize], "vCPU {vcpu}, {end} lines");
            told[vcpu as usize] = marks.len();
            let last = (2 * TICKS) as u64 - 2 + u64::from(vcpu);
            assert!(marks.iter().rev().zip(0..).all(|(mark, back)| *mark == last - 2 * back));
        }
        // The vCPU that the guest crashed on comes first.
        assert!(told[0] == 0 || told[1] == TICKS, "{told:?}");
        if told[1] > 0 {
            first_sample.get_or_insert(end);
        }
    }
    assert_eq!(told, [TICKS; 2]);
    let first_sample = first_sample.unwrap();
    assert!(first_sample < lines.len() / 8, "{first_sample} of {}", lines.len());
}
