//! Serves generated requests for some seconds and tells the rate and the checksum.
//!
//!     cargo run --release -p unikprof-demo-service --example run -- [SECONDS] [SEED] [SIZE]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use unikprof_demo_service::{RequestGenerator, Service};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse());
    let (Ok(seconds), Ok(seed), Ok(size)) = (number(5), number(1), number(256)) else {
        eprintln!("usage: run [SECONDS] [SEED] [SIZE]");
        return ExitCode::from(2);
    };
    let size = usize::try_from(size).unwrap_or(usize::MAX);

    let mut service = Service::new(seed, size);
    let mut response = Vec::new();
    let started = Instant::now();
    let mut first_thousand = None;
    for request in RequestGenerator::new(seed, size) {
        service.handle(&request, &mut response);
        if service.statistics().requests == 1000 {
            first_thousand = Some(service.checksum());
        }
        if started.elapsed() >= Duration::from_secs(seconds) {
            break;
        }
    }
    let statistics = service.statistics();
    let rate = statistics.requests as f64 / started.elapsed().as_secs_f64();
    println!("{rate:.0} requests/s, {statistics:?}");
    if let Some(checksum) = first_thousand {
        // Later ones depend on how far the run came.
        println!("checksum after 1000 requests: {checksum:016x}");
    }
    println!("checksum at the end: {:016x}", service.checksum());
    ExitCode::SUCCESS
}
