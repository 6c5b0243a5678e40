//! Memory stays bounded for ever.

use peak_alloc::PeakAlloc;
use unikprof_demo_service::{RequestGenerator, Service};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Each request takes about half a millisecond without optimisation.
const REQUESTS: usize = if cfg!(debug_assertions) {
    20_000
} else {
    100_000
};

/// One test only: the allocator counts the whole process.
#[test]
fn any_number_of_requests_needs_no_more_than_the_documented_memory() {
    let (seed, size) = (2, 64);
    let before = ALLOCATOR.current_usage();
    let mut service = Service::new(seed, size);
    let mut generator = RequestGenerator::new(seed, size);
    let mut response = Vec::new();
    let mut serve = |requests: usize| {
        ALLOCATOR.reset_peak_usage();
        for request in generator.by_ref().take(requests) {
            service.handle(&request, &mut response);
            let statistics = service.statistics();
            assert!(statistics.documents <= size);
            assert!(statistics.document_bytes <= size * 16 * 1024);
        }
        ALLOCATOR.peak_usage() - before
    };
    let early = serve(REQUESTS / 5);
    let late = serve(REQUESTS / 5 * 4);
    // The compressors of service and generator, and the documents.
    let limit = 2 * 400_000 + size * 16 * 1024;
    assert!(
        late <= limit,
        "{late} bytes at the peak, documented are {limit}"
    );
    assert!(
        late <= early + early / 4,
        "the peak grew from {early} to {late} bytes"
    );
    let statistics = service.statistics();
    assert_eq!(statistics.requests as usize, REQUESTS);
    assert!(
        statistics.evictions as usize > REQUESTS / 200,
        "{statistics:?}"
    );
}
