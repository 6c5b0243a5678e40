//! Crash dumps: a complete recording file, whatever the panic interrupted.

use std::mem::MaybeUninit;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use crate::client::{Client, Frame, fields, frames, nodes_of, one_ms, read, records, serve};
use crate::counting::allocator_calls;
use crate::fake;
use crate::fake::platform::TwoVcpus;
use crate::fake::stacks::{Random, any_stack};
use unikprof_agent::{
    Agent, Config, CrashDumpError, MAX_DEPTH, Platform as _, minimum_bytes, ring_bytes,
};
use unikprof_proto::code::{mode, start_flag};
use unikprof_proto::file::{self, BlockError, BlockHead, FileEnd, FileHeader};
use unikprof_proto::frame::Message;
use unikprof_proto::message::{
    Epoch, EventName, EventNamesEnd, Mapping, Nodes, RingEnd, RingHead, RingRun, Stacks, StacksEnd,
    Start, VcpuEpoch, Welcome,
};
use unikprof_proto::ring::kind;

const CONFIG: Config<'static> =
    Config { vcpus: 2, recordings: 2, guest_name: Some("fragile"), ..fake::CONFIG };

/// An agent with `events` marks, numbered from 0, which is never dropped.
fn agent(events: u64) -> &'static Agent<'static, TwoVcpus> {
    let block = |bytes| Box::leak(vec![MaybeUninit::uninit(); bytes].into_boxed_slice());
    let platform = TwoVcpus::new(MAX_DEPTH);
    let agent = Agent::new(platform, CONFIG, block(minimum_bytes(2, 2) + 100_000)).unwrap();
    let agent = Box::leak(Box::new(agent.with_ring(block(ring_bytes(2, 1000)))));
    let name = agent.event_name("request").unwrap();
    for number in 0..events {
        agent.platform().fake.advance(1000);
        agent.mark(name, number);
    }
    agent
}

fn is(kind: u16) -> impl Fn(&&Frame) -> bool {
    move |one| one.kind == kind
}

/// Checks the file's order, and returns the values of its marks and the reason at its end.
fn read_file(file: &[u8]) -> (Vec<u64>, String) {
    let (preamble, rest) = file.split_first_chunk().unwrap();
    assert_eq!(file::versions(preamble), Some((file::VERSION, 1)));
    let frames = frames(rest);
    let mut order: Vec<u16> = frames.iter().map(|one| one.kind).collect();
    order.dedup();
    let vcpu = [RingHead::TYPE, RingEnd::TYPE, StacksEnd::TYPE];
    let start = [FileHeader::TYPE, Welcome::TYPE, Mapping::TYPE];
    let names = [EventName::TYPE, EventNamesEnd::TYPE];
    // The epochs, if there are recordings.
    if order.get(3) == Some(&Epoch::TYPE) {
        order.remove(3);
    }
    order.retain(|kind| ![Nodes::TYPE, RingRun::TYPE, VcpuEpoch::TYPE].contains(kind));
    assert_eq!(order, [&start[..], &vcpu, &vcpu, &names, &vcpu, &vcpu, &[FileEnd::TYPE]].concat());
    let header: FileHeader<'_> = read(&frames[0]);
    assert!(header.client.starts_with("unikprof-agent "));
    assert_eq!(read::<Welcome<'_>>(&frames[1]).guest_name, Some("fragile"));
    let runs = frames.iter().filter(is(RingRun::TYPE));
    let mut records: Vec<_> = runs.flat_map(|run| records(&read(run))).collect();
    // The newest come first, some of them again.
    records.retain(|(_, record)| record.kind == kind::MARK);
    records.sort_by_key(|(position, _)| *position);
    records.dedup();
    let marks = fields(&records);
    let end: FileEnd<'_> = read(frames.last().unwrap());
    assert_eq!(end.complete, end.reason.is_empty());
    (marks.iter().map(|mark| mark.3).collect(), end.reason.to_owned())
}

/// A panic in the middle of a tick, while the slot is busy: its hook writes everything, without
/// allocation.
#[test]
fn a_panic_in_a_tick_leaves_a_whole_file() {
    let agent = agent(500);
    let mut client = Client::connect(&serve(agent));
    client.start(one_ms());
    let mut random = Random::new(7);
    let mut tick = || {
        agent.platform().fake.advance(2_000_000);
        let registers = agent.platform().fake.stack().lay(&any_stack(&mut random));
        agent.on_tick(Some(&registers));
    };
    (0..100).for_each(|_| tick());
    let stacks = client.stacks(&Stacks { vcpu: 0, known: 0 });
    assert!(stacks.len() >= 100, "{}", stacks.len());
    static LEFT: Mutex<(Vec<u8>, u64)> = Mutex::new((Vec::new(), 0));
    let others = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !info.payload_as_str().is_some_and(|text| text.contains("the guest crashes")) {
            return others(info);
        }
        let mut left = LEFT.lock().unwrap();
        left.0.reserve_exact(1 << 20);
        left.1 = allocator_calls(|| {
            agent.crash_dump(&mut |bytes| left.0.extend_from_slice(bytes));
        });
    }));
    agent.platform().breaks.store(true, Ordering::Relaxed);
    assert!(panic::catch_unwind(AssertUnwindSafe(&mut tick)).is_err());
    let (file, allocations) = &*LEFT.lock().unwrap();
    assert_eq!(*allocations, 0);
    let (marks, reason) = read_file(file);
    assert!(marks.iter().copied().eq(0..500));
    assert_eq!(reason, "");
    let frames = frames(&file[file::PREAMBLE..]);
    let vcpu: VcpuEpoch = read(frames.iter().find(is(VcpuEpoch::TYPE)).unwrap());
    assert_eq!((vcpu.vcpu, vcpu.end.counters.recorded), (0, 100));
    let mut nodes = nodes_of(&frames);
    nodes.sort();
    nodes.dedup();
    assert_eq!(nodes, stacks);
    let end: StacksEnd = read(frames.iter().find(is(StacksEnd::TYPE)).unwrap());
    assert_eq!(nodes.last().unwrap().0, end.known);
    assert_eq!(nodes[0].0, end.oldest);
}

