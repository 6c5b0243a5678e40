//! Memory stays bounded, however many requests are served.

use peak_alloc::PeakAlloc;
use unikprof_demo_service::{RequestGenerator, Service};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// The only test here, because the allocator counts the whole process.
#[test]
fn many_requests_need_no_more_than_the_documented_memory() {
    const REQUESTS: usize = if cfg!(debug_assertions) { 5_000 } else { 100_000 };
    let (seed, size) = (2, 64);
    let limit = 500_000 + size * 8_000;
    let before = ALLOCATOR.current_usage();
    let mut service = Service::new(seed, size);
    let mut response = Vec::new();
    for request in RequestGenerator::new(seed, size).take(REQUESTS) {
        service.handle(&request, &mut response);
    }
    let peak = ALLOCATOR.peak_usage() - before;
    assert!(peak <= limit, "{peak} bytes at the peak, documented are {limit}");
}
