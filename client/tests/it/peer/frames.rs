//! The frames of a scripted agent's answers.

use std::ops::Range;

use unikprof_proto::code::{capability, mode, state};
use unikprof_proto::counts;
use unikprof_proto::frame::MAX_BODY;
use unikprof_proto::live;
use unikprof_proto::message::*;
use unikprof_proto::nodes::{Encoder, Node};
pub use unikprof_test_kit::frames::encoded as encode;

use super::{MAX_REQUEST, NEWER, OLDER, RECORDING, Script, StackNode};

/// The welcome and its mappings, a frame each.
pub fn welcome(script: &Script, monotonic_ns: u64) -> Vec<Vec<u8>> {
    let heap = match mode::is_heap(script.mode) {
        true => capability::HEAP | capability::LIVE,
        false => 0,
    };
    vec![
        encode(&Welcome {
            agent_version: "0.1.0",
            architecture: "x86_64",
            platform: "xen",
            guest_name: Some(script.guest_name),
            guest_id: Some("6ecdf4f5-6a1b-4d2c-9d0c-0123456789ab"),
            vcpus: script.vcpus.len() as u32,
            mappings: 1,
            monotonic_ns,
            wall_clock_ns: script.wall_clock_ns,
            capabilities: 1 | heap | script.ring.as_ref().map_or(0, |_| capability::RING),
            min_period_ns: 10_000,
            max_period_ns: 10_000_000_000,
            max_depth: 128,
            max_request: MAX_REQUEST,
            memory_bytes: 1 << 20,
            instance: script.instance,
            segments: 4,
            segment_nodes: SEGMENT as u32,
            caller_rows: script.caller_rows,
            caller_table: script.caller_table,
            role: script.keyed.as_ref().map_or(0, |keyed| keyed.role),
        }),
        encode(&Mapping {
            start: script.mapping.0,
            end: script.mapping.1,
            file_offset: script.mapping.2,
            code_base: 0x100,
            build_id: script.mapping.3,
            path: "/boot/guest.elf",
        }),
    ]
}

pub fn status() -> Status {
    Status {
        live_used: 0,
        live_capacity: 0,
        recordings: 0,
        max_recordings: 4,
        now_ns: 2_000,
        nodes_used: 1,
        nodes_capacity: 8192,
        ring_capacity: 0,
        sessions: 1,
        peers: Peers::default(),
        server_since_ns: 1_000,
        server_ns: 12,
        server_longest_ns: 5,
        server_share_permille: 100,
        server_deferred_ns: 0,
    }
}

pub fn recording_status(finished: bool) -> RecordingStatus<'static> {
    RecordingStatus {
        interval_bytes: 0,
        recording: RECORDING,
        ring_bit: 0,
        name: "default",
        state: if finished { state::FINISHED } else { state::RECORDING },
        mode: 0,
        period_ns: 1_003_009,
        depth: 128,
        flags: 0,
        started_ns: 1_000,
        duration_ns: if finished { 1_000 } else { 0 },
        max_age_ns: 0,
        max_bytes: 0,
        counters: Counters::default(),
        overhead: Overhead::default(),
        samples_window_ns: None,
        stacks_window_ns: None,
        wants_fetch: false,
        holder: None,
        held_since_ns: 0,
        first_epoch: 0,
        epochs: 0,
    }
}

/// How many numbers a segment of stack nodes has: those of the script lie in the first.
pub const SEGMENT: u64 = 8192;

/// The number of a script's node, of which the first is 1.
pub fn number(node: u32) -> u64 {
    SEGMENT + u64::from(node) - 1
}

/// The frames of an epoch as a file holds them.
pub fn epoch(script: &Script, epoch: u64) -> Vec<Vec<u8>> {
    epoch_after(script, epoch, 0)
}

