//! The same seed gives the same bytes, on every machine and in every build.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use unikprof_demo_service::{Reply, RequestGenerator, RequestKind, Service};

fn checksum(seed: u64, size: usize, requests: usize) -> u64 {
    let mut service = Service::new(seed, size);
    let mut response = Vec::new();
    for request in RequestGenerator::new(seed, size).take(requests) {
        service.handle(&request, &mut response);
    }
    service.checksum()
}

#[test]
fn a_seed_decides_everything() {
    assert_eq!(checksum(5, 32, 1000), checksum(5, 32, 1000));
    assert_ne!(checksum(5, 32, 1000), checksum(6, 32, 1000));
}

/// Guards guests against a build that computes something else: run the example in the guest's
/// build and compare. A change of what requests or responses say changes it, and only that may.
#[test]
fn the_checksum_is_the_known_one() {
    assert_eq!(
        format!("{:016x}", checksum(1, 256, 1000)),
        "48e5032d7c50183f"
    );
}

#[test]
fn each_kind_succeeds_and_fails_as_it_should() {
    let (seed, size) = (3, 64);
    for kind in RequestKind::ALL {
        let mut service = Service::new(seed, size);
        let mut generator = RequestGenerator::new(seed, size);
        let mut response = Vec::new();
        let mut codes: BTreeMap<u16, usize> = BTreeMap::new();
        for _ in 0..100 {
            // So that deleting does not empty the store.
            service.handle(&generator.request(RequestKind::Replace), &mut response);
            let status = service.handle(&generator.request(kind), &mut response);
            let reply = Reply::parse(&response).unwrap();
            assert_eq!(reply.code, status.code());
            *codes.entry(reply.code).or_default() += 1;
        }
        let good: usize = codes.range(..400).map(|(_, count)| count).sum();
        match kind {
            RequestKind::Malformed => assert!(good < 10, "{kind:?} {codes:?}"),
            _ => assert!(good >= 50, "{kind:?} {codes:?}"),
        }
    }
}
