//! Many documents at once, as lines of JSON.

use alloc::vec::Vec;
use core::ops::ControlFlow;

use serde_json_alloc::{Value, json};

use super::{State, parse_json, write_json};
use crate::failure::Failure;
use crate::http::status::Status;
use crate::http::{Request, Response};
use crate::middleware::Answer;

const DEFAULT_DOCUMENTS: usize = 20;
const MAX_DOCUMENTS: usize = 50;

/// Documents from the id `from` on, one `{"id": …, "value": …}` a line.
pub(super) fn export(state: &mut State, request: &Request<'_>, _: &str) -> Answer {
    let from = request.parameter("from").unwrap_or_default();
    let limit = request.limit(DEFAULT_DOCUMENTS, MAX_DOCUMENTS)?;
    let mut lines = Vec::new();
    let mut left = limit;
    let mut outcome = Ok(());
    state.store.visit(from, &mut |document| {
        if left == 0 {
            return ControlFlow::Break(());
        }
        left -= 1;
        let line = json!({ "id": &*document.id, "value": document.value });
        outcome = write_line(&mut lines, &line);
        if outcome.is_ok() {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    });
    outcome?;
    Ok(Response::new(Status::Ok, "application/x-ndjson", lines))
}

/// Takes what [`export`] gives. Either all lines are JSON, or none is stored; a line that is no
/// document is counted and left out.
pub(super) fn import(state: &mut State, request: &Request<'_>, _: &str) -> Answer {
    let lines = request
        .body
        .split(|&byte| byte == b'\n')
        .filter(|line| !line.is_empty());
    let entries = lines
        .map(parse_json)
        .collect::<Result<Vec<Value>, Failure>>()?;
    if entries.len() > MAX_DOCUMENTS {
        return Err(Failure::TooLarge);
    }
    let (mut stored, mut refused) = (0, 0);
    for mut entry in entries {
        let value = entry.get_mut("value").map(Value::take).unwrap_or_default();
        let id = entry.get("id").and_then(Value::as_str).unwrap_or_default();
        match state.store.put(id, value) {
            Ok(_) => stored += 1,
            Err(_) => refused += 1,
        }
    }
    let root = state.store.root();
    let answer = json!({ "stored": stored, "refused": refused, "root": root.to_hex().as_str() });
    write_json(Status::Ok, &answer)
}

fn write_line(lines: &mut Vec<u8>, value: &Value) -> Result<(), Failure> {
    serde_json_alloc::to_vec(value).map(|line| {
        lines.extend_from_slice(&line);
        lines.push(b'\n');
    })?;
    Ok(())
}
