//! Recording files: what is written comes back; what is cut or damaged is told, and never a panic.

use crate::peer;
use std::fs;
use std::path::{Path, PathBuf};

use crate::peer::program::has;
use crate::peer::{Script, encode};
use unikprof_profile::profile::{Frame, Mode, Profile, SpecialFrame, Unit};
use unikprof_profile::recording::{Completeness, Reading, Recording, RecordingError};
use unikprof_proto::file::{FileEnd, FileHeader, preamble};
use unikprof_proto::frame::Message;
use unikprof_proto::message::{Epoch, Nodes};
use unikprof_proto::nodes::{Encoder, Node};
use unikprof_test_kit::assert_is;

fn write(directory: &Path, script: &Script, epochs: &[u64], incomplete: Option<&str>) -> PathBuf {
    let path = directory.join("r.unikprof");
    peer::write_file(&path, script, epochs, &[], incomplete);
    path
}

/// The bytes of a complete file of these epochs.
fn written(script: &Script, epochs: &[u64]) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    fs::read(write(directory.path(), script, epochs, None)).unwrap()
}

fn recorded(script: &Script, epochs: &[u64]) -> Recording {
    read(&written(script, epochs), Reading::Strict).unwrap()
}

fn read(bytes: &[u8], reading: Reading) -> Result<Recording, RecordingError> {
    Recording::read(bytes, Path::new("r.unikprof"), reading)
}

#[test]
fn what_is_written_comes_back() {
    let script = Script::default();
    let recording = recorded(&script, &[7]);
    assert_eq!(recording.completeness, Completeness::Complete);
    assert_eq!(recording.epochs, 1);
    assert_eq!(recording.created_unix_ns, 1_700_000_000_000_000_000);
    let profile = &recording.profile;
    assert_eq!(profile.recording().warnings, Vec::<String>::new());
    assert_eq!(profile.sample_count(), script.samples());
    assert_eq!(profile.mappings()[0].path, "/boot/guest.elf");
    assert_eq!(profile.recording().started_unix_ns, Some(1_700_000_000_000_001_000));

    let (leaf, caller) = (
        |code: u64| Frame::leaf(0x10_0000 + code - 0x100),
        |code: u64| Frame::caller(0x10_0000 + code - 0x100),
    );
    let mut expected = vec![
        (0, 5, vec![leaf(0x150), caller(0x130), caller(0x110)]),
        (0, 7, vec![leaf(0x170), caller(0x160), caller(0x130), caller(0x110)]),
        (
            0,
            1,
            vec![
                Frame::Special(SpecialFrame::AgentWork),
                caller(0x170),
                caller(0x160),
                caller(0x130),
                caller(0x110),
            ],
        ),
        (0, 2, vec![leaf(0x110), Frame::Special(SpecialFrame::Truncated)]),
        (1, 3, vec![leaf(0x190)]),
    ];
    expected.sort();
    assert_eq!(stacks_of(profile), expected);

    let vcpu = &profile.vcpus()[0];
    assert_eq!(vcpu.counters.ticks, 17);
    // 20,000 ns of running time at a period of 1,000 ns.
    assert_eq!(vcpu.counters.missing, Some(3));
    assert_eq!(vcpu.cost.unwrap().cycles_per_second, 3_000_000_000);
    assert_eq!(vcpu.cost.unwrap().total_ns(), 100);
    assert_eq!(vcpu.cost.unwrap().cycles_max, 12);
}

/// Below these marks stands an interrupted place, not a return address: one byte further on, it may
/// be another line or function.
#[test]
fn what_lies_under_a_late_or_blocked_mark_is_a_place_of_its_own() {
    let (blocked, late) = (5, 6);
    let script = Script {
        vcpus: vec![vec![
            (0, vec![0x150, 0x110], 1),
            (1, vec![late], 2),
            (0, vec![blocked, 0x170, 0x110], 4),
            (1, vec![0x160], 8),
        ]],
        ..Script::default()
    };
    let profile = recorded(&script, &[7]).profile;
    let leaf = |code: u64| Frame::leaf(0x10_0000 + code - 0x100);
    let caller = |code: u64| Frame::caller(0x10_0000 + code - 0x100);
    assert_eq!(
        stacks_of(&profile),
        [
            (0, 1, vec![leaf(0x150), caller(0x110)]),
            (0, 2, vec![Frame::Special(SpecialFrame::Late), leaf(0x150), caller(0x110)]),
            (0, 4, vec![Frame::Special(SpecialFrame::Blocked), leaf(0x170), caller(0x110)]),
            (0, 8, vec![leaf(0x160), caller(0x150), caller(0x110)]),
        ]
    );
}

