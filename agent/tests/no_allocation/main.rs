//! A process of its own for its global allocator, which counts calls per thread: neither a tick, nor
//! an encrypted conversation, nor a crash dump allocates.
#![cfg(not(loom))]
#![allow(unsafe_code, clippy::unwrap_used)]

mod counting;
#[cfg(feature = "ring")]
mod crash;

#[path = "../it/client/mod.rs"]
mod client;
#[path = "../it/fake/mod.rs"]
mod fake;
#[cfg(feature = "noise")]
#[path = "../it/fake_guest/mod.rs"]
mod fake_guest;
#[cfg(feature = "noise")]
#[path = "../it/keyed/mod.rs"]
mod keyed;

use std::mem::MaybeUninit;

use counting::allocator_calls;
use fake::CONFIG;
use fake::conversation::InProcess;
use fake::platform::FakePlatform;
use fake::stacks::{Random, Stack, any_stack, stack};
use unikprof_agent::{Agent, MAX_DEPTH, Registers, minimum_bytes};

/// The tests below could not fail if nothing were counted.
#[test]
fn the_allocator_counts() {
    assert_eq!(allocator_calls(|| drop(Box::new(1))), 2);
    assert_eq!(allocator_calls(|| Vec::<u8>::with_capacity(1).reserve(99)), 3);
    assert_eq!(allocator_calls(|| ()), 0);
}

const PERIOD_NS: u64 = 1_000_000;

/// Every path through a tick except that of a busy slot, which cannot be produced from outside.
#[test]
fn no_road_through_a_tick_allocates() {
    let mut random = Random::new(3);
    let mut stacks: Vec<Stack> = (0..2000).map(|_| any_stack(&mut random)).collect();
    stacks.push(stack(&mut random, MAX_DEPTH + 1));
    // Far too small: most stacks overflow.
    let mut memory = vec![MaybeUninit::uninit(); minimum_bytes(1, 1) + 10_000];
    let platform = FakePlatform::new(MAX_DEPTH + 1);
    let agent = Agent::new(platform, CONFIG, &mut memory).unwrap();
    let mut client = InProcess::connect(&agent).unwrap();
    client.start(PERIOD_NS).unwrap();

    let tick = |registers: Option<&Registers>, passed_ns: u64| {
        agent.platform().advance(passed_ns);
        assert_eq!(allocator_calls(|| _ = agent.on_tick(registers)), 0);
    };
    // Truncated ones first, while there is room.
    for stack in stacks.iter().rev() {
        let registers = agent.platform().stack().lay(stack);
        tick(Some(&registers), 2 * PERIOD_NS);
        tick(Some(&registers), 0);
    }
    let nowhere = Registers::new(1, 8, 8);
    tick(Some(&nowhere), 200 * PERIOD_NS);
    // The stack has only the leaf: it fits, or was there before.
    let leaf = agent.platform().stack().lay(&Stack(vec![stacks[0].0[0]]));
    let on_garbage = Registers { fp: 1, ..leaf };
    tick(Some(&on_garbage), 2 * PERIOD_NS);
    tick(None, 2 * PERIOD_NS);
    assert_eq!(allocator_calls(|| agent.on_block(None)), 0);
    tick(Some(&leaf), 2 * PERIOD_NS);
    assert_eq!(allocator_calls(|| _ = agent.on_wake()), 0);

    let counters = client.stop().unwrap().counters;
    assert!(counters.add_up(), "{counters:?}");
    for (road, times) in [
        ("recorded", counters.recorded),
        ("overflow", counters.overflow),
        ("early", counters.early),
        ("truncated", counters.truncated),
        ("masked", counters.masked),
        ("idle", counters.idle),
    ] {
        assert!(times > 0, "no tick was {road}: {counters:?}");
    }
}

/// An encrypted conversation: the agent's part, from the connection to the close.
#[cfg(feature = "noise")]
mod under_a_key {
    use unikprof_agent::SessionId;
    use unikprof_proto::code::role;
    use unikprof_proto::message::{Check, Pending, Status, Stop, Welcome};
    use unikprof_proto::preamble;

    use super::allocator_calls;
    use crate::client::{Frame, HELLO, download, encoded, frames, one_ms, read, whole};
    use crate::fake_guest::{FakeService, tick};
    use crate::keyed::{self, CONTROL, Client, OTHER, first_message};

    /// Sends bytes until nothing moves; returns the answer, and asserts that the agent's part did
    /// not allocate.
    fn exchange(service: &mut FakeService, session: SessionId, mut bytes: &[u8]) -> Vec<u8> {
        let mut answer = Vec::new();
        loop {
            let mut buffer = [0; 5000];
            let (mut taken, mut given) = (0, 0);
            let calls = allocator_calls(|| {
                let work = service.begin_work();
                taken = service.receive(session, bytes);
                given = service.transmit(session, &mut buffer);
                service.advance();
                service.end_work(work);
            });
            assert_eq!(calls, 0);
            bytes = &bytes[taken..];
            answer.extend_from_slice(&buffer[..given]);
            if taken + given == 0 {
                return answer;
            }
        }
    }

