//! The service: text of a request in, text of a response out.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::checksum::Checksum;
use crate::failure::Failure;
use crate::generator::DocumentWriter;
use crate::handlers::{self, State};
use crate::hashing::Keyring;
use crate::http::Request;
use crate::http::status::Status;
use crate::middleware::{self, Layer, Next};
use crate::router::Router;
use crate::statistics::Statistics;

/// A document service without a clock and without I/O: the same seed and the same requests give
/// the same responses.
///
/// ```
/// use unikprof_demo_service::{RequestGenerator, Reply, Service};
///
/// let mut service = Service::new(1, 64);
/// let mut response = Vec::new();
/// for request in RequestGenerator::new(1, 64).take(100) {
///     service.handle(&request, &mut response);
///     assert!(Reply::parse(&response).is_ok());
/// }
/// assert_eq!(service.statistics().requests, 100);
/// ```
pub struct Service {
    state: State,
    layers: Vec<Box<dyn Layer>>,
    router: Router,
    checksum: Checksum,
}

impl Service {
    /// A service that holds at most `size` documents, and at first half as many.
    ///
    /// Clients must sign with keys from the same `seed`, as a
    /// [`RequestGenerator`](crate::RequestGenerator) of that seed does.
    ///
    /// Memory: about 0.4 MB, and 9 KB for each document of a generator. Whatever else clients send,
    /// documents count with at most 16 KiB on average and 400 indexed words each; what is more makes
    /// the longest unused leave early. A size of 0 counts as 1.
    pub fn new(seed: u64, size: usize) -> Self {
        let mut state = State::new(size);
        let mut writer = DocumentWriter::new(seed ^ 0x5EED);
        for number in 0..size / 2 {
            // Documents of our own making are neither too deep nor too large.
            let _ = state.store.put(&writer.id(number), writer.document());
        }
        Self {
            state,
            layers: middleware::layers(Keyring::new(seed)),
            router: handlers::router(),
            checksum: Checksum::new(),
        }
    }

    /// Answers one request, given as the bytes of a whole HTTP/1.1 message, and returns the status
    /// of the answer. `response` is emptied first; its memory is used again.
    ///
    /// Any bytes have an answer: what is no request gets a status of the 400s and a JSON body that
    /// says why.
    #[inline(never)]
    pub fn handle(&mut self, request: &[u8], response: &mut Vec<u8>) -> Status {
        let answer = Request::parse(request).and_then(|request| self.pass(request));
        let answer = answer.unwrap_or_else(Failure::into_response);
        self.state.statistics.requests += 1;
        self.state.statistics.failures += u64::from(!answer.status.is_success());
        answer.write_to(response);
        self.checksum.update(response);
        answer.status
    }

    /// A sum over all responses so far: equal for equal seeds, sizes and requests.
    pub fn checksum(&self) -> u64 {
        self.checksum.value()
    }

    /// Counts and sizes of now.
    pub fn statistics(&self) -> Statistics {
        let store = &self.state.store;
        Statistics {
            documents: store.len(),
            document_bytes: store.bytes(),
            terms: store.index().len(),
            evictions: store.evictions(),
            ..self.state.statistics
        }
    }

    fn pass(&mut self, request: Request<'_>) -> middleware::Answer {
        Next::new(&mut self.layers, &self.router).run(request, &mut self.state)
    }
}