#[test]
fn blocked_time_alone_is_counted_in_nanoseconds_and_misses_nothing() {
    let script = Script { mode: 2, ..Script::default() };
    let recording = recorded(&script, &[7, 8]);
    assert_eq!(recording.contradictions, [""; 0]);
    let profile = &recording.profile;
    assert_eq!(profile.recording().mode, Mode::OffCpu);
    assert_eq!(profile.recording().mode.unit(), Unit::Nanoseconds);
    let counters = profile.counters();
    assert_eq!(
        (counters.recorded, counters.blocked, counters.missing),
        (0, 2 * script.samples(), None)
    );
}

#[test]
fn epochs_of_a_file_are_added_up() {
    let script = Script::default();
    let recording = recorded(&script, &[7, 8]);
    assert_eq!(recording.epochs, 2);
    assert_eq!(recording.profile.sample_count(), 2 * script.samples());
    assert_eq!(recording.profile.vcpus()[0].counters.ticks, 34);
    assert_eq!(recording.profile.recording().elapsed_ns, 100_000);
}

#[test]
fn an_incomplete_recording_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let path = write(directory.path(), &Script::default(), &[7], Some("the line broke"));
    let recording = Recording::open(&path, Reading::Strict).unwrap();
    assert_eq!(recording.completeness, Completeness::Incomplete("the line broke".into()));
    assert!(recording.profile.recording().warnings[0].contains("the line broke"));
}

#[test]
fn samples_that_do_not_add_up_are_told() {
    let script = Script { extra_samples: 1, ..Script::default() };
    let recording = recorded(&script, &[7]);
    let warnings = &recording.profile.recording().warnings;
    assert!(warnings[0].contains("do not add up"), "{warnings:?}");
    assert!(warnings[0].contains("15") && warnings[0].contains("16"), "{warnings:?}");
}

#[test]
fn a_file_cut_anywhere_is_refused_and_salvaged_as_far_as_it_goes() {
    let script = Script::default();
    let bytes = written(&script, &[7]);
    let mut best = 0;
    for cut in 0..bytes.len() {
        let strict = read(&bytes[..cut], Reading::Strict).unwrap_err();
        if cut < 16 {
            assert!(matches!(strict, RecordingError::NotARecording { .. }), "{cut}: {strict}");
        } else {
            assert!(matches!(strict, RecordingError::Damaged { .. }), "{cut}: {strict}");
        }
        if let Ok(salvaged) = read(&bytes[..cut], Reading::Salvage) {
            let samples = salvaged.profile.sample_count();
            assert!(samples >= best, "a longer piece holds no less");
            best = samples;
            assert!(matches!(salvaged.completeness, Completeness::Salvaged(_)));
            assert!(!salvaged.profile.recording().warnings.is_empty());
        }
    }
    assert_eq!(best, script.samples(), "all but the end of the file");
}

#[test]
fn every_changed_byte_is_noticed() {
    let bytes = written(&Script::default(), &[7]);
    // The last four bytes of the preamble are reserved.
    for at in (0..12).chain(16..bytes.len()) {
        for flip in [1, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            assert!(read(&damaged, Reading::Strict).is_err(), "byte {at} ^ {flip:#x}");
            let _ = read(&damaged, Reading::Salvage);
        }
    }
}

