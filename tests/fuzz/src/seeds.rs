//! The inputs that fuzzing begins with: small, sound, and made anew each time.

use unikprof_profile::recording::{FileEnd, FileHeader};
use unikprof_proto::code::message_type;
use unikprof_proto::frame::{self, Message};
use unikprof_proto::message::{
    Epoch, EventName, EventNamesEnd, Nodes, RingEnd, RingHead, RingRun, StacksEnd,
};
use unikprof_proto::ring::{self, Record};
use unikprof_test_kit::frames::{encoded, framed};

use crate::{recording, sessions};
use unikprof_test_kit::elf::{CODE_ADDRESS, TestElf};

/// The seeds of each target, by its name.
pub fn all() -> [(&'static str, Vec<Vec<u8>>); 10] {
    // What an agent sends to a client that makes one recording: every kind of answer.
    let answers = sessions::play(&[]);
    [
        ("caller_table", images()),
        ("frames", frames(&answers)),
        ("handshake", strangers()),
        ("heap", allocations()),
        ("nodes", nodes(&answers)),
        ("sealed", sealed()),
        ("sessions", conversations()),
        ("recording", recordings(&answers)),
        ("traces", traces()),
        ("walk", stacks()),
    ]
}

fn split(mut bytes: &[u8]) -> Vec<frame::Frame<'_>> {
    let mut frames = Vec::new();
    while let Ok(Some(frame)) = frame::split(bytes) {
        bytes = &bytes[frame.length()..];
        frames.push(frame);
    }
    frames
}

/// All frames as a stream, and each kind of message as a type and a body.
fn frames(answers: &[u8]) -> Vec<Vec<u8>> {
    let mut seeds = vec![answers.to_vec()];
    let mut kinds = Vec::new();
    for frame in split(answers) {
        if !kinds.contains(&frame.kind) {
            kinds.push(frame.kind);
            seeds.push([&frame.kind.to_le_bytes(), frame.body].concat());
        }
    }
    for request in message_type::HELLO..=message_type::ACKNOWLEDGE {
        seeds.push([&request.to_le_bytes()[..], &[1; 9]].concat());
    }
    seeds
}

/// Calls of an allocator: many, of all kinds, at two intervals and with and without interrupts.
fn allocations() -> Vec<Vec<u8>> {
    let calls = |room: u8, interval: [u8; 3], interrupts: u8| {
        let mut random = 1_u32;
        let calls = (0..3_000).map(|_| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 24) as u8
        });
        let head = [&[room][..], &interval, &[interrupts]].concat();
        head.into_iter().chain(calls).collect()
    };
    vec![calls(255, [2, 64, 0], 0), calls(20, [2, 0, 16], 0), calls(100, [2, 64, 0], 200)]
}

/// Code of each kind of instruction that a probe may replace, and traces of it.
fn traces() -> Vec<Vec<u8>> {
    const CODE: [u8; 60] = [
        0x53, 0x48, 0x83, 0xec, 0x18, 0x48, 0x8b, 0x05, 0x10, 0, 0, 0, 0xe8, 0xe0, 0xff, 0xff,
        0xff, 0x74, 0x05, 0x0f, 0x8f, 0x20, 0, 0, 0, 0xff, 0xe0, 0xff, 0x64, 0x24, 0x08, 0x41,
        0xff, 0x24, 0xcc, 0xe9, 0x10, 0, 0, 0, 0xeb, 0xf0, 0x5b, 0xc3, 0xc2, 0x10, 0, 0xf3, 0xc3,
        0x48, 0x8d, 0x64, 0x24, 0xf8, 0x66, 0x0f, 0x1f, 0x44, 0, 0,
    ];
    let mut random = 1_u32;
    let mut any = move || {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 24) as u8
    };
    (0..4)
        .map(|_| {
            let code = CODE.into_iter().cycle().take(400);
            std::iter::once(200).chain(code).chain((0..3_000).map(|_| any())).collect()
        })
        .collect()
}

