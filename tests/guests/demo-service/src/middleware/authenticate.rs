//! Each request carries its client's name and signature.

use super::{Answer, Layer, Next};
use crate::failure::Failure;
use crate::handlers::State;
use crate::hashing::Keyring;
use crate::http::Request;

pub(super) struct Authenticate {
    keyring: Keyring,
}

impl Authenticate {
    pub(super) fn new(keyring: Keyring) -> Self {
        Self { keyring }
    }

    fn accepts(&self, request: &Request<'_>) -> bool {
        let (Some(client), Some(signature)) =
            (request.header("x-client"), request.header("x-signature"))
        else {
            return false;
        };
        self.keyring.verify(
            client,
            request.method,
            request.target,
            &request.body,
            signature,
        )
    }
}

impl Layer for Authenticate {
    fn call(&mut self, request: Request<'_>, state: &mut State, next: Next<'_>) -> Answer {
        if self.accepts(&request) {
            next.run(request, state)
        } else {
            Err(Failure::Unauthorized)
        }
    }
}
