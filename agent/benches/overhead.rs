//! The overhead of recording in a hosted guest: time per tick, and CPU time of the demo service's
//! requests.
//!
//! ```text
//! cargo bench -p unikprof-agent --features hosted --bench overhead
//! ```
//!
//! *Time per tick.* A thread reads the cycle counter in a loop, 32 calls deep. If a tick came
//! between two reads, and no other thread ran, the gap between them is the tick's duration. The
//! gaps with a recording are compared with those of an empty handler, driven by a periodic timer on
//! the same clock at the same rate. The difference is the agent's: two clock reads (thread CPU
//! time, a system call; and monotonic), the sample, and the system call that arms the timer again,
//! which a periodic timer does not need.
//!
//! *Requests.* The demo service handles the same batch repeatedly; batches with a recording, with
//! the empty handler and with neither take turns in random order. The report shows how much more
//! CPU time of its thread a batch takes, with the 95 % interval of the mean over the rounds. The
//! recording's column includes the cost of any signal on this machine; the last column does not. The
//! agent's own account, with its estimate of what deliveries cost, should equal the first column.
//!
//! *Presets.* The client's presets, `default` at 97 Hz and `profile` at 997 Hz, with the ring:
//! longer batches with and without the recording take turns in random order. The bench reports the
//! CPU time of a batch, whose inverse is the throughput, and the 99th percentile of a request's CPU
//! time; neither includes the work of other programs. `-- presets` measures only these.
#![allow(unsafe_code, clippy::unwrap_used)]

mod harness;

use std::hint::black_box;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use harness::cycles::{Clock, HEADING, cycles, cycles_per_ns};
use harness::fake::conversation::{Conversation, Fetched};
use harness::fake::stacks::Random;
use harness::{clock_ns, thread_cpu_ns};
use unikprof_agent::Access;
use unikprof_agent::hosted::{self, Config, Guest};
use unikprof_demo_service::{RequestGenerator, Service};
use unikprof_proto::message::{Counters, bucket_floor};

const RATES_HZ: [u64; 3] = [99, 997, 9973];
/// Not SIGPROF, which delivers the agent's ticks.
const EMPTY_SIGNAL: i32 = libc::SIGUSR2;

fn main() {
    if !harness::asked_to_measure() {
        return;
    }
    let guest = hosted::start(Config::new(Access::Open)).unwrap();
    let _vcpu = guest.register_thread().unwrap();
    let client = Conversation::new(TcpStream::connect(guest.address()).unwrap()).unwrap();
    let mut loads = Loads { client, empty: EmptyTimer::new(), fetched: None };
    let cycles_per_ns = cycles_per_ns();
    if !std::env::args().any(|argument| argument == "presets") {
        system_calls();
        time_per_tick(&guest, &mut loads, cycles_per_ns);
        requests(&mut loads, cycles_per_ns);
    }
    presets(&mut loads, cycles_per_ns);
}

/// The load while the work runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Nothing,
    EmptyHandler,
    Recording,
}

struct Loads {
    client: Conversation<TcpStream>,
    empty: EmptyTimer,
    fetched: Option<Fetched>,
}

impl Loads {
    /// Does `work` under `load` at `rate_hz`.
    fn with<T>(&mut self, load: Load, rate_hz: u64, work: impl FnOnce() -> T) -> T {
        let period_ns = 1_000_000_000 / rate_hz;
        match load {
            Load::Nothing => {}
            Load::EmptyHandler => self.empty.set(period_ns),
            Load::Recording => self.client.start(period_ns).unwrap(),
        }
        let result = work();
        match load {
            Load::Nothing => {}
            Load::EmptyHandler => self.empty.set(0),
            Load::Recording => self.fetched = Some(self.client.stop().unwrap()),
        }
        result
    }
}

/// The cost of the platform's own calls, to see their share of a tick.
fn system_calls() {
    let clock = Clock::calibrate();
    let timer = EmptyTimer::new();
    let mut monotonic = |_| {
        black_box(clock_ns(libc::CLOCK_MONOTONIC));
    };
    let mut thread_cpu = |_| {
        black_box(thread_cpu_ns());
    };
    // An hour ahead, so that this timer is never the processor's next timer interrupt.
    let mut arm = |_| timer.set(3_600_000_000_000);
    println!("{}\n{HEADING}", clock.describe());
    let timings = clock.series(2000, |_| (), [&mut monotonic, &mut thread_cpu, &mut arm]);
    let names = ["read the monotonic clock", "read thread CPU time", "arm a timer"];
    for (name, timing) in names.iter().zip(timings) {
        println!("{name:<38} {timing}");
    }
    timer.set(0);
}

