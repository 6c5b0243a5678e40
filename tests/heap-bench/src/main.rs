//! The cost of sampling allocations, beside jemalloc's profiler and dhat on the same load.
//!
//! ```text
//! RUSTFLAGS="-C force-frame-pointers=yes" cargo run --release --manifest-path tests/heap-bench/Cargo.toml
//! ```
//!
//! Each configuration runs in a process of its own, because profilers cannot be removed again; the
//! configurations alternate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::error::Error;
use std::hint::black_box;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use tikv_jemallocator::Jemalloc;
use unikprof_agent::heap::Sampled;
use unikprof_agent::hosted::{self, Config, Hosted};
use unikprof_agent::{Access, live_bytes};
use unikprof_proto::code::mode;
use unikprof_proto::message::Start;
use unikprof_proto::{frame, preamble};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The configurations, and the environment that each needs.
const CONFIGURATIONS: [(&str, &str); 13] = [
    ("system", ""),
    ("sampled, not attached", ""),
    ("sampled, off", ""),
    ("sampled, alloc 512 KiB", ""),
    ("sampled, alloc 64 KiB", ""),
    ("sampled, live 512 KiB", ""),
    ("sampled, live 64 KiB", ""),
    ("jemalloc", "prof:false"),
    ("jemalloc, profiler 512 KiB", "prof:true,lg_prof_sample:19"),
    ("jemalloc, profiler 64 KiB", "prof:true,lg_prof_sample:16"),
    ("dhat, no profiler", ""),
    ("dhat, every allocation", ""),
    ("hooks", ""),
];

const ROUNDS: usize = 5;
/// Allocations and frees of one measurement.
const PAIRS: u32 = 2_000_000;
/// dhat is slow.
const DHAT_PAIRS: u32 = 100_000;

static SAMPLED: Sampled<System, Hosted> = Sampled::new(System);
static DHAT: dhat::Alloc = dhat::Alloc;

fn main() -> Result<()> {
    if let Some(configuration) = std::env::args().nth(1) {
        return measure(&configuration);
    }
    println!(
        "ns of CPU time for an allocation and a free; live samples take {} bytes each",
        live_bytes(70_000) / 70_000
    );
    let mut results = vec![Vec::new(); CONFIGURATIONS.len()];
    for _ in 0..ROUNDS {
        for ((name, environment), results) in CONFIGURATIONS.iter().zip(&mut results) {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg(name).env("_RJEM_MALLOC_CONF", environment);
            let output = command.output()?;
            if !output.status.success() {
                return Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr)).into());
            }
            results.push(String::from_utf8(output.stdout)?);
        }
    }
    for ((name, _), results) in CONFIGURATIONS.iter().zip(&mut results) {
        results.sort_by(|a, b| number(a).total_cmp(&number(b)));
        let [least, .., most] = &results[..] else {
            continue;
        };
        let median = &results[ROUNDS / 2];
        println!("{name:<28} {:>8} ({} to {})", median.trim(), least.trim(), most.trim());
    }
    Ok(())
}

fn number(text: &str) -> f64 {
    let first = text.split_whitespace().next();
    first.and_then(|text| text.parse().ok()).unwrap_or(f64::MAX)
}

fn measure(configuration: &str) -> Result<()> {
    let _profiler;
    let attach = || -> Result<hosted::Guest> {
        let guest = hosted::start(Config { live_samples: 30_000, ..Config::new(Access::Open) })?;
        SAMPLED.attach(guest.agent());
        Ok(guest)
    };
    let recorded = |mode: u32, interval: u64| -> Result<()> {
        let guest = attach()?;
        let _vcpu = guest.register_thread()?;
        let mut stream = begin(&guest, mode, interval)?;
        load(&SAMPLED, PAIRS);
        stream.flush()?;
        Ok(())
    };
    match configuration {
        "system" => load(&System, PAIRS),
        "sampled, not attached" => load(&SAMPLED, PAIRS),
        "sampled, off" => {
            let guest = attach()?;
            let _vcpu = guest.register_thread()?;
            load(&SAMPLED, PAIRS);
        }
        "sampled, alloc 512 KiB" => recorded(mode::ALLOC, 512 << 10)?,
        "sampled, alloc 64 KiB" => recorded(mode::ALLOC, 64 << 10)?,
        "sampled, live 512 KiB" => recorded(mode::LIVE, 512 << 10)?,
        "sampled, live 64 KiB" => recorded(mode::LIVE, 64 << 10)?,
        "hooks" => hooks(&attach()?)?,
        "dhat, no profiler" => load(&DHAT, PAIRS),
        "dhat, every allocation" => {
            _profiler = dhat::Profiler::builder().testing().build();
            load(&DHAT, DHAT_PAIRS);
        }
        _ => load(&Jemalloc, PAIRS),
    }
    Ok(())
}