/// Frames with right checksums in any order: what a hostile client could write.
#[test]
fn shuffled_repeated_and_missing_frames_never_pass() {
    let script = Script::default();
    let bytes = written(&script, &[7]);
    let mut frames = Vec::new();
    let mut rest = &bytes[16..];
    while let Some(frame) = unikprof_proto::frame::split(rest).unwrap() {
        frames.push(&rest[..frame.length()]);
        rest = &rest[frame.length()..];
    }
    let build = |order: &[usize]| {
        let mut file = bytes[..16].to_vec();
        for &at in order {
            file.extend_from_slice(frames[at]);
        }
        file
    };
    let whole: Vec<usize> = (0..frames.len()).collect();
    let expected = read(&build(&whole), Reading::Strict).unwrap().profile;
    for (at, frame) in frames.iter().enumerate() {
        let mut missing = whole.clone();
        missing.remove(at);
        // A histogram is no count: without it, only the price is unknown.
        let is_histogram = frame[..2] == [0x08, 0x80];
        let read_without = read(&build(&missing), Reading::Strict);
        let is_whole = |read: Recording| read.contradictions.is_empty();
        assert_eq!(read_without.is_ok_and(is_whole), is_histogram, "without frame {at}");
        let mut twice = whole.clone();
        twice.insert(at, at);
        // A crash dump has the newest stacks and records again: they count once.
        if let Ok(read) = read(&build(&twice), Reading::Strict) {
            assert_eq!(read.profile, expected, "frame {at} twice");
        }
        for other in 0..at {
            let mut swapped = whole.clone();
            swapped.swap(at, other);
            let _ = read(&build(&swapped), Reading::Salvage);
            // Stack nodes may come anywhere.
            if let Ok(read) = read(&build(&swapped), Reading::Strict) {
                assert_eq!(read.profile, expected, "frames {at} and {other} swapped");
            }
        }
    }
}

/// A file whose frames between welcome and end are these.
fn file(script: &Script, frames: &[Vec<u8>], complete: bool) -> Vec<u8> {
    [
        preamble(1).to_vec(),
        encode(&FileHeader { client: "test", created_unix_ns: 1 }),
        peer::welcome(script, 1_000).concat(),
        frames.concat(),
        encode(&FileEnd { complete, reason: "" }),
    ]
    .concat()
}

/// Guards "damaged" for a file that another version of the program wrote.
#[test]
fn files_of_other_versions_name_both_versions_and_the_way_out() {
    /// What a client of another build writes as an epoch's head.
    #[derive(serde::Serialize, serde::Deserialize)]
    struct OtherEpoch {
        epoch: u8,
    }
    impl Message<'_> for OtherEpoch {
        const TYPE: u16 = Epoch::TYPE;
    }
    let script = Script::default();
    let layout = file(&script, &[encode(&OtherEpoch { epoch: 7 })], true);
    let [mut newer, mut older] = [0; 2].map(|_| written(&script, &[7]));
    (newer[8], older[8]) = (9, 0);
    for reading in [Reading::Strict, Reading::Salvage] {
        let text = read(&layout, reading).unwrap_err().to_string();
        has(&text, &["another build of file version 1", "record again"]);
    }
    for (bytes, found, way_out) in [
        (newer, "file version 9 and protocol version 1, but", "use a newer client"),
        (older, "file version 0 and protocol version 1, but", "record again"),
    ] {
        let text = read(&bytes, Reading::Strict).unwrap_err().to_string();
        has(&text, &[found, "this client reads file version 1 and protocol version 1", way_out]);
        assert!(!text.contains("damaged"), "{text}");
    }
}

fn is_of<'m, M: Message<'m>>(frame: &[u8]) -> bool {
    frame[..2] == M::TYPE.to_le_bytes()
}

