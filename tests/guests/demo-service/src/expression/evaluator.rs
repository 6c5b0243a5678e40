//! A tree and a document to a value.

use alloc::borrow::Cow;
use alloc::string::String;
use core::cmp::Ordering;

use serde_json_alloc::{Map, Number, Value};

use super::ExpressionError;
use super::functions::call;
use super::syntax::{Expression, Operator};

/// A value during evaluation; lists and objects stay in the document.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Computed<'a> {
    Null,
    Bool(bool),
    Number(f64),
    Text(Cow<'a, str>),
    List(&'a [Value]),
    Object(&'a Map<String, Value>),
}

/// Evaluates expressions within a budget of steps.
pub(crate) struct Evaluator {
    steps_left: u32,
}

impl Evaluator {
    pub(crate) fn new(budget: u32) -> Self {
        Self { steps_left: budget }
    }

    /// The value of an expression with a document, or a part of one, in scope.
    #[inline(never)]
    pub(crate) fn evaluate<'a>(
        &mut self,
        expression: &'a Expression,
        scope: &'a Value,
    ) -> Result<Computed<'a>, ExpressionError> {
        self.step()?;
        Ok(match expression {
            Expression::Null => Computed::Null,
            Expression::Bool(truth) => Computed::Bool(*truth),
            Expression::Number(number) => Computed::Number(*number),
            Expression::Text(text) => Computed::Text(Cow::Borrowed(text)),
            Expression::Name(name) if name == "it" => scope.into(),
            Expression::Name(name) => scope.get(name).map_or(Computed::Null, Computed::from),
            Expression::Member(object, name) => self.evaluate(object, scope)?.member(name),
            Expression::Index(list, index) => self.index(list, index, scope)?,
            Expression::Not(inner) => Computed::Bool(!self.evaluate(inner, scope)?.is_true()),
            Expression::Negate(inner) => Computed::Number(-self.evaluate(inner, scope)?.number()?),
            Expression::Binary(operator, left, right) => {
                self.binary(*operator, left, right, scope)?
            }
            Expression::Choice(condition, then, otherwise) => {
                let branch = if self.evaluate(condition, scope)?.is_true() {
                    then
                } else {
                    otherwise
                };
                self.evaluate(branch, scope)?
            }
            Expression::Call(function, arguments) => call(self, *function, arguments, scope)?,
        })
    }

    pub(super) fn step(&mut self) -> Result<(), ExpressionError> {
        self.steps_left = self
            .steps_left
            .checked_sub(1)
            .ok_or(ExpressionError::TooExpensive)?;
        Ok(())
    }

    fn index<'a>(
        &mut self,
        list: &'a Expression,
        index: &'a Expression,
        scope: &'a Value,
    ) -> Result<Computed<'a>, ExpressionError> {
        let list = self.evaluate(list, scope)?;
        Ok(match (list, self.evaluate(index, scope)?) {
            // The cast saturates: a negative index is the first element, a huge one is absent.
            (Computed::List(items), Computed::Number(position)) => items
                .get(position as usize)
                .map_or(Computed::Null, Computed::from),
            (Computed::Object(members), Computed::Text(name)) => {
                members.get(&*name).map_or(Computed::Null, Computed::from)
            }
            _ => Computed::Null,
        })
    }

    fn binary<'a>(
        &mut self,
        operator: Operator,
        left: &'a Expression,
        right: &'a Expression,
        scope: &'a Value,
    ) -> Result<Computed<'a>, ExpressionError> {
        let left = self.evaluate(left, scope)?;
        match operator {
            Operator::Or if left.is_true() => return Ok(left),
            Operator::And if !left.is_true() => return Ok(left),
            _ => {}
        }
        let right = self.evaluate(right, scope)?;
        Ok(match operator {
            Operator::Or | Operator::And => right,
            Operator::Equal => Computed::Bool(left == right),
            Operator::NotEqual => Computed::Bool(left != right),
            Operator::Less => Computed::Bool(left.compare(&right)?.is_lt()),
            Operator::LessOrEqual => Computed::Bool(left.compare(&right)?.is_le()),
            Operator::Greater => Computed::Bool(left.compare(&right)?.is_gt()),
            Operator::GreaterOrEqual => Computed::Bool(left.compare(&right)?.is_ge()),
            Operator::Add => match (left, right) {
                (Computed::Text(left), Computed::Text(right)) => {
                    Computed::Text(Cow::Owned(left.into_owned() + &right))
                }
                (left, right) => Computed::Number(left.number()? + right.number()?),
            },
            Operator::Subtract => Computed::Number(left.number()? - right.number()?),
            Operator::Multiply => Computed::Number(left.number()? * right.number()?),
            Operator::Divide => {
                let divisor = right.number()?;
                if divisor == 0.0 {
                    return Err(ExpressionError::DivisionByZero);
                }
                Computed::Number(left.number()? / divisor)
            }
        })
    }
}

impl<'a> Computed<'a> {
    /// Everything but null, false, 0 and what is empty is true.
    pub(crate) fn is_true(&self) -> bool {
        match self {
            Self::Null => false,
            Self::Bool(truth) => *truth,
            Self::Number(number) => *number != 0.0,
            Self::Text(text) => !text.is_empty(),
            Self::List(items) => !items.is_empty(),
            Self::Object(members) => !members.is_empty(),
        }
    }