/// Gaps in a spinning loop, per rate and load.
fn time_per_tick(guest: &Guest, loads: &mut Loads, cycles_per_ns: f64) {
    println!("\ntime per tick, 32 frames, in ns: medians; net also of the lower quartiles");
    println!("   rate  empty handler  recording  net (p25)     net   net × rate");
    for rate_hz in RATES_HZ {
        let mut gaps = [Vec::new(), Vec::new()];
        // In turns, so that other work on the machine affects both equally.
        for _ in 0..10 {
            let until = Duration::from_millis(if rate_hz < 500 { 2000 } else { 400 });
            let mut seen = EMPTY_TICKS.load(Ordering::Relaxed);
            let mut ticked = || {
                let before = std::mem::replace(&mut seen, EMPTY_TICKS.load(Ordering::Relaxed));
                seen != before
            };
            loads.with(Load::EmptyHandler, rate_hz, || {
                deep_spin(32, until, &mut ticked, &mut gaps[0])
            });
            // A tick moves the target by at least half a period of the thread's CPU time; otherwise
            // the target stays, except for the time between reading the clocks.
            let quarter_ns = 250_000_000 / rate_hz;
            let mut target_ns = 0;
            let mut ticked = || {
                let deadline_ns = guest.agent().deadline().unwrap_or(0);
                let left_ns = deadline_ns.saturating_sub(clock_ns(libc::CLOCK_MONOTONIC));
                let now_ns = thread_cpu_ns() + left_ns;
                let before_ns = std::mem::replace(&mut target_ns, now_ns);
                now_ns > before_ns + quarter_ns
            };
            loads
                .with(Load::Recording, rate_hz, || deep_spin(32, until, &mut ticked, &mut gaps[1]));
        }
        let quartiles = gaps.map(|mut gaps| {
            gaps.sort_unstable();
            let ns = |part: usize| gaps[gaps.len() * part / 4] as f64 / cycles_per_ns;
            (ns(1), ns(2), gaps.len())
        });
        let [empty, recording] = quartiles;
        let share = |net_ns: f64| net_ns * rate_hz as f64 / 1e9 * 100.0;
        let (quarter, net) = (recording.0 - empty.0, recording.1 - empty.1);
        println!(
            "{rate_hz:5} Hz {:13.0} {:10.0} {quarter:10.0} {net:7.0} {:10.4} %   ({} and {} ticks)",
            empty.1,
            recording.1,
            share(net),
            empty.2,
            recording.2,
        );
    }
}

/// Spins `depth` calls deep until the time is over; stores every gap in which a tick came.
#[inline(never)]
fn deep_spin(
    depth: u32,
    duration: Duration,
    ticked: &mut dyn FnMut() -> bool,
    gaps: &mut Vec<u64>,
) -> u32 {
    if depth > 0 {
        return black_box(deep_spin(depth - 1, duration, ticked, gaps)) + black_box(1);
    }
    /// Shorter gaps are ignored; the shortest signal takes several times as long.
    const GAP_CYCLES: u64 = 700;
    gaps.reserve(100_000);
    let end = Instant::now() + duration;
    let mut switches_before = switches();
    while Instant::now() < end {
        // The clock is read between rounds only, because reading it would be a gap.
        let mut last = cycles();
        for _ in 0..100_000 {
            let now = cycles();
            if now - last > GAP_CYCLES {
                let switched = switches();
                // A gap in which another thread ran does not show the tick's duration.
                if ticked() && switched == switches_before {
                    gaps.push(now - last);
                }
                switches_before = switched;
                last = cycles();
            } else {
                last = now;
            }
        }
    }
    0
}

