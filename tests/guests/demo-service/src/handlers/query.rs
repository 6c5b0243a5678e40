//! Filters, computes and sorts over all documents.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::ControlFlow;

use serde::Deserialize;
use serde_json_alloc::{Value, json};

use super::{State, write_json};
use crate::document::Document;
use crate::expression::{Computed, Evaluator, Expression, ExpressionError, parse};
use crate::http::Request;
use crate::http::status::Status;
use crate::middleware::Answer;
use crate::store::Store;

/// Evaluation steps for one query over all documents.
const BUDGET: u32 = 500_000;
const MAX_ROWS: usize = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Query {
    /// Which documents.
    r#where: String,
    /// What to tell of each; also what to sort by.
    select: String,
    #[serde(default)]
    order: Direction,
    limit: Option<usize>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Direction {
    #[default]
    Ascending,
    Descending,
}

type Row = (Arc<str>, Value);

pub(super) fn query(state: &mut State, request: &Request<'_>, _: &str) -> Answer {
    let query: Query = serde_json_alloc::from_slice(&request.body)?;
    let condition = parse(&query.r#where)?;
    let selection = parse(&query.select)?;
    let mut rows = scan(&state.store, &condition, &selection)?;
    let matches = rows.len();
    sort(&mut rows, query.order);
    rows.truncate(query.limit.unwrap_or(MAX_ROWS).min(MAX_ROWS));
    let rows: Vec<Value> = rows
        .into_iter()
        .map(|(id, value)| json!({ "id": &*id, "value": value }))
        .collect();
    write_json(Status::Ok, &json!({ "matches": matches, "rows": rows }))
}

/// The selected value of each document that meets the condition.
#[inline(never)]
fn scan(
    store: &Store,
    condition: &Expression,
    selection: &Expression,
) -> Result<Vec<Row>, ExpressionError> {
    let mut evaluator = Evaluator::new(BUDGET);
    let mut rows = Vec::new();
    let mut outcome = Ok(());
    store.visit(
        "",
        &mut |document| match row(&mut evaluator, document, condition, selection) {
            Ok(row) => {
                rows.extend(row);
                ControlFlow::Continue(())
            }
            Err(error) => {
                outcome = Err(error);
                ControlFlow::Break(())
            }
        },
    );
    outcome.map(|()| rows)
}

fn row(
    evaluator: &mut Evaluator,
    document: &Document,
    condition: &Expression,
    selection: &Expression,
) -> Result<Option<Row>, ExpressionError> {
    if !evaluator.evaluate(condition, &document.value)?.is_true() {
        return Ok(None);
    }
    let value = evaluator.evaluate(selection, &document.value)?.into_value();
    Ok(Some((document.id.clone(), value)))
}

#[inline(never)]
fn sort(rows: &mut [Row], direction: Direction) {
    // Documents come in order of id, and the sort is stable: equal values stay so.
    rows.sort_by(|(_, one), (_, other)| {
        let order = Computed::from(one).order(&Computed::from(other));
        match direction {
            Direction::Ascending => order,
            Direction::Descending => order.reverse(),
        }
    });
}