/// Runs of nodes, behind the id of the first and their number.
fn nodes(answers: &[u8]) -> Vec<Vec<u8>> {
    let runs = split(answers)
        .into_iter()
        .filter_map(|frame| frame::decode::<unikprof_proto::message::Nodes<'_>>(&frame).ok())
        .map(|run| {
            let [low, high, ..] = run.count.to_le_bytes();
            [&[1, run.first as u8, low, high], run.payload].concat()
        });
    runs.collect()
}

/// Seeds for [`sessions`]: connect, greet, then requests that are delivered and read.
fn conversations() -> Vec<Vec<u8>> {
    let mut seeds = vec![vec![0, 2, 0, 7, 0, 255, 255]];
    for request in 0..8 {
        let mut seed = vec![
            0, 2, 0, // connect, preamble
            14, 7, 0, 0, 1, 16, 1, 0, 0, 2, 0, 2, 0, // a stack
            3, 0, 1, 2, 0, 0, 0, 0, 16, 0, 0, 0, // a start
            7, 0, 255, 15, // delivered, and its answer read
            15, 40, // interruptions
        ];
        for vcpu in 0..3 {
            seed.extend([11, vcpu, 0, 12, vcpu, 0]);
        }
        seed.extend([3, 0, 1, request, 0, 0, 0, 0, 7, 0, 255, 15, 9]);
        seed.extend([0, 2, 1, 3, 1, 1, 6, 1, 7, 1, 255, 15, 8, 0]);
        seeds.push(seed);
    }
    seeds
}

/// Two strangers who say their preamble and what they have overheard; the second alters a byte.
fn strangers() -> Vec<Vec<u8>> {
    let first = [0, 3, 0, 4, 0, 2];
    let second = [0, 3, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 5, 0, 20, 1, 2, 1];
    vec![first.to_vec(), [&first[..], &second].concat(), vec![0, 3, 0, 6, 0, 1, 0]]
}

/// Requests, bytes that are none, and a record that is altered.
fn sealed() -> Vec<Vec<u8>> {
    let sound = [0, 0, 0, 1, 5, 0, 3];
    vec![sound.to_vec(), [sound, sound].concat(), [&sound[..3], &[0, 4, 1, 9, 1]].concat()]
}

/// A file as it is, and as the list of its frames.
fn recordings(answers: &[u8]) -> Vec<Vec<u8>> {
    let mut content = Vec::new();
    // When the fake guest was fetched, by its clock.
    put(&FileHeader { client: "fuzz", created_unix_ns: 0x1800_0000_0000_0000 }, &mut content);
    let mut last = None;
    for frame in split(answers) {
        // An epoch's head comes with each vCPU's share, and is kept once.
        if let Ok(head) = frame::decode::<Epoch<'_>>(&frame)
            && last.replace(head.epoch) == Some(head.epoch)
        {
            continue;
        }
        // What of a conversation is kept in a file.
        if matches!(
            frame.kind,
            message_type::WELCOME | message_type::MAPPING | message_type::EPOCH
                ..=message_type::VCPU_END | message_type::COUNTS
        ) {
            content.extend(framed(frame.kind, frame.body));
        }
    }
    rings(&mut content);
    put(&FileEnd { complete: true, reason: "" }, &mut content);
    let mut whole = vec![0];
    whole.extend(recording::preamble());
    whole.extend(&content);
    let mut listed = vec![1];
    for frame in split(&content) {
        listed.extend(frame.kind.to_le_bytes());
        listed.extend((frame.body.len() as u16).to_le_bytes());
        listed.extend(frame.body);
    }
    vec![whole, listed]
}

/// The number of the stack that a record names: above those of the conversation.
const STACK: u64 = 1000;

/// Appends a ring of one vCPU, with records of the kinds 1 to 12 and 16 to 19.
fn rings(content: &mut Vec<u8>) {
    let (id, name) = (0, "request");
    put(&EventName { id, name }, content);
    let end = EventNamesEnd { names: 1, refused: 0 };
    put(&end, content);
    let mut payload = [0; 200];
    let mut encoder = ring::Encoder::new(0, &mut payload);
    for kind in (1..=12).chain(16..=19) {
        encoder.push(Record {
            kind,
            at_ns: u64::from(kind) * 1_000,
            first: if kind == ring::kind::SAMPLE { STACK } else { 0 },
            second: 1,
            third: if kind == ring::kind::WAIT { 1 } else { 0 },
        });
    }
    let length = encoder.finish();
    let head = RingHead {
        vcpu: 0,
        capacity: 64,
        oldest: 5,
        next: 21,
        now_ns: 20_000,
        wall_clock_ns: Some(1_700_000_000_000_000_000),
    };
    put(&head, content);
    let run = RingRun { vcpu: 0, first: 5, count: 16, base_ns: 0, payload: &payload[..length] };
    put(&run, content);
    let end = RingEnd { vcpu: 0, next: 21, lost: 0, whole_since_ns: 0 };
    put(&end, content);
    let nodes = Nodes { vcpu: 0, first: STACK, count: 1, payload: &[0x11, 11] };
    put(&nodes, content);
    put(&StacksEnd { vcpu: 0, oldest: STACK, known: STACK }, content);
}

fn put<'m>(message: &impl Message<'m>, out: &mut Vec<u8>) {
    out.extend(encoded(message));
}

