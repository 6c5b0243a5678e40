//! A process of its own for its global allocator: a hosted guest whose allocator is [`Sampled`],
//! around an allocator that counts every byte.
#![allow(clippy::unwrap_used, unsafe_code)]

#[path = "it/fake/mod.rs"]
mod fake;

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fake::conversation::Conversation;
use unikprof_agent::Access;
use unikprof_agent::heap::Sampled;
use unikprof_agent::hosted::{self, Config, Hosted};
use unikprof_proto::code::{frame_code, mode};
use unikprof_proto::message::Start;

/// Counts the bytes that the guest's thread allocates.
struct Counting;

static BYTES: AtomicU64 = AtomicU64::new(0);

std::thread_local! {
    static IS_GUEST: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

fn count(size: usize) {
    if IS_GUEST.get() {
        BYTES.fetch_add(size as u64, Ordering::Relaxed);
    }
}

// SAFETY: forwards to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(address, layout) }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: the caller upholds the contract.
        unsafe { System.realloc(address, layout, size) }
    }
}

#[global_allocator]
static HEAP: Sampled<Counting, Hosted> = Sampled::new(Counting);

#[inline(never)]
fn make_small() -> Vec<u8> {
    black_box(vec![1; 700])
}

#[inline(never)]
fn make_large() -> Vec<u8> {
    black_box(vec![2; 100_000])
}

/// One thread is the guest; what it allocates, frees and holds is known to the byte.
#[test]
fn a_rust_guest_sees_its_allocations_and_what_it_holds() {
    const INTERVAL: u64 = 8 << 10;
    let config = Config { live_samples: 5_000, ..Config::new(Access::Open) };
    let guest = hosted::start(config).unwrap();
    HEAP.attach(guest.agent());
    let address = guest.address();
    let (go, gone) = std::sync::mpsc::sync_channel::<u32>(0);
    let (done, work_done) = std::sync::mpsc::sync_channel::<u64>(0);
    let thread = std::thread::spawn(move || {
        let vcpu = guest.register_thread().unwrap();
        let mut held = Vec::with_capacity(10_000);
        for rounds in gone {
            IS_GUEST.set(true);
            let before = BYTES.load(Ordering::Relaxed);
            for round in 0..rounds {
                let small = make_small();
                if round % 4 == 0 {
                    held.push(small);
                }
                if round % 16 == 0 {
                    drop(make_large());
                }
            }
            IS_GUEST.set(false);
            let bytes = BYTES.load(Ordering::Relaxed) - before;
            done.send(bytes).unwrap();
        }
        drop(vcpu);
        held
    });
    let connect = || {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Conversation::new(stream).unwrap()
    };
    let mut client = connect();
    // Until an allocation was reported, a recording is refused.
    go.send(1).unwrap();
    work_done.recv().unwrap();
    client.start_as(&Start::heap("bytes", mode::ALLOC, INTERVAL)).unwrap();
    go.send(8_000).unwrap();
    let truth = work_done.recv().unwrap();
    let got = client.stop().unwrap();
    let (mut bytes, mut large) = (0.0, 0);
    for (stack, samples) in &got.counts {
        let size = frame_code::size_of(stack[0]).unwrap();
        let p = -(-(size as f64) / INTERVAL as f64).exp_m1();
        let p = if size >= INTERVAL { 1.0 } else { p };
        bytes += size as f64 * *samples as f64 / p;
        large += if size == 100_000 { *samples } else { 0 };
        assert!(stack.len() > 4, "{stack:x?}: the caller's frames");
    }
    assert_eq!(large, 500, "large ones are always kept, exactly");
    // Small ones: 5.6 MB; the standard deviation is 210 KB.
    let error = (bytes - truth as f64).abs();
    assert!(error < 1_100_000.0, "{bytes} of {truth}");
    client.start_as(&Start::heap("held", mode::LIVE, INTERVAL)).unwrap();
    go.send(8_000).unwrap();
    work_done.recv().unwrap();
    let got = client.stop().unwrap();
    let p = -(-700.0 / INTERVAL as f64).exp_m1();
    let objects = got.live.len() as f64 / p;
    // 2,000 are held. The standard deviation is 150.
    assert!((objects - 2_000.0).abs() < 800.0, "{objects} are held");
    assert!(got.live.iter().all(|sample| sample.size == 700));
    drop(go);
    assert_eq!(thread.join().unwrap().len(), 4_001);
}