/// Starts a recording over a connection, which the caller keeps open.
fn begin(guest: &hosted::Guest, mode: u32, interval: u64) -> Result<TcpStream> {
    guest.agent().on_alloc(std::ptr::without_provenance(16), 1);
    let mut stream = TcpStream::connect(guest.address())?;
    let mut bytes = [0; 256];
    let length = frame::encode(&Start::heap("measured", mode, interval), &mut bytes)
        .map_err(|error| error.to_string())?;
    stream.write_all(&preamble::encode(preamble::OPEN))?;
    stream.write_all(&bytes[..length])?;
    let mut answer = [0; preamble::LENGTH + 14];
    stream.read_exact(&mut answer)?;
    let kind = u16::from_le_bytes([answer[16], answer[17]]);
    if kind != unikprof_proto::code::message_type::STARTED {
        return Err(format!("message {kind} instead of a start").into());
    }
    Ok(stream)
}

/// The CPU time of this thread, which other programs' load changes little.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes into a structure of the right type.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Keeps 20,000 objects and replaces one after the other at random: 16 bytes to 1 KiB, every
/// hundredth 16 KiB.
fn load(allocator: &dyn GlobalAlloc, pairs: u32) {
    const OBJECTS: usize = 20_000;
    let mut objects = vec![(std::ptr::null_mut::<u8>(), Layout::new::<u64>()); OBJECTS];
    let mut random = 1_u64;
    let mut run = |pairs: u32| {
        for _ in 0..pairs {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let size = match random % 100 {
                0 => 16 << 10,
                _ => 16 << (random >> 20 & 7) >> 1 | 16,
            };
            let place = &mut objects[(random >> 32) as usize % OBJECTS];
            let Ok(layout) = Layout::from_size_align(size as usize, 8) else {
                return;
            };
            // SAFETY: allocated here with this layout, and freed once.
            unsafe {
                if !place.0.is_null() {
                    allocator.dealloc(place.0, place.1);
                }
                let address = black_box(allocator.alloc(layout));
                address.write(1);
                *place = (address, layout);
            }
        }
    };
    run(pairs / 10);
    let begun = cpu_time();
    run(pairs);
    println!("{:.1}", (cpu_time() - begun).as_nanos() as f64 / f64::from(pairs));
}

/// The hooks alone, in ns: an allocation and a free with nothing recorded, a free while what is
/// held is recorded, and a sampled allocation of each mode with its free.
fn hooks(guest: &hosted::Guest) -> Result<()> {
    const CALLS: u64 = 20_000_000;
    let _vcpu = guest.register_thread()?;
    let agent = guest.agent();
    let address = |number: u64| std::ptr::without_provenance::<u8>((0x1000 + number * 48) as usize);
    let timed = |calls: u64, call: &mut dyn FnMut(u64)| {
        let begun = cpu_time();
        call(calls);
        (cpu_time() - begun).as_nanos() as f64 / calls as f64
    };
    let loop_only = timed(CALLS, &mut |calls| {
        for number in 0..calls {
            black_box(address(number));
        }
    });
    let mut allocated = timed(CALLS, &mut |calls| {
        for number in 0..calls {
            agent.on_alloc(black_box(address(number)), 64);
        }
    });
    let mut freed = timed(CALLS, &mut |calls| {
        for number in 0..calls {
            agent.on_free(black_box(address(number)));
        }
    });
    allocated -= loop_only;
    freed -= loop_only;
    let _stream = begin(guest, mode::LIVE, 64)?;
    agent.on_alloc(address(0), 1 << 20);
    for number in 0..10_000 {
        agent.on_alloc(address(number), 4096);
    }
    let mut missed = timed(CALLS, &mut |calls| {
        for number in 0..calls {
            agent.on_free(black_box(address(20_000 + number)));
        }
    });
    missed -= loop_only;
    let sampled = timed(1_000_000, &mut |calls| {
        for number in 0..calls {
            agent.on_alloc(black_box(address(20_000 + number % 5_000)), 4096);
            agent.on_free(black_box(address(20_000 + number % 5_000)));
        }
    });
    println!(
        "{allocated:.2} alloc, {freed:.2} free, {missed:.2} free beside 10,000 live samples, \
         {sampled:.0} sampled alloc and free"
    );
    Ok(())
}