/// An image, and the choices that make one like it: a function with a frame and a linkage table.
fn images() -> Vec<Vec<u8>> {
    let section = call_frames();
    let elf = TestElf::new(&[0xf4; 256], &[(".eh_frame", 0, &section)]);
    let whole = [vec![0], elf.bytes()].concat();
    // The code's byte and length, no more segments, the address 0; two bytes of length for choice
    // 3.
    let made =
        |choices, length: &[u8]| [&[choices, 0xf4, 0, 1, 0, 0], length, &section[..]].concat();
    let cut = (section.len() as u16).to_le_bytes();
    vec![whole, made(1, &[]), made(2, &[]), made(3, &cut)]
}

/// The sections' content: one entry that is shared and one for each function.
fn call_frames() -> Vec<u8> {
    let mut section = Vec::new();
    let mut entry = |kind: u32, rest: &[&[u8]]| {
        let body = rest.concat();
        let whole = (8 + body.len()).next_multiple_of(8);
        section.extend((whole as u32 - 4).to_le_bytes());
        section.extend(kind.to_le_bytes());
        section.extend(body);
        // Up to a multiple of eight bytes there is nothing to do.
        section.resize(section.len().next_multiple_of(8), 0);
        section.len()
    };
    // Version 1, no augmentation, factors 1 and -8, column 16; CFA = rsp + 8, the address below it.
    let shared: &[u8] = &[1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1];
    let mut at = entry(0, &[shared]);
    // push %rbp; mov %rsp, %rbp; pop %rbp
    let frame: &[u8] = &[0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6, 0x5a, 0x0c, 7, 8];
    let linkage: &[u8] = &[0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
    for (start, length, instructions) in [(0_u64, 31_u64, frame), (64, 64, linkage)] {
        let start = (CODE_ADDRESS + start).to_le_bytes();
        let back = at as u32 + 4;
        at = entry(back, &[&start, &length.to_le_bytes(), instructions]);
    }
    section
}

/// Chains of frame records of several lengths, as [`walk`](crate::walk) understands them.
fn stacks() -> Vec<Vec<u8>> {
    [0_u8, 1, 5, 40]
        .map(|frames| {
            // Lengths of code, whole bounds, depth, pc in code, sp and fp at the start.
            let mut seed = vec![2, 0, 32, 2, 0, 32, 2, 0, 32, 0, 0, 30, 1, 0, 0, 0];
            seed.extend([0, 0, 0, 0, 0, 0, 0]);
            for frame in 0..frames {
                let next = u16::from(frame + 1) * 2;
                seed.push(0);
                seed.extend(next.to_le_bytes());
                seed.extend([1, 0, frame, 0]);
            }
            seed
        })
        .to_vec()
}

#[cfg(test)]
mod tests {
    use unikprof_profile::caller_table::ImageTable;
    use unikprof_profile::recording::{Completeness, Reading, Recording};
    use unikprof_profile::symbols::Image;

    /// Fuzzing begins with what is sound, not with what is refused at its first byte.
    #[test]
    fn the_seed_of_a_recording_is_one() {
        let [whole, _] = &super::recordings(&crate::sessions::play(&[]))[..] else {
            panic!("a file and its frames");
        };
        let recording = Recording::read(&whole[1..], "seed".as_ref(), Reading::Strict);
        let recording = recording.expect("it is sound");
        assert_eq!(recording.completeness, Completeness::Complete);
        assert_eq!(recording.epochs, 2);
        assert_eq!(recording.profile.recording().warnings, [""; 0]);
    }

    /// The fuzzer begins with a table that has every kind of row.
    #[test]
    fn the_seed_of_an_image_has_a_table() {
        let [whole, ..] = &super::images()[..] else {
            panic!("an image and what makes one");
        };
        let image = Image::parse("seed".as_ref(), whole[1..].to_vec()).expect("it is sound");
        let table = ImageTable::compile(&image, &[]).expect("it has functions");
        assert_eq!(table.rows().expect("it is small").len(), 5 + 9);
    }

    /// The seeds hold, and are what they are meant to be.
    #[test]
    fn every_seed_holds() {
        for (target, seeds) in super::all() {
            assert!(!seeds.is_empty(), "{target}");
            for seed in seeds {
                match target {
                    "caller_table" => crate::caller_table::check(&seed),
                    "frames" => crate::frames::check(&seed),
                    "handshake" => crate::keyed::check_handshake(&seed),
                    "heap" => assert!(crate::heap::check(&seed) > 0, "no samples"),
                    "nodes" => crate::nodes::check(&seed),
                    "sealed" => crate::keyed::check_sealed(&seed),
                    "sessions" => crate::sessions::check(&seed),
                    "recording" => crate::recording::check(&seed),
                    "traces" => assert!(crate::traces::check(&seed) > 0, "no breakpoints"),
                    "walk" => crate::walk::check(&seed),
                    other => panic!("{other} is no target"),
                }
            }
        }
    }
}