    fn open(service: &mut FakeService) -> SessionId {
        let mut session = None;
        assert_eq!(allocator_calls(|| session = service.open()), 0);
        let session = session.unwrap();
        let said = exchange(service, session, &preamble::encode(preamble::KEYED));
        assert_eq!(said, preamble::encode(preamble::KEYED));
        session
    }

    fn ask(service: &mut FakeService, client: &mut Client, request: &[u8]) -> Vec<Frame> {
        let record = client.seal(request);
        let answer = exchange(service, client.session, &record);
        frames(&client.open(&answer))
    }

    /// The handshake, the records and the download, and refused connections.
    #[test]
    fn no_part_of_a_conversation_allocates() {
        let (guest, mut service) = keyed::service();
        let sent = preamble::encode(preamble::KEYED);
        let session = open(&mut service);
        let stranger = first_message(session, OTHER, sent);
        assert!(!exchange(&mut service, session, &stranger.first).is_empty());
        assert!(service.is_over(session), "it was refused");
        assert_eq!(allocator_calls(|| service.close(session)), 0);

        let session = open(&mut service);
        guest.platform().idle(5_000_000);
        let shaking = first_message(session, CONTROL, sent);
        let answer = exchange(&mut service, session, &shaking.first);
        let mut client = shaking.finish(&answer);
        let hello = encoded(&HELLO);
        let welcome = ask(&mut service, &mut client, &hello);
        assert_eq!(read::<Welcome<'_>>(&welcome[0]).role, role::CONTROL);
        ask(&mut service, &mut client, &encoded(&one_ms()));
        for n in 0..3000 {
            assert!(tick(guest, &[n % 97, n % 89]));
        }
        let pending = ask(&mut service, &mut client, &encoded(&Stop { recording: 0 }));
        let pending: Pending = read(&pending[0]);
        let fetch = whole(pending.first_epoch);
        let fetched = ask(&mut service, &mut client, &encoded(&fetch));
        assert_eq!(download(&fetched).samples, 3000, "a sealed download");
        let status = ask(&mut service, &mut client, &encoded(&Check {}));
        assert_eq!(read::<Status>(&status[0]).peers.bad_key, 1);

        let mut altered = client.seal(&encoded(&Check {}));
        altered[9] ^= 1;
        assert!(exchange(&mut service, client.session, &altered).is_empty());
        assert!(service.is_given_up(client.session));
        assert_eq!(allocator_calls(|| service.close(client.session)), 0);
    }
}

#[cfg(feature = "hosted")]
mod hosted {
    use std::hint::black_box;
    use std::net::TcpStream;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use unikprof_agent::Access;
    use unikprof_agent::hosted::{self, Config};

    use super::allocator_calls;
    use super::fake::conversation::Conversation;

    /// Allocations in a signal handler must be counted in the interrupted thread.
    #[test]
    fn the_allocator_counts_in_a_signal_handler() {
        extern "C" fn allocate(_: i32) {
            drop(black_box(Box::new(1)));
        }
        // SAFETY: the signal is raised only below, and not during an allocation.
        let calls = allocator_calls(|| unsafe {
            libc::signal(libc::SIGUSR1, allocate as *const () as usize);
            libc::raise(libc::SIGUSR1);
        });
        assert_eq!(calls, 2);
    }

    /// The complete handler, with the platform's clocks and timers, on a thread that does not
    /// allocate itself.
    #[test]
    fn real_ticks_do_not_allocate() {
        const WANTED: u64 = 500;
        let guest = hosted::start(Config::new(Access::Open)).unwrap();
        let vcpu = guest.register_thread().unwrap();
        let address = guest.address();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let client = scope.spawn(|| {
                let mut client = Conversation::new(TcpStream::connect(address).unwrap()).unwrap();
                client.start(1_000_000).unwrap();
                let deadline = Instant::now() + Duration::from_secs(60);
                while client.check().unwrap().0.recorded < WANTED {
                    assert!(Instant::now() < deadline, "the ticks do not come");
                    thread::sleep(Duration::from_millis(20));
                }
                done.store(true, Ordering::Release);
                client.stop().unwrap()
            });
            let calls = allocator_calls(|| {
                while !done.load(Ordering::Acquire) && !client.is_finished() {
                    black_box(work(20));
                }
            });
            let fetched = client.join().unwrap();
            assert_eq!(calls, 0);
            assert!(fetched.counters.recorded >= WANTED, "{:?}", fetched.counters);
        });
        drop(vcpu);
    }

    /// Code to interrupt, at different depths.
    #[inline(never)]
    fn work(depth: u32) -> u32 {
        if depth == 0 {
            return 1;
        }
        black_box(work(depth - 1)) + (0..50).map(black_box).sum::<u32>()
    }
}