/// Batches of requests, per rate, under each load in turn.
fn requests(loads: &mut Loads, cycles_per_ns: f64) {
    const BATCH: usize = 600;
    const ROUNDS: usize = 120;
    let mut service = Service::new(1, 256);
    let batch: Vec<Vec<u8>> = RequestGenerator::new(1, 256).take(BATCH).collect();
    let mut response = Vec::new();
    let mut handle = || {
        let start_ns = thread_cpu_ns();
        for request in &batch {
            service.handle(request, &mut response);
        }
        (thread_cpu_ns() - start_ns) as f64
    };
    for _ in 0..20 {
        handle();
    }
    println!(
        "\nrequests of the demo service, {BATCH} a batch, {ROUNDS} rounds; CPU time of a batch"
    );
    println!(
        "   rate   recording against nothing   empty handler against nothing   recording against \
         empty handler"
    );
    let mut random = Random::new(1);
    for rate_hz in RATES_HZ {
        let mut against = [const { Vec::new() }; 3];
        let (mut ticks, mut tick_cycles, mut histogram) = (0, 0, Vec::new());
        let (mut stated, mut delivery) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let mut order = [Load::Nothing, Load::EmptyHandler, Load::Recording];
            order.swap(0, random.below(3) as usize);
            order.swap(1, 1 + random.below(2) as usize);
            let mut taken = [0.0; 3];
            for load in order {
                taken[load as usize] = loads.with(load, rate_hz, &mut handle).ln();
            }
            let [nothing, empty, recording] = taken;
            let recorded_ns = recording.exp();
            for (series, difference) in
                against.iter_mut().zip([recording - nothing, empty - nothing, recording - empty])
            {
                series.push(difference);
            }
            if let Some(fetched) = loads.fetched.take() {
                let Counters { ticks: due, early, .. } = fetched.counters;
                let cycles = fetched.tick_cycles + (due + early) * fetched.delivery_cycles;
                let spent_ns = cycles as f64 / cycles_per_ns;
                stated.push(-(-spent_ns / recorded_ns).ln_1p());
                delivery.push(fetched.delivery_cycles);
                ticks += due;
                tick_cycles += fetched.tick_cycles;
                histogram.extend(fetched.sample_cycles);
            }
        }
        let [nothing, empty, net] = against.map(|differences| Interval::of(&differences));
        println!("{rate_hz:5} Hz   {nothing}          {empty}              {net}");
        delivery.sort_unstable();
        let quantile = |part: f64| quantile(&mut histogram.clone(), part) as f64 / cycles_per_ns;
        println!(
            "           the agent's own account: {ticks} ticks, at least {:.0} ns (p50), {:.0} ns \
             (p99), \
             {:.0} ns (mean) each; delivery and arming about {:.0} ns each, estimated; in all {}",
            quantile(0.5),
            quantile(0.99),
            tick_cycles as f64 / ticks.max(1) as f64 / cycles_per_ns,
            delivery[delivery.len() / 2] as f64 / cycles_per_ns,
            Interval::of(&stated)
        );
    }
}

/// The cost of the client's presets for the demo service: throughput and the 99th percentile of
/// requests.
fn presets(loads: &mut Loads, cycles_per_ns: f64) {
    const ROUNDS: usize = 150;
    const BATCH_NS: f64 = 150e6;
    let mut service = Service::new(1, 256);
    let requests: Vec<Vec<u8>> = RequestGenerator::new(1, 256).take(600).collect();
    let mut response = Vec::new();
    let mut times = Vec::new();
    // Returns the CPU time and the 99th percentile of `repeats` rounds over the requests.
    let mut handle = |repeats: usize| {
        times.clear();
        let start_ns = thread_cpu_ns();
        let mut before_ns = start_ns;
        for request in std::iter::repeat_n(&requests, repeats).flatten() {
            service.handle(request, &mut response);
            let now_ns = thread_cpu_ns();
            times.push(now_ns - before_ns);
            before_ns = now_ns;
        }
        times.sort_unstable();
        let p99 = times[times.len() * 99 / 100];
        ((before_ns - start_ns) as f64, p99 as f64)
    };
    handle(20);
    let (once_ns, p99) = handle(20);
    let repeats = (BATCH_NS / (once_ns / 20.0)).ceil() as usize;
    println!(
        "\npresets on the demo service: {} requests a batch, {ROUNDS} rounds; a request takes \
         {:.1} µs, its p99 {:.1} µs",
        repeats * requests.len(),
        once_ns / (20 * requests.len()) as f64 / 1e3,
        p99 / 1e3
    );
    println!("   preset   rate   CPU time of a batch     p99 of a request");
    let mut random = Random::new(1);
    for (name, rate_hz) in [("default", 97), ("profile", 997)] {
        let mut against = [const { Vec::new() }; 2];
        let (mut ticks, mut tick_cycles) = (0, 0);
        for _ in 0..ROUNDS {
            let mut order = [Load::Nothing, Load::Recording];
            order.swap(0, random.below(2) as usize);
            let mut taken = [(0.0, 0.0); 3];
            for load in order {
                taken[load as usize] = loads.with(load, rate_hz, || handle(repeats));
            }
            let [nothing, _, recording] = taken;
            against[0].push((recording.0 / nothing.0).ln());
            against[1].push((recording.1 / nothing.1).ln());
            if let Some(fetched) = loads.fetched.take() {
                ticks += fetched.counters.ticks;
                tick_cycles += fetched.tick_cycles;
            }
        }
        let [time, p99] = against.map(|differences| Interval::of(&differences));
        let tick_ns = tick_cycles as f64 / ticks.max(1) as f64 / cycles_per_ns;
        println!(
            "{name:>9} {rate_hz:3} Hz   {time}       {p99}     {tick_ns:.0} ns a tick by the \
             agent's own account: {:.4} %",
            tick_ns * rate_hz as f64 / 1e7
        );
    }
}

