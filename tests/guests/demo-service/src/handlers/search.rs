//! Full-text search.

use alloc::vec::Vec;

use serde_json_alloc::{Value, json};

use super::{State, write_json};
use crate::failure::Failure;
use crate::http::Request;
use crate::http::status::Status;
use crate::middleware::Answer;
use crate::ranking::{self, Order};

const DEFAULT_HITS: usize = 10;
const MAX_HITS: usize = 100;

pub(super) fn search(state: &mut State, request: &Request<'_>, _: &str) -> Answer {
    let query = request
        .parameter("q")
        .ok_or(Failure::BadRequest("q is missing"))?;
    let order = match request.parameter("order") {
        None | Some("score") => Order::Score,
        Some("title") => Order::Title,
        Some(_) => return Err(Failure::BadRequest("unknown order")),
    };
    let limit = request.limit(DEFAULT_HITS, MAX_HITS)?;
    let hits = ranking::search(&state.store, query, order);
    let found: Vec<Value> = hits
        .iter()
        .take(limit)
        .map(|hit| json!({ "id": &*hit.id, "title": hit.title, "score": hit.score }))
        .collect();
    write_json(Status::Ok, &json!({ "matches": hits.len(), "hits": found }))
}
