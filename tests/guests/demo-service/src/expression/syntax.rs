//! The tree of an expression.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expression {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    /// A member of the value in scope.
    Name(String),
    Member(Box<Expression>, String),
    Index(Box<Expression>, Box<Expression>),
    Not(Box<Expression>),
    Negate(Box<Expression>),
    Binary(Operator, Box<Expression>, Box<Expression>),
    Choice(Box<Expression>, Box<Expression>, Box<Expression>),
    Call(Function, Vec<Expression>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Or,
    And,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Add,
    Subtract,
    Multiply,
    Divide,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    Count,
    Sum,
    Mean,
    Min,
    Max,
    Any,
    All,
    Tree,
    Contains,
    Lower,
    Abs,
}

impl Function {
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "count" => Self::Count,
            "sum" => Self::Sum,
            "mean" => Self::Mean,
            "min" => Self::Min,
            "max" => Self::Max,
            "any" => Self::Any,
            "all" => Self::All,
            "tree" => Self::Tree,
            "contains" => Self::Contains,
            "lower" => Self::Lower,
            "abs" => Self::Abs,
            _ => return None,
        })
    }

    /// How many arguments it takes, at least and at most.
    pub(crate) fn arguments(self) -> (usize, usize) {
        match self {
            Self::Count | Self::Lower | Self::Abs => (1, 1),
            Self::Sum | Self::Mean | Self::Min | Self::Max => (1, 2),
            Self::Any | Self::All | Self::Tree | Self::Contains => (2, 2),
        }
    }
}
