//! No bytes make the service panic, and all get a whole answer.
#![allow(clippy::unwrap_used)]

use unikprof_demo_service::{Reply, RequestGenerator, RequestKind, Service};

/// A cheap source of bytes of its own: xorshift.
struct Bytes(u64);

impl Bytes {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }
}

fn answer(service: &mut Service, request: &[u8]) -> u16 {
    let mut response = Vec::new();
    let status = service.handle(request, &mut response);
    let reply = Reply::parse(&response).unwrap();
    assert_eq!(reply.code, status.code());
    reply.code
}

#[test]
fn damaged_requests_are_answered() {
    let mut service = Service::new(4, 16);
    let mut generator = RequestGenerator::new(4, 16);
    let mut bytes = Bytes(99);
    let mut refused = 0;
    for round in 0..4000 {
        let kind = RequestKind::ALL[round % RequestKind::ALL.len()];
        let mut request = generator.request(kind);
        for _ in 0..=bytes.below(3) {
            if request.is_empty() {
                break;
            }
            let position = bytes.below(request.len());
            match bytes.below(4) {
                0 => request[position] = bytes.below(256) as u8,
                1 => request.truncate(position),
                2 => drop(request.remove(position)),
                _ => request.extend_from_within(position..),
            }
        }
        refused += usize::from(answer(&mut service, &request) >= 400);
    }
    // The signature lets almost nothing pass.
    assert!(refused > 3600, "{refused}");
}

#[test]
fn noise_is_a_bad_request() {
    let mut service = Service::new(4, 16);
    let mut bytes = Bytes(7);
    for length in 0..500 {
        let request: Vec<u8> = (0..length).map(|_| bytes.below(256) as u8).collect();
        assert_eq!(answer(&mut service, &request), 400, "{request:?}");
    }
}

#[test]
fn a_service_without_room_still_answers() {
    let mut service = Service::new(4, 0);
    for request in RequestGenerator::new(4, 0).take(500) {
        answer(&mut service, &request);
        assert!(service.statistics().documents <= 1);
    }
}
