//! Inflates the bodies of requests, and deflates those of responses for clients that accept it.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use super::{Answer, Layer, Next};
use crate::compression::{Compressor, InflateError, inflate};
use crate::failure::Failure;
use crate::handlers::State;
use crate::http::{Request, Response};

/// Shorter bodies are not worth it.
const MIN_BYTES: usize = 512;
const MAX_INFLATED_BYTES: usize = 64 * 1024;

pub(super) struct ContentCoding {
    compressor: Compressor,
}

impl ContentCoding {
    pub(super) fn new() -> Self {
        Self {
            compressor: Compressor::new(),
        }
    }

    fn encode(&mut self, response: &mut Response) {
        if response.body.len() < MIN_BYTES {
            return;
        }
        if let Some(compressed) = self.compressor.deflate(&response.body)
            && compressed.len() < response.body.len()
        {
            response.body = compressed;
            response.set_header("content-encoding", "deflate".into());
        }
    }
}

impl Layer for ContentCoding {
    fn call(&mut self, mut request: Request<'_>, state: &mut State, next: Next<'_>) -> Answer {
        let accepts_deflate = request
            .header("accept-encoding")
            .is_some_and(|codings| codings.contains("deflate"));
        match request.header("content-encoding") {
            None | Some("identity") => {}
            Some("deflate") => request.body = Cow::Owned(decode(&request.body)?),
            Some(_) => return Err(Failure::BadRequest("unknown content-encoding")),
        }
        let mut response = next.run(request, state)?;
        if accepts_deflate {
            self.encode(&mut response);
        }
        Ok(response)
    }
}

fn decode(body: &[u8]) -> Result<Vec<u8>, Failure> {
    inflate(body, MAX_INFLATED_BYTES).map_err(|error| match error {
        InflateError::TooLarge => Failure::TooLarge,
        InflateError::Corrupt => Failure::BadRequest("the body does not inflate"),
    })
}