/// The same without the nodes up to a number, which the file has already.
pub fn epoch_after(script: &Script, epoch: u64, known: u64) -> Vec<Vec<u8>> {
    let mut frames = vec![head(script, epoch)];
    for vcpu in 0..script.vcpus.len() as u32 {
        frames.extend(share(script, epoch, vcpu, known, 0).split_off(1));
    }
    frames
}

/// The answer to a fetch of one vCPU's share.
pub fn share(script: &Script, epoch: u64, vcpu: u32, known: u64, counted: u64) -> Vec<Vec<u8>> {
    let nodes = nodes(script, epoch, vcpu);
    let mut frames = vec![head(script, epoch)];
    frames.extend(vcpu_frames(script, epoch, vcpu, &nodes));
    frames.extend(node_frames(script, vcpu, &nodes, known));
    let counts: Vec<(u64, u64)> = nodes
        .iter()
        .zip(1..)
        .map(|((_, _, count), node)| (number(node), *count))
        .filter(|(number, count)| *count != 0 && *number > counted)
        .collect();
    let mut after = counted;
    for run in counts.chunks(script.nodes_per_frame) {
        let mut payload = vec![0; MAX_BODY - 64];
        let mut encoder = counts::Encoder::new(after, &mut payload);
        for (number, count) in run {
            encoder.push(*number, *count);
        }
        let length = encoder.finish();
        frames.push(encode(&Counts {
            epoch,
            vcpu,
            after,
            count: run.len() as u32,
            payload: &payload[..length],
        }));
        after = run[run.len() - 1].0;
    }
    let held = script.held.get(vcpu as usize).map_or(&[][..], Vec::as_slice);
    for run in held.chunks(script.nodes_per_frame) {
        let base_ns = run.iter().map(|sample| sample.born_ns).min().unwrap();
        let mut payload = vec![0; MAX_BODY - 64];
        let mut encoder = live::Encoder::new(base_ns, &mut payload);
        for sample in run {
            let node = number(sample.node as u32);
            encoder.push(&live::Sample { node, ..*sample });
        }
        let length = encoder.finish();
        frames.push(encode(&LiveSamples {
            epoch,
            vcpu,
            base_ns,
            count: run.len() as u32,
            payload: &payload[..length],
        }));
    }
    let extra = match vcpu {
        0 => script.extra_samples,
        _ => 0,
    };
    frames.push(encode(&VcpuEnd {
        epoch,
        vcpu,
        known: last(&nodes).max(known),
        samples: samples(&nodes) + held.len() as u64 + extra,
    }));
    frames
}

/// The stack nodes of a vCPU above a number, and their end.
pub fn stacks(script: &Script, epoch: u64, vcpu: u32, known: u64) -> Vec<u8> {
    let nodes = nodes(script, epoch, vcpu);
    let end = StacksEnd { vcpu, oldest: SEGMENT, known: last(&nodes).max(known) };
    let mut frames = node_frames(script, vcpu, &nodes, known).concat();
    frames.extend(encode(&end));
    frames
}

/// The samples of an epoch, all vCPUs.
pub fn samples_of(script: &Script, epoch: u64) -> u64 {
    let vcpus = 0..script.vcpus.len() as u32;
    vcpus.map(|vcpu| samples(&nodes(script, epoch, vcpu))).sum()
}

fn samples(nodes: &[StackNode]) -> u64 {
    nodes.iter().map(|(_, _, count)| count).sum()
}

fn last(nodes: &[StackNode]) -> u64 {
    match nodes.len() {
        0 => 0,
        count => number(count as u32),
    }
}

/// The nodes of a vCPU as of an epoch. The older one holds nothing; those that grow have a new
/// stack in each epoch.
fn nodes(script: &Script, epoch: u64, vcpu: u32) -> Vec<StackNode> {
    if epoch == OLDER {
        return Vec::new();
    }
    let mut nodes = script.vcpus[vcpu as usize].clone();
    if script.grows {
        for later in NEWER..epoch {
            let count = u64::from(later + 1 == epoch);
            nodes.push((0, vec![0x200 + (later - NEWER) as u32 % 0x100, 0x110], count));
        }
    }
    nodes
}

