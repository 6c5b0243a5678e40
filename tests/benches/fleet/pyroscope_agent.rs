//! A process of its own, profiled by Pyroscope's agent: a thread whose stacks are 8 to 40 frames
//! deep, nearly every sample one of its own, as those of the guests.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use pyroscope::backend::{BackendConfig, PprofConfig, pprof_backend};
use pyroscope::pyroscope::PyroscopeAgentBuilder;
use unikprof_tests::process;

use super::Done;

/// The argument with which the benchmark runs itself.
pub(super) const ARGUMENT: &str = "pyroscope-agent";

/// A profile is sent every ten seconds.
const LASTS: Duration = Duration::from_secs(60);

/// Prints the CPU's time of the agent's threads in seconds: that of the process without that of the
/// profiled thread, in which samples are taken.
pub(super) fn run(url: &str) -> Done {
    let config = PprofConfig { sample_rate: 97 };
    let backend = pprof_backend(config, BackendConfig::default());
    let builder = PyroscopeAgentBuilder::new(url, "bench", 97, "pyroscope-rs", "2.1.5", backend);
    let running = builder.build()?.start()?;
    let start = Instant::now();
    let load = thread::spawn(move || {
        let mut seed = 1;
        while start.elapsed() < LASTS {
            seed = next(seed);
            black_box(FUNCTIONS[0](7 + (seed >> 32) % 33, seed));
        }
        process::cpu_seconds("thread-self").unwrap_or(f64::NAN)
    });
    let load = load.join().map_err(|_| "the load has panicked")?;
    running.stop()?.shutdown();
    let all = process::cpu_seconds("self").ok_or("no /proc")?;
    println!("{}", all - load);
    Ok(())
}

type Function = fn(u64, u64) -> u64;

static FUNCTIONS: [Function; 16] = [
    step::<0>, step::<1>, step::<2>, step::<3>, step::<4>, step::<5>, step::<6>, step::<7>,
    step::<8>, step::<9>, step::<10>, step::<11>, step::<12>, step::<13>, step::<14>, step::<15>,
];

/// Calls another one, so many deep, and works for about a millisecond there.
#[inline(never)]
fn step<const N: u64>(depth: u64, seed: u64) -> u64 {
    if depth == 0 {
        return (0..1_000_000).fold(seed, |sum, add| black_box(sum ^ add));
    }
    let seed = next(seed ^ N);
    black_box(FUNCTIONS[(seed >> 40) as usize % FUNCTIONS.len()](depth - 1, seed)) + N
}

/// A congruential generator's next number.
fn next(seed: u64) -> u64 {
    seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
}