#[test]
fn stacks_may_follow_the_counts_that_name_them() {
    let script = Script::default();
    let frames = peer::epoch(&script, 7);
    let whole = read(&file(&script, &frames, true), Reading::Strict).unwrap();
    let (nodes, others): (Vec<_>, Vec<_>) =
        frames.into_iter().partition(|frame| is_of::<Nodes<'_>>(frame));
    let newest_first: Vec<_> = others.into_iter().chain(nodes.into_iter().rev()).collect();
    let found = read(&file(&script, &newest_first, true), Reading::Strict).unwrap();
    assert_eq!(found.profile.sample_count(), whole.profile.sample_count());
    assert_eq!(stacks_of(&found.profile), stacks_of(&whole.profile));
}

fn stacks_of(profile: &Profile) -> Vec<(u32, u64, Vec<Frame>)> {
    let samples = profile.samples().iter().map(|sample| {
        let frames = profile.stack(sample.node).map(|id| profile.frame(id));
        (sample.vcpu, sample.count, frames.collect())
    });
    let mut stacks: Vec<_> = samples.collect();
    stacks.sort();
    stacks
}

/// Guards that counts of stacks that are not in the file are left out, or shown under other stacks.
#[test]
fn counts_of_stacks_that_are_missing_are_refused_in_a_complete_file() {
    let script = Script::default();
    let mut frames = peer::epoch(&script, 7);
    // The first run of nodes holds the parents of all others.
    let at = frames.iter().position(|frame| is_of::<Nodes<'_>>(frame));
    frames.remove(at.unwrap());
    let error = read(&file(&script, &frames, true), Reading::Strict).unwrap_err();
    let text = error.to_string();
    has(&text, &["expected", "found"]);
    assert!(text.contains("--salvage"), "{text}");
    for (complete, reading) in [(false, Reading::Strict), (true, Reading::Salvage)] {
        let kept = read(&file(&script, &frames, complete), reading).unwrap();
        assert_eq!(kept.profile.sample_count(), script.samples());
        let unknown = Frame::Special(SpecialFrame::UnknownCode);
        let stacks = stacks_of(&kept.profile);
        assert!(
            stacks.iter().any(|(_, count, stack)| *stack == [unknown] && *count == 13),
            "{stacks:?}"
        );
    }
}

#[test]
fn impossible_stack_nodes_are_refused() {
    let script = Script::default();
    let nodes = |first: u64, parent: u64| {
        let mut payload = [0; 64];
        let mut encoder = Encoder::new(first, &mut payload);
        encoder.push(Node { parent, frames: &[0x110] });
        let length = encoder.finish();
        encode(&Nodes { vcpu: 0, first, count: 1, payload: &payload[..length] })
    };
    let (segment, first) = (peer::SEGMENT, peer::number(1));
    for (what, sent, said) in [
        ("a node of no segment", nodes(segment - 1, 0), "segment"),
        ("a parent in another segment", nodes(2 * segment, first), "in the same segment"),
    ] {
        let frames = [peer::epoch(&script, 7), vec![sent]].concat();
        let error = read(&file(&script, &frames, true), Reading::Strict).unwrap_err();
        let text = error.to_string();
        has(&text, &[said, "expected", "found"]);
        let kept = read(&file(&script, &frames, true), Reading::Salvage).unwrap();
        assert_eq!(kept.profile.sample_count(), script.samples(), "{what}");
    }
}

#[test]
fn what_the_agent_gave_up_is_a_frame_and_part_of_the_accounting() {
    let script = Script { aged: 4, ..Script::default() };
    let recording = recorded(&script, &[7, 8]);
    assert_eq!(recording.contradictions, [""; 0]);
    let profile = &recording.profile;
    assert_eq!(profile.sample_count(), 2 * script.samples() + 2 * 2 * 4);
    assert_eq!((profile.counters().aged, profile.counters().check()), (16, Ok(())));
    let aged = Frame::Special(SpecialFrame::Aged);
    let stacks = stacks_of(profile);
    for vcpu in [0, 1] {
        assert!(stacks.contains(&(vcpu, 8, vec![aged])), "{stacks:?}");
    }
}

/// A tree so deep that walking its stacks would take for ever.
#[test]
fn a_stack_without_end_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let deep = (1..=5_000).map(|id| (id - 1, vec![0x110], 1)).collect();
    let script = Script { vcpus: vec![deep], nodes_per_frame: 1_000, ..Script::default() };
    let path = write(directory.path(), &script, &[7], None);
    let error = Recording::open(&path, Reading::Strict).unwrap_err();
    assert!(error.to_string().contains("the limit is 4096"), "{error}");
}

#[test]
fn a_frame_code_of_no_mapping_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let script = Script { vcpus: vec![vec![(0, vec![0x5000], 1)]], ..Script::default() };
    let path = write(directory.path(), &script, &[7], None);
    let error = Recording::open(&path, Reading::Strict).unwrap_err();
    has(&error.to_string(), &["0x5000 is in no mapping"]);
}

#[test]
fn foreign_files_are_named_for_what_they_are() {
    for bytes in
        [&b""[..], b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0", b"unikprof\x01\0\x01\0\0\0\0\0"]
    {
        let error = read(bytes, Reading::Salvage).unwrap_err();
        assert_is!(error, RecordingError::NotARecording { .. });
    }
    let error = read(b"\x89unikrec\x02\0\x01\0\0\0\0\0", Reading::Strict).unwrap_err();
    assert!(error.to_string().contains("newer client"), "{error}");
    let error = Recording::open(Path::new("/"), Reading::Strict).unwrap_err();
    assert!(error.to_string().contains("directory"), "{error}");
}
