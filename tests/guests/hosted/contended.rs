//! On a CPU that three busy loops share: sleeps of 2 ms, each followed by four functions that work
//! for 200 µs by the thread's CPU clock. One round of four is for the request `rare`, the others are
//! for `common`, which is under way at the same time. It prints how long each function and each
//! request has worked so far.
#![allow(unsafe_code)]

use std::error::Error;
use std::hint::{black_box, spin_loop};
use std::io;
use std::mem::zeroed;
use std::thread;
use std::time::Duration;

use unikprof_agent::hosted::{Guest, Vcpu};

use crate::stop::Stop;

const BUSY: u32 = 3;
const SLEEP: Duration = Duration::from_millis(2);
const WORK_NS: u64 = 200_000;
const ROUNDS: usize = 48;

pub(crate) fn run(guest: &Guest, stop: &Stop) -> Result<(), Box<dyn Error>> {
    use_one_cpu()?;
    for _ in 0..BUSY {
        let stop = stop.clone();
        thread::spawn(move || {
            while !stop.is_set() {
                spin_loop();
            }
        });
    }
    let vcpu = guest.register_thread()?;
    let agent = guest.agent();
    let names = [agent.event_name("rare")?, agent.event_name("common")?];
    let (mut worked, mut for_requests) = ([0; 4], [0; 2]);
    while !stop.is_set() {
        let requests = names.map(|name| agent.async_span_begin(name));
        for number in 0..ROUNDS {
            let request = usize::from(number % 4 != 0);
            let before = agent.enter(requests[request]);
            for_requests[request] += round(&vcpu, &mut worked);
            agent.leave(before);
        }
        for (name, request) in names.into_iter().zip(requests) {
            agent.span_end(name, request);
        }
        let ([first, second, third, fourth], [rare, common]) = (worked, for_requests);
        println!("worked {first} {second} {third} {fourth} {rare} {common}");
    }
    Ok(())
}

/// Returns how long it worked.
#[inline(never)]
fn round(vcpu: &Vcpu, worked: &mut [u64; 4]) -> u64 {
    vcpu.block(|| thread::sleep(SLEEP));
    let mut began_ns = cpu_ns();
    let first_ns = began_ns;
    for (work, worked) in [first, second, third, fourth].into_iter().zip(worked) {
        let ended_ns = work(began_ns);
        *worked += ended_ns - began_ns;
        began_ns = ended_ns;
    }
    began_ns - first_ns
}

#[inline(never)]
fn first(began_ns: u64) -> u64 {
    black_box(work(began_ns))
}

#[inline(never)]
fn second(began_ns: u64) -> u64 {
    black_box(work(began_ns))
}

#[inline(never)]
fn third(began_ns: u64) -> u64 {
    black_box(work(began_ns))
}

#[inline(never)]
fn fourth(began_ns: u64) -> u64 {
    black_box(work(began_ns))
}

#[inline(never)]
fn work(began_ns: u64) -> u64 {
    loop {
        (0..500).for_each(|_| spin_loop());
        let now_ns = cpu_ns();
        if now_ns >= began_ns + WORK_NS {
            return now_ns;
        }
    }
}

fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure has the required type; the call cannot fail with this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Restricts this thread, and those that it starts, to the CPU that it runs on.
fn use_one_cpu() -> io::Result<()> {
    // SAFETY: zeros are an empty set, and both calls use the set only. `sched_getcpu` returns the
    // number of a CPU that the thread may use.
    let failed = unsafe {
        let mut cpus: libc::cpu_set_t = zeroed();
        libc::CPU_SET(usize::try_from(libc::sched_getcpu()).unwrap_or(0), &mut cpus);
        libc::sched_setaffinity(0, size_of_val(&cpus), &raw const cpus)
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
