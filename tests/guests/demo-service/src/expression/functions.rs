//! The functions of the language.

use alloc::borrow::Cow;

use serde_json_alloc::Value;

use super::ExpressionError;
use super::evaluator::{Computed, Evaluator};
use super::syntax::{Expression, Function};

/// A scope cannot be deeper than a document, which has at most 32 levels.
const MAX_TREE_DEPTH: usize = 32;

type Evaluated<'a> = Result<Computed<'a>, ExpressionError>;

/// Calls a function; the parser has checked the number of arguments.
pub(super) fn call<'a>(
    evaluator: &mut Evaluator,
    function: Function,
    arguments: &'a [Expression],
    scope: &'a Value,
) -> Evaluated<'a> {
    let (first, second) = match arguments {
        [first] => (first, None),
        [first, second] => (first, Some(second)),
        _ => return Err(ExpressionError::Arguments),
    };
    match (function, second) {
        (Function::Count, _) => count(evaluator.evaluate(first, scope)?),
        (Function::Abs, _) => Ok(Computed::Number(
            evaluator.evaluate(first, scope)?.number()?.abs(),
        )),
        (Function::Lower, _) => {
            let text = evaluator.evaluate(first, scope)?;
            Ok(Computed::Text(Cow::Owned(text_of(&text)?.to_lowercase())))
        }
        (Function::Sum | Function::Mean | Function::Min | Function::Max, element) => {
            aggregate(evaluator, function, first, element, scope)
        }
        (Function::Any, Some(condition)) => quantify(evaluator, first, condition, scope, true),
        (Function::All, Some(condition)) => quantify(evaluator, first, condition, scope, false),
        (Function::Tree, Some(value)) => {
            tree(evaluator, first, value, scope, 0).map(Computed::Number)
        }
        (Function::Contains, Some(part)) => {
            let whole = evaluator.evaluate(first, scope)?;
            let part = evaluator.evaluate(part, scope)?;
            Ok(Computed::Bool(text_of(&whole)?.contains(text_of(&part)?)))
        }
        (Function::Any | Function::All | Function::Tree | Function::Contains, None) => {
            Err(ExpressionError::Arguments)
        }
    }
}

fn count(value: Computed<'_>) -> Evaluated<'_> {
    let count = match &value {
        Computed::Null => 0,
        Computed::Text(text) => text.chars().count(),
        Computed::List(items) => items.len(),
        Computed::Object(members) => members.len(),
        Computed::Bool(_) | Computed::Number(_) => return Err(ExpressionError::Type),
    };
    Ok(Computed::Number(count as f64))
}

fn aggregate<'a>(
    evaluator: &mut Evaluator,
    function: Function,
    list: &'a Expression,
    element: Option<&'a Expression>,
    scope: &'a Value,
) -> Evaluated<'a> {
    let items = list_of(evaluator.evaluate(list, scope)?)?;
    let mut result: Option<f64> = None;
    for item in items {
        evaluator.step()?;
        let number = match element {
            Some(element) => evaluator.evaluate(element, item)?.number()?,
            None => Computed::from(item).number()?,
        };
        result = Some(match (result, function) {
            (None, _) => number,
            (Some(least), Function::Min) => least.min(number),
            (Some(most), Function::Max) => most.max(number),
            (Some(sum), _) => sum + number,
        });
    }
    Ok(match (result, function) {
        (None, Function::Sum) => Computed::Number(0.0),
        (None, _) => Computed::Null,
        (Some(sum), Function::Mean) => Computed::Number(sum / items.len() as f64),
        (Some(number), _) => Computed::Number(number),
    })
}

/// Whether an element exists for which the condition is `wanted`, told as `wanted`.
fn quantify<'a>(
    evaluator: &mut Evaluator,
    list: &'a Expression,
    condition: &'a Expression,
    scope: &'a Value,
    wanted: bool,
) -> Evaluated<'a> {
    for item in list_of(evaluator.evaluate(list, scope)?)? {
        evaluator.step()?;
        if evaluator.evaluate(condition, item)?.is_true() == wanted {
            return Ok(Computed::Bool(wanted));
        }
    }
    Ok(Computed::Bool(!wanted))
}

/// Sums a value over a scope and its descendants.
fn tree(
    evaluator: &mut Evaluator,
    children: &Expression,
    value: &Expression,
    scope: &Value,
    depth: usize,
) -> Result<f64, ExpressionError> {
    if depth > MAX_TREE_DEPTH {
        return Err(ExpressionError::TooDeep);
    }
    let mut sum = evaluator.evaluate(value, scope)?.number()?;
    for child in list_of(evaluator.evaluate(children, scope)?)? {
        evaluator.step()?;
        sum += tree(evaluator, children, value, child, depth + 1)?;
    }
    Ok(sum)
}

/// As a list; an absent value counts as an empty one.
fn list_of(value: Computed<'_>) -> Result<&[Value], ExpressionError> {
    match value {
        Computed::Null => Ok(&[]),
        Computed::List(items) => Ok(items),
        _ => Err(ExpressionError::Type),
    }
}

fn text_of<'v>(value: &'v Computed<'_>) -> Result<&'v str, ExpressionError> {
    match value {
        Computed::Null => Ok(""),
        Computed::Text(text) => Ok(text),
        _ => Err(ExpressionError::Type),
    }
}