    /// As a number; an absent value counts as 0.
    pub(crate) fn number(&self) -> Result<f64, ExpressionError> {
        match self {
            Self::Null => Ok(0.0),
            Self::Number(number) => Ok(*number),
            _ => Err(ExpressionError::Type),
        }
    }

    /// As JSON; whole numbers without a fraction, numbers that JSON cannot say as null.
    pub(crate) fn into_value(self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(truth) => Value::Bool(truth),
            Self::Number(number) if number == number as i64 as f64 => (number as i64).into(),
            Self::Number(number) => Number::from_f64(number).map_or(Value::Null, Value::Number),
            Self::Text(text) => Value::String(text.into_owned()),
            Self::List(items) => Value::Array(items.to_vec()),
            Self::Object(members) => Value::Object(members.clone()),
        }
    }

    /// A total order over all values: by type, then by value.
    pub(crate) fn order(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Bool(left), Self::Bool(right)) => left.cmp(right),
            (Self::Number(left), Self::Number(right)) => left.total_cmp(right),
            (Self::Text(left), Self::Text(right)) => left.cmp(right),
            (Self::List(left), Self::List(right)) => left.len().cmp(&right.len()),
            (Self::Object(left), Self::Object(right)) => left.len().cmp(&right.len()),
            (left, right) => left.rank().cmp(&right.rank()),
        }
    }

    fn member(self, name: &str) -> Self {
        match self {
            Self::Object(members) => members.get(name).map_or(Self::Null, Self::from),
            _ => Self::Null,
        }
    }

    fn compare(&self, other: &Self) -> Result<Ordering, ExpressionError> {
        match (self, other) {
            (Self::Text(left), Self::Text(right)) => Ok(left.cmp(right)),
            (left, right) => Ok(left.number()?.total_cmp(&right.number()?)),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Null => 0,
            Self::Bool(_) => 1,
            Self::Number(_) => 2,
            Self::Text(_) => 3,
            Self::List(_) => 4,
            Self::Object(_) => 5,
        }
    }
}

impl<'a> From<&'a Value> for Computed<'a> {
    fn from(value: &'a Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(truth) => Self::Bool(*truth),
            // Without arbitrary precision each number has a nearest float.
            Value::Number(number) => Self::Number(number.as_f64().unwrap_or_default()),
            Value::String(text) => Self::Text(Cow::Borrowed(text)),
            Value::Array(items) => Self::List(items),
            Value::Object(members) => Self::Object(members),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::parse;
    use super::*;
    use serde_json_alloc::json;

    fn document() -> Value {
        json!({
            "title": "Red lamp", "price": 12.5, "stock": 3, "tags": ["new", "red"],
            "author": {"name": "Ann"}, "words": 10,
            "sections": [
                {"words": 20, "sections": [{"words": 5}]},
                {"words": 7},
            ],
        })
    }

    fn value(text: &str) -> Result<Value, ExpressionError> {
        let (expression, document) = (parse(text)?, document());
        Evaluator::new(1000)
            .evaluate(&expression, &document)
            .map(Computed::into_value)
    }

    #[test]
    fn computes() {
        let cases = [
            ("1 + 2 * 3 - 4 / 8", json!(6.5)),
            ("price * stock", json!(37.5)),
            ("-price + abs(-price)", json!(0)),
            ("author.name + \"!\"", json!("Ann!")),
            ("tags[1]", json!("red")),
            ("tags[9]", json!(null)),
            ("it[\"title\"]", json!("Red lamp")),
            ("absent.deep.er", json!(null)),
            ("lower(title) == \"red lamp\"", json!(true)),
            ("stock >= 3 && price < 12", json!(false)),
            ("absent || stock", json!(3)),
            ("stock > 5 ? \"many\" : \"few\"", json!("few")),
            ("count(tags) + count(title) + count(author)", json!(11)),
            ("sum(sections, words)", json!(27)),
            ("mean(sections, words)", json!(13.5)),
            ("min(sections, words)", json!(7)),
            ("max(sections, words + count(sections))", json!(21)),
            ("any(tags, it == \"red\")", json!(true)),
            ("all(tags, contains(it, \"e\"))", json!(true)),
            ("tree(sections, words)", json!(42)),
            ("tree(sections, 1)", json!(4)),
            ("!absent", json!(true)),
        ];
        for (text, expected) in cases {
            assert_eq!(value(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn refuses_what_makes_no_sense() {
        assert_eq!(value("1 / absent"), Err(ExpressionError::DivisionByZero));
        assert_eq!(value("title * 2"), Err(ExpressionError::Type));
        assert_eq!(value("title < 2"), Err(ExpressionError::Type));
        assert_eq!(value("sum(title)"), Err(ExpressionError::Type));
        assert_eq!(value("lower(2)"), Err(ExpressionError::Type));
    }

    #[test]
    fn short_circuits_do_not_evaluate_the_rest() {
        assert_eq!(value("stock || 1 / 0"), Ok(json!(3)));
        assert_eq!(value("absent && 1 / 0"), Ok(json!(null)));
    }

    #[test]
    fn long_work_meets_its_budget() {
        let document = document();
        let wide = parse("sum(sections, sum(sections, sum(sections, 1)))").unwrap();
        let result = Evaluator::new(8).evaluate(&wide, &document);
        assert_eq!(result, Err(ExpressionError::TooExpensive));
    }
}