fn node_frames(script: &Script, vcpu: u32, nodes: &[StackNode], known: u64) -> Vec<Vec<u8>> {
    let unknown = (1..).zip(nodes).filter(|(node, _)| number(*node) > known);
    let unknown: Vec<(u32, &StackNode)> = unknown.collect();
    let mut frames = Vec::new();
    for run in unknown.chunks(script.nodes_per_frame) {
        let first = number(run[0].0);
        let mut payload = vec![0; MAX_BODY - 64];
        let mut encoder = Encoder::new(first, &mut payload);
        for (_, (parent, frames, _)) in run {
            encoder.push(Node {
                parent: match parent {
                    0 => 0,
                    parent => number(*parent),
                },
                frames,
            });
        }
        let length = encoder.finish();
        frames.push(encode(&Nodes {
            vcpu,
            first,
            count: run.len() as u32,
            payload: &payload[..length],
        }));
    }
    frames
}

/// From when to when an epoch was.
fn time(script: &Script, epoch: u64) -> Range<u64> {
    let start = 1_000 + epoch.saturating_sub(NEWER) * script.epoch_ns;
    start..start + script.epoch_ns
}

fn head(script: &Script, epoch: u64) -> Vec<u8> {
    let Range { start, end } = time(script, epoch);
    encode(&Epoch {
        interval_bytes: script.interval_bytes,
        epoch,
        recording: script.recording,
        ring_bit: 0,
        name: "default",
        mode: script.mode,
        flags: script.epoch_flags,
        period_ns: script.period_ns,
        depth: 128,
        late_threshold_ns: 500,
        recording_started_ns: 1_000,
        started_ns: start,
        ended_ns: end,
        ended_wall_clock_ns: Some(1_700_000_000_000_000_000 + end),
        gaps: 0,
        server_ns: 77,
        vcpus: script.vcpus.len() as u32,
        caller_table: script.caller_table,
    })
}

/// A vCPU's head and its histogram. Of what the agent gave up, all was counted in this epoch.
fn vcpu_frames(script: &Script, epoch: u64, vcpu: u32, nodes: &[StackNode]) -> Vec<Vec<u8>> {
    let counted = samples(nodes);
    let (recorded, blocked) = match script.mode {
        mode::OFF_CPU => (0, counted),
        mode::LIVE => (
            counted
                + script.freed_samples
                + script.held.get(vcpu as usize).map_or(0, |held| held.len() as u64),
            0,
        ),
        _ => (counted, 0),
    };
    let idle = if mode::is_heap(script.mode) { 0 } else { 2 };
    let time = time(script, epoch);
    let start = Snapshot { at_ns: time.start, cycles: 3 * time.start, ..Snapshot::default() };
    let end = Snapshot {
        at_ns: time.end,
        cycles: 3 * time.end,
        running_ns: 20_000,
        blocked_ns: 0,
        runstate: None,
        counters: Counters {
            ticks: recorded + script.aged + script.overflow + idle,
            recorded,
            aged: script.aged,
            overflow: script.overflow,
            by_table: script.by_table,
            by_frame_pointer: recorded + script.aged - script.by_table,
            blocks: blocked.min(1),
            blocked,
            idle,
            early: 9,
            ..Counters::default()
        },
        tick_cycles: 300,
        delivery_cycles: 0,
        deliveries_measured: 0,
        allocated_bytes: script.allocated_bytes,
        freed_samples: script.freed_samples,
    };
    vec![
        encode(&VcpuEpoch { epoch, vcpu, start, end }),
        encode(&Histogram { epoch, vcpu, kind: 0, max: 12, buckets: &[4, 98, 8, 1, 10, 1] }),
    ]
}
