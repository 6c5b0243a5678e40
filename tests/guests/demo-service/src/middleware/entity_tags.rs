//! Tags what is read, and spares clients the body that they have.

use super::{Answer, Layer, Next};
use crate::handlers::State;
use crate::hashing::entity_tag;
use crate::http::status::Status;
use crate::http::{Method, Request, Response};

pub(super) struct EntityTags;

impl Layer for EntityTags {
    fn call(&mut self, request: Request<'_>, state: &mut State, next: Next<'_>) -> Answer {
        let reads = request.method == Method::Get;
        let known = request.header("if-none-match");
        let response = next.run(request, state)?;
        if !reads || response.status != Status::Ok {
            return Ok(response);
        }
        let tag = entity_tag(&response.body);
        if known == Some(tag.as_str()) {
            return Ok(Response::empty(Status::NotModified).with_header("etag", tag));
        }
        Ok(response.with_header("etag", tag))
    }
}