/// A block keeps the newest records that fit, says so, and has a head; a block that is too short
/// has none, not even an older one.
#[test]
fn a_block_holds_the_newest_that_fit() {
    let agent = agent(1000);
    let mut whole = vec![0; 1 << 20];
    let length = agent.crash_dump_into(&mut whole).unwrap();
    let (marks, reason) = read_file(BlockHead::file(&whole).unwrap());
    assert!(marks.iter().copied().eq(0..1000));
    assert_eq!(reason, "");

    let mut exact = vec![0xff; length];
    assert_eq!(agent.crash_dump_into(&mut exact), Ok(length));
    assert_eq!(exact, whole[..length]);

    let mut block = vec![0xff; length / 2];
    assert!(agent.crash_dump_into(&mut block).is_ok());
    let (marks, reason) = read_file(BlockHead::file(&block).unwrap());
    assert!(reason.contains("too small"), "{reason}");
    assert!(marks.len() > 100 && marks.len() < 600, "{}", marks.len());
    assert!(marks.iter().copied().eq(1000 - marks.len() as u64..1000));

    let least = match agent.crash_dump_into(&mut block[..200]) {
        Err(CrashDumpError::TooSmall(least)) => least,
        Ok(length) => panic!("{length} bytes"),
    };
    assert!(BlockHead::file(&block).is_err(), "the older one is gone");
    let mut block = vec![0; least + 100];
    assert!(agent.crash_dump_into(&mut block[..least]).is_ok());
    assert!(read_file(BlockHead::file(&block).unwrap()).0.is_empty());
    for length in 0..BlockHead::LENGTH + 2 {
        let refused = agent.crash_dump_into(&mut block[..length]);
        assert_eq!(refused, Err(CrashDumpError::TooSmall(least)));
    }
}

