//! The value of one expression over one document.

use serde_json_alloc::json;

use super::{State, write_json};
use crate::expression::{Evaluator, parse};
use crate::failure::Failure;
use crate::http::Request;
use crate::http::status::Status;
use crate::middleware::Answer;

const BUDGET: u32 = 10_000;

/// The body is the text of the expression.
pub(super) fn evaluate(state: &mut State, request: &Request<'_>, id: &str) -> Answer {
    let text = core::str::from_utf8(&request.body)
        .map_err(|_| Failure::BadRequest("the expression is not UTF-8"))?;
    let expression = parse(text)?;
    let document = state.store.get(id).ok_or(Failure::NoSuchDocument)?;
    let value = Evaluator::new(BUDGET)
        .evaluate(&expression, &document.value)?
        .into_value();
    write_json(Status::Ok, &json!({ "id": id, "value": value }))
}
