//! What every request passes on its way to a handler, and every response on its way back.
//!
//! From the outside in: size limits, signature, quota, inflating and deflating, entity
//! tags.

mod authenticate;
mod content_coding;
mod entity_tags;
mod quota;
mod size_limits;

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use crate::failure::Failure;
use crate::handlers::State;
use crate::hashing::Keyring;
use crate::http::{Request, Response};
use crate::router::Router;

pub(crate) type Answer = Result<Response, Failure>;

/// One layer around the handlers.
pub(crate) trait Layer: Send {
    /// Answers the request, as a rule by way of `next`.
    fn call(&mut self, request: Request<'_>, state: &mut State, next: Next<'_>) -> Answer;
}

/// The layers further in, and the router in the middle.
pub(crate) struct Next<'a> {
    layers: &'a mut [Box<dyn Layer>],
    router: &'a Router,
}

impl<'a> Next<'a> {
    pub(crate) fn new(layers: &'a mut [Box<dyn Layer>], router: &'a Router) -> Self {
        Self { layers, router }
    }

    /// Hands the request to the next layer, or to the router behind the last one.
    pub(crate) fn run(self, request: Request<'_>, state: &mut State) -> Answer {
        match self.layers.split_first_mut() {
            Some((layer, layers)) => layer.call(
                request,
                state,
                Next {
                    layers,
                    router: self.router,
                },
            ),
            None => self.router.dispatch(&request, state),
        }
    }
}

/// All layers, the outermost first.
pub(crate) fn layers(keyring: Keyring) -> Vec<Box<dyn Layer>> {
    vec![
        Box::new(size_limits::SizeLimits),
        Box::new(authenticate::Authenticate::new(keyring)),
        Box::new(quota::Quota::default()),
        Box::new(content_coding::ContentCoding::new()),
        Box::new(entity_tags::EntityTags),
    ]
}