/// The file must describe the recordings of its samples: those that run, and those that wait to be
/// fetched.
#[test]
fn the_file_names_its_recordings() {
    let agent = agent(0);
    agent.platform().stolen_ns.store(0, Ordering::Relaxed);
    let mut client = Client::connect(&serve(agent));
    let heads = || {
        let mut file = Vec::new();
        agent.crash_dump(&mut |bytes| file.extend_from_slice(bytes));
        read_file(&file);
        frames(&file[file::PREAMBLE..])
    };
    let recordings = |frames: &[Frame]| -> Vec<(u64, u32, String)> {
        let heads = frames.iter().filter(is(Epoch::TYPE));
        heads
            .map(read::<Epoch<'_>>)
            .map(|head| (head.recording, head.ring_bit, head.name.to_owned()))
            .collect()
    };
    assert!(recordings(&heads()).is_empty());
    let first = client.start(Start { name: "always on", period_ns: 10_309_278, ..one_ms() });
    agent.platform().fake.advance(5_000);
    let began_ns = agent.platform().fake.now_ns();
    let name = "x".repeat(64);
    let second = client.start(Start {
        name: &name,
        mode: mode::WALL,
        flags: start_flag::FIXED_INTERVAL,
        depth: 7,
        ..one_ms()
    });
    agent.resume();
    agent.platform().fake.advance(2_000);
    let file = heads();
    let both = [(first, 0, "always on".to_owned()), (second, 1, name.clone())];
    assert_eq!(recordings(&file), both);
    let epochs = file.iter().filter(is(Epoch::TYPE));
    let epochs: Vec<Epoch<'_>> = epochs.map(read).collect();
    assert_eq!((epochs[0].period_ns, epochs[0].mode), (10_309_278, mode::CPU));
    let head = epochs[1];
    assert_eq!((head.mode, head.depth, head.vcpus), (mode::WALL, 7, 0));
    assert_eq!(head.flags, start_flag::FIXED_INTERVAL);
    assert_eq!((head.period_ns, head.late_threshold_ns), (1_000_000, 1_000_000));
    assert_eq!((head.recording_started_ns, head.gaps), (began_ns, 1));
    assert_eq!(head.ended_ns - head.started_ns, 2_000);
    assert!(head.ended_wall_clock_ns.is_some());
    // The counters that follow are in the same epochs.
    let shares = file.iter().filter(is(VcpuEpoch::TYPE));
    let shares: Vec<VcpuEpoch> = shares.map(read).collect();
    assert!(shares.iter().any(|share| share.epoch == head.epoch));

    // Ended but not fetched: its samples and its head are there. Fetched: both are missing.
    let epoch = client.stop(second).first_epoch;
    assert_eq!(recordings(&heads()), both);
    client.acknowledge(epoch);
    assert_eq!(recordings(&heads()), both[..1]);
    client.discard();
    assert!(recordings(&heads()).is_empty());
}

/// A guest that dies while it writes a crash dump must leave neither an incomplete dump nor an
/// earlier one, wherever it dies.
#[test]
fn a_block_that_is_half_written_is_none() {
    let agent = agent(100);
    let mut client = Client::connect(&serve(agent));
    client.start(one_ms());
    let looks = &agent.platform().looks;
    let mut block = vec![0; 1 << 16];
    assert!(agent.crash_dump_into(&mut block).is_ok());
    let earlier = block.clone();
    let mut deaths = 0;
    loop {
        block.copy_from_slice(&earlier);
        agent.platform().fake.advance(1);
        looks.store(deaths, Ordering::Relaxed);
        let left = panic::catch_unwind(AssertUnwindSafe(|| agent.crash_dump_into(&mut block)));
        looks.store(u64::MAX, Ordering::Relaxed);
        match left {
            Ok(length) => {
                assert!(length.is_ok());
                break;
            }
            Err(_) => assert_eq!(BlockHead::file(&block), Err(BlockError::NoBlock)),
        }
        deaths += 1;
    }
    assert!(deaths > 3, "the clock is read for each part");
    assert_ne!(block, earlier);
    assert!(BlockHead::file(&block).is_ok());
    // The head is there, but only the beginning of the file, as when memory was not written back.
    for cut in (BlockHead::LENGTH..500).step_by(7) {
        let mut torn = earlier.clone();
        torn[..cut].copy_from_slice(&block[..cut]);
        let torn = BlockHead::file(&torn);
        assert!(matches!(torn, Err(BlockError::Checksum(..) | BlockError::Cut(_))));
    }
    for cut in 1..BlockHead::LENGTH {
        let mut torn = vec![0; block.len()];
        torn[..cut].copy_from_slice(&block[..cut]);
        assert_eq!(BlockHead::file(&torn), Err(BlockError::NoBlock));
    }
}

/// Without a ring, the file says why it contains so little.
#[test]
fn without_a_ring_the_file_says_so() {
    let mut memory = vec![MaybeUninit::uninit(); minimum_bytes(2, 2)];
    let agent = Agent::new(TwoVcpus::new(8), CONFIG, &mut memory).unwrap();
    let mut file = Vec::new();
    agent.crash_dump(&mut |bytes| file.extend_from_slice(bytes));
    let frames = frames(&file[file::PREAMBLE..]);
    let end: FileEnd<'_> = read(frames.last().unwrap());
    assert!(!end.complete && end.reason.contains("ring"));
}