/// The lower bound of the bucket that contains the quantile.
fn quantile(pairs: &mut [(usize, u64)], part: f64) -> u64 {
    pairs.sort_unstable();
    let total: u64 = pairs.iter().map(|(_, count)| count).sum();
    let wanted = (total as f64 * part) as u64;
    let mut seen = 0;
    for (bucket, count) in pairs.iter() {
        seen += count;
        if seen > wanted {
            return bucket_floor(*bucket);
        }
    }
    0
}

/// A mean of logarithms of ratios, as a percentage, with its 95 % interval.
struct Interval {
    mean: f64,
    half: f64,
}

impl Interval {
    fn of(differences: &[f64]) -> Self {
        let count = differences.len() as f64;
        let mean = differences.iter().sum::<f64>() / count;
        let squares = differences.iter().map(|value| (value - mean).powi(2));
        let deviation = (squares.sum::<f64>() / (count - 1.0)).sqrt();
        Self { mean: mean.exp_m1() * 100.0, half: 1.98 * deviation / count.sqrt() * 100.0 }
    }
}

impl std::fmt::Display for Interval {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:+7.2} % ± {:4.2}", self.mean, self.half)
    }
}

/// The number of calls of the empty handler.
static EMPTY_TICKS: AtomicU64 = AtomicU64::new(0);

/// A periodic timer on the monotonic clock that signals this thread, with a handler that only
/// counts.
struct EmptyTimer(libc::timer_t);

impl EmptyTimer {
    fn new() -> Self {
        extern "C" fn nothing(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
            EMPTY_TICKS.fetch_add(1, Ordering::Relaxed);
        }
        let mut timer = std::ptr::null_mut();
        // SAFETY: zeros are valid for both structures, which have the required types; the handler
        // has the type that SA_SIGINFO requires.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
            assert_eq!(libc::sigaction(EMPTY_SIGNAL, &raw const action, std::ptr::null_mut()), 0);
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = EMPTY_SIGNAL;
            event.sigev_notify_thread_id = libc::gettid();
            let failed = libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer);
            assert_eq!(failed, 0);
        }
        Self(timer)
    }

    /// Sets the period; 0 stops the timer.
    fn set(&self, period_ns: u64) {
        let time = libc::timespec {
            tv_sec: (period_ns / 1_000_000_000) as i64,
            tv_nsec: (period_ns % 1_000_000_000) as i64,
        };
        let setting = libc::itimerspec { it_interval: time, it_value: time };
        // SAFETY: this value owns the timer, and the structure has the required type.
        unsafe { libc::timer_settime(self.0, 0, &raw const setting, std::ptr::null_mut()) };
    }
}

/// The number of times that this thread lost its processor.
fn switches() -> i64 {
    // SAFETY: zeros are valid for the structure, which has the required type.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage.ru_nivcsw
    }
}
