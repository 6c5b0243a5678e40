//! The frames of a scripted agent's answers.

use unikprof_proto::code::{capability, mode, state};
use unikprof_proto::frame::{self, HEADER, MAX_BODY, Message};
use unikprof_proto::message::*;
use unikprof_proto::nodes::{Encoder, Node};

use super::{MAX_REQUEST, OLDER, RECORDING, Script, StackNode};

pub fn encode<'m, M: Message<'m>>(message: &M) -> Vec<u8> {
    let mut buffer = vec![0; HEADER + MAX_BODY];
    let length = frame::encode(message, &mut buffer).unwrap();
    buffer.truncate(length);
    buffer
}

/// The welcome and its mappings, a frame each.
pub fn welcome(script: &Script, monotonic_ns: u64) -> Vec<Vec<u8>> {
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
            wall_clock_ns: Some(1_700_000_000_000_000_000),
            capabilities: 1 | script.ring.as_ref().map_or(0, |_| capability::RING),
            min_period_ns: 10_000,
            max_period_ns: 10_000_000_000,
            max_depth: 128,
            max_request: MAX_REQUEST,
            memory_bytes: 1 << 20,
            nodes_per_vcpu: 4096,
            caller_rows: script.caller_rows,
            caller_table: script.caller_table,
            role: script.keyed.as_ref().map_or(0, |keyed| keyed.role),
            instance: 0x0123_4567_89ab_cdef,
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
        recordings: 0,
        max_recordings: 4,
        now_ns: 2_000,
        nodes_used: 1,
        nodes_capacity: 8192,
        ring_capacity: 0,
        sessions: 1,
        peers: Peers::default(),
        server_ns: 12,
        server_longest_ns: 5,
    }
}

pub fn recording_status(finished: bool) -> RecordingStatus<'static> {
    RecordingStatus {
        recording: RECORDING,
        lane: 0,
        name: "default",
        state: if finished {
            state::FINISHED
        } else {
            state::RECORDING
        },
        mode: 0,
        period_ns: 1_003_009,
        depth: 128,
        flags: 0,
        started_ns: 1_000,
        duration_ns: if finished { 1_000 } else { 0 },
        max_age_ns: 0,
        max_bytes: 0,
        counters: Counters::default(),
        first_epoch: 0,
        epochs: 0,
    }
}

/// The frames of an epoch, from this vCPU and node on. An older epoch holds nothing.
pub fn epoch(script: &Script, number: u64, vcpu: u32, node: u32) -> Vec<Vec<u8>> {
    let empty: Vec<Vec<StackNode>> = script.vcpus.iter().map(|_| Vec::new()).collect();
    let vcpus = if number == OLDER {
        &empty
    } else {
        &script.vcpus
    };
    let samples = |nodes: &[StackNode]| nodes.iter().map(|(_, _, count)| count).sum::<u64>();
    let mut frames = vec![encode(&Epoch {
        epoch: number,
        recording: RECORDING,
        lane: 0,
        name: "default",
        mode: script.mode,
        flags: script.epoch_flags,
        period_ns: 1_000,
        depth: 128,
        late_threshold_ns: 500,
        recording_started_ns: 1_000,
        started_ns: 1_000,
        ended_ns: 51_000,
        ended_wall_clock_ns: Some(1_700_000_000_000_051_000),
        gaps: 0,
        server_ns: 77,
        vcpus: vcpus.len() as u32,
        caller_table: None,
    })];
    for (at, nodes) in vcpus.iter().enumerate().skip(vcpu as usize) {
        let first = if at as u32 == vcpu { node.max(1) } else { 1 };
        frames.extend(vcpu_frames(script, number, at as u32, nodes, first));
    }
    frames.push(encode(&EpochEnd {
        epoch: number,
        samples: vcpus.iter().map(|nodes| samples(nodes)).sum::<u64>() + script.extra_samples,
    }));
    frames
}

fn vcpu_frames(
    script: &Script,
    epoch: u64,
    vcpu: u32,
    nodes: &[StackNode],
    first: u32,
) -> Vec<Vec<u8>> {
    let counted: u64 = nodes.iter().map(|(_, _, count)| count).sum();
    let (recorded, blocked) = match script.mode {
        mode::OFF_CPU => (0, counted),
        _ => (counted, 0),
    };
    let start = Snapshot {
        at_ns: 1_000,
        cycles: 3_000,
        ..Snapshot::default()
    };
    let end = Snapshot {
        at_ns: 51_000,
        cycles: 153_000,
        running_ns: 20_000,
        blocked_ns: 0,
        runstate: None,
        counters: Counters {
            ticks: recorded + 2,
            recorded,
            by_frame_pointer: recorded,
            blocks: blocked.min(1),
            blocked,
            idle: 2,
            early: 9,
            ..Counters::default()
        },
        tick_cycles: 300,
    };
    let mut frames = vec![
        encode(&VcpuEpoch {
            epoch,
            vcpu,
            start,
            end,
            nodes: nodes.len() as u32,
        }),
        encode(&Histogram {
            epoch,
            vcpu,
            kind: 0,
            max: 12,
            buckets: &[4, 98, 8, 1, 10, 1],
        }),
    ];
    let rest = nodes.iter().enumerate().skip(first as usize - 1);
    for run in rest.collect::<Vec<_>>().chunks(script.nodes_per_frame) {
        let first = run[0].0 as u32 + 1;
        let mut payload = vec![0; MAX_BODY - 64];
        let mut encoder = Encoder::new(first, &mut payload);
        for (_, (parent, frames, count)) in run {
            encoder.push(Node {
                parent: *parent,
                frames,
                count: *count,
            });
        }
        let length = encoder.finish();
        frames.push(encode(&Nodes {
            epoch,
            vcpu,
            first,
            count: run.len() as u32,
            payload: &payload[..length],
        }));
    }
    frames
}
