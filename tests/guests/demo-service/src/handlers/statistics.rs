//! What the service counted.

use serde_json_alloc::json;

use super::{State, write_json};
use crate::http::Request;
use crate::http::status::Status;
use crate::middleware::Answer;

pub(super) fn read(state: &mut State, _: &Request<'_>, _: &str) -> Answer {
    let answer = json!({
        "requests": state.statistics.requests,
        "failures": state.statistics.failures,
        "documents": state.store.len(),
        "bytes": state.store.bytes(),
        "terms": state.store.index().len(),
        "evictions": state.store.evictions(),
        "root": state.store.root().to_hex().as_str(),
    });
    write_json(Status::Ok, &answer)
}
