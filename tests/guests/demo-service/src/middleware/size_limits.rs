//! Bodies beyond a limit are refused before anybody reads them.

use super::{Answer, Layer, Next};
use crate::failure::Failure;
use crate::handlers::State;
use crate::http::Request;

const MAX_BODY_BYTES: usize = 16 * 1024;
const MAX_TARGET_BYTES: usize = 512;

pub(super) struct SizeLimits;

impl Layer for SizeLimits {
    fn call(&mut self, request: Request<'_>, state: &mut State, next: Next<'_>) -> Answer {
        if request.body.len() > MAX_BODY_BYTES || request.target.len() > MAX_TARGET_BYTES {
            return Err(Failure::TooLarge);
        }
        next.run(request, state)
    }
}
