//! One document: read, replace, patch, delete, prove.

use serde_json_alloc::json;

use super::{State, parse_json, write_json};
use crate::document::merge_patch;
use crate::failure::Failure;
use crate::http::status::Status;
use crate::http::{Request, Response};
use crate::middleware::Answer;

pub(super) fn read(state: &mut State, _: &Request<'_>, id: &str) -> Answer {
    let document = state.store.get(id).ok_or(Failure::NoSuchDocument)?;
    write_json(Status::Ok, &document.value)
}

pub(super) fn replace(state: &mut State, request: &Request<'_>, id: &str) -> Answer {
    let value = parse_json(&request.body)?;
    let version = state.store.put(id, value)?;
    let status = if version == 1 {
        Status::Created
    } else {
        Status::Ok
    };
    written(state, id, status, version)
}

/// Takes a JSON merge patch.
pub(super) fn patch(state: &mut State, request: &Request<'_>, id: &str) -> Answer {
    let changes = parse_json(&request.body)?;
    let mut value = state
        .store
        .get(id)
        .ok_or(Failure::NoSuchDocument)?
        .value
        .clone();
    merge_patch(&mut value, changes);
    let version = state.store.put(id, value)?;
    written(state, id, Status::Ok, version)
}

pub(super) fn delete(state: &mut State, _: &Request<'_>, id: &str) -> Answer {
    state.store.remove(id).ok_or(Failure::NoSuchDocument)?;
    Ok(Response::empty(Status::NoContent))
}

/// The digests that lead from the document to the store's root digest.
pub(super) fn prove(state: &mut State, _: &Request<'_>, id: &str) -> Answer {
    let document = state.store.peek(id).ok_or(Failure::NoSuchDocument)?;
    let proof = state.store.prove(id).ok_or(Failure::NoSuchDocument)?;
    let answer = json!({
        "digest": document.digest.to_hex().as_str(),
        "root": state.store.root().to_hex().as_str(),
        "proof": proof.to_json(),
    });
    write_json(Status::Ok, &answer)
}

fn written(state: &State, id: &str, status: Status, version: u64) -> Answer {
    let root = state.store.root();
    write_json(
        status,
        &json!({ "id": id, "version": version, "root": root.to_hex().as_str() }),
    )
}
