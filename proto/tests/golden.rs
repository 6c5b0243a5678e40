//! The bytes of every message are pinned: a released structure may never change.
#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::path::Path;

use unikprof_proto::frame::{self, Message};
use unikprof_proto::message::*;
use unikprof_proto::preamble;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// One line a message: its name and its frame. The frame must also decode to the same message.
fn line<'a, M>(name: &str, message: &M, buffer: &'a mut [u8; 1024]) -> String
where
    M: Message<'a> + PartialEq + std::fmt::Debug,
{
    let length = frame::encode(message, buffer).unwrap();
    let bytes = &buffer[..length];
    let back = frame::split(bytes).unwrap().unwrap();
    assert_eq!(frame::decode::<M>(&back).as_ref(), Ok(message));
    format!("{name} {}\n", hex(bytes))
}

#[test]
fn every_message_has_its_bytes() {
    let counters = Counters {
        ticks: 1000,
        recorded: 890,
        aged: 10,
        overflow: 50,
        lost: 30,
        masked: 15,
        idle: 5,
        early: 77,
        late: 3,
        truncated: 2,
        broken: 1,
        by_table: 800,
        by_bytes: 60,
        by_frame_pointer: 40,
        mixed: 4,
        blocks: 70,
        blocked: 6_000,
        blocked_overflow: 8,
        blocked_aged: 7,
    };
    let snapshot = Snapshot {
        at_ns: 1_000_000_000,
        cycles: 2_300_000_000,
        running_ns: 900_000_000,
        blocked_ns: 40_000_000,
        runstate: Some(Runstate {
            running_ns: 900_000_000,
            runnable_ns: 60_000_000,
            blocked_ns: 40_000_000,
            offline_ns: 0,
        }),
        counters,
        tick_cycles: 123_456,
        allocated_bytes: 7_000_000,
        freed_samples: 12,
        delivery_cycles: 54_000,
        deliveries_measured: 16,
    };
    let mut text = format!("preamble {}\n", hex(&preamble::encode(preamble::OPEN)));
    let mut push = |line: String| text.push_str(&line);
    macro_rules! golden {
        ($($message:expr,)*) => {$({
            let name = stringify!($message).split([' ', '\n', '{']).next().unwrap();
            push(line(name, &$message, &mut [0; 1024]));
        })*};
    }
    golden! {
        Hello { client: "unikprof-client 0.1.0", client_id: 0x0123_4567_89ab_cdef },
        Start {
            name: "default",
            period_ns: 1_003_009,
            mode: 0,
            depth: 128,
            duration_ns: 30_000_000_000,
            delay_ns: 0,
            flags: 1,
            caller_table: Some(0x1234_5678),
            max_age_ns: 300_000_000_000,
            max_bytes: 524_288,
            interval_bytes: 0,
        },
        Stop { recording: 1 },
        Check {},
        Dump { recording: 2 },
        Fetch { epoch: 3, vcpu: 1, known: 5_120, counted: 4_000 },
        Acknowledge { epoch: 3 },
        TableBegin { first: 16, end: 0x20_0010, rows: 10_000, checksum: 0x1234_5678 },
        TableRows { upload: 1, first: 300, count: 2, payload: &[1, 2, 3, 4] },
        TableEnd { upload: 1 },
        Refusal { code: 8, request: 2, text: "`nightly` is being recorded" },
        Welcome {
            agent_version: "0.1.0",
            architecture: "x86_64",
            platform: "xen",
            guest_name: Some("web-1"),
            guest_id: Some("6ecdf4f5-6a1b-4d2c-9d0c-0123456789ab"),
            vcpus: 2,
            mappings: 1,
            monotonic_ns: 5_000_000_000,
            wall_clock_ns: None,
            capabilities: 3,
            min_period_ns: 10_000,
            max_period_ns: 10_000_000_000,
            max_depth: 128,
            max_request: 1024,
            memory_bytes: 1 << 20,
            segments: 8,
            segment_nodes: 937,
            caller_rows: 20_000,
            caller_table: None,
            role: 2,
            instance: 0x0123_4567_89ab_cdef,
        },
        Mapping {
            start: 0x10_0000,
            end: 0x18_0000,
            file_offset: 0x1000,
            code_base: 16,
            build_id: &[0xab; 20],
            path: "web.elf",
        },
        Status {
            recordings: 1,
            max_recordings: 4,
            now_ns: 6_000_000_000,
            nodes_used: 321,
            nodes_capacity: 15_000,
            ring_capacity: 65_536,
            sessions: 2,
            peers: Peers {
                malformed: 9,
                timed_out: 8,
                turned_away: 7,
                displaced: 6,
                bad_key: 5,
                bad_record: 4,
                not_allowed: 3,
            },
            server_since_ns: 1_234,
            server_ns: 4_321,
            server_longest_ns: 321,
            server_share_permille: 100,
            server_deferred_ns: 54_321,
            live_used: 77,
            live_capacity: 4_096,
        },
        Handshake { key: [1; 8], ephemeral: [2; 32], tag: [3; 16] },
        HandshakeReply { ephemeral: [4; 32], preamble: [0x33; 16], tag: [5; 16] },
        RecordingStatus {
            recording: 1,
            ring_bit: 2,
            name: "default",
            state: 2,
            mode: 0,
            period_ns: 1_003_009,
            interval_bytes: 0,
            depth: 128,
            flags: 0,
            started_ns: 5_500_000_000,
            duration_ns: 0,
            max_age_ns: 300_000_000_000,
            max_bytes: 524_288,
            counters,
            overhead: Overhead {
                running_ns: 900_000_000,
                sampling_ns: 2_000_000,
                delivery_ns: 18_000_000,
                deliveries_measured: 16,
            },
            samples_window_ns: Some(62_000_000_000),
            stacks_window_ns: None,
            wants_fetch: false,
            holder: Some("unikprof-client 0.1.0"),
            held_since_ns: 5_600_000_000,
            first_epoch: 4,
            epochs: 1,
        },
        Ring { vcpu: 1, position: 70_000, since_ns: 5_000_000_000 },
        Stacks { vcpu: 1, known: 5_120 },
        EventNames { first: 2 },
        TakeSnapshot { vcpu: 1, since_ns: 5_000_000_000 },
        VcpuSnapshot {
            vcpu: 1,
            now: Snapshot { counters: Counters::default(), ..snapshot },
            state: &[10, 0, 0, 0, 0, 0, 0, 0],
        },
        RingHead {
            vcpu: 1,
            capacity: 65_536,
            oldest: 4_464,
            next: 70_000,
            now_ns: 6_000_000_000,
            wall_clock_ns: Some(1_700_000_000_000_000_000),
        },
        RingRun { vcpu: 1, first: 4_464, count: 1, base_ns: 5_000, payload: &[0x61, 0x14, 7, 1] },
        RingEnd { vcpu: 1, next: 70_000, lost: 2, whole_since_ns: 5_000_000 },
        StacksEnd { vcpu: 1, oldest: 937, known: 5_200 },
        EventName { id: 2, name: "request" },
        EventNamesEnd { names: 3, refused: 1 },
        Started { recording: 1, started_ns: 5_500_000_000 },
        Pending { recording: 1, first_epoch: 4, epochs: 2, complete: true },
        Epoch {
            epoch: 4,
            recording: 1,
            ring_bit: 2,
            name: "default",
            mode: 0,
            flags: 0,
            period_ns: 0,
            interval_bytes: 524_288,
            depth: 128,
            late_threshold_ns: 1_003_009,
            recording_started_ns: 5_500_000_000,
            started_ns: 5_500_000_000,
            ended_ns: 6_500_000_000,
            ended_wall_clock_ns: Some(1_800_000_000_000_000_000),
            gaps: 1,
            server_ns: 4_000,
            vcpus: 2,
            caller_table: Some(0x1234_5678),
        },
        VcpuEpoch { epoch: 4, vcpu: 1, start: Snapshot::default(), end: snapshot },
        Histogram { epoch: 4, vcpu: 1, kind: 0, max: 4096, buckets: &[20, 7, 21, 1] },
        Nodes { vcpu: 1, first: 937, count: 1, payload: &[0x11, 33] },
        Counts { epoch: 4, vcpu: 1, after: 0, count: 1, payload: &[0xa9, 0x07, 5] },
        LiveSamples { epoch: 4, vcpu: 1, base_ns: 5_000, count: 1, payload: &[0xd2, 0x0f, 64, 5] },
        VcpuEnd { epoch: 4, vcpu: 1, known: 5_120, samples: 900 },
        Acknowledged { epoch: 4 },
        TableReady { upload: 1, rows: 300 },
        TableInstalled { rows: 10_000, caller_table: 0x1234_5678 },
    }

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/messages.txt");
    if std::env::var_os("UNIKPROF_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let golden = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(
        golden == text,
        "the wire has changed; a released message needs a new type. For an unreleased one: \
         UNIKPROF_BLESS=1 cargo test -p unikprof-proto\n--- expected\n{golden}--- found\n{text}"
    );
}
