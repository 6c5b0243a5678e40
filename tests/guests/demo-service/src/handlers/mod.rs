//! What the routes do.

mod archive;
mod documents;
mod evaluate;
mod pages;
mod query;
mod search;
mod statistics;

use serde_json_alloc::Value;

use crate::failure::Failure;
use crate::http::status::Status;
use crate::http::{Method, Request, Response};
use crate::middleware::Answer;
use crate::router::Router;
use crate::statistics::Statistics;
use crate::store::Store;
use crate::template::{TemplateError, Templates};

/// All that handlers share.
pub(crate) struct State {
    pub(crate) store: Store,
    pub(crate) templates: Templates,
    pub(crate) statistics: Statistics,
}

/// Answers a request; the text is the path's parameter, empty for a route without one.
pub(crate) type Handler = fn(&mut State, &Request<'_>, &str) -> Answer;

impl State {
    pub(crate) fn new(max_documents: usize) -> Self {
        let mut templates = Templates::default();
        for (name, source) in pages::TEMPLATES {
            let added: Result<(), TemplateError> = templates.add(name, source);
            // Constants that a test parses; a missing one would be an error of the request.
            debug_assert_eq!(added, Ok(()), "{name}");
        }
        Self {
            store: Store::new(max_documents),
            templates,
            statistics: Statistics::default(),
        }
    }
}

/// All routes.
pub(crate) fn router() -> Router {
    let mut router = Router::default();
    router.add(Method::Get, "/documents/{}", documents::read);
    router.add(Method::Put, "/documents/{}", documents::replace);
    router.add(Method::Patch, "/documents/{}", documents::patch);
    router.add(Method::Delete, "/documents/{}", documents::delete);
    router.add(Method::Get, "/documents/{}/proof", documents::prove);
    router.add(Method::Get, "/documents/{}/page", pages::document);
    router.add(Method::Post, "/documents/{}/evaluate", evaluate::evaluate);
    router.add(Method::Get, "/search", search::search);
    router.add(Method::Get, "/catalogue", pages::catalogue);
    router.add(Method::Post, "/query", query::query);
    router.add(Method::Get, "/archive", archive::export);
    router.add(Method::Post, "/archive", archive::import);
    router.add(Method::Get, "/statistics", statistics::read);
    router
}

/// Reads a body as JSON.
#[inline(never)]
fn parse_json(body: &[u8]) -> Result<Value, Failure> {
    Ok(serde_json_alloc::from_slice(body)?)
}

/// Answers with a value as JSON.
#[inline(never)]
fn write_json(status: Status, value: &Value) -> Answer {
    Ok(Response::json(status, serde_json_alloc::to_vec(value)?))
}

#[cfg(test)]
mod tests;
