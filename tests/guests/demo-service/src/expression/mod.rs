//! Evaluate: a small expression language over documents.
//!
//! ```text
//! price * (1 + tax) > 20 && any(tags, contains(it, "new")) ? tree(sections, words) : 0
//! ```
//!
//! Names are members of the document in scope; `it` is the value in scope itself. The second
//! argument of `sum`, `mean`, `min`, `max`, `any` and `all` is evaluated with each element in
//! scope; `tree(children, value)` sums `value` over this scope and all its descendants.

mod evaluator;
mod functions;
mod lexer;
mod parser;
mod syntax;

use core::fmt;

pub(crate) use evaluator::{Computed, Evaluator};
pub(crate) use parser::parse;
pub(crate) use syntax::Expression;

/// Why an expression has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpressionError {
    /// No token begins at this byte.
    Character {
        position: usize,
    },
    /// The token at this byte does not fit here.
    Syntax {
        position: usize,
    },
    TooLong,
    TooDeep,
    UnknownFunction,
    /// The function wants another number of arguments.
    Arguments,
    /// The operator or function does not take such values.
    Type,
    DivisionByZero,
    /// The evaluation took more steps than it may.
    TooExpensive,
}

impl fmt::Display for ExpressionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Character { position } => write!(f, "unknown character at byte {position}"),
            Self::Syntax { position } => write!(f, "unexpected token at byte {position}"),
            Self::TooLong => f.write_str("the expression is too long"),
            Self::TooDeep => f.write_str("the expression is nested too deeply"),
            Self::UnknownFunction => f.write_str("unknown function"),
            Self::Arguments => f.write_str("wrong number of arguments"),
            Self::Type => f.write_str("values of the wrong type"),
            Self::DivisionByZero => f.write_str("division by zero"),
            Self::TooExpensive => f.write_str("the evaluation takes too many steps"),
        }
    }
}
