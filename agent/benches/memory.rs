//! The memory of the agent, and the bytes on the wire, per distinct stack.
//!
//! ```text
//! cargo bench -p unikprof-agent --features hosted --bench memory
//! ```
//!
//! Everything is included: nodes with the counts of both epochs, their share of the index, and the
//! slot with its path, snapshots and histograms.
#![allow(clippy::unwrap_used)]

mod harness;

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use harness::fake::conversation::{Conversation, Fetched};
use harness::fake::{distinct_stacks, sample_each};
use unikprof_agent::Access;
use unikprof_agent::hosted;
use unikprof_agent::table::{Node, Table};
use unikprof_demo_service::{RequestGenerator, Service};

const MEMORY_BYTES: usize = 4 << 20;
/// The index has three entries for two nodes.
const NODE_BYTES: u64 = (size_of::<Node>() + Table::index_length(2) * size_of::<u32>() / 2) as u64;

fn main() {
    if !harness::asked_to_measure() {
        return;
    }
    println!("one vCPU; a node with its share of the index takes {NODE_BYTES} bytes");
    println!(
        "                                 stacks  frames a stack  nodes a stack  memory a stack  \
         wire a stack"
    );
    let (fetched, capacity) = generated(20_000, |_| 1);
    report("20,000 generated stacks", &fetched, capacity);
    let many = |number| if number % 100 == 0 { 10_000 } else { 100 };
    let (fetched, capacity) = generated(20_000, many);
    report("the same, 100 to 10,000 times", &fetched, capacity);
    let (fetched, capacity) = demo_service(2000, 20_000);
    report("demo service, 2 kHz", &fetched, capacity);
    let counters = fetched.counters;
    println!(
        "of its {} samples {} are of a broken chain: in code without frame pointers, as the C \
         library's",
        counters.recorded, counters.broken
    );
}

fn report(name: &str, fetched: &Fetched, capacity: u64) {
    let slot_bytes = MEMORY_BYTES as u64 - capacity * NODE_BYTES;
    let memory_bytes = slot_bytes + fetched.nodes * NODE_BYTES;
    let a_stack = |whole: u64| whole as f64 / fetched.stacks as f64;
    println!(
        "{name:<32} {:6} {:15.1} {:14.2} {:9.1} bytes {:7.1} bytes",
        fetched.stacks,
        a_stack(fetched.frames),
        a_stack(fetched.nodes),
        a_stack(memory_bytes),
        a_stack(fetched.wire_bytes),
    );
}

/// Distinct stacks of a generated program, each sampled `times` of its number times.
fn generated(count: usize, times: impl Fn(usize) -> usize) -> (Fetched, u64) {
    let (fetched, capacity) = sample_each(&distinct_stacks(count), MEMORY_BYTES, times).unwrap();
    assert_eq!(fetched.stacks, count as u64);
    (fetched, capacity)
}

/// A recording of the demo service after `samples` samples: real stacks in their real frequency.
fn demo_service(rate_hz: u64, samples: u64) -> (Fetched, u64) {
    let config = hosted::Config {
        vcpus: 1,
        memory_bytes: MEMORY_BYTES,
        recordings: 1,
        ..hosted::Config::new(Access::Open)
    };
    let guest = hosted::start(config).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let _vcpu = guest.register_thread().unwrap();
            let mut service = Service::new(1, 256);
            let mut response = Vec::new();
            for request in RequestGenerator::new(1, 256) {
                service.handle(&request, &mut response);
                if done.load(Ordering::Acquire) {
                    break;
                }
            }
        });
        let mut client = Conversation::new(TcpStream::connect(guest.address()).unwrap()).unwrap();
        client.start(1_000_000_000 / rate_hz).unwrap();
        let capacity = loop {
            thread::sleep(Duration::from_millis(100));
            let (counters, capacity) = client.check().unwrap();
            if counters.recorded >= samples {
                break capacity;
            }
        };
        let fetched = client.stop().unwrap();
        done.store(true, Ordering::Release);
        assert_eq!(fetched.counters.overflow, 0);
        (fetched, capacity)
    })
}
